"""Images of another size: along a dimension, every result is a weighted sum of a few elements."""

import functools
import math
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import like_of
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for


@jit
def _add_terms(start: int, stop: int, x: Any, indices: Any, weights: Any, is_whole: Any, out: Any) -> None:
    """Set out[o, r] to the sum over k of weights[k, r] * x[o, indices[k, r]]; an index of -1 adds nothing.

    `is_whole[k]` says that no index of term k is -1. A unit of work is an index of the first dimension.
    Shapes: x (outer, size, inner), out (outer, results, inner).
    """
    terms, results = indices.shape
    like, inner = like_of(x), x.shape[2]
    row = inner * x.itemsize
    for o in range(start, stop):
        source = np.intp(x.ctypes.data) + o * x.shape[1] * row
        target = np.intp(out.ctypes.data) + o * results * row
        if inner == 1:  # one row of sums, whose terms lie anywhere
            y, seen = array_at(like, target, results), array_at(like, source, x.shape[1])
            for r in range(results):
                y[r] = 0
            for k in range(terms):
                if is_whole[k]:
                    for r in range(results):
                        y[r] += weights[k, r] * seen[indices[k, r]]
                else:
                    for r in range(results):
                        if indices[k, r] >= 0:
                            y[r] += weights[k, r] * seen[indices[k, r]]
            continue
        for r in range(results):
            y = array_at(like, target + r * row, inner)
            for j in range(inner):
                y[j] = 0
            for k in range(terms):
                if indices[k, r] >= 0:
                    w, seen = weights[k, r], array_at(like, source + indices[k, r] * row, inner)
                    for j in range(inner):
                        y[j] += w * seen[j]


@functools.lru_cache(maxsize=256)
def _tables(taps: Any, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    indices = np.array(taps.indices, np.int64)
    weights = np.ones(indices.shape, dtype) if taps.weights is None else np.array(taps.weights, dtype)
    return indices, weights, np.all(indices >= 0, axis=1)


@on_device("resampling")
def resample(x: np.ndarray, dim: int, taps: Any) -> np.ndarray:
    """Return weighted sums of `x` along `dim`. `taps` has positions and weights (`spillgrad.ops.interpolate.Taps`)."""
    out = buffers.empty((*x.shape[:dim], taps.results, *x.shape[dim + 1 :]), x.dtype)
    if out.size:
        outer, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
        tables = _tables(taps, x.dtype)
        parallel_for(
            _add_terms, outer, grain_of(out.size // outer * len(tables[0])),
            np.ascontiguousarray(x).reshape(outer, -1, inner), *tables, out.reshape(outer, -1, inner),
        )  # fmt: skip
    return out
