"""Images of another size: along each dimension, every result is a weighted sum of a few elements.

A `Taps` holds the indices and weights of these sums. The sums are linear; their derivative is another `Taps`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.array_casts import on_floats, require_floats
from spillgrad.ops.operation import operation
from spillgrad.ops.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from spillgrad.ops.volume_pooling import adaptive_avg_pool3d
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import resampling as kernels

__all__ = ["interpolate"]

# For each mode, the numbers of dimensions, after batch and channels, that it takes.
_MODES = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,), "bicubic": (2,),
    "trilinear": (3,), "area": (1, 2, 3),
}  # fmt: skip
_WITH_CORNERS = ("linear", "bilinear", "bicubic", "trilinear")
_WITH_ANTIALIAS = ("bilinear", "bicubic")


class Taps(NamedTuple):
    """Sums along a dimension x of `size` elements: result i is the sum over k of weights[k, i] · x[indices[k, i]].

    Without weights, result i is x[indices[0, i]]. An index of -1 stands for no element: sums have different lengths.
    """

    size: int
    indices: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...] | None

    @property
    def results(self) -> int:
        """The number of results."""
        return len(self.indices[0])


@functools.lru_cache(maxsize=256)
def _transposed(taps: Taps) -> Taps:
    """Return the sums with the transposed matrix of weights, from results to elements."""
    indices = np.array(taps.indices)
    weights = np.ones(indices.shape) if taps.weights is None else np.array(taps.weights)
    places = np.broadcast_to(np.arange(taps.results), indices.shape)
    order = np.argsort(indices, axis=None, kind="stable")
    order = order[indices.reshape(-1)[order] >= 0]
    elements, results, amounts = (a.reshape(-1)[order] for a in (indices, places, weights))
    used = np.bincount(elements, minlength=taps.size)
    # The position of each tap among the taps of its element.
    number = np.arange(elements.size) - np.repeat(np.cumsum(used) - used, used)
    shape = max(int(used.max(initial=1)), 1), taps.size
    back, amount = np.full(shape, -1), np.zeros(shape)
    back[number, elements] = results
    amount[number, elements] = amounts
    return Taps(taps.results, _rows(back), _rows(amount))


def _rows(array: np.ndarray) -> Any:
    return tuple(map(tuple, array.tolist()))


def _forward(self: np.ndarray, dim: int, taps: Taps) -> np.ndarray:
    return on_floats(lambda x: kernels.resample(x, dim, taps), self, device_takes_half=True)


_resample: Callable[..., Tensor] = operation(
    "resample", _forward, self=lambda g, dim, taps: _resample(g, dim, _transposed(taps))
)


@functools.lru_cache(maxsize=256)
def _taps(mode: str, size: int, count: int, align_corners: bool, scale: float | None) -> Taps:
    """Return the sums that turn `size` elements into `count`; `scale` is the scale factor, None for count / size."""
    places = np.arange(count)
    step = size / count if scale is None else 1 / scale
    if mode in ("nearest", "nearest-exact"):
        # PyTorch computes these places in float32.
        step32 = np.float32(step)
        offset = np.float32(0.5 if mode == "nearest-exact" else 0)
        nearest = np.minimum(np.floor((places.astype(np.float32) + offset) * step32), size - 1)
        return Taps(size, _rows(nearest.astype(np.int64)[None]), None)
    centre = places * ((size - 1) / max(count - 1, 1)) if align_corners else (places + 0.5) * step - 0.5
    if mode != "bicubic":
        centre = np.maximum(centre, 0)
        first = np.minimum(np.floor(centre), size - 1)
        fraction = np.clip(centre - first, 0, 1)
        indices = np.stack([first, np.minimum(first + 1, size - 1)])
        return Taps(size, _rows(indices.astype(np.int64)), _rows(np.stack([1 - fraction, fraction])))
    first = np.floor(centre)
    fraction = centre - first
    indices = np.clip(np.stack([first + k for k in (-1, 0, 1, 2)]), 0, size - 1)
    weights = np.stack([_cubic(np.abs(fraction - k)) for k in (-1, 0, 1, 2)])
    return Taps(size, _rows(indices.astype(np.int64)), _rows(weights))


@functools.lru_cache(maxsize=256)
def _antialiased_taps(mode: str, size: int, count: int, align_corners: bool, scale: float | None) -> Taps:
    """Return the sums of a filter at least as wide as the step between results, so that no element is skipped."""
    if align_corners:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = size / count if scale is None else 1 / scale
    width = max(step, 1.0)
    reach = (1 if mode == "bilinear" else 2) * width
    centre = step * (np.arange(count) + 0.5)
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    taken = np.minimum((centre + reach + 0.5).astype(np.int64), size) - first
    offsets = np.arange(taken.max())[:, None]
    distance = np.abs((offsets + first - centre + 0.5) / width)
    weights = np.maximum(1 - distance, 0) if mode == "bilinear" else _cubic(distance, -0.5)
    weights = np.where(offsets < taken, weights, 0.0)
    indices = np.where(offsets < taken, offsets + first, -1)
    return Taps(size, _rows(indices), _rows(weights / weights.sum(0)))


def _cubic(distance: np.ndarray, a: float = -0.75) -> np.ndarray:
    """Return the kernel of Keys 1981, "Cubic convolution interpolation for digital image processing", equation 4."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def interpolate(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Return signals, images or volumes in another size.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L), (N, C, H, W) or (N, C, D, H, W), of floating-point numbers.
    size : int or sequence of int, optional
        Size of the result: one for all dimensions, or one for each.
    scale_factor : float or sequence of float, optional
        Instead of `size`, the factor of the input's size: one for all dimensions, or one for each.
    mode : {"nearest", "nearest-exact", "area", "linear", "bilinear", "bicubic", "trilinear"}, default "nearest"
        The first three are for any input, "linear" is for signals, "bilinear" and "bicubic" for images, "trilinear" for
        volumes.
    align_corners : bool, optional
        Whether the centres of the corner elements keep their places, for the modes that interpolate; by default, the
        outer corners of the image keep theirs.
    recompute_scale_factor : bool, optional
        Whether coordinates are computed from the sizes instead of `scale_factor` itself.
    antialias : bool, default False
        Whether "bilinear" and "bicubic" sum over all elements that a result element covers in a smaller image.

    Returns
    -------
    Tensor
        As the input, with other sizes behind the first two dimensions.

    Raises
    ------
    ShapeError
        If the mode does not take the input's dimensions, or a size is 0.
    DtypeError
        For integers and complex numbers.
    ArgumentError
        For another mode, options that the mode does not take, or not exactly one of `size` and `scale_factor`.
    """
    name = "interpolate"
    require_floats(name, input.dtype)
    dims = input.ndim - 2
    if mode not in _MODES:
        raise ArgumentError(f"{name}: got mode {mode!r}; accepted are {', '.join(_MODES)}")
    if dims not in _MODES[mode]:
        wanted = " or ".join(f"{d + 2}D" for d in _MODES[mode])
        raise ShapeError(f"{name}: Got {input.ndim}D input, but {mode} mode needs {wanted} input")
    if align_corners is not None and mode not in _WITH_CORNERS:
        raise ArgumentError(
            f"{name}: align_corners option can only be set with the interpolating modes: {' | '.join(_WITH_CORNERS)}"
        )
    if antialias and mode not in _WITH_ANTIALIAS:
        raise ArgumentError(
            f"{name}: got antialias=True and mode {mode!r}; it is only supported for {' and '.join(_WITH_ANTIALIAS)}"
        )
    if (size is None) == (scale_factor is None):
        raise ArgumentError(f"{name}: only one of size or scale_factor should be defined: give one of them")
    shape = input.shape[2:]
    scales: Sequence[float | None] = (None,) * dims
    if size is None:
        factors = _per_dimension(name, "scale_factor", scale_factor, dims)
        counts = [math.floor(have * factor) for have, factor in zip(shape, factors, strict=True)]
        scales = scales if recompute_scale_factor else factors
    elif recompute_scale_factor:
        raise ArgumentError(f"{name}: recompute_scale_factor is not meaningful with an explicit size: leave it away")
    else:
        counts = list(map(int, _per_dimension(name, "size", size, dims)))
    if min(*shape, *counts) < 1:
        raise ShapeError(
            f"{name}: Input and output sizes should be greater than 0, but got input {shape} and output {tuple(counts)}"
        )
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[dims - 1](input, counts)
    result = input
    for d, (have, count, scale) in enumerate(zip(shape, counts, scales, strict=True)):
        taps = (_antialiased_taps if antialias else _taps)(
            mode, have, count, bool(align_corners), None if scale is None else float(scale)
        )
        if taps != _identity(have):
            result = _resample(result, d + 2, taps)
    return result if result is not input else input.clone()


@functools.lru_cache(maxsize=64)
def _identity(size: int) -> Taps:
    return Taps(size, (tuple(range(size)),), None)


def _per_dimension(name: str, option: str, value: Any, dims: int) -> list[Any]:
    values = list(value) if hasattr(value, "__iter__") else [value] * dims
    if len(values) != dims:
        raise ArgumentError(
            f"{name}: got {option} {value}; wanted one number, or one for each of {dims} spatial dimensions"
        )
    return values
