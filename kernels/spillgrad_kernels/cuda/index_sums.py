"""Add values to the rows that an index selects, on a device.

Sums have a fixed order, so results do not depend on the device. The index is sorted, and cut into parts of a fixed
length; in each part, one thread adds up the values for one element. Then the sums of the parts are added in order.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import contiguous, converted
from spillgrad_kernels.cuda.jit.compile import Kernel, device, for_each_turn
from spillgrad_kernels.cuda.pointers import WORD_BYTES, computing_dtype, lane_loader, loaders, quotient, storers, widest
from spillgrad_kernels.cuda.reductions import RULES
from spillgrad_kernels.cuda.sorting import in_order
from spillgrad_kernels.device_array import DeviceArray, refuse_complex

# The length of a part. If many indices select one row, several threads share the work for the row.
PART_VALUES = 64


def _adder(
    dtype: np.dtype[Any], lanes: int, rule: str = "sum"
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., None]]:
    """Return the device functions load(address), add(sums, address) and store(address, sums).

    `sums` is a tuple of `lanes` adjacent elements. `load` returns the elements at an address, `add` returns `sums`
    combined with the elements at an address, and `store` writes `sums`. `rule` names the reduction, such as "sum".
    """
    load, store = lane_loader(dtype.name, lanes), storers[dtype.name, lanes]
    both = "".join(f"combine(sums[{i}], more[{i}]), " for i in range(lanes))
    made: dict[str, Any] = {"load": load, "combine": RULES[rule].combine}
    exec(f"def add(sums, at):\n    more = load(at)\n    return ({both})", made)
    return load, device(made["add"]), device(lambda at, sums: store(at, *sums))


@functools.cache
def adding(dtype: np.dtype[Any], lanes: int, index: str, rule: str = "sum") -> Kernel:
    """Return the kernel that adds values to the rows that a sorted index selects.

    The index has shape (outer, length), and is sorted along `length`; `places` holds the position of each index's
    value. In each part, one thread adds up the values for one row. If a part begins with the row with which the
    previous part ends, the sum for this row is written to `partials`, which has a row for each part. `rule` names the
    reduction that combines elements.
    """
    load, add, store = _adder(dtype, lanes, rule)
    partial = computing_dtype(dtype)
    _, _, store_partial = _adder(partial, lanes, rule)
    load_index, index_bytes = loaders[index, 1], np.dtype(index).itemsize
    load_word, nbytes, partial_bytes = loaders["int64", 1], lanes * dtype.itemsize, lanes * partial.itemsize

    def add_rows(
        turn: int, length: int, n: int, width: int, chosen: int, places: int, values: int, out: int, partials: int
    ) -> None:
        first = quotient(turn, width)
        c = turn - first * width
        o = quotient(first, length)
        own = load_index(chosen + first * index_bytes)
        at = np.int64(own)
        goes_on = first > o * length and load_index(chosen + (first - 1) * index_bytes) == own
        part = quotient(first, PART_VALUES)
        if 0 <= at < n and (not goes_on or first == part * PART_VALUES):
            end = (part + 1) * PART_VALUES if (part + 1) * PART_VALUES < (o + 1) * length else (o + 1) * length
            last = first + 1
            while last < end and load_index(chosen + last * index_bytes) == own:
                last += 1
            to = out + ((o * n + at) * width + c) * nbytes
            begun = first + 1 if goes_on else first
            source = values + (o * length * width + c) * nbytes
            sums = load(source + load_word(places + first * WORD_BYTES) * width * nbytes if goes_on else to)
            for i in range(begun, last):
                sums = add(sums, source + load_word(places + i * WORD_BYTES) * width * nbytes)
            if goes_on:
                store_partial(partials + (part * width + c) * partial_bytes, sums)
            else:
                store(to, sums)

    return Kernel(for_each_turn(add_rows), f"{rule}_rows_{dtype.name}_x{lanes}_by_{index}")


@functools.cache
def adding_partials(dtype: np.dtype[Any], lanes: int, index: str, rule: str = "sum") -> Kernel:
    """Return the kernel that adds the sums in `partials` to their rows, in the order of the parts."""
    load, _, store = _adder(dtype, lanes, rule)
    partial = computing_dtype(dtype)
    _, add_partial, _ = _adder(partial, lanes, rule)
    load_index, index_bytes = loaders[index, 1], np.dtype(index).itemsize
    nbytes, partial_bytes = lanes * dtype.itemsize, lanes * partial.itemsize
    part_bytes = PART_VALUES * index_bytes

    @device
    def continues(chosen: int, begin: int, part: int) -> bool:
        """Return whether a part begins with the row with which the previous part ends.

        `chosen` is the address of the sorted indices. `begin` is the position of the first index of the part's outer
        row.
        """
        at = chosen + part * part_bytes
        return part * PART_VALUES > begin and load_index(at) == load_index(at - index_bytes)

    def add_partials(turn: int, length: int, n: int, width: int, chosen: int, out: int, partials: int) -> None:
        part = quotient(turn, width)
        c = turn - part * width
        o = quotient(part * PART_VALUES, length)
        begin = o * length
        own = load_index(chosen + part * part_bytes)
        at = np.int64(own)
        # The thread of the first part that continues a row adds the sums of all parts that continue the row.
        is_first = not continues(chosen, begin, part - 1) or load_index(chosen + (part - 1) * part_bytes) != own
        if 0 <= at < n and is_first and continues(chosen, begin, part):
            to = out + ((o * n + at) * width + c) * nbytes
            sums = load(to)
            end = quotient(begin + length + PART_VALUES - 1, PART_VALUES)
            while part < end and load_index(chosen + part * part_bytes) == own:
                sums = add_partial(sums, partials + (part * width + c) * partial_bytes)
                part += 1
            store(to, sums)

    return Kernel(for_each_turn(add_partials), f"{rule}_partials_{dtype.name}_x{lanes}_by_{index}")


@functools.cache
def adding_columns(dtype: np.dtype[Any], index: str) -> Kernel:
    """Return the kernel that adds (outer, length, inner) values to (outer, n, inner) sums, one thread per column."""
    load, store, size = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    load_index, index_bytes = loaders[index, 1], np.dtype(index).itemsize

    def add_columns(turn: int, length: int, n: int, inner: int, out: int, chosen: int, values: int) -> None:
        o = quotient(turn, inner)
        c = turn - o * inner
        for j in range(length):
            i = (o * length + j) * inner + c
            at = np.int64(load_index(chosen + i * index_bytes))
            if 0 <= at < n:
                to = out + ((o * n + at) * inner + c) * size
                store(to, load(to) + load(values + i * size))

    return Kernel(for_each_turn(add_columns), f"add_columns_{dtype.name}_by_{index}")


def checked_index(who: str, index: DeviceArray) -> DeviceArray:
    """Return `index`, or a dense copy if it is not dense. Raises TypeError if its dtype is not an integer dtype."""
    if index.dtype.kind not in "iu":
        raise TypeError(f"{who}: got an index of {index.dtype}; wanted integers; convert it")
    return contiguous(index)


def add_rows_at(
    who: str, out: DeviceArray, index: DeviceArray, values: DeviceArray, outer: int, n: int, width: int,
    rule: str = "sum",
) -> None:  # fmt: skip
    """Add rows of `values` to the rows of `out` at `index`, in place. `rule` names the reduction that combines rows.

    Shapes: out (outer * n, width) and dense, index (outer, length), values (outer * length, width), or other shapes of
    the same sizes. Raises ValueError if `values` does not have one row for each index, NotOnDevice for complex numbers.
    """
    refuse_complex(who, out)
    index, count = checked_index(who, index), index.size
    if values.size != count * width:
        raise ValueError(
            f"{who}: got values of shape {values.shape} for an index of shape {index.shape}; "
            f"there must be {width} for each index"
        )
    if not count or not out.size:
        return
    values = contiguous(converted(values, out.dtype))
    length = count // outer
    chosen, places = in_order(index.reshape(outer, length), 1, False, length)
    size, partial = out.dtype.itemsize, computing_dtype(out.dtype)
    lanes = min(widest(size, out.address, values.address, width * size), widest(partial.itemsize))
    parts = -(-count // PART_VALUES)
    partials = empty((parts, width), partial)
    width //= lanes
    adding(out.dtype, lanes, index.dtype.name, rule).run(
        count * width, length, n, width, chosen.address, places.address, values.address, out.address, partials.address
    )
    if parts > 1:
        adding_partials(out.dtype, lanes, index.dtype.name, rule).run(
            parts * width, length, n, width, chosen.address, out.address, partials.address
        )
