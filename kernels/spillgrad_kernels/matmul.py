"""The matrix product, for any strides and any broadcast batch, at the speed of the multiply-add units.

BLIS's loops: blocks of A and B are packed into panels that stay in cache, and `multiply_panels` makes one tile of C
from a panel of each. K is always cut at multiples of `_DEPTH`, so that an element of C is the same sum whatever block
or thread makes it.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

import functools
import math

import numpy as np
from numba.extending import register_jitable

from spillgrad_kernels import memory
from spillgrad_kernels.compile import REASSOCIATE, jit
from spillgrad_kernels.dispatch import get_num_threads, parallel_for
from spillgrad_kernels.microkernel import (
    TILE_ROWS,
    VECTOR_BYTES,
    array_at,
    copy_tile_line,
    multiply_panels,
    tile_columns,
    transpose_block,
)

# A panel of B (_DEPTH x tile_columns) stays in the L1 cache, a block of A (_ROWS x _DEPTH) in L2, one of B in L3.
_DEPTH = 256
_ROWS = 12 * TILE_ROWS
_COLUMNS = 2048
# A matrix-vector product keeps this many sums, and as many elements of its vector, in the L1 cache.
_VECTOR_CHUNK = 2048
# Multiply-adds that take about 50 microseconds, below which a thread of its own does not pay.
_GRAIN = 1 << 21
# Four blocks a thread balance uneven cores better than two, if each is large enough that packing it costs little.
_LARGE_BLOCK = 512 * 512
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_ONE_PRODUCT = np.zeros((1, 3), np.int64)


@register_jitable
def round_up(size: int, multiple: int) -> int:
    return (size + multiple - 1) // multiple * multiple


def workspace_size(m: int, n: int, k: int, itemsize: int) -> int:
    """Return how many elements of scratch memory an m x n product of depth k needs."""
    vector = VECTOR_BYTES // itemsize
    columns = 2 * vector
    packed: int = (round_up(min(n, _COLUMNS), columns) + round_up(min(m, _ROWS), TILE_ROWS)) * min(k, _DEPTH)
    chunks = 2 * _VECTOR_CHUNK if min(m, n) == 1 else 0
    # One vector that packing may write beyond the last panel, and one to align the start.
    return max(TILE_ROWS * columns + packed, chunks) + 2 * vector


@jit
def _pack(
    like: np.ndarray, width: int, source: int, across: int, along: int, count: int, depth: int, target: int
) -> None:
    """Copy `count` lines of `depth` elements into panels of `width` lines, in which equal depths are neighbours.

    Lines are `across` bytes apart, elements of a line `along` bytes. The last panel is filled up with zeros.
    """
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    for first in range(0, count, width):
        present = min(width, count - first)
        corner = source + first * across
        panel = target + first * depth * size
        done = 0
        if along == size:
            done = depth - depth % lanes
            for d in range(0, done, lanes):
                # Last lines first: a block may write beyond the panel's width, into the next depth's first lines.
                for line in range((width - 1) // lanes * lanes, -1, -lanes):
                    lines = min(lanes, present - line)
                    block = corner + d * size + (line * across if lines > 0 else 0)
                    transpose_block(like, block, across, lines, panel + (d * width + line) * size, width)
        elif across == size and present == width:
            done = depth
            for d in range(depth):
                copy_tile_line(like, width, corner + d * along, panel + d * width * size)
        for d in range(done, depth):
            packed = array_at(like, panel + d * width * size, width)
            for line in range(present):
                packed[line] = array_at(like, corner + line * across + d * along, 1)[0]
            packed[present:] = 0


@jit
def product(
    like: np.ndarray,
    m: int,
    n: int,
    k: int,
    a: int,
    a_row: int,
    a_col: int,
    b: int,
    b_row: int,
    b_col: int,
    c: int,
    c_row: int,
    c_col: int,
    accumulate: bool,
    workspace: int,
) -> None:
    """Set or add to the m x n matrix C the product of A and B, in the calling thread; k is at least 1.

    `a`, `b`, `c` and `workspace` are addresses, `a_row` and its kin the bytes from one row or column to the next.
    `like` is an array of their dtype. `workspace` has `workspace_size` elements and is aligned to a vector.
    """
    size = like.itemsize
    columns = tile_columns(like)
    tile = array_at(like, workspace, TILE_ROWS * columns)
    tile_row = columns * size
    packed_b = workspace + TILE_ROWS * tile_row
    # Packing A may write a vector beyond its end, so A comes last.
    packed_a = packed_b + round_up(min(n, _COLUMNS), columns) * min(k, _DEPTH) * size
    for j0 in range(0, n, _COLUMNS):
        width = min(_COLUMNS, n - j0)
        for k0 in range(0, k, _DEPTH):
            depth = min(_DEPTH, k - k0)
            adds = accumulate or k0 > 0
            _pack(like, columns, b + k0 * b_row + j0 * b_col, b_col, b_row, width, depth, packed_b)
            for i0 in range(0, m, _ROWS):
                height = min(_ROWS, m - i0)
                _pack(like, TILE_ROWS, a + i0 * a_row + k0 * a_col, a_row, a_col, height, depth, packed_a)
                for j in range(0, width, columns):
                    for i in range(0, height, TILE_ROWS):
                        place = c + (i0 + i) * c_row + (j0 + j) * c_col
                        fits = c_col == size and i + TILE_ROWS <= height and j + columns <= width
                        multiply_panels(
                            like,
                            depth,
                            packed_a + i * depth * size,
                            packed_b + j * depth * size,
                            place if fits else workspace,
                            c_row if fits else tile_row,
                            adds and fits,
                        )
                        if not fits:
                            for r in range(min(TILE_ROWS, height - i)):
                                for s in range(min(columns, width - j)):
                                    element = array_at(like, place + r * c_row + s * c_col, 1)
                                    value = tile[r * columns + s]
                                    element[0] = element[0] + value if adds else value


@jit(fastmath=REASSOCIATE)
def _dot(x: np.ndarray, y: np.ndarray) -> float:
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i] * y[i]
    return total  # type: ignore[no-any-return]


@jit
def _combine_columns(
    like: np.ndarray, m: int, k: int, a: int, a_row: int, a_col: int, x: np.ndarray, sums: np.ndarray
) -> None:
    """Set `sums` to the columns of A weighted with x, four at a time so that a sum is stored a fourth as often."""
    sums[:m] = 0
    done = 0
    if a_row == like.itemsize:
        done = k - k % 4
        for d in range(0, done, 4):
            first, second = array_at(like, a + d * a_col, m), array_at(like, a + (d + 1) * a_col, m)
            third, fourth = array_at(like, a + (d + 2) * a_col, m), array_at(like, a + (d + 3) * a_col, m)
            for i in range(m):
                sums[i] = sums[i] + x[d] * first[i] + x[d + 1] * second[i] + x[d + 2] * third[i] + x[d + 3] * fourth[i]
    for d in range(done, k):
        for i in range(m):
            sums[i] += x[d] * array_at(like, a + i * a_row + d * a_col, 1)[0]


@jit
def _multiply_vector(
    like: np.ndarray,
    m: int,
    k: int,
    a: int,
    a_row: int,
    a_col: int,
    x: int,
    x_step: int,
    y: int,
    y_step: int,
    accumulate: bool,
    workspace: int,
) -> None:
    """Set or add to the vector y the product of the m x k matrix A and the vector x; A is read as it lies in memory."""
    chunk = array_at(like, workspace, _VECTOR_CHUNK)
    sums = array_at(like, workspace + _VECTOR_CHUNK * like.itemsize, _VECTOR_CHUNK)
    for k0 in range(0, k, _VECTOR_CHUNK):
        depth = min(_VECTOR_CHUNK, k - k0)
        for d in range(depth):
            chunk[d] = array_at(like, x + (k0 + d) * x_step, 1)[0]
        for i0 in range(0, m, _VECTOR_CHUNK):
            rows = min(_VECTOR_CHUNK, m - i0)
            corner = a + i0 * a_row + k0 * a_col
            if a_col == like.itemsize:
                for i in range(rows):
                    sums[i] = _dot(array_at(like, corner + i * a_row, depth), chunk[:depth])
            else:
                _combine_columns(like, rows, depth, corner, a_row, a_col, chunk, sums)
            for i in range(rows):
                result = array_at(like, y + (i0 + i) * y_step, 1)
                result[0] = result[0] + sums[i] if accumulate or k0 > 0 else sums[i]


@jit
def _product_range(
    start: int,
    stop: int,
    workspace: np.ndarray,
    batch_offsets: np.ndarray,
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    a: int,
    a_row: int,
    a_col: int,
    b: int,
    b_row: int,
    b_col: int,
    c: int,
    c_row: int,
    c_col: int,
    accumulate: bool,
) -> None:
    """Compute the blocks of C numbered `start` to `stop`, each `rows` x `columns`, over all products of the batch."""
    row_blocks = (m + rows - 1) // rows
    blocks = row_blocks * ((n + columns - 1) // columns)
    scratch = round_up(np.intp(workspace.ctypes.data), VECTOR_BYTES)
    for task in range(start, stop):
        offsets = batch_offsets[task // blocks]
        i = task % blocks % row_blocks * rows
        j = task % blocks // row_blocks * columns
        height, width = min(rows, m - i), min(columns, n - j)
        pa, pb = a + offsets[0] + i * a_row, b + offsets[1] + j * b_col
        pc = c + offsets[2] + i * c_row + j * c_col
        if n == 1:
            _multiply_vector(workspace, height, k, pa, a_row, a_col, pb, b_row, pc, c_row, accumulate, scratch)
        elif m == 1:
            _multiply_vector(workspace, width, k, pb, b_col, b_row, pa, a_col, pc, c_col, accumulate, scratch)
        else:
            product(
                workspace,
                height,
                width,
                k,
                pa,
                a_row,
                a_col,
                pb,
                b_row,
                b_col,
                pc,
                c_row,
                c_col,
                accumulate,
                scratch,
            )


def _product_share(start: int, stop: int, scratch_size: int, dtype: np.dtype, *operands: object) -> None:
    workspace = memory.empty((scratch_size,), dtype)
    _product_range(start, stop, workspace, *operands)


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, *, accumulate: bool = False) -> np.ndarray:
    """Return a @ b, written to `out` or, with `accumulate`, added to it. `out` must not overlap the operands.

    Shapes: a (..., M, K), b (..., K, N), out (..., M, N); batch dimensions broadcast. Any strides; all float32 or all
    float64.
    Raises ValueError for shapes and TypeError for dtypes that do not fit.
    """
    dtype = a.dtype
    if dtype not in _DTYPES or b.dtype != dtype:
        raise TypeError(f"matmul: got {dtype} and {b.dtype}; both must be float32 or both float64; convert one")
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: got {a.shape} and {b.shape}; wanted (..., M, K) and (..., K, N) with equal K; transpose one"
        )
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch = _broadcast_batch(a.shape, b.shape) if a.ndim > 2 or b.ndim > 2 else ()
    if out is None:
        if accumulate:
            raise ValueError("matmul: got accumulate=True without out; pass the array to add to")
        out = memory.empty((*batch, m, n), dtype)
    elif out.shape != (*batch, m, n) or out.dtype != dtype:
        raise ValueError(f"matmul: got out {out.dtype} {out.shape}; wanted {dtype} {(*batch, m, n)}")
    elif not out.flags.behaved:
        raise ValueError("matmul: got an out that is read-only or not aligned; pass an ordinary array")
    if out.size == 0 or k == 0:
        if not accumulate:
            out.fill(0)
        return out
    a, b = aligned(a), aligned(b)
    if batch and b.ndim == 2 and _rows_are_regular(a) and _rows_are_regular(out):
        m, batch = m * math.prod(batch), ()
    offsets = batch_offsets(batch, a, b, out) if batch else _ONE_PRODUCT

    a_strides, b_strides, out_strides = a.strides[-2:], b.strides[-2:], out.strides[-2:]
    if n > 1 and out_strides[1] != dtype.itemsize == out_strides[0]:
        # The kernel writes rows of C: where columns are contiguous, compute the transpose.
        a, b, m, n = b, a, n, m
        a_strides, b_strides, out_strides = b_strides[::-1], a_strides[::-1], out_strides[::-1]
        offsets = offsets[:, [1, 0, 2]]
    count, grain, rows, columns, scratch_size = _plan(m, n, k, len(offsets), dtype.itemsize, get_num_threads())
    parallel_for(
        _product_share,
        count,
        grain,
        scratch_size,
        dtype,
        offsets,
        m,
        n,
        k,
        rows,
        columns,
        a.ctypes.data,
        *a_strides,
        b.ctypes.data,
        *b_strides,
        out.ctypes.data,
        *out_strides,
        accumulate,
    )
    return out


def _broadcast_batch(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    except ValueError:
        raise ValueError(
            f"matmul: got {a_shape} and {b_shape}; batch dimensions {a_shape[:-2]} and {b_shape[:-2]} must broadcast; "
            "reshape or expand one"
        ) from None


def aligned(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a copy if its elements lie at odd addresses, as in packed records."""
    return array if array.flags.aligned else array.copy()


