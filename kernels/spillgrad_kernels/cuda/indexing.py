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
from spillgrad_kernels.cuda.jit.compile import Kernel, blocks_for, cuda, device
from spillgrad_kernels.cuda.pointers import HALF, loaders, quotient, storers, widest
from spillgrad_kernels.cuda.reductions import RULES, cumsum
from spillgrad_kernels.cuda.sorting import in_order
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables.indexing import reachable_part, require_source

# Sorted values that one thread adds up before another goes on: a row that many indices name is shared by threads.
_PART_VALUES = 64
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


def _adder(
    dtype: np.dtype[Any], lanes: int, rule: str = "sum"
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., None]]:
    """Return load(address) of neighbours as a tuple, add(sums, address) to such a tuple, and store(address, sums).

    What adds is the rule of a reduction.
    """
    x, y = ([f"{letter}{i}" for i in range(lanes)] for letter in "xy")
    source = f"""
def load(at):
    {", ".join(x)} = load_lanes(at)
    return ({", ".join(x)},)
def add(sums, at):
    {", ".join(x)}, = sums
    {", ".join(y)} = load_lanes(at)
    return ({", ".join(f"combine({a}, {b})" for a, b in zip(x, y, strict=True))},)
def store(at, sums):
    {", ".join(x)}, = sums
    store_lanes(at, {", ".join(x)})
"""
    made: dict[str, Any] = {
        "load_lanes": loaders[dtype.name, lanes], "store_lanes": storers[dtype.name, lanes],
        "combine": RULES[rule].combine,
    }  # fmt: skip
    exec(compile(source, f"<{rule} of {lanes} of {dtype.name}>", "exec"), made)
    return device(made["load"]), device(made["add"]), device(made["store"])


