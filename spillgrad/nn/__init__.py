"""Layers, losses, and helpers for training them."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from spillgrad.nn import functional, init, modules, utils
from spillgrad.nn.activation import *
from spillgrad.nn.adaptive_softmax import *
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
from spillgrad.nn.quantize import *
from spillgrad.nn.quantized import *
from spillgrad.nn.rearrange import *
from spillgrad.nn.rnn import *
from spillgrad.nn.transformer import *
from spillgrad.nn.upsample import *

if _TYPE_CHECKING:
    from spillgrad.nn import attention, common_types, parallel
    from spillgrad.nn.parallel import DataParallel

_LAZY = {"attention": "attention", "common_types": "common_types", "parallel": "parallel", "DataParallel": "parallel"}


def __getattr__(name: str) -> _Any:
    """Import what few programs use on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = _import_module(f"{__name__}.{_LAZY[name]}")
    return package if name in ("attention", "common_types", "parallel") else getattr(package, name)


__all__ = ["functional", "init", "modules", "utils"]
__all__ += [name for name, value in vars().items() if getattr(value, "__module__", "").startswith("spillgrad.nn.")]
