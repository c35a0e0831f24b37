"""Read, overwrite and add to the rows and elements that an integer index selects, on a device.

Unlike on the CPU, an index outside its dimension raises no error: to check indices, the host would have to wait for the
device. Such an index reads NaN, or 0 if the dtype has no NaN, and writes nothing. Functions raise ValueError for values
that do not fit the index. The order of sums is documented in `index_sums`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import empty, table, zeros
from spillgrad_kernels.cuda.elementwise import contiguous, converted, copy
from spillgrad_kernels.cuda.index_sums import PART_VALUES, add_rows_at, adding_columns, checked_index
from spillgrad_kernels.cuda.jit.compile import Kernel, device, for_each_turn
from spillgrad_kernels.cuda.pointers import (
    ACCESS_BYTES,
    HALF,
    WORD_BYTES,
    computing_dtype,
    lane_loader,
    loaders,
    quotient,
    storers,
    widest,
)
from spillgrad_kernels.cuda.reductions import cumsum
from spillgrad_kernels.cuda.sorting import in_order
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables.indexing import reachable_part, require_source

# With at least this many columns, one thread per column uses the device well. With fewer columns, the index is sorted.
_COLUMNS = 1 << 14

_load_word, _load_byte, _store_word = loaders["int64", 1], loaders["uint8", 1], storers["int64", 1]


@functools.cache
def _mover(nbytes: int) -> Callable[..., None]:
    """Return the device function move(to, source), which copies `nbytes` bytes."""
    lanes = max(1, nbytes // WORD_BYTES)
    name = f"int{8 * nbytes // lanes}"
    load, store = lane_loader(name, lanes), storers[name, lanes]
    return device(lambda to, source: store(to, *load(source)))


def _nothing(dtype: np.dtype[Any]) -> DeviceArray:
    """Return 16 bytes of elements: each is the value, NaN or 0, that an index outside its dimension reads."""
    value = np.nan if dtype.kind == "f" or dtype.name in HALF else 0
    return table(np.full(ACCESS_BYTES // dtype.itemsize, value, dtype).tobytes())


@functools.cache
def choosing(nbytes: int, index: str) -> Kernel:
    """Return the kernel that reads the pieces, of `nbytes` bytes, that an index of the dtype `index` selects.

    Shapes, in pieces: a (outer, n, inner), out (outer, span / inner, inner). Each element of the index selects `width`
    adjacent pieces. An index outside its dimension reads the piece at the address `nothing`.
    """
    move = _mover(nbytes)
    load, index_bytes = loaders[index, 1], np.dtype(index).itemsize

    def choose(
        turn: int, span: int, n: int, inner: int, width: int, a: int, chosen: int, out: int, nothing: int
    ) -> None:
        o = quotient(turn, span)
        c = turn - quotient(turn, inner) * inner
        at = np.int64(load(chosen + quotient(turn, width) * index_bytes))
        move(out + turn * nbytes, a + ((o * n + at) * inner + c) * nbytes if 0 <= at < n else nothing)

    return Kernel(for_each_turn(choose), f"choose_{nbytes}_by_{index}")


@Kernel
@for_each_turn
def count_up(turn: int, out: int) -> None:
    """Write the number `turn` to element number `turn` of the array at address `out`."""
    _store_word(out + turn * WORD_BYTES, turn)


def arange(count: int) -> DeviceArray:
    """Return the integers 0 to count - 1."""
    out = empty((count,), np.int64)
    if count:
        count_up.run(count, out.address)
    return out


@functools.cache
def overwriting(nbytes: int, index: str) -> Kernel:
    """Return the kernel that writes pieces of `nbytes` bytes to the places that a sorted index selects.

    Shapes: index `chosen` (outer, length, inner), `out` (outer, n, inner, width) in pieces. `positions` is the address
    of an array of the shape of the index: the position along `length` that each index had before the sort. Of equal
    indices, the last one writes. If `positions` is 0, the index was not sorted, and no two indices are equal.
    """
    move = _mover(nbytes)
    load, index_bytes = loaders[index, 1], np.dtype(index).itemsize

    def overwrite(
        turn: int, length: int, n: int, inner: int, width: int, chosen: int, positions: int, values: int, out: int
    ) -> None:
        i = quotient(turn, width)
        piece = turn - i * width
        o = quotient(i, length * inner)
        j = quotient(i, inner) - o * length
        c = i - (o * length + j) * inner
        own = load(chosen + i * index_bytes)
        at = np.int64(own)
        is_last = j + 1 == length or positions == 0 or load(chosen + (i + inner) * index_bytes) != own
        if 0 <= at < n and is_last:
            source = i if positions == 0 else (o * length + _load_word(positions + i * WORD_BYTES)) * inner + c
            to = (o * n + at) * inner + c
            move(out + (to * width + piece) * nbytes, values + (source * width + piece) * nbytes)

    return Kernel(for_each_turn(overwrite), f"overwrite_{nbytes}_by_{index}")


@Kernel
@for_each_turn
def list_places(turn: int, mask: int, counts: int, out: int) -> None:
    """List the positions of True in the mask at address `mask`. `counts` is the address of running counts of True."""
    if _load_byte(mask + turn) != 0:
        _store_word(out + (_load_word(counts + turn * WORD_BYTES) - 1) * WORD_BYTES, turn)


def places_where(mask: DeviceArray) -> DeviceArray:
    """Return the positions of True in the flattened mask. Waits until the device has counted the positions."""
    mask = contiguous(mask).reshape(mask.size)
    if not mask.size:
        return empty((0,), np.int64)
    counts = cumsum(mask, 0)
    out = empty((int(counts[-1]),), np.int64)
    if out.size:
        list_places.run(mask.size, mask.address, counts.address, out.address)
    return out


def _choose(a: DeviceArray, index: DeviceArray, out: DeviceArray, span: int, n: int, inner: int, width: int) -> None:
    """Fill `out` with the elements of `a` at an index (see `choosing`). `span`, `inner` and `width` count elements."""
    size = a.dtype.itemsize
    lanes = widest(size, a.address, width * size)
    choosing(lanes * size, index.dtype.name).run(
        out.size // lanes, span // lanes, n, inner // lanes, width // lanes, a.address, index.address, out.address,
        _nothing(a.dtype).address,
    )  # fmt: skip


def embedding(weight: DeviceArray, index: DeviceArray) -> DeviceArray:
    """Return the rows of `weight` at `index`."""
    rows, width = weight.shape
    index = checked_index("embedding", index)
    out = empty((*index.shape, width), weight.dtype)
    if out.size:
        _choose(contiguous(weight), index, out, out.size, rows, width, width)
    return out


def embedding_backward(grad: DeviceArray, index: DeviceArray, rows: int) -> DeviceArray:
    """Return the gradient of `embedding` by its weight, which has `rows` rows."""
    width = grad.shape[-1]
    out = zeros((rows, width), grad.dtype)
    add_rows_at("embedding_backward", out, index, grad, 1, rows, width)
    return out


def index_add(a: DeviceArray, index: DeviceArray, values: DeviceArray) -> DeviceArray:
    """Return a copy of `a` in which row i of `values` is added to row index[i]; repeated indices add up."""
    out, (rows, width) = copy(a), a.shape
    add_rows_at("index_add", out, index, values, 1, rows, width)
    return out


def index_add_flat(out: DeviceArray, index: DeviceArray, values: DeviceArray) -> None:
    """Add `values` to the elements of the flat `out` at `index`, in place; repeated indices add up."""
    if contiguous(out) is not out:
        raise ValueError(f"index_add_flat: got out with strides {out.strides}; it must be contiguous; copy it first")
    add_rows_at("index_add_flat", out, index, values, 1, out.size, 1)


def spread(self: DeviceArray, dim: int, index: DeviceArray, size: int) -> DeviceArray:
    """Return zeros with the elements of `self` written at `index` along `dim`; no two indices may be equal.

    Shapes: index as `self`; result as `self`, but with `size` along `dim`. An index outside [0, size) writes nothing.
    """
    outer, length, inner = _sizes_around(dim, index.shape)
    out = zeros((*index.shape[:dim], size, *index.shape[dim + 1 :]), self.dtype)
    places, values = index.reshape(outer, length, inner), self.reshape(outer, length, inner, 1)
    overwrite(out.reshape(outer, size, inner, 1), places, values, once=True)
    return out


def fold_rows(out: DeviceArray, index: DeviceArray, values: DeviceArray, rule: str) -> None:
    """Combine the rows of `out` at `index` with the rows of `values`, in place, by the reduction `rule`.

    Shapes: out (V, D) and dense, index (n,), values (n, D). An index outside [0, V) changes nothing.
    """
    if out.dtype == np.bool_:
        out, values = out.view(np.uint8), converted(values, np.dtype(np.bool_)).view(np.uint8)
        rule = "max" if rule == "sum" else rule
    rows, width = out.shape
    add_rows_at("fold_rows", out, index, values, 1, rows, width, rule)


def overwrite(out: DeviceArray, index: DeviceArray, values: DeviceArray, once: bool = False) -> None:
    """Write `values` at `index` along the second dimension of `out`, in place. Of equal indices, the last one writes.

    `once` says that no two indices are equal. An index outside [0, n) writes nothing.
    Shapes: out (outer, n, inner, width) and dense, index (outer, length, inner), values (outer, length, inner, width).
    """
    _, n, inner, width = out.shape
    if not values.size or not out.size:
        return
    length, positions = index.shape[1], 0
    chosen = checked_index("overwrite", index)
    if not once:
        chosen, order = in_order(chosen, 1, False, length)
        positions = order.address
    values = contiguous(converted(values, out.dtype))
    size = out.dtype.itemsize
    lanes = widest(size, out.address, values.address, width * size)
    overwriting(lanes * size, chosen.dtype.name).run(
        values.size // lanes, length, n, inner, width // lanes, chosen.address, positions, values.address, out.address
    )


def _sizes_around(axis: int, shape: Shape) -> tuple[int, int, int]:
    """Return `shape` as (outer, n, inner), where n is the size of dimension `axis`."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def gather(a: DeviceArray, axis: int, index: DeviceArray) -> DeviceArray:
    """Return, for each element of `index`, the element of `a` at that index along `axis`.

    In all other dimensions, the element of `a` has the position of the element of `index`.
    """
    reachable = reachable_part("gather", a, axis, index.shape)
    index = checked_index("gather", index)
    out = empty(index.shape, a.dtype)
    if out.size:
        _, length, inner = _sizes_around(axis, index.shape)
        _choose(contiguous(reachable), index, out, length * inner, a.shape[axis], inner, 1)
    return out


