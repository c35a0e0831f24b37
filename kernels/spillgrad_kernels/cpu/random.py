"""Random numbers from a counter. Element i depends only on (seed, offset, i): it can be drawn again, not stored.

The words and their order are defined in `tables/random.py`.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.random import (
    HALF,
    MASK32,
    fraction32,
    fraction64,
    normal_pair,
    philox4x32,
    require_probability,
    require_range,
    threshold_and_scale,
)
from spillgrad_kernels.tables.scalar_math import where
from spillgrad_kernels.threads.dispatch import parallel_for

# The elements of a unit of work: their random words (4 KiB) stay in the first-level cache.
_CHUNK = 1024
# The number of chunks that pays for another thread: about 6 microseconds of drawing.
_GRAIN_CHUNKS = 8


@jit
def draw_of_step(words: Any, counter: Any, stream: Any, step: Any, seed: Any) -> None:
    """Fill `words` as `draw` does, from counters whose last word is `step`."""
    key0, key1 = seed & MASK32, seed >> HALF
    for i in range(words.size // 4):
        at = counter + np.uint64(i)
        x0, x1, x2, x3 = philox4x32(at & MASK32, at >> HALF, stream, step, key0, key1)
        words[4 * i] = x0
        words[4 * i + 1] = x1
        words[4 * i + 2] = x2
        words[4 * i + 3] = x3


@jit
def draw(words: Any, counter: Any, stream: Any, seed: Any) -> None:
    """Fill `words` (uint32, of a size divisible by 4) with the four random words of each counter from `counter` on."""
    draw_of_step(words, counter, stream, np.uint64(0), seed)


@jit
def _draw_uniform(values: Any, high: Any, low: Any, counter: Any, seed: Any) -> None:
    """Fill `values` with multiples of 2**-24 (float32) or 2**-53 (float64) in [0, 1).

    `high` and `low` are scratch arrays for the random words. `counter` is the first counter.
    """
    draw(high, counter, np.uint64(0), seed)
    if values.itemsize == 4:
        for j in range(values.size):
            values[j] = fraction32(high[j])
    else:
        draw(low, counter, np.uint64(1), seed)
        for j in range(values.size):
            values[j] = fraction64((np.uint64(high[j]) << HALF) | np.uint64(low[j]))


def _drawing(name: str, is_normal: bool) -> Any:
    """Return the kernel that fills `out` with normal or with uniform numbers."""

    @jit(name=f"random.{name}")
    def kernel(start: int, stop: int, out: Any, seed: Any, offset: Any) -> None:
        high, low = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint32)
        values = np.empty(_CHUNK, out.dtype)
        number = out.dtype.type
        for chunk in range(start, stop):
            _draw_uniform(values, high, low, offset + np.uint64(chunk * (_CHUNK // 4)), seed)
            if is_normal:
                for j in range(_CHUNK // 2):
                    values[2 * j], values[2 * j + 1] = normal_pair(values[2 * j], values[2 * j + 1], number)
            part = out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
            for j in range(part.size):
                part[j] = values[j]

    return kernel


_uniform, _normal = _drawing("uniform", False), _drawing("normal", True)


@jit
def _words64(start: int, stop: int, out: Any, seed: Any, offset: Any) -> None:
    high, low = np.empty(_CHUNK, np.uint32), np.empty(_CHUNK, np.uint32)
    for chunk in range(start, stop):
        counter = offset + np.uint64(chunk * (_CHUNK // 4))
        draw(high, counter, np.uint64(0), seed)
        draw(low, counter, np.uint64(1), seed)
        part = out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(part.size):
            part[j] = (np.uint64(high[j]) << HALF) | np.uint64(low[j])


@jit
def _dropout(start: int, stop: int, a: Any, out: Any, threshold: Any, scale: Any, seed: Any, offset: Any) -> None:
    words = np.empty(_CHUNK, np.uint32)
    for chunk in range(start, stop):
        draw(words, offset + np.uint64(chunk * (_CHUNK // 4)), np.uint64(0), seed)
        x, y = a[chunk * _CHUNK : (chunk + 1) * _CHUNK], out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(x.size):
            y[j] = where(words[j] >= threshold, x[j] * scale, x.dtype.type(0.0))


@jit
def _dropout_add(
    start: int, stop: int, a: Any, residual: Any, out: Any, threshold: Any, scale: Any, seed: Any, offset: Any
) -> None:
    words = np.empty(_CHUNK, np.uint32)
    for chunk in range(start, stop):
        draw(words, offset + np.uint64(chunk * (_CHUNK // 4)), np.uint64(0), seed)
        x, y = a[chunk * _CHUNK : (chunk + 1) * _CHUNK], out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        r = residual[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for j in range(x.size):
            y[j] = r[j] + where(words[j] >= threshold, x[j] * scale, x.dtype.type(0.0))


def _run(kernel: Any, seed: int, offset: int, out: np.ndarray, *operands: Any) -> np.ndarray:
    numbers = np.uint64(seed & 0xFFFFFFFFFFFFFFFF), np.uint64(offset)
    parallel_for(kernel, -(-out.size // _CHUNK), _GRAIN_CHUNKS, *operands, *numbers)
    return out


@on_device("random")
def uniform(shape: tuple[int, ...], dtype: Any, seed: int, offset: int) -> np.ndarray:
    """Return numbers uniform in [0, 1): multiples of 2**-24 in float32, of 2**-53 in float64."""
    out = buffers.empty(shape, dtype)
    return _run(_uniform, seed, offset, out, out.reshape(-1))


@on_device("random")
def normal(shape: tuple[int, ...], dtype: Any, seed: int, offset: int) -> np.ndarray:
    """Return numbers of the standard normal distribution, of magnitude up to 5.8 in float32 and 8.6 in float64.

    Elements 2k and 2k + 1 share a radius.
    Source: Box & Muller 1958, "A note on the generation of random normal deviates".
    """
    out = buffers.empty(shape, dtype)
    return _run(_normal, seed, offset, out, out.reshape(-1))


@on_device("random")
def words64(shape: tuple[int, ...], seed: int, offset: int) -> np.ndarray:
    """Return uniformly distributed random uint64 numbers."""
    out = buffers.empty(shape, np.uint64)
    return _run(_words64, seed, offset, out, out.reshape(-1))


@on_device("random")
def randint(low: int, high: int, shape: tuple[int, ...], seed: int, offset: int) -> np.ndarray:
    """Return uniform int64 in [low, high). Probabilities differ by at most one part in 2**64 / (high - low).

    Raises ValueError unless low < high.
    """
    require_range(low, high)
    words = words64(shape, seed, offset)
    words %= np.uint64(high - low)
    words += np.uint64(low & 0xFFFFFFFFFFFFFFFF)  # modulo 2**64, which is right for a negative low too
    return words.view(np.int64)


@on_device("random")
def permutation(n: int, seed: int, offset: int) -> np.ndarray:
    """Return the numbers 0 to n - 1 in random order, as int64."""
    return np.argsort(words64((n,), seed, offset), kind="stable")


@on_device("random")
def dropout(a: np.ndarray, p: float, seed: int, offset: int, residual: np.ndarray | None = None) -> np.ndarray:
    """Return a copy of `a`: elements, even NaN, are set to 0 with probability `p`; others are scaled by 1 / (1 - p).

    If there is a `residual`, of the shape and dtype of `a`, it is added in the same pass. Raises ValueError unless
    0 <= p <= 1.
    """
    require_probability(p)
    out = buffers.empty(a.shape, a.dtype)
    if p == 1:  # 1 / (1 - p) would be infinite
        np.copyto(out, 0 if residual is None else residual)
        return out
    threshold, scale = threshold_and_scale(p)
    kernel = _dropout if residual is None else _dropout_add
    operands = [np.ascontiguousarray(x).reshape(-1) for x in (a, residual) if x is not None]
    return _run(kernel, seed, offset, out, *operands, out.reshape(-1), np.uint32(threshold), a.dtype.type(scale))
