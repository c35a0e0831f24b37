"""The matrix product, for any strides and any broadcast batch, at the speed of the multiply-add units.

BLIS's loops: blocks of A and B are packed into panels that stay in cache, and `multiply_panels` makes one tile of C
from a panel of each. K is always cut at multiples of `_DEPTH`, so that an element of C is the same sum whatever block
or thread makes it.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from spillgrad_kernels import memory
from spillgrad_kernels.atomics import fetch_add, store, wait_for
from spillgrad_kernels.compile import REASSOCIATE, jit, register_jitable
from spillgrad_kernels.dispatch import get_num_threads, parallel_for
from spillgrad_kernels.microkernel import (
    TILE_ROWS,
    VECTOR_BYTES,
    address_of,
    array_at,
    copy_tile_line,
    multiply_in_place,
    multiply_panels,
    tile_columns,
    transpose_block,
)

# A panel of B (_DEPTH x tile_columns) stays in the L1 cache, a block of A (_ROWS x _DEPTH) in L2, one of B in L3.
_DEPTH = 256
_ROWS = 12 * TILE_ROWS
_COLUMNS = 2048
# In a product shared by threads: rows packed at once, columns of a group, and tiles that balance uneven cores.
_SHARED_ROWS = 160 * TILE_ROWS
_GROUP_COLUMNS = 256
_TILES_PER_THREAD = 4
# Panels that are packed together where lines lie side by side.
_PANEL_RUN = 8
# A matrix-vector product keeps this many sums, and as many elements of its vector, in the L1 cache.
_VECTOR_CHUNK = 2048
# Multiply-adds up to which packing costs more than it saves.
_SMALL_WORK = 1 << 18
# Multiply-adds from which a product deserves all threads (about 20 microseconds of one), and from which it does even
# where many products wait.
_SHARED_WORK = 1 << 20
_LARGE_WORK = 1 << 24
# Multiply-adds that pay for a share: about 2 microseconds; of a matrix-vector product, which waits for memory.
_GRAIN = 1 << 17
_VECTOR_GRAIN = 1 << 14
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
def pack(
    like: np.ndarray, width: int, source: int, across: int, along: int, count: int, depth: int, target: int
) -> None:
    """Copy `count` lines of `depth` elements into panels of `width` lines, in which equal depths are neighbours.

    Lines are `across` bytes apart, elements of a line `along` bytes. The last panel is filled up with zeros.
    """
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    whole = count // width if across == size else 0
    # Runs of several panels at a time: memory gives long runs faster, and the caches take only so many targets.
    for first in range(0, whole, _PANEL_RUN):
        for d in range(depth):
            for panel in range(first, min(first + _PANEL_RUN, whole)):
                place = target + (panel * depth + d) * width * size
                copy_tile_line(like, width, source + panel * width * size + d * along, place)
    for first in range(whole * width, count, width):
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
        for d in range(done, depth):
            packed = array_at(like, panel + d * width * size, width)
            if across == size:
                packed[:present] = array_at(like, corner + d * along, present)
            else:
                for line in range(present):
                    packed[line] = array_at(like, corner + line * across + d * along, 1)[0]
            packed[present:] = 0


@jit
def multiply_block(
    like: np.ndarray,
    height: int,
    width: int,
    depth: int,
    packed_a: int,
    packed_b: int,
    c: int,
    c_row: int,
    c_col: int,
    accumulate: bool,
    tile: int,
) -> None:
    """Set or add to a block of C the product of packed panels; `tile` is room for one tile, used at C's edges."""
    size = like.itemsize
    columns = tile_columns(like)
    tile_row = columns * size
    spare = array_at(like, tile, TILE_ROWS * columns)
    for j in range(0, width, columns):
        for i in range(0, height, TILE_ROWS):
            place = c + i * c_row + j * c_col
            fits = c_col == size and i + TILE_ROWS <= height and j + columns <= width
            multiply_panels(
                like,
                depth,
                packed_a + i * depth * size,
                packed_b + j * depth * size,
                tile_row,
                place if fits else tile,
                c_row if fits else tile_row,
                accumulate and fits,
            )
            if not fits:
                for r in range(min(TILE_ROWS, height - i)):
                    present = min(columns, width - j)
                    values = spare[r * columns : r * columns + present]
                    if c_col == size:
                        row = array_at(like, place + r * c_row, present)
                        if accumulate:
                            row += values
                        else:
                            row[:] = values
                    else:
                        for s in range(present):
                            element = array_at(like, place + r * c_row + s * c_col, 1)
                            element[0] = element[0] + values[s] if accumulate else values[s]


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
    if m * n * k <= _SMALL_WORK and b_col == size and c_col == size:
        for k0 in range(0, k, _DEPTH):
            for j in range(0, n, columns):
                for i in range(0, m, TILE_ROWS):
                    multiply_in_place(
                        like, min(TILE_ROWS, m - i), min(columns, n - j), min(_DEPTH, k - k0),
                        a + i * a_row + k0 * a_col, a_row, a_col, b + k0 * b_row + j * b_col, b_row,
                        c + i * c_row + j * c_col, c_row, accumulate or k0 > 0,
                    )  # fmt: skip
        return
    packed_b = workspace + TILE_ROWS * columns * size
    # Packing A may write a vector beyond its end, so A comes last.
    packed_a = packed_b + round_up(min(n, _COLUMNS), columns) * min(k, _DEPTH) * size
    for j0 in range(0, n, _COLUMNS):
        width = min(_COLUMNS, n - j0)
        for k0 in range(0, k, _DEPTH):
            depth = min(_DEPTH, k - k0)
            pack(like, columns, b + k0 * b_row + j0 * b_col, b_col, b_row, width, depth, packed_b)
            for i0 in range(0, m, _ROWS):
                height = min(_ROWS, m - i0)
                pack(like, TILE_ROWS, a + i0 * a_row + k0 * a_col, a_row, a_col, height, depth, packed_a)
                corner = c + i0 * c_row + j0 * c_col
                adds = accumulate or k0 > 0
                multiply_block(
                    like, height, width, depth, packed_a, packed_b, corner, c_row, c_col, adds, workspace
                )  # fmt: skip


