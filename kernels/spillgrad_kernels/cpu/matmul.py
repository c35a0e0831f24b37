"""The matrix product for any strides and broadcast batches: the public functions, and how a product is cut into parts.

Most products are cut into separate blocks; a thread packs the operands of its own blocks. Threads share a large product
tile by tile, and share the packed operands too (see `product.py`).
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.cpu.epilogue import epilogue
from spillgrad_kernels.cpu.pointers import aligned
from spillgrad_kernels.cpu.product import (
    COLUMNS,
    COUNTERS,
    NARROW_BYTES,
    PACKED_DEPTH,
    ROWS,
    SHARED_ROWS,
    reads_b_in_place,
    reads_in_place,
    separate_products,
    shared_product,
    workspace_size,
)
from spillgrad_kernels.cpu.product_geometry import NO_EXTRAS, Extras, geometry_of, with_extras
from spillgrad_kernels.cpu.product_tile import BFLOAT16_PAIR, TILE_ROWS, VECTOR_BYTES
from spillgrad_kernels.cpu.vector_product import depth_of_parts, vector_product
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.layout import Layout, Shape, address_of, dense, layout_of
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.formula import Formula
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.tables.quantization import INT8, NF4
from spillgrad_kernels.threads.dispatch import (
    Kernel,
    entry_point,
    get_num_threads,
    launches,
    parallel_for,
    run_observed,
)

# The numbers of separate blocks, and of tiles of a shared product, per thread: enough to balance uneven cores.
_BLOCKS_PER_THREAD = 4
_TILES_PER_THREAD = 4
# The work of reading an element of A in place, for a block, where that of packing an element is 1.
_READING = 0.2
# The number of columns that a shared product packs at once.
_GROUP_COLUMNS = 256
# The fewest multiply-adds for which a product pays for all threads (about 20 microseconds of one thread), and the
# fewest for which one of many products does.
_SHARED_WORK = 1 << 20
_LARGE_WORK = 1 << 24
# The fewest multiply-adds for which threads share packed panels. In a smaller product, each thread packs its own
# blocks.
_PACKED_WORK = 1 << 27
# The number of multiply-adds that pays for a share: about 2 microseconds. It is lower for a matrix-vector product,
# which waits for memory.
_GRAIN = 1 << 17
_VECTOR_GRAIN = 1 << 14
# A matrix-vector product is divided into parts of its depth, each of which reads at least so many bytes, and has such a
# depth. There are at most so many, whose sums stay in L2, unless they would be deeper.
_MOST_PARTS = 16
_PART_BYTES = 256 << 10
_LEAST_PART_DEPTH, _MOST_PART_DEPTH = 64, 1024
# For each dtype of operands, the dtype of sums of products; uint16 holds the bits of bfloat16.
SUMS: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(np.float64): np.dtype(np.float64),
    np.dtype(np.uint16): np.dtype(np.float32),
}


@on_device("matmul")
def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, *, accumulate: bool = False) -> np.ndarray:
    """Return a @ b in `out`, or in a new array. If `accumulate`, add the product to `out` instead.

    `out` must not overlap the operands. All dtypes are float32, or all are float64. Or `a` and `b` are uint16, the bits
    of bfloat16 numbers, and `out` is float32.
    Shapes: a (..., M, K), b (..., K, N), out (..., M, N); batch dimensions broadcast. Any strides.
    Raises ValueError for shapes that do not match, for an `out` that is read-only or not aligned, and for `accumulate`
    without `out`. Raises TypeError for other dtypes.
    """
    a, b = aligned(a), aligned(b)
    call = prepare(layout_of(a), layout_of(b), None if out is None else layout_of(out), get_num_threads())
    if out is None and accumulate:
        raise ValueError("matmul: got accumulate=True without out; pass the array to add to")
    if out is not None and not out.flags.behaved:
        raise ValueError("matmul: got an out that is read-only or not aligned; pass an ordinary array")
    return call.run(a, b, out, addend=out if accumulate else None)


@on_device("matmul")
def linear(
    rows: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, *, other: np.ndarray | None = None,
    formula: Formula | None = None, name: str = "", product: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return formula(rows @ weight.T + bias, other). The formula is applied to each block while it is in the cache.

    `name` names the formula in generated code. If the formula has one parameter, `other` is not used. Without a
    formula, the product plus bias is returned. If `product` is given, rows @ weight.T + bias is stored in it. Dtypes
    are the same as for `matmul`; `bias`, `other` and `product` have the dtype of the result.
    Shapes: rows (M, K), weight (N, K), bias (N,), other, product and result (M, N); `product` is C-contiguous.
    """
    dtype = SUMS[rows.dtype]
    result = buffers.empty((len(rows), len(weight)), dtype)
    product = result if product is None else product
    rows, weight = aligned(rows), aligned(weight.T)
    bias = None if bias is None else aligned(np.ascontiguousarray(bias))
    call = prepare(layout_of(rows), layout_of(weight), None, get_num_threads(), (0, dtype.itemsize))
    if formula is None:
        return call.run(rows, weight, product, addend=bias)
    if len(rows) <= TILE_ROWS or rows.shape[1] == 0:  # a small product may be swapped; for depth 0, no kernel runs
        call.run(rows, weight, product, addend=bias)
        elementwise(formula, name, [product] if other is None else [product, other], dtype, result)
        return result
    other = result if other is None else aligned(np.ascontiguousarray(other))
    extras = epilogue(formula, name, dtype), id(other), id(result)
    call.run(rows, weight, product, addend=bias, extras=extras)
    return result


