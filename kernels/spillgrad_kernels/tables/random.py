"""The scalar mathematics of random numbers: words from a counter, and fractions and normal numbers from words.

Element i uses word i % 4 of the four words at counter offset + i // 4 of stream 0. A 64-bit word takes its low half
from stream 1 of the same counter.
Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.jit.compile import register_jitable
from spillgrad_kernels.tables.scalar_math import floor, log, sqrt, where

WORDS_PER_COUNTER = 4
MASK32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
_MULTIPLIER0, _MULTIPLIER1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL0, _WEYL1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_F32_STEP = np.float32(2.0**-24)
_F64_STEP = 2.0**-53
# Taylor series, highest power first. Up to an eighth of a turn, the first omitted terms are below 1e-16.
_SINE_SERIES = tuple((-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(8)))
_COSINE_SERIES = tuple((-1) ** k / math.factorial(2 * k) for k in reversed(range(9)))


# Inlined by Numba: LLVM finds the function too large, and cannot vectorise a loop around a call (18 ns a counter
# instead of 5).
@register_jitable(inline="always")
def philox4x32(x0: Any, x1: Any, x2: Any, x3: Any, key0: Any, key1: Any) -> Any:
    """Return the four random words of the counter (x0, x1, x2, x3) under a key; all words are uint64 below 2**32."""
    for _ in range(10):
        product0, product1 = _MULTIPLIER0 * x0, _MULTIPLIER1 * x2
        x0, x1 = (product1 >> HALF) ^ x1 ^ key0, product1 & MASK32
        x2, x3 = (product0 >> HALF) ^ x3 ^ key1, product0 & MASK32
        key0, key1 = (key0 + _WEYL0) & MASK32, (key1 + _WEYL1) & MASK32
    return x0, x1, x2, x3


@register_jitable(inline="always")
def fraction32(word: Any) -> Any:
    """Return a float32 in [0, 1) from a uint32 word: a multiple of 2**-24."""
    return np.float32(np.int32(word >> np.uint32(8))) * _F32_STEP


@register_jitable(inline="always")
def fraction64(word: Any) -> Any:
    """Return a float64 in [0, 1) from a uint64 word: a multiple of 2**-53."""
    return np.float64(np.int64(word >> np.uint64(11))) * _F64_STEP


@register_jitable(inline="always")
def cos_sin_turns(turns: Any, number: Any) -> Any:
    """Return the cosine and the sine of an angle of `turns` full turns, in [0, 1). `number` is the type of `turns`."""
    quarter = floor(turns * number(4.0) + number(0.5))
    angle = (turns - quarter * number(0.25)) * number(2.0 * math.pi)
    square = angle * angle
    sine, cosine = number(0.0), number(0.0)
    for coefficient in _SINE_SERIES:
        sine = sine * square + number(coefficient)
    for coefficient in _COSINE_SERIES:
        cosine = cosine * square + number(coefficient)
    sine *= angle
    odd = (quarter == number(1.0)) | (quarter == number(3.0))
    c, s = where(odd, sine, cosine), where(odd, cosine, sine)
    c = where((quarter == number(1.0)) | (quarter == number(2.0)), -c, c)
    s = where((quarter == number(2.0)) | (quarter == number(3.0)), -s, s)
    return c, s


@register_jitable(inline="always")
def normal_pair(radial: Any, turns: Any, number: Any) -> Any:
    """Return two standard normal numbers, made from two uniform numbers in [0, 1); `number` is their scalar type."""
    radius = sqrt(number(-2.0) * log(number(1.0) - radial))
    cosine, sine = cos_sin_turns(turns, number)
    return radius * cosine, radius * sine


def counters_needed(count: int) -> int:
    """Return how many counters are used to draw `count` elements; the generator's offset advances by as many."""
    return -(-count // WORDS_PER_COUNTER)


def require_range(low: int, high: int) -> None:
    """Raise ValueError unless `low` < `high`."""
    if not low < high:
        raise ValueError(
            f"randint: got low={low} and high={high}; high itself is never drawn and must be larger than low"
        )


def require_probability(p: float) -> None:
    """Raise ValueError unless dropout's `p` is a probability."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: got p={p}; a probability from 0 to 1 is needed")


def threshold_and_scale(p: float) -> tuple[int, float]:
    """Return, for dropout with `p` < 1, the least random word that keeps an element, and the scale of kept elements."""
    return min(round(p * 2**32), 2**32 - 1), 1 / (1 - p)
