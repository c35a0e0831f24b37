"""NumPy's functions for device arrays: the functions that operations call and that the device has kernels for."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad_kernels.cuda import advanced_indexing, indexing, reductions, sorting
from spillgrad_kernels.cuda.array import empty, to_device, zeros
from spillgrad_kernels.cuda.elementwise import assign, contiguous, elementwise
from spillgrad_kernels.cuda.logic import BITWISE, LOGICAL
from spillgrad_kernels.device_array import DeviceArray, NotOnDevice, may_share_memory
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables.elementwise_derivatives import ROWS, Row
from spillgrad_kernels.tables.reductions import fold_order

Axes = int | tuple[int, ...] | None


def _on_view(function: Callable[..., Any]) -> Callable[..., DeviceArray]:
    """Return the counterpart, for device arrays, of a NumPy function that returns a view."""

    @functools.wraps(function)
    def viewed(array: DeviceArray, *arguments: Any, **options: Any) -> DeviceArray:
        return array.view_by(function, *arguments, **options)

    return viewed


_VIEWING = (
    np.atleast_1d, np.broadcast_to, np.diagonal, np.expand_dims, np.flip, np.moveaxis, np.rot90, np.squeeze,
    np.swapaxes, np.transpose,
)  # fmt: skip


def _all_on_device(name: str, *arrays: Any) -> None:
    """Raise NotOnDevice if `arrays` contain a host array with dimensions."""
    if any([isinstance(array, np.ndarray) and array.ndim for array in arrays]):
        raise NotOnDevice(f"numpy.{name}: got arrays of the host and of the device; they must be in one place")


def _copyto(target: DeviceArray, source: Any, casting: str = "same_kind", where: Any = True) -> None:
    if where is not True:
        raise NotOnDevice("numpy.copyto: no kernel of the device takes `where`")
    if not isinstance(target, DeviceArray):
        raise NotOnDevice("numpy.copyto: got an array of the host to overwrite, and one of the device")
    assign(target, source)


def _where(condition: Any, x: Any, y: Any) -> DeviceArray:
    dtype = _common_dtype((x, y))
    return elementwise(ROWS["where"].forward, "where", _on_device(condition, x, y), dtype)


def _joined(arrays: Sequence[Any], axis: int = 0, out: DeviceArray | None = None) -> DeviceArray:
    """Concatenate `arrays` along `axis` into a new array, or into `out` if it is given; return the result."""
    _all_on_device("concatenate", *arrays, out)
    first = arrays[0]
    axis %= first.ndim
    sizes = [array.shape[axis] for array in arrays]
    if out is None:
        shape = (*first.shape[:axis], sum(sizes), *first.shape[axis + 1 :])
        out = empty(shape, np.result_type(*[array.dtype for array in arrays]))
    begin = 0
    for array, size in zip(arrays, sizes, strict=True):
        assign(out[(slice(None),) * axis + (slice(begin, begin + size),)], array)
        begin += size
    return out


def _stacked(arrays: Sequence[Any], axis: int = 0, out: DeviceArray | None = None) -> DeviceArray:
    axis %= arrays[0].ndim + 1
    return _joined([array[(slice(None),) * axis + (None,)] for array in arrays], axis, out)


def _rolled(a: DeviceArray, shift: Any, axis: Any = None) -> DeviceArray:
    if axis is None:
        return _rolled(a.reshape(-1), shift, 0).reshape(a.shape)
    steps, axes = (x if isinstance(x, tuple) else (x,) for x in (shift, axis))
    for step, one in zip(steps, axes, strict=True):
        begin = a.shape[one] - step % max(a.shape[one], 1)
        lead = (slice(None),) * (one % a.ndim)
        a = _joined([a[(*lead, slice(begin, None))], a[(*lead, slice(begin))]], one)
    return a


def _triangle(keep_lower: bool) -> Callable[..., DeviceArray]:
    def kept(m: DeviceArray, k: int = 0) -> DeviceArray:
        rows, columns = (indexing.arange(size) for size in m.shape[-2:])
        beside = columns - rows[:, None]
        return _where(beside <= k if keep_lower else beside >= k, m, m.dtype.type(0))

    return kept


def _like(make: Callable[..., DeviceArray]) -> Callable[..., DeviceArray]:
    def made(prototype: DeviceArray, dtype: Any = None, shape: Shape | None = None, **options: Any) -> DeviceArray:
        return make(prototype.shape if shape is None else shape, prototype.dtype if dtype is None else np.dtype(dtype))

    return made


_empty_like, _zeros_like = _like(empty), _like(zeros)


def _full_like(
    prototype: DeviceArray, fill_value: Any, dtype: Any = None, shape: Shape | None = None, **options: Any
) -> DeviceArray:
    made = _empty_like(prototype, dtype, shape)
    made.fill(fill_value)
    return made


def _ones_like(prototype: DeviceArray, dtype: Any = None, shape: Shape | None = None, **options: Any) -> DeviceArray:
    return _full_like(prototype, 1, dtype, shape)


def _fold(name: str) -> Callable[..., DeviceArray]:
    def folded(a: DeviceArray, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> DeviceArray:
        fold: Callable[..., DeviceArray] = getattr(reductions, name)
        axes = tuple(range(a.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        if dtype is not None and np.dtype(dtype).kind == "f":
            a = a.astype(dtype, copy=False)
        result = fold(a, tuple([one % a.ndim for one in axes]), keepdims)
        return result if dtype is None else result.astype(dtype, copy=False)

    return folded


def _count_nonzero(a: DeviceArray, axis: Axes = None, *, keepdims: bool = False) -> DeviceArray:
    return _fold("sum")(np.not_equal(a, 0).view(np.uint8), axis, np.int64, keepdims)


def _place(name: str) -> Callable[..., DeviceArray]:
    def found(a: DeviceArray, axis: int | None = None, *, keepdims: bool = False) -> DeviceArray:
        fold: Callable[..., DeviceArray] = getattr(reductions, name)
        return fold(a.reshape(-1), 0, False) if axis is None else fold(a, axis % a.ndim, keepdims)

    return found


def _take_along_axis(arr: DeviceArray, indices: DeviceArray, axis: int = -1) -> DeviceArray:
    _all_on_device("take_along_axis", arr, indices)
    return indexing.gather(arr, axis % arr.ndim, indices)


def _put_along_axis(arr: DeviceArray, indices: Any, values: Any, axis: int) -> None:
    """Write `values` to `arr` at `indices` along `axis`, in place. For equal indices, the last value stays."""
    _all_on_device("put_along_axis", arr, indices, values)
    axis %= arr.ndim
    order = fold_order(arr.shape, (axis,))
    sums, given = contiguous(arr), empty(indices.shape, arr.dtype)
    assign(given, values)
    length = indices.shape[axis]
    indexing.overwrite(
        sums.reshape(order.outer, order.n, order.inner, 1), indices.reshape(order.outer, length, order.inner),
        given.reshape(order.outer, length, order.inner, 1),
    )  # fmt: skip
    if sums is not arr:
        assign(arr, sums)


def _take(a: DeviceArray, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> DeviceArray:
    _all_on_device("take", a)
    if out is not None or mode != "raise":
        raise NotOnDevice("numpy.take: no kernel of the device takes `out` or `mode`")
    if axis is None:
        a, axis = a.reshape(-1), 0
    return advanced_indexing.pick(a, (slice(None),) * (axis % a.ndim) + (indices,))


# --- Sorting ---------------------------------------------------------------------------------------------------------


def _argsort(a: DeviceArray, axis: int | None = -1, kind: str | None = None) -> DeviceArray:
    """Return the positions of the elements in sorted order. The sort is stable, whatever `kind` is."""
    return _in_order(a, axis)[1]


def _sort(a: DeviceArray, axis: int | None = -1, kind: str | None = None) -> DeviceArray:
    return _in_order(a, axis)[0]


def _in_order(a: DeviceArray, axis: int | None = None) -> tuple[DeviceArray, DeviceArray]:
    if axis is None:
        a, axis = a.reshape(-1), 0
    axis %= a.ndim
    return sorting.in_order(a, axis, False, a.shape[axis])


def _searchsorted(a: DeviceArray, v: Any, side: str = "left") -> DeviceArray:
    _all_on_device("searchsorted", a, v)
    return sorting.places_among(a, v, side == "right")


def _unique(
    ar: DeviceArray, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True,
) -> Any:  # fmt: skip
    if axis is not None or return_index or (equal_nan and ar.dtype.kind not in "iub"):
        raise NotOnDevice("numpy.unique: no kernel of the device sorts slices, finds different NaN, or says where")
    ordered, order = _in_order(ar)
    begins = _ones_like(ordered, np.bool_)
    assign(begins[1:], np.not_equal(ordered[1:], ordered[:-1]))
    places = indexing.places_where(begins)
    found = [ordered[places]]
    if return_inverse:
        inverse = empty((1, ar.size, 1, 1), np.int64)
        groups: Any = reductions.cumsum(begins, 0) - 1
        indexing.overwrite(inverse, order.reshape(1, -1, 1), groups.reshape(inverse.shape), once=True)
        found.append(inverse.reshape(ar.shape))
    if return_counts:
        ends = _joined([places[1:], to_device(np.array([ar.size]))]) if ar.size else places
        found.append(ends - places)
    return tuple(found) if len(found) > 1 else found[0]


def _isin(element: Any, test_elements: Any, *, invert: bool = False) -> Any:
    element, test_elements = [x if isinstance(x, DeviceArray) else to_device(x) for x in (element, test_elements)]
    ordered = _sort(test_elements, None)
    if not ordered.size:
        return _full_like(element, invert, np.bool_)
    places: Any = sorting.places_among(ordered, element, False)
    there = ordered[np.minimum(places, ordered.size - 1)]
    return np.not_equal(there, element) if invert else np.equal(there, element)


def _bincount(x: DeviceArray, weights: Any = None, minlength: int = 0) -> DeviceArray:
    if weights is not None:
        raise NotOnDevice("numpy.bincount: no kernel of the device takes weights")
    size = int(reductions.max(x, (0,))) + 1 if x.size else 0
    counts = zeros((max(size, minlength),), np.int64)
    indexing.index_add_flat(counts, x, _ones_like(x, np.int64))
    return counts


# --- Positions -------------------------------------------------------------------------------------------------------


def _nonzero(a: DeviceArray) -> tuple[DeviceArray, ...]:
    if not a.ndim:
        raise ValueError("nonzero: got an array without dimensions")
    return _unravel_index(_flatnonzero(a), a.shape)


def _flatnonzero(a: DeviceArray) -> DeviceArray:
    mask: Any = a if a.dtype == np.bool_ else np.not_equal(a, 0)
    return indexing.places_where(mask)


def _argwhere(a: DeviceArray) -> DeviceArray:
    if not a.ndim:
        return empty((int(bool(a)), 0), np.int64)
    return _stacked(_nonzero(a), 1)


def _unravel_index(indices: DeviceArray, shape: Shape) -> tuple[DeviceArray, ...]:
    places: list[Any] = []
    left: Any = indices
    for size in reversed(shape[1:]):
        places.append(left % max(size, 1))
        left = left // max(size, 1)
    return (left, *reversed(places)) if shape else ()


def _running(name: str) -> Callable[..., DeviceArray]:
    def folded(a: DeviceArray, axis: int | None = None, dtype: Any = None) -> DeviceArray:
        if axis is None:
            a, axis = a.reshape(-1), 0
        a = a if dtype is None or np.dtype(dtype).kind == "i" else a.astype(dtype, copy=False)
        folds = reductions.running(name, a, axis % a.ndim)
        return folds if dtype is None else folds.astype(dtype, copy=False)

    return folded


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: _on_view(function) for function in _VIEWING},
    np.may_share_memory: may_share_memory, np.copyto: _copyto, np.where: _where, np.round: np.rint,
    np.empty_like: _empty_like, np.zeros_like: _zeros_like, np.ones_like: _ones_like, np.full_like: _full_like,
    np.concatenate: _joined, np.stack: _stacked, np.roll: _rolled,
    np.tril: _triangle(keep_lower=True), np.triu: _triangle(keep_lower=False),
    np.take: _take, np.take_along_axis: _take_along_axis, np.put_along_axis: _put_along_axis,
    np.argsort: _argsort, np.sort: _sort, np.searchsorted: _searchsorted,
    np.unique: _unique, np.isin: _isin, np.bincount: _bincount,
    np.nonzero: _nonzero, np.flatnonzero: _flatnonzero, np.argwhere: _argwhere, np.unravel_index: _unravel_index,
    np.cumsum: _running("sum"), np.cumprod: _running("prod"), np.count_nonzero: _count_nonzero,
    **{getattr(np, name): _fold(name) for name in ("sum", "prod", "mean", "max", "min", "any", "all")},
    **{getattr(np, name): _place(name) for name in ("argmax", "argmin")},
}  # fmt: skip

# The universal functions that are rows of the elementwise table, with the names of the rows.
_ROWS_OF: dict[Any, str] = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "div", np.floor_divide: "floor_divide",
    np.remainder: "remainder", np.power: "pow", np.negative: "neg", np.absolute: "abs", np.square: "square",
    np.sqrt: "sqrt", np.exp: "exp", np.log: "log", np.maximum: "maximum", np.minimum: "minimum", np.equal: "eq",
    np.not_equal: "ne", np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge",
    np.floor: "floor", np.ceil: "ceil", np.rint: "round", np.log1p: "log1p", np.tan: "tan",
    np.isnan: "isnan", np.isinf: "isinf", np.isfinite: "isfinite", np.signbit: "signbit",
    np.bitwise_and: "bitwise_and", np.bitwise_or: "bitwise_or", np.bitwise_xor: "bitwise_xor",
    np.invert: "bitwise_not", np.left_shift: "bitwise_left_shift", np.right_shift: "bitwise_right_shift",
    np.logical_and: "logical_and", np.logical_or: "logical_or", np.logical_xor: "logical_xor",
    np.logical_not: "logical_not",
}  # fmt: skip
_LOGIC = {
    **{name: Row(name, formula, {}, "same") for name, formula in BITWISE.items()},
    **{name: Row(name, formula, {}, "bool") for name, formula in LOGICAL.items()},
}


def call_ufunc(ufunc: np.ufunc, method: str, *operands: Any, out: Any = None, **options: Any) -> Any:
    """Call a universal function, or its method `method`, and return the result. Raises NotOnDevice without a kernel."""
    if method == "at" and ufunc in reductions.FOLD_OF_UFUNC:
        a, key, values = operands
        _all_on_device(f"{ufunc.__name__}.at", a)
        return advanced_indexing.fold(a, key, values, reductions.FOLD_OF_UFUNC[ufunc])
    if method == "accumulate" and ufunc in (np.maximum, np.minimum):
        (a,) = operands
        return reductions.running(reductions.FOLD_OF_UFUNC[ufunc], a, options.get("axis", 0) % a.ndim)
    if method != "__call__":
        raise NotOnDevice(f"numpy.{ufunc.__name__}.{method}: no kernel of the device does this")
    (target,) = out if isinstance(out, tuple) else (out,)
    name = _ROWS_OF.get(ufunc, "")
    found = ROWS.get(name) or _LOGIC.get(name)
    if found is None or options or isinstance(target, np.ndarray):
        raise NotOnDevice(f"numpy.{ufunc.__name__}: no kernel of the device does this")
    dtype = _common_dtype(operands)
    if found.result == "float" and dtype.kind in "biu":
        dtype = np.dtype(np.float64)  # as in NumPy
    given = [x.astype(dtype, copy=False) if isinstance(x, DeviceArray) else x for x in _on_device(*operands)]
    result = elementwise(found.forward, name, given, np.dtype(bool) if found.result == "bool" else dtype)
    if target is None:
        return result
    assign(target, result)
    return target


def _common_dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    return np.result_type(*[x.dtype if isinstance(x, DeviceArray) else x for x in operands])


def _on_device(*operands: Any) -> list[Any]:
    """Return the operands: host arrays are copied to the device, Python's numbers are converted to NumPy's."""
    dtype = _common_dtype(operands)
    return [
        x if isinstance(x, DeviceArray) else to_device(x) if isinstance(x, np.ndarray) and x.ndim else
        np.asarray(x).astype(dtype)[()] for x in operands
    ]  # fmt: skip
