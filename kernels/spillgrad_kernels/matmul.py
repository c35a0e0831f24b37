"""The matrix product, for any strides and any broadcast batch, at the speed of the multiply-add units.

BLIS's loops: blocks of A and B are packed into panels that stay in cache, and `multiply_panels` makes one tile of C
from a panel of each. K is always cut at multiples of `_DEPTH`, so that an element of C is the same sum whatever block
or thread makes it.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels import memory
from spillgrad_kernels.atomics import fetch_add, store, wait_for
from spillgrad_kernels.compile import REASSOCIATE, jit, register_jitable
from spillgrad_kernels.cpu import elementwise
from spillgrad_kernels.dispatch import get_num_threads, parallel_for
from spillgrad_kernels.epilogue import NO_EPILOGUE, Epilogue, epilogue, run_epilogue
from spillgrad_kernels.formula import Formula
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
from spillgrad_kernels.pointers import address_of, aligned, array_at
from spillgrad_kernels.walk import Layout, Shape, batch_offsets, dense, layout_of

_ONE_PRODUCT = np.zeros((1, 3), np.int64)
# Stands for scratch memory where none is needed.
_NO_SCRATCH = {np.dtype(dtype): np.zeros((1, 1), dtype) for dtype in (np.float32, np.float64)}

# A panel of B (_DEPTH x tile_columns) stays in the L1 cache, a block of A (_ROWS x _DEPTH) in L2, one of B in L3.
_DEPTH = 256
_ROWS = 12 * TILE_ROWS
_COLUMNS = 2048
# In a product shared by threads: rows packed at once, columns of a group, and tiles that balance uneven cores.
_SHARED_ROWS = 160 * TILE_ROWS
_GROUP_COLUMNS = 256
_TILES_PER_THREAD = 4
# A matrix-vector product keeps this many sums, and as many elements of its vector, in the L1 cache.
_VECTOR_CHUNK = 4096
# Multiply-adds up to which packing costs more than it saves.
_SMALL_WORK = 1 << 20
# Multiply-adds from which a product deserves all threads (about 20 microseconds of one), and from which it does even
# where many products wait.
_SHARED_WORK = 1 << 20
_LARGE_WORK = 1 << 24
# Multiply-adds that pay for a share: about 2 microseconds; of a matrix-vector product, which waits for memory.
_GRAIN = 1 << 17
_VECTOR_GRAIN = 1 << 14
# The dtype that products of numbers add up in; uint16 stands for bfloat16.
_SUMS: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(np.float64): np.dtype(np.float64),
    np.dtype(np.uint16): np.dtype(np.float32),
}


def workspace_size(m: int, n: int, k: int, itemsize: int) -> int:
    """Return how many elements of scratch memory an m x n product of depth k needs."""
    vector = VECTOR_BYTES // itemsize
    columns = 2 * vector
    packed: int = (round_up(min(n, _COLUMNS), columns) + round_up(min(m, _ROWS), TILE_ROWS)) * min(k, _DEPTH)
    chunks = 2 * _VECTOR_CHUNK if min(m, n) == 1 else 0
    # One vector that packing may write beyond the last panel, and one to align the start.
    return max(TILE_ROWS * columns + packed, chunks) + 2 * vector


@register_jitable
def depth_of(like: np.ndarray, numbers: int) -> int:
    """Return how many elements hold as many numbers along the depth."""
    return (numbers + numbers_in(like) - 1) // numbers_in(like)


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
    addend: int,
    addend_row: int,
    tile: int,
) -> None:
    """Set a block of C to the product of packed panels, plus a block at `addend` unless that is 0.

    The addend's columns are `c_col` bytes apart. `tile` is room for one tile, used at C's edges.
    """
    sums = sums_of(like)
    size = like.itemsize
    columns = tile_columns(like)
    tile_row = columns * size
    spare = array_at(sums, tile, TILE_ROWS * columns)
    for j in range(0, width, columns):
        for i in range(0, height, TILE_ROWS):
            place = c + i * c_row + j * c_col
            added = addend + i * addend_row + j * c_col if addend != 0 else 0
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
def _thin_product(
    like: np.ndarray,
    m: int,
    n: int,
    k: int,
    a: int,
    a_row: int,
    b: int,
    b_row: int,
    b_col: int,
    c: int,
    c_row: int,
    c_col: int,
    addend: int,
    addend_row: int,
    workspace: int,
) -> None:
    """Do as `product` where C is at most a tile wide and rows of A have no gaps: A is read once, as it lies."""
    size = like.itemsize
    columns = tile_columns(like)
    tile_row = columns * size
    packed = workspace + TILE_ROWS * tile_row
    for k0 in range(0, k, _DEPTH):
        depth = min(_DEPTH, k - k0)
        packer(like)(like, columns, b + k0 * b_row, b_col, b_row, n, depth, packed)
        base, base_row = (addend, addend_row) if k0 == 0 else (c, c_row)
        for i in range(0, m, TILE_ROWS):
            rows = min(TILE_ROWS, m - i)
            corner = a + i * a_row + k0 * size
            multiply_in_place(
                like, rows, n, depth, corner, a_row, size, packed, tile_row, workspace, tile_row, 0, 0
            )  # fmt: skip
            for r in range(rows):
                sums = array_at(like, workspace + r * tile_row, n)
                for s in range(n):
                    place = s * c_col
                    before = (
                        array_at(like, base + (i + r) * base_row + place, 1)[0] if base != 0 else like.dtype.type(0)
                    )
                    array_at(like, c + (i + r) * c_row + place, 1)[0] = before + sums[s]


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
    addend: int,
    addend_row: int,
    workspace: int,
) -> None:
    """Set the m x n matrix C to the product of A and B, in the calling thread, plus a matrix at `addend` unless 0.

    `a`, `b`, `c`, `addend` and `workspace` are addresses, `a_row` and its kin the bytes from one row or column to the
    next, k is at least 1. The addend, which may be C, has its columns `c_col` bytes apart. `like` is an array of the
    packed dtype (see `packing.py`). `workspace` has `workspace_size` elements and is aligned to a vector.
    """
    size = like.itemsize
    columns = tile_columns(like)
    if (m <= TILE_ROWS or m * n * k <= _SMALL_WORK) and b_col == size and c_col == size and numbers_in(like) == 1:
        for k0 in range(0, k, _DEPTH):
            base, base_row = (addend, addend_row) if k0 == 0 else (c, c_row)
            for j in range(0, n, columns):
                for i in range(0, m, TILE_ROWS):
                    multiply_in_place(
                        like, min(TILE_ROWS, m - i), min(columns, n - j), min(_DEPTH, k - k0),
                        a + i * a_row + k0 * a_col, a_row, a_col, b + k0 * b_row + j * b_col, b_row,
                        c + i * c_row + j * c_col, c_row,
                        base + i * base_row + j * c_col if base != 0 else 0, base_row,
                    )  # fmt: skip
        return
    packed_b = workspace + TILE_ROWS * columns * size
    if n <= columns and a_col == size and numbers_in(like) == 1:
        _thin_product(like, m, n, k, a, a_row, b, b_row, b_col, c, c_row, c_col, addend, addend_row, workspace)
        return
    # Packing A may write a vector beyond its end, so A comes last.
    packed_a = packed_b + round_up(min(n, _COLUMNS), columns) * min(depth_of(like, k), _DEPTH) * size
    step = _DEPTH * numbers_in(like)
    for j0 in range(0, n, _COLUMNS):
        width = min(_COLUMNS, n - j0)
        for k0 in range(0, k, step):
            depth = min(step, k - k0)
            packer(like)(like, columns, b + k0 * b_row + j0 * b_col, b_col, b_row, width, depth, packed_b)
            base, base_row = (addend, addend_row) if k0 == 0 else (c, c_row)
            for i0 in range(0, m, _ROWS):
                height = min(_ROWS, m - i0)
                packer(like)(like, TILE_ROWS, a + i0 * a_row + k0 * a_col, a_row, a_col, height, depth, packed_a)
                multiply_block(
                    like, height, width, depth_of(like, depth), packed_a, packed_b,
                    c + i0 * c_row + j0 * c_col, c_row, c_col,
                    base + i0 * base_row + j0 * c_col if base != 0 else 0, base_row, workspace,
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
    geometry: np.ndarray,
    words: int,
    a: int,
    b: int,
    c: int,
    addend: int,
    epilogue: Epilogue,
    other: int,
    result: int,
) -> None:
    """Take part in one large product until nothing is left of it to begin; every share is a thread's part.

    A phase is a slab of depth `_DEPTH` of a block of C. Its tasks pack groups of `columns` of B and of `rows` of A,
    once for all threads, then make the tiles of C where they cross. Threads draw tasks in order. A task waits only for
    tasks drawn earlier, which some thread is at work on; packed panels have two places, so that packing rarely waits.
    """
    m, n, k, rows, columns, workers, phases = _cut(geometry)
    a_row, a_col, b_row, b_col, c_row, c_col, addend_row, other_row, result_row = _strides(geometry)
    size = workspace.itemsize
    scratch = round_up(np.intp(workspace.ctypes.data), VECTOR_BYTES)
    tile_size = TILE_ROWS * tile_columns(workspace) * size
    tile = scratch + worker * tile_size
    packed, made, added = _COUNTERS, _COUNTERS + phases, _COUNTERS + 2 * phases
    slab = _DEPTH * numbers_in(workspace)
    b_group = columns * min(depth_of(workspace, k), _DEPTH) * size
    a_group = rows * min(depth_of(workspace, k), _DEPTH) * size + VECTOR_BYTES  # packing may write beyond the end
    b_size = (min(n, _COLUMNS) + columns - 1) // columns * b_group
    place_size = b_size + (min(m, _SHARED_ROWS) + rows - 1) // rows * a_group

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
            for k0 in range(0, k, slab):
                depth = min(slab, k - k0)
                packed_b = scratch + workers * tile_size + phase % 2 * place_size
                packed_a = packed_b + b_size
                base, base_row = (addend, addend_row) if k0 == 0 else (c, c_row)
                while ticket < first + packings + tiles:
                    task = ticket - first
                    if task < packings:
                        if phase > 1:
                            wait_for(words, made + phase - 2, tiles_before)
                        if task < column_groups:
                            j = task * columns
                            source = b + k0 * b_row + (j0 + j) * b_col
                            count = min(columns, width - j)
                            packer(workspace)(
                                workspace, tile_columns(workspace), source, b_col, b_row, count, depth,
                                packed_b + task * b_group,
                            )  # fmt: skip
                        else:
                            group = task - column_groups
                            i = group * rows
                            source = a + (i0 + i) * a_row + k0 * a_col
                            count = min(rows, height - i)
                            packer(workspace)(
                                workspace, TILE_ROWS, source, a_row, a_col, count, depth, packed_a + group * a_group
                            )
                        fetch_add(words, packed + phase, 1)
                    else:
                        at = task - packings
                        i, j = at % row_groups * rows, at // row_groups * columns
                        count, across = min(rows, height - i), min(columns, width - j)
                        place = (i0 + i) * c_row + (j0 + j) * c_col
                        wait_for(words, packed + phase, packings)
                        wait_for(words, added + at, k0 // slab)
                        multiply_block(
                            workspace, count, across, depth_of(workspace, depth),
                            packed_a + at % row_groups * a_group, packed_b + at // row_groups * b_group,
                            c + place, c_row, c_col,
                            base + (i0 + i) * base_row + (j0 + j) * c_col if base != 0 else 0, base_row, tile,
                        )  # fmt: skip
                        if epilogue != NO_EPILOGUE and k0 + slab >= k:
                            run_epilogue(
                                epilogue, count, across, c + place, c_row,
                                other + (i0 + i) * other_row + (j0 + j) * c_col, other_row,
                                result + (i0 + i) * result_row + (j0 + j) * c_col, result_row,
                            )  # fmt: skip
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
def _combine_columns(
    like: np.ndarray, m: int, k: int, a: int, a_row: int, a_col: int, x: np.ndarray, sums: np.ndarray
) -> None:
    """Set `sums` to the columns of A weighted with x, four at a time so that a sum is stored a fourth as often."""
    numbers = numbers_of(like)
    sums[:m] = 0
    done = 0
    if a_row == numbers.itemsize:
        done = k - k % 4
        for d in range(0, done, 4):
            first, second = array_at(numbers, a + d * a_col, m), array_at(numbers, a + (d + 1) * a_col, m)
            third, fourth = array_at(numbers, a + (d + 2) * a_col, m), array_at(numbers, a + (d + 3) * a_col, m)
            for i in range(m):
                two = x[d] * widened(first[i]) + x[d + 1] * widened(second[i])
                sums[i] = sums[i] + two + x[d + 2] * widened(third[i]) + x[d + 3] * widened(fourth[i])
    for d in range(done, k):
        for i in range(m):
            sums[i] += x[d] * widened(array_at(numbers, a + i * a_row + d * a_col, 1)[0])


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
    addend: int,
    addend_step: int,
    workspace: int,
) -> None:
    """Set the vector y to the product of the m x k matrix A and the vector x, plus a vector at `addend` unless 0.

    A is read as it lies in memory.
    """
    numbers, floats = numbers_of(like), sums_of(like)
    chunk = array_at(floats, workspace, _VECTOR_CHUNK)
    sums = array_at(floats, workspace + _VECTOR_CHUNK * floats.itemsize, _VECTOR_CHUNK)
    for k0 in range(0, k, _VECTOR_CHUNK):
        depth = min(_VECTOR_CHUNK, k - k0)
        for d in range(depth):
            chunk[d] = widened(array_at(numbers, x + (k0 + d) * x_step, 1)[0])
        for i0 in range(0, m, _VECTOR_CHUNK):
            rows = min(_VECTOR_CHUNK, m - i0)
            corner = a + i0 * a_row + k0 * a_col
            if a_col == numbers.itemsize:
                for i in range(rows):
                    sums[i] = _dot(array_at(numbers, corner + i * a_row, depth), chunk[:depth])
            else:
                _combine_columns(like, rows, depth, corner, a_row, a_col, chunk, sums)
            base, base_step = (addend, addend_step) if k0 == 0 else (y, y_step)
            for i in range(rows):
                before = array_at(floats, base + (i0 + i) * base_step, 1)[0] if base != 0 else floats.dtype.type(0)
                array_at(floats, y + (i0 + i) * y_step, 1)[0] = before + sums[i]


@jit
def _separate_products(
    start: int,
    stop: int,
    worker: int,
    workspaces: np.ndarray,
    geometry: np.ndarray,
    batch_offsets: np.ndarray,
    a: int,
    b: int,
    c: int,
    addend: int,
    epilogue: Epilogue,
    other: int,
    result: int,
) -> None:
    """Compute the blocks of C numbered `start` to `stop`, each `rows` x `columns`, over all products of the batch."""
    m, n, k, rows, columns, _, _ = _cut(geometry)
    a_row, a_col, b_row, b_col, c_row, c_col, addend_row, other_row, result_row = _strides(geometry)
    row_blocks = (m + rows - 1) // rows
    blocks = row_blocks * ((n + columns - 1) // columns)
    like = workspaces[worker]
    scratch = round_up(np.intp(like.ctypes.data), VECTOR_BYTES)
    for task in range(start, stop):
        offsets = batch_offsets[task // blocks]
        i = task % blocks % row_blocks * rows
        j = task % blocks // row_blocks * columns
        height, width = min(rows, m - i), min(columns, n - j)
        pa, pb = a + offsets[0] + i * a_row, b + offsets[1] + j * b_col
        pc = c + offsets[2] + i * c_row + j * c_col
        added = addend + offsets[2] + i * addend_row + j * c_col if addend != 0 else 0
        if n == 1:
            _multiply_vector(like, height, k, pa, a_row, a_col, pb, b_row, pc, c_row, added, addend_row, scratch)
        elif m == 1:
            _multiply_vector(like, width, k, pb, b_col, b_row, pa, a_col, pc, c_col, added, c_col, scratch)
        else:
            product(
                like, height, width, k, pa, a_row, a_col, pb, b_row, b_col, pc, c_row, c_col, added, addend_row, scratch
            )  # fmt: skip
        if epilogue != NO_EPILOGUE:
            run_epilogue(
                epilogue, height, width, pc, c_row, other + i * other_row + j * c_col, other_row,
                result + i * result_row + j * c_col, result_row,
            )  # fmt: skip


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, *, accumulate: bool = False) -> np.ndarray:
    """Return a @ b, written to `out` or, with `accumulate`, added to it. `out` must not overlap the operands.

    Shapes: a (..., M, K), b (..., K, N), out (..., M, N); batch dimensions broadcast. Any strides. All float32, all
    float64, or a and b uint16 for the bits of bfloat16 numbers, whose product is float32.
    Raises ValueError for shapes and TypeError for dtypes that do not fit.
    """
    if a.dtype != b.dtype or a.dtype not in _SUMS:
        raise TypeError(
            f"matmul: got {a.dtype} and {b.dtype}; wanted both float32, float64, or uint16 for bfloat16; convert one"
        )
    if out is None:
        if accumulate:
            raise ValueError("matmul: got accumulate=True without out; pass the array to add to")
    elif not out.flags.behaved:
        raise ValueError("matmul: got an out that is read-only or not aligned; pass an ordinary array")
    a, b = aligned(a), aligned(b)
    call = _prepare(layout_of(a), layout_of(b), None if out is None else layout_of(out), get_num_threads())
    if out is None:
        out = memory.empty(call.shape, _SUMS[a.dtype])
    if out.size == 0 or a.shape[-1] == 0:
        if not accumulate:
            out.fill(0)
        return out
    at_out = address_of(out)
    offsets = batch_offsets(call.batch, *map(layout_of, (a, b, out))) if call.batch else _ONE_PRODUCT
    _run(call, offsets, a, b, at_out, at_out if accumulate else 0, NO_EPILOGUE, 0, 0)
    return out


def linear(
    rows: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    other: np.ndarray | None = None,
    formula: Formula | None = None,
    name: str = "",
    product: np.ndarray | None = None,
) -> np.ndarray:
    """Return formula(rows @ weight.T + bias, other), made block by block while the product is in the cache.

    `formula`, known as `name`, may take one parameter; without it the product is returned. What the formula is applied
    to goes into `product`, if given. Shapes: rows (M, K), weight (N, K), bias (N,), other, product and result (M, N);
    `product` is C-contiguous. Dtypes as for `matmul`; those of the other arrays are its result's.
    """
    dtype = _SUMS[rows.dtype]
    shape = (len(rows), len(weight))
    result = memory.empty(shape, dtype)
    product = result if product is None else product
    if len(rows) <= TILE_ROWS or rows.shape[1] == 0:
        # Products of few rows are planned for their operands alone, and their results are small.
        product[...] = 0 if bias is None else bias
        matmul(rows, weight.T, product, accumulate=True)
        if formula is not None:
            elementwise(formula, name, [product] if other is None else [product, other], dtype, result)
        return product if formula is None else result
    rows, weight = aligned(rows), aligned(weight.T)
    bias = None if bias is None else np.ascontiguousarray(bias)
    other = None if other is None else np.ascontiguousarray(other)
    at_result = address_of(result)
    _run(
        _prepare(layout_of(rows), layout_of(weight), None, get_num_threads(), addend_row=0),
        _ONE_PRODUCT, rows, weight, address_of(product), 0 if bias is None else address_of(bias),
        NO_EPILOGUE if formula is None else epilogue(formula, name, dtype),
        at_result if other is None else address_of(other), at_result,
    )  # fmt: skip
    return product if formula is None else result


def _run(
    call: "_Call", offsets: np.ndarray, a: np.ndarray, b: np.ndarray, out: int, addend: int, epilogue: Epilogue,
    other: int, result: int,
) -> None:  # fmt: skip
    at_a, at_b = address_of(a), address_of(b)
    if call.swapped:
        at_a, at_b, offsets = at_b, at_a, offsets[:, [1, 0, 2]]
    workspaces = _NO_SCRATCH[call.packed] if call.scratch is None else memory.empty(call.scratch, call.packed)
    if call.words == 0:
        parallel_for(
            _separate_products, call.blocks, call.grain, workspaces, call.geometry, offsets,
            at_a, at_b, out, addend, epilogue, other, result, most=len(workspaces),
        )  # fmt: skip
        return
    for offset_a, offset_b, offset_out in offsets.tolist():
        words = np.zeros(call.words, np.int64)
        parallel_for(
            _shared_product, call.blocks, 1, workspaces, call.geometry, address_of(words),
            at_a + offset_a, at_b + offset_b, out + offset_out, addend + offset_out if addend else 0,
            epilogue, other, result,
        )  # fmt: skip


class _Call(NamedTuple):
    """What products of the same layouts share: how they are cut (see `_Plan`), and the numbers that kernels read."""

    shape: Shape
    batch: Shape
    swapped: bool  # whether the transpose is computed, from B and A
    packed: np.dtype[Any]
    geometry: np.ndarray
    scratch: tuple[int, int] | None  # None where the kernel takes one block as it lies
    blocks: int
    grain: int
    words: int


@functools.lru_cache(maxsize=4096)
def _prepare(a: Layout, b: Layout, out: Layout | None, threads: int, addend_row: int | None = None) -> _Call:
    """Check the layouts of a product and plan it. `addend_row` is None where only C can be added to."""
    batch, out = _checked(a, b, out)
    (a_shape, a_strides, numbers), (b_shape, b_strides, _), (shape, out_strides, dtype) = a, b, out
    m, n, k = a_shape[-2], b_shape[-1], a_shape[-1]
    if batch and len(b_shape) == 2 and _rows_are_regular(a) and _rows_are_regular(out):
        m, batch = m * math.prod(batch), ()
    a_steps, b_steps, out_steps = a_strides[-2:], b_strides[-2:], out_strides[-2:]
    packed = np.dtype(np.uint32) if numbers == np.uint16 else dtype
    plain = packed == numbers
    swapped = _is_better_swapped(m, n, plain, b_steps, out_steps, dtype.itemsize)
    if swapped:
        m, n = n, m
        a_steps, b_steps, out_steps = b_steps[::-1], a_steps[::-1], out_steps[::-1]
    in_lines = (a_steps[1] == numbers.itemsize, b_steps[0] == numbers.itemsize)
    in_rows = b_steps[1] == out_steps[1] == dtype.itemsize
    # Without elements there is nothing to plan, but what is added to may have some.
    depth, products = max(1, -(-k * numbers.itemsize // packed.itemsize)), max(1, math.prod(batch))
    plan = _plan(max(1, m), max(1, n), depth, products, dtype.itemsize, threads, plain, in_lines, in_rows)
    rows = (out_steps[0] if addend_row is None else addend_row, out_steps[0], out_steps[0])
    cut = (m, n, k, plan.rows, plan.columns, plan.scratch[0], plan.phases)
    geometry = np.array((*cut, *a_steps, *b_steps, *out_steps, *rows), np.int64)
    small = plain and in_rows and m * n * k <= _SMALL_WORK and min(m, n) > 1 and plan.scratch[0] == 1
    scratch = None if small else plan.scratch
    return _Call(shape, batch, swapped, packed, geometry, scratch, plan.blocks, plan.grain, plan.words)


def _checked(a: Layout, b: Layout, out: Layout | None) -> tuple[Shape, Layout]:
    """Return the product's batch and layout, which is dense if none is given. Raises ValueError unless all fit."""
    (a_shape, _, numbers), (b_shape, _, _) = a, b
    if len(a_shape) < 2 or len(b_shape) < 2 or a_shape[-1] != b_shape[-2]:
        raise ValueError(
            f"matmul: got {a_shape} and {b_shape}; wanted (..., M, K) and (..., K, N) with equal K; transpose one"
        )
    try:
        batch = np.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    except ValueError:
        raise ValueError(
            f"matmul: got {a_shape} and {b_shape}; batch dimensions {a_shape[:-2]} and {b_shape[:-2]} must broadcast; "
            "reshape or expand one"
        ) from None
    wanted = dense((*batch, a_shape[-2], b_shape[-1]), _SUMS[numbers])
    if out is not None and (out[0] != wanted[0] or out[2] != wanted[2]):
        raise ValueError(f"matmul: got out {out[2]} {out[0]}; wanted {wanted[2]} {wanted[0]}")
    return batch, wanted if out is None else out


