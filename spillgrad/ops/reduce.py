"""Reductions over dimensions.

`dim` is one dimension, several, or none for all; Paddle's and NumPy's `axis` means the same.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import filled, moved
from spillgrad.errors import ArgumentError, DimensionError
from spillgrad.ops.arithmetic import abs, div, exp, log, mul, pow
from spillgrad.ops.array_casts import as_own, on_floats, refuse_complex, require_floats, require_inexact
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.call_plan import CallOnDevice, CallPlan, Planned, new_plan
from spillgrad.ops.clamp_where import maximum, minimum, where
from spillgrad.ops.comparison import isnan
from spillgrad.ops.complex_views import REALS, conjugate
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.indexing import spread_into_zeros
from spillgrad.ops.join_split import narrow
from spillgrad.ops.logic import logical_not
from spillgrad.ops.operation import operation
from spillgrad.ops.rearrange import constant_pad, flip
from spillgrad.ops.shape import as_tuple, flatten, normalize_dim, normalize_dims, permute, reshape, unflatten, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import reductions as kernels
from spillgrad_kernels.device_array import device_kernel
from spillgrad_kernels.layout import Layout
from spillgrad_kernels.tables.reductions import reduced_shape

__all__ = [
    "amax", "amin", "aminmax", "argmax", "argmin", "logsumexp", "max", "mean", "min",
    "nanmean", "nansum", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
]  # fmt: skip

Shape = tuple[int, ...]
Dims = int | Sequence[int] | None


class ValuesAndIndices(NamedTuple):
    """The results of a reduction along one dimension, or of a sort: values and their indices."""

    values: Tensor
    indices: Tensor


class MinAndMax(NamedTuple):
    """The results of `aminmax`."""

    min: Tensor
    max: Tensor


def reduced_dims(name: str, dim: Dims, axis: Dims, ndim: int) -> Shape:
    """Return the dimensions to reduce, counted from the front; if none is named, all dimensions."""
    dim = axis if dim is None else dim
    if dim is None or as_tuple(dim) == ():
        return tuple(range(ndim))
    dims = normalize_dims(name, dim, ndim)
    return dims if ndim else ()


def _kept_shape(shape: Shape, dims: Shape) -> Shape:
    return tuple(1 if i in dims else size for i, size in enumerate(shape))


def _kept(tensor: Any, self_shape: Shape, dims: Shape) -> Any:
    """Return a reduced tensor with the reduced dimensions restored in size 1: it then broadcasts with the input."""
    return reshape(tensor, _kept_shape(self_shape, dims))


def _count(shape: Shape, dims: Shape) -> int:
    return math.prod(shape[i] for i in dims)


class _Folded(Planned):
    """A reduction: a kernel computes floating-point dtypes, and NumPy computes others.

    `options` are NumPy's for integers and bool. Complex numbers are refused if `is_ordered`.
    """

    def __init__(
        self, fold: str, numpy_function: Callable[..., Any], is_ordered: bool = False, **options: Any
    ) -> None:  # fmt: skip
        super().__init__(fold, ("self", "dims", "keepdim"), arrays=1)
        self._numpy_function, self._options, self._is_ordered = numpy_function, options, is_ordered

    def plan(self, layouts: tuple[Layout, ...], dims: Shape, keepdim: bool) -> CallPlan:
        fold = kernels.prepare(self.name, layouts[0], dims, keepdim)
        code, large = (fold.code, None) if fold.direct else (None, fold)
        return new_plan(layouts, code, fold.units, fold.kept, fold.shape, fold.dtype, large)

    def plan_on_device(self, operands: Any, out: Any, is_aligned: bool, dims: Shape, keepdim: bool) -> Any:
        fold = device_kernel(getattr(kernels, self.name))
        shape = reduced_shape(operands[0].shape, dims, keepdim)
        return CallOnDevice(lambda array: fold(array, dims, keepdim)), shape, operands[0].dtype

    def converted(self, *arguments: Any, out: np.ndarray | None = None) -> np.ndarray:
        array, dims, keepdim = arguments
        if dtypes.is_floating_point(array.dtype):
            return on_floats(getattr(kernels, self.name), array, dims, keepdim)
        if self._is_ordered:
            refuse_complex(self.name, array.dtype)
        options = {} if array.dtype.kind == "c" else self._options
        return as_own(self._numpy_function(array, axis=dims, keepdims=keepdim, **options))


def _root(array: np.ndarray) -> np.ndarray:
    np.sqrt(array, out=array)  # without `out`, NumPy makes a scalar of a 0-d array
    return array


# --- Sum, mean, product ----------------------------------------------------------------------------------------------

_sum: Callable[..., Tensor] = operation(
    "sum", _Folded("sum", np.sum, dtype=np.int64),
    self=lambda g, dims, self_shape: expand_to(_kept(g, self_shape, dims), self_shape),
)  # fmt: skip


def _mean_gradient(g: Tensor, dims: Shape, self_shape: Shape) -> Tensor:
    return expand_to(_kept(div(g, _count(self_shape, dims)), self_shape, dims), self_shape)


_mean: Callable[..., Tensor] = operation("mean", _Folded("mean", np.mean), self=_mean_gradient)


def _products_of_others(factors: Tensor) -> Tensor:
    """Return, for each element of the last dimension, the product of all others, without division: zeros are exact.

    The function multiplies pairs of neighbours, and calls itself on these products. The result of an element is the
    product of all other pairs times the neighbour of the element.
    """
    count = factors.shape[-1]
    if count <= 1:
        return Tensor.wrap(filled(factors.device, factors.shape, factors.dtype, 1))
    pairs = unflatten(constant_pad(factors, ((0, 0),) * (factors.ndim - 1) + ((0, count % 2),), 1.0), -1, (-1, 2))
    others = _products_of_others(reshape(mul(narrow(pairs, -1, 0, 1), narrow(pairs, -1, 1, 1)), pairs.shape[:-1]))
    return narrow(flatten(mul(unsqueeze(others, -1), flip(pairs, -1)), -2), -1, 0, count)


def _prod_gradient(g: Tensor, self: Tensor, dims: Shape) -> Tensor:
    order = tuple(i for i in range(self.ndim) if i not in dims) + dims
    moved = permute(self, order)
    others = _products_of_others(reshape(moved, (*moved.shape[: self.ndim - len(dims)], _count(self.shape, dims))))
    back = permute(reshape(others, moved.shape), np.argsort(order).tolist())
    return mul(conjugate(back), _kept(g, self.shape, dims))


_prod: Callable[..., Tensor] = operation("prod", _Folded("prod", np.prod, dtype=np.int64), self=_prod_gradient)


@declare(method=True)
def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None) -> Tensor:
    """Return the sum over dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type of the result; by default, that of the input, and int64 for integers and bool.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The sums, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DimensionError
        If a dimension is out of range or named twice.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x.sum().item()
    10.0
    >>> sg.sum(x, dim=0).tolist()
    [4.0, 6.0]
    >>> sg.sum(x, dim=1, keepdim=True).tolist()
    [[3.0], [7.0]]
    """
    input = input if dtype is None else to_dtype(input, dtype)
    return _sum(input, reduced_dims("sum", dim, axis, input.ndim), keepdim)


@declare(method=True, numpy=True)
def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None) -> Tensor:
    """Return the average over dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers, unless `dtype` is given.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type of the result; by default, that of the input.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The averages, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DtypeError
        For integers and bool.
    DimensionError
        If a dimension is out of range or named twice.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.mean(sg.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0).tolist()
    [2.0, 3.0]
    """
    input = input if dtype is None else to_dtype(input, dtype)
    require_inexact("mean", input.dtype)
    return _mean(input, reduced_dims("mean", dim, axis, input.ndim), keepdim)


@declare(method=True, numpy=True)
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None) -> Tensor:
    """Return the sum over dimensions of the elements that are not NaN.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type of the result; by default, that of the input, and int64 for integers and bool.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The sums, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DtypeError
        For complex numbers.
    """
    refuse_complex("nansum", input.dtype)
    if input.is_floating_point():
        input = where(isnan(input), 0.0, input)
    return sum(input, dim, keepdim, dtype=dtype, axis=axis)


@declare(method=True, numpy=True)
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None) -> Tensor:
    """Return the average over dimensions of the elements that are not NaN.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point numbers, unless `dtype` is given.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type of the result; by default, that of the input.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The averages, without the reduced dimensions unless `keepdim`; NaN where all elements are NaN.

    Raises
    ------
    DtypeError
        For integers and complex numbers.
    """
    input = input if dtype is None else to_dtype(input, dtype)
    require_floats("nanmean", input.dtype)
    numbers = sum(logical_not(isnan(input)), dim, keepdim, axis=axis)
    return div(nansum(input, dim, keepdim, axis=axis), to_dtype(numbers, input.dtype))


@declare(method=True)
@float32_in_autocast
def prod(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None) -> Tensor:
    """Return the product over dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type of the result; by default, that of the input, and int64 for integers and bool.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The products, without the reduced dimensions unless `keepdim`.
    """
    input = input if dtype is None else to_dtype(input, dtype)
    return _prod(input, reduced_dims("prod", dim, axis, input.ndim), keepdim)


# --- Variance --------------------------------------------------------------------------------------------------------


def _var_forward(self: np.ndarray, dims: Shape, keepdim: bool, correction: float) -> np.ndarray:
    if self.dtype.kind == "c":
        parts = [_var_forward(part, dims, keepdim, correction) for part in (self.real, self.imag)]
        return as_own(np.add(*parts))
    return on_floats(lambda a: kernels.var(a, dims, correction, keepdim)[0], self)


def _std_forward(self: np.ndarray, dims: Shape, keepdim: bool, correction: float) -> np.ndarray:
    if self.dtype.kind == "c":
        return as_own(np.sqrt(_var_forward(self, dims, keepdim, correction)))
    return on_floats(lambda a: _root(kernels.var(a, dims, correction, keepdim)[0]), self)


def _var_gradient(g: Any, self: Any, dims: Shape, correction: float) -> Any:
    freedom = _count(self.shape, dims) - correction
    scale = 2.0 / freedom if freedom > 0 else math.inf
    return _kept(g * scale, self.shape, dims) * (self - mean(self, dims, True))


def _std_gradient(g: Any, self: Any, result: Any, dims: Shape, correction: float) -> Any:
    by_variance = where(result == 0, 0.0, g / (result * 2))  # as PyTorch: no gradient where all values are equal
    return _var_gradient(by_variance, self, dims, correction)


_var: Callable[..., Tensor] = operation("var", _var_forward, self=_var_gradient)
_std: Callable[..., Tensor] = operation("std", _std_forward, self=_std_gradient)


def _spread(
    function: Any, name: str, input: Tensor, dim: Any, unbiased: bool | None, keepdim: bool, correction: float | None,
    axis: Dims,
) -> Tensor:  # fmt: skip
    require_inexact(name, input.dtype)
    if isinstance(dim, bool):  # PyTorch: var(x, False) gives `unbiased`
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    elif unbiased is not None:
        raise ArgumentError(f"{name}: got both unbiased={unbiased} and correction={correction}; give one")
    # A 0-d tensor has no dimensions to reduce over; kernels then count one element.
    return function(input, reduced_dims(name, dim, axis, input.ndim), keepdim, float(correction))  # type: ignore[no-any-return]


@declare(method=True)
def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, axis: Dims = None,
) -> Tensor:  # fmt: skip
    """Return the variance over dimensions: the sum of squared deviations divided by n - correction.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default. A bool here is taken for `unbiased`.
    unbiased : bool, optional
        False is a correction of 0, True is one of 1.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    correction : float, optional
        What is subtracted from the number n of elements; by default, 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The variances, without the reduced dimensions unless `keepdim`; real for complex numbers.

    Raises
    ------
    DtypeError
        For integers and bool.
    ArgumentError
        If both `unbiased` and `correction` are given.
    """
    return _spread(_var, "var", input, dim, unbiased, keepdim, correction, axis)


@declare(method=True)
def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, axis: Dims = None,
) -> Tensor:  # fmt: skip
    """Return the standard deviation over dimensions: the square root of `var`.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default. A bool here is taken for `unbiased`.
    unbiased : bool, optional
        False is a correction of 0, True is one of 1.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    correction : float, optional
        What is subtracted from the number of elements; by default, 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The deviations, without the reduced dimensions unless `keepdim`; real for complex numbers.

    Raises
    ------
    DtypeError
        For integers and bool.
    ArgumentError
        If both `unbiased` and `correction` are given.
    """
    return _spread(_std, "std", input, dim, unbiased, keepdim, correction, axis)


def var_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, axis: Dims = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the variance and the mean over dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    unbiased : bool, optional
        False is a correction of 0, True is one of 1.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    correction : float, optional
        What is subtracted from the number of elements; by default, 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    tuple of Tensor
        The variances as `var` returns them, and the means as `mean` does.
    """
    return var(input, dim, unbiased, keepdim, correction=correction, axis=axis), mean(input, dim, keepdim, axis=axis)


