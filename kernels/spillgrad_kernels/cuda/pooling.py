"""Mean and max pooling of images on a device, and their gradients.

In the forward pass, a thread computes one window. In the backward pass, a thread computes one element, from the windows
that contain it. A table on the device holds the start and stop of each window as int64 words, then the scales for
means.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import empty, table
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.jit.compile import Kernel, device, for_each_turn
from spillgrad_kernels.cuda.pointers import WORD_BYTES, computing_dtype, loaders, quotient, storers
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.windows import Pair, Ranges

# If windows have at least this many elements on average, they are summed in two steps: across, then down.
_MANY_ELEMENTS = 64

Spans = tuple[np.ndarray, np.ndarray]  # starts and stops of ranges along one dimension


_load_word = loaders["int64", 1]


@device
def _ranges(turn: int, down: int, across: int, ranges: int) -> Any:
    """Return (plane, row, column, y, y_stop, x, x_stop): the position of result `turn`, and its two ranges.

    `ranges` is the address of a table of ranges on the device.
    """
    row = quotient(turn, across)
    plane = quotient(row, down)
    i, j = row - plane * down, turn - row * across
    at_y, at_x = ranges + i * WORD_BYTES, ranges + (2 * down + j) * WORD_BYTES
    y, y_stop = _load_word(at_y), _load_word(at_y + down * WORD_BYTES)
    return plane, i, j, y, y_stop, _load_word(at_x), _load_word(at_x + across * WORD_BYTES)


@functools.cache
def finding(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that finds the largest element of each window, and its position in the image."""
    load, store, size = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    store_word = storers["int64", 1]

    def find_largest(
        turn: int, down: int, across: int, height: int, width: int, step_y: int, step_x: int, ranges: int, x: int,
        out: int, indices: int,
    ) -> None:  # fmt: skip
        plane, _, _, y, y_stop, first_x, x_stop = _ranges(turn, down, across, ranges)
        image = x + plane * height * width * size
        place = y * width + first_x
        best = load(image + place * size)
        while y < y_stop:
            z = first_x
            while z < x_stop:
                value = load(image + (y * width + z) * size)
                if value > best or value != value:
                    best, place = value, y * width + z
                z += step_x
            y += step_y
        store(out + turn * size, best)
        store_word(indices + turn * WORD_BYTES, place)

    return Kernel(for_each_turn(find_largest), f"max_pool_{dtype.name}")


