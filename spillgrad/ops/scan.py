"""Running sums, products and extremes along a dimension, and the linear recurrence that computes derivatives."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.arithmetic import add, exp, mul, sub
from spillgrad.ops.array_casts import by_parts, on_floats, refuse_complex, require_inexact
from spillgrad.ops.clamp_where import where
from spillgrad.ops.complex_views import conjugate, real
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import LOOPS
from spillgrad.ops.indexing import scattered_into_zeros
from spillgrad.ops.join_split import cat, narrow
from spillgrad.ops.logic import logical_xor
from spillgrad.ops.operation import operation
from spillgrad.ops.rearrange import constant_pad, flip, roll
from spillgrad.ops.reduce import ValuesAndIndices, sum
from spillgrad.ops.shape import normalize_dim, one_dim, reshape
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import reductions as kernels
from spillgrad_kernels.device_array import NotOnDevice, arange_beside, is_on_device
from spillgrad_kernels.memory.buffers import empty

__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_trapezoid", "diff", "logcumsumexp", "trapezoid", "trapz",
]  # fmt: skip

Shape = tuple[int, ...]


def _along(operation: Any, input: Tensor, dim: int) -> Any:
    """Apply an operation along a dimension; a 0-d tensor counts as a vector of one element."""
    if input.ndim:
        return operation(input, dim)
    result = operation(reshape(input, 1), 0)
    return tuple(reshape(part, ()) for part in result) if isinstance(result, tuple) else reshape(result, ())


def _running(operation: Any, name: str, input: Tensor, dim: int | None, dtype: Any, axis: int | None) -> Tensor:
    dim = one_dim(name, dim, axis, input.ndim)
    return _along(operation, input if dtype is None else to_dtype(input, dtype), dim)  # type: ignore[no-any-return]


def _moved_on(input: Tensor, dim: int, first: float) -> Tensor:
    """Return the elements shifted by one index along a dimension: `first` is put in front, the last is dropped."""
    if not input.shape[dim]:
        return input
    widths = tuple((int(i == dim), 0) for i in range(input.ndim))
    return constant_pad(narrow(input, dim, 0, input.shape[dim] - 1), widths, first)


# --- The linear recurrence -------------------------------------------------------------------------------------------


def _recurrence_forward(values: np.ndarray, decay: np.ndarray, dim: int) -> np.ndarray:
    def run(values: np.ndarray, decay: np.ndarray) -> np.ndarray:
        out = empty(values.shape, values.dtype)
        result, added, factors = (np.moveaxis(a, dim, 0) for a in (out, values, decay))
        result[:1] = added[:1]
        for k in range(1, len(result)):
            result[k] = factors[k] * result[k - 1] + added[k]
        return out

    return run(values, decay) if values.dtype.kind == "c" else on_floats(run, values, decay)


_recurrence: Callable[..., Tensor] = operation(
    "recurrence", _recurrence_forward,
    values=lambda g, decay, dim: _backwards(g, conjugate(decay), dim),
    decay=lambda g, decay, result, dim: mul(
        _backwards(g, conjugate(decay), dim), conjugate(_moved_on(result, dim, 0.0))
    ),
)  # fmt: skip


def _backwards(values: Tensor, decay: Tensor, dim: int) -> Tensor:
    """Return s[k] = values[k] + decay[k + 1] * s[k + 1] along a dimension."""
    return flip(_recurrence(flip(values, dim), flip(roll(decay, -1, dim), dim), dim), dim)


# --- Sums and products -----------------------------------------------------------------------------------------------


def _cumsum_forward(self: np.ndarray, dim: int) -> np.ndarray:
    if self.dtype.kind in "biu":
        return np.cumsum(self, dim, dtype=np.int64)
    return by_parts(lambda a: kernels.cumsum(a, dim), self)


_cumsum: Callable[..., Tensor] = operation(
    "cumsum", _cumsum_forward, self=lambda g, dim: flip(_cumsum(flip(g, dim), dim), dim)
)


@declare(in_place=True)
def cumsum(input: Tensor, dim: int | None = None, *, dtype: Any = None, axis: int | None = None) -> Tensor:
    """Return the running sums along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension to sum along.
    dtype : dtype, optional
        Data type of the result; by default, that of the input, and int64 for integers and bool.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DimensionError
        If the dimension is out of range.
    ArgumentError
        If neither `dim` nor `axis` is given.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.cumsum(sg.tensor([1, 2, 3]), 0).tolist()
    [1, 3, 6]
    """
    return _running(_cumsum, "cumsum", input, dim, dtype, axis)


def _cumprod_forward(self: np.ndarray, dim: int) -> np.ndarray:
    if self.dtype.kind in "biuc":
        return np.cumprod(self, dim, dtype=self.dtype if self.dtype.kind == "c" else np.int64)
    return on_floats(lambda a: np.cumprod(a, dim), self)


def _cumprod_gradient(g: Tensor, self: Tensor, dim: int) -> Tensor:
    # The product before an element times the sum of the products after it: no division, so zeros are exact.
    self = conjugate(self)
    return mul(_cumprod(_moved_on(self, dim, 1.0), dim), _backwards(g, self, dim))


_cumprod: Callable[..., Tensor] = operation("cumprod", _cumprod_forward, self=_cumprod_gradient)


@declare(in_place=True)
def cumprod(input: Tensor, dim: int | None = None, *, dtype: Any = None, axis: int | None = None) -> Tensor:
    """Return the running products along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension to multiply along.
    dtype : dtype, optional
        Data type of the result; by default, that of the input, and int64 for integers and bool.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DimensionError
        If the dimension is out of range.
    ArgumentError
        If neither `dim` nor `axis` is given.
    """
    return _running(_cumprod, "cumprod", input, dim, dtype, axis)


def _logcumsumexp_forward(self: np.ndarray, dim: int) -> np.ndarray:
    if self.dtype.kind == "c":
        return _complex_logcumsumexp(self, dim)
    with np.errstate(all="ignore"):
        return on_floats(lambda a: np.logaddexp.accumulate(a, dim), self)


def _complex_logcumsumexp(array: np.ndarray, dim: int) -> np.ndarray:
    if is_on_device(array):
        raise NotOnDevice("logcumsumexp: no kernel of the device computes with complex numbers")
    out = empty(array.shape, array.dtype)
    result, added = np.moveaxis(out, dim, 0), np.moveaxis(array, dim, 0)
    total = np.full(added.shape[1:], -math.inf, array.dtype)
    for k in range(len(result)):
        result[k] = total = LOOPS["logaddexp"].result(added[k], total)
    return out


def _logcumsumexp_gradient(g: Tensor, self: Any, result: Any, dim: int) -> Tensor:
    # The former sum's part of each sum of real numbers is at most 1. If the former sum is -inf, its elements have
    # weight 0: any decay is right.
    before = _moved_on(result, dim, -math.inf)
    decay = exp(where(real(before) > -math.inf, before - result, 0.0))
    weight = exp(where(real(self) > -math.inf, self - result, -math.inf))
    return mul(conjugate(weight), _backwards(g, conjugate(decay), dim))


_logcumsumexp: Callable[..., Tensor] = operation("logcumsumexp", _logcumsumexp_forward, self=_logcumsumexp_gradient)


@declare(method=True)
def logcumsumexp(input: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Return log(cumsum(exp(x))) along a dimension, without overflow.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers.
    dim : int
        Dimension to sum along.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DtypeError
        For integers and bool.
    ArgumentError
        If neither `dim` nor `axis` is given.
    """
    require_inexact("logcumsumexp", input.dtype)
    return _running(_logcumsumexp, "logcumsumexp", input, dim, None, axis)


