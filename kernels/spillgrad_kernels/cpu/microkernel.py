"""The inner loops of the matrix product, as LLVM vector code: LLVM's auto-vectoriser reaches under half their speed.

`a`, `b`, `c` and `addend` are addresses, so that one machine code serves every layout. `a_row`, `b_row`, `c_row` and
`addend_row` are the row strides of these matrices in bytes; `a_col` is the column stride of A. `like` tells the dtype,
as in `product_tile.py`. With `NUMBA_DISABLE_JIT=1`, plain NumPy functions take the place of LLVM's code.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import (
    BFLOAT16_PAIR,
    TILE_ROWS,
    TILE_VECTORS,
    VECTOR_BYTES,
    sums_of,
    tile_columns,
)
from spillgrad_kernels.cpu.vector_instructions import Emitter, prefetch_line, vector_code
from spillgrad_kernels.jit.compile import DISABLE_JIT, cgutils, emitted, types

# Rows of a strided A are read through this many pointers; each serves several rows at fixed distances. A pointer per
# row would need too many registers.
_POINTERS = 2
# Rows of a gathered A lie in runs of this many. The runs of a tile have a pointer each.
RUN = 4 if TILE_ROWS % 4 == 0 else 2
_INT64 = np.zeros(1, np.int64)


if DISABLE_JIT:

    def _numbers(array: np.ndarray) -> np.ndarray:
        """Return an array of bfloat16 pairs as float32 numbers; return an array of other numbers unchanged.

        The first axis becomes twice as long: pair i becomes rows 2i and 2i + 1.
        """
        if array.dtype != BFLOAT16_PAIR:
            return array
        halves = np.stack([array << np.uint32(16), array & np.uint32(0xFFFF0000)], 1)
        return halves.reshape(-1, *array.shape[1:]).view(np.float32)

    def multiply_panels(
        like: np.ndarray, k: int, a: int, b: int, b_row: int, c: int, c_row: int, addend: int, addend_row: int
    ) -> None:
        """Set a tile of C to the product of a packed panel of A and `k` rows of B, plus the addend's tile.

        If `addend` is 0, nothing is added. An element of C is a chain of multiply-adds in the order of k, then one
        addition of the addend.
        """
        columns = tile_columns(like)
        rows = _numbers(np.stack([array_at(like, b + i * b_row, columns) for i in range(k)]))
        product = np.zeros((TILE_ROWS, columns), rows.dtype)
        for elements, row in zip(_numbers(array_at(like, a, k * TILE_ROWS).reshape(k, -1)), rows, strict=True):
            product += elements[:, None] * row  # in the order of k, as in `multiply_in_place`; BLAS has another order
        for i in range(TILE_ROWS):
            added = array_at(sums_of(like), addend + i * addend_row, columns) if addend else 0
            array_at(sums_of(like), c + i * c_row, columns)[:] = added + product[i]

    def multiply_in_place(
        like: np.ndarray, rows: int, columns: int, k: int, a: int, a_row: int, a_col: int, b: int, b_row: int,
        c: int, c_row: int, addend: int, addend_row: int,
    ) -> None:  # fmt: skip
        """Compute at most a tile of C as `multiply_panels` does, to the bit, from an A and a B that are not packed.

        The part of C has `rows` x `columns` elements; both numbers are at least 1. Rows of B, C and the addend are
        contiguous.
        """
        for i in range(rows):
            total = np.zeros(columns, like.dtype)
            for d in range(k):
                element = array_at(like, a + i * a_row + d * a_col, 1)[0]
                total += element * array_at(like, b + d * b_row, columns)
            added = array_at(like, addend + i * addend_row, columns) if addend else 0
            array_at(like, c + i * c_row, columns)[:] = added + total

    def multiply_strided(
        like: np.ndarray, k: int, a: int, a_row: int, a_col: int, b: int, b_row: int, c: int, c_row: int,
        addend: int, addend_row: int,
    ) -> None:  # fmt: skip
        """Compute a tile of C as `multiply_panels` does, from an A of any strides that is not packed."""
        columns = tile_columns(like)
        multiply_in_place(like, TILE_ROWS, columns, k, a, a_row, a_col, b, b_row, c, c_row, addend, addend_row)

    def multiply_gathered(
        like: np.ndarray, vectors: int, k: int, a: int, a_row: int, runs: int, steps: int, b: int, c: int, c_row: int,
        addend: int, addend_row: int,
    ) -> None:  # fmt: skip
        """Compute a tile of C as `multiply_panels` does, from an A whose rows lie in runs.

        A run is `RUN` rows, `a_row` bytes apart. Element d of the first row of run r is at address `a` + `runs`[r] +
        `steps`[d]; `runs` and `steps` are addresses of int64 numbers. The tile is `vectors` vectors wide, 1 or 2. Rows
        of B are packed next to each other.
        """
        columns = tile_columns(like) * vectors // TILE_VECTORS
        rows_of_b = array_at(like, b, k * columns).reshape(k, columns)
        product = np.zeros((TILE_ROWS, columns), like.dtype)
        places = [run + i * a_row for run in array_at(_INT64, runs, TILE_ROWS // RUN) for i in range(RUN)]
        for step, row in zip(array_at(_INT64, steps, k), rows_of_b, strict=True):
            product += np.stack([array_at(like, a + place + step, 1) for place in places]) * row
        for i in range(TILE_ROWS):
            added = array_at(like, addend + i * addend_row, columns) if addend else 0
            array_at(like, c + i * c_row, columns)[:] = added + product[i]

    def prefetch(address: int) -> None:
        """Load the cache line at `address` into the cache; the address need not be valid."""

    def copy_tile_line(like: np.ndarray, width: int, source: int, target: int) -> None:
        """Copy `width` elements from address `source` to `target`: a tile's number of rows, or one or two vectors."""
        array_at(like, target, width)[:] = array_at(like, source, width)

    def transpose_block(like: np.ndarray, source: int, stride: int, rows: int, target: int, width: int) -> None:
        """Transpose `rows` vectors, `stride` bytes apart at address `source`, into columns at address `target`.

        Columns are `width` elements apart, and are stored in ascending order, each as a full vector, padded with zeros.
        If a vector is longer than `width`, the next column overwrites the excess.
        """
        lanes = VECTOR_BYTES // like.itemsize
        block = np.zeros((lanes, lanes), like.dtype)
        for i in range(rows):
            block[i] = array_at(like, source + i * stride, lanes)
        for lane in range(lanes):
            array_at(like, target + lane * width * like.itemsize, lanes)[:] = block[:, lane]

