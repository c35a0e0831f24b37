"""Optimizer updates in place on a device, by the CPU's rules, and the norm for gradient clipping.

Clipping need not wait for the device: `squares_on_device` and `clipping` leave their results there, and the number that
`scaled` multiplies by may be one of them.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.compile import FLOATS
from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.compile import THREADS, Kernel, blocks_for, cuda
from spillgrad_kernels.cuda.elementwise import compute, contiguous
from spillgrad_kernels.cuda.pointers import loaders, quotient, storers
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.optim import Update, adam, adamw, lion, scaled, sgd
from spillgrad_kernels.scalar_math import sqrt, where

__all__ = ["adam", "adamw", "clipping", "lion", "run", "scaled", "sgd", "squares_on_device", "sums_of_squares"]

# Elements that one block of threads squares and adds up, whatever the device: results do not depend on it.
_PART_ELEMENTS = 1 << 14
_WORD = 8  # bytes
# Words that one launch brings to the device.
_WORDS_AT_ONCE = 48


def run(updates: Iterable[Update]) -> None:
    """Update all parameters; their memory may lie in any layout. A rule's numbers may be arrays without dimensions."""
    for rule, param, grad, state, numbers in updates:
        outs = (param, *state)
        given = [number if isinstance(number, DeviceArray) else param.dtype.type(number) for number in numbers]
        name = rule.formula.__name__
        compute(rule.formula, name, (param, grad, *state, *given), tuple([out.dtype for out in outs]), outs)


@functools.cache
def writing() -> Kernel:
    """Return the kernel that writes what it is given: unlike a copy from the host, a launch never waits."""
    names = [f"word{i}" for i in range(_WORDS_AT_ONCE)]
    lines = [f"    store(at + {i * _WORD}, {name})" for i, name in enumerate(names)]
    namespace: dict[str, Any] = {"store": storers["int64", 1]}
    exec("\n".join([f"def write_words(at, {', '.join(names)}):", *lines]), namespace)
    return Kernel(namespace["write_words"], [types.int64] * (1 + _WORDS_AT_ONCE), 1)


@functools.lru_cache(maxsize=64)  # gradients lie where they lay a step before
def _on_device(words: tuple[int, ...]) -> DeviceArray:
    """Return an array that begins with these words, which nobody may change."""
    made = empty((-(-len(words) // _WORDS_AT_ONCE) * _WORDS_AT_ONCE,), np.int64)
    for start in range(0, len(words), _WORDS_AT_ONCE):
        some = words[start : start + _WORDS_AT_ONCE]
        writing().launch(1, made.address + start * _WORD, *some, *[0] * (_WORDS_AT_ONCE - len(some)))
    return made


@functools.cache
def adding(dtype: np.dtype[Any], squares: bool) -> Kernel:
    """Return the kernel that writes the sum of each part of many arrays, or of its squares, in float64.

    `table` has three words for each array: the number of its first part, its size and its address.
    """
    load, load_word, store, size = loaders[dtype.name, 1], loaders["int64", 1], storers["float64", 1], dtype.itemsize

    def add_parts(arrays: int, parts: int, length: int, table: int, sums: int) -> None:
        shared = cuda.shared.array(THREADS, types.float64)
        thread = cuda.threadIdx.x
        part = cuda.blockIdx.x
        while part < parts:
            row, beyond = 0, arrays  # the last array that begins at this part or before
            while beyond - row > 1:
                middle = quotient(row + beyond, 2)
                if load_word(table + middle * 3 * _WORD) <= part:
                    row = middle
                else:
                    beyond = middle
            at = table + row * 3 * _WORD
            n, a = load_word(at + _WORD), load_word(at + 2 * _WORD)
            i = (part - load_word(at)) * length + thread
            last = i - thread + length if i - thread + length < n else n
            total = np.float64(0)
            while i < last:
                x = np.float64(load(a + i * size))
                total += x * x if squares else x
                i += THREADS
            shared[thread] = total
            cuda.syncthreads()
            half = THREADS >> 1
            while half > 0:
                if thread < half:
                    shared[thread] += shared[thread + half]
                cuda.syncthreads()
                half >>= 1
            if thread == 0:
                store(sums + part * _WORD, shared[0])
            cuda.syncthreads()
            part += cuda.gridDim.x

    add_parts.__name__ = f"add_{'squares' if squares else 'parts'}_{dtype.name}"
    return Kernel(add_parts, [types.int64] * 5)


def squares_on_device(arrays: Sequence[DeviceArray]) -> DeviceArray:
    """Return what `sums_of_squares` does, in an array on the device: nothing waits for it.

    Shapes: result (n,), float64, for n arrays.
    """
    if not arrays:
        return empty((0,), np.float64)
    if arrays[0].dtype not in FLOATS or any(a.dtype != arrays[0].dtype for a in arrays):
        listed = ", ".join(sorted({str(a.dtype) for a in arrays}))
        raise TypeError(f"sums_of_squares: got {listed}; all must be float32, or all float64")
    dense = [contiguous(a) for a in arrays]
    # An array without elements has a part too, of which nothing is read.
    starts = [0, *itertools.accumulate(max(1, -(-a.size // _PART_ELEMENTS)) for a in dense)]
    partials, sums = empty((starts[-1],), np.float64), empty((len(dense),), np.float64)
    _add(dense[0].dtype, True, starts, [(a.size, a.address) for a in dense], _PART_ELEMENTS, partials)
    parts = [(stop - start, partials.address + start * _WORD) for start, stop in itertools.pairwise(starts)]
    _add(partials.dtype, False, range(len(parts) + 1), parts, starts[-1], sums)
    return sums


def _add(
    dtype: np.dtype[Any], squares: bool, starts: Sequence[int], arrays: list[tuple[int, int]], length: int,
    sums: DeviceArray,
) -> None:  # fmt: skip
    """Write the sums of parts of a length; arrays are given by size and address, and by their first parts."""
    words = [word for start, array in zip(starts, arrays, strict=False) for word in (start, *array)]
    blocks = blocks_for(starts[-1] * THREADS, THREADS)
    table = _on_device(tuple(words))
    adding(dtype, squares).launch(blocks, len(arrays), starts[-1], length, table.address, sums.address)


def sums_of_squares(arrays: Sequence[DeviceArray]) -> list[float]:
    """Return the sum of the squared elements of each array, accumulated in float64; all have one dtype.

    Waits until the device has computed them.
    """
    return squares_on_device(arrays).to_host().tolist()  # type: ignore[no-any-return]


def _clipping(total: Any, max_norm: Any) -> Any:
    norm = sqrt(total)
    factor = max_norm / (norm + 1e-6)
    return norm, where(factor >= 1, 1, factor)  # NaN too: it must reach the weights, not hide


def clipping(squares: DeviceArray, max_norm: float, dtype: Any) -> tuple[DeviceArray, DeviceArray]:
    """Return (norm, factor) on the device: the common norm of arrays, and what scales them to at most `max_norm`.

    Shapes: squares as `squares_on_device` returns them; norm float64 and factor of `dtype`, both without dimensions.
    """
    total = sum_over(squares, (0,))
    norm, factor = compute(_clipping, "clipping", [total, np.float64(max_norm)], (np.float64, dtype))
    return norm, factor
