"""Rounding of float32 numbers to bfloat16, up or down at random, so that the mean of many roundings is the number.

Small updates, which rounding to nearest would lose, then add up. Element i depends only on the seed, `stream`, `step`
and i: it uses half i % 2 of word (i % 8) // 2 of the counter (i // 8, stream, step).
Source: Gupta et al. 2015, "Deep learning with limited numerical precision".
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.random import draw_of_step
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.threads.dispatch import parallel_for

# The elements of a counter, the counters of a unit of work, and how many units pay for another thread.
_PER_COUNTER = 8
_COUNTERS = 128
_GRAIN = 8


@jit
def _round(
    start: int, stop: int, bits: Any, rounded: Any, first: Any, stream: Any, step: Any, seed: Any
) -> None:  # fmt: skip
    words = np.empty(4 * _COUNTERS, np.uint32)
    unit = _PER_COUNTER * _COUNTERS
    for chunk in range(start, stop):
        begin = chunk * unit
        draw_of_step(words, first + np.uint64(chunk * _COUNTERS), stream, step, seed)
        halves = words.view(np.uint16)
        for j in range(min(unit, bits.size - begin)):
            word = bits[begin + j]
            is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            added = np.uint32(0x400000) | word if is_nan else word + np.uint32(halves[j])
            rounded[begin + j] = np.uint16(added >> np.uint32(16))


def round_stochastically(
    values: np.ndarray, rounded: np.ndarray, first: int, seed: int, stream: int, step: int
) -> None:  # fmt: skip
    """Fill `rounded`, bfloat16, from `values`, float32, both contiguous; element 0 is number `first`, a multiple of 8.

    `stream` and `step` are below 2**32; those of a generator, such as dropout's, have step 0. Finite numbers beyond the
    largest bfloat16 may become infinite, as they do when rounded to nearest.
    """
    bits, halves = values.reshape(-1).view(np.uint32), rounded.reshape(-1).view(np.uint16)
    numbers = [np.uint64(number) for number in (first // _PER_COUNTER, stream, step, seed & 0xFFFFFFFFFFFFFFFF)]
    parallel_for(_round, -(-bits.size // (_PER_COUNTER * _COUNTERS)), _GRAIN, bits, halves, *numbers)
