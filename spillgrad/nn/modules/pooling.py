"""PyTorch's module `torch.nn.modules.pooling`."""

from spillgrad.nn.pooling import *
