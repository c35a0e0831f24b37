"""Rows and elements chosen by integer index on a device, and sums back into them.

An index outside its dimension cannot be refused without waiting for the device: nothing is read or added there, and
what was to be read is NaN, or 0 in dtypes without one. Sums have a fixed order, so results do not depend on the device:
indices are sorted, and one thread adds up what goes to one element, a part of a fixed length at a time.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.array import empty, zeros
from spillgrad_kernels.cuda.elementwise import contiguous, converted, copy
from spillgrad_kernels.cuda.index_sums import (
    PART_VALUES,
    add_rows_at,
    adding_columns,
    checked_index,
    dense_as,
    summed_in,
)
from spillgrad_kernels.cuda.jit.compile import Kernel, blocks_for, cuda, device
from spillgrad_kernels.cuda.pointers import HALF, loaders, quotient, storers, widest
from spillgrad_kernels.cuda.reductions import cumsum
from spillgrad_kernels.cuda.sorting import in_order
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables.indexing import reachable_part, require_source

# Columns from which on a thread for each is enough to do; where there are fewer, what goes to an element is sorted.
_COLUMNS = 1 << 14
_WORD = 8  # bytes


@functools.cache
def _mover(nbytes: int) -> tuple[Callable[[int, int], None], Callable[[int, int], None]]:
    """Return what copies so many bytes from one address to another, and what fills them with a pattern's bits."""
    lanes = max(1, nbytes // _WORD)
    name = f"int{8 * nbytes // lanes}"
    load, store, number = loaders[name, lanes], storers[name, lanes], getattr(np, name)

    if lanes == 1:

        @device
        def move(to: int, source: int) -> None:
            store(to, load(source))

        @device
        def mark(to: int, pattern: int) -> None:
            store(to, number(pattern))

    else:

        @device
        def move(to: int, source: int) -> None:
            first, second = load(source)
            store(to, first, second)

        @device
        def mark(to: int, pattern: int) -> None:
            store(to, number(pattern), number(pattern))

    return move, mark


def _pattern(dtype: np.dtype[Any], nbytes: int) -> int:
    """Return the bits, of eight bytes at most, that stand for what was not read."""
    nothing = np.full(_WORD, np.nan if dtype.kind == "f" or dtype.name in HALF else 0, np.float32).astype(dtype)
    return int.from_bytes(nothing.tobytes()[: min(nbytes, _WORD)], "little")


@functools.cache
def choosing(nbytes: int, index: str) -> Kernel:
    """Return the kernel that copies pieces of so many bytes from where an index of that dtype says.

    Of (outer, n, inner) pieces it takes (outer, span / inner, inner); each index stands for `width` of them.
    """
    move, mark = _mover(nbytes)
    load, index_bytes = loaders[index, 1], np.dtype(index).itemsize

    def choose(
        count: int, span: int, n: int, inner: int, width: int, a: int, chosen: int, out: int, pattern: int
    ) -> None:  # fmt: skip
        turn = cuda.grid(1)
        while turn < count:
            o = quotient(turn, span)
            c = turn - quotient(turn, inner) * inner
            at = np.int64(load(chosen + quotient(turn, width) * index_bytes))
            if 0 <= at < n:
                move(out + turn * nbytes, a + ((o * n + at) * inner + c) * nbytes)
            else:
                mark(out + turn * nbytes, pattern)
            turn += cuda.gridsize(1)

    choose.__name__ = f"choose_{nbytes}_by_{index}"
    return Kernel(choose, [types.int64] * 9)


@functools.cache
def _counting() -> Kernel:
    """Return the kernel that writes the integers from 0 up to a count."""
    store = storers["int64", 1]

    def count_up(count: int, out: int) -> None:
        turn = cuda.grid(1)
        while turn < count:
            store(out + turn * _WORD, turn)
            turn += cuda.gridsize(1)

    return Kernel(count_up, [types.int64] * 2)


def arange(count: int) -> DeviceArray:
    """Return the integers from 0 up to a count."""
    out = empty((count,), np.int64)
    if count:
        kernel = _counting()
        kernel.launch(blocks_for(count, kernel.threads), count, out.address)
    return out


@functools.cache
def overwriting(nbytes: int, index: str) -> Kernel:
    """Return the kernel that copies pieces of so many bytes to where an index of (outer, length, inner) in order says.

    Of (outer, n, inner) places, each `width` pieces; `positions` says where along `length` an index's pieces are. What
    names a place last writes it; without positions, address 0, no place has two names.
    """
    move, _ = _mover(nbytes)
    load, index_bytes, load_word = loaders[index, 1], np.dtype(index).itemsize, loaders["int64", 1]

    def overwrite(
        count: int, length: int, n: int, inner: int, width: int, chosen: int, positions: int, values: int, out: int
    ) -> None:
        turn = cuda.grid(1)
        while turn < count:
            i = quotient(turn, width)
            piece = turn - i * width
            o = quotient(i, length * inner)
            j = quotient(i, inner) - o * length
            c = i - (o * length + j) * inner
            own = load(chosen + i * index_bytes)
            at = np.int64(own)
            is_last = j + 1 == length or positions == 0 or load(chosen + (i + inner) * index_bytes) != own
            if 0 <= at < n and is_last:
                source = i if positions == 0 else (o * length + load_word(positions + i * _WORD)) * inner + c
                to = (o * n + at) * inner + c
                move(out + (to * width + piece) * nbytes, values + (source * width + piece) * nbytes)
            turn += cuda.gridsize(1)

    overwrite.__name__ = f"overwrite_{nbytes}_by_{index}"
    return Kernel(overwrite, [types.int64] * 9)


@functools.cache
def _listing() -> Kernel:
    """Return the kernel that writes the places of true bytes, of which `counts` has how many there are up to each."""
    load, load_word, store = loaders["uint8", 1], loaders["int64", 1], storers["int64", 1]

    def list_places(count: int, mask: int, counts: int, out: int) -> None:
        turn = cuda.grid(1)
        while turn < count:
            if load(mask + turn) != 0:
                store(out + (load_word(counts + turn * _WORD) - 1) * _WORD, turn)
            turn += cuda.gridsize(1)

    return Kernel(list_places, [types.int64] * 4)


def places_where(mask: DeviceArray) -> DeviceArray:
    """Return where a mask of bool holds, as positions in its flattened elements; waits to learn how many there are."""
    mask = contiguous(mask).reshape(mask.size)
    if not mask.size:
        return empty((0,), np.int64)
    counts = cumsum(mask, 0)
    out = empty((int(counts[-1]),), np.int64)
    if out.size:
        kernel = _listing()
        blocks = blocks_for(mask.size, kernel.threads)
        kernel.launch(blocks, mask.size, mask.address, counts.address, out.address)
    return out


def _choose(a: DeviceArray, index: DeviceArray, out: DeviceArray, span: int, n: int, inner: int, width: int) -> None:
    """Run the kernel that fills `out`; `span`, `inner` and `width` are in elements."""
    size = a.dtype.itemsize
    lanes = widest(size, a.address, width * size)
    kernel = choosing(lanes * size, index.dtype.name)
    count = out.size // lanes
    kernel.launch(
        blocks_for(count, kernel.threads), count, span // lanes, n, inner // lanes, width // lanes, a.address,
        index.address, out.address, _pattern(a.dtype, lanes * size),
    )  # fmt: skip


def embedding(weight: DeviceArray, index: DeviceArray) -> DeviceArray:
    """Return the rows of `weight` at `index`; NaN for an index outside [0, V), or 0 where the dtype has no NaN.

    Shapes: weight (V, D), index any, result index.shape + (D,).
    """
    rows, width = weight.shape
    index = checked_index("embedding", index)
    out = empty((*index.shape, width), weight.dtype)
    if out.size:
        _choose(contiguous(weight), index, out, out.size, rows, width, width)
    return out


def embedding_backward(grad: DeviceArray, index: DeviceArray, rows: int) -> DeviceArray:
    """Return the gradient of `embedding` by its weight of `rows` rows; an index outside [0, rows) adds nothing.

    Shapes: grad index.shape + (D,), result (rows, D). Raises ValueError for shapes that do not fit.
    """
    width = grad.shape[-1]
    out = zeros((rows, width), grad.dtype)
    add_rows_at("embedding_backward", out, index, grad, 1, rows, width)
    return out


def index_add(a: DeviceArray, index: DeviceArray, values: DeviceArray) -> DeviceArray:
    """Return the rows of `a` plus the rows of `values` at `index`; repeated indices add up.

    Shapes: a (V, D), index (n,), values (n, D), result (V, D). An index outside [0, V) adds nothing.
    Raises ValueError for shapes that do not fit.
    """
    out, (rows, width) = copy(a), a.shape
    add_rows_at("index_add", out, index, values, 1, rows, width)
    return out


def index_add_flat(out: DeviceArray, index: DeviceArray, values: DeviceArray) -> None:
    """Add `values` to the elements of the flat `out` at `index`, in place; repeated indices add up.

    Shapes: out (size,) contiguous, index and values any, of equal size. An index outside [0, size) adds nothing.
    Raises ValueError for an `out` that is not contiguous, and for shapes that do not fit.
    """
    if contiguous(out) is not out:
        raise ValueError(f"index_add_flat: got out with strides {out.strides}; it must be contiguous; copy it first")
    add_rows_at("index_add_flat", out, index, values, 1, out.size, 1)


def spread(self: DeviceArray, dim: int, index: DeviceArray, size: int) -> DeviceArray:
    """Return zeros of a size along `dim` with elements at `index`, where no place is named twice.

    Shapes: self and index alike, and the result but for `dim`. What an index outside [0, size) names is left out.
    """
    outer, length, inner = _sizes_around(dim, index.shape)
    out = zeros((*index.shape[:dim], size, *index.shape[dim + 1 :]), self.dtype)
    places, values = index.reshape(outer, length, inner), self.reshape(outer, length, inner, 1)
    overwrite(out.reshape(outer, size, inner, 1), places, values, once=True)
    return out


def fold_rows(out: DeviceArray, index: DeviceArray, values: DeviceArray, rule: str) -> None:
    """Fold the rows of `values` into those of `out` at `index`, in place, by the rule of a reduction.

    Shapes: out (V, D) without gaps, index (n,), values (n, D). An index outside [0, V) changes nothing.
    """
    if out.dtype == np.bool_:
        out, values = out.view(np.uint8), converted(values, np.dtype(np.bool_)).view(np.uint8)
        rule = "max" if rule == "sum" else rule
    rows, width = out.shape
    add_rows_at("fold_rows", out, index, values, 1, rows, width, rule)


def overwrite(out: DeviceArray, index: DeviceArray, values: DeviceArray, once: bool = False) -> None:
    """Write values to `out` at `index` along its second dimension, in place; where an index is twice, the last stays.

    Shapes: out (outer, n, inner, width) without gaps, index (outer, length, inner), values (outer, length, inner,
    width). `once` says that no index is there twice. An index outside [0, n) writes nothing.
    """
    _, n, inner, width = out.shape
    if not values.size or not out.size:
        return
    length, positions = index.shape[1], 0
    chosen = checked_index("overwrite", index)
    if not once:
        chosen, order = in_order(chosen, 1, False, length)
        positions = order.address
    values = dense_as(out.dtype, values)
    size = out.dtype.itemsize
    lanes = widest(size, out.address, values.address, width * size)
    kernel = overwriting(lanes * size, chosen.dtype.name)
    count = values.size // lanes
    kernel.launch(
        blocks_for(count, kernel.threads), count, length, n, inner, width // lanes, chosen.address, positions,
        values.address, out.address,
    )  # fmt: skip


def _sizes_around(axis: int, shape: Shape) -> tuple[int, int, int]:
    """Return the shape as (outer, n, inner) with `axis` in the middle."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def gather(a: DeviceArray, axis: int, index: DeviceArray) -> DeviceArray:
    """Return the elements of `a` at `index` along `axis`, at the index's own position in all other dimensions.

    Shapes: index as `a`, smaller or equal except along `axis`; result as index. Where an index is outside the dimension
    the result is NaN, or 0 where the dtype has no NaN. Raises ValueError for shapes that do not fit.
    """
    reachable = reachable_part("gather", a, axis, index.shape)
    index = checked_index("gather", index)
    out = empty(index.shape, a.dtype)
    if out.size:
        _, length, inner = _sizes_around(axis, index.shape)
        _choose(contiguous(reachable), index, out, length * inner, a.shape[axis], inner, 1)
    return out


def scatter_add(a: DeviceArray, axis: int, index: DeviceArray, source: DeviceArray) -> DeviceArray:
    """Return `a` plus `source` added at `index` along `axis`, at the index's own position in all other dimensions.

    Shapes: index as `a`, smaller or equal except along `axis`; source at least as large as index, the rest of it is not
    used. An index outside the dimension adds nothing. Raises ValueError for shapes that do not fit.
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
        sums = dense_as(summed_in(sums.dtype), sums)
        used = dense_as(sums.dtype, used)
        kernel = adding_columns(sums.dtype, index.dtype.name)
        columns, length = outer * inner, index.shape[axis]
        blocks = blocks_for(columns, kernel.threads)
        kernel.launch(blocks, columns, length, n, inner, sums.address, index.address, used.address)
    if sums is not part:
        copy(sums, out=part)
    return out
