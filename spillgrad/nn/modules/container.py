"""PyTorch's module `torch.nn.modules.container`."""

from spillgrad.nn.containers import *
