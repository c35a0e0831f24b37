"""Elements of device arrays at index arrays, by NumPy's rules."""

from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.indexing import embedding
from spillgrad_kernels.device_array import ARRAYS, DeviceArray


def pick(a: DeviceArray, key: Any) -> DeviceArray:
    """Return a copy of the elements at an index that has arrays, of integers or bool; what is outside is not read.

    Where it is, elements are NaN, or 0 where the dtype has no NaN. A mask is read by the host, which must know how many
    elements there are.
    """
    parts = _complete(key if isinstance(key, tuple) else (key,), a.ndim)
    sliced = tuple([slice(None) if isinstance(part, ARRAYS) else part for part in parts])
    a = a[sliced]  # numbers are arrays here: only slices and new dimensions are left
    places = [i for i, part in enumerate(parts) if isinstance(part, ARRAYS)]
    order = [*places, *[i for i in range(a.ndim) if i not in places]]
    picked = _rows(a.transpose(order), [_on_device(parts[i]) for i in places])
    if places[-1] - places[0] + 1 != len(places):  # apart: their dimensions come first
        return picked
    lead = picked.ndim - (a.ndim - len(places))
    before = list(range(lead, lead + places[0]))
    return picked.transpose([*before, *range(lead), *range(lead + places[0], picked.ndim)])


def _complete(parts: tuple[Any, ...], ndim: int) -> list[Any]:
    """Return a part for each dimension, old or new: masks as the indices they stand for, numbers as arrays."""
    whole: list[Any] = []
    for part in parts:
        if isinstance(part, ARRAYS) and part.dtype == np.bool_:
            mask = part.to_host() if isinstance(part, DeviceArray) else part
            whole.extend(np.nonzero(mask))
        else:
            whole.append(np.asarray(part) if isinstance(part, int | np.integer) else part)
    missing = ndim - sum(part is not None and part is not Ellipsis for part in whole)
    if missing < 0:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional")
    at = next((i for i, part in enumerate(whole) if part is Ellipsis), len(whole))
    whole[at : at + 1] = [slice(None)] * missing
    return whole


def _on_device(index: Any) -> DeviceArray:
    return index if isinstance(index, DeviceArray) else to_device(index)


def _rows(a: DeviceArray, indices: list[DeviceArray]) -> DeviceArray:
    """Return the parts of `a` at indices of its first dimensions, which broadcast together."""
    sizes, rest = a.shape[: len(indices)], a.shape[len(indices) :]
    shape = np.broadcast_shapes(*[index.shape for index in indices])
    place: Any = None
    outside: Any = None
    for index, size in zip(indices, sizes, strict=True):
        index = index.astype(np.int64, copy=False)
        index = index + np.less(index, 0) * size
        wrong = np.less(index, 0) | np.greater_equal(index, size)
        place = index if place is None else place * size + index
        outside = wrong if outside is None else outside | wrong
    place = np.where(outside, -1, place)
    table = a.reshape(int(np.prod(sizes)), int(np.prod(rest)))
    return embedding(table, place.reshape(-1)).reshape(*shape, *rest)
