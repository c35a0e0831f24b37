"""PyTorch's module `torch.nn.modules.transformer`."""

from spillgrad.nn.transformer import *
