"""Batch, instance and group normalization, forward and backward: their parameters are per channel.

The elements that share a mean and a variance are called a unit. A unit consists of runs of adjacent elements: a group
of one sample is one run, a channel of a batch has a run in every sample. A unit is read three times in succession, so
one that fits the second-level cache is read from memory once. If runs are single elements, as in a batch of vectors,
units are neighbours in memory, and a unit of work is a block of them.
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import like_of
from spillgrad_kernels.cpu.rows import RUN, row_squares, row_sum
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import REASSOCIATE, jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for

Shape = tuple[int, ...]

# The number of columns of a unit of work: two lines of the cache in float32, of every row.
_BLOCK = 32


@jit
def _normalize(
    start: int, stop: int, x: Any, weight: Any, bias: Any, by_batch: bool, eps: float, out: Any, mean: Any, rstd: Any,
    variance: Any,
) -> None:  # fmt: skip
    """Normalize units `start` to `stop`: groups of all samples if `by_batch`, else groups of one sample.

    Shapes: x and out (samples, groups, inner, elements); weight and bias (groups, inner); mean, rstd and variance
    (units,).
    """
    like, size = like_of(x), x.itemsize
    samples, groups, inner, each = x.shape
    runs = samples if by_batch else 1
    run = inner * each
    stride = groups * run * size
    for unit in range(start, stop):
        first, result = np.intp(x.ctypes.data) + unit * run * size, np.intp(out.ctypes.data) + unit * run * size
        total, squares = 0.0, 0.0
        for s in range(runs):
            total += row_sum(array_at(like, first + s * stride, run))
        centre = mean.dtype.type(total / (runs * run))
        for s in range(runs):
            squares += row_squares(array_at(like, first + s * stride, run), centre)
        r = mean.dtype.type(1.0 / np.sqrt(squares / (runs * run) + eps))
        mean[unit], rstd[unit], variance[unit] = centre, r, squares / (runs * run)
        group = unit % groups
        for s in range(runs):
            for k in range(inner):
                place = s * stride + k * each * size
                w, b = weight[group, k], bias[group, k]
                a, y = array_at(like, first + place, each), array_at(like, result + place, each)
                for j in range(each):
                    y[j] = (a[j] - centre) * r * w + b


@jit(fastmath=REASSOCIATE)
def _run_sums(g: Any, x: Any, centre: Any) -> Any:
    plain, centred = x.dtype.type(0.0), x.dtype.type(0.0)
    for j in range(g.size):
        plain += g[j]
        centred += g[j] * (x[j] - centre)
    return plain, centred


@jit
def _gradients(
    start: int, stop: int, grad: Any, x: Any, weight: Any, mean: Any, rstd: Any, by_batch: bool, out: Any, plain: Any,
    weighted: Any,
) -> None:  # fmt: skip
    """Set the gradients of units `start` to `stop` by the input, and each channel's sums of each sample.

    `plain` are sums of gradients, `weighted` sums of gradients times normalized elements: of shape (samples, groups,
    inner), float64.
    """
    like, size = like_of(x), x.itemsize
    samples, groups, inner, each = x.shape
    runs = samples if by_batch else 1
    run = inner * each
    stride = groups * run * size
    for unit in range(start, stop):
        place = unit * run * size
        from_x, from_grad = np.intp(x.ctypes.data) + place, np.intp(grad.ctypes.data) + place
        result = np.intp(out.ctypes.data) + place
        centre, r = mean[unit], rstd[unit]
        sample, group = unit // groups, unit % groups
        shift, slope = 0.0, 0.0
        for s in range(runs):
            for k in range(inner):
                at, first, second = s * stride + k * each * size, 0.0, 0.0
                for j in range(0, each, RUN):
                    count = min(RUN, each - j)
                    g = array_at(like, from_grad + at + j * size, count)
                    sums = _run_sums(g, array_at(like, from_x + at + j * size, count), centre)
                    first += sums[0]
                    second += sums[1]
                second *= r
                plain[sample + s, group, k], weighted[sample + s, group, k] = first, second
                shift += first * weight[group, k]
                slope += second * weight[group, k]
        by_mean, by_deviation = out.dtype.type(shift / (runs * run)), out.dtype.type(slope / (runs * run))
        for s in range(runs):
            for k in range(inner):
                at, w = s * stride + k * each * size, weight[group, k]
                a, g = array_at(like, from_x + at, each), array_at(like, from_grad + at, each)
                y = array_at(like, result + at, each)
                for j in range(each):
                    y[j] = r * (g[j] * w - by_mean - (a[j] - centre) * r * by_deviation)


@jit
def _normalize_columns(
    start: int, stop: int, x: Any, weight: Any, bias: Any, eps: float, out: Any, mean: Any, rstd: Any, variance: Any
) -> None:
    """Normalize blocks `start` to `stop` of columns of x (samples, columns); the others are (columns,)."""
    like, size = like_of(x), x.itemsize
    samples, columns = x.shape
    totals, squares = np.empty(_BLOCK, np.float64), np.empty(_BLOCK, np.float64)
    for block in range(start, stop):
        first = block * _BLOCK
        count = min(_BLOCK, columns - first)
        source, result = np.intp(x.ctypes.data) + first * size, np.intp(out.ctypes.data) + first * size
        totals[:], squares[:] = 0, 0
        for s in range(samples):
            row = array_at(like, source + s * columns * size, count)
            for c in range(count):
                totals[c] += row[c]
        centre, r = mean[first : first + count], rstd[first : first + count]
        for c in range(count):
            centre[c] = totals[c] / samples
        for s in range(samples):
            row = array_at(like, source + s * columns * size, count)
            for c in range(count):
                squares[c] += (row[c] - centre[c]) * (row[c] - centre[c])
        for c in range(count):
            variance[first + c] = squares[c] / samples
            r[c] = 1.0 / np.sqrt(squares[c] / samples + eps)
        w, b = weight[first : first + count], bias[first : first + count]
        for s in range(samples):
            row = array_at(like, source + s * columns * size, count)
            y = array_at(like, result + s * columns * size, count)
            for c in range(count):
                y[c] = (row[c] - centre[c]) * r[c] * w[c] + b[c]


@jit
def _gradients_of_columns(
    start: int, stop: int, grad: Any, x: Any, weight: Any, mean: Any, rstd: Any, out: Any, plain: Any, weighted: Any
) -> None:
    """Set the gradients of blocks of columns by the input, and each column's sums (see `_gradients`)."""
    like, size = like_of(x), x.itemsize
    samples, columns = x.shape
    shift, slope = np.empty(_BLOCK, x.dtype), np.empty(_BLOCK, x.dtype)
    for block in range(start, stop):
        first = block * _BLOCK
        count = min(_BLOCK, columns - first)
        place = first * size
        from_x, from_grad = np.intp(x.ctypes.data) + place, np.intp(grad.ctypes.data) + place
        result = np.intp(out.ctypes.data) + place
        centre, r, w = mean[first : first + count], rstd[first : first + count], weight[first : first + count]
        firsts, seconds = plain[first : first + count], weighted[first : first + count]
        for s in range(samples):
            a = array_at(like, from_x + s * columns * size, count)
            g = array_at(like, from_grad + s * columns * size, count)
            for c in range(count):
                firsts[c] += g[c]
                seconds[c] += g[c] * (a[c] - centre[c])
        for c in range(count):
            seconds[c] *= r[c]
            shift[c], slope[c] = firsts[c] * w[c] / samples, seconds[c] * w[c] / samples
        for s in range(samples):
            a = array_at(like, from_x + s * columns * size, count)
            g = array_at(like, from_grad + s * columns * size, count)
            y = array_at(like, result + s * columns * size, count)
            for c in range(count):
                y[c] = r[c] * (g[c] * w[c] - shift[c] - (a[c] - centre[c]) * r[c] * slope[c])


