"""Random numbers from a counter: element i depends on (seed, offset, i) only and is drawn again, not stored.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10). Element i uses word i % 4 of
the block at counter offset + i // 4 of stream 0; 64-bit draws take their low half from stream 1 of the same counter.
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit, register_jitable
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.scalar_math import floor, log, sqrt, where
from spillgrad_kernels.threads.dispatch import parallel_for

WORDS_PER_COUNTER = 4
# Elements per unit of work: their random words (4 KiB) stay in the first-level cache.
_CHUNK = 1024
# Chunks worth a thread of their own: about 6 microseconds of drawing.
_GRAIN_CHUNKS = 8

MASK32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
_MULTIPLIER0, _MULTIPLIER1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL0, _WEYL1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_F32_STEP = np.float32(2.0**-24)
_F64_STEP = 2.0**-53
# Taylor series, highest power first: at an eighth of a turn the first terms left out are below 1e-16.
_SINE_SERIES = tuple((-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(8)))
_COSINE_SERIES = tuple((-1) ** k / math.factorial(2 * k) for k in reversed(range(9)))


# Inlined by Numba: LLVM finds it too large, and cannot vectorise a loop around a call (18 ns a counter instead of 5).
@register_jitable(inline="always")
def philox4x32(x0: Any, x1: Any, x2: Any, x3: Any, key0: Any, key1: Any) -> Any:
    """Return the four random words of a counter of four words under a key of two; each word is a uint64 below 2**32."""
    for _ in range(10):
        product0, product1 = _MULTIPLIER0 * x0, _MULTIPLIER1 * x2
        x0, x1 = (product1 >> HALF) ^ x1 ^ key0, product1 & MASK32
        x2, x3 = (product0 >> HALF) ^ x3 ^ key1, product0 & MASK32
        key0, key1 = (key0 + _WEYL0) & MASK32, (key1 + _WEYL1) & MASK32
    return x0, x1, x2, x3


@jit
def _draw(words: Any, counter: Any, stream: Any, seed: Any) -> None:
    """Fill a multiple of four words (uint32) from `counter` on."""
    key0, key1 = seed & MASK32, seed >> HALF
    for i in range(words.size // 4):
        at = counter + np.uint64(i)
        x0, x1, x2, x3 = philox4x32(at & MASK32, at >> HALF, stream, np.uint64(0), key0, key1)
        words[4 * i] = x0
        words[4 * i + 1] = x1
        words[4 * i + 2] = x2
        words[4 * i + 3] = x3


@register_jitable(inline="always")
def fraction32(word: Any) -> Any:
    """Return the float32 in [0, 1) that a word (uint32) stands for: a multiple of 2**-24."""
    return np.float32(np.int32(word >> np.uint32(8))) * _F32_STEP


@register_jitable(inline="always")
def fraction64(word: Any) -> Any:
    """Return the float64 in [0, 1) that a word (uint64) stands for: a multiple of 2**-53."""
    return np.float64(np.int64(word >> np.uint64(11))) * _F64_STEP


@jit
def _draw_uniform(values: Any, high: Any, low: Any, counter: Any, seed: Any) -> None:
    """Fill a chunk with multiples of 2**-24 (float32) or 2**-53 (float64) in [0, 1)."""
    _draw(high, counter, np.uint64(0), seed)
    if values.itemsize == 4:
        for j in range(values.size):
            values[j] = fraction32(high[j])
    else:
        _draw(low, counter, np.uint64(1), seed)
        for j in range(values.size):
            values[j] = fraction64((np.uint64(high[j]) << HALF) | np.uint64(low[j]))


@register_jitable(inline="always")
def cos_sin_turns(turns: Any, number: Any) -> Any:
    """Return cosine and sine of `turns` full turns, 0 <= turns < 1; `number` is the dtype's scalar type."""
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
    """Return two normal numbers from two in [0, 1); `number` is the dtype's scalar type."""
    radius = sqrt(number(-2.0) * log(number(1.0) - radial))
    cosine, sine = cos_sin_turns(turns, number)
    return radius * cosine, radius * sine


