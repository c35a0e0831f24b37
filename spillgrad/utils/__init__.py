"""PyTorch's package `torch.utils`: `checkpoint`, which recomputes tensors instead of keeping them, and `data`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spillgrad.utils import checkpoint, data

if TYPE_CHECKING:
    from spillgrad.utils import _pytree, dlpack, hooks, model_zoo, tensorboard

__all__ = ["_pytree", "checkpoint", "data", "dlpack", "hooks", "model_zoo", "tensorboard"]


def __getattr__(name: str) -> Any:
    """Import what few programs use on first use."""
    if name not in ("_pytree", "dlpack", "hooks", "model_zoo", "tensorboard"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
