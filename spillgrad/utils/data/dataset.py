"""PyTorch's module `torch.utils.data.dataset`; `spillgrad.data.dataset` defines all these names."""

from spillgrad.data.dataset import *
