"""Random numbers on a device: the same as on the CPU, from the same counters (see `spillgrad_kernels.cpu.random`).

Integers, uniform numbers and dropout's choices are equal to the bit, normal numbers to a few ulp. A thread draws the
four elements of one counter.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import scalar_math  # noqa: F401 (gives `log` and `where` their meaning here)
from spillgrad_kernels.cuda.array import empty, zeros
from spillgrad_kernels.cuda.elementwise import contiguous, copy
from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, blocks_for, cuda, device, device_form
from spillgrad_kernels.cuda.pointers import kernel_types, loaders, storers, widest
from spillgrad_kernels.cuda.sorting import in_order
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables import random as host
from spillgrad_kernels.tables.random import (
    HALF,
    MASK32,
    WORDS_PER_COUNTER,
    counters_needed,
    require_probability,
    require_range,
    threshold_and_scale,
)
from spillgrad_kernels.tables.scalar_math import where

philox4x32, fraction32, fraction64 = map(device_form, (host.philox4x32, host.fraction32, host.fraction64))
normal_pair = device_form(host.normal_pair, cos_sin_turns=device_form(host.cos_sin_turns))


@device
def _words(at: Any, stream: Any, seed: Any) -> Any:
    """Return the four 32-bit words of the counter `at`, as uint64."""
    return philox4x32(at & MASK32, at >> HALF, np.uint64(stream), np.uint64(0), seed & MASK32, seed >> HALF)


@device
def _words64(at: Any, seed: Any) -> Any:
    h0, h1, h2, h3 = _words(at, 0, seed)
    l0, l1, l2, l3 = _words(at, 1, seed)
    return h0 << HALF | l0, h1 << HALF | l1, h2 << HALF | l2, h3 << HALF | l3


@device
def _fractions32(at: Any, seed: Any) -> Any:
    x0, x1, x2, x3 = _words(at, 0, seed)
    y0, y1 = fraction32(np.uint32(x0)), fraction32(np.uint32(x1))
    y2, y3 = fraction32(np.uint32(x2)), fraction32(np.uint32(x3))
    return y0, y1, y2, y3


@device
def _fractions64(at: Any, seed: Any) -> Any:
    x0, x1, x2, x3 = _words64(at, seed)
    return fraction64(x0), fraction64(x1), fraction64(x2), fraction64(x3)


def _uniform(dtype: np.dtype[Any]) -> Callable[..., Any]:
    fractions = _fractions64 if dtype == np.float64 else _fractions32
    return lambda at, seed, low, span: fractions(at, seed)


def _normal(dtype: np.dtype[Any]) -> Callable[..., Any]:
    fractions, number = (_fractions64, np.float64) if dtype == np.float64 else (_fractions32, np.float32)

    def draw(at: Any, seed: Any, low: Any, span: Any) -> Any:
        x0, x1, x2, x3 = fractions(at, seed)
        y0, y1 = normal_pair(x0, x1, number)
        y2, y3 = normal_pair(x2, x3, number)
        return y0, y1, y2, y3

    return draw


def _bits(dtype: np.dtype[Any]) -> Callable[..., Any]:
    return lambda at, seed, low, span: _words64(at, seed)


def _integers(dtype: np.dtype[Any]) -> Callable[..., Any]:
    def draw(at: Any, seed: Any, low: Any, span: Any) -> Any:
        x0, x1, x2, x3 = _words64(at, seed)
        return x0 % span + low, x1 % span + low, x2 % span + low, x3 % span + low

    return draw


DISTRIBUTIONS = {"uniform": _uniform, "normal": _normal, "words64": _bits, "randint": _integers}


def _fours(dtype: np.dtype[Any], lanes: int) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return device functions load(address, left) and store(address, left, *values) for a counter's four elements.

    If `left` < 4, only the first `left` elements are read or written.
    """
    size, load_one, store_one = dtype.itemsize, loaders[dtype.name, 1], storers[dtype.name, 1]
    accesses = [(i * size, ", ".join("abcd"[i : i + lanes])) for i in range(0, 4, lanes)]
    lines = [
        "def load_all(at):", *(f"    {names} = load(at + {offset})" for offset, names in accesses),
        "    return a, b, c, d",
        "def store_all(at, a, b, c, d):", *(f"    store(at + {offset}, {names})" for offset, names in accesses),
    ]  # fmt: skip
    made: dict[str, Any] = {"load": loaders[dtype.name, lanes], "store": storers[dtype.name, lanes]}
    exec("\n".join(lines), made)
    load_all, store_all = device(made["load_all"]), device(made["store_all"])

    @device
    def load_four(at: int, left: int) -> Any:
        if left >= 4:
            return load_all(at)
        a = load_one(at)
        b = load_one(at + size) if left > 1 else a
        return a, b, load_one(at + 2 * size) if left > 2 else a, a

    @device
    def store_four(at: int, left: int, a: Any, b: Any, c: Any, d: Any) -> None:
        if left >= 4:
            store_all(at, a, b, c, d)
        else:
            store_one(at, a)
            if left > 1:
                store_one(at + size, b)
            if left > 2:
                store_one(at + 2 * size, c)

    return load_four, store_four


