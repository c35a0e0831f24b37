"""PyTorch's module `torch.nn.modules.padding`."""

from spillgrad.nn.padding import *