# The dtype of packed numbers, and that of B's codes if B is a quantized matrix; else, the former again.
_Formats = tuple[np.dtype[Any], np.dtype[Any]]
_FORMATS: list[_Formats] = [
    *((np.dtype(dtype), np.dtype(dtype)) for dtype in (np.float32, np.float64, BFLOAT16_PAIR)),
    *((np.dtype(dtype), format) for dtype in (np.float32, np.float64) for format in (NF4, INT8)),
]
_SEPARATE = {formats: separate_products(*formats) for formats in _FORMATS}
_SHARED = {formats: shared_product(*formats) for formats in _FORMATS}
_DIVIDED = {formats: vector_product(formats[0]) for formats in _FORMATS if formats[0] == formats[1]}


class CallPlan(NamedTuple):
    """The prepared kernel for all products whose operands have the same layouts.

    `code` computes a range of blocks on the calling thread. Its arguments are start, stop, the address of the geometry,
    and the ids of A, B, the addend (0 for no addend) and C. `code` is None if several threads should compute the
    product.
    """

    code: Kernel | None
    allocate: Callable[[Shape, Any], np.ndarray]
    shape: Shape
    dtype: np.dtype[Any]
    packed: _Formats
    cut: "ProductCut"
    products: int  # the number of products; 0 if the result is empty or K is 0
    geometry: np.ndarray

    def run(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, *, addend: np.ndarray | None = None,
        extras: Extras = NO_EXTRAS,
    ) -> np.ndarray:  # fmt: skip
        """Return the product plus `addend`, in `out` or in a new array. `addend` may be `out`."""
        if out is None:
            out = self.allocate(self.shape, self.dtype)
        cut, geometry = self.cut, self.geometry
        if extras != NO_EXTRAS:
            geometry = with_extras(geometry, extras)
        operands = id(a), id(b), 0 if addend is None else id(addend), id(out)
        if self.products == 0:
            out[...] = 0 if addend is None else addend
        elif self.code is not None:
            run = self.code if launches.observer is None else functools.partial(run_observed, self.code)
            run(0, cut.blocks, address_of(geometry), *operands)
        elif cut.is_divided:
            sums, word = buffers.empty((cut.blocks, out.size), out.dtype), np.zeros(1, np.int64)
            parallel_for(
                _DIVIDED[self.packed], cut.blocks, 1, address_of(geometry), *operands, id(sums), address_of(word)
            )
        elif cut.phases == 0:
            parallel_for(_SEPARATE[self.packed], cut.blocks, cut.grain, address_of(geometry), *operands)
        else:
            scratch = buffers.empty((cut.scratch,), self.packed[0])
            for number in range(self.products):
                words = np.zeros(cut.words, np.int64)
                parallel_for(
                    _SHARED[self.packed], cut.blocks, 1, address_of(geometry), *operands, id(scratch), number,
                    address_of(words), most=cut.blocks,
                )  # fmt: skip
        return out


