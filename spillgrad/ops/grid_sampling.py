"""Sample images and volumes at positions of a grid, as spatial transformers do.

Source: Jaderberg et al. 2015, "Spatial transformer networks"; torch.nn.functional.grid_sample; Keys 1981, "Cubic
convolution interpolation", with the coefficient -0.75.
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.arithmetic import floor, fmod
from spillgrad.ops.arithmetic import round as nearest_integer
from spillgrad.ops.array_casts import require_floats
from spillgrad.ops.clamp_where import clamp, nan_to_num, where
from spillgrad.ops.creation import linspace, ones
from spillgrad.ops.indexing import gather
from spillgrad.ops.join_split import stack
from spillgrad.ops.matrix_products import matmul
from spillgrad.tensor import Tensor

__all__ = ["affine_grid", "grid_sample"]

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Return the grid of positions to which affine maps send the positions of an image.

    Parameters
    ----------
    theta : Tensor
        Affine maps, of shape (N, 2, 3); for volumes, (N, 3, 4).
    size : sequence of int
        Shape of the image, (N, C, H, W), or of the volume, (N, C, D, H, W).
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the outermost elements, instead of their outer edges; by default, False.

    Returns
    -------
    Tensor
        Positions (x, y), of shape (N, H, W, 2), or (x, y, z), of shape (N, D, H, W, 3), from -1 to 1.

    Raises
    ------
    ShapeError
        If `theta` does not fit `size`.

    Warns
    -----
    UserWarning
        If `align_corners` is not given, as in PyTorch.
    """
    align_corners = _given(align_corners)
    sizes = tuple(size)[2:]
    count = len(sizes)
    if count not in (2, 3) or tuple(theta.shape) != (size[0], count, count + 1):
        raise ShapeError(
            f"affine_grid: Expected a batch of 2D affine matrices of shape Nx2x3 for size (N, C, H, W), or Nx3x4 for "
            f"(N, C, D, H, W); got {tuple(theta.shape)} and {tuple(size)}"
        )
    axes = []
    for place, length in enumerate(sizes):
        reach = 1.0 if align_corners else (length - 1) / length
        axis = linspace(-reach, reach, length, dtype=theta.dtype, device=theta.device) if length > 1 else None
        line = ones(1, dtype=theta.dtype, device=theta.device) * 0 if axis is None else axis
        axes.append(line.reshape([-1 if d == place else 1 for d in range(count)]).expand(sizes))
    axes.append(ones(sizes, dtype=theta.dtype, device=theta.device))
    positions = stack([*reversed(axes[:count]), axes[count]], -1).reshape(1, -1, count + 1)
    return matmul(positions, theta.transpose(1, 2)).reshape(size[0], *sizes, count)  # type: ignore[no-any-return]


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Return the values of images at the positions of a grid.

    Parameters
    ----------
    input : Tensor
        Images, of shape (N, C, H, W), or volumes, of shape (N, C, D, H, W).
    grid : Tensor
        Positions as of `affine_grid`, of shape (N, H', W', 2), for volumes (N, D', H', W', 3).
    mode : {"bilinear", "nearest", "bicubic"}, default "bilinear"
        Interpolation; "bicubic" is for images only.
    padding_mode : {"zeros", "border", "reflection"}, default "zeros"
        What there is outside: zeros, the values at the border, or those reflected at it.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the outermost elements, instead of their outer edges; by default, False.

    Returns
    -------
    Tensor
        Of shape (N, C, H', W'), for volumes (N, C, D', H', W').

    Raises
    ------
    ArgumentError
        If a mode is another word, or "bicubic" for volumes.
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the grid does not hold real floating-point numbers.

    Warns
    -----
    UserWarning
        If `align_corners` is not given, as in PyTorch.
    """
    if mode not in _MODES or padding_mode not in _PADDINGS:
        raise ArgumentError(
            f"grid_sample: got mode {mode!r} and padding_mode {padding_mode!r}; expected mode to be 'bilinear', "
            "'nearest' or 'bicubic', and padding_mode to be 'zeros', 'border', or 'reflection'"
        )
    sizes = input.shape[2:]
    count = len(sizes)
    if count not in (2, 3) or grid.ndim != count + 2 or grid.shape[0] != input.shape[0] or grid.shape[-1] != count:
        raise ShapeError(
            f"grid_sample(): expected 4D or 5D input and grid with same number of dimensions, the same batch and a "
            f"last dimension of {count}; got {tuple(input.shape)} and {tuple(grid.shape)}"
        )
    require_floats("grid_sample: grid", grid.dtype)
    if mode == "bicubic" and count == 3:
        raise ArgumentError("grid_sample(): bicubic interpolation only supports 4D input; use 'bilinear' for volumes")
    align = _given(align_corners)
    flat = grid.reshape(grid.shape[0], -1, count)
    centres = []  # in the order of the image's dimensions; a grid has x first
    for place, size in enumerate(sizes):
        position = flat[..., count - 1 - place]
        centres.append((position + 1) / 2 * (size - 1) if align else ((position + 1) * size - 1) / 2)
    if mode != "bicubic":
        centres = [_padded(x, size, padding_mode, align) for x, size in zip(centres, sizes, strict=True)]
    taps = [_taps(x, mode) for x in centres]
    total: Any = 0
    for chosen in itertools.product(*taps):
        places = [place for place, _ in chosen]
        if mode == "bicubic":
            places = [_padded(x, size, padding_mode, align) for x, size in zip(places, sizes, strict=True)]
        value = _at(input, places)
        for _, weight in chosen:
            value = value * weight.unsqueeze(1)
        total = total + value
    return total.reshape(*input.shape[:2], *grid.shape[1:-1])  # type: ignore[no-any-return]


def _given(align_corners: bool | None) -> bool:
    if align_corners is None:
        warnings.warn(
            "Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. Please "
            "specify align_corners=True if the old behavior is desired. See the documentation of grid_sample for "
            "details.",
            stacklevel=3,
        )
    return bool(align_corners)


def _padded(x: Tensor, size: int, padding_mode: str, align: bool) -> Tensor:
    """Return coordinates moved into the image, unless there are zeros outside."""
    if padding_mode == "zeros":
        return x
    if padding_mode == "reflection":
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if span == 0:
            return x * 0
        distance = (x - low).abs()
        beyond, flips = fmod(distance, span), floor(distance / span)
        x = where(fmod(flips, 2) == 0, beyond + low, span - beyond + low)
    return clamp(x, 0, size - 1)


def _taps(x: Tensor, mode: str) -> list[tuple[Tensor, Tensor]]:
    """Return the coordinates of one dimension that a position takes its value from, each with its weight."""
    if mode == "nearest":
        return [(nearest_integer(x.detach()), nan_to_num(x) * 0 + 1)]  # as in PyTorch, its gradient is zeros
    left = floor(x.detach())
    t = x - left
    if mode == "bilinear":
        return [(left, 1 - t), (left + 1, t)]
    return [(left + step, _cubic((t - step).abs())) for step in (-1, 0, 1, 2)]


def _cubic(x: Tensor) -> Tensor:
    a = -0.75
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return where(x <= 1, near, far)  # type: ignore[no-any-return]


def _at(input: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Return the values at whole coordinates, zero where these are outside. Shapes: places (N, P), result (N, C, P)."""
    sizes = input.shape[2:]
    index: Any = 0
    inside: Any = True
    for x, size in zip(places, sizes, strict=True):
        x = x.detach()
        within = (x >= 0) & (x <= size - 1)
        inside = within if inside is True else inside & within
        whole = clamp(x.to("int64"), 0, size - 1)
        index = index * size + whole
    flat = input.reshape(*input.shape[:2], math.prod(sizes))
    found = gather(flat, 2, index.unsqueeze(1).expand(-1, input.shape[1], -1))
    return where(inside.unsqueeze(1), found, 0.0)  # type: ignore[no-any-return]
