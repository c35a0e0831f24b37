"""Kernels that read the rows or elements at integer indices, and kernels that add to them.

Threads divide the columns or rows of a sum, never the indices: one thread adds up each element, in the order of the
indices. So repeated indices need no atomic operations, and results do not depend on the number of threads.
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.indexing import reachable_part, require_source
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for

# The columns of a unit of work: whole cache lines, so that two threads never write to the same line.
_BLOCK_COLUMNS = 64
# The number of positions along the indexed dimension that a unit of work gathers.
_BLOCK_POSITIONS = 256


@jit
def _take_rows(start: int, stop: int, table: Any, index: Any, out: Any) -> None:
    for i in range(start, stop):
        row, result = table[index[i]], out[i]
        for c in range(row.size):
            result[c] = row[c]


@jit
def _gather(start: int, stop: int, a: Any, index: Any, out: Any) -> None:
    positions, inner = index.shape[1], index.shape[2]
    blocks = (positions + _BLOCK_POSITIONS - 1) // _BLOCK_POSITIONS
    for unit in range(start, stop):
        o, first = unit // blocks, unit % blocks * _BLOCK_POSITIONS
        for j in range(first, min(first + _BLOCK_POSITIONS, positions)):
            for c in range(inner):
                out[o, j, c] = a[o, index[o, j, c], c]


@jit
def _scatter_add(start: int, stop: int, out: Any, index: Any, source: Any) -> None:
    positions, inner = index.shape[1], index.shape[2]
    blocks = (inner + _BLOCK_COLUMNS - 1) // _BLOCK_COLUMNS
    for unit in range(start, stop):
        o, first = unit // blocks, unit % blocks * _BLOCK_COLUMNS
        for j in range(positions):
            for c in range(first, min(first + _BLOCK_COLUMNS, inner)):
                out[o, index[o, j, c], c] += source[o, j, c]


@jit
def _add_rows(start: int, stop: int, base: Any, out: Any, index: Any, values: Any) -> None:
    # Each share searches all indices for its own rows. Searching costs less than sorting the indices.
    if base.size == 0:
        out[start:stop] = 0
    for r in range(start, min(stop, base.shape[0])):
        row, result = base[r], out[r]
        for c in range(row.size):
            result[c] = row[c]
    for i in range(index.size):
        if start <= index[i] < stop:
            total, value = out[index[i]], values[i]
            for c in range(value.size):
                total[c] += value[c]


@jit
def _add_elements(out: Any, index: Any, values: Any) -> None:
    for i in range(index.size):
        out[index[i]] += values[i]


def _checked(who: str, index: np.ndarray, size: int) -> np.ndarray:
    """Return `index` as a contiguous int64 array. Raises IndexError if an element is outside [0, `size`)."""
    index = np.asarray(index, np.int64, order="C")
    if index.size and (index.min() < 0 or index.max() >= size):
        wrong = index[(index < 0) | (index >= size)][0]
        raise IndexError(f"{who}: got index {wrong}; a dimension of size {size} takes 0 to {size - 1}")
    return index


@on_device("indexing")
def embedding(weight: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the rows of `weight` at `index`.

    Shapes: weight (V, D), index any, result index.shape + (D,). Raises IndexError for an index outside [0, V).
    """
    rows, width = weight.shape
    index = _checked("embedding", index, rows)
    out = buffers.empty((*index.shape, width), weight.dtype)
    if out.size:
        operands = np.ascontiguousarray(weight), index.reshape(-1), out.reshape(index.size, width)
        parallel_for(_take_rows, index.size, grain_of(width), *operands)
    return out


@on_device("indexing")
def embedding_backward(grad: np.ndarray, index: np.ndarray, rows: int) -> np.ndarray:
    """Return the gradient of `embedding` with respect to its weight, which has `rows` rows.

    Shapes: grad index.shape + (D,), result (rows, D). Raises IndexError for an index outside [0, rows).
    """
    out = buffers.empty((rows, grad.shape[-1]), grad.dtype)
    return _sum_rows(np.empty((0, 0), grad.dtype), _checked("embedding_backward", index, rows), grad, out)