else:

    @vector_code
    def multiply_panels(
        emit: Emitter, k: Any, a: Any, b: Any, b_row: Any, c: Any, c_row: Any, addend: Any, addend_row: Any
    ) -> None:
        builder, integer = emit.builder, k.type
        # The tile of C is needed only at the end, so it is loaded into the cache meanwhile.
        for i in range(TILE_ROWS):
            row = builder.add(c, builder.mul(c_row, ir.Constant(integer, i)))
            prefetch_line(builder, row, to_write=True)
            prefetch_line(builder, emit.shifted(row, (TILE_VECTORS - 1) * emit.lanes), to_write=True)
        sums = emit.sums_of_products(
            k, ([a], ir.Constant(integer, TILE_ROWS * emit.bytes)), (b, b_row),
            lambda pa, i: emit.shifted(pa[0], i), emit.load_nth, TILE_ROWS, TILE_VECTORS,
        )  # fmt: skip
        emit.store_tile(sums, c, c_row, addend, addend_row)

    @vector_code
    def multiply_strided(
        emit: Emitter, k: Any, a: Any, a_row: Any, a_col: Any, b: Any, b_row: Any, c: Any, c_row: Any, addend: Any,
        addend_row: Any,
    ) -> None:  # fmt: skip
        builder = emit.builder
        rows_apiece = TILE_ROWS // _POINTERS
        distances = [builder.mul(a_row, ir.Constant(k.type, i)) for i in range(TILE_ROWS)]
        starts = [builder.add(a, distances[p * rows_apiece]) for p in range(_POINTERS)]
        sums = emit.sums_of_products(
            k, (starts, a_col), (b, b_row),
            lambda pa, i: builder.add(pa[i // rows_apiece], distances[i % rows_apiece]),
            emit.load_nth, TILE_ROWS, TILE_VECTORS,
        )  # fmt: skip
        emit.store_tile(sums, c, c_row, addend, addend_row)

    @vector_code
    def multiply_gathered(
        emit: Emitter, vectors: Any, k: Any, a: Any, a_row: Any, runs: Any, steps: Any, b: Any, c: Any, c_row: Any,
        addend: Any, addend_row: Any,
    ) -> None:  # fmt: skip
        builder, integer = emit.builder, k.type
        size = _INT64.itemsize

        def number(address: Any) -> Any:
            return builder.load(builder.inttoptr(address, integer.as_pointer()))

        starts = [builder.add(a, number(builder.add(runs, integer(r * size)))) for r in range(TILE_ROWS // RUN)]
        distances = [builder.mul(a_row, integer(i)) for i in range(RUN)]

        def a_at(pa: list[Any], i: int) -> Any:
            return builder.add(builder.add(starts[i // RUN], number(pa[0])), distances[i % RUN])

        is_narrow = builder.icmp_signed("==", vectors, integer(1))
        with builder.if_else(is_narrow) as (narrow, wide):
            for branch, width in ((narrow, 1), (wide, TILE_VECTORS)):
                with branch:
                    b_row = integer(width * emit.lanes * emit.bytes)
                    sums = emit.sums_of_products(
                        k, ([steps], integer(size)), (b, b_row), a_at, emit.load_nth, TILE_ROWS, width
                    )
                    emit.store_tile(sums, c, c_row, addend, addend_row)

    @emitted(lambda address: types.void(types.intp))
    def prefetch(builder: Any, address: Any) -> None:
        prefetch_line(builder, address, to_write=False)

    @vector_code
    def multiply_in_place(
        emit: Emitter, rows: Any, columns: Any, k: Any, a: Any, a_row: Any, a_col: Any, b: Any, b_row: Any, c: Any,
        c_row: Any, addend: Any, addend_row: Any,
    ) -> None:  # fmt: skip
        builder, integer = emit.builder, k.type
        adds = cgutils.is_not_null(builder, addend)

        def multiply(tile_rows: int, vectors: int) -> None:
            """Emit the code for a tile of at most `tile_rows` rows and `vectors` vectors."""
            # In place of missing rows, the last row is computed again and not stored.
            last = builder.sub(rows, ir.Constant(integer, 1))
            present = [builder.icmp_signed("<", ir.Constant(integer, i), rows) for i in range(tile_rows)]
            nearest = [builder.select(flag, ir.Constant(integer, i), last) for i, flag in enumerate(present)]
            offsets = [builder.mul(row, a_row) for row in nearest]
            counts = [builder.sub(columns, ir.Constant(integer, j * emit.lanes)) for j in range(vectors)]
            masks = [emit.first_lanes(count) for count in counts]

            def b_at(pb: Any, j: int) -> Any:
                # The next tile begins beside this tile. If rows are long, no hardware prefetcher foresees this.
                prefetch_line(builder, emit.shifted(pb, (j + vectors) * emit.lanes), to_write=False)
                return emit.load_some(emit.shifted(pb, j * emit.lanes), masks[j])

            sums = emit.sums_of_products(
                k, ([a], a_col), (b, b_row), lambda pa, i: builder.add(pa[0], offsets[i]), b_at, tile_rows, vectors
            )
            for i in range(tile_rows):
                with builder.if_then(present[i]):
                    for j in range(vectors):
                        row = builder.add(addend, builder.mul(addend_row, ir.Constant(integer, i)))
                        mask = builder.and_(masks[j], emit.splat_flag(adds))
                        added = emit.load_some(emit.shifted(row, j * emit.lanes), mask)
                        total = builder.select(adds, builder.fadd(added, sums[i, j]), sums[i, j])
                        row = builder.add(c, builder.mul(c_row, ir.Constant(integer, i)))
                        emit.store_some(total, emit.shifted(row, j * emit.lanes), masks[j])

        def multiply_lower(heights: list[int]) -> None:
            """Emit the code that chooses the lowest tile height in `heights` that has enough rows."""
            is_narrow = builder.icmp_signed("<=", columns, ir.Constant(integer, emit.lanes))
            if len(heights) > 1:
                is_low = builder.icmp_signed("<=", rows, ir.Constant(integer, heights[0]))
                with builder.if_else(is_low) as (low, high):
                    with low:
                        multiply_lower(heights[:1])
                    with high:
                        multiply_lower(heights[1:])
                return
            with builder.if_else(is_narrow) as (narrow, wide):
                with narrow:
                    multiply(heights[0], 1)
                with wide:
                    multiply(heights[0], TILE_VECTORS)

        multiply_lower([-(-TILE_ROWS // 3), -(-2 * TILE_ROWS // 3), TILE_ROWS])

    @vector_code
    def copy_tile_line(emit: Emitter, width: Any, source: Any, target: Any) -> None:
        builder = emit.builder
        done = builder.append_basic_block("copied")
        switch = builder.switch(width, done)
        for lanes in sorted({TILE_ROWS, emit.lanes, TILE_VECTORS * emit.lanes}):
            block = builder.append_basic_block(f"of{lanes}")
            switch.add_case(ir.Constant(width.type, lanes), block)
            with builder.goto_block(block):
                emit.store(emit.load(source, lanes), target)
                builder.branch(done)
        builder.position_at_end(done)

    @vector_code
    def transpose_block(emit: Emitter, source: Any, stride: Any, rows: Any, target: Any, width: Any) -> None:
        builder, integer = emit.builder, source.type
        column_bytes = builder.mul(width, ir.Constant(integer, emit.bytes))
        done = builder.append_basic_block("transposed")
        fewer = builder.append_basic_block("fewer")
        # Blocks of whole panels, which are nearly all, need no masks.
        counts = {emit.lanes, TILE_ROWS % emit.lanes or emit.lanes}
        ways = {count: builder.append_basic_block(f"of{count}") for count in counts}
        switch = builder.switch(rows, fewer)
        for count, block in ways.items():
            switch.add_case(ir.Constant(integer, count), block)
        for count, block in [*ways.items(), (None, fewer)]:
            builder.position_at_end(block)
            vectors = []
            for i in range(emit.lanes):
                run = builder.add(source, builder.mul(stride, ir.Constant(integer, i)))
                if count is None:
                    mask = emit.splat_flag(builder.icmp_signed("<", ir.Constant(integer, i), rows))
                    vectors.append(emit.load_some(run, mask))
                else:
                    vectors.append(emit.load_sums(run) if i < count else emit.zero)
            half = emit.lanes // 2
            for _ in range(emit.lanes.bit_length() - 1):
                vectors = [v for i in range(half) for v in emit.interleave(vectors[i], vectors[i + half])]
            place = target
            for vector in vectors:
                emit.store(vector, place)
                place = builder.add(place, column_bytes)
            builder.branch(done)
        builder.position_at_end(done)
