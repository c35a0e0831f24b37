"""A stable sort of integers on a device: a radix sort, four bits at a time, least significant first.

Each pass counts the digits of every tile, adds up what comes before each tile's share of a digit, and moves keys there.
Equal keys keep their order, so the result is one and the same whatever the device and the order its threads run in.
"""

from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.compile import THREADS, Kernel, blocks_for, cuda, device
from spillgrad_kernels.cuda.pointers import loaders, storers
from spillgrad_kernels.device_array import DeviceArray

_DIGIT_BITS = 4
_DIGITS = 1 << _DIGIT_BITS
# Neighbouring keys of a thread, and of the tile that a block sorts at a time.
_THREAD_KEYS = 8
_TILE = THREADS * _THREAD_KEYS
_SHARES = _DIGITS * THREADS
_WORD = 8  # bytes

_load, _store = loaders["int64", 1], storers["int64", 1]


@device
def _sum_before(sums: Any, thread: int) -> int:
    """Return the sum of the values of all earlier threads of the block; `sums` holds each thread's."""
    step = 1
    cuda.syncthreads()
    while step < THREADS:
        other = sums[thread - step] if thread >= step else 0
        cuda.syncthreads()
        sums[thread] += other
        cuda.syncthreads()
        step *= 2
    return sums[thread - 1] if thread > 0 else 0


@device
def _digit(keys: int, i: int, shift: int) -> int:
    return _load(keys + i * _WORD) >> shift & (_DIGITS - 1)  # type: ignore[no-any-return]


@device
def _own_keys(n: int, tile: int, thread: int) -> Any:
    """Return where a thread's keys of a tile begin and end."""
    first = tile * _TILE + thread * _THREAD_KEYS
    last = first + _THREAD_KEYS
    return first if first < n else n, last if last < n else n


@device
def _rank(counts: Any, sums: Any, thread: int, first: int, last: int, keys: int, shift: int) -> None:
    """Set counts[digit * THREADS + t] to how many keys of a tile come before thread t's first of a digit."""
    for digit in range(_DIGITS):
        counts[digit * THREADS + thread] = 0
    for i in range(first, last):
        counts[_digit(keys, i, shift) * THREADS + thread] += 1
    cuda.syncthreads()
    total = 0
    for share in range(thread * _DIGITS, (thread + 1) * _DIGITS):
        total += counts[share]
    sums[thread] = total
    before = _sum_before(sums, thread)
    for share in range(thread * _DIGITS, (thread + 1) * _DIGITS):
        own = counts[share]
        counts[share] = before
        before += own
    cuda.syncthreads()


def _count(n: int, tiles: int, keys: int, shift: int, totals: int) -> None:
    """Write how many keys of each digit each tile has; digits outermost."""
    counts = cuda.shared.array(_SHARES, types.int32)
    sums = cuda.shared.array(THREADS, types.int32)
    thread = cuda.threadIdx.x
    tile = cuda.blockIdx.x
    while tile < tiles:
        first, last = _own_keys(n, tile, thread)
        _rank(counts, sums, thread, first, last, keys, shift)
        for digit in range(thread, _DIGITS, THREADS):
            keys_of_tile = _TILE if (tile + 1) * _TILE < n else n - tile * _TILE
            above = counts[(digit + 1) * THREADS] if digit + 1 < _DIGITS else keys_of_tile
            _store(totals + (digit * tiles + tile) * _WORD, above - counts[digit * THREADS])
        cuda.syncthreads()
        tile += cuda.gridDim.x


def _sum_up(n: int, totals: int) -> None:
    """Replace every number by the sum of those before it, in one block."""
    sums = cuda.shared.array(THREADS, types.int64)
    thread = cuda.threadIdx.x
    length = (n + THREADS - 1) // THREADS
    first = thread * length if thread * length < n else n
    last = first + length if first + length < n else n
    total = 0
    for i in range(first, last):
        total += _load(totals + i * _WORD)
    sums[thread] = total
    before = _sum_before(sums, thread)
    for i in range(first, last):
        own = _load(totals + i * _WORD)
        _store(totals + i * _WORD, before)
        before += own


def _move(
    n: int, tiles: int, keys: int, positions: int, shift: int, totals: int, sorted_keys: int, sorted_positions: int
) -> None:
    """Move keys and their positions to where their digit says; no positions, address 0, are those in order."""
    counts = cuda.shared.array(_SHARES, types.int32)
    sums = cuda.shared.array(THREADS, types.int32)
    starts = cuda.shared.array(_DIGITS, types.int64)
    thread = cuda.threadIdx.x
    tile = cuda.blockIdx.x
    while tile < tiles:
        first, last = _own_keys(n, tile, thread)
        _rank(counts, sums, thread, first, last, keys, shift)
        for digit in range(thread, _DIGITS, THREADS):
            starts[digit] = _load(totals + (digit * tiles + tile) * _WORD) - counts[digit * THREADS]
        cuda.syncthreads()
        for i in range(first, last):
            digit = _digit(keys, i, shift)
            place = starts[digit] + counts[digit * THREADS + thread]
            counts[digit * THREADS + thread] += 1
            _store(sorted_keys + place * _WORD, _load(keys + i * _WORD))
            _store(sorted_positions + place * _WORD, i if positions == 0 else _load(positions + i * _WORD))
        cuda.syncthreads()
        tile += cuda.gridDim.x


count_digits = Kernel(_count, [types.int64] * 5)
sum_up = Kernel(_sum_up, [types.int64] * 2)
move_keys = Kernel(_move, [types.int64] * 8)


def stable_order(keys: DeviceArray, bits: int) -> tuple[DeviceArray, DeviceArray]:
    """Return the keys in ascending order, and their positions before; equal keys keep their order. All are int64.

    Shapes: keys (n,), without gaps. Only their lowest `bits` count, as numbers that are not negative.
    """
    n = keys.size
    tiles = -(-n // _TILE)
    totals = empty((_DIGITS * tiles,), np.int64)
    blocks = blocks_for(tiles * THREADS, THREADS)
    positions = 0
    spare = [(empty((n,), np.int64), empty((n,), np.int64)) for _ in range(2)]
    for i, shift in enumerate(range(0, max(bits, 1), _DIGIT_BITS)):
        moved = spare[i % 2]
        if n:
            count_digits.launch(blocks, n, tiles, keys.address, shift, totals.address)
            sum_up.launch(1, totals.size, totals.address)
            addresses = totals.address, moved[0].address, moved[1].address
            move_keys.launch(blocks, n, tiles, keys.address, positions, shift, *addresses)
        keys, positions = moved[0], moved[1].address
    return moved
