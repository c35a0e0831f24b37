"""PyTorch's module `torch.utils.data.sampler`; `spillgrad.data.sampler` defines all these names."""

from spillgrad.data.sampler import *
