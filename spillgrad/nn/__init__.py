"""Layers, losses, and helpers for training them."""

from spillgrad.nn import functional, init, modules, utils
from spillgrad.nn.activation import *
from spillgrad.nn.batch_norm import *
from spillgrad.nn.containers import *
from spillgrad.nn.conv import *
from spillgrad.nn.distance import *
from spillgrad.nn.dropout import *
from spillgrad.nn.embedding import *
from spillgrad.nn.layer import *
from spillgrad.nn.lazy import *
from spillgrad.nn.linear import *
from spillgrad.nn.lora import *
from spillgrad.nn.loss import *
from spillgrad.nn.module import *
from spillgrad.nn.multihead_attention import *
from spillgrad.nn.normalization import *
from spillgrad.nn.padding import *
from spillgrad.nn.parameter import *
from spillgrad.nn.pooling import *
from spillgrad.nn.rearrange import *
from spillgrad.nn.rnn import *
from spillgrad.nn.transformer import *
from spillgrad.nn.upsample import *

__all__ = ["functional", "init", "modules", "utils"]
__all__ += [name for name, value in vars().items() if getattr(value, "__module__", "").startswith("spillgrad.nn.")]
