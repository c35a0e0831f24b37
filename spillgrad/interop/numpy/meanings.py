"""NumPy functions whose parameters or results differ from those of `sg` and of the array API standard."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.array_api import data_types, manipulation, reductions, searching
from spillgrad.array_api.wrapping import called
from spillgrad.errors import ArgumentError, OperandError
from spillgrad.ops import (
    arithmetic,
    clamp_where,
    creation,
    decompositions,
    indexing,
    join_split,
    matrix_products,
    padding,
    reduce,
    scan,
    shape,
    sorting,
)
from spillgrad.ops import einsum as products
from spillgrad.ops.declaration import declare
from spillgrad.tensor import Tensor


@declare(numpy=True)
def append(arr: Tensor, values: Tensor, axis: int | None = None) -> Tensor:
    return manipulation.concat((arr, values), axis=axis)


@declare(numpy=True)
def array_split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return list(join_split.tensor_split(ary, indices_or_sections, axis))


@declare(numpy=True)
def split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    if isinstance(indices_or_sections, int) and ary.shape[axis] % indices_or_sections:
        raise ArgumentError(
            f"np.split: got {indices_or_sections} sections of {ary.shape[axis]}; array_split takes any number"
        )
    return array_split(ary, indices_or_sections, axis)


@declare(numpy=True)
def average(a: Tensor, axis: Any = None, weights: Tensor | None = None, keepdims: bool = False) -> Tensor:
    if weights is None:
        return reduce.mean(a, axis, keepdims)
    if weights.shape != a.shape:
        if not isinstance(axis, int) or weights.ndim != 1:
            raise ArgumentError(f"np.average: got weights of {weights.shape} for {a.shape}; wanted that, or one axis")
        last = shape.normalize_dim("np.average", axis, a.ndim) - a.ndim
        weights = shape.reshape(weights, (-1, *(1,) * (-1 - last)))
    total = reduce.sum(shape.expand(weights, a.shape), axis, keepdims)
    return arithmetic.div(reduce.sum(arithmetic.mul(a, weights), axis, keepdims), total)


@declare(numpy=True)
def cross(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    return products.cross(a, b, axis)


def _cumulative(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def running(a: Tensor, axis: int | None = None, dtype: Any = None) -> Tensor:
        return function(shape.reshape(a, -1) if axis is None else a, axis=0 if axis is None else axis, dtype=dtype)

    return declare(numpy=True)(called(running, function))


cumprod, cumsum = _cumulative(scan.cumprod), _cumulative(scan.cumsum)


@declare(numpy=True)
def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return indexing.diagonal(a, offset, axis1, axis2)


@declare(numpy=True)
def trace(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    return reductions.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@declare(numpy=True)
def dot(a: Any, b: Any) -> Tensor:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not a.ndim or not b.ndim:
        return arithmetic.mul(a, b)
    return matrix_products.matmul(a, b) if b.ndim <= 2 else products.tensordot(a, b, ((a.ndim - 1,), (b.ndim - 2,)))


@declare(numpy=True)
def vdot(a: Tensor, b: Tensor) -> Tensor:
    return products.vdot(shape.reshape(a, -1), shape.reshape(b, -1))


@declare(numpy=True)
def outer(a: Tensor, b: Tensor) -> Tensor:
    return matrix_products.outer(shape.reshape(a, -1), shape.reshape(b, -1))


@declare(numpy=True)
def einsum(*operands: Any, optimize: Any = None) -> Tensor:
    return products.einsum(*operands)


def _percentile(quantile: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def percentile(
        a: Tensor, q: Any, axis: int | None = None, method: str = "linear", keepdims: bool = False
    ) -> Tensor:
        parts = np.asarray(q, np.float64) / 100
        return quantile(a, Tensor.wrap(parts), axis, keepdims, interpolation=method)

    return percentile


percentile = declare(numpy=True)(_percentile(sorting.quantile))
nanpercentile = declare(numpy=True)(_percentile(sorting.nanquantile))


def _median(quantile: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def median(a: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return quantile(a, 0.5, axis, keepdims)

    return median


median = declare(numpy=True)(_median(sorting.quantile))
nanmedian = declare(numpy=True)(_median(sorting.nanquantile))


@declare(numpy=True)
def meshgrid(*xi: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    return join_split.meshgrid(*xi, indexing=indexing)


_PAD_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


@declare(numpy=True)
def pad(array: Tensor, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Tensor:
    if mode not in _PAD_MODES:
        raise ArgumentError(f"np.pad: got mode={mode!r}; accepted are {', '.join(_PAD_MODES)}")
    widths = np.broadcast_to(np.asarray(pad_width, np.intp), (array.ndim, 2))
    by_last = [int(width) for pair in reversed(widths.tolist()) for width in pair]
    return padding.pad(array, by_last, _PAD_MODES[mode], constant_values)


@declare(numpy=True)
def ptp(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return arithmetic.sub(*(f(a, axis=axis, keepdims=keepdims) for f in (reductions.max, reductions.min)))


@declare(numpy="round around")
def round(a: Tensor, decimals: int = 0) -> Tensor:
    if decimals < 0 and not a.is_floating_point():
        raise OperandError(f"np.round: got decimals={decimals} for {a.dtype}; convert with .to(float64)")
    return arithmetic.round(a, decimals)


def _in_order(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def ordered(a: Tensor, axis: int | None = -1, stable: bool | None = None) -> Tensor:
        return function(shape.reshape(a, -1) if axis is None else a, axis=-1 if axis is None else axis)

    return declare(numpy=True)(called(ordered, function))


argsort, sort = _in_order(searching.argsort), _in_order(searching.sort)


@declare(numpy=True)
def squeeze(a: Tensor, axis: Any = None) -> Tensor:
    return shape.squeeze(a) if axis is None else manipulation.squeeze(a, axis)


@declare(numpy=True)
def swapaxes(a: Tensor, axis1: int, axis2: int) -> Tensor:
    return shape.transpose(a, axis1, axis2)


@declare(numpy="transpose permute_dims")
def transpose(a: Tensor, axes: Any = None) -> Tensor:
    return shape.permute(a, tuple(reversed(range(a.ndim))) if axes is None else tuple(axes))


@declare(numpy=True)
def take(a: Tensor, indices: Any, axis: int | None = None) -> Tensor:
    places = indices if isinstance(indices, Tensor) else creation.tensor(indices)
    return searching.take(shape.reshape(a, -1) if axis is None else a, places, axis=0 if axis is None else axis)


@declare(numpy=True)
def where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return indexing.nonzero(condition, as_tuple=True)
    return clamp_where.where(condition, x, y)


@declare(numpy="linalg.qr")
def qr(a: Tensor, mode: str = "reduced") -> Any:
    return decompositions.qr(a, mode).R if mode == "r" else decompositions.qr(a, mode)


@declare(numpy="linalg.svd")
def svd(a: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    return decompositions.svd(a, full_matrices) if compute_uv else decompositions.svdvals(a)


@declare(numpy=True)
def divmod(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    return arithmetic.floor_divide(x, y), arithmetic.remainder(x, y)


@declare(numpy=True)
def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    return arithmetic.frac(x), arithmetic.trunc(x)


@declare(numpy=True)
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return NumPy's object for the dtype."""
    return data_types.result_type(*arrays_and_dtypes).__numpy_dtype__
