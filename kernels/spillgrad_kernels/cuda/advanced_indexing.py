"""Read, overwrite and combine the elements that index arrays select from device arrays, by NumPy's rules.

An index outside its dimension reads NaN, or 0 if the dtype has no NaN, and writes nothing. If the index has a mask, the
host waits for the device to count the True elements, except if a single value is written to the elements of one mask.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cuda.array import empty, to_device
from spillgrad_kernels.cuda.elementwise import assign, contiguous, copy, elementwise
from spillgrad_kernels.cuda.indexing import embedding, fold_rows, overwrite, places_where
from spillgrad_kernels.device_array import ARRAYS, DeviceArray, may_share_memory
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.scalar_math import where


class _Chosen(NamedTuple):
    """The rows that an index selects from `view`.

    A row spans the dimensions that no index array indexes; its shape is `rest`. `place` holds the number of each
    selected row, from 0 to `rows` - 1, or -1 for an index outside its dimension. In the result, the dimensions of
    `place` come before dimension `at` of a row. `once` says that no row is selected twice.
    """

    view: DeviceArray
    place: DeviceArray
    rows: int
    rest: Shape
    at: int
    once: bool

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return (*self.rest[: self.at], *self.place.shape, *self.rest[self.at :])

    def as_result(self, picked: DeviceArray) -> DeviceArray:
        """Return a view of `picked`, of shape (*place.shape, *rest), with its dimensions in the order of the result."""
        lead = self.place.ndim
        others = range(lead, picked.ndim)
        return picked.transpose([*others[: self.at], *range(lead), *others[self.at :]]) if self.at else picked


def pick(a: DeviceArray, key: Any) -> DeviceArray:
    """Return a copy of the elements of `a` at the index `key`, which contains arrays of integers or bool."""
    chosen = _choose(a, key)
    table = chosen.view.reshape(chosen.rows, math.prod(chosen.rest))
    picked = embedding(table, chosen.place.reshape(-1))
    return chosen.as_result(picked.reshape(*chosen.place.shape, *chosen.rest))


def put(a: DeviceArray, key: Any, value: Any) -> None:
    """Overwrite the elements of `a` at the index `key`, which contains arrays, with the broadcast `value`, in place.

    If the index selects an element twice, the last value stays. Raises ValueError if the value does not broadcast.
    """
    value = value if isinstance(value, ARRAYS) else np.asarray(value)
    if not value.ndim and a.dtype.kind != "c" and value.dtype.kind != "c" and _put_where(a, key, value):
        return
    chosen = _choose(a, key)
    values = _values(chosen, value, a.dtype)
    table = contiguous(chosen.view)
    shape = (1, chosen.rows, 1, math.prod(chosen.rest))
    overwrite(
        table.reshape(shape), chosen.place.reshape(1, -1, 1),
        values.reshape(1, chosen.place.size, 1, shape[3]), chosen.once,
    )  # fmt: skip
    if table is not chosen.view:
        assign(chosen.view, table)


def fold(a: DeviceArray, key: Any, value: Any, rule: str) -> None:
    """Combine the elements of `a` at the index `key`, which contains arrays, with the broadcast `value`, in place.

    `rule` names the reduction that combines an element with its values, in the values' order. Raises ValueError if
    `value` does not broadcast.
    """
    chosen = _choose(a, key)
    values = _values(chosen, value if isinstance(value, ARRAYS) else np.asarray(value), a.dtype)
    table, width = contiguous(chosen.view), math.prod(chosen.rest)
    place = chosen.place.reshape(-1)
    fold_rows(table.reshape(chosen.rows, width), place, values.reshape(place.size, width), rule)
    if table is not chosen.view:
        assign(chosen.view, table)


def _put_where(a: DeviceArray, key: Any, value: Any) -> bool:
    """Write `value`, a single number, to the elements of `a` where the mask in `key` is True, in place; return True.

    If the arrays in `key` are not exactly one mask, do nothing and return False.
    """
    parts = _complete(key if isinstance(key, tuple) else (key,), a.ndim)
    masks = [part for part in parts if _is_mask(part)]
    if len(masks) != 1 or any([isinstance(part, ARRAYS) for part in parts if part is not masks[0]]):
        return False
    (mask,) = map(_on_device, masks)
    view, places = _sliced(a, parts)
    _require_shape(mask, view.shape, places)
    mask = mask.reshape(*mask.shape, *[1] * (view.ndim - (places[0] + mask.ndim)))
    if isinstance(value, DeviceArray):
        value = copy(value, a.dtype) if value.dtype != a.dtype or may_share_memory(value, view) else value
    else:
        value = value.astype(a.dtype)
    if view.size:
        elementwise(ROWS["where"].forward, "where", [mask, value, view], a.dtype, view)
    return True


def _is_mask(part: Any) -> bool:
    return isinstance(part, ARRAYS) and part.dtype == np.bool_


def _values(chosen: _Chosen, value: Any, dtype: Any) -> DeviceArray:
    """Return `value`, broadcast, as a dense array of `dtype`, with one row for each row that the index selects."""
    if isinstance(value, DeviceArray) and (value.shape, value.dtype, chosen.at) == (chosen.shape, dtype, 0):
        return copy(value) if may_share_memory(value, chosen.view) else contiguous(value)
    extra = value.ndim - len(chosen.shape)
    if extra > 0 and value.shape[:extra] == (1,) * extra:
        value = value.reshape(value.shape[extra:])
    values = empty((*chosen.place.shape, *chosen.rest), dtype)
    assign(chosen.as_result(values), value)
    return values


def _complete(parts: tuple[Any, ...], ndim: int) -> list[Any]:
    """Return `parts` with full slices added until each dimension has a part, and with integers as arrays."""
    whole = [np.asarray(part) if isinstance(part, int | np.integer) else part for part in parts]
    named = [part for part in whole if part is not None and part is not Ellipsis]
    missing = ndim - sum([part.ndim if _is_mask(part) else 1 for part in named])
    if missing < 0:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional")
    at = next((i for i, part in enumerate(whole) if part is Ellipsis), len(whole))
    whole[at : at + 1] = [slice(None)] * missing
    return whole


def _sliced(a: DeviceArray, parts: list[Any]) -> tuple[DeviceArray, list[int]]:
    """Return the view of `a` by the slices and None in `parts`, and each index array's first dimension in this view."""
    sliced: list[Any] = []
    dimensions, places = 0, []
    for part in parts:
        places.append(dimensions)
        count = part.ndim if _is_mask(part) else 1
        sliced.extend([slice(None)] * count if isinstance(part, ARRAYS) else [part])
        dimensions += count
    return a[tuple(sliced)], [place for place, part in zip(places, parts, strict=True) if isinstance(part, ARRAYS)]