# `drawing` and `dropping` have loops of their own, bounded by elements. With `for_each_turn`, which bounds a loop by
# counters, the kernel of "normal" takes 34 registers instead of 28.
@functools.cache
def drawing(name: str, dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that fills dense memory with numbers of the distribution `name`."""
    draw = device(DISTRIBUTIONS[name](dtype))
    _, store = _fours(dtype, min(4, widest(dtype.itemsize)))
    size = dtype.itemsize

    def fill(count: int, out: int, seed: int, offset: int, low: int, span: int) -> None:
        turn = cuda.grid(1)
        while 4 * turn < count:
            at = np.uint64(np.int64(offset)) + np.uint64(turn)
            a, b, c, d = draw(at, np.uint64(np.int64(seed)), np.uint64(np.int64(low)), np.uint64(np.int64(span)))
            store(out + 4 * turn * size, count - 4 * turn, a, b, c, d)
            turn += cuda.gridsize(1)

    return Kernel(fill, f"{name}_{dtype.name}")


@functools.cache
def dropping(dtype: np.dtype[Any], lanes: int, adds: bool) -> Kernel:
    """Return the kernel of dropout over dense memory. If `adds`, the kernel also adds a residual."""
    load, store = _fours(dtype, lanes)
    size, number = dtype.itemsize, np.float64 if dtype == np.float64 else np.float32

    @device
    def kept(word: Any, x: Any, threshold: Any, scale: Any) -> Any:
        return where(word >= np.uint64(threshold), x * scale, number(0))

    def drop(count: int, a: int, residual: int, out: int, threshold: int, scale: Any, seed: int, offset: int) -> None:
        turn = cuda.grid(1)
        while 4 * turn < count:
            at, left = 4 * turn * size, count - 4 * turn
            w0, w1, w2, w3 = _words(np.uint64(np.int64(offset)) + np.uint64(turn), 0, np.uint64(np.int64(seed)))
            x0, x1, x2, x3 = load(a + at, left)
            y0, y1 = kept(w0, x0, threshold, scale), kept(w1, x1, threshold, scale)
            y2, y3 = kept(w2, x2, threshold, scale), kept(w3, x3, threshold, scale)
            if adds:
                r0, r1, r2, r3 = load(residual + at, left)
                store(out + at, left, r0 + y0, r1 + y1, r2 + y2, r3 + y3)
            else:
                store(out + at, left, y0, y1, y2, y3)
            turn += cuda.gridsize(1)

    kinds = [*[types.int64] * 5, kernel_types[dtype.name], types.int64, types.int64]
    return Kernel(drop, f"dropout_{dtype.name}", kinds)


def _signed(word: int) -> int:
    """Return the int64 with the same low 64 bits as `word`, because kernels take int64."""
    return ((word & (1 << 64) - 1) ^ 1 << 63) - (1 << 63)


def _blocks(count: int) -> int:
    """Return how many blocks to start to draw `count` elements."""
    return blocks_for(-(-counters_needed(count) // THREADS))


def _drawn(
    name: str, shape: Shape, dtype: Any, stored_as: Any, seed: int, offset: int, low: int = 0, span: int = 1
) -> DeviceArray:
    out = empty(shape, dtype)
    if out.size:
        drawing(name, np.dtype(stored_as)).launch(
            _blocks(out.size), out.size, out.address, *map(_signed, (seed, offset, low, span))
        )
    return out


def uniform(shape: Shape, dtype: Any, seed: int, offset: int) -> DeviceArray:
    """Return numbers uniform in [0, 1): multiples of 2**-53 in float64, else of 2**-24, rounded in half precision."""
    return _drawn("uniform", shape, dtype, dtype, seed, offset)


def normal(shape: Shape, dtype: Any, seed: int, offset: int) -> DeviceArray:
    """Return numbers of the standard normal distribution, of magnitude up to 5.8, or 8.6 in float64."""
    return _drawn("normal", shape, dtype, dtype, seed, offset)


def words64(shape: Shape, seed: int, offset: int) -> DeviceArray:
    """Return uniformly distributed random uint64 numbers."""
    return _drawn("words64", shape, np.uint64, np.int64, seed, offset)


def randint(low: int, high: int, shape: Shape, seed: int, offset: int) -> DeviceArray:
    """Return uniform int64 in [low, high). The relative error of probabilities is below (high - low) / 2**64."""
    require_range(low, high)
    return _drawn("randint", shape, np.int64, np.int64, seed, offset, low, high - low)


def permutation(n: int, seed: int, offset: int) -> DeviceArray:
    """Return the numbers 0 to n - 1 in random order, as int64."""
    words = _drawn("words64", (n,), np.int64, np.int64, seed, offset)
    return in_order(words.view(np.uint64), 0, False, n)[1]


def dropout(a: DeviceArray, p: float, seed: int, offset: int, residual: DeviceArray | None = None) -> DeviceArray:
    """Return `a` with each element, even NaN, set to 0 with probability `p`, and other elements scaled by 1 / (1 - p).

    `residual`, if given, is added to the result. Raises ValueError also if the shape or dtype of `residual` is not the
    shape or dtype of `a`.
    """
    require_probability(p)
    if residual is not None and (residual.shape, residual.dtype) != (a.shape, a.dtype):
        raise ValueError(
            f"dropout: got a residual of shape {residual.shape} and {residual.dtype} for an array of shape {a.shape} "
            f"and {a.dtype}; both must be the same; broadcast and convert it first"
        )
    if p == 1:  # 1 / (1 - p) is undefined
        return zeros(a.shape, a.dtype) if residual is None else copy(residual)
    out = empty(a.shape, a.dtype)
    if not a.size:
        return out
    threshold, scale = threshold_and_scale(p)
    a = contiguous(a)
    other = a if residual is None else contiguous(residual)
    lanes = min(WORDS_PER_COUNTER, widest(a.dtype.itemsize, a.address, other.address))
    dropping(a.dtype, lanes, residual is not None).launch(
        _blocks(a.size), a.size, a.address, other.address, out.address, threshold, scale,
        _signed(seed), _signed(offset),
    )  # fmt: skip
    return out
