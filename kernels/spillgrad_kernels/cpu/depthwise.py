"""Convolution with one input channel per group, and its derivatives: sums of shifted planes, without matrix products.

A plane is copied to a strip (see `strips.py`). There, a tap of the window is a fixed distance from the window's
position, so one loop over long runs adds up a tap at all positions. Positions at the end of a row, where the window
does not fit, are computed too, and left out of the result. The derivative by the input computes the phases of its
result apart.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.strips import Strip, fill, strip_of_windows
from spillgrad_kernels.jit.compile import REASSOCIATE, jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.threads.dispatch import parallel_for
from spillgrad_kernels.windows import Windows

# The number of multiply-adds that pays for another thread.
_GRAIN = 1 << 17
# Loops run over whole vectors: elements beyond the last position are computed and not used.
_LANES = 16


@jit
def _add_taps(sums: Any, strip: Any, places: Any, weights: Any) -> None:
    """Add to each sum the strip's elements at the distances `places`, each times its weight."""
    count, taps = sums.size, places.size
    for t in range(0, taps - 2, 3):
        x, y, z = strip[places[t] :], strip[places[t + 1] :], strip[places[t + 2] :]
        a, b, c = weights[t], weights[t + 1], weights[t + 2]
        for q in range(count):
            sums[q] += a * x[q] + b * y[q] + c * z[q]
    for t in range(taps - taps % 3, taps):
        x, a = strip[places[t] :], weights[t]
        for q in range(count):
            sums[q] += a * x[q]


