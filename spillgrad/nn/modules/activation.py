"""PyTorch's module `torch.nn.modules.activation`."""

from spillgrad.nn.activation import *
from spillgrad.nn.multihead_attention import MultiheadAttention as MultiheadAttention