# --- Extremes --------------------------------------------------------------------------------------------------------


def _running_extreme(accumulate: Callable[..., Any]) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    def forward(self: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
        refuse_complex("cummax" if accumulate == np.maximum.accumulate else "cummin", self.dtype)
        values = accumulate(self, dim)
        places = arange_beside(self, self.shape[dim]).reshape([-1 if i == dim else 1 for i in range(self.ndim)])
        reached = (self == values) | (self != self)  # the last of equal ones, and the last NaN, as in PyTorch
        return values, np.maximum.accumulate(np.where(reached, places, 0), dim)

    return forward


def _to_their_places(g: Tensor, indices: Tensor, dim: int, self_shape: Shape) -> Tensor:
    return scattered_into_zeros(g, dim, indices, self_shape)


_cummax, _cummin = (
    operation(name, _running_extreme(accumulate), outputs=("values", "indices"), self=_to_their_places)
    for name, accumulate in (("cummax", np.maximum.accumulate), ("cummin", np.minimum.accumulate))
)


@declare(method=True)
def cummax(input: Tensor, dim: int | None = None, *, axis: int | None = None) -> ValuesAndIndices:
    """Return the largest element so far along a dimension, and its index.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int
        Dimension to go along.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    named tuple of Tensor
        (values, indices), both of the shape of `input`; of equal elements, the index of the last.

    Raises
    ------
    DtypeError
        For complex numbers.
    ArgumentError
        If neither `dim` nor `axis` is given.
    """
    return ValuesAndIndices(*_along(_cummax, input, one_dim("cummax", dim, axis, input.ndim)))


@declare(method=True)
def cummin(input: Tensor, dim: int | None = None, *, axis: int | None = None) -> ValuesAndIndices:
    """Return the smallest element so far along a dimension, and its index.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int
        Dimension to go along.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    named tuple of Tensor
        (values, indices), both of the shape of `input`; of equal elements, the index of the last.

    Raises
    ------
    DtypeError
        For complex numbers.
    ArgumentError
        If neither `dim` nor `axis` is given.
    """
    return ValuesAndIndices(*_along(_cummin, input, one_dim("cummin", dim, axis, input.ndim)))


# --- Differences and areas -------------------------------------------------------------------------------------------


@declare(method=True)
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None,
    *, axis: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the n-th differences of neighbours along a dimension.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    n : int, default 1
        How often to take differences.
    dim : int, default -1
        Dimension of the neighbours.
    prepend : Tensor, optional
        Put before the input along `dim` first.
    append : Tensor, optional
        Put behind the input along `dim` first.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        With `n` indices less along `dim`; of bool, whether neighbours differ.

    Raises
    ------
    ShapeError
        For a tensor of no dimensions.
    ArgumentError
        If `n` is negative.
    """
    if not input.ndim:
        raise ShapeError("diff: got a 0-d tensor; it has no dimension with neighbours")
    dim = normalize_dim("diff", dim if axis is None else axis, input.ndim)
    if n < 0:
        raise ArgumentError(f"diff: got n={n}; wanted a number from 0 on")
    result = cat([part for part in (prepend, input, append) if part is not None], dim)
    for _ in range(n):
        size = max(result.shape[dim] - 1, 0)
        later, earlier = (narrow(result, dim, min(start, result.shape[dim]), size) for start in (1, 0))
        result = logical_xor(later, earlier) if result.dtype == dtypes.bool_ else sub(later, earlier)
    return result


def _strips(name: str, y: Tensor, x: Tensor | None, dx: Any, dim: int) -> tuple[Tensor, int]:
    dim = normalize_dim(name, dim, y.ndim)
    if x is not None and dx is not None:
        raise ArgumentError(f"{name}: got both x and dx; give one")
    size = max(y.shape[dim] - 1, 0)
    sums = add(narrow(y, dim, min(1, y.shape[dim]), size), narrow(y, dim, 0, size))
    if x is None:
        return mul(sums, (1.0 if dx is None else dx) / 2), dim
    if x.ndim == 1:
        x = reshape(x, (-1,) + (1,) * (y.ndim - 1 - dim))
    return mul(sums, mul(diff(x, dim=x.ndim - (y.ndim - dim)), 0.5)), dim


@declare(numpy="trapezoid")
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Return the area under points along a dimension by the trapezoidal rule.

    Parameters
    ----------
    y : Tensor
        Of at least one dimension: the heights.
    x : Tensor, optional
        Where the points lie: of the shape of `y`, or a vector for `dim`.
    dx : float, optional
        Distance of the points, instead of `x`; by default, 1.
    dim : int, default -1
        Dimension of the points.

    Returns
    -------
    Tensor
        Of the shape of `y` without `dim`.

    Raises
    ------
    ArgumentError
        If both `x` and `dx` are given.
    """
    strips, dim = _strips("trapezoid", y, x, dx, dim)
    return sum(strips, dim)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Return the running area under points along a dimension by the trapezoidal rule.

    Parameters
    ----------
    y : Tensor
        Of at least one dimension: the heights.
    x : Tensor, optional
        Where the points lie: of the shape of `y`, or a vector for `dim`.
    dx : float, optional
        Distance of the points, instead of `x`; by default, 1.
    dim : int, default -1
        Dimension of the points.

    Returns
    -------
    Tensor
        Of the shape of `y`, with one index less along `dim`.

    Raises
    ------
    ArgumentError
        If both `x` and `dx` are given.
    """
    strips, dim = _strips("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(strips, dim)


trapz = trapezoid
