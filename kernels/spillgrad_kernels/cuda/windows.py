"""Add overlapping windows back into images, on a device.

One thread computes each element of an image. It adds up the windows that contain the element, in a fixed order.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cuda.array import empty, zeros
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.jit.compile import Kernel, device, for_each_turn
from spillgrad_kernels.cuda.pointers import loaders, quotient, storers
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.windows import Pair, Windows


@device
def first_window(position: int, reach: int, step: int) -> int:
    """Return the number of the first window that contains `position`.

    `reach` is the distance from a window's first element to its last, and `step` the distance between windows.
    """
    return 0 if position <= reach else quotient(position - reach + step - 1, step)


@functools.cache
def laying(dtype: np.dtype[Any], result: np.dtype[Any]) -> Kernel:
    """Return the kernel that computes each element of an image: the sum of its values in all windows, plus a bias.

    The strides of the values are in bytes (see `Strides`). Window i begins at i * step - pad.
    """
    load, load_bias, store = loaders[dtype.name, 1], loaders[result.name, 1], storers[result.name, 1]
    size, nothing = result.itemsize, (np.float64 if result == np.float64 else np.float32)(0)

    def lay(
        turn: int, height: int, width: int, groups: int, channels: int, to_image: int, to_group: int, to_channel: int,
        to_row: int, to_element: int, to_down: int, to_across: int, rows: int, row_elements: int, down: int,
        across: int, step_y: int, step_x: int, pad_y: int, pad_x: int, gap_y: int, gap_x: int, plane_bytes: int,
        source: int, bias: int, out: int,
    ) -> None:  # fmt: skip
        reach_y, reach_x = (rows - 1) * gap_y, (row_elements - 1) * gap_x
        plane = quotient(turn, height * width)
        place = turn - plane * height * width
        row = quotient(place, width)
        y, x = row + pad_y, place - row * width + pad_x
        outer = quotient(plane, channels)
        c = plane - outer * channels
        image = quotient(outer, groups)
        group = outer - image * groups
        base = source + image * to_image + group * to_group + c * to_channel
        total = nothing
        if bias != 0:
            total = load_bias(bias + (group * channels + c) * size)
        first_j = first_window(x, reach_x, step_x)
        i = first_window(y, reach_y, step_y)
        while i < down and i * step_y <= y:
            away = y - i * step_y
            r = away if gap_y == 1 else quotient(away, gap_y)
            if r * gap_y == away:
                at = base + r * to_row + i * to_down
                j = first_j
                while j < across and j * step_x <= x:
                    beside = x - j * step_x
                    e = beside if gap_x == 1 else quotient(beside, gap_x)
                    if e * gap_x == beside:
                        total += load(at + e * to_element + j * to_across)
                    j += 1
            i += 1
        store(out + plane * plane_bytes + place * size, total)

    return Kernel(for_each_turn(lay), f"lay_windows_{dtype.name}_as_{result.name}")


class Strides(NamedTuple):
    """The strides of windows' values. Units: bytes.

    `channel` is the stride between channels of a group. `row` and `element` are strides between the rows of a window,
    and between the elements of a row. `down` and `across` are strides between windows.
    """

    image: int
    group: int
    channel: int
    row: int
    element: int
    down: int
    across: int


def lay(
    source: DeviceArray | None, strides: Strides, groups: int, windows: Windows, bias: DeviceArray | None,
    out: DeviceArray,
) -> None:  # fmt: skip
    """Set each element of `out` to the sum of its values in the windows that contain it, plus its channel's bias.

    `source` holds the windows' values, with the given strides; it is None if the grid has no windows.
    Shapes: out (N, C, *windows.image); there may be gaps between the images of channels.
    """
    if out.size:
        laying(out.dtype if source is None else source.dtype, out.dtype).run(
            out.size, *windows.image, groups, out.shape[1] // groups, *strides, *windows.size, *windows.grid,
            *windows.stride, *windows.padding, *windows.dilation, out.strides[1],
            0 if source is None else source.address, 0 if bias is None else bias.address, out.address,
        )  # fmt: skip


def sum_over_images(patches: DeviceArray, dilation: Pair, stride: Pair, size: Pair) -> DeviceArray:
    """Return images in which each element of `patches` is added at the place from which it was taken.

    Shapes: patches (N, C, rows, columns, down, across), result (N, C, *size). `patches` may have any strides.
    """
    n, channels, rows, columns, down, across = patches.shape
    out = empty((n, channels, *size), patches.dtype)
    windows = Windows((rows, columns), stride, (0, 0), dilation, size, (down, across))
    lay(patches, Strides(patches.strides[0], 0, *patches.strides[1:]), 1, windows, None, out)
    return out


def sum_along(windows: DeviceArray, dim: int, step: int, spacing: int, length: int) -> DeviceArray:
    """Return an array in which each element of `windows` is added at the place from which it was taken.

    Element t of window i along `dim` is added at position i * step + t * spacing.
    Shapes: windows (..., count, ..., size), result (..., length, ...).
    """
    *shape, size = windows.shape
    count, outer, inner = shape[dim], math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    shape[dim] = length
    if not windows.size:
        return zeros(tuple(shape), windows.dtype)
    # Viewed as images: `dim` goes down, and all later dimensions together go across.
    patches = contiguous(windows).reshape(outer, 1, count, inner, size, 1).transpose(0, 1, 4, 5, 2, 3)
    return sum_over_images(patches, (spacing, 1), (step, 1), (length, inner)).reshape(*shape)