# The words of a shared product: the ticket, then for each phase how many of its packings and tiles are done, then for
# each block of C and each tile of it how many phases have added to it.
_TICKET, _COUNTERS = 0, 8


@jit
def _shared_product(
    start: int,
    stop: int,
    worker: int,
    workspace: np.ndarray,
    workers: int,
    words: int,
    phases: int,
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
    """Take part in one large product until nothing is left of it to begin; every share is a thread's part.

    A phase is a slab of depth `_DEPTH` of a block of C. Its tasks pack groups of `columns` of B and of `rows` of A,
    once for all threads, then make the tiles of C where they cross. Threads draw tasks in order. A task waits only for
    tasks drawn earlier, which some thread is at work on; packed panels have two places, so that packing rarely waits.
    """
    size = workspace.itemsize
    scratch = round_up(np.intp(workspace.ctypes.data), VECTOR_BYTES)
    tile_size = TILE_ROWS * tile_columns(workspace) * size
    tile = scratch + worker * tile_size
    packed, made, added = _COUNTERS, _COUNTERS + phases, _COUNTERS + 2 * phases
    b_group = columns * min(k, _DEPTH) * size
    a_group = rows * min(k, _DEPTH) * size + VECTOR_BYTES  # packing may write a vector beyond the end
    b_size = (min(n, _COLUMNS) + columns - 1) // columns * b_group
    place_size = b_size + (min(m, _SHARED_ROWS) + rows - 1) // rows * a_group

    row_groups, column_groups = (min(m, _SHARED_ROWS) + rows - 1) // rows, (min(n, _COLUMNS) + columns - 1) // columns
    largest = row_groups * column_groups
    phase = 0
    first = 0  # the phase's first ticket
    tiles_before, tiles_last = 0, 0  # of the phase before the last, and of the last
    ticket = fetch_add(words, _TICKET, 1)
    for j0 in range(0, n, _COLUMNS):
        width = min(_COLUMNS, n - j0)
        for i0 in range(0, m, _SHARED_ROWS):
            height = min(_SHARED_ROWS, m - i0)
            row_groups = (height + rows - 1) // rows
            column_groups = (width + columns - 1) // columns
            packings, tiles = row_groups + column_groups, row_groups * column_groups
            for k0 in range(0, k, _DEPTH):
                depth = min(_DEPTH, k - k0)
                packed_b = scratch + workers * tile_size + phase % 2 * place_size
                packed_a = packed_b + b_size
                while ticket < first + packings + tiles:
                    task = ticket - first
                    if task < packings:
                        if phase > 1:
                            wait_for(words, made + phase - 2, tiles_before)
                        if task < column_groups:
                            j = task * columns
                            source = b + k0 * b_row + (j0 + j) * b_col
                            count = min(columns, width - j)
                            pack(
                                workspace, tile_columns(workspace), source, b_col, b_row, count, depth,
                                packed_b + task * b_group,
                            )  # fmt: skip
                        else:
                            group = task - column_groups
                            i = group * rows
                            source = a + (i0 + i) * a_row + k0 * a_col
                            count = min(rows, height - i)
                            pack(workspace, TILE_ROWS, source, a_row, a_col, count, depth, packed_a + group * a_group)
                        fetch_add(words, packed + phase, 1)
                    else:
                        at = task - packings
                        i, j = at % row_groups * rows, at // row_groups * columns
                        wait_for(words, packed + phase, packings)
                        wait_for(words, added + at, k0 // _DEPTH)
                        multiply_block(
                            workspace, min(rows, height - i), min(columns, width - j), depth,
                            packed_a + at % row_groups * a_group, packed_b + at // row_groups * b_group,
                            c + (i0 + i) * c_row + (j0 + j) * c_col, c_row, c_col, accumulate or k0 > 0, tile,
                        )  # fmt: skip
                        store(words, added + at, k0 // _DEPTH + 1)
                        fetch_add(words, made + phase, 1)
                    ticket = fetch_add(words, _TICKET, 1)
                first += packings + tiles
                phase += 1
                tiles_before, tiles_last = tiles_last, tiles
            added += largest


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
def _separate_products(
    start: int,
    stop: int,
    worker: int,
    workspaces: np.ndarray,
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
    workspace = workspaces[worker]
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


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, *, accumulate: bool = False) -> np.ndarray:
    """Return a @ b, written to `out` or, with `accumulate`, added to it. `out` must not overlap the operands.

    Shapes: a (..., M, K), b (..., K, N), out (..., M, N); batch dimensions broadcast. Any strides; all float32 or all
    float64.
    Raises ValueError for shapes and TypeError for dtypes that do not fit.
    """
    dtype = a.dtype
    if dtype not in _DTYPES or b.dtype != dtype:
        raise TypeError(f"matmul: got {dtype} and {b.dtype}; both must be float32 or both float64; convert one")
    a_shape, b_shape = a.shape, b.shape
    if len(a_shape) < 2 or len(b_shape) < 2 or a_shape[-1] != b_shape[-2]:
        raise ValueError(
            f"matmul: got {a_shape} and {b_shape}; wanted (..., M, K) and (..., K, N) with equal K; transpose one"
        )
    m, k = a_shape[-2:]
    n = b_shape[-1]
    batch = _broadcast_batch(a_shape, b_shape) if len(a_shape) > 2 or len(b_shape) > 2 else ()
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
    if batch and len(b_shape) == 2 and _rows_are_regular(a) and _rows_are_regular(out):
        m, batch = m * math.prod(batch), ()
    offsets = batch_offsets(batch, a, b, out) if batch else _ONE_PRODUCT

    a_strides, b_strides, out_strides = a.strides[-2:], b.strides[-2:], out.strides[-2:]
    if n > 1 and out_strides[1] != dtype.itemsize == out_strides[0]:
        # The kernel writes rows of C: where columns are contiguous, compute the transpose.
        a, b, m, n = b, a, n, m
        a_strides, b_strides, out_strides = b_strides[::-1], a_strides[::-1], out_strides[::-1]
        offsets = offsets[:, [1, 0, 2]]
    at_a, at_b, at_out = address_of(a), address_of(b), address_of(out)
    plan = _plan(m, n, k, len(offsets), dtype.itemsize, get_num_threads())
    workspaces = memory.empty(plan.scratch, dtype)
    if not plan.shared:
        parallel_for(
            _separate_products, plan.blocks, plan.grain, workspaces, offsets, m, n, k, plan.rows, plan.columns,
            at_a, *a_strides, at_b, *b_strides, at_out, *out_strides, accumulate,
        )  # fmt: skip
        return out
    workers = plan.scratch[0]
    for offset_a, offset_b, offset_out in offsets.tolist():
        words = np.zeros(plan.words, np.int64)
        parallel_for(
            _shared_product, workers, 1, workspaces, workers, address_of(words), plan.phases,
            m, n, k, plan.rows, plan.columns,
            at_a + offset_a, *a_strides, at_b + offset_b, *b_strides, at_out + offset_out, *out_strides, accumulate,
        )  # fmt: skip
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


class _Plan(NamedTuple):
    """How a product is cut: into separate blocks, or into tiles of a product shared by all workers."""

    shared: bool
    rows: int
    columns: int
    scratch: tuple[int, int]  # workers, and elements for each
    blocks: int = 0  # separate: how many, and how many of them a thread takes at once
    grain: int = 0
    phases: int = 0  # shared: see `_shared_product`
    words: int = 0


@functools.lru_cache(maxsize=4096)
def _plan(m: int, n: int, k: int, products: int, itemsize: int, threads: int) -> _Plan:
    work = m * n * k
    shared = min(m, n) > 1 and threads > 1 and work >= (_SHARED_WORK if products < 2 * threads else _LARGE_WORK)
    return (_shared_plan if shared else _separate_plan)(m, n, k, products, itemsize, threads)


def _separate_plan(m: int, n: int, k: int, products: int, itemsize: int, threads: int) -> _Plan:
    rows, columns = m, n
    if m == 1 or n == 1:  # a vector product reads the matrix once: any cut will do that keeps threads busy
        length = max(_VECTOR_GRAIN // k, -(-max(m, n) * products // (4 * threads)), 16)
        rows, columns = min(m, length), min(n, length)
    count = products * -(-m // rows) * -(-n // columns)
    grain = 1 + _GRAIN // (rows * columns * k)
    workers = 1 if count <= grain else threads
    return _Plan(False, rows, columns, (workers, workspace_size(rows, columns, k, itemsize)), count, grain)


def _shared_plan(m: int, n: int, k: int, products: int, itemsize: int, threads: int) -> _Plan:
    tile_width = 2 * VECTOR_BYTES // itemsize
    height, width, depth = min(m, _SHARED_ROWS), min(n, _COLUMNS), min(k, _DEPTH)
    rows, columns = _even_part(height, _ROWS, TILE_ROWS), _even_part(width, _GROUP_COLUMNS, tile_width)
    while -(-height // rows) * -(-width // columns) < _TILES_PER_THREAD * threads:
        if columns >= max(2 * tile_width, rows):
            columns = _even_part(width, columns // 2, tile_width)
        elif rows >= 2 * TILE_ROWS:
            rows = _even_part(height, rows // 2, TILE_ROWS)
        else:
            break
    row_groups, column_groups = -(-height // rows), -(-width // columns)
    blocks = -(-m // _SHARED_ROWS) * -(-n // _COLUMNS)
    phases = blocks * -(-k // _DEPTH)
    words = _COUNTERS + 2 * phases + blocks * row_groups * column_groups
    vector = VECTOR_BYTES // itemsize
    panels = column_groups * columns * depth + row_groups * (rows * depth + vector)
    scratch = threads * TILE_ROWS * tile_width + 2 * panels + vector
    return _Plan(True, rows, columns, (threads, -(-scratch // threads)), phases=phases, words=words)


def _even_part(size: int, largest: int, multiple: int) -> int:
    """Cut `size` into the fewest parts not above `largest`; return their length, rounded up to `multiple`."""
    parts = -(-size // largest)
    return round_up(-(-size // parts), multiple)  # type: ignore[no-any-return]
