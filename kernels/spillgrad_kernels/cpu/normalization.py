"""Softmax, layer normalization and root-mean-square normalization, forward and backward, row by row.

A row is read from memory once: later passes find it in the first-level cache. Kernels start the first pass over the
next row before they finish the sum and the division of this row, which takes a tenth less time.
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.rows import RUN, row_dot, row_squares, row_sum
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import REASSOCIATE, jit, register_jitable
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.reductions import larger_number
from spillgrad_kernels.tables.scalar_math import normal_exp
from spillgrad_kernels.threads.dispatch import GRAIN_ELEMENTS, grain_of, parallel_for

# The size of a tile to transpose. Rows that are a power of two apart share a set of the cache, which holds few of them.
_TILE_ROWS, _TILE_COLUMNS = 8, 16
# The most partial sums of parameters' gradients per call: enough units of work for many cores, and few enough to add up
# quickly.
_MAX_PARTIALS = 64
_MIN_ROWS_PER_PARTIAL = 16
# The offsets in a page at which partial sums begin, for each parameter. Processors first compare a load with earlier
# stores by the low 12 bits of their addresses. Rows that fill pages begin at offset 0. If partial sums began there too,
# loads would wait up to half the time.
_PAGE_BYTES, _WEIGHT_OFFSET_BYTES, _BIAS_OFFSET_BYTES = 4096, 1344, 2688


# Functions that are inlined into the kernel: rows are so short that calls would take time.
_inlined = register_jitable(error_model="numpy", fastmath=REASSOCIATE, forceinline=True)


@_inlined
def _largest_number(row: Any) -> Any:
    """Return a row's largest value; for a row with NaN, any value, because its sum of exponentials is NaN anyway."""
    largest = row.dtype.type(-np.inf)
    for j in range(row.size):
        largest = larger_number(largest, row[j])
    return largest


@_inlined
def _run_exponentials(x: Any, shift: Any, out: Any) -> Any:
    total = x.dtype.type(0.0)
    for j in range(x.size):
        out[j] = normal_exp(x[j] - shift)
        total += out[j]
    return total


@_inlined
def _row_exponentials(x: Any, shift: Any, out: Any) -> Any:
    """Write exp(x - `shift`) to `out` for each element of the row `x`; return the sum of the exponentials."""
    total = np.float64(0.0)
    for j in range(0, x.size, RUN):
        total += _run_exponentials(x[j : j + RUN], shift, out[j : j + RUN])
    return total


@jit
def _softmax(start: int, stop: int, a: Any, out: Any) -> None:
    largest = _largest_number(a[start])
    for i in range(start, stop):
        y = out[i]
        total = _row_exponentials(a[i], largest, y)
        if i + 1 < stop:
            largest = _largest_number(a[i + 1])
        factor = y.dtype.type(1.0 / total)
        for j in range(y.size):
            y[j] *= factor


@jit
def _softmax_backward(start: int, stop: int, grad: Any, result: Any, out: Any) -> None:
    for i in range(start, stop):
        g, y, da = grad[i], result[i], out[i]
        dot = y.dtype.type(row_dot(g, y))
        for j in range(y.size):
            da[j] = y[j] * (g[j] - dot)


@jit
def _log_softmax(start: int, stop: int, a: Any, out: Any) -> None:
    largest = _largest_number(a[start])
    for i in range(start, stop):
        x, y, shift = a[i], out[i], largest
        total = _row_exponentials(x, shift, y)
        if i + 1 < stop:
            largest = _largest_number(a[i + 1])
        log_total = y.dtype.type(np.log(total))
        for j in range(x.size):
            y[j] = x[j] - shift - log_total


@jit
def _log_softmax_backward(start: int, stop: int, grad: Any, result: Any, out: Any) -> None:
    for i in range(start, stop):
        g, y, da = grad[i], result[i], out[i]
        total = y.dtype.type(row_sum(g))
        for j in range(y.size):
            da[j] = g[j] - normal_exp(y[j]) * total


