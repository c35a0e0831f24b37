"""PyTorch's older names of `interpolate`; they warn, as PyTorch does."""

import warnings
from typing import Any

from spillgrad.ops.interpolate import interpolate
from spillgrad.tensor import Tensor

__all__ = ["upsample", "upsample_bilinear", "upsample_nearest"]


def _warn(name: str) -> None:
    warnings.warn(f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=3)


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """Return what `interpolate` returns."""
    _warn("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Return what `interpolate` returns with the mode "nearest"."""
    _warn("upsample_nearest")
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Return what `interpolate` returns with the mode "bilinear" and `align_corners`."""
    _warn("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)
