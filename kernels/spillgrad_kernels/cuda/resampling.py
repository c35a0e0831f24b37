"""Resize images on a device: each result is a weighted sum of a few elements along a dimension."""

import functools
import math
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import empty, table
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.jit.compile import Kernel, for_each_turn
from spillgrad_kernels.cuda.pointers import WORD_BYTES, computing_dtype, loaders, quotient, storers
from spillgrad_kernels.device_array import DeviceArray


@functools.cache
def summing(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that computes weighted sums along the second dimension, one thread per sum.

    Shapes: x (outer, size, inner), out (outer, results, inner). The kernel's argument `indices` is the address of a
    table: the position of each result's first term, then of each result's second term, and so on, then the weights in
    the same order.
    """
    load, store, itemsize = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    number = computing_dtype(dtype)
    load_word, load_weight, weight_bytes = loaders["int64", 1], loaders[number.name, 1], number.itemsize
    nothing = number.type(0)

    def add_terms(turn: int, results: int, inner: int, size: int, terms: int, indices: int, x: int, out: int) -> None:
        weights = indices + terms * results * WORD_BYTES
        row = quotient(turn, inner)
        o = quotient(row, results)
        source = x + (o * size * inner + turn - row * inner) * itemsize
        term = row - o * results
        total = nothing
        for _ in range(terms):
            value = load(source + load_word(indices + term * WORD_BYTES) * inner * itemsize)
            total += value * load_weight(weights + term * weight_bytes)
            term += results
        store(out + turn * itemsize, total)

    return Kernel(for_each_turn(add_terms), f"resample_{dtype.name}")


@functools.lru_cache(maxsize=256)
def _tabled(taps: Any, number: np.dtype[Any]) -> tuple[int, bytes]:
    """Return the number of terms of each sum, and the content of the table that the kernel reads (see `summing`)."""
    indices = np.array(taps.indices, np.int64)
    weights = np.ones(indices.shape) if taps.weights is None else np.array(taps.weights)
    used = weights.any(1)
    # In place of no element, the kernel reads the first one, times 0.
    return int(used.sum()), np.maximum(indices[used], 0).tobytes() + weights[used].astype(number).tobytes()


def resample(x: DeviceArray, dim: int, taps: Any) -> DeviceArray:
    """Return weighted sums of `x` along `dim`. `taps` has positions and weights (`spillgrad.ops.interpolate.Taps`)."""
    out = empty((*x.shape[:dim], taps.results, *x.shape[dim + 1 :]), x.dtype)
    if out.size:
        terms, content = _tabled(taps, computing_dtype(x.dtype))
        x, inner = contiguous(x), math.prod(x.shape[dim + 1 :])
        summing(x.dtype).run(
            out.size, taps.results, inner, x.shape[dim], terms, table(content).address, x.address, out.address
        )
    return out