@jit
def _swap(start: int, stop: int, a: Any, out: Any, n: int, inner: int) -> None:
    """Transpose the matrices of `a`, n rows by `inner` columns, into `out`, in tiles that fit the first-level cache."""
    strips = (inner + _TILE_COLUMNS - 1) // _TILE_COLUMNS
    for unit in range(start, stop):
        matrix, column = unit // strips * n * inner, unit % strips * _TILE_COLUMNS
        last = column + _TILE_COLUMNS if column + _TILE_COLUMNS < inner else inner
        for first in range(0, n, _TILE_ROWS):
            size = _TILE_ROWS if n - first > _TILE_ROWS else n - first
            for c in range(column, last):
                x, y = a[matrix + first * inner + c :], out[matrix + c * n + first : matrix + c * n + first + size]
                for j in range(size):
                    y[j] = x[j * inner]


def _swapped(a: np.ndarray, outer: int, n: int, inner: int) -> np.ndarray:
    """Return a copy of an (outer, n, inner) array as contiguous rows along n, of shape (outer * inner, n)."""
    out = buffers.empty((outer * inner, n), a.dtype)
    grain = -(-GRAIN_ELEMENTS // max(n * _TILE_COLUMNS, 1))
    strips = outer * -(-inner // _TILE_COLUMNS)
    parallel_for(_swap, strips, grain, np.ascontiguousarray(a).reshape(-1), out.reshape(-1), n, inner)
    return out


def _row_by_row(kernel: Any, axis: int, *operands: np.ndarray) -> np.ndarray:
    """Run `kernel` on the rows along `axis` of the operands; return its result as a contiguous array of their shape."""
    shape, axis = operands[0].shape, axis % operands[0].ndim
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    if inner == 1:
        rows = [np.ascontiguousarray(operand).reshape(outer, n) for operand in operands]
    else:  # NumPy's copy of a transposed array takes ten times as long as `_swap`
        rows = [_swapped(operand, outer, n, inner) for operand in operands]
    out = buffers.empty((outer * inner, n), operands[0].dtype)
    parallel_for(kernel, out.shape[0], grain_of(n), *rows, out)
    return (out if inner == 1 else _swapped(out, outer, inner, n)).reshape(shape)


@on_device("normalization")
def softmax(a: np.ndarray, axis: int) -> np.ndarray:
    """Return exp(a) / sum(exp(a)) along `axis`, without overflow."""
    return _row_by_row(_softmax, axis, a)


@on_device("normalization")
def softmax_backward(grad: np.ndarray, result: np.ndarray, axis: int) -> np.ndarray:
    """Return the gradient of `softmax` with respect to its input; `result` is what `softmax` returned."""
    return _row_by_row(_softmax_backward, axis, grad, result)


@on_device("normalization")
def log_softmax(a: np.ndarray, axis: int) -> np.ndarray:
    """Return log(softmax(a)) along `axis`, accurate even if softmax underflows."""
    return _row_by_row(_log_softmax, axis, a)


@on_device("normalization")
def log_softmax_backward(grad: np.ndarray, result: np.ndarray, axis: int) -> np.ndarray:
    """Return the gradient of `log_softmax` with respect to its input; `result` is what `log_softmax` returned."""
    return _row_by_row(_log_softmax_backward, axis, grad, result)


@jit(fastmath=REASSOCIATE)
def _run_weighted_sums(g: Any, x: Any, w: Any, centre: Any) -> Any:
    plain, centred = x.dtype.type(0.0), x.dtype.type(0.0)
    for j in range(g.size):
        gw = g[j] * w[j]
        plain += gw
        centred += gw * (x[j] - centre)
    return plain, centred


@jit
def _weighted_sums(g: Any, x: Any, w: Any, centre: Any) -> Any:
    """Return sum(g * w) and sum(g * w * (x - centre)) over a row."""
    plain, centred = np.float64(0.0), np.float64(0.0)
    for j in range(0, g.size, RUN):
        run = _run_weighted_sums(g[j : j + RUN], x[j : j + RUN], w[j : j + RUN], centre)
        plain += run[0]
        centred += run[1]
    return plain, centred


@jit
def _layer_norm(
    start: int, stop: int, a: Any, weight: Any, bias: Any, eps: float, out: Any, mean: Any, rstd: Any
) -> None:
    n, total = a.shape[1], row_sum(a[start])
    for i in range(start, stop):
        x, y = a[i], out[i]
        centre = y.dtype.type(total / n)
        squares = row_squares(x, centre)
        if i + 1 < stop:
            total = row_sum(a[i + 1])
        r = y.dtype.type(1.0 / np.sqrt(squares / n + eps))
        for j in range(n):
            y[j] = (x[j] - centre) * r * weight[j] + bias[j]
        mean[i] = centre
        rstd[i] = r


@jit
def _layer_norm_backward(
    start: int, stop: int, grad: Any, a: Any, weight: Any, mean: Any, rstd: Any, block: int, da: Any, dweight: Any,
    dbias: Any,
) -> None:  # fmt: skip
    rows, n = a.shape
    for b in range(start, stop):
        dw, db = dweight[b][:n], dbias[b][:n]
        for j in range(n):
            dw[j] = 0
            db[j] = 0
        for i in range(b * block, min((b + 1) * block, rows)):
            g, x, dx, centre, r = grad[i], a[i], da[i], mean[i], rstd[i]
            plain, centred = _weighted_sums(g, x, weight, centre)
            shift = dx.dtype.type(plain / n)
            slope = dx.dtype.type(centred / n * r)
            for j in range(n):
                normalized = (x[j] - centre) * r
                dx[j] = r * (g[j] * weight[j] - shift - normalized * slope)
                dw[j] += g[j] * normalized
                db[j] += g[j]


@jit
def _rms_norm(start: int, stop: int, a: Any, weight: Any, eps: float, out: Any, rstd: Any) -> None:
    n, squares = a.shape[1], row_dot(a[start], a[start])
    for i in range(start, stop):
        x, y = a[i], out[i]
        r = y.dtype.type(1.0 / np.sqrt(squares / n + eps))
        if i + 1 < stop:
            squares = row_dot(a[i + 1], a[i + 1])
        for j in range(n):
            y[j] = x[j] * r * weight[j]
        rstd[i] = r


@jit
def _rms_norm_backward(
    start: int, stop: int, grad: Any, a: Any, weight: Any, rstd: Any, block: int, da: Any, dweight: Any
) -> None:
    rows, n = a.shape
    for b in range(start, stop):
        dw = dweight[b][:n]
        for j in range(n):
            dw[j] = 0
        for i in range(b * block, min((b + 1) * block, rows)):
            g, x, dx, r = grad[i], a[i], da[i], rstd[i]
            _, weighted = _weighted_sums(g, x, weight, dx.dtype.type(0.0))
            slope = dx.dtype.type(weighted / n * r)
            for j in range(n):
                normalized = x[j] * r
                dx[j] = r * (g[j] * weight[j] - normalized * slope)
                dw[j] += g[j] * normalized


def _parameter(value: np.ndarray | None, n: int, dtype: Any, default: float) -> np.ndarray:
    """Return the weight or bias `value` as n contiguous numbers; if `value` is None, each number is `default`."""
    if value is None:
        return np.full(n, default, dtype)
    return value if value.ndim == 1 and value.flags.c_contiguous else np.ascontiguousarray(value).reshape(n)


def _normalized_rows(a: np.ndarray, n: int) -> np.ndarray:
    if a.ndim == 2 and a.shape[1] == n > 0 and a.flags.c_contiguous:
        return a
    return np.ascontiguousarray(a).reshape(a.size // n if n else 0, n)


def _partial_sums(partials: int, n: int, dtype: Any, offset_bytes: int) -> np.ndarray:
    """Return an uninitialised array of `partials` rows for n sums; each row begins `offset_bytes` into a page.

    Rows fill whole pages, so they are longer than n; the rest is unused. A single row is as long as n.
    """
    if partials == 1:
        return buffers.empty((1, n), dtype)
    page, offset = _PAGE_BYTES // dtype.itemsize, offset_bytes // dtype.itemsize
    pitch = -(-n // page) * page
    return buffers.empty((partials * pitch + page,), dtype)[offset : offset + partials * pitch].reshape(partials, pitch)


def _backward(
    kernel: Any, grad: np.ndarray, a: np.ndarray, weight: np.ndarray | None, statistics: tuple[np.ndarray, ...],
    offsets_bytes: tuple[int, ...],
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Run the backward `kernel`; return da and the gradient of each parameter.

    The partial sums of parameter i's gradient begin `offsets_bytes[i]` into a page.
    """
    groups = statistics[0].size
    n = a.size // groups if groups else 0 if weight is None else weight.size
    rows, grad_rows = _normalized_rows(a, n), _normalized_rows(grad, n)
    # If the number of rows of a partial sum depended on the number of threads, sums would too.
    block = max(_MIN_ROWS_PER_PARTIAL, -(-len(rows) // _MAX_PARTIALS))
    partials = -(-len(rows) // block)
    da = buffers.empty(a.shape, a.dtype)
    sums = [_partial_sums(partials, n, a.dtype, offset_bytes) for offset_bytes in offsets_bytes]
    parallel_for(
        kernel, partials, -(-grain_of(n) // block),
        grad_rows, rows, _parameter(weight, n, a.dtype, 1), *statistics, block, da.reshape(rows.shape), *sums,
    )  # fmt: skip
    if partials == 1:
        return da, *[total.reshape(n) for total in sums]
    return da, *[total[:, :n].sum(axis=0) for total in sums]


@on_device("normalization")
def layer_norm(
    a: np.ndarray, n: int, weight: np.ndarray | None, bias: np.ndarray | None, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (out, mean, rstd): rows of n elements, normalized to mean 0 and variance 1, times weight, plus bias.

    Shapes: out as `a`; weight and bias of n elements; mean and rstd (rows,).
    Source: Ba et al. 2016, "Layer normalization".
    """
    rows = _normalized_rows(a, n)
    count = rows.shape[0]
    out = buffers.empty(a.shape, a.dtype)
    mean, rstd = buffers.empty((count,), a.dtype), buffers.empty((count,), a.dtype)
    weight, bias = _parameter(weight, n, a.dtype, 1), _parameter(bias, n, a.dtype, 0)
    parallel_for(_layer_norm, count, grain_of(n), rows, weight, bias, float(eps), out.reshape(rows.shape), mean, rstd)
    return out, mean, rstd


@on_device("normalization")
def layer_norm_backward(
    grad: np.ndarray, a: np.ndarray, weight: np.ndarray | None, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (da, dweight, dbias). The last two are flat, and are computed even if weight or bias is None.

    Shapes: grad and da as `a`; mean and rstd (rows,) as `layer_norm` returned them; dweight and dbias (n,).
    """
    da, dweight, dbias = _backward(
        _layer_norm_backward, grad, a, weight, (mean, rstd), (_WEIGHT_OFFSET_BYTES, _BIAS_OFFSET_BYTES)
    )
    return da, dweight, dbias


@on_device("normalization")
def rms_norm(a: np.ndarray, n: int, weight: np.ndarray | None, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (out, rstd): rows of n elements, scaled to mean square 1, times weight.

    Shapes: out as `a`; weight of n elements; rstd (rows,).
    Source: Zhang & Sennrich 2019, "Root mean square layer normalization".
    """
    rows = _normalized_rows(a, n)
    out, rstd = buffers.empty(a.shape, a.dtype), buffers.empty((rows.shape[0],), a.dtype)
    weight = _parameter(weight, n, a.dtype, 1)
    parallel_for(_rms_norm, rows.shape[0], grain_of(n), rows, weight, float(eps), out.reshape(rows.shape), rstd)
    return out, rstd


@on_device("normalization")
def rms_norm_backward(
    grad: np.ndarray, a: np.ndarray, weight: np.ndarray | None, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (da, dweight). dweight is flat, and is computed even if weight is None.

    Shapes: grad and da as `a`; rstd (rows,) as `rms_norm` returned it; dweight (n,).
    """
    da, dweight = _backward(_rms_norm_backward, grad, a, weight, (rstd,), (_WEIGHT_OFFSET_BYTES,))
    return da, dweight
