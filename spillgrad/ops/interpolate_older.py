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
    """Return what `interpolate` returns.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L), (N, C, H, W) or (N, C, D, H, W).
    size : int or sequence of int, optional
        Size of the result.
    scale_factor : float or sequence of float, optional
        Instead of `size`, the factor of the input's size.
    mode : str, default "nearest"
        One of the modes of `interpolate`.
    align_corners : bool, optional
        As in `interpolate`.

    Returns
    -------
    Tensor
        As the input, with other sizes behind the first two dimensions.

    Warns
    -----
    UserWarning
        Always, as PyTorch does: `interpolate` replaces this function.
    """
    _warn("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Return what `interpolate` returns with the mode "nearest".

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L), (N, C, H, W) or (N, C, D, H, W).
    size : int or sequence of int, optional
        Size of the result.
    scale_factor : float or sequence of float, optional
        Instead of `size`, the factor of the input's size.

    Returns
    -------
    Tensor
        As the input, with other sizes behind the first two dimensions.

    Warns
    -----
    UserWarning
        Always, as PyTorch does: `interpolate` replaces this function.
    """
    _warn("upsample_nearest")
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Return what `interpolate` returns with the mode "bilinear" and `align_corners`.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W).
    size : int or sequence of int, optional
        Size of the result.
    scale_factor : float or sequence of float, optional
        Instead of `size`, the factor of the input's size.

    Returns
    -------
    Tensor
        As the input, with other sizes behind the first two dimensions.

    Warns
    -----
    UserWarning
        Always, as PyTorch does: `interpolate` replaces this function.
    """
    _warn("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)