@on_device("indexing")
def index_add(a: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a copy of `a` in which row i of `values` is added to row index[i]; repeated indices add up.

    Shapes: a (V, D), index (n,), values (n, D), result (V, D). Raises IndexError for an index outside [0, V).
    """
    out = buffers.empty(a.shape, a.dtype)
    return _sum_rows(np.ascontiguousarray(a), _checked("index_add", index, len(a)), values, out)


def _sum_rows(base: np.ndarray, index: np.ndarray, values: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Set `out` to `base`, or to 0 if `base` is empty; then add row i of `values` to row index[i], for i in order."""
    count, width = out.shape
    rows = np.ascontiguousarray(values, out.dtype).reshape(index.size, width)
    grain = grain_of(width * (count + index.size) // max(count, 1))
    parallel_for(_add_rows, count, grain, base, out, index.reshape(-1), rows)
    return out


@on_device("indexing")
def index_add_flat(out: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """Add `values` to the elements of the flat `out` at `index`, in place; repeated indices add up.

    Shapes: out (size,) contiguous, index and values any, of equal size.
    Raises IndexError for an index outside [0, size), ValueError for an `out` that is not contiguous.
    """
    if not out.flags.c_contiguous:
        raise ValueError(f"index_add_flat: got out with strides {out.strides}; it must be contiguous; copy it first")
    flat, index = out.reshape(out.size), _checked("index_add_flat", index, out.size).reshape(-1)
    _add_elements(flat, index, np.ascontiguousarray(values, out.dtype).reshape(-1))


def _around(axis: int, a: np.ndarray) -> np.ndarray:
    """Return `a`, made contiguous, as (outer, n, inner), where n is the size of dimension `axis`."""
    outer, inner = math.prod(a.shape[:axis]), math.prod(a.shape[axis + 1 :])
    return np.ascontiguousarray(a).reshape(outer, a.shape[axis], inner)


@on_device("indexing")
def gather(a: np.ndarray, axis: int, index: np.ndarray) -> np.ndarray:
    """Return, for each element of `index`, the element of `a` at that index along `axis`.

    In all other dimensions, the element of `a` is at the same position as the element of `index`.
    Shapes: index has as many dimensions as `a`, each at most as large as in `a`, except `axis`; result as index.
    Raises IndexError for an index outside the dimension, ValueError for shapes that do not fit.
    """
    reachable = reachable_part("gather", a, axis, index.shape)
    index = _checked("gather", index, a.shape[axis])
    out = buffers.empty(index.shape, a.dtype)
    if out.size:
        result = _around(axis, out)
        operands = _around(axis, reachable), _around(axis, index), result
        units = result.shape[0] * -(-result.shape[1] // _BLOCK_POSITIONS)
        parallel_for(_gather, units, grain_of(min(result.shape[1], _BLOCK_POSITIONS) * result.shape[2]), *operands)
    return out


@on_device("indexing")
def scatter_add(a: np.ndarray, axis: int, index: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return a copy of `a` to which each element of `source` is added at the index that `index` gives along `axis`.

    `index` holds, at the position of an element of `source`, the element's index along `axis`. In all other dimensions,
    the element is added at its own position.
    Shapes: index has as many dimensions as `a`, each at most as large as in `a`, except `axis`; source at least as
    large as index. Elements of source beyond the shape of index are not used.
    Raises IndexError for an index outside the dimension, ValueError for shapes that do not fit.
    """
    reachable = reachable_part("scatter_add", a, axis, index.shape)
    index = _checked("scatter_add", index, a.shape[axis])
    require_source(index.shape, source.shape)
    out = buffers.empty(a.shape, a.dtype)
    out[...] = a
    if index.size:
        sums = out if reachable.shape == a.shape else reachable.copy(order="C")
        used = source[tuple(slice(size) for size in index.shape)].astype(a.dtype, copy=False)
        totals, positions = _around(axis, sums), _around(axis, index)
        units = totals.shape[0] * -(-totals.shape[2] // _BLOCK_COLUMNS)
        work = positions.shape[1] * min(totals.shape[2], _BLOCK_COLUMNS)
        parallel_for(_scatter_add, units, grain_of(work), totals, positions, _around(axis, used))
        if sums is not out:
            out[tuple(slice(size) for size in sums.shape)] = sums
    return out
