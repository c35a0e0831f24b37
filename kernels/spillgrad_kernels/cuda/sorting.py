"""Stable sorts along a dimension of arrays on a device.

A block of threads sorts a tile in shared memory: several short rows, or a part of a long row. Then pairs of sorted runs
are merged, for all rows in one launch, in which each block computes one tile of the result. Equal elements keep their
order, and NaN counts as the largest, so the result does not depend on the device. If only the first elements are
wanted, each run is cut to the number of wanted elements.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import contiguous, converted
from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, cuda, device, for_each_group, for_each_turn
from spillgrad_kernels.cuda.pointers import HALF, WORD_BYTES, kernel_types, loaders, quotient, storers
from spillgrad_kernels.device_array import DeviceArray, NotOnDevice
from spillgrad_kernels.tables.reductions import fold_order

# The number of adjacent elements of a thread, and the number of elements in the tile that a block has in shared memory.
_THREAD_KEYS = 8
_TILE = THREADS * _THREAD_KEYS

_HALF_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}

_store_word, _load_word = storers["int64", 1], loaders["int64", 1]


@device
def _place(row: int, j: int, n: int, inner: int) -> int:
    """Return the position of element `j` of row number `row` in a dense (outer, n, inner) array with rows along n."""
    o = quotient(row, inner)
    return (o * n + j) * inner + row - o * inner


@device
def _between(number: int, least: int, most: int) -> int:
    return least if number < least else most if number > most else number


@functools.cache
def _comparison(dtype: str, descending: bool) -> Callable[[Any, Any], bool]:
    """Return the device function is_before(x, y): whether x comes before y in sorted order; False if equal.

    Elements of half precision are given as int16, so that every NaN keeps its bits.
    """
    infinity = _HALF_INFINITY.get(dtype)

    @device
    def ascends(x: Any, y: Any) -> bool:
        return x < y or (x == x and y != y)  # type: ignore[no-any-return]

    @device
    def rank(bits: Any) -> Any:
        magnitude = bits & 0x7FFF
        return 0x8000 if magnitude > infinity else -magnitude if bits < 0 else magnitude

    @device
    def half_ascends(x: Any, y: Any) -> bool:
        return rank(x) < rank(y)  # type: ignore[no-any-return]

    is_before = ascends if infinity is None else half_ascends

    @device
    def descends(x: Any, y: Any) -> bool:
        return is_before(y, x)  # type: ignore[no-any-return]

    return descends if descending else is_before


def _splitting(is_before: Callable[[Any, Any], bool], read: Callable[[Any, Any, int], Any]) -> Callable[..., int]:
    """Return the device function that finds how many of the first `count` elements of a merge come from the first run.

    The runs begin at positions `a` and `b`. The function reads elements by `read(memory, order, place)`.
    """

    @device
    def split(memory: Any, order: Any, a: int, a_count: int, b: int, b_count: int, count: int) -> int:
        low = count - b_count if count > b_count else 0
        high = count if count < a_count else a_count
        while low < high:
            middle = (low + high) >> 1
            if is_before(read(memory, order, b + count - 1 - middle), read(memory, order, a + middle)):
                high = middle
            else:
                low = middle + 1
        return low

    return split


@functools.cache
def _merging(dtype: str, descending: bool) -> Callable[..., None]:
    """Return the device function by which a thread merges its part of two runs in shared memory.

    The part begins at position `begin` of the merged run, and is written to `merged` from position `to` on.
    """
    is_before = _comparison(dtype, descending)

    @device
    def read(keys: Any, order: Any, place: int) -> Any:
        return keys[order[place]]

    split = _splitting(is_before, read)

    @device
    def merge(
        keys: Any, order: Any, merged: Any, a: int, a_count: int, b: int, b_count: int, begin: int, to: int
    ) -> None:
        total = a_count + b_count
        if begin < total:
            i = split(keys, order, a, a_count, b, b_count, begin)
            j = begin - i
            end = begin + _THREAD_KEYS if begin + _THREAD_KEYS < total else total
            for k in range(begin, end):
                if j >= b_count or (i < a_count and not is_before(keys[order[b + j]], keys[order[a + i]])):
                    merged[to + k - begin] = order[a + i]
                    i += 1
                else:
                    merged[to + k - begin] = order[b + j]
                    j += 1

    return merge


@functools.cache
def sorting_tiles(dtype: str, descending: bool) -> Kernel:
    """Return the kernel that sorts tiles of an (outer, n, inner) array along n.

    A tile consists of segments. A segment holds a row or a part of a row, is sorted by itself, and is cut to its first
    `run` elements. The length of a segment is a power of two times the number of elements of a thread.
    """
    is_before, merge = _comparison(dtype, descending), _merging(dtype, descending)
    moved = "int16" if dtype in HALF else dtype
    load, store, size, kind = loaders[moved, 1], storers[moved, 1], np.dtype(moved).itemsize, kernel_types[moved]
    threads, tile, own_count = THREADS, _TILE, _THREAD_KEYS

    def sort_tiles(
        group: int, rows: int, n: int, inner: int, tiles: int, segment: int, run: int, length: int, out_inner: int,
        a: int, sorted_keys: int, positions: int,
    ) -> None:  # fmt: skip
        keys = cuda.shared.array(tile, kind)
        order = cuda.shared.array(tile, types.int16)
        merged = cuda.shared.array(tile, types.int16)
        thread = cuda.threadIdx.x
        own = thread * own_count
        segments = quotient(tile, segment)
        own_segment = quotient(own, segment) * segment
        first_row = quotient(group, tiles) * segments
        part = group - quotient(group, tiles) * tiles
        begin = part * tile
        count = n - begin if n - begin < segment else segment
        for slot in range(thread, tile, threads):
            # Adjacent threads read adjacent memory: elements of one row, or of adjacent rows.
            r = quotient(slot, segment) if inner == 1 else slot - quotient(slot, segments) * segments
            j = slot - r * segment if inner == 1 else quotient(slot, segments)
            if first_row + r < rows and j < count:
                keys[r * segment + j] = load(a + _place(first_row + r, begin + j, n, inner) * size)
        for k in range(own, own + own_count):
            order[k] = k
        cuda.syncthreads()
        # Segments without a row are sorted too, but not stored.
        end = own_segment + count if own_segment + count < own + own_count else own + own_count
        for k in range(own + 1, end):
            key = keys[k]
            place = k
            while place > own and is_before(key, keys[order[place - 1]]):
                order[place] = order[place - 1]
                place -= 1
            order[place] = k
        cuda.syncthreads()
        width = own_count
        while width < segment:
            pair = quotient(own, 2 * width) * 2 * width
            left = own_segment + count - pair
            a_count, b_count = _between(left, 0, width), _between(left - width, 0, width)
            merge(keys, order, merged, pair, a_count, pair + width, b_count, own - pair, own)
            cuda.syncthreads()
            for k in range(own, own + own_count):
                order[k] = merged[k]
            cuda.syncthreads()
            width *= 2
        for slot in range(thread, tile, threads):
            r = quotient(slot, segment) if inner == 1 else slot - quotient(slot, segments) * segments
            j = slot - r * segment if inner == 1 else quotient(slot, segments)
            if first_row + r < rows and j < count and j < run:
                source = order[r * segment + j]
                to = _place(first_row + r, part * run + j, length, out_inner)
                store(sorted_keys + to * size, keys[source])
                _store_word(positions + to * WORD_BYTES, begin + source - r * segment)
        cuda.syncthreads()

    return Kernel(for_each_group(sort_tiles), f"sort_tiles_of_{dtype}")


@functools.cache
def merging_runs(dtype: str, descending: bool) -> Kernel:
    """Return the kernel that merges pairs of adjacent runs of each row. It cuts results to `merged_run` elements."""
    is_before, merge = _comparison(dtype, descending), _merging(dtype, descending)
    moved = "int16" if dtype in HALF else dtype
    load, store, size, kind = loaders[moved, 1], storers[moved, 1], np.dtype(moved).itemsize, kernel_types[moved]
    threads, tile, own_count = THREADS, _TILE, _THREAD_KEYS

    @device
    def read(memory: int, order: int, place: int) -> Any:
        return load(memory + place * size)

    split = _splitting(is_before, read)

    def merge_runs(
        group: int, n: int, run: int, pairs: int, length: int, merged_run: int, inner: int, keys: int, positions: int,
        merged_keys: int, merged_positions: int,
    ) -> None:  # fmt: skip
        held = cuda.shared.array(tile, kind)
        order = cuda.shared.array(tile, types.int16)
        merged = cuda.shared.array(tile, types.int16)
        splits = cuda.shared.array(2, types.int64)
        thread = cuda.threadIdx.x
        own = thread * own_count
        tiles = quotient(merged_run + tile - 1, tile)
        pair = quotient(group, tiles)
        row = quotient(pair, pairs)
        begin = (group - pair * tiles) * tile
        pair -= row * pairs
        a = row * n + 2 * pair * run
        left = n - 2 * pair * run
        a_count, b_count = _between(left, 0, run), _between(left - run, 0, run)
        wanted = _between(a_count + b_count, 0, merged_run)
        end = _between(begin + tile, 0, wanted)
        if begin < end:
            for side in range(thread, 2, threads):
                splits[side] = split(keys, 0, a, a_count, a + run, b_count, begin if side == 0 else end)
            cuda.syncthreads()
            a_held = splits[1] - splits[0]
            b_held = end - begin - a_held
            # The tile holds the elements of the first run, then those of the second. Element `slot` of the tile
            # lies at `a_begin + slot`, or at `b_begin + slot`, in memory.
            a_begin = a + splits[0]
            b_begin = a + run + begin - splits[0] - a_held
            for slot in range(thread, end - begin, threads):
                held[slot] = load(keys + ((a_begin if slot < a_held else b_begin) + slot) * size)
                order[slot] = slot
            cuda.syncthreads()
            merge(held, order, merged, 0, a_held, a_held, b_held, own, own)
            cuda.syncthreads()
            for slot in range(thread, end - begin, threads):
                source = np.int64(merged[slot])
                to = _place(row, pair * merged_run + begin + slot, length, inner)
                store(merged_keys + to * size, held[source])
                place = (a_begin if source < a_held else b_begin) + source
                _store_word(merged_positions + to * WORD_BYTES, _load_word(positions + place * WORD_BYTES))
            cuda.syncthreads()

    return Kernel(for_each_group(merge_runs), f"merge_runs_of_{dtype}")


def in_order(a: DeviceArray, axis: int, descending: bool, count: int) -> tuple[DeviceArray, DeviceArray]:
    """Return the first `count` elements along `axis` in stable sorted order, and their positions before the sort.

    NaN counts as the largest. Raises NotOnDevice for complex numbers.
    """
    if a.dtype.kind == "c":
        raise NotOnDevice(f"in_order: no kernel of the device sorts {a.dtype}")
    if a.dtype == np.bool_:
        values, positions = in_order(a.view(np.uint8), axis, descending, count)
        return values.view(np.bool_), positions
    _, outer, n, inner = fold_order(a.shape, (axis,))
    shape = (*a.shape[:axis], count, *a.shape[axis + 1 :])
    values, positions = empty(shape, a.dtype), empty(shape, np.int64)
    if not values.size:
        return values, positions
    a, name, rows = contiguous(a), a.dtype.name, outer * inner
    tiles, segment = -(-n // _TILE), _THREAD_KEYS
    while segment < min(n, _TILE):
        segment *= 2

    def results(runs: int, length: int) -> tuple[int, DeviceArray, DeviceArray]:
        """Return (inner, values, positions) to write to: new arrays or, if a row has one run, the final results."""
        if runs == 1:
            return inner, values, positions
        return 1, empty((rows, length), a.dtype), empty((rows, length), np.int64)

    run = min(count, segment)
    length = (tiles - 1) * run + min(run, n - (tiles - 1) * _TILE)
    out_inner, keys, places = results(tiles, length)
    sorting_tiles(name, descending).run_blocks(
        -(-rows // (_TILE // segment)) * tiles, rows, n, inner, tiles, segment, run, length, out_inner, a.address,
        keys.address, places.address,
    )  # fmt: skip
    runs = tiles
    while runs > 1:
        pairs, merged_run, n = -(-runs // 2), min(2 * run, count), length
        length = (pairs - 1) * merged_run + min(merged_run, n - 2 * (pairs - 1) * run)
        out_inner, merged_keys, merged_places = results(pairs, length)
        merging_runs(name, descending).run_blocks(
            rows * pairs * -(-merged_run // _TILE), n, run, pairs, length, merged_run, out_inner, keys.address,
            places.address, merged_keys.address, merged_places.address,
        )  # fmt: skip
        keys, places, runs, run = merged_keys, merged_places, pairs, merged_run
    return values, positions


@functools.cache
def searching(dtype: str, after: bool) -> Kernel:
    """Return the kernel that finds the positions at which to insert elements into sorted rows.

    A position is after equal elements if `after` is true, else before equal elements.
    """
    load, size, is_before = loaders[dtype, 1], np.dtype(dtype).itemsize, _comparison("", False)

    def search(turn: int, n: int, length: int, keys: int, sought: int, out: int) -> None:
        element = load(sought + turn * size)
        row = keys + quotient(turn, length) * n * size
        low, high = 0, n
        while low < high:
            middle = (low + high) >> 1
            key = load(row + middle * size)
            if (not is_before(element, key)) if after else is_before(key, element):
                low = middle + 1
            else:
                high = middle
        _store_word(out + turn * WORD_BYTES, low)

    return Kernel(for_each_turn(search), f"search_{dtype}")


def places_among(keys: DeviceArray, sought: DeviceArray, after: bool) -> DeviceArray:
    """Return, as int64, the positions at which to insert `sought` into the sorted rows `keys`.

    A position is after equal elements if `after` is true, else before equal elements.

    Shapes: keys (n,) with any sought, or (..., n) with (..., k). Raises NotOnDevice for complex numbers.
    """
    dtype = np.result_type(keys.dtype, sought.dtype)
    if dtype.kind == "c":
        raise NotOnDevice(f"places_among: no kernel of the device sorts {dtype}")
    keys, sought = contiguous(converted(keys, dtype)), contiguous(converted(sought, dtype))
    if dtype == np.bool_:
        keys, sought = keys.view(np.uint8), sought.view(np.uint8)
    out = empty(sought.shape, np.int64)
    if out.size:
        length = out.size if keys.ndim == 1 else sought.shape[-1]
        searching(keys.dtype.name, after).run(
            out.size, keys.shape[-1], length, keys.address, sought.address, out.address
        )
    return out
