"""PyTorch's module `torch.nn.modules.sparse`."""

from spillgrad.nn.embedding import *
