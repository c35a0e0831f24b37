"""Quantized matrices: how they lie in memory, kernels that quantize and dequantize, and the loops that expand codes.

`codes`, in the kernels below, is an array of which only the dtype counts: that of the format (see
`tables/quantization.py`). A kernel finds a quantized matrix by `origin`, the address of its description.
"""

from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cpu.code_vectors import expand_codes, expands
from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.jit.compile import jit, overload, register_jitable
from spillgrad_kernels.tables.quantization import (
    BLOCK,
    INT8,
    LEVELS,
    NESTED_BLOCK,
    OF_LARGEST,
    dynamic_map,
)

_EXACT: set[str] = set()  # a multiply-add would round a scale otherwise than its format says
_BYTES = np.zeros(1, np.uint8)
_CODES = np.zeros(1, np.int8)
_FLOATS = np.zeros(1, np.float32)
# The numbers of a description, as int64 in this order. The address of nested scales is 0 if scales are float32 numbers.
_FIELDS = ("columns", "codes", "scales", "nested", "offset", "map")
_DESCRIPTION: Any = np.zeros(1, np.dtype((np.record, [(name, np.int64) for name in _FIELDS])))


def has_int8(codes: np.ndarray) -> bool:
    """Return whether the format is int8, not NF4."""
    return codes.dtype == INT8


overload(has_int8)(lambda codes: (lambda codes: True) if codes.dtype.name == "int8" else (lambda codes: False))


class Quantized(NamedTuple):
    """A quantized matrix of `shape`.

    The codes of NF4 are uint8, in memory order, two in a byte; the scales are float32, one for each block, or uint8,
    and then `nested` (float32) and `offset` (float32, no dimensions) are what they stand for. The codes of int8 are
    int8; the scales are the largest number of each row, float32.
    """

    shape: tuple[int, int]
    codes: np.ndarray
    scales: np.ndarray
    nested: np.ndarray | None = None
    offset: np.ndarray | None = None

    def described(self) -> np.ndarray:
        """Return the numbers that kernels read about the matrix; they hold as long as its arrays live.

        Raises ValueError for arrays that are not as said above: kernels would read beyond them.
        """
        for (name, part), (count, dtype) in zip(list(self._asdict().items())[1:], self._layouts(), strict=True):
            if part is None:
                continue
            if part.dtype != dtype or part.size != count or not part.flags.c_contiguous:
                raise ValueError(
                    f"quantized matrix: got {part.size} {name} of {part.dtype} and strides {part.strides} for the "
                    f"shape {self.shape}; wanted {count} contiguous ones of {np.dtype(dtype)}; quantize the weight anew"
                )
        addresses = [0 if part is None else part.ctypes.data for part in (*self[1:], dynamic_map())]
        return np.array([self.shape[1], *addresses], np.int64)

    def _layouts(self) -> list[tuple[int, Any]]:
        """Return how many elements each part has, and of which dtype."""
        rows, columns = self.shape
        if self.codes.dtype == np.int8:
            return [(rows * columns, np.int8), (rows, np.float32), (0, np.float32), (0, np.float32)]
        blocks = -(-rows * columns // BLOCK)
        scales = np.float32 if self.nested is None else np.uint8
        of_codes = -(-rows * columns // 2)
        return [(of_codes, np.uint8), (blocks, scales), (-(-blocks // NESTED_BLOCK), np.float32), (1, np.float32)]


@jit(fastmath=_EXACT)
def _scale_of(at: Any, block: int) -> Any:
    """Return the scale of a block of NF4."""
    if at.nested == 0:
        return array_at(_FLOATS, at.scales, block + 1)[block]
    code = array_at(_BYTES, at.scales, block + 1)[block]
    value = array_at(_FLOATS, at.map, 256)[code] * array_at(_FLOATS, at.nested + block // NESTED_BLOCK * 4, 1)[0]
    return value + array_at(_FLOATS, at.offset, 1)[0]


@register_jitable
def describes(origin: int) -> Any:
    """Return the description at an address, as a record with named fields."""
    return array_at(_DESCRIPTION, origin, 1)[0]


@jit(fastmath=_EXACT)
def scales_of(origin: int, first: int, count: int, target: int) -> None:
    """Write the scales of `count` blocks of NF4 from number `first` on to address `target`, as float32."""
    at = describes(origin)
    found = array_at(_FLOATS, target, count)
    if at.nested == 0:
        given = array_at(_FLOATS, at.scales + first * 4, count)
        for i in range(count):
            found[i] = given[i]
        return
    values, offset = array_at(_FLOATS, at.map, 256), array_at(_FLOATS, at.offset, 1)[0]
    done = 0
    while done < count:
        run = min(count - done, NESTED_BLOCK - (first + done) % NESTED_BLOCK)
        nested = array_at(_FLOATS, at.nested + (first + done) // NESTED_BLOCK * 4, 1)[0]
        given_codes = array_at(_BYTES, at.scales + first + done, run)
        for i in range(run):
            found[done + i] = values[given_codes[i]] * nested + offset
        done += run


@jit(fastmath=_EXACT)
def expand(
    codes: np.ndarray, like: np.ndarray, origin: int, row: int, column: int, count: int, target: int, width: int,
    step: int,
) -> None:  # fmt: skip
    """Write `count` numbers of a row of a quantized matrix, from `column` on, to address `target`.

    After each `width` numbers, which are neighbours, the next ones begin `step` bytes later than these began.
    """
    at = describes(origin)
    size = like.itemsize
    number = row * at.columns + column
    done = 0
    while done < count:
        first = number + done
        run = min(count - done, width - done % width)
        place = target + done // width * step + done % width * size
        if has_int8(codes):
            scale = array_at(_FLOATS, at.scales + row * 4, 1)[0]
            source, whole = at.codes + first, expands(like, run)
        else:
            run = min(run, BLOCK - first % BLOCK)
            scale = _scale_of(at, first // BLOCK)
            source, whole = at.codes + first // 2, expands(like, run) if first % 2 == 0 else 0
        expand_codes(codes, like, whole, source, scale, place)
        numbers = array_at(like, place, run)
        for i in range(whole, run):
            numbers[i] = _number_of(codes, at.codes, first + i, scale)
        done += run


@jit(fastmath=_EXACT)
def _number_of(codes: np.ndarray, address: int, number: int, scale: float) -> Any:
    """Return number `number` of a matrix whose codes are at `address`."""
    if has_int8(codes):
        return np.float32(array_at(_CODES, address + number, 1)[0]) * scale * OF_LARGEST
    byte = np.intp(array_at(_BYTES, address + number // 2, 1)[0])
    return LEVELS[byte & 15 if number % 2 else byte >> 4] * scale
