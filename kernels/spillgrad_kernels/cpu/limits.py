"""What this processor can do at most, measured: multiply-adds a second, bytes a second, and the sizes of its caches.

A program that uses the same instructions cannot be faster, so these numbers say how much of the machine a kernel uses.
Source: Williams et al. 2009, "Roofline: An Insightful Visual Performance Model for Multicore Architectures".
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cpu import copying, reductions
from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, TILE_VECTORS, VECTOR_BYTES
from spillgrad_kernels.cpu.vector_instructions import Emitter, vector_code
from spillgrad_kernels.jit.compile import DISABLE_JIT, jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.threads.dispatch import get_num_threads, parallel_for

# As many sums as a tile of a matrix product keeps in registers. Each of them waits for its last addition, so only that
# many additions at once keep the processor busy.
_SUMS = TILE_ROWS * TILE_VECTORS
# A timing of multiply-adds has so many steps per unit of work, and so many units per thread.
_STEPS, _UNITS = 1 << 13, 16
# The least of at least so many timings counts, because other programs and the clock's ups and downs only make timings
# longer. They take at least so long together: the threads of a program that has just ended its work may still spin.
_REPEATS, _LEAST_S = 9, 0.1
# Before that, threads begin to work, and the processor raises its clock.
_WARM_UP_S = 0.05
_LINE_BYTES = 64
# The smallest and the largest memory of which the latency is measured.
_LEAST_BYTES, _MOST_BYTES = 1 << 13, 1 << 28
# Memory is in a cache if its latency is at most so many times the latency of the cache.
_IN_CACHE = 1.4
_CHASED = 1 << 16  # loads in a timing of latency

if DISABLE_JIT:

    def _multiply_add(like: np.ndarray, steps: int, numbers: int) -> None:
        """Add up a factor times itself `steps` times in each of `_SUMS` vectors, and store the total.

        `numbers` is the address of two vectors: the factor, and the total.
        """
        factor, total = array_at(like, numbers, 2 * VECTOR_BYTES // like.itemsize).reshape(2, -1)
        total[:] = factor * factor * (steps * _SUMS)

else:

    @vector_code
    def _multiply_add(emit: Emitter, steps: Any, numbers: Any) -> None:
        factor = emit.load(numbers)
        # Nothing is read in a step: the vector of B is the factor each time, and so is the element of A.
        sums = emit.sums_of_products(
            steps, ([numbers], steps.type(0)), (numbers, steps.type(0)), lambda pa, _: pa[0], lambda _, __: factor,
            TILE_ROWS, TILE_VECTORS,
        )  # fmt: skip
        total = emit.zero
        for part in sums.values():
            total = emit.builder.fadd(total, part)
        emit.store(total, emit.shifted(numbers, emit.lanes))


@jit
def _multiply_adds(start: int, stop: int, steps: int, numbers: Any) -> None:
    for unit in range(start, stop):
        row: Any = np.intp(numbers[unit].ctypes.data)
        _multiply_add(numbers, steps, row)


@jit
def _chase(start: int, stop: int, following: Any, loads: int, last: Any) -> None:
    """Follow `loads` indices, from each line of memory to another one."""
    place = np.int64(0)
    for _ in range(loads):
        place = following[place]
    last[start:stop] = place


def _least_seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    while time.perf_counter() - began < _WARM_UP_S:
        run()
    seconds: list[float] = []
    while len(seconds) < _REPEATS or sum(seconds) < _LEAST_S:
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def flop_per_s(dtype: Any) -> float:
    """Return the floating-point operations a second of all threads, in multiply-adds of vectors in registers.

    A multiply-add counts as two operations. `dtype` is float32 or float64.
    """
    units = _UNITS * get_num_threads()
    numbers = np.ones((units, 2 * VECTOR_BYTES // np.dtype(dtype).itemsize), dtype)
    seconds = _least_seconds(lambda: parallel_for(_multiply_adds, units, 1, _STEPS, numbers))
    lanes = VECTOR_BYTES // numbers.itemsize
    return 2 * units * _STEPS * _SUMS * lanes / seconds


def bytes_per_s(nbytes: int) -> float:
    """Return the bytes a second that all threads move to and from `nbytes` of memory, which they use again and again.

    This is the faster one of reading all, and of copying one half to the other. A copy counts the bytes that it reads
    and those that it writes, not those that the processor reads before it writes to them.
    """
    memory = buffers.empty((max(64, nbytes // 4),), np.float32)
    memory.fill(1)
    half = len(memory) // 2
    read_s = _least_seconds(lambda: reductions.sum(memory, (0,)))
    copied_s = _least_seconds(lambda: copying.copy(memory[:half], memory[half : 2 * half]))
    return float(memory.nbytes / min(read_s, copied_s))


def latencies() -> dict[int, float]:
    """Return the seconds of a load from memory of different sizes, in bytes, if each load waits for the one before."""
    random = np.random.default_rng(0)
    words = _LINE_BYTES // 8
    whole = buffers.empty((_MOST_BYTES // 8,), np.int64)
    found: dict[int, float] = {}
    nbytes = _LEAST_BYTES
    last = np.zeros(1, np.int64)
    while nbytes <= _MOST_BYTES:
        # One cycle through all lines, in random order, so that no prefetcher foresees the next.
        order = random.permutation(nbytes // _LINE_BYTES) * words
        whole[order] = np.roll(order, 1)
        seconds = [_seconds_of_chase(whole, _CHASED, last) for _ in range(_REPEATS)]
        found[nbytes] = min(seconds) / _CHASED
        nbytes = nbytes * 5 // 4 // 4096 * 4096 if nbytes >= 1 << 14 else nbytes + 4096
    return found


def _seconds_of_chase(following: np.ndarray, loads: int, last: np.ndarray) -> float:
    started = time.perf_counter()
    parallel_for(_chase, 1, 1, following, loads, last)
    return time.perf_counter() - started


def cache_bytes() -> list[int]:
    """Return the sizes of the caches of one core, from the first level on; one that is shared counts as a whole.

    A size is the largest memory whose latency is still about that of the level.
    """
    measured = latencies()
    sizes = list(measured)
    found: list[int] = []
    at = 0
    while at < len(sizes):
        level = min(measured[size] for size in sizes[at : at + 2])
        end = at
        while end + 1 < len(sizes) and measured[sizes[end + 1]] <= _IN_CACHE * level:
            end += 1
        if end == len(sizes) - 1:
            break  # memory itself
        if sizes[end] >= 2 * sizes[at]:  # else the latency is only on its way to that of the next level
            found.append(sizes[end])
        at = end + 1
    return found
