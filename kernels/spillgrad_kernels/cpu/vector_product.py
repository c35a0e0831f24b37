"""Products of a matrix and a vector. They wait for memory, so they read the matrix in long runs, once, unpacked."""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.epilogue import NO_EPILOGUE, apply_epilogue
from spillgrad_kernels.cpu.pointers import array_at, data_of
from spillgrad_kernels.cpu.product_geometry import Matrix, matrices_of, part, read_geometry, transposed
from spillgrad_kernels.cpu.product_tile import depth_of, numbers_in, numbers_of, sums_of, widened
from spillgrad_kernels.jit.compile import REASSOCIATE, jit, register_jitable
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.threads.atomics import fetch_add
from spillgrad_kernels.threads.dispatch import Kernel

# The number of sums that a product keeps in the L1 cache, and of the vector's elements in L2. A row of the matrix is
# read in pieces of that depth; shorter ones would interrupt the stream.
_SUMS = 4096
_DEPTH = 4 * _SUMS
# The elements of scratch memory that `multiply_vector` needs.
VECTOR_SCRATCH = _DEPTH + _SUMS


@jit(fastmath=REASSOCIATE)
def _dots(
    first: np.ndarray, second: np.ndarray, third: np.ndarray, fourth: np.ndarray, y: np.ndarray
) -> tuple[float, float, float, float]:
    """Return the dot products of four vectors with `y`.

    A core reads four streams of memory faster than one: at 32000 x 2048 on Emerald Rapids, 1.6 times. Streams that
    are far apart are read faster than those of neighbouring rows: on Zen 4, 1.1 to 1.4 times.
    """
    a = b = c = d = y.dtype.type(0)
    for i in range(y.size):
        a += widened(first[i]) * y[i]
        b += widened(second[i]) * y[i]
        c += widened(third[i]) * y[i]
        d += widened(fourth[i]) * y[i]
    return a, b, c, d


@jit
def dot_rows(numbers: np.ndarray, rows: int, at: int, step: int, y: np.ndarray, sums: np.ndarray) -> None:
    """Set sums[:rows] to the dot products with `y` of rows, which begin at an address, `step` bytes apart.

    It takes one row from each quarter. Where the last quarter has fewer, its last row counts several times: so the
    product of a row is the same whatever rows are beside it.
    """
    quarter, last = (rows + 3) // 4, rows - 1
    for i in range(quarter):
        e, f, g = min(i + quarter, last), min(i + 2 * quarter, last), min(i + 3 * quarter, last)
        sums[i], sums[e], sums[f], sums[g] = _dots(
            array_at(numbers, at + i * step, y.size), array_at(numbers, at + e * step, y.size),
            array_at(numbers, at + f * step, y.size), array_at(numbers, at + g * step, y.size), y,
        )  # fmt: skip


@jit
def combine_columns(like: np.ndarray, m: int, k: int, a: Matrix, x: np.ndarray, sums: np.ndarray) -> None:
    """Set sums[:m] to the product of the m x k matrix A and the vector x.

    If possible, add up four columns at a time, to store the sums less often: one from each quarter of the columns, for
    the reason that `_dots` tells.
    """
    numbers = numbers_of(like)
    at_a, a_row, a_col = a
    sums[:m] = 0
    done = 0
    if a_row == numbers.itemsize:
        quarter = k // 4
        done = 4 * quarter
        for d in range(quarter):
            e, f, g = d + quarter, d + 2 * quarter, d + 3 * quarter
            first, second = array_at(numbers, at_a + d * a_col, m), array_at(numbers, at_a + e * a_col, m)
            third, fourth = array_at(numbers, at_a + f * a_col, m), array_at(numbers, at_a + g * a_col, m)
            for i in range(m):
                two = x[d] * widened(first[i]) + x[e] * widened(second[i])
                sums[i] = sums[i] + two + x[f] * widened(third[i]) + x[g] * widened(fourth[i])
    for d in range(done, k):
        for i in range(m):
            sums[i] += x[d] * widened(array_at(numbers, at_a + i * a_row + d * a_col, 1)[0])


@jit
def _chunk_of(like: np.ndarray, x: Matrix, depth: int, workspace: int) -> Any:
    """Return the first `depth` numbers of the column x, as sums are, in the workspace."""
    chunk = array_at(sums_of(like), workspace, depth)
    for d in range(depth):
        chunk[d] = widened(array_at(numbers_of(like), part(x, d, 0)[0], 1)[0])
    return chunk


