"""The geometry of a product: the numbers that kernels read, and the matrices that the numbers describe."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.epilogue import NO_EPILOGUE
from spillgrad_kernels.cpu.pointers import array_at, data_of
from spillgrad_kernels.jit.compile import register_jitable

# A matrix in memory: its address, and the bytes from row to row and from column to column. Address 0 stands for no
# matrix.
Matrix = tuple[int, int, int]
# The ids of A, B, the addend and C. The addend may be C; 0 stands for no addend.
Operands = tuple[int, int, int, int]

# The numbers that kernels read about a product, as int64 in this order. Strides are in bytes.
_FIELDS = (
    "m", "n", "k",
    "rows", "columns",  # the sizes of a block, or of a tile in a shared product
    "scratch",  # elements of scratch memory for a block
    "workers", "phases",  # the numbers of threads (or parts) and of phases, of a product that threads share
    "epilogue", "other", "result",  # the address of the epilogue, and the ids of its other operand and its result
    "swapped",  # whether A and B are exchanged
    "a_row", "a_col", "b_row", "b_col", "addend_row", "addend_col", "c_row", "c_col", "other_row", "result_row",
    "batch_dims",
)  # fmt: skip
_GEOMETRY: Any = np.zeros(1, np.dtype((np.record, [(name, np.int64) for name in _FIELDS])))
# The numbers that follow `_FIELDS` for each dimension of the batch: its size, and the stride of each operand in bytes.
_BATCH_FIELDS = ("count", "a", "b", "addend", "c")  # the bytes between matrices
_BATCH: Any = np.zeros(1, np.dtype((np.record, [(name, np.int64) for name in _BATCH_FIELDS])))
_EXTRAS = _FIELDS.index("epilogue")

# An epilogue's address, and the ids of its other operand and its result; 0 stands for a missing one.
Extras = tuple[int, int, int]
NO_EXTRAS: Extras = (NO_EPILOGUE, 0, 0)


def with_extras(geometry: np.ndarray, extras: Extras) -> np.ndarray:
    """Return a copy of `geometry` with the epilogue that `extras` describes."""
    geometry = geometry.copy()
    geometry[_EXTRAS : _EXTRAS + 3] = extras
    return geometry


def geometry_of(
    cut: Sequence[int], swapped: bool, strides: Sequence[int], batch: Sequence[Sequence[int]]
) -> np.ndarray:
    """Return the geometry of products without an epilogue.

    `cut` holds the fields from `m` to `phases`, and `strides` the fields from `a_row` to `result_row`. `batch` holds
    the numbers of `_BATCH_FIELDS` for each dimension of the batch.
    """
    head = (*cut, *NO_EXTRAS, swapped, *strides, len(batch))
    return np.array([*head, *itertools.chain.from_iterable(batch)], np.int64)


@register_jitable
def read_geometry(address: int) -> Any:
    """Return the geometry at `address` as a record with named fields."""
    return array_at(_GEOMETRY, address, 1)[0]


@register_jitable
def matrices_of(address: int, number: int, operands: Operands) -> tuple[Matrix, Matrix, Matrix, Matrix, Matrix, Matrix]:
    """Return A, B, C, the addend, other and result of product `number` of the batch, given a geometry's address.

    `other` and `result` belong to the epilogue, and have the column stride of C.
    """
    g = read_geometry(address)
    dims = g.batch_dims
    batch = array_at(_BATCH, address + _GEOMETRY.itemsize, dims)
    of_a, of_b, of_addend, of_c = 0, 0, 0, 0
    for d in range(dims - 1, -1, -1):
        dim = batch[d]
        number, index = number // dim.count, number % dim.count
        of_a, of_b = of_a + index * dim.a, of_b + index * dim.b
        of_addend, of_c = of_addend + index * dim.addend, of_c + index * dim.c
    a, b, addend, c = operands
    if g.swapped != 0:
        a, b = b, a
    return (
        (data_of(a) + of_a, g.a_row, g.a_col),
        (data_of(b) + of_b, g.b_row, g.b_col),
        (data_of(c) + of_c, g.c_row, g.c_col),
        (data_of(addend) + of_addend if addend != 0 else 0, g.addend_row, g.addend_col),
        (data_of(g.other) if g.other != 0 else 0, g.other_row, g.c_col),
        (data_of(g.result) if g.result != 0 else 0, g.result_row, g.c_col),
    )


@register_jitable
def part(matrix: Matrix, i: int, j: int) -> Matrix:
    """Return the part of `matrix` that begins at row i and column j. If the address is 0 (no matrix), it stays 0."""
    address, row, col = matrix
    return (address + i * row + j * col if address != 0 else address), row, col


@register_jitable
def transposed(matrix: Matrix) -> Matrix:
    """Return the transpose of a matrix."""
    address, row, col = matrix
    return address, col, row