def _require_shape(mask: Any, shape: Shape, places: list[int]) -> None:
    if shape[places[0] : places[0] + mask.ndim] != mask.shape:
        raise IndexError(
            f"boolean index did not match indexed array: a mask of shape {mask.shape} for dimensions of sizes "
            f"{shape[places[0] : places[0] + mask.ndim]}"
        )


def _choose(a: DeviceArray, key: Any) -> _Chosen:
    """Return the rows of `a` at the index `key`, which contains arrays. Raises IndexError if the index does not fit."""
    parts = _complete(key if isinstance(key, tuple) else (key,), a.ndim)
    view, places = _sliced(a, parts)
    numbers = [i for i, part in enumerate(parts) if isinstance(part, ARRAYS)]
    indexed: list[int] = []
    place: Any = np.int64(0)
    rows = 1
    for number, at in zip(numbers, places, strict=True):
        index = _on_device(parts[number])
        dimensions = index.ndim if _is_mask(index) else 1
        indexed.extend(range(at, at + dimensions))
        size = math.prod(view.shape[at : at + dimensions])
        if _is_mask(index):
            _require_shape(index, view.shape, [at])
            index = places_where(index)
        elif index.dtype == np.uint64:  # uint64 has no common integer dtype with int64, the dtype of sizes
            index = index.astype(np.int64)
        rows *= size
        place = elementwise(_row, "row", [place, index, np.int64(size)], np.int64)
    others = [i for i in range(view.ndim) if i not in indexed]
    order = [*indexed, *others]
    apart = numbers[-1] - numbers[0] + 1 != len(numbers)  # NumPy then puts the dimensions of `place` first
    return _Chosen(
        view if order == [*range(view.ndim)] else view.transpose(order), place, rows,
        tuple([view.shape[i] for i in others]), 0 if apart else places[0],
        len(numbers) == 1 and _is_mask(parts[numbers[0]]),
    )  # fmt: skip


def _row(place: Any, index: Any, size: Any) -> Any:
    """Extend the row number `place` by the next dimension, of size `size`: return place * size + index.

    `index` may be negative, as in NumPy. The result is -1 if `place` is -1, or if `index` is outside the dimension.
    """
    is_outside = (place < 0) | (index >= size) | (index < -size)
    return where(is_outside, -1, place * size + where(index < 0, index + size, index))


def _on_device(index: Any) -> DeviceArray:
    return index if isinstance(index, DeviceArray) else to_device(index)