def std_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, axis: Dims = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the standard deviation and the mean over dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    unbiased : bool, optional
        False is a correction of 0, True is one of 1.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    correction : float, optional
        What is subtracted from the number of elements; by default, 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    tuple of Tensor
        The standard deviations as `std` returns them, and the means as `mean` does.
    """
    return std(input, dim, unbiased, keepdim, correction=correction, axis=axis), mean(input, dim, keepdim, axis=axis)


# --- Extremes --------------------------------------------------------------------------------------------------------


def shared_among_ties(g: Any, self: Any, result: Any, dims: Shape) -> Any:
    """Return the gradient of `self`: all elements that equal the extreme `result` share the gradient `g` evenly."""
    extreme = _kept(result, self.shape, dims).detach()
    is_extreme = (self.detach() == extreme) | (self.detach() != self.detach())
    share = _kept(g, self.shape, dims) / to_dtype(sum(is_extreme, dims, True), g.dtype)
    return where(is_extreme, share, 0.0)


_amax: Callable[..., Tensor] = operation("amax", _Folded("max", np.max, is_ordered=True), self=shared_among_ties)
_amin: Callable[..., Tensor] = operation("amin", _Folded("min", np.min, is_ordered=True), self=shared_among_ties)
_max_of_all = operation("max", _Folded("max", np.max, is_ordered=True), self=shared_among_ties)
_min_of_all = operation("min", _Folded("min", np.min, is_ordered=True), self=shared_among_ties)
_max_of_all.node_name, _min_of_all.node_name = "MaxBackward1", "MinBackward1"  # as PyTorch: 0 is along a dimension


def _position(kernel: Callable[..., Any], numpy_function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def position(self: np.ndarray, dim: int, keepdim: bool) -> np.ndarray:
        refuse_complex(numpy_function.__name__, self.dtype)
        if not dtypes.is_floating_point(self.dtype):
            return as_own(numpy_function(self, axis=dim, keepdims=keepdim))
        return on_floats(lambda a: kernel(a, dim, keepdim), self)

    return position


_position_of_max = _position(kernels.argmax, np.argmax)
_position_of_min = _position(kernels.argmin, np.argmin)


def _extreme_along(
    position: Callable[..., np.ndarray], fold: Callable[..., np.ndarray]
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    def forward(self: np.ndarray, dim: int, keepdim: bool) -> tuple[np.ndarray, np.ndarray]:
        if dtypes.is_floating_point(self.dtype):  # a fold takes a quarter of the time of picking by index
            return on_floats(lambda a: fold(a, (dim,), keepdim), self), position(self, dim, keepdim)
        refuse_complex("max" if fold is kernels.max else "min", self.dtype)
        indices = position(self, dim, True)
        values = np.take_along_axis(self, indices, dim)
        return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))

    return forward


def gradient_at_indices(g: Tensor, indices: Tensor, dim: int, self_shape: Shape) -> Tensor:
    """Return the gradient of the input of an operation that took elements at `indices` along a dimension."""
    shape = _kept_shape(self_shape, (dim,))
    return spread_into_zeros(reshape(g, shape), dim, reshape(indices, shape), self_shape[dim])


_max_along: Any = operation(
    "max", _extreme_along(_position_of_max, kernels.max), outputs=("values", "indices"), self=gradient_at_indices
)
_min_along: Any = operation(
    "min", _extreme_along(_position_of_min, kernels.min), outputs=("values", "indices"), self=gradient_at_indices
)


def _require_elements(name: str, input: Tensor, dims: Shape) -> None:
    if 0 in input.shape and 0 in [input.shape[i] for i in dims]:
        raise DimensionError(f"{name}: got a tensor of shape {input.shape}; reduce a dimension that is not empty")


def _extreme(
    name: str, along: Any, over: Any, elementwise: Any, input: Tensor, dim: Any, keepdim: bool, axis: Any
) -> Any:
    dim = axis if dim is None else dim
    if isinstance(dim, Tensor):
        return elementwise(input, dim)
    if dim is None or hasattr(dim, "__iter__"):
        return _over(name, over, input, dim, keepdim)
    dim = normalize_dim(name, dim, input.ndim)
    if not input.ndim:
        values, indices = along(reshape(input, 1), 0, False)
    else:
        _require_elements(name, input, (dim,))
        values, indices = along(input, dim, keepdim)
    return ValuesAndIndices(values, indices)


def _over(name: str, operation: Any, input: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    dims = reduced_dims(name, dim, None, input.ndim)
    _require_elements(name, input, dims)
    return operation(input, dims, keepdim)  # type: ignore[no-any-return]


@declare(method=True)
def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    """Return the largest element, or the largest elements and their indices along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, sequence of int or Tensor, optional
        Dimension, or dimensions, to reduce; all, by default. A tensor here is the second operand of `maximum`.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int, sequence of int or Tensor, optional
        Another name of `dim`.

    Returns
    -------
    Tensor or named tuple of Tensor
        For one dimension, (values, indices); the index is that of the first largest element. Else the largest elements,
        or with a tensor as `dim`, the elementwise maximum.

    Raises
    ------
    DimensionError
        If a reduced dimension is out of range, or has no elements.
    DtypeError
        For complex numbers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([[1.0, 5.0], [7.0, 2.0]])
    >>> sg.max(x).item()
    7.0
    >>> values, indices = sg.max(x, dim=1)
    >>> values.tolist(), indices.tolist()
    ([5.0, 7.0], [1, 0])
    """
    return _extreme("max", _max_along, _max_of_all, maximum, input, dim, keepdim, axis)


@declare(method=True)
def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    """Return the smallest element, or the smallest elements and their indices along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, sequence of int or Tensor, optional
        Dimension, or dimensions, to reduce; all, by default. A tensor here is the second operand of `minimum`.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int, sequence of int or Tensor, optional
        Another name of `dim`.

    Returns
    -------
    Tensor or named tuple of Tensor
        For one dimension, (values, indices); the index is that of the first smallest element. Else the smallest
        elements, or with a tensor as `dim`, the elementwise minimum.

    Raises
    ------
    DimensionError
        If a reduced dimension is out of range, or has no elements.
    DtypeError
        For complex numbers.
    """
    return _extreme("min", _min_along, _min_of_all, minimum, input, dim, keepdim, axis)


@declare(method=True)
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False, axis: int | None = None) -> MinAndMax:
    """Return the smallest and the largest element over all dimensions or along one.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, optional
        Dimension to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    named tuple of Tensor
        (min, max), without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DimensionError
        If a reduced dimension is out of range, or has no elements.
    """
    return MinAndMax(amin(input, dim, keepdim, axis=axis), amax(input, dim, keepdim, axis=axis))


@declare(method=True)
def amax(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the largest element over dimensions.

    Equal largest elements share the gradient evenly.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The largest elements, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DimensionError
        If a reduced dimension is out of range, or has no elements.
    DtypeError
        For complex numbers.
    """
    return _over("amax", _amax, input, axis if dim is None else dim, keepdim)


