"""Batch, instance and group normalization, forward and backward: their parameters are per channel.

The elements that share a mean and a variance are called a unit. A unit consists of runs of adjacent elements: a group
of one sample is one run, a channel of a batch has a run in every sample. A unit is read three times in succession, so
one that fits the second-level cache is read from memory once.
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


def _parameter(value: np.ndarray | None, places: Shape, dtype: np.dtype[Any], default: float) -> np.ndarray:
    if value is None:
        return np.full(places[1:3], default, dtype)
    return np.ascontiguousarray(value).reshape(places[1:3])


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
        parallel_for(
            _normalize, mean.size, grain_of(each), np.ascontiguousarray(x).reshape(places),
            _parameter(weight, places, x.dtype, 1), _parameter(bias, places, x.dtype, 0), 0 in dims, float(eps),
            out.reshape(places), mean.reshape(-1), rstd.reshape(-1), variance.reshape(-1),
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
    plain, weighted = np.zeros((2, *places[:3]))
    if by_input.size:
        grad, x = np.ascontiguousarray(grad), np.ascontiguousarray(x)
        parallel_for(
            _gradients, mean.size, grain_of(x.size // mean.size), grad.reshape(places), x.reshape(places),
            _parameter(weight, places, x.dtype, 1), np.ascontiguousarray(mean).reshape(-1),
            np.ascontiguousarray(rstd).reshape(-1), 0 in dims, by_input.reshape(places), plain, weighted,
        )  # fmt: skip
    by_weight, by_bias = (sums.sum(0).reshape(-1).astype(x.dtype) for sums in (weighted, plain))
    return by_input, by_weight, by_bias