@jit
def _uniform(start: int, stop: int, out: Any, seed: Any, offset: Any) -> None:
    high, low = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint32)
    values = np.empty(_CHUNK, out.dtype)
    for chunk in range(start, stop):
        _draw_uniform(values, high, low, offset + np.uint64(chunk * (_CHUNK // 4)), seed)
        part = out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(part.size):
            part[j] = values[j]


@jit
def _normal(start: int, stop: int, out: Any, seed: Any, offset: Any) -> None:
    high, low = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint32)
    values = np.empty(_CHUNK, out.dtype)
    number = out.dtype.type
    for chunk in range(start, stop):
        _draw_uniform(values, high, low, offset + np.uint64(chunk * (_CHUNK // 4)), seed)
        for j in range(_CHUNK // 2):
            values[2 * j], values[2 * j + 1] = normal_pair(values[2 * j], values[2 * j + 1], number)
        part = out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(part.size):
            part[j] = values[j]


@jit
def _words64(start: int, stop: int, out: Any, seed: Any, offset: Any) -> None:
    high, low = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint32)
    for chunk in range(start, stop):
        counter = offset + np.uint64(chunk * (_CHUNK // 4))
        _draw(high, counter, np.uint64(0), seed)
        _draw(low, counter, np.uint64(1), seed)
        part = out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(part.size):
            part[j] = (np.uint64(high[j]) << HALF) | np.uint64(low[j])


@jit
def _dropout(start: int, stop: int, a: Any, out: Any, threshold: Any, scale: Any, seed: Any, offset: Any) -> None:
    words = np.empty(_CHUNK, np.uint32)
    for chunk in range(start, stop):
        _draw(words, offset + np.uint64(chunk * (_CHUNK // 4)), np.uint64(0), seed)
        x, y = a[chunk * _CHUNK : (chunk + 1) * _CHUNK], out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(x.size):
            y[j] = where(words[j] >= threshold, x[j] * scale, x.dtype.type(0.0))


@jit
def _dropout_add(
    start: int, stop: int, a: Any, residual: Any, out: Any, threshold: Any, scale: Any, seed: Any, offset: Any
) -> None:
    words = np.empty(_CHUNK, np.uint32)
    for chunk in range(start, stop):
        _draw(words, offset + np.uint64(chunk * (_CHUNK // 4)), np.uint64(0), seed)
        x, y = a[chunk * _CHUNK : (chunk + 1) * _CHUNK], out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        r = residual[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(x.size):
            y[j] = r[j] + where(words[j] >= threshold, x[j] * scale, x.dtype.type(0.0))


def counters_needed(count: int) -> int:
    """Return by how much drawing `count` elements advances the offset."""
    return -(-count // WORDS_PER_COUNTER)


def _run(kernel: Any, out: np.ndarray, *operands: Any) -> np.ndarray:
    parallel_for(kernel, -(-out.size // _CHUNK), _GRAIN_CHUNKS, *operands)
    return out


def _seed(seed: int) -> np.uint64:
    return np.uint64(seed & 0xFFFFFFFFFFFFFFFF)


@on_device("random")
def uniform(shape: tuple[int, ...], dtype: Any, seed: int, offset: int) -> np.ndarray:
    """Return numbers uniform in [0, 1): multiples of 2**-24 in float32, of 2**-53 in float64."""
    out = buffers.empty(shape, dtype)
    return _run(_uniform, out, out.reshape(-1), _seed(seed), np.uint64(offset))


@on_device("random")
def normal(shape: tuple[int, ...], dtype: Any, seed: int, offset: int) -> np.ndarray:
    """Return numbers of the standard normal distribution, none beyond 5.8 in float32 (8.6 in float64).

    Source: Box & Muller 1958; elements 2k and 2k + 1 share a radius.
    """
    out = buffers.empty(shape, dtype)
    return _run(_normal, out, out.reshape(-1), _seed(seed), np.uint64(offset))


@on_device("random")
def words64(shape: tuple[int, ...], seed: int, offset: int) -> np.ndarray:
    """Return uniform random uint64."""
    out = buffers.empty(shape, np.uint64)
    return _run(_words64, out, out.reshape(-1), _seed(seed), np.uint64(offset))


def require_range(low: int, high: int) -> None:
    """Raise ValueError for a range of integers that holds none."""
    if not low < high:
        raise ValueError(
            f"randint: got low={low} and high={high}; high itself is never drawn and must be larger than low"
        )


@on_device("random")
def randint(low: int, high: int, shape: tuple[int, ...], seed: int, offset: int) -> np.ndarray:
    """Return int64 uniform in [low, high), to one part in 2**64 / (high - low).

    Raises ValueError unless low < high.
    """
    require_range(low, high)
    words = words64(shape, seed, offset)
    words %= np.uint64(high - low)
    words += np.uint64(low & 0xFFFFFFFFFFFFFFFF)  # modulo 2**64: right for a negative low too
    return words.view(np.int64)


@on_device("random")
def permutation(n: int, seed: int, offset: int) -> np.ndarray:
    """Return the numbers 0 to n - 1 in random order; int64."""
    return np.argsort(words64((n,), seed, offset), kind="stable")


def require_probability(p: float) -> None:
    """Raise ValueError for a probability of dropout that is none."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: got p={p}; a probability from 0 to 1 is needed")


def threshold_and_scale(p: float) -> tuple[int, float]:
    """Return from which word on an element is kept, and what it is then multiplied with, for p below 1."""
    return min(round(p * 2**32), 2**32 - 1), 1 / (1 - p)


@on_device("random")
def dropout(a: np.ndarray, p: float, seed: int, offset: int, residual: np.ndarray | None = None) -> np.ndarray:
    """Return `a` with each element zeroed with probability `p`, whatever it held, and the others scaled by 1 / (1 - p).

    A `residual`, of the shape and dtype of `a`, is added in the same pass. Raises ValueError unless 0 <= p <= 1.
    """
    require_probability(p)
    out = buffers.empty(a.shape, a.dtype)
    if p == 1:  # 1 / (1 - p) has no value
        np.copyto(out, 0 if residual is None else residual)
        return out
    threshold, scale = threshold_and_scale(p)
    numbers = np.uint32(threshold), a.dtype.type(scale), _seed(seed), np.uint64(offset)
    flat = np.ascontiguousarray(a).reshape(-1)
    if residual is None:
        return _run(_dropout, out, flat, out.reshape(-1), *numbers)
    return _run(_dropout_add, out, flat, np.ascontiguousarray(residual).reshape(-1), out.reshape(-1), *numbers)
