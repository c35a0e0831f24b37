"""Mean and maximum pooling over windows of images.

Two `Ranges`, one for each dimension of an image, describe the windows; all ranges lie inside the image. So regular and
adaptive pooling are one computation.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.scalar_math import where
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for
from spillgrad_kernels.windows import Pair, Ranges


@jit
def _fold_row(line: Any, y: int, best: Any, rows: Any) -> None:
    """Update the largest element of each column so far with `line`, which is row y of the image.

    `best` holds the largest elements, and `rows` the numbers of their rows; both are updated in place. Of equal
    elements, the first is kept; of several NaN, the last is kept.
    """
    for z in range(best.size):
        value = line[z]
        larger = (value > best[z]) | (value != value)
        best[z] = where(larger, value, best[z])
        rows[z] = where(larger, y, rows[z])


@jit
def _max_pool(
    start: int, stop: int, x: Any, y_starts: Any, y_stops: Any, y_step: int, x_starts: Any, x_stops: Any, x_step: int,
    out: Any, indices: Any,
) -> None:  # fmt: skip
    width = x.shape[2]
    # The maxima of columns are computed first. This compares whole rows of the image, and serves all windows over a
    # column.
    column_best, rows = np.empty(width, x.dtype), np.empty(width, np.int64)
    for plane in range(start, stop):
        image = x[plane]
        for i in range(out.shape[1]):
            first = image[y_starts[i]]
            for j in range(width):  # an array assignment would make Numba compile an error about shapes
                column_best[j] = first[j]
            rows[:] = y_starts[i]
            for y in range(y_starts[i] + y_step, y_stops[i], y_step):
                _fold_row(image[y], y, column_best, rows)
            results, places = out[plane, i], indices[plane, i]
            for j in range(results.size):
                column = x_starts[j]
                best, row = column_best[column], rows[column]
                for z in range(x_starts[j] + x_step, x_stops[j], x_step):
                    value, y = column_best[z], rows[z]
                    larger = (value > best) | ((value == best) & (y < row))
                    larger |= (value != value) & ((best == best) | (y >= row))
                    best = where(larger, value, best)
                    row = where(larger, y, row)
                    column = where(larger, z, column)
                results[j] = best
                places[j] = row * width + column


@jit
def _add_row(row: Any, sums: Any) -> None:
    for z in range(sums.size):
        sums[z] += row[z]


@jit
def _mean_pool(
    start: int, stop: int, x: Any, y_starts: Any, y_stops: Any, x_starts: Any, x_stops: Any, y_scales: Any,
    x_scales: Any, out: Any,
) -> None:  # fmt: skip
    sums = np.empty(x.shape[2], x.dtype)
    for plane in range(start, stop):
        for i in range(out.shape[1]):
            sums[:] = 0
            for y in range(y_starts[i], y_stops[i]):
                _add_row(x[plane, y], sums)
            row = out[plane, i]
            for j in range(row.size):
                total = x.dtype.type(0)
                for z in range(x_starts[j], x_stops[j]):
                    total += sums[z]
                row[j] = total * (y_scales[i] * x_scales[j])


@jit
def _mean_pool_backward(
    start: int, stop: int, grad: Any, y_starts: Any, y_stops: Any, x_starts: Any, x_stops: Any, y_scales: Any,
    x_scales: Any, out: Any,
) -> None:  # fmt: skip
    sums = np.empty(out.shape[2], out.dtype)
    for plane in range(start, stop):
        out[plane] = 0
        for i in range(grad.shape[1]):
            row = grad[plane, i]
            sums[:] = 0
            for j in range(row.size):
                share = row[j] * (y_scales[i] * x_scales[j])
                for z in range(x_starts[j], x_stops[j]):
                    sums[z] += share
            for y in range(y_starts[i], y_stops[i]):
                _add_row(sums, out[plane, y])


def _planes(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images).reshape(-1, *images.shape[2:])


def _grain(down: Ranges, across: Ranges) -> int:
    """Return how many planes are enough to justify another thread. A plane is one channel of one image."""
    work = (down.stops - down.starts).sum() * (across.stops - across.starts).sum() // (down.step * across.step)
    return grain_of(int(work))


@on_device("pooling")
def max_pool(x: np.ndarray, down: Ranges, across: Ranges) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest element of each window and its index in the image, as int64.

    NaN is larger than any number. Of equal elements, the first one counts; of several NaN, the last one counts.
    Shapes: x (N, C, H, W), results (N, C, h, w).
    """
    shape = (*x.shape[:2], down.starts.size, across.starts.size)
    out, indices = buffers.empty(shape, x.dtype), buffers.empty(shape, np.dtype(np.int64))
    if out.size:
        planes = _planes(x)
        parallel_for(
            _max_pool, len(planes), _grain(down, across), planes, *down, *across, _planes(out), _planes(indices)
        )
    return out, indices


@on_device("pooling")
def mean_pool(x: np.ndarray, down: Ranges, across: Ranges, y_scales: np.ndarray, x_scales: np.ndarray) -> np.ndarray:
    """Return the sum of each window's elements, times two scales.

    The scales of the window at row i and column j of the grid are y_scales[i] and x_scales[j]. Windows must have no
    dilation.
    Shapes: x (N, C, H, W), y_scales (h,), x_scales (w,), result (N, C, h, w).
    """
    out = buffers.empty((*x.shape[:2], down.starts.size, across.starts.size), x.dtype)
    if out.size:
        _run_mean(_mean_pool, _planes(x), down, across, y_scales, x_scales, _planes(out))
    return out


@on_device("pooling")
def mean_pool_backward(
    grad: np.ndarray, image: Pair, down: Ranges, across: Ranges, y_scales: np.ndarray, x_scales: np.ndarray
) -> np.ndarray:
    """Return the gradient of `mean_pool` with respect to its input.

    Shapes: grad (N, C, h, w), result (N, C, *image).
    """
    out = buffers.empty((*grad.shape[:2], *image), grad.dtype)
    if out.size:
        _run_mean(_mean_pool_backward, _planes(grad), down, across, y_scales, x_scales, _planes(out))
    return out


def _run_mean(
    kernel: Any, source: np.ndarray, down: Ranges, across: Ranges, y_scales: np.ndarray, x_scales: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    parallel_for(
        kernel, len(source), _grain(down, across), source, down.starts, down.stops, across.starts, across.stops,
        y_scales.astype(source.dtype), x_scales.astype(source.dtype), out,
    )  # fmt: skip