def _rows_are_regular(array: np.ndarray) -> bool:
    """Say whether all but the last dimension can be taken as one."""
    pairs = zip(array.shape[1:-1], array.strides[:-2], array.strides[1:-1], strict=True)
    return all(outer == size * inner for size, outer, inner in pairs)


def batch_offsets(batch: tuple[int, ...], *operands: np.ndarray) -> np.ndarray:
    """Return for every item of the batch the bytes from each operand's start to its matrix; dimensions broadcast."""
    offsets = np.zeros((*batch, len(operands)), np.int64)
    for column, operand in enumerate(operands):
        shape, strides = operand.shape[-3::-1], operand.strides[-3::-1]
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True), start=1):
            if size > 1:
                steps = np.arange(size) * stride
                offsets[..., column] += steps.reshape(size, *[1] * (axis - 1))
    return offsets.reshape(-1, len(operands))


@functools.lru_cache(maxsize=4096)
def _plan(m: int, n: int, k: int, products: int, itemsize: int, threads: int) -> tuple[int, int, int, int, int]:
    """Cut C into blocks enough for all threads, as square as may be: packing costs less the larger a block.

    Returns blocks, blocks of a share, rows and columns of a block, elements of scratch memory.
    """
    tile_width = 2 * VECTOR_BYTES // itemsize
    rows, columns = m, min(n, _COLUMNS)
    while rows * columns * k >= 2 * _GRAIN:
        blocks = products * -(-m // rows) * -(-n // columns)
        if threads == 1 or blocks >= (4 if rows * columns >= _LARGE_BLOCK else 2) * threads:
            break
        if rows >= columns:
            rows = round_up(-(-rows // 2), TILE_ROWS)
        else:
            columns = round_up(-(-columns // 2), tile_width)
    count = products * -(-m // rows) * -(-n // columns)
    grain = 1 + _GRAIN // (rows * columns * max(k, 1))
    return count, grain, rows, columns, workspace_size(rows, columns, k, itemsize)
