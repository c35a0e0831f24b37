"""Batch, instance and group normalization on a device, forward and backward: their parameters are per channel.

The elements that share a mean and a variance are called a unit. A unit consists of runs of adjacent elements: a group
of one sample is one run, a channel of a batch has a run in every sample. Blocks of threads add up parts of a unit, and
then one thread per unit adds the sums of the parts. Sums are float64 sums of distances from the unit's first element,
so that a large mean costs no accuracy. The backward pass adds up each channel in the same way, and computes the sums of
units and the gradients of parameters from the channels' sums.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import compute, contiguous
from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, cuda, device, for_each_group, for_each_turn
from spillgrad_kernels.cuda.pointers import WORD_BYTES, computing_dtype, loaders, quotient, storers, widest
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.layout import Shape

# The number of elements of a unit that one block adds up. It is the same on all devices, and so are the results.
_PART_ELEMENTS = 1 << 14


def _normalized(x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    return (x - mean) * rstd * weight + bias


def _by_input(g: Any, x: Any, weight: Any, mean: Any, rstd: Any, shift: Any, slope: Any) -> Any:
    return rstd * (g * weight - shift - (x - mean) * rstd * slope)


def _beginning(dtype: np.dtype[Any], backward: bool) -> Callable[..., Any]:
    """Return the device function that loads two numbers of a unit, which its elements' terms (see `adding`) use.

    In the backward pass, the numbers are the mean and the reciprocal deviation; in the forward pass, the first element,
    and an unused number.
    """
    loaded = computing_dtype(dtype) if backward else dtype
    load, size = loaders[loaded.name, 1], loaded.itemsize

    @device
    def begin(unit: int, run: int, inner: int, x: int, mean: int, rstd: int) -> Any:
        if backward:
            at = quotient(unit, inner) * size
            return load(mean + at), load(rstd + at)
        origin = load(x + unit * run * size)
        return origin, origin

    return begin


def _terms(dtype: np.dtype[Any], lanes: int, backward: bool) -> Callable[..., Any]:
    """Return the device function that returns the sums of both terms (see `adding`) over `lanes` adjacent elements."""
    every = range(lanes)
    x, g = (", ".join([f"{letter}{i}" for i in every]) for letter in "xg")
    lines = ["def terms(at, further, centre, scale):", f"    {x} = load(at)"]
    if backward:
        lines += [f"    {g} = load(further)"]
        lines += [f"    f{i}, s{i} = float64(g{i}), float64(g{i} * ((x{i} - centre) * scale))" for i in every]
    else:
        lines += [f"    f{i} = float64(x{i} - centre)" for i in every] + [f"    s{i} = f{i} * f{i}" for i in every]
    lines += [f"    return {' + '.join([f'f{i}' for i in every])}, {' + '.join([f's{i}' for i in every])}"]
    namespace: dict[str, Any] = {"load": loaders[dtype.name, lanes], "float64": np.float64}
    exec(compile("\n".join(lines), "<terms>", "exec"), namespace)
    return device(namespace["terms"])


@functools.cache
def adding(dtype: np.dtype[Any], lanes: int, backward: bool) -> Kernel:
    """Return the kernel that computes two sums of terms of elements, for each part of each unit.

    In the forward pass, the terms are the distance from the unit's first element, and the square of this distance. In
    the backward pass, they are the gradient, and the gradient times the normalized element. A thread takes groups of
    `lanes` adjacent elements; all lengths are numbers of groups.
    """
    begin, terms = _beginning(dtype, backward), _terms(dtype, lanes, backward)
    store, threads, nbytes = storers["float64", 2], THREADS, lanes * dtype.itemsize

    def add_terms(
        group: int, units: int, parts: int, length: int, n: int, run: int, inner: int, x: int, grad: int, mean: int,
        rstd: int, sums: int,
    ) -> None:  # fmt: skip
        firsts = cuda.shared.array(threads, types.float64)
        seconds = cuda.shared.array(threads, types.float64)
        thread = cuda.threadIdx.x
        # The distance to a thread's next element, in whole runs and in further elements.
        runs_on = quotient(threads, run)
        places_on = threads - runs_on * run
        unit = quotient(group, parts)
        part = group - unit * parts
        position = part * length + thread
        last = (part + 1) * length if (part + 1) * length < n else n
        at = quotient(position, run)
        place = position - at * run
        centre, scale = begin(unit, run * lanes, inner, x, mean, rstd)
        first, second = np.float64(0), np.float64(0)
        while position < last:
            offset = ((at * units + unit) * run + place) * nbytes
            one, other = terms(x + offset, grad + offset, centre, scale)
            first += one
            second += other
            position += threads
            at += runs_on
            place += places_on
            if place >= run:
                place -= run
                at += 1
        firsts[thread], seconds[thread] = first, second
        cuda.syncthreads()
        half = threads >> 1
        while half > 0:
            if thread < half:
                firsts[thread] += firsts[thread + half]
                seconds[thread] += seconds[thread + half]
            cuda.syncthreads()
            half >>= 1
        if thread == 0:
            store(sums + 2 * group * WORD_BYTES, firsts[0], seconds[0])
        cuda.syncthreads()

    name = f"{'gradients' if backward else 'moments'}_by_channel_{dtype.name}_x{lanes}"
    return Kernel(for_each_group(add_terms), name)


_load_sums = loaders["float64", 2]


@device
def _join(sums: int, unit: int, parts: int) -> Any:
    """Return both sums of a unit, added up from the sums of the unit's parts."""
    first, second = np.float64(0), np.float64(0)
    for part in range(unit * parts, (unit + 1) * parts):
        one, other = _load_sums(sums + 2 * part * WORD_BYTES)
        first += one
        second += other
    return first, second


