"""Optimizer updates in place on a device, by the CPU's rules, and the norm for gradient clipping."""

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
from spillgrad_kernels.cuda.pointers import loaders, storers
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.optim import Update, adam, adamw, lion, scaled, sgd

__all__ = ["adam", "adamw", "lion", "run", "scaled", "sgd", "sums_of_squares"]

# Elements that one block of threads squares and adds up, whatever the device: results do not depend on it.
_PART_ELEMENTS = 1 << 14


def run(updates: Iterable[Update]) -> None:
    """Update all parameters; their memory may lie in any layout."""
    for rule, param, grad, state, numbers in updates:
        outs = (param, *state)
        given = [param.dtype.type(number) for number in numbers]
        name = rule.formula.__name__
        compute(rule.formula, name, (param, grad, *state, *given), tuple([out.dtype for out in outs]), outs)


@functools.cache
def squaring(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that writes the sum of the squares, in float64, of each part of an array."""
    load, store, size = loaders[dtype.name, 1], storers["float64", 1], dtype.itemsize

    def square(n: int, parts: int, length: int, a: int, sums: int) -> None:
        shared = cuda.shared.array(THREADS, types.float64)
        thread = cuda.threadIdx.x
        part = cuda.blockIdx.x
        while part < parts:
            last = (part + 1) * length if (part + 1) * length < n else n
            total = np.float64(0)
            i = part * length + thread
            while i < last:
                x = np.float64(load(a + i * size))
                total += x * x
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
                store(sums + part * 8, shared[0])
            cuda.syncthreads()
            part += cuda.gridDim.x

    square.__name__ = f"square_{dtype.name}"
    return Kernel(square, [types.int64] * 5)


def sums_of_squares(arrays: Sequence[DeviceArray]) -> list[float]:
    """Return the sum of the squared elements of each array, accumulated in float64; all have one dtype.

    Waits until the device has computed them.
    """
    if not arrays:
        return []
    if arrays[0].dtype not in FLOATS or any(a.dtype != arrays[0].dtype for a in arrays):
        listed = ", ".join(sorted({str(a.dtype) for a in arrays}))
        raise TypeError(f"sums_of_squares: got {listed}; all must be float32, or all float64")
    starts = [0, *itertools.accumulate(-(-a.size // _PART_ELEMENTS) for a in arrays)]
    partials = empty((starts[-1],), np.float64)
    kernel = squaring(arrays[0].dtype)
    for (start, stop), a in zip(itertools.pairwise(starts), arrays, strict=True):
        if a.size:
            blocks = blocks_for((stop - start) * THREADS, THREADS)
            dense = contiguous(a)
            kernel.launch(blocks, a.size, stop - start, _PART_ELEMENTS, dense.address, partials.address + start * 8)
    sums = partials.to_host()
    return [float(sums[start:stop].sum()) for start, stop in itertools.pairwise(starts)]
