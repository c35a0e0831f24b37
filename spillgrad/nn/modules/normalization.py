"""PyTorch's module `torch.nn.modules.normalization`."""

from spillgrad.nn.normalization import GroupNorm as GroupNorm
from spillgrad.nn.normalization import LayerNorm as LayerNorm
from spillgrad.nn.normalization import LocalResponseNorm as LocalResponseNorm
from spillgrad.nn.normalization import RMSNorm as RMSNorm