@functools.cache
def finishing(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that computes mean, variance and reciprocal deviation of each unit from its parts' sums."""
    load, size = loaders[dtype.name, 1], dtype.itemsize
    store, number_size = storers[computing_dtype(dtype).name, 1], computing_dtype(dtype).itemsize

    def finish_moments(
        unit: int, parts: int, n: int, run: int, x: int, sums: int, mean: int, rstd: int, variance: int, eps: float
    ) -> None:
        distance, squares = _join(sums, unit, parts)
        distance /= n
        spread = squares / n - distance * distance
        if spread < 0:  # negative by rounding; a NaN stays NaN
            spread = np.float64(0)
        store(mean + unit * number_size, np.float64(load(x + unit * run * size)) + distance)
        store(rstd + unit * number_size, 1 / math.sqrt(spread + eps))
        store(variance + unit * number_size, spread)

    return Kernel(for_each_turn(finish_moments), f"finish_moments_{dtype.name}", [*[types.int64] * 9, types.float64])


@functools.cache
def tracking(number: np.dtype[Any], running: np.dtype[Any]) -> Kernel:
    """Return the kernel that moves each channel's running statistic towards the statistic's average over samples."""
    load, size = loaders[number.name, 1], number.itemsize
    load_running, store_running = loaders[running.name, 1], storers[running.name, 1]

    def track(
        c: int, channels: int, samples: int, step: int, values: int, running: int, momentum: float, factor: float
    ) -> None:
        total = np.float64(0)
        for sample in range(samples):
            total += np.float64(load(values + (sample * channels + c) * size))
        at = running + c * step
        store_running(at, (1 - momentum) * np.float64(load_running(at)) + momentum * (total / samples * factor))

    kinds = [*[types.int64] * 6, types.float64, types.float64]
    return Kernel(for_each_turn(track), f"track_{number.name}_in_{running.name}", kinds)


@functools.cache
def sharing(number: np.dtype[Any], weight: np.dtype[Any]) -> Kernel:
    """Return the kernel that computes, from channels' sums, two numbers of each unit and the gradients of parameters.

    The gradients of all elements of a unit are computed from the unit's numbers, `shift` and `slope`. The first threads
    compute the numbers of units, the others compute the gradients. A missing weight counts as 1.
    """
    load_weight, weight_size = loaders[weight.name, 1], weight.itemsize
    store, size = storers[number.name, 1], number.itemsize

    def share(
        turn: int, units: int, groups: int, inner: int, samples: int, parts: int, count: int, weight: int, sums: int,
        shift: int, slope: int, by_weight: int, by_bias: int,
    ) -> None:  # fmt: skip
        channels = groups * inner
        plain, weighted = np.float64(0), np.float64(0)
        if turn < units:
            first = (turn - quotient(turn, groups) * groups) * inner
            for k in range(inner):
                one, other = _join(sums, turn * inner + k, parts)
                factor = np.float64(1)
                if weight != 0:
                    factor = np.float64(load_weight(weight + (first + k) * weight_size))
                plain += one * factor
                weighted += other * factor
            store(shift + turn * size, plain / count)
            store(slope + turn * size, weighted / count)
        else:
            c = turn - units
            for sample in range(samples):
                one, other = _join(sums, sample * channels + c, parts)
                plain += one
                weighted += other
            store(by_weight + c * size, weighted)
            store(by_bias + c * size, plain)

    return Kernel(for_each_turn(share), f"share_by_channel_{number.name}")


def _summed(
    backward: bool, units: int, n: int, run: int, inner: int, x: DeviceArray, *others: DeviceArray
) -> tuple[DeviceArray, int]:
    """Return both sums of each part of each unit (see `adding`), and the number of parts of a unit."""
    parts = -(-n // _PART_ELEMENTS)
    sums = empty((units, parts, 2), np.float64)
    addresses = [other.address for other in others] if others else [0, 0, 0]
    lanes = widest(x.itemsize, x.address, addresses[0], run * x.itemsize)
    adding(x.dtype, lanes, backward).run_blocks(
        units * parts, units, parts, _PART_ELEMENTS // lanes, n // lanes, run // lanes, inner, x.address, *addresses,
        sums.address,
    )  # fmt: skip
    return sums, parts


def _factor(value: DeviceArray | None, places: Shape, number: np.dtype[Any], default: float) -> Any:
    return number.type(default) if value is None else value.reshape(1, places[1], places[2], 1)


def normalize(
    x: DeviceArray, weight: DeviceArray | None, bias: DeviceArray | None, places: Shape, dims: Shape, eps: float,
    running: tuple[DeviceArray | None, ...], momentum: float,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    """Normalize `x`, and update the running statistics in place; return (out, mean, rstd).

    `places` is the shape that x stands for: (samples, groups, inner, elements of a channel). `dims` are the dimensions
    of `places` that a unit spans.
    Shapes: x (samples, groups * inner, ...); weight, bias and each array of `running` (groups * inner,); mean and rstd
    as `places`, with 1 in place of the sizes of `dims`.
    """
    groups, inner = places[1:3]
    number = computing_dtype(x.dtype)
    shape = tuple([1 if d in dims else size for d, size in enumerate(places)])
    out = empty(x.shape, x.dtype)
    mean, rstd, variance = (empty(shape, number) for _ in range(3))
    if not out.size:
        mean.fill(math.nan)
        rstd.fill(math.nan)
        return out, mean, rstd
    x = contiguous(x)
    units, run, n = mean.size, math.prod(places[2:]), math.prod(places[d] for d in dims)
    sums, parts = _summed(False, units, n, run, inner, x)
    finishing(x.dtype).run(
        units, parts, n, run, x.address, sums.address, mean.address, rstd.address, variance.address, eps
    )
    for statistic, values, factor in zip(running, (mean, variance), (1.0, n / max(n - 1, 1)), strict=True):
        if statistic is not None:
            tracking(number, statistic.dtype).run(
                groups, groups, shape[0], statistic.strides[0], values.address, statistic.address, momentum, factor
            )
    operands = [x.reshape(places), mean, rstd, _factor(weight, places, number, 1), _factor(bias, places, number, 0)]
    compute(_normalized, "channel_norm", operands, (out.dtype,), (out.reshape(places),))
    return out, mean, rstd


def gradients(
    grad: DeviceArray, x: DeviceArray, weight: DeviceArray | None, mean: DeviceArray, rstd: DeviceArray, places: Shape,
    dims: Shape,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    """Return the gradients of `normalize` by its input, weight and bias.

    The gradients by weight and bias are flat, never of half precision, and are returned even if the weight or bias is
    missing.
    """
    samples, groups, inner, each = places
    number = computing_dtype(x.dtype)
    by_input, by_weight, by_bias = empty(x.shape, x.dtype), empty((x.shape[1],), number), empty((x.shape[1],), number)
    if not by_input.size:
        by_weight.fill(0)
        by_bias.fill(0)
        return by_input, by_weight, by_bias
    grad, x, mean, rstd = contiguous(grad), contiguous(x), contiguous(mean), contiguous(rstd)
    rows = mean.shape[0]
    channels = rows * groups * inner
    sums, parts = _summed(True, channels, samples // rows * each, each, inner, x, grad, mean, rstd)
    shift, slope = empty(mean.shape, number), empty(mean.shape, number)
    factors = None if weight is None else contiguous(weight)
    sharing(number, number if factors is None else factors.dtype).run(
        mean.size + x.shape[1], mean.size, groups, inner, rows, parts,
        math.prod(places[d] for d in dims), 0 if factors is None else factors.address, sums.address, shift.address,
        slope.address, by_weight.address, by_bias.address,
    )  # fmt: skip
    operands = [
        grad.reshape(places), x.reshape(places), _factor(factors, places, number, 1), mean, rstd, shift, slope,
    ]  # fmt: skip
    compute(_by_input, "channel_norm_backward", operands, (by_input.dtype,), (by_input.reshape(places),))
    return by_input, by_weight, by_bias
