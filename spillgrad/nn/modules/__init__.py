"""PyTorch's package `torch.nn.modules`: its modules, imported when they are used, and the layers themselves."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spillgrad.nn.modules import lazy, module

if TYPE_CHECKING:
    from spillgrad.nn.modules import (
        activation,
        adaptive,
        batchnorm,
        channelshuffle,
        container,
        conv,
        distance,
        dropout,
        flatten,
        fold,
        instancenorm,
        linear,
        loss,
        normalization,
        padding,
        pixelshuffle,
        pooling,
        rnn,
        sparse,
        transformer,
        upsampling,
        utils,
    )  # fmt: skip

_MODULES = (
    "activation", "adaptive", "batchnorm", "channelshuffle", "container", "conv", "distance", "dropout", "flatten",
    "fold", "instancenorm", "linear", "loss", "normalization", "padding", "pixelshuffle", "pooling", "rnn", "sparse",
    "transformer", "upsampling", "utils",
)  # fmt: skip
__all__ = ["lazy", "module", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a module of the package on first use, or return a layer of `spillgrad.nn`."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name[0].isupper():
        return getattr(sys.modules["spillgrad.nn"], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
