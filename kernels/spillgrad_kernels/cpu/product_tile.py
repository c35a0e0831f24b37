"""The tile of a matrix product: its size on this processor, and the dtypes of its numbers and sums.

Functions take `like`, an array of which only the dtype counts. It is the dtype of packed A and B, and of C unless the
dtype is `BFLOAT16_PAIR`. An element of `BFLOAT16_PAIR` holds two bfloat16 numbers, the first in its low half. The
product of two such elements is the sum of the products of their halves, in float32, which is then the dtype of C.
"""

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.compile import DISABLE_JIT, emitted, overload, register_jitable, types


def _tile_of_host() -> tuple[int, int]:
    """Return the number of bytes of a vector register, and the number of rows of a tile.

    A tile and a row of B must fit the vector registers together.
    """
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 12
    if features.get("avx2") and features.get("fma"):
        return 32, 6
    return 16, 8 if features.get("neon") else 6


VECTOR_BYTES, TILE_ROWS = _tile_of_host()
TILE_VECTORS = 2


def tile_columns(like: np.ndarray) -> int:
    """Return the number of columns of a tile of C: two vectors. LLVM sees a constant, and unrolls loops up to it."""
    return int(TILE_VECTORS * VECTOR_BYTES // like.itemsize)


@overload(tile_columns)
def _tile_columns(like: Any) -> Any:
    columns: int = TILE_VECTORS * VECTOR_BYTES * 8 // like.dtype.bitwidth

    def constant(like: Any) -> int:
        return columns

    return constant


# The dtype of packed elements, each of two bfloat16 numbers that are neighbours along the depth of a product. No other
# operand has this dtype.
BFLOAT16_PAIR = np.dtype(np.uint32)
HALVES = np.zeros(1, np.uint16)
_SUMS = np.zeros(1, np.float32)
_FLOAT64 = np.zeros(1, np.float64)


def numbers_in(like: np.ndarray) -> int:
    """Return how many numbers an element of the dtype of `like` holds: 2 for a pair, else 1."""
    return 2 if like.dtype == BFLOAT16_PAIR else 1


def numbers_of(like: np.ndarray) -> np.ndarray:
    """Return an array of the dtype of the numbers in an element of `like`; bfloat16 numbers are uint16 bits."""
    return HALVES if like.dtype == BFLOAT16_PAIR else like


def sums_of(like: np.ndarray) -> np.ndarray:
    """Return an array whose dtype is that of sums of products of `like`'s elements; its contents have no meaning."""
    return _SUMS if like.dtype == BFLOAT16_PAIR else like


def like_of(array: np.ndarray) -> np.ndarray:
    """Return an array to pass as `like`, of the dtype of `array`: float32 or float64.

    In Python, this is `array`. Inside kernels, it is a constant array, the same one for all arrays of the dtype. So
    Numba compiles functions of `like` once for each dtype.
    """
    return array


def is_pair(dtype: Any) -> bool:
    """Return whether `dtype`, Numba's type of packed elements, is the type of `BFLOAT16_PAIR`."""
    return bool(dtype.name == BFLOAT16_PAIR.name)


overload(numbers_in)(lambda like: (lambda like: 2) if is_pair(like.dtype) else (lambda like: 1))
overload(numbers_of)(lambda like: (lambda like: HALVES) if is_pair(like.dtype) else (lambda like: like))
overload(sums_of)(lambda like: (lambda like: _SUMS) if is_pair(like.dtype) else (lambda like: like))
overload(like_of)(lambda array: (lambda array: _SUMS) if array.dtype == types.float32 else (lambda array: _FLOAT64))


if DISABLE_JIT:

    def widened(number: Any) -> Any:
        """Convert `number` to the dtype in which its products are added up: bits of bfloat16 (uint16) to float32."""
        if number.dtype != np.uint16:
            return number
        return np.array(np.uint32(number) << np.uint32(16)).view(np.float32)[()]

else:

    @emitted(lambda number: (types.float32 if number == types.uint16 else number)(number))
    def widened(builder: Any, number: Any) -> Any:
        if number.type != ir.IntType(16):
            return number
        word = ir.IntType(32)
        bits = builder.shl(builder.zext(number, word), ir.Constant(word, 16))
        return builder.bitcast(bits, ir.FloatType())


@register_jitable
def depth_of(like: np.ndarray, numbers: int) -> int:
    """Return how many elements of the dtype of `like` hold `numbers` numbers: a pair holds two."""
    return (numbers + numbers_in(like) - 1) // numbers_in(like)
