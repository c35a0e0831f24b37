"""The inner loops of the matrix product, as LLVM vector code: the auto-vectoriser reaches under half their speed.

Memory is addressed by integers, so that one machine code serves every layout. Each function takes `like`, an array of
which only the dtype counts. With `NUMBA_DISABLE_JIT=1` plain NumPy twins stand in.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

import ctypes
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir

from spillgrad_kernels.compile import DISABLE_JIT, carray, cgutils, intrinsic, overload, register_jitable, types


def _tile_of_host() -> tuple[int, int]:
    """Return the bytes of a vector register, and the rows of a tile: it must fit the registers beside a row of B."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 12
    if features.get("avx2") and features.get("fma"):
        return 32, 6
    return 16, 8 if features.get("neon") else 6


VECTOR_BYTES, TILE_ROWS = _tile_of_host()
_TILE_VECTORS = 2

# NumPy's C interface: the first field of an array object, behind what every Python object begins with.
_DATA_FIELD = object.__basicsize__


def address_of(array: np.ndarray) -> int:
    """Return the address of the first element: `array.ctypes.data`, at a seventh of its cost."""
    return ctypes.c_size_t.from_address(id(array) + _DATA_FIELD).value


def tile_columns(like: np.ndarray) -> int:
    """Return the columns of a tile of C: two vectors. A constant to LLVM, so that loops over it unroll."""
    return int(_TILE_VECTORS * VECTOR_BYTES // like.itemsize)


@overload(tile_columns)
def _tile_columns(like: Any) -> Any:
    columns: int = _TILE_VECTORS * VECTOR_BYTES * 8 // like.dtype.bitwidth

    def constant(like: Any) -> int:
        return columns

    return constant


if DISABLE_JIT:

    def array_at(like: np.ndarray, address: int, count: int) -> np.ndarray:
        """Return the `count` elements at `address` as a 1-D array."""
        memory = (ctypes.c_byte * int(count * like.itemsize)).from_address(int(address))
        return np.ndarray((count,), like.dtype, memoryview(memory))

    def multiply_panels(
        like: np.ndarray, k: int, a: int, b: int, b_row: int, c: int, c_row: int, accumulate: bool
    ) -> None:
        """Set or add to one tile of C the product of a packed panel of A and `k` rows of B.

        Rows of B and of C are `b_row` and `c_row` bytes apart.
        """
        columns = tile_columns(like)
        rows = np.stack([array_at(like, b + i * b_row, columns) for i in range(k)])
        product = array_at(like, a, k * TILE_ROWS).reshape(k, -1).T @ rows
        for i in range(TILE_ROWS):
            row = array_at(like, c + i * c_row, columns)
            row[:] = row + product[i] if accumulate else product[i]

    def multiply_in_place(
        like: np.ndarray, rows: int, columns: int, k: int, a: int, a_row: int, a_col: int, b: int, b_row: int,
        c: int, c_row: int, accumulate: bool,
    ) -> None:  # fmt: skip
        """Set or add to at most one tile of C the product of A and B where they lie; rows of B and C have no gaps."""
        for i in range(rows):
            row = array_at(like, c + i * c_row, columns)
            total = np.zeros(columns, like.dtype)
            for d in range(k):
                element = array_at(like, a + i * a_row + d * a_col, 1)[0]
                total += element * array_at(like, b + d * b_row, columns)
            row[:] = row + total if accumulate else total

    def copy_tile_line(like: np.ndarray, width: int, source: int, target: int) -> None:
        """Copy `width` consecutive elements; `width` is a tile's rows or columns."""
        array_at(like, target, width)[:] = array_at(like, source, width)

    def transpose_block(like: np.ndarray, source: int, stride: int, rows: int, target: int, width: int) -> None:
        """Copy `rows` runs of a vector, `stride` bytes apart, to columns `width` elements apart, padded with zeros."""
        lanes = VECTOR_BYTES // like.itemsize
        block = np.zeros((lanes, lanes), like.dtype)
        for i in range(rows):
            block[i] = array_at(like, source + i * stride, lanes)
        for lane in range(lanes):
            array_at(like, target + lane * width * like.itemsize, lanes)[:] = block[:, lane]

else:

    @intrinsic
    def _pointer_at(typing_context: Any, like: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

        return types.CPointer(like.dtype)(like, types.intp), codegen

    @register_jitable
    def array_at(like: np.ndarray, address: int, count: int) -> Any:
        """Return the `count` elements at `address` as a 1-D array."""
        return carray(_pointer_at(like, address), count)

    class _Emitter:
        """Writes vector instructions of one element type."""

        def __init__(self, builder: Any, dtype: Any) -> None:
            self.builder = builder
            self.bytes = dtype.bitwidth // 8
            self.lanes = VECTOR_BYTES // self.bytes
            self.scalar = ir.FloatType() if self.bytes == 4 else ir.DoubleType()
            self.vector = ir.VectorType(self.scalar, self.lanes)
            self.zero = ir.Constant(self.vector, [0.0] * self.lanes)
            fma_type = ir.FunctionType(self.vector, [self.vector] * 3)
            # fmuladd, not fma: without such an instruction the latter calls libm for every lane.
            name = f"llvm.fmuladd.v{self.lanes}f{dtype.bitwidth}"
            self._fma = cgutils.get_or_insert_function(builder.module, fma_type, name)

        def fma(self, x: Any, y: Any, z: Any) -> Any:
            return self.builder.call(self._fma, [x, y, z])

        def shifted(self, address: Any, elements: int) -> Any:
            return self.builder.add(address, ir.Constant(address.type, elements * self.bytes))

        def load(self, address: Any, lanes: int = 0) -> Any:
            vector = ir.VectorType(self.scalar, lanes or self.lanes)
            value = self.builder.load(self.builder.inttoptr(address, vector.as_pointer()))
            value.align = self.bytes
            return value

        def store(self, value: Any, address: Any) -> None:
            self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer())).align = self.bytes

        def _masked(self, name: str, result: Any, value: Any, address: Any, mask: Any, last: Any) -> Any:
            pointer = self.vector.as_pointer()
            operands = [value] if value is not None else []
            operands += [self.builder.inttoptr(address, pointer), ir.IntType(32)(self.bytes), mask, *last]
            suffix = f"v{self.lanes}f{8 * self.bytes}.p0"
            kind = ir.FunctionType(result, [operand.type for operand in operands])
            function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.{name}.{suffix}")
            return self.builder.call(function, operands)

        def load_some(self, address: Any, mask: Any) -> Any:
            return self._masked("load", self.vector, None, address, mask, [self.zero])

        def store_some(self, value: Any, address: Any, mask: Any) -> None:
            self._masked("store", ir.VoidType(), value, address, mask, [])

        def first_lanes(self, count: Any) -> Any:
            """Return the mask of the first `count` lanes: all or none where it is more or less than that."""
            lanes = ir.VectorType(count.type, self.lanes)
            undefined = ir.Constant(lanes, ir.Undefined)
            first = self.builder.insert_element(undefined, count, ir.Constant(ir.IntType(32), 0))
            counts = self.shuffle(first, undefined, [0] * self.lanes)
            return self.builder.icmp_signed("<", ir.Constant(lanes, list(range(self.lanes))), counts)

        def splat_flag(self, flag: Any) -> Any:
            """Return the mask of all lanes, or of none."""
            mask = ir.VectorType(ir.IntType(1), self.lanes)
            return self.builder.select(flag, ir.Constant(mask, [1] * self.lanes), ir.Constant(mask, [0] * self.lanes))

        def prefetch(self, address: Any) -> None:
            i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
            function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
            self.builder.call(function, [self.builder.inttoptr(address, pointer), i32(1), i32(3), i32(1)])

        def splat(self, address: Any) -> Any:
            undefined = ir.Constant(self.vector, ir.Undefined)
            value = self.builder.load(self.builder.inttoptr(address, self.scalar.as_pointer()))
            first = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
            return self.shuffle(first, undefined, [0] * self.lanes)

        def shuffle(self, x: Any, y: Any, lanes: list[int]) -> Any:
            return self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), lanes))

        def sums_of_products(
            self, k: Any, a: tuple[Any, Any], b: tuple[Any, Any], a_at: Any, b_at: Any, vectors: int
        ) -> dict[tuple[int, int], Any]:
            """Return a tile's vectors: for each row i and vector j the sum over k of A's element i times B's vector j.

            `a` and `b` are address and step; `a_at` gives the address of an element, `b_at` loads a vector.
            """
            builder, integer = self.builder, k.type
            tile = [(i, j) for i in range(TILE_ROWS) for j in range(vectors)]
            entry, loop, done = builder.block, builder.append_basic_block("k"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            step, pa, pb = builder.phi(integer), builder.phi(integer), builder.phi(integer)
            sums = {at: builder.phi(self.vector) for at in tile}
            b_vectors = [b_at(pb, j) for j in range(vectors)]
            updated = {}
            for i in range(TILE_ROWS):
                a_element = self.splat(a_at(pa, i))
                for j in range(vectors):
                    updated[i, j] = self.fma(a_element, b_vectors[j], sums[i, j])
            next_step = builder.add(step, ir.Constant(integer, 1))
            following_b = builder.add(pb, b[1])
            for phi, first, following in (
                (step, ir.Constant(integer, 0), next_step),
                (pa, a[0], builder.add(pa, a[1])),
                (pb, b[0], following_b),
                *((sums[at], self.zero, updated[at]) for at in tile),
            ):
                phi.add_incoming(first, entry)
                phi.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", next_step, k), loop, done)
            builder.position_at_end(done)
            return updated

        def interleave(self, x: Any, y: Any) -> list[Any]:
            pairs = [lane for i in range(self.lanes) for lane in (i, i + self.lanes)]
            return [self.shuffle(x, y, pairs[: self.lanes]), self.shuffle(x, y, pairs[self.lanes :])]

    @intrinsic
    def multiply_panels(
        typing_context: Any, like: Any, k: Any, a: Any, b: Any, b_row: Any, c: Any, c_row: Any, accumulate: Any
    ) -> Any:
        """Set or add to one tile of C the product of a packed panel of A and `k` rows of B.

        Rows of B and of C are `b_row` and `c_row` bytes apart. Each element is one chain of multiply-adds in the
        order of k, and one addition to C.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, k, a, b, b_row, c, c_row, accumulate = arguments
            emit = _Emitter(builder, like.dtype)
            integer = k.type
            # The tile of C is needed only at the end: fetch it into the cache meanwhile.
            for i in range(TILE_ROWS):
                row = builder.add(c, builder.mul(c_row, ir.Constant(integer, i)))
                emit.prefetch(row)
                emit.prefetch(emit.shifted(row, (_TILE_VECTORS - 1) * emit.lanes))
            updated = emit.sums_of_products(
                k,
                (a, ir.Constant(integer, TILE_ROWS * emit.bytes)),
                (b, b_row),
                lambda pa, i: emit.shifted(pa, i),
                lambda pb, j: emit.load(emit.shifted(pb, j * emit.lanes)),
                _TILE_VECTORS,
            )
            adds = builder.icmp_signed("!=", accumulate, ir.Constant(accumulate.type, 0))
            with builder.if_else(adds) as (add, overwrite):
                for branch, is_add in ((add, True), (overwrite, False)):
                    with branch:
                        for i, j in updated:
                            row = builder.add(c, builder.mul(c_row, ir.Constant(integer, i)))
                            address = emit.shifted(row, j * emit.lanes)
                            value = updated[i, j]
                            emit.store(builder.fadd(emit.load(address), value) if is_add else value, address)
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 6, types.boolean), codegen

    @intrinsic
    def multiply_in_place(
        typing_context: Any, like: Any, rows: Any, columns: Any, k: Any, a: Any, a_row: Any, a_col: Any, b: Any,
        b_row: Any, c: Any, c_row: Any, accumulate: Any,
    ) -> Any:  # fmt: skip
        """Set or add to at most one tile of C the product of A and B where they lie.

        `rows` and `columns` are at most a tile's and at least 1; rows of B and C have no gaps. Sums as in
        `multiply_panels`, to the bit.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, rows, columns, k, a, a_row, a_col, b, b_row, c, c_row, accumulate = arguments
            emit = _Emitter(builder, like.dtype)
            integer = k.type
            # Rows that are not there are computed from the last one and not stored.
            last = builder.sub(rows, ir.Constant(integer, 1))
            offsets = []
            for i in range(TILE_ROWS):
                row = ir.Constant(integer, i)
                offsets.append(builder.mul(builder.select(builder.icmp_signed("<", row, rows), row, last), a_row))
            adds = builder.icmp_signed("!=", accumulate, ir.Constant(accumulate.type, 0))
            is_narrow = builder.icmp_signed("<=", columns, ir.Constant(integer, emit.lanes))
            with builder.if_else(is_narrow) as (narrow, wide):
                for branch, vectors in ((narrow, 1), (wide, _TILE_VECTORS)):
                    with branch:
                        counts = [builder.sub(columns, ir.Constant(integer, j * emit.lanes)) for j in range(vectors)]
                        masks = [emit.first_lanes(count) for count in counts]
                        sums = emit.sums_of_products(
                            k,
                            (a, a_col),
                            (b, b_row),
                            lambda pa, i: builder.add(pa, offsets[i]),
                            lambda pb, j, masks=masks: emit.load_some(emit.shifted(pb, j * emit.lanes), masks[j]),
                            vectors,
                        )
                        for i in range(TILE_ROWS):
                            with builder.if_then(builder.icmp_signed("<", ir.Constant(integer, i), rows)):
                                for j in range(vectors):
                                    row = builder.add(c, builder.mul(c_row, ir.Constant(integer, i)))
                                    address = emit.shifted(row, j * emit.lanes)
                                    mask = builder.and_(masks[j], emit.splat_flag(adds))
                                    before = emit.load_some(address, mask)
                                    total = builder.select(adds, builder.fadd(before, sums[i, j]), sums[i, j])
                                    emit.store_some(total, address, masks[j])
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 10, types.boolean), codegen

    @intrinsic
    def copy_tile_line(typing_context: Any, like: Any, width: Any, source: Any, target: Any) -> Any:
        """Copy `width` consecutive elements; `width` is a tile's rows or columns."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, width, source, target = arguments
            emit = _Emitter(builder, like.dtype)
            is_row = builder.icmp_signed("==", width, ir.Constant(width.type, TILE_ROWS))
            with builder.if_else(is_row) as (rows, columns):
                for branch, lanes in ((rows, TILE_ROWS), (columns, _TILE_VECTORS * emit.lanes)):
                    with branch:
                        emit.store(emit.load(source, lanes), target)
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 3), codegen

    @intrinsic
    def transpose_block(
        typing_context: Any, like: Any, source: Any, stride: Any, rows: Any, target: Any, width: Any
    ) -> Any:
        """Copy `rows` runs of a vector, `stride` bytes apart, to columns `width` elements apart, padded with zeros.

        Without rows it fills with zeros, but `source` must be readable still. Columns are stored in ascending order,
        each a full vector: where `width` is less, the next overwrites the excess.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, source, stride, rows, target, width = arguments
            emit = _Emitter(builder, like.dtype)
            integer = source.type
            vectors = []
            for i in range(emit.lanes):
                # A run that is not there is read from the first one and then replaced, which costs less than a branch.
                present = builder.icmp_signed("<", ir.Constant(integer, i), rows)
                offset = builder.mul(stride, ir.Constant(integer, i))
                run = emit.load(builder.add(source, builder.select(present, offset, ir.Constant(integer, 0))))
                vectors.append(builder.select(present, run, emit.zero))
            half = emit.lanes // 2
            for _ in range(emit.lanes.bit_length() - 1):
                vectors = [v for i in range(half) for v in emit.interleave(vectors[i], vectors[i + half])]
            column_bytes = builder.mul(width, ir.Constant(integer, emit.bytes))
            for vector in vectors:
                emit.store(vector, target)
                target = builder.add(target, column_bytes)
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 5), codegen