def _summed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that sums are kept in until they are done."""
    return np.dtype(np.float32) if dtype.name in HALF else dtype


@functools.cache
def adding(dtype: np.dtype[Any], lanes: int, index: str, rule: str = "sum") -> Kernel:
    """Return the kernel that adds values to the rows that an index in order names, a thread for each row in each part.

    The index is (outer, length) and in order along `length`; `places` says where each one's value is. What goes to the
    row that the part before ends with is summed up in `partials`, which have a row for each part. What adds is `rule`.
    """
    load, add, store = _adder(dtype, lanes, rule)
    summed_in = _summed_in(dtype)
    _, _, store_partial = _adder(summed_in, lanes, rule)
    load_index, index_bytes = loaders[index, 1], np.dtype(index).itemsize
    load_word, nbytes, partial_bytes = loaders["int64", 1], lanes * dtype.itemsize, lanes * summed_in.itemsize

    def add_rows(
        count: int, length: int, n: int, width: int, chosen: int, places: int, values: int, out: int, partials: int
    ) -> None:
        turn = cuda.grid(1)
        while turn < count:
            first = quotient(turn, width)
            c = turn - first * width
            o = quotient(first, length)
            own = load_index(chosen + first * index_bytes)
            at = np.int64(own)
            goes_on = first > o * length and load_index(chosen + (first - 1) * index_bytes) == own
            part = quotient(first, _PART_VALUES)
            if 0 <= at < n and (not goes_on or first == part * _PART_VALUES):
                end = (part + 1) * _PART_VALUES if (part + 1) * _PART_VALUES < (o + 1) * length else (o + 1) * length
                last = first + 1
                while last < end and load_index(chosen + last * index_bytes) == own:
                    last += 1
                to = out + ((o * n + at) * width + c) * nbytes
                begun = first + 1 if goes_on else first
                source = values + (o * length * width + c) * nbytes
                sums = load(source + load_word(places + first * _WORD) * width * nbytes if goes_on else to)
                for i in range(begun, last):
                    sums = add(sums, source + load_word(places + i * _WORD) * width * nbytes)
                if goes_on:
                    store_partial(partials + (part * width + c) * partial_bytes, sums)
                else:
                    store(to, sums)
            turn += cuda.gridsize(1)

    add_rows.__name__ = f"{rule}_rows_{dtype.name}_x{lanes}_by_{index}"
    return Kernel(add_rows, [types.int64] * 9)


@functools.cache
def adding_partials(dtype: np.dtype[Any], lanes: int, index: str, rule: str = "sum") -> Kernel:
    """Return the kernel that adds to each row what parts have summed up for it, in their order."""
    load, _, store = _adder(dtype, lanes, rule)
    summed_in = _summed_in(dtype)
    _, add_partial, _ = _adder(summed_in, lanes, rule)
    load_index, index_bytes = loaders[index, 1], np.dtype(index).itemsize
    nbytes, partial_bytes = lanes * dtype.itemsize, lanes * summed_in.itemsize
    part_bytes = _PART_VALUES * index_bytes

    @device
    def continues(chosen: int, begin: int, part: int) -> bool:
        """Say whether a part, of the row from `begin` on, begins with what the one before ends with."""
        at = chosen + part * part_bytes
        return part * _PART_VALUES > begin and load_index(at) == load_index(at - index_bytes)

    def add_partials(count: int, length: int, n: int, width: int, chosen: int, out: int, partials: int) -> None:
        turn = cuda.grid(1)
        while turn < count:
            part = quotient(turn, width)
            c = turn - part * width
            o = quotient(part * _PART_VALUES, length)
            begin = o * length
            own = load_index(chosen + part * part_bytes)
            at = np.int64(own)
            # The first part that goes on with a row adds up those of all that follow.
            is_first = not continues(chosen, begin, part - 1) or load_index(chosen + (part - 1) * part_bytes) != own
            if 0 <= at < n and is_first and continues(chosen, begin, part):
                to = out + ((o * n + at) * width + c) * nbytes
                sums = load(to)
                end = quotient(begin + length + _PART_VALUES - 1, _PART_VALUES)
                while part < end and load_index(chosen + part * part_bytes) == own:
                    sums = add_partial(sums, partials + (part * width + c) * partial_bytes)
                    part += 1
                store(to, sums)
            turn += cuda.gridsize(1)

    add_partials.__name__ = f"{rule}_partials_{dtype.name}_x{lanes}_by_{index}"
    return Kernel(add_partials, [types.int64] * 7)


@functools.cache
def adding_columns(dtype: np.dtype[Any], index: str) -> Kernel:
    """Return the kernel that adds (outer, length, inner) values to (outer, n, inner) sums, a thread for each column."""
    load, store, size = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    load_index, index_bytes = loaders[index, 1], np.dtype(index).itemsize

    def add_columns(count: int, length: int, n: int, inner: int, out: int, chosen: int, values: int) -> None:
        turn = cuda.grid(1)
        while turn < count:
            o = quotient(turn, inner)
            c = turn - o * inner
            for j in range(length):
                i = (o * length + j) * inner + c
                at = np.int64(load_index(chosen + i * index_bytes))
                if 0 <= at < n:
                    to = out + ((o * n + at) * inner + c) * size
                    store(to, load(to) + load(values + i * size))
            turn += cuda.gridsize(1)

    add_columns.__name__ = f"add_columns_{dtype.name}_by_{index}"
    return Kernel(add_columns, [types.int64] * 7)


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


def _index(who: str, index: DeviceArray) -> DeviceArray:
    """Return `index` without gaps. Raises TypeError for what holds no integers."""
    if index.dtype.kind not in "iu":
        raise TypeError(f"{who}: got an index of {index.dtype}; wanted integers; convert it")
    return contiguous(index)


def _as(dtype: np.dtype[Any], a: DeviceArray) -> DeviceArray:
    """Return an array without gaps of another dtype; itself where it is one."""
    return contiguous(a) if a.dtype == dtype else copy(a, dtype)


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
    index = _index("embedding", index)
    out = empty((*index.shape, width), weight.dtype)
    if out.size:
        _choose(contiguous(weight), index, out, out.size, rows, width, width)
    return out


def _add_rows(
    who: str, out: DeviceArray, index: DeviceArray, values: DeviceArray, outer: int, n: int, width: int,
    rule: str = "sum",
) -> None:  # fmt: skip
    """Add rows of `values` to those of `out`, outer * n of a width, that an index of (outer, length) names.

    What adds is the rule of a reduction. Raises ValueError unless there is a row for every index.
    """
    index, count = _index(who, index), index.size
    if values.size != count * width:
        raise ValueError(
            f"{who}: got values of shape {values.shape} for an index of shape {index.shape}; "
            f"there must be {width} for each index"
        )
    if not count or not out.size:
        return
    values = _as(out.dtype, values)
    length = count // outer
    chosen, places = in_order(index.reshape(outer, length), 1, False, length)
    size, summed_in = out.dtype.itemsize, _summed_in(out.dtype)
    lanes = min(widest(size, out.address, values.address, width * size), widest(summed_in.itemsize))
    parts = -(-count // _PART_VALUES)
    partials = empty((parts, width), summed_in)
    width //= lanes
    kernel = adding(out.dtype, lanes, index.dtype.name, rule)
    kernel.launch(
        blocks_for(count * width, kernel.threads), count * width, length, n, width, chosen.address, places.address,
        values.address, out.address, partials.address,
    )  # fmt: skip
    if parts > 1:
        kernel = adding_partials(out.dtype, lanes, index.dtype.name, rule)
        kernel.launch(
            blocks_for(parts * width, kernel.threads), parts * width, length, n, width, chosen.address, out.address,
            partials.address,
        )  # fmt: skip


def embedding_backward(grad: DeviceArray, index: DeviceArray, rows: int) -> DeviceArray:
    """Return the gradient of `embedding` by its weight of `rows` rows; an index outside [0, rows) adds nothing.

    Shapes: grad index.shape + (D,), result (rows, D). Raises ValueError for shapes that do not fit.
    """
    width = grad.shape[-1]
    out = zeros((rows, width), grad.dtype)
    _add_rows("embedding_backward", out, index, grad, 1, rows, width)
    return out


def index_add(a: DeviceArray, index: DeviceArray, values: DeviceArray) -> DeviceArray:
    """Return the rows of `a` plus the rows of `values` at `index`; repeated indices add up.

    Shapes: a (V, D), index (n,), values (n, D), result (V, D). An index outside [0, V) adds nothing.
    Raises ValueError for shapes that do not fit.
    """
    out, (rows, width) = copy(a), a.shape
    _add_rows("index_add", out, index, values, 1, rows, width)
    return out


def index_add_flat(out: DeviceArray, index: DeviceArray, values: DeviceArray) -> None:
    """Add `values` to the elements of the flat `out` at `index`, in place; repeated indices add up.

    Shapes: out (size,) contiguous, index and values any, of equal size. An index outside [0, size) adds nothing.
    Raises ValueError for an `out` that is not contiguous, and for shapes that do not fit.
    """
    if contiguous(out) is not out:
        raise ValueError(f"index_add_flat: got out with strides {out.strides}; it must be contiguous; copy it first")
    _add_rows("index_add_flat", out, index, values, 1, out.size, 1)


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
    _add_rows("fold_rows", out, index, values, 1, rows, width, rule)


def overwrite(out: DeviceArray, index: DeviceArray, values: DeviceArray, once: bool = False) -> None:
    """Write values to `out` at `index` along its second dimension, in place; where an index is twice, the last stays.

    Shapes: out (outer, n, inner, width) without gaps, index (outer, length, inner), values (outer, length, inner,
    width). `once` says that no index is there twice. An index outside [0, n) writes nothing.
    """
    _, n, inner, width = out.shape
    if not values.size or not out.size:
        return
    length, positions = index.shape[1], 0
    chosen = _index("overwrite", index)
    if not once:
        chosen, order = in_order(chosen, 1, False, length)
        positions = order.address
    values = _as(out.dtype, values)
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
    index = _index("gather", index)
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
    index = _index("scatter_add", index)
    out = copy(a)
    if not index.size:
        return out
    part = reachable_part("scatter_add", out, axis, index.shape)
    used = source[tuple(slice(size) for size in index.shape)]
    outer, n, inner = _sizes_around(axis, part.shape)
    if inner > 1 and index.shape[axis] > _PART_VALUES and outer * inner < _COLUMNS:
        last = a.ndim - 1
        turned, by, added = (x.swapaxes(axis, last) for x in (part, index, used))
        copy(scatter_add(turned, last, by, added).swapaxes(axis, last), out=part)
        return out
    sums = contiguous(part)
    if inner == 1:
        _add_rows("scatter_add", sums, index, used, outer, n, 1)
    else:
        sums = _as(_summed_in(sums.dtype), sums)
        used = _as(sums.dtype, used)
        kernel = adding_columns(sums.dtype, index.dtype.name)
        columns, length = outer * inner, index.shape[axis]
        blocks = blocks_for(columns, kernel.threads)
        kernel.launch(blocks, columns, length, n, inner, sums.address, index.address, used.address)
    if sums is not part:
        copy(sums, out=part)
    return out
