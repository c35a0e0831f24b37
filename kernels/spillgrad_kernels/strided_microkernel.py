"""The inner loop of a matrix product whose operands lie where they were computed, as LLVM vector code.

Where `microkernel.multiply_panels` wants both operands packed, this one reads A through any strides and rows of B any
distance apart, so that a tile of intermediate results is an operand, and its own transpose, as it is. Memory is
addressed by integers; `like` is an array of which only the dtype counts.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.compile import DISABLE_JIT, cgutils, intrinsic, types
from spillgrad_kernels.microkernel import TILE_ROWS, VECTOR_BYTES, tile_columns
from spillgrad_kernels.pointers import array_at

_TILE_VECTORS = 2
# The rows of A are read from this many pointers at few distances: one pointer a row would not fit the registers.
_POINTERS = 2

if DISABLE_JIT:

    def multiply_strided(
        like: np.ndarray, k: int, a: int, a_row: int, a_col: int, b: int, b_row: int, c: int, c_row: int,
        accumulate: bool,
    ) -> None:  # fmt: skip
        """Set or add to TILE_ROWS rows of C the product of as many rows of A, k long, and k rows of B.

        Rows of B and C are `tile_columns` contiguous elements; k is at least 1.
        """
        columns = tile_columns(like)
        for i in range(TILE_ROWS):
            product = np.zeros(columns, like.dtype)
            for d in range(k):
                product += array_at(like, a + i * a_row + d * a_col, 1)[0] * array_at(like, b + d * b_row, columns)
            row = array_at(like, c + i * c_row, columns)
            row[:] = row + product if accumulate else product

    def prefetch(address: int) -> None:
        """Ask for the cache line at `address`, which need not be readable."""

else:

    @intrinsic
    def prefetch(typing_context: Any, address: Any) -> Any:
        """Ask for the cache line at `address`, which need not be readable."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
            builder.call(function, [builder.inttoptr(arguments[0], byte), read, keep, data])
            return context.get_dummy_value()

        return types.void(types.intp), codegen

    @intrinsic
    def multiply_strided(
        typing_context: Any, like: Any, k: Any, a: Any, a_row: Any, a_col: Any, b: Any, b_row: Any, c: Any,
        c_row: Any, accumulate: Any,
    ) -> Any:  # fmt: skip
        """Set or add to TILE_ROWS rows of C the product of as many rows of A, k long, and k rows of B.

        Rows of B and C are `tile_columns` contiguous elements; k is at least 1. Each element is one chain of
        multiply-adds in the order of k, and one addition to C.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, k, a, a_row, a_col, b, b_row, c, c_row, accumulate = arguments
            integer = k.type
            lanes = VECTOR_BYTES * 8 // like.dtype.bitwidth
            scalar = ir.FloatType() if like.dtype.bitwidth == 32 else ir.DoubleType()
            vector = ir.VectorType(scalar, lanes)
            # fmuladd, not fma: without such an instruction the latter calls libm for every lane.
            fma = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(vector, [vector] * 3),
                f"llvm.fmuladd.v{lanes}f{like.dtype.bitwidth}",
            )

            def at(address: Any, kind: Any) -> Any:
                return builder.inttoptr(address, kind.as_pointer())

            def load(address: Any, kind: Any) -> Any:
                value = builder.load(at(address, kind))
                value.align = like.dtype.bitwidth // 8
                return value

            def splat(address: Any) -> Any:
                undefined = ir.Constant(vector, ir.Undefined)
                first = builder.insert_element(undefined, load(address, scalar), ir.Constant(ir.IntType(32), 0))
                everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
                return builder.shuffle_vector(first, undefined, everywhere)

            def times(value: Any, factor: int) -> Any:
                return builder.mul(value, ir.Constant(integer, factor))

            tile = [(i, j) for i in range(TILE_ROWS) for j in range(_TILE_VECTORS)]
            rows_apiece = TILE_ROWS // _POINTERS
            distances = [times(a_row, i) for i in range(rows_apiece)]
            starts = [builder.add(a, times(a_row, p * rows_apiece)) for p in range(_POINTERS)]
            entry, loop, done = builder.block, builder.append_basic_block("k"), builder.append_basic_block("done")
            builder.branch(loop)

            builder.position_at_end(loop)
            step, pb = builder.phi(integer), builder.phi(integer)
            pa = [builder.phi(integer) for _ in starts]
            sums = {place: builder.phi(vector) for place in tile}
            b_vectors = [load(builder.add(pb, ir.Constant(integer, j * VECTOR_BYTES)), vector) for j in range(2)]
            updated = {}
            for i in range(TILE_ROWS):
                a_element = splat(builder.add(pa[i // rows_apiece], distances[i % rows_apiece]))
                for j in range(_TILE_VECTORS):
                    updated[i, j] = builder.call(fma, [a_element, b_vectors[j], sums[i, j]])
            next_step = builder.add(step, ir.Constant(integer, 1))
            zero = ir.Constant(vector, [0.0] * lanes)
            for phi, first, following in (
                (step, ir.Constant(integer, 0), next_step),
                (pb, b, builder.add(pb, b_row)),
                *((p, start, builder.add(p, a_col)) for p, start in zip(pa, starts, strict=True)),
                *((sums[place], zero, updated[place]) for place in tile),
            ):
                phi.add_incoming(first, entry)
                phi.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", next_step, k), loop, done)

            builder.position_at_end(done)
            adds = builder.icmp_signed("!=", accumulate, ir.Constant(accumulate.type, 0))
            with builder.if_else(adds) as (add, overwrite):
                for branch, is_add in ((add, True), (overwrite, False)):
                    with branch:
                        for i, j in tile:
                            place = builder.add(builder.add(c, times(c_row, i)), ir.Constant(integer, j * VECTOR_BYTES))
                            value = updated[i, j]
                            if is_add:
                                value = builder.fadd(load(place, vector), value)
                            builder.store(value, at(place, vector)).align = like.dtype.bitwidth // 8
            return context.get_dummy_value()

        integers = [types.intp] * 8
        return types.void(like, *integers, types.boolean), codegen
