"""PyTorch's module `torch.nn.modules.distance`."""

from spillgrad.nn.distance import *