def _is_better_swapped(m: int, n: int, plain: bool, b_steps: Shape, out_steps: Shape, size: int) -> bool:
    """Say whether to compute the transpose, from B and A; `plain` as for `_plan`, elements of `size` bytes.

    The kernel writes rows of C, whose columns should be contiguous. A few rows of A beside lines of B along the depth
    are better on the right too: as the left operand those lines are read where they lie.
    """
    thin = plain and 1 < m <= TILE_ROWS and m < n and b_steps[0] == size
    return n > 1 and (thin or out_steps[1] != size == out_steps[0])


@register_jitable
def _cut(geometry: np.ndarray) -> tuple[int, ...]:
    """Return m, n, k, then `_Plan`'s rows, columns, workers and phases."""
    g = geometry
    return g[0], g[1], g[2], g[3], g[4], g[5], g[6]


@register_jitable
def _strides(geometry: np.ndarray) -> tuple[int, ...]:
    """Return the bytes between rows and columns of A, B and C, then between rows of addend, other and result."""
    g = geometry
    return g[7], g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15]


def _rows_are_regular(layout: Layout) -> bool:
    """Say whether all but the last dimension can be taken as one."""
    shape, strides, _ = layout
    pairs = zip(shape[1:-1], strides[:-2], strides[1:-1], strict=True)
    return all(outer == size * inner for size, outer, inner in pairs)