@jit
def _write(sums: Any, columns: int, origin_y: int, origin_x: int, down: int, across: int, out: Any) -> None:
    """Write the sum in row r and column c to row `origin_y` + r * `down` and column `origin_x` + c * `across` of `out`.

    Rows of `sums` have `columns` elements; what lies outside `out` is left out.
    """
    height, width = out.shape
    low = max(0, -(origin_x // across))  # the first column that is inside
    high = min(columns, (width - origin_x + across - 1) // across)
    first = max(0, -(origin_y // down))
    for r in range(first, min((height - origin_y + down - 1) // down, (sums.size + columns - 1) // columns)):
        line, seen = out[origin_y + r * down], sums[r * columns : r * columns + high]
        if across == 1:
            run = line[origin_x + low :]
            for c in range(high - low):
                run[c] = seen[low + c]
        else:
            for c in range(low, high):
                line[origin_x + c * across] = seen[c]


@jit
def _correlate(
    start: int, stop: int, planes: Any, weights: Any, bias: Any, words: Any, strip_size: int, starts: Any, places: Any,
    numbers: Any, origins: Any, positions: int, steps: Any, out: Any,
) -> None:  # fmt: skip
    """Set each plane of `out` to its bias, plus the sum of the shifted planes of its channel.

    Phase f of the result has the taps `starts[f]` to `starts[f + 1]`: their distances are `places`, the weights that
    they take are `numbers`. Shapes: planes (N, channels, sources, *image), weights (channels, sources, results, taps),
    bias (channels, results), out (N, channels, results, *image).
    """
    channels, sources, results = planes.shape[1], planes.shape[2], out.shape[2]
    strips = np.zeros((sources, strip_size), planes.dtype)
    sums = np.empty(positions, planes.dtype)
    chosen = np.empty(numbers.size, planes.dtype)
    columns = words[7]
    for unit in range(start, stop):
        image, channel = unit // channels, unit % channels
        for s in range(sources):
            fill(strips[s], words, planes[image, channel, s])
        for r in range(results):
            for f in range(origins.shape[0]):
                taps = places[starts[f] : starts[f + 1]]
                sums[:] = bias[channel, r]
                for s in range(sources):
                    for t in range(taps.size):
                        chosen[t] = weights[channel, s, r, numbers[starts[f] + t]]
                    _add_taps(sums, strips[s], taps, chosen)
                _write(sums, columns, origins[f, 0], origins[f, 1], steps[0], steps[1], out[image, channel, r])


@jit(fastmath=REASSOCIATE)
def _dots(flat: Any, strip: Any, places: Any, dots: Any) -> None:
    """Set each element of `dots` to the sum of products of `flat` and the strip's elements at a distance."""
    count, taps = flat.size, places.size
    zero = flat.dtype.type(0)
    for t in range(0, taps - 2, 3):
        x, y, z = strip[places[t] :], strip[places[t + 1] :], strip[places[t + 2] :]
        a, b, c = zero, zero, zero
        for q in range(count):
            a += flat[q] * x[q]
            b += flat[q] * y[q]
            c += flat[q] * z[q]
        dots[t], dots[t + 1], dots[t + 2] = a, b, c
    for t in range(taps - taps % 3, taps):
        x, a = strip[places[t] :], zero
        for q in range(count):
            a += flat[q] * x[q]
        dots[t] = a


@jit
def _dot_of_rows(x: Any, y: Any, rows: int, columns: int, width: int) -> Any:
    """Return the sum of products of the first `width` elements of each row of `columns` elements."""
    total = x.dtype.type(0)
    for first in range(0, rows * columns, columns):
        for q in range(first, first + width):
            total += x[q] * y[q]
    return total


@jit
def _weight_gradients(
    start: int, stop: int, grads: Any, planes: Any, grad_words: Any, words: Any, strip_size: int, places: Any,
    positions: int, out: Any,
) -> None:  # fmt: skip
    """Set out[channel, m, t] to the sum over all images of the gradients times the plane's elements at tap t.

    Shapes: grads (N, channels, m, *grid), planes (N, channels, *image).
    """
    strip = np.zeros(strip_size, planes.dtype)
    flat = np.zeros(positions, planes.dtype)  # the gradients in rows as long as the strip's, with zeros at the ends
    sums, dots = np.empty((out.shape[1], places.size), np.float64), np.empty(places.size, planes.dtype)
    rows, width = grads.shape[3:]
    for channel in range(start, stop):
        sums[:] = 0
        for image in range(planes.shape[0]):
            fill(strip, words, planes[image, channel])
            for m in range(out.shape[1]):
                fill(flat, grad_words, grads[image, channel, m])
                _dots(flat, strip, places, dots)
                for t in range(places.size):
                    if not np.isfinite(dots[t]):  # a zero at the end of a row may have met an infinity
                        dots[t] = _dot_of_rows(flat, strip[places[t] :], rows, words[7], width)
                    sums[m, t] += dots[t]
        out[channel] = sums


def _positions(rows: int, columns: int, width: int) -> int:
    """Return the number of sums for `rows` rows of `width` positions in rows of `columns`, in whole vectors."""
    positions: int = round_up((rows - 1) * columns + width, _LANES)
    return positions


def _tasks(work: int, count: int) -> int:
    return max(1, _GRAIN * count // max(work, 1))


def convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, windows: Windows, out: np.ndarray) -> None:
    """Set `out` to the convolution of each channel with its own weights, plus a bias.

    Shapes: x (N, G, *image), weight (G, m, *size), bias (G, m), out (N, G, m, *grid); all C-contiguous.
    """
    count, channels, results = out.shape[:3]
    strip, places = strip_of_windows(windows)
    positions = _positions(windows.grid[0], strip.columns, windows.grid[1])
    parallel_for(
        _correlate, count * channels, _tasks(out.size * len(places), count * channels), x[:, :, None],
        weight.reshape(channels, 1, results, -1), bias, strip.words(), strip.size + positions,
        np.array([0, len(places)]), places, np.arange(len(places)), np.zeros((1, 2), np.int64), positions,
        np.array([1, 1]), out,
    )  # fmt: skip


def input_gradient(grad: np.ndarray, weight: np.ndarray, bias: np.ndarray, windows: Windows, out: np.ndarray) -> None:
    """Set `out` to the gradient of `convolve` with respect to x, plus a bias: the transposed convolution.

    Shapes: grad (N, G, m, *grid), weight (G, m, *size), bias (G,), out (N, G, *image); all C-contiguous.
    """
    (down, across), (top, left) = windows.stride, windows.padding
    far = [
        (size - 1) * dilation // step
        for size, dilation, step in zip(windows.size, windows.dilation, windows.stride, strict=True)
    ]
    # The rows and columns of a phase, of the gradient's strip and of the results.
    height, width = (
        -(-(image + padding) // step)
        for image, padding, step in zip(windows.image, windows.padding, windows.stride, strict=True)
    )
    rows, columns = max(height, windows.grid[0]) + far[0], max(width, windows.grid[1]) + far[1]
    strip = Strip((far[0], far[1]), (1, 1), (1, 1), rows, columns)
    taps_of: list[list[tuple[int, int]]] = [[] for _ in range(down * across)]
    for i in range(windows.size[0]):
        for j in range(windows.size[1]):
            y, x = i * windows.dilation[0], j * windows.dilation[1]
            place = strip.place(far[0] - y // down, far[1] - x // across)
            taps_of[y % down * across + x % across].append((place, i * windows.size[1] + j))
    starts = np.cumsum([0, *map(len, taps_of)])
    places, numbers = np.array([tap for taps in taps_of for tap in taps], np.int64).T.copy()
    origins = np.array([(a - top, b - left) for a in range(down) for b in range(across)])
    count, channels, sources = grad.shape[:3]
    positions = _positions(height, strip.columns, width)
    parallel_for(
        _correlate, count * channels, _tasks(out.size * len(places), count * channels), grad,
        weight.reshape(channels, sources, 1, -1), bias[:, None], strip.words(), strip.size + positions,
        starts, places, numbers, origins, positions,
        np.array([down, across]), out[:, :, None],
    )  # fmt: skip


def weight_gradient(grad: np.ndarray, x: np.ndarray, windows: Windows) -> np.ndarray:
    """Return the gradient of `convolve` with respect to its weight.

    Shapes: grad (N, G, m, *grid), x (N, G, *image), result (G, m, size[0] * size[1]); all C-contiguous.
    """
    strip, places = strip_of_windows(windows)
    positions = _positions(windows.grid[0], strip.columns, windows.grid[1])
    channels, results = grad.shape[1:3]
    grads_strip = Strip((0, 0), (1, 1), (1, 1), windows.grid[0], strip.columns)
    out = buffers.empty((channels, results, len(places)), x.dtype)
    parallel_for(
        _weight_gradients, channels, _tasks(grad.size * len(places), channels), grad, x,
        grads_strip.words(), strip.words(), strip.size + positions, places, positions, out,
    )  # fmt: skip
    return out