@jit
def multiply_vector(
    like: np.ndarray, m: int, k: int, a: Matrix, x: Matrix, y: Matrix, addend: Matrix, workspace: int
) -> None:
    """Set the column y to the product of the m x k matrix A and the column x, plus the addend if there is one.

    A is read without packing.
    """
    numbers, floats = numbers_of(like), sums_of(like)
    sums = array_at(floats, workspace + _DEPTH * floats.itemsize, _SUMS)
    for k0 in range(0, k, _DEPTH):
        depth = min(_DEPTH, k - k0)
        chunk = _chunk_of(like, part(x, k0, 0), depth, workspace)
        base = addend if k0 == 0 else y
        for i0 in range(0, m, _SUMS):
            rows = min(_SUMS, m - i0)
            if a[2] == numbers.itemsize:
                dot_rows(numbers, rows, part(a, i0, k0)[0], a[1], chunk, sums)
            else:
                combine_columns(like, rows, depth, part(a, i0, k0), chunk, sums)
            for i in range(rows):
                added = part(base, i0 + i, 0)[0]
                before = array_at(floats, added, 1)[0] if added != 0 else floats.dtype.type(0)
                array_at(floats, part(y, i0 + i, 0)[0], 1)[0] = before + sums[i]


@register_jitable
def depth_of_parts(depth: int, parts: int) -> int:
    """Return the depth of each of some parts of a depth; the last one may be less deep."""
    return int(round_up((depth + parts - 1) // parts, 16))


@register_jitable
def _part_depth(like: np.ndarray, k: int, parts: int) -> int:
    """Return the depth of each of some parts of a depth; the last one may be less deep."""
    return int(depth_of_parts(depth_of(like, k), parts) * numbers_in(like))


@jit
def _add_parts(floats: np.ndarray, rows: int, parts: int, at: int, y: Matrix, addend: Matrix) -> None:
    """Set the column y to the sum of `parts` columns, which follow each other from the address `at` on, in order."""
    total = array_at(floats, at, rows)
    for number in range(1, parts):
        more = array_at(floats, at + number * rows * floats.itemsize, rows)
        for i in range(rows):
            total[i] += more[i]
    for i in range(rows):
        added = part(addend, i, 0)[0]
        before = array_at(floats, added, 1)[0] if added != 0 else floats.dtype.type(0)
        array_at(floats, part(y, i, 0)[0], 1)[0] = before + total[i]


def vector_product(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that computes a matrix-vector product from parts of its depth, which its range numbers.

    It is for a matrix whose neighbours in memory belong to different sums: a part of the depth is one run of memory.
    The thread that finishes last adds up the parts, in their order. After the parameters that it has in common with the
    kernel of `separate_products`, it takes the id of an array for the parts' sums, and the address of a word that is 0.
    """
    like: Any = np.zeros(1, dtype)

    @jit(name=f"product.vector_product.{dtype}")
    def kernel(
        start: int, stop: int, geometry: int, id_a: int, id_b: int, id_addend: int, id_c: int, id_sums: int, word: int
    ) -> None:
        g = read_geometry(geometry)
        m, k, parts, epilogue = g.m, g.k, g.workers, g.epilogue
        a, b, c, addend, other, result = matrices_of(geometry, 0, (id_a, id_b, id_addend, id_c))
        rows, matrix, x, y, added = (
            (g.n, transposed(b), transposed(a), transposed(c), transposed(addend)) if m == 1 else (m, a, b, c, addend)
        )
        floats, depth, sums = sums_of(like), _part_depth(like, k, parts), data_of(id_sums)
        scratch = np.empty(_SUMS, floats.dtype)
        pieces = (rows + 2 * _SUMS - 1) // (2 * _SUMS)
        wide = round_up((rows + pieces - 1) // pieces, 16)  # even, for long runs of memory
        for number in range(start, stop):
            workspace = np.intp(scratch.ctypes.data)  # within the loop, as in `separate_products`
            k0 = number * depth
            chunk = _chunk_of(like, part(x, k0, 0), min(depth, k - k0), workspace)
            for i0 in range(0, rows, wide):
                count = min(wide, rows - i0)
                into = array_at(floats, sums + (number * rows + i0) * floats.itemsize, count)
                combine_columns(like, count, chunk.size, part(matrix, i0, k0), chunk, into)
            if fetch_add(word, 0, 1) == parts - 1:
                _add_parts(floats, rows, parts, sums, y, added)
                if epilogue != NO_EPILOGUE:
                    apply_epilogue(epilogue, m, g.n, c, other, result)

    return kernel
