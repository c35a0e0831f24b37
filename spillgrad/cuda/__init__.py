"""NVIDIA's GPUs under the names of `torch.cuda`: queries, memory, random numbers, streams, and mixed precision (`amp`).

Scripts can choose a device by `"cuda" if sg.cuda.is_available() else "cpu"`. Only the first device is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spillgrad.cuda.queries import *
from spillgrad.cuda.random_numbers import *
from spillgrad.ops.typed_tensors import on_cuda as _typed

if TYPE_CHECKING:
    from spillgrad.cuda import amp, nvtx
    from spillgrad.cuda.streams import *

FloatTensor, DoubleTensor, HalfTensor = (_typed[f"{word}Tensor"] for word in ("Float", "Double", "Half"))
BFloat16Tensor, BoolTensor, ByteTensor = (_typed[f"{word}Tensor"] for word in ("BFloat16", "Bool", "Byte"))
CharTensor, ShortTensor, IntTensor, LongTensor = (_typed[f"{word}Tensor"] for word in ("Char", "Short", "Int", "Long"))

_STREAMS = (
    "Event", "Stream", "current_stream", "default_stream", "is_current_stream_capturing", "set_stream", "stream",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what few programs use on first use."""
    if name in ("amp", "nvtx"):
        return import_module(f"{__name__}.{name}")
    if name not in _STREAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.streams"), name)