def _parameter(value: np.ndarray | None, places: Shape, dtype: np.dtype[Any], default: float) -> np.ndarray:
    if value is None:
        return np.full(places[1:3], default, dtype)
    return np.ascontiguousarray(value).reshape(places[1:3])


def _has_single_runs(places: Shape, dims: Shape) -> bool:
    return 0 in dims and places[2] * places[3] == 1


def _track(running: np.ndarray | None, values: np.ndarray, momentum: float) -> None:
    """Move `running`, unless it is None, in place by `momentum` towards the mean of `values` over the samples."""
    if running is not None:
        running[...] = (1 - momentum) * running.astype(values.dtype) + momentum * np.mean(values, 0).reshape(-1)


@on_device("channel_norm")
def normalize(
    x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, places: Shape, dims: Shape, eps: float,
    running: tuple[np.ndarray | None, np.ndarray | None], momentum: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Normalize `x`, and update the running statistics in place; return (out, mean, rstd).

    `places` is the shape that x stands for: (samples, groups, inner, elements of a channel). `dims` are the dimensions
    of `places` that a unit spans: (2, 3), or (0, 2, 3).
    Shapes: x (samples, groups * inner, ...); weight, bias and each array of `running` (groups * inner,); mean and rstd
    as `places`, with 1 in place of the sizes of `dims`.
    """
    shape = tuple([1 if d in dims else size for d, size in enumerate(places)])
    out = buffers.empty(x.shape, x.dtype)
    mean, rstd, variance = (np.full(shape, math.nan, x.dtype) for _ in range(3))
    if out.size:
        each = out.size // mean.size
        x = np.ascontiguousarray(x)
        factors, terms = _parameter(weight, places, x.dtype, 1), _parameter(bias, places, x.dtype, 0)
        statistics = mean.reshape(-1), rstd.reshape(-1), variance.reshape(-1)
        if _has_single_runs(places, dims):
            columns = places[1]
            parallel_for(
                _normalize_columns, -(-columns // _BLOCK), grain_of(each * _BLOCK), x.reshape(-1, columns),
                factors.reshape(-1), terms.reshape(-1), float(eps), out.reshape(-1, columns), *statistics,
            )  # fmt: skip
        else:
            parallel_for(
                _normalize, mean.size, grain_of(each), x.reshape(places), factors, terms, 0 in dims, float(eps),
                out.reshape(places), *statistics,
            )  # fmt: skip
        variance *= each / max(each - 1, 1)
    for statistic, values in zip(running, (mean, variance), strict=True):
        _track(statistic, values, momentum)
    return out, mean, rstd


@on_device("channel_norm")
def gradients(
    grad: np.ndarray, x: np.ndarray, weight: np.ndarray | None, mean: np.ndarray, rstd: np.ndarray, places: Shape,
    dims: Shape,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return the gradients of `normalize` by its input, weight and bias.

    The gradients by weight and bias are flat, and are returned even if the weight or bias is missing.
    """
    by_input = buffers.empty(x.shape, x.dtype)
    single = _has_single_runs(places, dims)
    plain, weighted = np.zeros((2, 1 if single else places[0], *places[1:3]))
    if by_input.size:
        grad, x = np.ascontiguousarray(grad), np.ascontiguousarray(x)
        factors = _parameter(weight, places, x.dtype, 1)
        statistics = np.ascontiguousarray(mean).reshape(-1), np.ascontiguousarray(rstd).reshape(-1)
        if single:
            rows = places[0], places[1]
            parallel_for(
                _gradients_of_columns, -(-places[1] // _BLOCK), grain_of(places[0] * _BLOCK), grad.reshape(rows),
                x.reshape(rows), factors.reshape(-1), *statistics, by_input.reshape(rows), plain.reshape(-1),
                weighted.reshape(-1),
            )  # fmt: skip
        else:
            parallel_for(
                _gradients, mean.size, grain_of(x.size // mean.size), grad.reshape(places), x.reshape(places), factors,
                *statistics, 0 in dims, by_input.reshape(places), plain, weighted,
            )  # fmt: skip
    by_weight, by_bias = (sums.sum(0).reshape(-1).astype(x.dtype) for sums in (weighted, plain))
    return by_input, by_weight, by_bias
