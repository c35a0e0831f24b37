"""The compiled loops of the matrix product, for any strides, at the speed of the multiply-add units.

BLIS's loops: blocks of A and B are packed into panels that stay in cache, and `multiply_panels` makes one tile of C
from a panel of each. K is always cut at multiples of `DEPTH`, so that an element of C is the same sum whatever block or
thread makes it.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

import numpy as np

from spillgrad_kernels.atomics import fetch_add, store, wait_for
from spillgrad_kernels.compile import REASSOCIATE, jit, register_jitable
from spillgrad_kernels.epilogue import NO_EPILOGUE, Epilogue, run_epilogue
from spillgrad_kernels.microkernel import (
    TILE_ROWS,
    VECTOR_BYTES,
    multiply_in_place,
    multiply_panels,
    numbers_in,
    numbers_of,
    sums_of,
    tile_columns,
    widened,
)
from spillgrad_kernels.packing import packer, round_up
from spillgrad_kernels.pointers import array_at

# A panel of B (DEPTH x tile_columns) stays in the L1 cache, a block of A (ROWS x DEPTH) in L2, one of B in L3.
DEPTH = 256
ROWS = 12 * TILE_ROWS
COLUMNS = 2048
# In a product shared by threads: rows packed at once.
SHARED_ROWS = 160 * TILE_ROWS
# A matrix-vector product keeps this many sums, and as many elements of its vector, in the L1 cache.
_VECTOR_CHUNK = 4096
# Multiply-adds up to which packing costs more than it saves.
SMALL_WORK = 1 << 20

# Where a matrix lies: its address, the bytes from one row to the next, and from one column to the next. Address 0
# stands for none to add.
Matrix = tuple[int, int, int]


@register_jitable
def _part(matrix: Matrix, i: int, j: int) -> Matrix:
    """Return the part of a matrix from row i and column j on; of none, none."""
    address, row, col = matrix
    return (address + i * row + j * col if address != 0 else address), row, col


@register_jitable
def _transposed(matrix: Matrix) -> Matrix:
    """Return the transpose."""
    address, row, col = matrix
    return address, col, row


def workspace_size(m: int, n: int, k: int, itemsize: int) -> int:
    """Return how many elements of scratch memory an m x n product of depth k needs."""
    vector = VECTOR_BYTES // itemsize
    columns = 2 * vector
    packed: int = (round_up(min(n, COLUMNS), columns) + round_up(min(m, ROWS), TILE_ROWS)) * min(k, DEPTH)
    chunks = 2 * _VECTOR_CHUNK if min(m, n) == 1 else 0
    # One vector that packing may write beyond the last panel, and one to align the start.
    return max(TILE_ROWS * columns + packed, chunks) + 2 * vector


@register_jitable
def _depth_of(like: np.ndarray, numbers: int) -> int:
    """Return how many elements hold as many numbers along the depth."""
    return (numbers + numbers_in(like) - 1) // numbers_in(like)


@jit
def _multiply_block(
    like: np.ndarray,
    height: int,
    width: int,
    depth: int,
    packed_a: int,
    packed_b: int,
    c: Matrix,
    addend: Matrix,
    tile: int,
) -> None:
    """Set a block of C to the product of packed panels, plus a block unless that is none.

    The addend's columns are as far apart as those of C. `tile` is room for one tile, used at C's edges.
    """
    sums = sums_of(like)
    size = like.itemsize
    columns = tile_columns(like)
    tile_row = columns * size
    spare = array_at(sums, tile, TILE_ROWS * columns)
    _, c_row, c_col = c
    for j in range(0, width, columns):
        for i in range(0, height, TILE_ROWS):
            place = _part(c, i, j)[0]
            added, addend_row, _ = _part(addend, i, j)
            fits = c_col == size and i + TILE_ROWS <= height and j + columns <= width
            multiply_panels(
                like,
                depth,
                packed_a + i * depth * size,
                packed_b + j * depth * size,
                tile_row,
                place if fits else tile,
                c_row if fits else tile_row,
                added if fits else 0,
                addend_row,
            )
            if not fits:
                for r in range(min(TILE_ROWS, height - i)):
                    present = min(columns, width - j)
                    values = spare[r * columns : r * columns + present]
                    if added != 0:
                        for s in range(present):
                            values[s] += array_at(sums, added + r * addend_row + s * c_col, 1)[0]
                    for s in range(present):
                        array_at(sums, place + r * c_row + s * c_col, 1)[0] = values[s]


@jit
def _small_product(like: np.ndarray, m: int, n: int, k: int, a: Matrix, b: Matrix, c: Matrix, addend: Matrix) -> None:
    """Do as `product` where rows of B and C have no gaps: tile by tile, A and B where they lie."""
    columns = tile_columns(like)
    for k0 in range(0, k, DEPTH):
        base = addend if k0 == 0 else c
        for j in range(0, n, columns):
            for i in range(0, m, TILE_ROWS):
                corner, a_row, a_col = _part(a, i, k0)
                rows_of_b, b_row, _ = _part(b, k0, j)
                place, c_row, _ = _part(c, i, j)
                added, added_row, _ = _part(base, i, j)
                multiply_in_place(
                    like, min(TILE_ROWS, m - i), min(columns, n - j), min(DEPTH, k - k0), corner, a_row, a_col,
                    rows_of_b, b_row, place, c_row, added, added_row,
                )  # fmt: skip


@jit
def _thin_product(
    like: np.ndarray, m: int, n: int, k: int, a: Matrix, b: Matrix, c: Matrix, addend: Matrix, workspace: int
) -> None:
    """Do as `product` where C is at most a tile wide and rows of A have no gaps: A is read once, as it lies."""
    size = like.itemsize
    columns = tile_columns(like)
    tile_row = columns * size
    packed = workspace + TILE_ROWS * tile_row
    for k0 in range(0, k, DEPTH):
        depth = min(DEPTH, k - k0)
        source, b_row, b_col = _part(b, k0, 0)
        packer(like)(like, columns, source, b_col, b_row, n, depth, packed)
        base = addend if k0 == 0 else c
        for i in range(0, m, TILE_ROWS):
            rows = min(TILE_ROWS, m - i)
            corner, a_row, _ = _part(a, i, k0)
            multiply_in_place(
                like, rows, n, depth, corner, a_row, size, packed, tile_row, workspace, tile_row, 0, 0
            )  # fmt: skip
            for r in range(rows):
                sums = array_at(like, workspace + r * tile_row, n)
                added, place, col = _part(base, i + r, 0)[0], _part(c, i + r, 0)[0], c[2]
                for s in range(n):
                    before = array_at(like, added + s * col, 1)[0] if added != 0 else like.dtype.type(0)
                    array_at(like, place + s * col, 1)[0] = before + sums[s]


@jit
def product(
    like: np.ndarray, m: int, n: int, k: int, a: Matrix, b: Matrix, c: Matrix, addend: Matrix, workspace: int
) -> None:
    """Set the m x n matrix C to the product of A and B, in the calling thread, plus a matrix unless that is none.

    k is at least 1. The addend, which may be C, has its columns as far apart as those of C. `like` is an array of the
    packed dtype (see `packing.py`). `workspace` is the address of `workspace_size` elements, aligned to a vector.
    """
    size = like.itemsize
    columns = tile_columns(like)
    plain = numbers_in(like) == 1
    if plain and (m <= TILE_ROWS or m * n * k <= SMALL_WORK) and b[2] == size and c[2] == size:
        _small_product(like, m, n, k, a, b, c, addend)
        return
    if plain and n <= columns and a[2] == size:
        _thin_product(like, m, n, k, a, b, c, addend, workspace)
        return
    packed_b = workspace + TILE_ROWS * columns * size
    # Packing A may write a vector beyond its end, so A comes last.
    packed_a = packed_b + round_up(min(n, COLUMNS), columns) * min(_depth_of(like, k), DEPTH) * size
    step = DEPTH * numbers_in(like)
    for j0 in range(0, n, COLUMNS):
        width = min(COLUMNS, n - j0)
        for k0 in range(0, k, step):
            depth = min(step, k - k0)
            source, along, across = _part(b, k0, j0)
            packer(like)(like, columns, source, across, along, width, depth, packed_b)
            base = addend if k0 == 0 else c
            for i0 in range(0, m, ROWS):
                height = min(ROWS, m - i0)
                source, across, along = _part(a, i0, k0)
                packer(like)(like, TILE_ROWS, source, across, along, height, depth, packed_a)
                _multiply_block(
                    like, height, width, _depth_of(like, depth), packed_a, packed_b, _part(c, i0, j0),
                    _part(base, i0, j0), workspace,
                )  # fmt: skip


# The words of a shared product: the ticket, then for each phase how many of its packings and tiles are done, then for
# each block of C and each tile of it how many phases have added to it.
_TICKET, COUNTERS = 0, 8


@jit
def shared_product(
    start: int,
    stop: int,
    worker: int,
    workspace: np.ndarray,
    geometry: np.ndarray,
    words: int,
    at_a: int,
    at_b: int,
    at_c: int,
    at_addend: int,
    epilogue: Epilogue,
    at_other: int,
    at_result: int,
) -> None:
    """Take part in one large product until nothing is left of it to begin; every share is a thread's part.

    A phase is a slab of depth `DEPTH` of a block of C. Its tasks pack groups of `columns` of B and of `rows` of A,
    once for all threads, then make the tiles of C where they cross. Threads draw tasks in order. A task waits only for
    tasks drawn earlier, which some thread is at work on; packed panels have two places, so that packing rarely waits.
    """
    m, n, k, rows, columns, workers, phases = _cut(geometry)
    a, b, c, addend, other, result = _matrices(geometry, at_a, at_b, at_c, at_addend, at_other, at_result)
    size = workspace.itemsize
    scratch = round_up(np.intp(workspace.ctypes.data), VECTOR_BYTES)
    tile_size = TILE_ROWS * tile_columns(workspace) * size
    tile = scratch + worker * tile_size
    packed, made, added = COUNTERS, COUNTERS + phases, COUNTERS + 2 * phases
    slab = DEPTH * numbers_in(workspace)
    b_group = columns * min(_depth_of(workspace, k), DEPTH) * size
    a_group = rows * min(_depth_of(workspace, k), DEPTH) * size + VECTOR_BYTES  # packing may write beyond the end
    b_size = (min(n, COLUMNS) + columns - 1) // columns * b_group
    place_size = b_size + (min(m, SHARED_ROWS) + rows - 1) // rows * a_group

    phase = 0
    first = 0  # the phase's first ticket
    tiles_before, tiles_last = 0, 0  # of the phase before the last, and of the last
    ticket = fetch_add(words, _TICKET, 1)
    for j0 in range(0, n, COLUMNS):
        width = min(COLUMNS, n - j0)
        for i0 in range(0, m, SHARED_ROWS):
            height = min(SHARED_ROWS, m - i0)
            row_groups = (height + rows - 1) // rows
            column_groups = (width + columns - 1) // columns
            packings, tiles = row_groups + column_groups, row_groups * column_groups
            for k0 in range(0, k, slab):
                depth = min(slab, k - k0)
                packed_b = scratch + workers * tile_size + phase % 2 * place_size
                packed_a = packed_b + b_size
                base = addend if k0 == 0 else c
                while ticket < first + packings + tiles:
                    task = ticket - first
                    if task < packings:
                        if phase > 1:
                            wait_for(words, made + phase - 2, tiles_before)
                        if task < column_groups:
                            j = task * columns
                            source, along, across = _part(b, k0, j0 + j)
                            packer(workspace)(
                                workspace, tile_columns(workspace), source, across, along, min(columns, width - j),
                                depth, packed_b + task * b_group,
                            )  # fmt: skip
                        else:
                            group = task - column_groups
                            i = group * rows
                            source, across, along = _part(a, i0 + i, k0)
                            packer(workspace)(
                                workspace, TILE_ROWS, source, across, along, min(rows, height - i), depth,
                                packed_a + group * a_group,
                            )  # fmt: skip
                        fetch_add(words, packed + phase, 1)
                    else:
                        at = task - packings
                        i, j = at % row_groups * rows, at // row_groups * columns
                        tall, wide = min(rows, height - i), min(columns, width - j)
                        place = _part(c, i0 + i, j0 + j)
                        wait_for(words, packed + phase, packings)
                        wait_for(words, added + at, k0 // slab)
                        _multiply_block(
                            workspace, tall, wide, _depth_of(workspace, depth), packed_a + at % row_groups * a_group,
                            packed_b + at // row_groups * b_group, place, _part(base, i0 + i, j0 + j), tile,
                        )  # fmt: skip
                        if epilogue != NO_EPILOGUE and k0 + slab >= k:
                            _finish(
                                epilogue, tall, wide, place, _part(other, i0 + i, j0 + j), _part(result, i0 + i, j0 + j)
                            )
                        store(words, added + at, k0 // slab + 1)
                        fetch_add(words, made + phase, 1)
                    ticket = fetch_add(words, _TICKET, 1)
                first += packings + tiles
                phase += 1
                tiles_before, tiles_last = tiles_last, tiles
            added += tiles


@jit(fastmath=REASSOCIATE)
def _dot(x: np.ndarray, y: np.ndarray) -> float:
    total = y.dtype.type(0)
    for i in range(y.size):
        total += widened(x[i]) * y[i]
    return total  # type: ignore[no-any-return]


@jit
def _combine_columns(like: np.ndarray, m: int, k: int, a: Matrix, x: np.ndarray, sums: np.ndarray) -> None:
    """Set `sums` to the columns of A weighted with x, four at a time so that a sum is stored a fourth as often."""
    numbers = numbers_of(like)
    at_a, a_row, a_col = a
    sums[:m] = 0
    done = 0
    if a_row == numbers.itemsize:
        done = k - k % 4
        for d in range(0, done, 4):
            first, second = array_at(numbers, at_a + d * a_col, m), array_at(numbers, at_a + (d + 1) * a_col, m)
            third, fourth = array_at(numbers, at_a + (d + 2) * a_col, m), array_at(numbers, at_a + (d + 3) * a_col, m)
            for i in range(m):
                two = x[d] * widened(first[i]) + x[d + 1] * widened(second[i])
                sums[i] = sums[i] + two + x[d + 2] * widened(third[i]) + x[d + 3] * widened(fourth[i])
    for d in range(done, k):
        for i in range(m):
            sums[i] += x[d] * widened(array_at(numbers, at_a + i * a_row + d * a_col, 1)[0])


@jit
def _multiply_vector(
    like: np.ndarray, m: int, k: int, a: Matrix, x: Matrix, y: Matrix, addend: Matrix, workspace: int
) -> None:
    """Set the column y to the product of the m x k matrix A and the column x, plus a column unless that is none.

    A is read as it lies in memory.
    """
    numbers, floats = numbers_of(like), sums_of(like)
    chunk = array_at(floats, workspace, _VECTOR_CHUNK)
    sums = array_at(floats, workspace + _VECTOR_CHUNK * floats.itemsize, _VECTOR_CHUNK)
    for k0 in range(0, k, _VECTOR_CHUNK):
        depth = min(_VECTOR_CHUNK, k - k0)
        for d in range(depth):
            chunk[d] = widened(array_at(numbers, _part(x, k0 + d, 0)[0], 1)[0])
        base = addend if k0 == 0 else y
        for i0 in range(0, m, _VECTOR_CHUNK):
            rows = min(_VECTOR_CHUNK, m - i0)
            if a[2] == numbers.itemsize:
                for i in range(rows):
                    sums[i] = _dot(array_at(numbers, _part(a, i0 + i, k0)[0], depth), chunk[:depth])
            else:
                _combine_columns(like, rows, depth, _part(a, i0, k0), chunk, sums)
            for i in range(rows):
                added = _part(base, i0 + i, 0)[0]
                before = array_at(floats, added, 1)[0] if added != 0 else floats.dtype.type(0)
                array_at(floats, _part(y, i0 + i, 0)[0], 1)[0] = before + sums[i]


@jit
def separate_products(
    start: int,
    stop: int,
    worker: int,
    workspaces: np.ndarray,
    geometry: np.ndarray,
    batch_offsets: np.ndarray,
    at_a: int,
    at_b: int,
    at_c: int,
    at_addend: int,
    epilogue: Epilogue,
    at_other: int,
    at_result: int,
) -> None:
    """Compute the blocks of C numbered `start` to `stop`, each `rows` x `columns`, over all products of the batch."""
    m, n, k, rows, columns, _, _ = _cut(geometry)
    row_blocks = (m + rows - 1) // rows
    blocks = row_blocks * ((n + columns - 1) // columns)
    like = workspaces[worker]
    scratch = round_up(np.intp(like.ctypes.data), VECTOR_BYTES)
    for task in range(start, stop):
        of_a, of_b, of_c = batch_offsets[task // blocks]
        a, b, c, addend, other, result = _matrices(
            geometry, at_a + of_a, at_b + of_b, at_c + of_c, at_addend + of_c if at_addend != 0 else 0, at_other,
            at_result,
        )  # fmt: skip
        i = task % blocks % row_blocks * rows
        j = task % blocks // row_blocks * columns
        height, width = min(rows, m - i), min(columns, n - j)
        left, right, place, added = _part(a, i, 0), _part(b, 0, j), _part(c, i, j), _part(addend, i, j)
        if n == 1:
            _multiply_vector(like, height, k, left, right, place, added, scratch)
        elif m == 1:
            _multiply_vector(
                like, width, k, _transposed(right), _transposed(left), _transposed(place), _transposed(added), scratch
            )
        else:
            product(like, height, width, k, left, right, place, added, scratch)
        if epilogue != NO_EPILOGUE:
            _finish(epilogue, height, width, place, _part(other, i, j), _part(result, i, j))


@register_jitable
def _finish(epilogue: Epilogue, rows: int, columns: int, c: Matrix, other: Matrix, result: Matrix) -> None:
    run_epilogue(epilogue, rows, columns, c[0], c[1], other[0], other[1], result[0], result[1])


# What kernels read of a product's plan, as one array: `_Plan` and the strides of its matrices (see `matmul.py`).
@register_jitable
def _cut(geometry: np.ndarray) -> tuple[int, ...]:
    """Return m, n, k, then `_Plan`'s rows, columns, workers and phases."""
    g = geometry
    return g[0], g[1], g[2], g[3], g[4], g[5], g[6]


@register_jitable
def _matrices(
    geometry: np.ndarray, a: int, b: int, c: int, addend: int, other: int, result: int
) -> tuple[Matrix, Matrix, Matrix, Matrix, Matrix, Matrix]:
    """Return where the matrices at these addresses lie; all but A and B have the columns of C."""
    g = geometry
    col = g[12]  # of C and what is like it
    return (
        (a, g[7], g[8]), (b, g[9], g[10]), (c, g[11], col), (addend, g[13], col), (other, g[14], col),
        (result, g[15], col),
    )  # fmt: skip
