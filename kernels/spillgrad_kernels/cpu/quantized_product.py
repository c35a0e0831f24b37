"""The products of float numbers with a quantized matrix, whose numbers exist only in panels and vectors.

For many rows, these are the loops of `product.py`, which expand codes into the panels of B. For few rows, each row of
codes is read once and multiplied with all of them, at the speed of the memory.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.code_vectors import MOST_ROWS, dot_codes, lines_at_once
from spillgrad_kernels.cpu.matmul import prepare
from spillgrad_kernels.cpu.packing import CODE_BYTES, code_row_bytes
from spillgrad_kernels.cpu.pointers import aligned, array_at
from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES
from spillgrad_kernels.cpu.quantization import Quantized, describes, has_int8, scales_of
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import REASSOCIATE, jit
from spillgrad_kernels.layout import Layout, address_of, layout_of
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.quantization import BLOCK, OF_LARGEST
from spillgrad_kernels.threads.dispatch import get_num_threads, parallel_for

_FLOATS = np.zeros(1, np.float32)
# The number of multiply-adds that pays for another thread: about 4 microseconds.
_GRAIN = 1 << 15
# The rows of codes that are a unit of work: as many as are read at once, at the most.
_GROUP = 4
# Up to so many rows, expanding codes for each `MOST_ROWS` of them takes less time than packing panels.
_FEW_ROWS = 16


@jit(fastmath=REASSOCIATE)
def _sum(values: np.ndarray) -> Any:
    total = values.dtype.type(0)
    for i in range(values.size):
        total += values[i]
    return total


@jit
def _few_rows(start: int, stop: int, codes: Any, origin: int, a: Any, bias: Any, out: Any) -> None:
    """Set columns of `out` to products of the rows of `a` and rows of a quantized matrix, plus the bias if any."""
    at = describes(origin)
    rows, blocks = a.shape[0], a.shape[1] // BLOCK
    lanes, line = VECTOR_BYTES // 4, a.shape[1] if has_int8(codes) else a.shape[1] // 2
    scales, sums = np.empty(_GROUP * blocks, np.float32), np.empty(_GROUP * MOST_ROWS * lanes, np.float32)
    for group in range(start, stop):
        begin = min(group * _GROUP, out.shape[1] - _GROUP)  # where fewer are left, some are computed again
        if not has_int8(codes):
            scales_of(origin, begin * blocks, _GROUP * blocks, scales.ctypes.data)
        for first in range(0, rows, MOST_ROWS):
            height = min(MOST_ROWS, rows - first)
            lines = lines_at_once(height)
            for n in range(begin, begin + _GROUP, lines):
                dot_codes(
                    codes, _FLOATS, height, blocks, at.codes + n * line, line,
                    scales.ctypes.data + (n - begin) * blocks * 4, a.ctypes.data + first * a.shape[1] * 4,
                    a.shape[1] * 4, sums.ctypes.data,
                )  # fmt: skip
                for i in range(lines):
                    factor = np.float32(1)
                    if has_int8(codes):
                        factor = array_at(_FLOATS, at.scales + (n + i) * 4, 1)[0] * OF_LARGEST
                    for j in range(height):
                        total = _sum(sums[(i * height + j) * lanes : (i * height + j + 1) * lanes]) * factor
                        if bias.size:
                            total += bias[n + i]
                        out[first + j, n + i] = total


@on_device("quantized_product")
def times_transposed(rows: np.ndarray, matrix: Quantized, bias: np.ndarray | None = None) -> np.ndarray:
    """Return rows @ matrix.T, plus the bias if there is one.

    Numbers of the matrix are float32; sums have the dtype of the rows.
    Shapes: rows (M, K), matrix (N, K), bias (N,), result (M, N). `rows` and `bias` are float32, or both are float64.
    """
    outputs, depth = matrix.shape
    format = matrix.codes.dtype
    is_whole = depth % BLOCK == 0 and outputs >= _GROUP and depth > 0
    if 0 < len(rows) <= _FEW_ROWS and rows.dtype == np.float32 and is_whole:
        out = buffers.empty((len(rows), outputs), np.dtype(np.float32))
        added = np.empty(0, np.float32) if bias is None else bias
        description = matrix.described()
        grain = max(1, _GRAIN // (_GROUP * depth * len(rows)))
        parallel_for(
            _few_rows, -(-outputs // _GROUP), grain, np.empty(0, format), address_of(description),
            np.ascontiguousarray(rows), np.ascontiguousarray(added), out,
        )  # fmt: skip
        return out
    strides = CODE_BYTES, code_row_bytes(depth)
    return _product(rows, matrix, Layout.made((depth, outputs), strides, rows.dtype), bias)


@on_device("quantized_product")
def times(rows: np.ndarray, matrix: Quantized) -> np.ndarray:
    """Return rows @ matrix, as `times_transposed`. Shapes: rows (M, N), matrix (N, K), result (M, K)."""
    strides = code_row_bytes(matrix.shape[1]), CODE_BYTES
    return _product(rows, matrix, Layout.made(matrix.shape, strides, rows.dtype), None)


def _product(rows: np.ndarray, matrix: Quantized, layout: Layout, bias: np.ndarray | None) -> np.ndarray:
    rows = aligned(rows)
    added = None if bias is None else aligned(np.ascontiguousarray(bias))
    call = prepare(
        layout_of(rows), layout, None, get_num_threads(), None if added is None else (0, rows.itemsize),
        matrix.codes.dtype,
    )  # fmt: skip
    return call.run(rows, matrix.described(), addend=added)
