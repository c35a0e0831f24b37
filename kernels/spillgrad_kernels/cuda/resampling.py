"""Weighted sums of a few elements along a dimension on a device: images of another size."""

import functools
import math
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.array import empty, table
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.jit.compile import Kernel, blocks_for, cuda
from spillgrad_kernels.cuda.pointers import HALF, loaders, quotient, storers
from spillgrad_kernels.device_array import DeviceArray

_WORD = 8  # bytes


@functools.cache
def summing(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that computes (outer, results, inner) out of (outer, size, inner), a thread for each result.

    The table has the elements of each result's terms, term by term, and then their weights.
    """
    load, store, itemsize = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    number = _number(dtype)
    load_word, load_weight, weight_bytes = loaders["int64", 1], loaders[number.name, 1], number.itemsize
    nothing = number.type(0)

    def add_terms(
        count: int, results: int, inner: int, size: int, terms: int, indices: int, x: int, out: int
    ) -> None:  # fmt: skip
        weights = indices + terms * results * _WORD
        turn = cuda.grid(1)
        while turn < count:
            row = quotient(turn, inner)
            o = quotient(row, results)
            source = x + (o * size * inner + turn - row * inner) * itemsize
            term = row - o * results
            total = nothing
            for _ in range(terms):
                value = load(source + load_word(indices + term * _WORD) * inner * itemsize)
                total += value * load_weight(weights + term * weight_bytes)
                term += results
            store(out + turn * itemsize, total)
            turn += cuda.gridsize(1)

    add_terms.__name__ = f"resample_{dtype.name}"
    return Kernel(add_terms, [types.int64] * 8)


def _number(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.name in HALF else dtype


@functools.lru_cache(maxsize=256)
def _tabled(taps: Any, number: np.dtype[Any]) -> tuple[int, bytes]:
    """Return how many terms sums have, and the content of their table."""
    indices = np.array(taps.indices, np.int64)
    weights = np.ones(indices.shape) if taps.weights is None else np.array(taps.weights)
    used = weights.any(1)
    return int(used.sum()), indices[used].tobytes() + weights[used].astype(number).tobytes()


def resample(x: DeviceArray, dim: int, taps: Any) -> DeviceArray:
    """Return the weighted sums along a dimension that `taps` say; see `spillgrad.ops.interpolate.Taps`."""
    out = empty((*x.shape[:dim], taps.results, *x.shape[dim + 1 :]), x.dtype)
    if out.size:
        terms, content = _tabled(taps, _number(x.dtype))
        x, kernel = contiguous(x), summing(x.dtype)
        kernel.launch(
            blocks_for(out.size, kernel.threads), out.size, taps.results, math.prod(x.shape[dim + 1 :]), x.shape[dim],
            terms, table(content).address, x.address, out.address,
        )  # fmt: skip
    return out