@declare(method=True)
def amin(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the smallest element over dimensions.

    Equal smallest elements share the gradient evenly.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The smallest elements, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DimensionError
        If a reduced dimension is out of range, or has no elements.
    DtypeError
        For complex numbers.
    """
    return _over("amin", _amin, input, axis if dim is None else dim, keepdim)


def _argument(name: str, position: Callable[..., np.ndarray], input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is None or not input.ndim:
        dim = None if dim is None else normalize_dim(name, dim, 0)
        _require_elements(name, input, tuple(range(input.ndim)))
        found = position(input.array.reshape(-1), 0, False)
        return Tensor.wrap(found.reshape((1,) * input.ndim if keepdim else ()))
    dim = normalize_dim(name, dim, input.ndim)
    _require_elements(name, input, (dim,))
    return Tensor.wrap(position(input.array, dim, keepdim))


@declare(method=True)
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
    """Return the position of the first largest element.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, optional
        Dimension to reduce; by default, the position is that in the flattened tensor.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The positions, as int64, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DimensionError
        If a reduced dimension is out of range, or has no elements.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.argmax(sg.tensor([[1.0, 5.0], [7.0, 2.0]]), dim=1).tolist()
    [1, 0]
    """
    return _argument("argmax", _position_of_max, input, axis if dim is None else dim, keepdim)


@declare(method=True)
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
    """Return the position of the first smallest element.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, optional
        Dimension to reduce; by default, the position is that in the flattened tensor.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The positions, as int64, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DimensionError
        If a reduced dimension is out of range, or has no elements.
    """
    return _argument("argmin", _position_of_min, input, axis if dim is None else dim, keepdim)


# --- Logarithms of sums, norms ---------------------------------------------------------------------------------------


def _logsumexp_gradient(g: Any, self: Any, result: Any, dims: Shape) -> Any:
    return _kept(g, self.shape, dims) * exp(self - _kept(result, self.shape, dims))


_logsumexp: Callable[..., Tensor] = operation(
    "logsumexp", lambda self, dims, keepdim: on_floats(lambda a: as_own(kernels.logsumexp(a, dims, keepdim)), self),
    self=_logsumexp_gradient,
)  # fmt: skip


@declare(method=True)
def logsumexp(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Return log(sum(exp(x))) over dimensions, without overflow.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The logarithms, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DtypeError
        For integers and bool.
    """
    require_inexact("logsumexp", input.dtype)
    dims = reduced_dims("logsumexp", dim, axis, input.ndim)
    if not input.is_complex():
        return _logsumexp(input, dims, keepdim)
    largest = as_own(np.max(input.host_array().real, dims, keepdims=True, initial=-math.inf))
    shift = Tensor.wrap(moved(np.where(np.isfinite(largest), largest, 0).astype(largest.dtype), input.device))
    result = log(sum(exp(input - shift), dims, True)) + shift
    return result if keepdim else reshape(result, [s for i, s in enumerate(input.shape) if i not in dims])


def _euclidean_forward(self: np.ndarray, dims: Shape, keepdim: bool) -> np.ndarray:
    if self.dtype.kind == "c":
        return as_own(np.hypot(*(kernels.norm(part, dims, keepdim) for part in (self.real, self.imag))))
    return on_floats(lambda a: kernels.norm(a, dims, keepdim), self)


def _euclidean_gradient(g: Any, self: Any, result: Any, dims: Shape) -> Any:
    direction = where(result == 0, 0.0, g / result)  # as PyTorch: the subgradient at the origin is 0
    return self * _kept(direction, self.shape, dims)


_euclidean: Callable[..., Tensor] = operation("linalg_vector_norm", _euclidean_forward, self=_euclidean_gradient)


@declare(method=True)
def norm(
    input: Tensor, p: float | str | None = 2.0, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None,
    axis: Dims = None,
) -> Tensor:  # fmt: skip
    """Return the vector norm ``(sum |x|**p)**(1/p)`` over dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point or complex numbers, unless `dtype` is given.
    p : float or "fro", default 2.0
        Order of the norm; inf and -inf give the largest and the smallest absolute value, 0 counts the nonzero elements.
        "fro" and None mean 2.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type to which the input is converted first; by default, that of the input.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The norms, without the reduced dimensions unless `keepdim`; real for complex numbers.

    Raises
    ------
    ArgumentError
        If `p` is another name.
    DtypeError
        For integers and bool.
    """
    input = input if dtype is None else to_dtype(input, dtype)
    require_inexact("norm", input.dtype)
    if isinstance(p, str) and p != "fro":
        raise ArgumentError(f'norm: got p={p!r}; wanted a number or "fro"')
    order = 2.0 if p is None or isinstance(p, str) else float(p)
    dims = reduced_dims("norm", dim, axis, input.ndim)
    if order == 2:
        return _euclidean(input, dims, keepdim)
    if math.isinf(order):
        return (amax if order > 0 else amin)(abs(input), dims, keepdim)
    if order == 0:
        count = Tensor.wrap(as_own(np.count_nonzero(input.array, dims, keepdims=keepdim)))
        return to_dtype(count, REALS.get(input.dtype, input.dtype))
    if order == 1:
        return sum(abs(input), dims, keepdim)
    return pow(sum(pow(abs(input), order), dims, keepdim), 1 / order)
