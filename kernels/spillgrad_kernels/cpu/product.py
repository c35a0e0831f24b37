"""The compiled loops of the matrix product, for any strides, at the speed of the multiply-add units.

As in BLIS, blocks of A and B are packed into panels that stay in the cache, and `multiply_panels` computes a tile of C
from a panel of each. If B is narrow, A is read without packing, and so is B if its rows are contiguous. The depth is
always cut at multiples of `DEPTH`, so that an element of C is the same sum in every block and thread. Panels hold
`PACKED_DEPTH`: a tile of C stays in the L1 cache while the slabs of its panels are added, one by one.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.epilogue import NO_EPILOGUE, apply_epilogue
from spillgrad_kernels.cpu.microkernel import multiply_in_place, multiply_panels, multiply_strided
from spillgrad_kernels.cpu.packing import b_packer, has_codes, packer
from spillgrad_kernels.cpu.pointers import array_at, data_of
from spillgrad_kernels.cpu.product_geometry import Matrix, matrices_of, part, read_geometry, transposed
from spillgrad_kernels.cpu.product_tile import (
    TILE_ROWS,
    VECTOR_BYTES,
    depth_of,
    numbers_in,
    sums_of,
    tile_columns,
)
from spillgrad_kernels.cpu.vector_product import VECTOR_SCRATCH, multiply_vector
from spillgrad_kernels.jit.compile import jit, register_jitable
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.threads.atomics import fetch_add, store, wait_for
from spillgrad_kernels.threads.dispatch import Kernel

# A slab of a panel of B (DEPTH x tile_columns) stays in the L1 cache, a block of A (ROWS x PACKED_DEPTH) in L2, and a
# block of B in L3. C passes through memory once for each PACKED_DEPTH of the depth.
DEPTH = 256
PACKED_DEPTH = 2 * DEPTH
ROWS = 12 * TILE_ROWS
COLUMNS = 2048
# The number of rows that are packed at once in a product that threads share.
SHARED_ROWS = 160 * TILE_ROWS
# Up to this size in bytes of a row of B, `DEPTH` rows stay in L2. Then A is not packed if it is contiguous along the
# depth: packing would cost more than it saves.
NARROW_BYTES = 2048
# Up to this number of tiles, packing an operand that each of them would read costs more than it saves.
_FEW_TILES = 8
# Addresses that are this many bytes apart share a set of the L1 cache. A set holds at least `_L1_WAYS` lines.
_L1_WAY_BYTES = 4096
_L1_WAYS = 8
_LINE_BYTES = 64


def workspace_size(m: int, n: int, k: int, itemsize: int) -> int:
    """Return how many elements of scratch memory an m x n product of depth k needs."""
    vector = VECTOR_BYTES // itemsize
    columns = 2 * vector
    packed: int = (round_up(min(n, COLUMNS), columns) + round_up(min(m, ROWS), TILE_ROWS)) * min(k, PACKED_DEPTH)
    chunks = VECTOR_SCRATCH if min(m, n) == 1 else 0
    # Packing may write one vector beyond the last panel, and aligning the start takes up to one more.
    return max(TILE_ROWS * columns + packed, chunks) + 2 * vector


@jit
def _multiply_block(
    like: np.ndarray, height: int, width: int, depth: int, packed_a: int, packed_b: int, c: Matrix, addend: Matrix,
    tile: int,
) -> None:  # fmt: skip
    """Set a `height` x `width` block of C to the product of packed panels, plus the addend if there is one.

    `packed_a` and `packed_b` are the addresses of the panels. If the rows of C are contiguous, the rows of the addend
    must be too. `tile` is the address of scratch memory for one tile, which is used at the edges of C.
    """
    sums = sums_of(like)
    size = like.itemsize
    columns = tile_columns(like)
    tile_row = columns * size
    _, c_row, c_col = c
    for j in range(0, width, columns):
        for i in range(0, height, TILE_ROWS):
            place = part(c, i, j)[0]
            fits = c_col == size and i + TILE_ROWS <= height and j + columns <= width
            base = addend
            for d in range(0, depth, DEPTH):
                added, added_row, _ = part(base, i, j)
                multiply_panels(
                    like, min(DEPTH, depth - d), packed_a + (i * depth + d * TILE_ROWS) * size,
                    packed_b + (j * depth + d * columns) * size, tile_row, place if fits else tile,
                    c_row if fits else tile_row, added if fits else 0, added_row,
                )  # fmt: skip
                if not fits:
                    rows, present = min(TILE_ROWS, height - i), min(columns, width - j)
                    _spread(sums, rows, present, tile, tile_row, part(c, i, j), part(base, i, j))
                base = c


@jit
def _spread(sums: np.ndarray, rows: int, columns: int, tile: int, tile_row: int, c: Matrix, addend: Matrix) -> None:
    """Copy `rows` x `columns` sums from the tile at address `tile` to C, plus the addend if there is one."""
    for i in range(rows):
        values = array_at(sums, tile + i * tile_row, columns)
        place, added = part(c, i, 0)[0], part(addend, i, 0)[0]
        for j in range(columns):
            value = values[j]
            if added != 0:
                value += array_at(sums, added + j * addend[2], 1)[0]
            array_at(sums, place + j * c[2], 1)[0] = value


@register_jitable
def reads_in_place(like: np.ndarray, m: int, n: int, a_col: int, b_col: int) -> bool:
    """Return whether A is read without packing in an m x n product.

    Columns of A are `a_col` bytes apart, and those of B `b_col` bytes. If A is not contiguous along the depth, a tile
    reads a line of the cache for each column of A; so A is packed if several tiles would read it.
    """
    size = like.itemsize
    if numbers_in(like) > 1:
        return False
    if m <= TILE_ROWS and b_col == size:
        return True
    return n * size <= NARROW_BYTES if a_col == size else n <= 2 * tile_columns(like)


@register_jitable
def reads_b_in_place(like: np.ndarray, m: int, k: int, b_row: int, b_col: int) -> bool:
    """Return whether B, of `k` rows, is read without packing, if A is. `b_row` and `b_col` are strides in bytes.

    B is packed if many tiles of rows would read it, and if its rows are not aligned, or share so few sets of the L1
    cache that it cannot hold the rows of a tile.
    """
    if b_col != like.itemsize:
        return False
    if m <= _FEW_TILES * TILE_ROWS:
        return True
    if b_row % VECTOR_BYTES != 0:
        return False
    way = _L1_WAY_BYTES
    while b_row % way != 0:
        way //= 2  # at last the greatest common divisor of the way's size and the stride
    sets = _L1_WAY_BYTES // max(way, _LINE_BYTES)
    lines = max(1, tile_columns(like) * like.itemsize // _LINE_BYTES)
    return min(k, DEPTH) * lines <= sets * _L1_WAYS


@jit
def _multiply_in_place(
    like: np.ndarray, m: int, n: int, k: int, a: Matrix, b: int, b_row: int, b_step: int, c: Matrix, addend: Matrix,
    tile: int,
) -> None:  # fmt: skip
    """Set the m x n matrix C to the product of A and `k` rows of B, plus the addend if there is one. A is not packed.

    `b` is the address of B. The rows of B are `b_row` bytes apart, and the columns of successive tiles are `b_step`
    bytes apart. `tile` is the address of scratch memory for one tile, which is used if rows of C are not contiguous.
    """
    size = like.itemsize
    columns = tile_columns(like)
    tile_row = columns * size
    for i0 in range(0, m, ROWS):
        for j in range(0, n, columns):
            source = b + j // columns * b_step
            present = min(columns, n - j)
            for i in range(i0, min(i0 + ROWS, m), TILE_ROWS):
                rows = min(TILE_ROWS, m - i)
                corner, a_row, a_col = part(a, i, 0)
                place, c_row, c_col = part(c, i, j)
                added, added_row, _ = part(addend, i, j)
                in_rows = c_col == size
                if not in_rows:
                    place, c_row, added = tile, tile_row, 0
                if rows == TILE_ROWS and present == columns:
                    multiply_strided(like, k, corner, a_row, a_col, source, b_row, place, c_row, added, added_row)
                else:
                    multiply_in_place(
                        like, rows, present, k, corner, a_row, a_col, source, b_row, place, c_row, added, added_row
                    )
                if not in_rows:
                    _spread(like, rows, present, tile, tile_row, part(c, i, j), part(addend, i, j))


@jit
def product(
    like: np.ndarray, codes: np.ndarray, origin: int, m: int, n: int, k: int, a: Matrix, b: Matrix, c: Matrix,
    addend: Matrix, workspace: int,
) -> None:  # fmt: skip
    """Set the m x n matrix C to the product of A and B, plus the addend if there is one, in the calling thread.

    The depth k is at least 1. If the rows of C are contiguous, the rows of the addend must be too. `like` is an array
    of the packed dtype, and `codes` and `origin` are those of B (see `packing.py`). `workspace` is the address of
    `workspace_size` elements, aligned to a vector.
    """
    size = like.itemsize
    columns = tile_columns(like)
    packed_b = workspace + TILE_ROWS * columns * size
    if reads_in_place(like, m, n, a[2], b[2]):
        for k0 in range(0, k, DEPTH):
            depth = min(DEPTH, k - k0)
            source, b_row, b_col = part(b, k0, 0)
            b_step = columns * size
            if not reads_b_in_place(like, m, depth, b_row, b_col):
                b_packer(codes)(like, codes, origin, columns, source, b_col, b_row, n, depth, packed_b)
                source, b_row, b_step = packed_b, columns * size, columns * size * depth
            base = addend if k0 == 0 else c
            _multiply_in_place(like, m, n, depth, part(a, 0, k0), source, b_row, b_step, c, base, workspace)
        return
    # Packed A is last in the workspace, because packing A may write a vector beyond its end.
    packed_a = packed_b + round_up(min(n, COLUMNS), columns) * min(depth_of(like, k), PACKED_DEPTH) * size
    step = PACKED_DEPTH * numbers_in(like)
    for j0 in range(0, n, COLUMNS):
        width = min(COLUMNS, n - j0)
        for k0 in range(0, k, step):
            depth = min(step, k - k0)
            source, along, across = part(b, k0, j0)
            b_packer(codes)(like, codes, origin, columns, source, across, along, width, depth, packed_b)
            base = addend if k0 == 0 else c
            for i0 in range(0, m, ROWS):
                height = min(ROWS, m - i0)
                source, across, along = part(a, i0, k0)
                packer(like)(like, TILE_ROWS, source, across, along, height, depth, packed_a)
                _multiply_block(
                    like, height, width, depth_of(like, depth), packed_a, packed_b, part(c, i0, j0),
                    part(base, i0, j0), workspace,
                )  # fmt: skip


# The int64 words of a shared product: the ticket; for each phase, the number of finished packings; for each phase, the
# number of finished tiles; for each tile of each block of C, the number of phases that were added to the tile.
_TICKET, COUNTERS = 0, 8


def separate_products(dtype: np.dtype[Any], format: np.dtype[Any]) -> Kernel:
    """Return the kernel that computes separate blocks of products, packed as `dtype`.

    `format` is the dtype of codes if B is a quantized matrix, of which the kernel takes the description; else, `dtype`.

    Blocks are numbered over all products of the batch. After `start` and `stop`, the kernel takes the address of the
    geometry, and the ids of A, B, the addend and C.
    """
    like: Any = np.zeros(1, dtype)
    codes: Any = np.zeros(1, format)

    @jit(name=f"product.separate_products.{dtype}.{format}")
    def kernel(start: int, stop: int, geometry: int, id_a: int, id_b: int, id_addend: int, id_c: int) -> None:
        g = read_geometry(geometry)
        m, n, k, rows, columns, epilogue = g.m, g.n, g.k, g.rows, g.columns, g.epilogue
        row_blocks = (m + rows - 1) // rows
        blocks = row_blocks * ((n + columns - 1) // columns)
        scratch = np.empty(g.scratch, like.dtype)
        origin = data_of(id_b)
        for task in range(start, stop):
            # Using the array within the loop keeps it alive. Numba frees an array after its last use, even if its
            # address is used later.
            workspace = round_up(np.intp(scratch.ctypes.data), VECTOR_BYTES)
            a, b, c, addend, other, result = matrices_of(geometry, task // blocks, (id_a, id_b, id_addend, id_c))
            i = task % blocks % row_blocks * rows
            j = task % blocks // row_blocks * columns
            height, width = min(rows, m - i), min(columns, n - j)
            left, right, place, added = part(a, i, 0), part(b, 0, j), part(c, i, j), part(addend, i, j)
            if n == 1 and not has_codes(codes):
                multiply_vector(like, height, k, left, right, place, added, workspace)
            elif m == 1 and not has_codes(codes):
                multiply_vector(
                    like, width, k, transposed(right), transposed(left), transposed(place), transposed(added), workspace
                )
            else:
                product(like, codes, origin, height, width, k, left, right, place, added, workspace)
            if epilogue != NO_EPILOGUE:
                apply_epilogue(epilogue, height, width, place, part(other, i, j), part(result, i, j))

    return kernel


def shared_product(dtype: np.dtype[Any], format: np.dtype[Any]) -> Kernel:
    """Return the kernel with which threads share one product of a batch. The kernel's range numbers the threads.

    After the parameters that it has in common with the kernel of `separate_products`, it takes the id of an array of
    scratch memory, the product's number in the batch, and the address of the product's words. A thread computes tasks
    until none is left to start.

    A phase adds a slab of depth `PACKED_DEPTH` to a block of C. The tasks of a phase pack groups of columns of B and of
    rows of A, once for all threads, then compute the tiles of C from pairs of groups. Threads take tasks in order. A
    task waits only for earlier tasks, which other threads are computing. There are two sets of packed panels, so
    packing rarely waits.
    """
    like: Any = np.zeros(1, dtype)
    codes: Any = np.zeros(1, format)

    @jit(name=f"product.shared_product.{dtype}.{format}")
    def kernel(
        start: int, stop: int, worker: int, geometry: int, id_a: int, id_b: int, id_addend: int, id_c: int,
        scratch: int, number: int, words: int,
    ) -> None:  # fmt: skip
        g = read_geometry(geometry)
        m, n, k, rows, columns, workers, epilogue = g.m, g.n, g.k, g.rows, g.columns, g.workers, g.epilogue
        a, b, c, addend, other, result = matrices_of(geometry, number, (id_a, id_b, id_addend, id_c))
        origin = data_of(id_b)
        size = like.itemsize
        scratch = round_up(data_of(scratch), VECTOR_BYTES)
        tile_size = TILE_ROWS * tile_columns(like) * size
        tile = scratch + worker * tile_size
        packed, made, added = COUNTERS, COUNTERS + g.phases, COUNTERS + 2 * g.phases
        slab = PACKED_DEPTH * numbers_in(like)
        b_group = columns * min(depth_of(like, k), PACKED_DEPTH) * size
        a_group = rows * min(depth_of(like, k), PACKED_DEPTH) * size + VECTOR_BYTES  # packing may write beyond the end
        b_size = (min(n, COLUMNS) + columns - 1) // columns * b_group
        place_size = b_size + (min(m, SHARED_ROWS) + rows - 1) // rows * a_group

        phase = 0
        first = 0  # the phase's first ticket
        tiles_before, tiles_last = 0, 0  # of the phase before the previous phase, and of the previous phase
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
                                source, along, across = part(b, k0, j0 + j)
                                b_packer(codes)(
                                    like, codes, origin, tile_columns(like), source, across, along,
                                    min(columns, width - j), depth, packed_b + task * b_group,
                                )  # fmt: skip
                            else:
                                group = task - column_groups
                                i = group * rows
                                source, across, along = part(a, i0 + i, k0)
                                packer(like)(
                                    like, TILE_ROWS, source, across, along, min(rows, height - i), depth,
                                    packed_a + group * a_group,
                                )  # fmt: skip
                            fetch_add(words, packed + phase, 1)
                        else:
                            at = task - packings
                            i, j = at % row_groups * rows, at // row_groups * columns
                            tall, wide = min(rows, height - i), min(columns, width - j)
                            place = part(c, i0 + i, j0 + j)
                            wait_for(words, packed + phase, packings)
                            wait_for(words, added + at, k0 // slab)
                            _multiply_block(
                                like, tall, wide, depth_of(like, depth), packed_a + at % row_groups * a_group,
                                packed_b + at // row_groups * b_group, place, part(base, i0 + i, j0 + j), tile,
                            )  # fmt: skip
                            if epilogue != NO_EPILOGUE and k0 + slab >= k:
                                extra, finished = part(other, i0 + i, j0 + j), part(result, i0 + i, j0 + j)
                                apply_epilogue(epilogue, tall, wide, place, extra, finished)
                            store(words, added + at, k0 // slab + 1)
                            fetch_add(words, made + phase, 1)
                        ticket = fetch_add(words, _TICKET, 1)
                    first += packings + tiles
                    phase += 1
                    tiles_before, tiles_last = tiles_last, tiles
                added += tiles

    return kernel