def scatter_add(a: DeviceArray, axis: int, index: DeviceArray, source: DeviceArray) -> DeviceArray:
    """Return a copy of `a` to which each element of `source` with an index is added, at this index along `axis`.

    In all other dimensions, an element keeps its position.
    """
    reachable_part("scatter_add", a, axis, index.shape)
    require_source(index.shape, source.shape)
    index = checked_index("scatter_add", index)
    out = copy(a)
    if not index.size:
        return out
    part = reachable_part("scatter_add", out, axis, index.shape)
    used = source[tuple(slice(size) for size in index.shape)]
    outer, n, inner = _sizes_around(axis, part.shape)
    if inner > 1 and index.shape[axis] > PART_VALUES and outer * inner < _COLUMNS:
        last = a.ndim - 1
        turned, by, added = (x.swapaxes(axis, last) for x in (part, index, used))
        copy(scatter_add(turned, last, by, added).swapaxes(axis, last), out=part)
        return out
    sums = contiguous(part)
    if inner == 1:
        add_rows_at("scatter_add", sums, index, used, outer, n, 1)
    else:
        sums = converted(sums, computing_dtype(sums.dtype))
        used = contiguous(converted(used, sums.dtype))
        adding_columns(sums.dtype, index.dtype.name).run(
            outer * inner, index.shape[axis], n, inner, sums.address, index.address, used.address
        )
    if sums is not part:
        copy(sums, out=part)
    return out
