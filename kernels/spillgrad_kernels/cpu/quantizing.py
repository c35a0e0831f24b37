"""Kernels that quantize matrices, and that turn quantized ones into float32 numbers again.

Codes, scales and numbers equal those of bitsandbytes' functions for CPUs. The mean of scales is exact here, and its own
may differ in the last bit.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.quantization import Quantized, expand
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.layout import address_of
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.quantization import (
    BLOCK,
    BOUNDS,
    GRID,
    INT8,
    LARGEST,
    LEAST,
    NESTED_BLOCK,
    ZERO,
    grid_codes,
)
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for

_EXACT: set[str] = set()


@jit(fastmath=_EXACT)
def _largest(values: np.ndarray) -> Any:
    """Return the largest absolute value; NaN if a value is NaN."""
    found = np.float32(0)
    for i in range(values.size):
        size = abs(values[i])
        found = size if not size <= found else found  # so NaN counts as larger, and stays
        if size != size:
            return size
    return found


@jit(fastmath=_EXACT)
def _quantize_blocks(start: int, stop: int, numbers: Any, codes: Any, scales: Any) -> None:
    found = np.empty(BLOCK, np.uint8)
    for block in range(start, stop):
        values = numbers[block * BLOCK : (block + 1) * BLOCK]
        scale = _largest(values)
        count = values.size
        if count < BLOCK:
            scale = max(scale, LEAST)
        scales[block] = scale
        factor = np.float32(1) / max(scale, LEAST)
        for i in range(count):
            value = values[i] / scale if count < BLOCK else values[i] * factor
            value = min(max(value, np.float32(-1)), np.float32(1))
            code = np.uint8(0)
            for level in range(BOUNDS.size):
                code += np.uint8(value > BOUNDS[level])
            found[i] = code
        found[count:] = ZERO
        for i in range((count + 1) // 2):
            codes[block * (BLOCK // 2) + i] = found[2 * i] << 4 | found[2 * i + 1]


@jit(fastmath=_EXACT)
def _quantize_scales(start: int, stop: int, scales: Any, offset: Any, table: Any, codes: Any, nested: Any) -> None:
    mean = offset[0]
    for block in range(start, stop):
        begin, end = block * NESTED_BLOCK, min((block + 1) * NESTED_BLOCK, scales.size)
        largest = np.float32(0)
        for i in range(begin, end):
            largest = max(largest, abs(scales[i] - mean))
        nested[block] = largest
        if largest == 0:
            codes[begin:end] = 0
            continue
        factor = np.float32(1) / largest
        for i in range(begin, end):
            place = ((scales[i] - mean) * factor + np.float32(1)) * GRID + np.float32(0.5)
            codes[i] = table[min(max(np.int64(place), 0), table.size - 1)]


@jit(fastmath=_EXACT)
def _quantize_rows(start: int, stop: int, numbers: Any, codes: Any, scales: Any) -> None:
    for row in range(start, stop):
        values, found = numbers[row], codes[row]
        scale = _largest(values)
        scales[row] = scale
        factor = np.float32(1) / scale * LARGEST if scale > 0 else np.float32(0)
        for i in range(values.size):
            found[i] = np.int8(np.rint(values[i] * factor))


@jit
def _expand_rows(start: int, stop: int, codes: Any, origin: int, rows: Any, out: Any) -> None:
    for i in range(start, stop):
        row = rows[i] if rows.size else i
        place = out.ctypes.data + i * out.shape[1] * out.itemsize
        expand(codes, out, origin, row, 0, out.shape[1], place, out.shape[1], 0)


@on_device("quantizing")
def quantize(matrix: np.ndarray, format: np.dtype[Any], nests: bool = True) -> Quantized:
    """Return a float32 matrix as quantized numbers of `format`, `NF4` or `INT8`.

    With `nests`, the scales of NF4 are quantized, too. Raises ValueError if a number is infinite or NaN.
    """
    rows, columns = matrix.shape
    matrix = np.ascontiguousarray(matrix, np.float32)
    if format == INT8:
        found, largest = np.empty((rows, columns), np.int8), np.empty(rows, np.float32)
        parallel_for(_quantize_rows, rows, grain_of(columns), matrix, found, largest)
        _require_finite(largest)
        return Quantized((rows, columns), found, largest)
    blocks = -(-matrix.size // BLOCK)
    codes, scales = np.empty(-(-matrix.size // 2), np.uint8), np.empty(blocks, np.float32)
    parallel_for(_quantize_blocks, blocks, grain_of(BLOCK), matrix.reshape(-1), codes, scales)
    _require_finite(scales)
    if not nests:
        return Quantized((rows, columns), codes, scales)
    return Quantized((rows, columns), codes, *_nested(scales))


def _nested(scales: np.ndarray, offset: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scales in eight bits: their codes, the scales of these, and what is added, by default the mean."""
    mean = np.array(scales.mean(dtype=np.float64) if scales.size else 0, np.float32) if offset is None else offset
    blocks = -(-scales.size // NESTED_BLOCK)
    codes, nested = np.empty(scales.size, np.uint8), np.empty(blocks, np.float32)
    parallel_for(_quantize_scales, blocks, grain_of(NESTED_BLOCK), scales, mean.reshape(1), grid_codes(), codes, nested)
    return codes, nested, mean


def _require_finite(scales: np.ndarray) -> None:
    if not np.isfinite(scales).all():
        raise ValueError("quantize: got a number that is infinite or NaN; wanted finite ones")


@on_device("quantizing")
def dequantize(matrix: Quantized, rows: np.ndarray | None = None, dtype: Any = np.float32) -> np.ndarray:
    """Return the numbers of a quantized matrix, or of some of its rows, by their numbers (int64, which are in range).

    They are float32; with another `dtype`, float64, they are converted.
    """
    found = np.empty(0, np.int64) if rows is None else np.ascontiguousarray(rows.reshape(-1), np.int64)
    count = matrix.shape[0] if rows is None else found.size
    out = buffers.empty((count, matrix.shape[1]), np.dtype(dtype))
    description = matrix.described()
    if out.size:
        parallel_for(
            _expand_rows, count, grain_of(matrix.shape[1]), np.empty(0, matrix.codes.dtype), address_of(description),
            found, out,
        )  # fmt: skip
    return out if rows is None else out.reshape(*rows.shape, matrix.shape[1])
