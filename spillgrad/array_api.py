"""The array API standard, 2024.12: what `Tensor.__array_namespace__` returns.

Every function has the standard's name, parameters and meaning. Where PyTorch's is another, `sg` has PyTorch's and this
module the standard's: here dtypes promote whatever the number of dimensions (the operators of tensors promote as
PyTorch's), `max` and `sort` return values alone, `std` divides by n, `squeeze` refuses dimensions that are not 1. What
`sg` differentiates is differentiated here too.

Of what the standard asks, two things are not there: arithmetic of complex numbers, which can be stored, moved and
Fourier transformed; and the attribute `Tensor.size`, which is PyTorch's method.

Source: https://data-apis.org/array-api/2024.12/
"""

import builtins
import functools
from collections.abc import Callable
from math import e, inf, nan, pi
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from spillgrad import array_api_fft as fft
from spillgrad import array_api_linalg as linalg
from spillgrad import dtypes as _dtypes
from spillgrad.array_api_linalg import matmul, matrix_transpose, tensordot, vecdot
from spillgrad.device import CPU, CUDA, Device, as_device
from spillgrad.dtypes import (
    DType,
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from spillgrad.dtypes import bool_ as bool
from spillgrad.errors import ArgumentError, ExportError, OperandError, ShapeError
from spillgrad.ops import (
    arithmetic,
    choice,
    comparison,
    complex_numbers,
    convert,
    counting,
    creation,
    exponential,
    indexing,
    logic,
    order,
    reduce,
    rounding,
    scan,
    special,
    trigonometry,
)
from spillgrad.ops import array_api_names as named
from spillgrad.ops import shape as shape_ops
from spillgrad.ops.array_api_names import (
    broadcast_arrays,
    broadcast_shapes,
    expand_dims,
    isdtype,
    permute_dims,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    unstack,
)
from spillgrad.ops.subscript import getitem
from spillgrad.tensor import Tensor
from spillgrad_kernels.cuda.driver.availability import missing

__array_api_version__ = "2024.12"
newaxis = None

# --- Elementwise functions -------------------------------------------------------------------------------------------


def _unary(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    def elementwise(x: Tensor, /) -> Tensor:
        return function(x)  # type: ignore[no-any-return]

    return _called(elementwise, name, function)


def _binary(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    def elementwise(x1: Any, x2: Any, /) -> Tensor:
        return function(*named.promoted(name, x1, x2))  # type: ignore[no-any-return]

    return _called(elementwise, name, function)


def _called(function: Callable[..., Any], name: str, like: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = like.__doc__
    return function


# Elementwise functions that mean the same in `sg`, by the module that has them.
_UNARY: dict[ModuleType, str] = {
    arithmetic: "abs negative positive reciprocal sqrt square",
    comparison: "isfinite isinf isnan signbit",
    complex_numbers: "conj imag real",
    exponential: "exp expm1 log log1p log2 log10",
    logic: "logical_not",
    rounding: "ceil floor round trunc",
    trigonometry: "acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh",
}
_BINARY: dict[ModuleType, str] = {
    arithmetic: "add divide floor_divide hypot multiply pow remainder subtract",
    choice: "maximum minimum",
    comparison: "greater greater_equal less less_equal not_equal",
    exponential: "logaddexp",
    logic: """
        bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor logical_and logical_or logical_xor
    """,
    special: "copysign nextafter",
    trigonometry: "atan2",
}

for _room, _list in _UNARY.items():
    globals().update({name: _unary(name, getattr(_room, name)) for name in _list.split()})
for _room, _list in _BINARY.items():
    globals().update({name: _binary(name, getattr(_room, name)) for name in _list.split()})
bitwise_invert = _unary("bitwise_invert", logic.bitwise_not)
equal = _binary("equal", comparison.eq)


def sign(x: Tensor, /) -> Tensor:
    """Return -1, 0 or 1 for each element, and NaN for NaN."""
    signs: Tensor = arithmetic.sign(x)
    return choice.where(comparison.isnan(x), x, signs) if x.is_floating_point() else signs


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Return the elements held within bounds, in the dtype of `x`."""
    low, high = (convert.to_dtype(bound, x.dtype) if isinstance(bound, Tensor) else bound for bound in (min, max))
    return convert.clone(x) if low is None and high is None else choice.clip(x, low, high)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """Return elements of `x1` where `condition` holds, else of `x2`."""
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        return choice.where(condition, x1, x2)  # type: ignore[no-any-return]
    return choice.where(condition, *named.promoted("where", x1, x2))  # type: ignore[no-any-return]


# --- Making arrays ---------------------------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: builtins.bool | None = None) -> Tensor:
    """Return data as a tensor: with `copy` always in memory of its own, without it never, by default where it must be.

    Raises ArgumentError for copy=False where the data have to be copied.
    """
    return named.asarray(obj, dtype, device, copy)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:  # fmt: skip
    """Return the values from `start` (0 if only one bound is given) up to but without `stop`, `step` apart."""
    if stop is None:
        start, stop = 0, start
    if (stop - start) * step < 0:
        stop = start
    return creation.arange(start, stop, step, dtype, device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: builtins.bool = True
) -> Tensor:
    """Return `num` evenly spaced values from `start` to `stop`, without the latter unless `endpoint`."""
    if num < 0:
        raise ArgumentError(f"linspace: got num={num}; give 0 or more")
    values = np.linspace(float(start), float(stop), num, endpoint)
    return creation.tensor(values, _dtypes.get_default_dtype() if dtype is None else dtype, device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a matrix with ones on its k-th diagonal and zeros elsewhere."""
    return creation.tensor(np.eye(n_rows, n_cols, k), _dtypes.get_default_dtype() if dtype is None else dtype, device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor filled with one value, of that value's own dtype if none is given."""
    return creation.full(shape, fill_value, dtype, device)


def _filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        return make(shape=shape, dtype=dtype, device=device)

    return _called(function, make.__name__, make)


def _filled_like(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
        return make(x, dtype=dtype, device=device)

    return _called(function, make.__name__, make)


empty, ones, zeros = map(_filled, (creation.empty, creation.ones, creation.zeros))
empty_like, ones_like, zeros_like = map(_filled_like, (creation.empty_like, creation.ones_like, creation.zeros_like))


def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor in the shape and dtype of `x` filled with one value."""
    return creation.full_like(x, fill_value, dtype=dtype, device=device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: builtins.bool | None = None) -> Tensor:
    """Return a tensor over the memory of any object with `__dlpack__`, or where it must be or is asked for over a copy.

    Raises ExportError for copy=False and another device.
    """
    taken = creation.from_dlpack(x)
    moved = taken if device is None else convert.to(taken, device=device)
    if copy is False and moved is not taken:
        raise ExportError(f"from_dlpack: got copy=False and device={device!r} for memory on '{taken.device}'")
    return convert.clone(moved) if copy and moved is taken else moved


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Return views of vectors as coordinate grids: "ij" gives matrix order, "xy" swaps the first two dimensions."""
    return shape_ops.meshgrid(*arrays, indexing=indexing)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return matrices with zeros above the k-th diagonal."""
    return shape_ops.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return matrices with zeros below the k-th diagonal."""
    return shape_ops.triu(x, k)


# --- Dtypes ----------------------------------------------------------------------------------------------------------


class FloatInfo(NamedTuple):
    """The limits of a floating-point dtype; of a complex one, of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerInfo(NamedTuple):
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of the floating-point dtype that is given, or that a tensor has."""
    dtype = _dtype_of(type)
    part = {complex64: float32, complex128: float64}.get(dtype, dtype)
    found = _dtypes.finfo(part)
    return FloatInfo(found.bits, found.eps, found.max, found.min, found.smallest_normal, part)


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of the integer dtype that is given, or that a tensor has."""
    found = _dtypes.iinfo(_dtype_of(type))
    return IntegerInfo(found.bits, found.max, found.min, _dtype_of(type))


def _dtype_of(array_or_dtype: Any) -> DType:
    return array_or_dtype.dtype if isinstance(array_or_dtype, Tensor) else _dtypes.as_dtype(array_or_dtype)


def astype(x: Tensor, dtype: Any, /, *, copy: builtins.bool = True, device: Any = None) -> Tensor:
    """Return the tensor as a dtype, as a copy unless told otherwise."""
    result = named.astype(x, dtype, copy=copy)
    return result if device is None else convert.to(result, device=device)


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Return whether a dtype, or a tensor's, promotes to another: the same kind and no fewer bits, or its complex."""
    source, target = _dtype_of(from_), _dtypes.as_dtype(to)
    kinds = _dtypes.category(source), _dtypes.category(target)
    return kinds in ((0, 0), (1, 1), (2, 2), (2, 3), (3, 3)) and _dtypes.promote(source, target) == target


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the dtype that tensors, dtypes and Python numbers have in common; a number counts by its kind alone."""
    numbers = [x for x in arrays_and_dtypes if isinstance(x, named.NUMBERS)]
    found = [_dtype_of(x) for x in arrays_and_dtypes if not isinstance(x, named.NUMBERS)]
    if not found:
        raise OperandError("result_type: got no tensor and no dtype; wanted at least one")
    return _dtypes.result_type([(functools.reduce(_dtypes.promote, found), False)], numbers)


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Return a view repeated along new dimensions and those of size 1."""
    return shape_ops.broadcast_to(x, shape)


# --- Shapes and order ------------------------------------------------------------------------------------------------


def concat(arrays: Any, /, *, axis: int | None = 0) -> Tensor:
    """Return tensors joined along an existing dimension, or without one all their elements in a row."""
    parts = list(arrays)
    return shape_ops.cat([shape_ops.reshape(x, -1) for x in parts] if axis is None else parts, axis or 0)


def stack(arrays: Any, /, *, axis: int = 0) -> Tensor:
    """Return tensors of one shape joined along a new dimension."""
    return shape_ops.stack(list(arrays), axis)


def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """Return a copy with the order along some dimensions, or all, reversed."""
    return shape_ops.flip(x, dims=tuple(range(x.ndim)) if axis is None else axis)


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Return a view with some dimensions moved to other places, the others in their order."""
    return shape_ops.movedim(x, source, destination)


def reshape(x: Tensor, /, shape: Any, *, copy: builtins.bool | None = None) -> Tensor:
    """Return the elements in another shape: as a view where that can be, unless `copy`.

    Raises ArgumentError for copy=False where there is no such view.
    """
    result = shape_ops.reshape(x, shape)
    if copy is False and x.numel() and result.storage is not x.storage:
        raise ArgumentError(f"reshape: got copy=False for strides {x.stride()}, of which {shape} is no view")
    return convert.clone(result) if copy and result.storage is x.storage else result


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Return each element (or slice along `axis`) repeated in place."""
    return named.repeat(x, repeats, axis=axis)


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Return a copy whose elements moved along some dimensions, or along the flattened tensor."""
    several = isinstance(axis, tuple) and not isinstance(shift, tuple)
    return shape_ops.roll(x, (shift,) * len(axis) if several else shift, axis)


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Return a view without some dimensions of size 1. Raises ShapeError for another size."""
    dims = shape_ops.normalize_dims("squeeze", axis, x.ndim)
    if wrong := [d for d in dims if x.shape[d] != 1]:
        raise ShapeError(f"squeeze: got axis={axis} for shape {x.shape}; dimension {wrong[0]} is not of size 1")
    return shape_ops.squeeze(x, dims)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Return the tensor tiled along its last dimensions."""
    return shape_ops.tile(x, repetitions)


# --- Searching, sorting, indexing ------------------------------------------------------------------------------------


def _position(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def position(x: Tensor, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
        return function(x, axis, keepdims)

    return _called(position, function.__name__, function)


argmax, argmin = _position(reduce.argmax), _position(reduce.argmin)


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Tensor:  # fmt: skip
    """Return the indices that sort the tensor along a dimension."""
    return order.argsort(x, axis, descending, stable)


def sort(
    x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Tensor:  # fmt: skip
    """Return the elements in order along a dimension."""
    return order.sort(x, axis, descending, stable).values


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the places of the elements that are not zero: a vector for each dimension. Raises ShapeError for 0-d."""
    if not x.ndim:
        raise ShapeError("nonzero: got a 0-d tensor; wanted at least one dimension")
    return indexing.nonzero(x, as_tuple=True)  # type: ignore[no-any-return]


def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Return where elements of `x2` would stand in the sorted vector `x1`: before what is equal, or behind it."""
    return counting.searchsorted(x1, x2, side=side, sorter=sorter)


def isin(x1: Any, x2: Any, /, *, invert: builtins.bool = False) -> Tensor:
    """Return whether each element of `x1` is (or is not) one of `x2`."""
    return counting.isin(*named.promoted("isin", x1, x2), invert=invert)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return the elements at `indices` along a dimension, which only a vector need not name."""
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"take: got a tensor of {x.ndim} dimensions and no axis; give one")
    dim = shape_ops.normalize_dim("take", axis or 0, x.ndim)
    return getitem(x, (*(slice(None),) * dim, indices))


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the elements at `indices` along one dimension; others broadcast."""
    size = x.shape[shape_ops.normalize_dim("take_along_axis", axis, x.ndim)]
    counted = choice.where(comparison.lt(indices, 0), arithmetic.add(indices, size), indices)
    return named.take_along_axis(x, counted, axis=axis)


# --- Reductions ------------------------------------------------------------------------------------------------------


def _over(function: Callable[..., Tensor], x: Tensor, axis: Any, *further: Any) -> Tensor:
    """Return a reduction over dimensions: for PyTorch `()` is all of them, for the standard none."""
    if axis == ():
        return shape_ops.squeeze(function(shape_ops.unsqueeze(x, 0), 0, *further[:-1], True), 0)
    return function(x, axis, *further)


def _reduction(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduced(x: Tensor, /, *, axis: Any = None, keepdims: builtins.bool = False) -> Tensor:
        return _over(function, x, axis, keepdims)

    return _called(reduced, name, function)


max, min = _reduction("max", reduce.amax), _reduction("min", reduce.amin)
all, any, mean = (_reduction(f.__name__, f) for f in (reduce.all, reduce.any, reduce.mean))


def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: builtins.bool = False) -> Tensor:
    """Return how many elements over dimensions are not zero, as int64."""
    return sum(comparison.ne(x, 0), axis=axis, keepdims=keepdims)


def _as_total(x: Tensor, dtype: Any, total: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a sum or product in its dtype: the given one, or of unsigned integers uint64."""
    if dtype is None:
        return convert.to_dtype(total(x), uint64) if x.dtype.kind == "u" else total(x)
    return convert.to_dtype(total(convert.to_dtype(x, dtype)), dtype)


def _total(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def total(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: builtins.bool = False) -> Tensor:
        return _as_total(x, dtype, lambda x: _over(function, x, axis, keepdims))

    return _called(total, function.__name__, function)


sum, prod = _total(reduce.sum), _total(reduce.prod)


def _spread(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def spread(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Tensor:
        def over(x: Tensor, dim: Any, keepdim: builtins.bool) -> Tensor:
            return function(x, dim, None, keepdim, correction=correction)

        return _over(over, x, axis, keepdims)

    return _called(spread, function.__name__, function)


std, var = _spread(reduce.std), _spread(reduce.var)


def _running(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def running(
        x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: builtins.bool = False
    ) -> Tensor:
        return _as_total(x, dtype, lambda x: function(x, axis=axis, include_initial=include_initial))

    return _called(running, function.__name__, function)


cumulative_sum, cumulative_prod = _running(named.cumulative_sum), _running(named.cumulative_prod)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return the n-th differences of neighbours along a dimension, with further elements at either end."""
    return scan.diff(x, n, axis, prepend, append)


# --- What there is ---------------------------------------------------------------------------------------------------


class __array_namespace_info__:
    """What this namespace has and does."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional behaviours there are."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Return where tensors are made."""
        return CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtypes of tensors made without one."""
        as_device(device)
        return {
            "real floating": _dtypes.get_default_dtype(), "complex floating": _dtypes.of_scalar(0j),
            "integral": int64, "indexing": int64,
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes by name, or those of a kind, or of several."""
        as_device(device)
        return {str(d): d for d in _STANDARD_DTYPES if kind is None or isdtype(d, kind)}

    def devices(self) -> list[Device]:
        """Return where tensors can be."""
        return [CPU] if missing() else [CPU, CUDA]


_STANDARD_DTYPES = (
    bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, complex64, complex128,
)  # fmt: skip

__all__ = [
    "__array_api_version__", "bool", "broadcast_arrays", "broadcast_shapes", "complex64", "complex128", "e",
    "expand_dims", "fft", "float32",
    "float64", "inf", "int8", "int16", "int32", "int64", "isdtype", "linalg", "matmul", "matrix_transpose", "nan",
    "newaxis", "permute_dims", "pi", "tensordot", "uint8", "uint16", "uint32", "uint64", "unique_all", "unique_counts",
    "unique_inverse", "unique_values", "unstack", "vecdot",
]  # fmt: skip
__all__ += [
    name
    for name, value in globals().items()
    if name == "__array_namespace_info__" or (name[0] != "_" and getattr(value, "__module__", None) == __name__)
]