@functools.lru_cache(maxsize=4096)
def prepare(
    a: Layout, b: Layout, out: Layout | None, threads: int, addend: Shape | None = None,
    format: np.dtype[Any] | None = None,
) -> CallPlan:  # fmt: skip
    """Return the plan for products of operands with the layouts `a` and `b`.

    `addend` holds the strides, in bytes, of an addend of C's shape; if it is None, the addend has the layout of C. If
    the rows of C are contiguous, the rows of the addend must be contiguous too. If B is a quantized matrix, `format` is
    the dtype of its codes, `b` has `CODE_BYTES` for each number, and the plan is run with B's description. Raises the
    errors of `matmul`.
    """
    batch, out = _checked(a, b, out)
    numbers, shape, dtype = a.dtype, out.shape, out.dtype
    added = out if addend is None else Layout.made(shape, addend, dtype)
    layouts = a, b, added, out
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    if batch and b.ndim == 2 and all([rows_are_regular(layout) for layout in (a, added, out)]):
        m, batch = m * math.prod(batch), ()
    steps = [layout.strides[-2:] for layout in layouts]
    in_batch = [layout.broadcast_strides(len(batch) + 2)[:-2] for layout in layouts] if batch else [[], [], [], []]
    packed = BFLOAT16_PAIR if numbers == np.uint16 else dtype
    formats = packed, packed if format is None else format
    plain = packed == numbers
    swapped = format is None and _is_better_swapped(m, n, plain, steps[1], steps[3], dtype.itemsize)
    if swapped:
        m, n = n, m
        steps = [steps[i][::-1] for i in (1, 0, 2, 3)]
        in_batch = [in_batch[i] for i in (1, 0, 2, 3)]
    (_, a_col), (b_row, b_col), _, (out_row, out_col) = steps
    in_lines = (a_col == numbers.itemsize, b_row == numbers.itemsize)
    in_rows = b_col == out_col == dtype.itemsize
    # A plan needs sizes of at least 1. C may have elements even if A and B have none.
    depth, products = max(1, -(-k * numbers.itemsize // packed.itemsize)), max(1, math.prod(batch))
    cut = None
    if products == 1 and format is None and min(m, n) == 1 < max(m, n) and not in_lines[1 if m == 1 else 0]:
        cut = _divided_cut(m, n, depth, dtype.itemsize)
    if cut is None:
        cut = _cut(max(1, m), max(1, n), depth, products, dtype.itemsize, threads, plain, in_lines, in_rows, b_row)
    head = (m, n, k, cut.rows, cut.columns, cut.scratch, cut.blocks, cut.phases)
    lengths = [*itertools.chain(*steps), out_row, out_row]  # the last two are the epilogue's
    geometry = geometry_of(head, swapped, lengths, list(zip(batch, *in_batch, strict=True)))
    products = products if math.prod(shape) and k else 0
    direct = products and cut.phases == 0 and not cut.is_divided and cut.blocks <= cut.grain
    code = entry_point(_SEPARATE[formats], 7) if direct else None
    return CallPlan(code, buffers.allocator(shape, dtype), shape, dtype, formats, cut, products, geometry)


def _checked(a: Layout, b: Layout, out: Layout | None) -> tuple[Shape, Layout]:
    """Return a product's batch shape, and the result's layout: `out` or a dense one. Raises the errors of `matmul`."""
    a_shape, b_shape, numbers, other = a.shape, b.shape, a.dtype, b.dtype
    if numbers != other or numbers not in SUMS:
        raise TypeError(
            f"matmul: got {numbers} and {other}; wanted both float32, float64, or uint16 for bfloat16; convert one"
        )
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
    wanted = dense((*batch, a_shape[-2], b_shape[-1]), SUMS[numbers])
    if out is not None and (out.shape, out.dtype) != (wanted.shape, wanted.dtype):
        raise ValueError(f"matmul: got out {out.dtype} {out.shape}; wanted {wanted.dtype} {wanted.shape}")
    return batch, wanted if out is None else out


def _is_better_swapped(m: int, n: int, plain: bool, b_steps: Shape, out_steps: Shape, size: int) -> bool:
    """Return whether it is faster to compute the transpose of C, from the transposes of B and A.

    The kernel writes rows of C, which should be contiguous. The transpose is also faster if A has few rows and B is
    contiguous along the depth: as the left operand, B is read without packing. `plain` is explained in `_cut`.
    `b_steps` and `out_steps` are the row stride and column stride of B and of C, in bytes; elements have `size` bytes.
    """
    thin = plain and 1 < m <= TILE_ROWS and m < n and b_steps[0] == size
    return n > 1 and (thin or out_steps[1] != size == out_steps[0])


def rows_are_regular(layout: Layout) -> bool:
    """Return whether all dimensions except the last can be viewed as one dimension, without a copy."""
    pairs = zip(layout.shape[1:-1], layout.strides[:-2], layout.strides[1:-1], strict=True)
    return all(outer == size * inner for size, outer, inner in pairs)


class ProductCut(NamedTuple):
    """How a product is cut: into separate blocks, or into tiles that all threads share."""

    rows: int
    columns: int
    scratch: int  # elements of scratch memory, for a block or for the shared product
    blocks: int  # the number of blocks, of threads of a shared product, or of parts of a divided one
    grain: int  # how many blocks a thread takes at once
    phases: int = 0  # the number of phases of a shared product: see `product.py`
    words: int = 0
    is_divided: bool = False  # whether it is the sum of products of parts of the depth


def _divided_cut(m: int, n: int, k: int, itemsize: int) -> ProductCut | None:
    """Return the cut of a matrix-vector product into parts of its depth; None if these would be too small.

    It is for a matrix whose neighbours in memory belong to different sums. It does not depend on the number of threads,
    so neither does the sum of the parts.
    """
    parts = min(_MOST_PARTS, m * n * k * itemsize // _PART_BYTES, k // _LEAST_PART_DEPTH)
    if parts < 2:
        return None
    depth = depth_of_parts(k, max(parts, -(-k // _MOST_PART_DEPTH)))
    return ProductCut(m, n, 0, -(-k // depth), 1, is_divided=True)


def _cut(
    m: int, n: int, k: int, products: int, itemsize: int, threads: int, plain: bool, in_lines: tuple[bool, bool],
    in_rows: bool, b_row: int,
) -> ProductCut:  # fmt: skip
    """Return the cut of `products` products of m x k and k x n matrices.

    `plain` means that elements are numbers, not pairs. `in_lines` says, for A and for B, whether the operand is
    contiguous along the depth. `in_rows` says whether the rows of B and of C are contiguous. Rows of B are `b_row`
    bytes apart. If one operand is small, the other is read once, without packing.
    """
    rows, columns = m, n
    if m == 1 or n == 1:
        # Memory is read fastest in long runs. If neighbours in memory belong to different sums, each thread takes one
        # long run.
        shares = 4 * threads if in_lines[1 if m == 1 else 0] else threads
        length = round_up(max(_VECTOR_GRAIN // k, -(-max(m, n) * products // shares)), 16)
        rows, columns = min(m, length), min(n, length)
    elif plain and m <= TILE_ROWS and in_rows:
        columns = min(n, round_up(-(-n // threads), _GROUP_COLUMNS))
    elif plain and n <= 2 * VECTOR_BYTES // itemsize and in_lines[0]:
        rows = min(m, round_up(-(-m // (4 * threads)), ROWS))
    else:
        deserves_all = threads > 1 and m * n * k >= (_SHARED_WORK if products < 2 * threads else _LARGE_WORK)
        if plain and m * n * k <= _PACKED_WORK:
            wanted = _BLOCKS_PER_THREAD * threads if deserves_all else 1
            rows, columns = _blocks_of(m, n, itemsize, wanted, in_lines[0])
        elif deserves_all:
            return _shared_cut(m, n, k, itemsize, threads)
    blocks = products * -(-m // rows) * -(-n // columns)
    grain = 1 + _GRAIN // (rows * columns * k)
    like = np.zeros(1, f"f{itemsize}")
    in_place = plain and in_rows and min(m, n) > 1
    in_place = in_place and reads_in_place(like, rows, columns, itemsize if in_lines[0] else 0, itemsize)
    in_place = in_place and reads_b_in_place(like, rows, k, b_row, itemsize)
    scratch = 0 if in_place else workspace_size(rows, columns, k, itemsize)
    return ProductCut(rows, columns, scratch, blocks, grain)


def _blocks_of(m: int, n: int, itemsize: int, wanted: int, in_lines: bool) -> tuple[int, int]:
    """Return the numbers of rows and columns of a block that give at least `wanted` blocks, if possible.

    Blocks hold whole tiles. A is contiguous along the depth if `in_lines`, and is then read in place. Every block of
    the same columns packs these columns of B, and every block of the same rows reads or packs these rows of A: of all
    cuts, the one with the least such work is chosen.
    """
    tile_width = 2 * VECTOR_BYTES // itemsize
    widest = NARROW_BYTES // itemsize if in_lines else n
    least, chosen = math.inf, (m, n)
    for parts in range(-(-n // widest), max(wanted, -(-n // widest)) + 1):
        columns = min(n, round_up(-(-n // parts), tile_width))
        across = -(-n // columns)
        rows = min(m, round_up(-(-m // -(-wanted // across)), TILE_ROWS))
        work = m * across * (_READING if in_lines else 1) + n * -(-m // rows)
        if work < least:
            least, chosen = work, (rows, columns)
    return chosen


def _shared_cut(m: int, n: int, k: int, itemsize: int, threads: int) -> ProductCut:
    tile_width = 2 * VECTOR_BYTES // itemsize
    height, width, depth = min(m, SHARED_ROWS), min(n, COLUMNS), min(k, PACKED_DEPTH)
    rows, columns = _even_part(height, ROWS, TILE_ROWS), _even_part(width, _GROUP_COLUMNS, tile_width)
    while -(-height // rows) * -(-width // columns) < _TILES_PER_THREAD * threads:
        if columns >= max(2 * tile_width, rows):
            columns = _even_part(width, columns // 2, tile_width)
        elif rows >= 2 * TILE_ROWS:
            rows = _even_part(height, rows // 2, TILE_ROWS)
        else:
            break
    row_groups, column_groups = -(-height // rows), -(-width // columns)
    blocks = -(-m // SHARED_ROWS) * -(-n // COLUMNS)
    phases = blocks * -(-k // PACKED_DEPTH)
    words = COUNTERS + 2 * phases + blocks * row_groups * column_groups
    vector = VECTOR_BYTES // itemsize
    panels = column_groups * columns * depth + row_groups * (rows * depth + vector)
    scratch = threads * TILE_ROWS * tile_width + 2 * panels + vector
    return ProductCut(rows, columns, scratch, threads, 1, phases, words)


def _even_part(size: int, largest: int, multiple: int) -> int:
    """Cut `size` evenly into parts of up to `largest`; return a part's size, rounded up to a multiple of `multiple`."""
    parts = -(-size // largest)
    return round_up(-(-size // parts), multiple)  # type: ignore[no-any-return]
