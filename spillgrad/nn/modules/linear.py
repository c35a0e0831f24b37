"""PyTorch's module `torch.nn.modules.linear`."""

from spillgrad.nn.linear import *
