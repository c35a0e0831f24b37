"""PyTorch's package `torch.nn.parallel`, for one process and one device."""

from spillgrad.nn.parallel.wrappers import *
