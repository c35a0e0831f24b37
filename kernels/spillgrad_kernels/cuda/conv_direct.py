"""Convolution and its derivatives for groups with few outputs: one thread computes each element of a result."""

import functools
import math
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import contiguous, copy
from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, cuda, for_each_group, for_each_turn
from spillgrad_kernels.cuda.pointers import computing_dtype, loaders, quotient, storers
from spillgrad_kernels.cuda.reductions import add_up_block
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.cuda.windows import first_window
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.windows import Windows

# The number of positions that one block adds up for an element of a weight's gradient.
_PART_POSITIONS = 1 << 14


@functools.cache
def adding_windows(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel of convolution: a thread adds up one window's elements times the weights of one output."""
    load, store, size = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    nothing = computing_dtype(dtype).type(0)

    def add_windows(
        turn: int, outputs: int, inner: int, groups: int, rows: int, row_elements: int, step_y: int, step_x: int,
        pad_y: int, pad_x: int, gap_y: int, gap_x: int, height: int, width: int, down: int, across: int, x: int,
        weight: int, bias: int, out: int,
    ) -> None:  # fmt: skip
        row = quotient(turn, across)
        plane = quotient(row, down)
        image = quotient(plane, groups * outputs)
        m = plane - image * groups * outputs
        first_y, first_x = (row - plane * down) * step_y - pad_y, (turn - row * across) * step_x - pad_x
        total = nothing
        if bias != 0:
            total = load(bias + m * size)
        factor = weight + m * inner * rows * row_elements * size
        source = x + (image * groups + quotient(m, outputs)) * inner * height * width * size
        for _ in range(inner):
            y = first_y
            for _ in range(rows):
                if 0 <= y < height:
                    z = first_x
                    for e in range(row_elements):
                        if 0 <= z < width:
                            total += load(source + (y * width + z) * size) * load(factor + e * size)
                        z += gap_x
                factor += row_elements * size
                y += gap_y
            source += height * width * size
        store(out + turn * size, total)

    return Kernel(for_each_turn(add_windows), f"add_windows_{dtype.name}")


@functools.cache
def adding_inputs(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel of the gradient by the input: a thread adds up the terms of all windows for one element."""
    load, store, size = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    nothing = computing_dtype(dtype).type(0)

    def add_inputs(
        turn: int, outputs: int, inner: int, groups: int, rows: int, row_elements: int, step_y: int, step_x: int,
        pad_y: int, pad_x: int, gap_y: int, gap_x: int, height: int, width: int, down: int, across: int, grad: int,
        weight: int, bias: int, out: int,
    ) -> None:  # fmt: skip
        reach_y, reach_x = (rows - 1) * gap_y, (row_elements - 1) * gap_x
        row = quotient(turn, width)
        plane = quotient(row, height)
        image = quotient(plane, groups * inner)
        channel = plane - image * groups * inner
        group = quotient(channel, inner)
        y, x = row - plane * height + pad_y, turn - row * width + pad_x
        total = nothing
        if bias != 0:
            total = load(bias + channel * size)
        first_i, first_j = first_window(y, reach_y, step_y), first_window(x, reach_x, step_x)
        source = grad + (image * groups + group) * outputs * down * across * size
        factor = weight + (group * outputs * inner + channel - group * inner) * rows * row_elements * size
        for _ in range(outputs):
            i = first_i
            while i < down and i * step_y <= y:
                away = y - i * step_y
                r = away if gap_y == 1 else quotient(away, gap_y)
                if r * gap_y == away:
                    j = first_j
                    while j < across and j * step_x <= x:
                        beside = x - j * step_x
                        e = beside if gap_x == 1 else quotient(beside, gap_x)
                        if e * gap_x == beside:
                            value = load(source + (i * across + j) * size)
                            total += value * load(factor + (r * row_elements + e) * size)
                        j += 1
                i += 1
            source += down * across * size
            factor += inner * rows * row_elements * size
        store(out + turn * size, total)

    return Kernel(for_each_turn(add_inputs), f"add_inputs_{dtype.name}")


def run(
    kernel: Kernel, out: DeviceArray, images: DeviceArray, weight: DeviceArray, bias: DeviceArray | None,
    windows: Windows, groups: int,
) -> None:  # fmt: skip
    """Run the kernel of `adding_windows` or `adding_inputs`, which fills `out`."""
    kernel.run(
        out.size, len(weight) // groups, weight.shape[1], groups, *windows.size, *windows.stride, *windows.padding,
        *windows.dilation, *windows.image, *windows.grid, images.address, contiguous(weight).address,
        0 if bias is None else bias.address, out.address,
    )  # fmt: skip


@functools.cache
def adding_products(dtype: np.dtype[Any], result: np.dtype[Any]) -> Kernel:
    """Return the kernel of the gradient by the weight: for each weight, the sum of gradients times input elements.

    A block adds up a part of the positions for one weight: first each thread adds up its own positions, then the sums
    of all threads are added in float64.
    """
    load, store, size, result_size = loaders[dtype.name, 1], storers[result.name, 1], dtype.itemsize, result.itemsize
    nothing, threads = computing_dtype(dtype).type(0), THREADS

    def add_products(
        group: int, parts: int, length: int, positions: int, outputs: int, inner: int, groups: int, rows: int,
        row_elements: int, step_y: int, step_x: int, pad_y: int, pad_x: int, gap_y: int, gap_x: int, height: int,
        width: int, down: int, across: int, grad: int, x: int, out: int,
    ) -> None:  # fmt: skip
        shared = cuda.shared.array(threads, types.float64)
        thread = cuda.threadIdx.x
        # The distance to a thread's next position, in whole images, further rows and further columns.
        images_on = quotient(threads, down * across)
        rows_on = quotient(threads - images_on * down * across, across)
        columns_on = threads - (images_on * down + rows_on) * across
        unit = quotient(group, parts)
        part = group - unit * parts
        pair = quotient(unit, rows * row_elements)
        element = unit - pair * rows * row_elements
        r = quotient(element, row_elements)
        m = quotient(pair, inner)
        channel = quotient(m, outputs) * inner + pair - m * inner
        shift_y, shift_x = r * gap_y - pad_y, (element - r * row_elements) * gap_x - pad_x
        position = part * length + thread
        last = (part + 1) * length if (part + 1) * length < positions else positions
        row = quotient(position, across)
        image, j = quotient(row, down), position - row * across
        i = row - image * down
        total = nothing
        while position < last:
            y, z = i * step_y + shift_y, j * step_x + shift_x
            if 0 <= y < height and 0 <= z < width:
                value = load(grad + (((image * groups * outputs + m) * down + i) * across + j) * size)
                total += value * load(x + (((image * groups * inner + channel) * height + y) * width + z) * size)
            position += threads
            j += columns_on
            i += rows_on
            image += images_on
            if j >= across:
                j -= across
                i += 1
            if i >= down:
                i -= down
                image += 1
        shared[thread] = total
        add_up_block(shared)
        if thread == 0:
            store(out + group * result_size, shared[0])
        cuda.syncthreads()

    return Kernel(for_each_group(add_products), f"add_products_{dtype.name}_as_{result.name}")


def run_weight(
    out: DeviceArray, grad: DeviceArray, x: DeviceArray, windows: Windows, groups: int
) -> None:  # fmt: skip
    """Write the gradient of a convolution by its weight to `out`."""
    outputs, inner = grad.shape[1] // groups, x.shape[1] // groups
    positions = len(x) * math.prod(windows.grid)
    parts = -(-positions // _PART_POSITIONS)
    sums = out if parts == 1 else empty((out.size, parts), np.float64)
    adding_products(x.dtype, sums.dtype).run_blocks(
        out.size * parts, parts, _PART_POSITIONS, positions, outputs, inner, groups, *windows.size,
        *windows.stride, *windows.padding, *windows.dilation, *windows.image, *windows.grid, grad.address, x.address,
        sums.address,
    )  # fmt: skip
    if parts > 1:
        copy(sum_over(sums, (1,)), out=out.reshape(-1))