class _Plan(NamedTuple):
    """How a product is cut: into separate blocks, or into tiles of a product shared by all workers."""

    rows: int
    columns: int
    scratch: tuple[int, int]  # workers, and elements for each
    blocks: int  # how many there are, and how many of them a thread takes at once; of a shared product its workers
    grain: int
    phases: int = 0  # shared: see `_shared_product`
    words: int = 0


def _plan(
    m: int, n: int, k: int, products: int, itemsize: int, threads: int, plain: bool, in_lines: tuple[bool, bool],
    in_rows: bool,
) -> _Plan:  # fmt: skip
    """Plan products of depth k; `plain` says that elements are numbers, not pairs.

    `in_lines` says of A and of B whether their elements along the depth are neighbours, `in_rows` of B and C whether
    those of a row are. A large operand beside a small one is read once, where it lies.
    """
    rows, columns = m, n
    if m == 1 or n == 1:
        # Memory is fastest in long runs: where neighbours belong to different sums, a thread takes as many as it can.
        shares = 4 * threads if in_lines[1 if m == 1 else 0] else threads
        length = round_up(max(_VECTOR_GRAIN // k, -(-max(m, n) * products // shares)), 16)
        rows, columns = min(m, length), min(n, length)
    elif plain and m <= TILE_ROWS and in_rows:
        columns = min(n, round_up(-(-n // threads), _GROUP_COLUMNS))
    elif plain and n <= 2 * VECTOR_BYTES // itemsize and in_lines[0]:
        rows = min(m, round_up(-(-m // (4 * threads)), _ROWS))
    elif threads > 1 and m * n * k >= (_SHARED_WORK if products < 2 * threads else _LARGE_WORK):
        return _shared_plan(m, n, k, itemsize, threads)
    blocks = products * -(-m // rows) * -(-n // columns)
    grain = 1 + _GRAIN // (rows * columns * k)
    workers = 1 if blocks <= grain else threads
    return _Plan(rows, columns, (workers, workspace_size(rows, columns, k, itemsize)), blocks, grain)


def _shared_plan(m: int, n: int, k: int, itemsize: int, threads: int) -> _Plan:
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
    return _Plan(rows, columns, (threads, -(-scratch // threads)), threads, 1, phases, words)


def _even_part(size: int, largest: int, multiple: int) -> int:
    """Cut `size` into the fewest parts not above `largest`; return their length, rounded up to `multiple`."""
    parts = -(-size // largest)
    return round_up(-(-size // parts), multiple)  # type: ignore[no-any-return]