@functools.cache
def spreading(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that adds up, for each element, the gradients of the windows whose largest element it is."""
    load, store, size = loaders[dtype.name, 1], storers[dtype.name, 1], dtype.itemsize
    nothing = computing_dtype(dtype).type(0)

    def spread_maxima(
        turn: int, down: int, across: int, height: int, width: int, ranges: int, grad: int, indices: int, out: int
    ) -> None:
        plane, _, _, i, i_stop, first_j, j_stop = _ranges(turn, height, width, ranges)
        place, total = turn - plane * height * width, nothing
        while i < i_stop:
            window = (plane * down + i) * across
            for j in range(first_j, j_stop):
                if _load_word(indices + (window + j) * WORD_BYTES) == place:
                    total += load(grad + (window + j) * size)
            i += 1
        store(out + turn * size, total)

    return Kernel(for_each_turn(spread_maxima), f"max_pool_backward_{dtype.name}")


@functools.cache
def adding(dtype: np.dtype[Any], result: np.dtype[Any], backward: bool) -> Kernel:
    """Return the kernel that adds up the elements of each window and scales the sum.

    With `backward`, the kernel adds up, for each element, the gradients of the windows that contain it, each times its
    window's scale.
    """
    load, store, size, result_size = loaders[dtype.name, 1], storers[result.name, 1], dtype.itemsize, result.itemsize
    number = computing_dtype(dtype)
    load_scale, scale_bytes = loaders[number.name, 1], number.itemsize
    nothing = number.type(0)

    def add_elements(turn: int, down: int, across: int, height: int, width: int, ranges: int, x: int, out: int) -> None:
        scales_y = ranges + 2 * (down + across) * WORD_BYTES
        scales_x = scales_y + (height if backward else down) * scale_bytes
        plane, i, j, y, y_stop, first_x, x_stop = _ranges(turn, down, across, ranges)
        image = x + plane * height * width * size
        total = nothing
        while y < y_stop:
            for z in range(first_x, x_stop):
                value = load(image + (y * width + z) * size)
                if backward:
                    value *= load_scale(scales_y + y * scale_bytes) * load_scale(scales_x + z * scale_bytes)
                total += value
            y += 1
        if not backward:
            total *= load_scale(scales_y + i * scale_bytes) * load_scale(scales_x + j * scale_bytes)
        store(out + turn * result_size, total)

    return Kernel(
        for_each_turn(add_elements), f"mean_pool{'_backward' if backward else ''}_{dtype.name}_as_{result.name}"
    )


def _words(*ranges: Spans) -> bytes:
    """Return ranges as the bytes of a table of int64 words: for each of `ranges`, its starts, then its stops."""
    return np.concatenate([part for pair in ranges for part in pair]).astype(np.int64).tobytes()


@functools.lru_cache(maxsize=256)
def _seeing(starts: bytes, stops: bytes, size: int) -> Spans:
    """Return, for each of `size` elements, the range from the first to the last window that contains the element."""
    begins, ends = np.frombuffer(starts, np.int64), np.frombuffer(stops, np.int64)
    lengths = np.maximum(ends - begins, 0)
    windows = np.repeat(np.arange(lengths.size), lengths)
    elements = np.arange(windows.size) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
    first, last = np.full(size, lengths.size), np.zeros(size, np.int64)
    np.minimum.at(first, elements, windows)
    np.maximum.at(last, elements, windows + 1)
    return first, last


def _seen(found: Ranges, size: int) -> Spans:
    """Return, for each of `size` elements, the range of the windows in `found` that may contain the element."""
    return _seeing(found.starts.astype(np.int64).tobytes(), found.stops.astype(np.int64).tobytes(), size)


def max_pool(x: DeviceArray, down: Ranges, across: Ranges) -> tuple[DeviceArray, DeviceArray]:
    """Return the largest element of each window, and its position in the image as int64."""
    grid = down.starts.size, across.starts.size
    out, indices = empty((*x.shape[:2], *grid), x.dtype), empty((*x.shape[:2], *grid), np.int64)
    if out.size:
        x, spans = contiguous(x), table(_words(down[:2], across[:2]))
        finding(x.dtype).run(
            out.size, *grid, *x.shape[2:], down.step, across.step, spans.address, x.address, out.address,
            indices.address,
        )  # fmt: skip
    return out, indices


def spread_maxima(grad: DeviceArray, indices: DeviceArray, image: Pair, down: Ranges, across: Ranges) -> DeviceArray:
    """Return the gradient of `max_pool` by its input; `indices` is the second result of `max_pool`.

    Shapes: grad and indices (N, C, h, w), result (N, C, *image).
    """
    out = empty((*grad.shape[:2], *image), grad.dtype)
    if out.size:
        grad, indices = contiguous(grad), contiguous(indices)
        spans = table(_words(_seen(down, image[0]), _seen(across, image[1])))
        spreading(grad.dtype).run(
            out.size, *grad.shape[2:], *image, spans.address, grad.address, indices.address, out.address
        )
    return out


def mean_pool(
    x: DeviceArray, down: Ranges, across: Ranges, y_scales: Sequence[float], x_scales: Sequence[float]
) -> DeviceArray:
    """Return the sum of each window's elements, times the scales of the window's row and column in the grid."""
    return _added(x, down[:2], across[:2], y_scales, x_scales, False)


def mean_pool_backward(
    grad: DeviceArray, image: Pair, down: Ranges, across: Ranges, y_scales: Sequence[float], x_scales: Sequence[float]
) -> DeviceArray:
    """Return the gradient of `mean_pool` by its input."""
    return _added(grad, _seen(down, image[0]), _seen(across, image[1]), y_scales, x_scales, True)


def _added(
    x: DeviceArray, down: Spans, across: Spans, y_scales: Sequence[float], x_scales: Sequence[float], backward: bool
) -> DeviceArray:
    """Return scaled sums over ranges of rows and columns. If ranges are long, sum each dimension in its own pass."""
    dtype = x.dtype
    elements_down, elements_across = ((stops - starts).sum() / max(1, stops.size) for starts, stops in (down, across))
    if elements_down * elements_across >= _MANY_ELEMENTS and min(elements_down, elements_across) > 1:
        rows, columns = x.shape[2], across[0].size
        x = _summed(x, _each(rows), across, [1.0] * rows, x_scales, backward, computing_dtype(dtype))
        across, x_scales = _each(columns), [1.0] * columns
    return _summed(x, down, across, y_scales, x_scales, backward, dtype)


def _each(count: int) -> Spans:
    return np.arange(count), np.arange(1, count + 1)


def _summed(
    x: DeviceArray, down: Spans, across: Spans, y_scales: Sequence[float], x_scales: Sequence[float], backward: bool,
    dtype: np.dtype[Any],
) -> DeviceArray:  # fmt: skip
    out = empty((*x.shape[:2], down[0].size, across[0].size), dtype)
    if out.size:
        x = contiguous(x)
        scales = np.array([*y_scales, *x_scales], computing_dtype(dtype)).tobytes()
        adding(x.dtype, dtype, backward).run(
            out.size, *out.shape[2:], *x.shape[2:], table(_words(down, across) + scales).address, x.address, out.address
        )
    return out
