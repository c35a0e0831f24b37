"""The inner loops of the matrix product, as LLVM vector code: the auto-vectoriser reaches under half their speed.

Memory is addressed by integers, so that one machine code serves every layout. Each function takes `like`, an array of
which only the dtype counts: that of A and B, and of C unless it is `BFLOAT16_PAIR`. Such an element holds two bfloat16
numbers, the first in its low half. The product of two elements is the sum of both halves' products in float32, which
is then the dtype of C. With `NUMBA_DISABLE_JIT=1` plain NumPy functions stand in.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

import os
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.jit.compile import DISABLE_JIT, cgutils, intrinsic, overload, types


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
# Where A lies strided, its rows are read from this many pointers at few distances: one a row would not fit registers.
_POINTERS = 2


def _multiplies_pairs() -> bool:
    """Say whether the processor that code is made for has an instruction for pairs of bfloat16 (AVX512-BF16)."""
    asked_for = os.environ.get("NUMBA_CPU_FEATURES")
    if asked_for is None:
        return VECTOR_BYTES == 64 and bool(llvmlite.binding.get_host_cpu_features().get("avx512bf16"))
    return VECTOR_BYTES == 64 and "+avx512bf16" in asked_for


def tile_columns(like: np.ndarray) -> int:
    """Return the columns of a tile of C: two vectors. A constant to LLVM, so that loops over it unroll."""
    return int(_TILE_VECTORS * VECTOR_BYTES // like.itemsize)


@overload(tile_columns)
def _tile_columns(like: Any) -> Any:
    columns: int = _TILE_VECTORS * VECTOR_BYTES * 8 // like.dtype.bitwidth

    def constant(like: Any) -> int:
        return columns

    return constant


# The dtype of packed elements that hold two bfloat16 numbers, neighbours along the depth of a product. No other operand
# of a product has this dtype. Then bfloat16 numbers, by their bits, and the dtype that their products add up in.
BFLOAT16_PAIR = np.dtype(np.uint32)
HALVES = np.zeros(1, np.uint16)
_SUMS = np.zeros(1, np.float32)
_FLOAT64 = np.zeros(1, np.float64)


def numbers_in(like: np.ndarray) -> int:
    """Return the number of numbers in an element, neighbours along the depth of a product: 1, or 2 for a pair."""
    return 2 if like.dtype == BFLOAT16_PAIR else 1


def numbers_of(like: np.ndarray) -> np.ndarray:
    """Return an array of the numbers that elements consist of."""
    return HALVES if like.dtype == BFLOAT16_PAIR else like


def sums_of(like: np.ndarray) -> np.ndarray:
    """Return an array of the dtype that products of numbers add up in."""
    return _SUMS if like.dtype == BFLOAT16_PAIR else like


def like_of(array: np.ndarray) -> np.ndarray:
    """Return the array of float32 or float64 that stands for its dtype, so that a function of it is compiled once."""
    return array


def is_pair(dtype: Any) -> bool:
    """Return whether Numba's type of packed elements is that of `BFLOAT16_PAIR`."""
    return bool(dtype.name == BFLOAT16_PAIR.name)


overload(numbers_in)(lambda like: (lambda like: 2) if is_pair(like.dtype) else (lambda like: 1))
overload(numbers_of)(lambda like: (lambda like: HALVES) if is_pair(like.dtype) else (lambda like: like))
overload(sums_of)(lambda like: (lambda like: _SUMS) if is_pair(like.dtype) else (lambda like: like))
overload(like_of)(lambda array: (lambda array: _SUMS) if array.dtype == types.float32 else (lambda array: _FLOAT64))


if DISABLE_JIT:

    def widened(number: Any) -> Any:
        """Return a number as what its products add up in."""
        if number.dtype != np.uint16:
            return number
        return np.array(np.uint32(number) << np.uint32(16)).view(np.float32)[()]

    def _numbers(array: np.ndarray) -> np.ndarray:
        """Return the halves of pairs along the first axis, as floats; other numbers as they are."""
        if array.dtype != BFLOAT16_PAIR:
            return array
        halves = np.stack([array << np.uint32(16), array & np.uint32(0xFFFF0000)], 1)
        return halves.reshape(-1, *array.shape[1:]).view(np.float32)

    def multiply_panels(
        like: np.ndarray, k: int, a: int, b: int, b_row: int, c: int, c_row: int, addend: int, addend_row: int
    ) -> None:
        """Set one tile of C to the product of a packed panel of A and `k` rows of B, plus a tile at `addend` unless 0.

        Rows of B, C and the addend are `b_row`, `c_row` and `addend_row` bytes apart.
        """
        columns = tile_columns(like)
        rows = _numbers(np.stack([array_at(like, b + i * b_row, columns) for i in range(k)]))
        product = np.zeros((TILE_ROWS, columns), rows.dtype)
        for elements, row in zip(_numbers(array_at(like, a, k * TILE_ROWS).reshape(k, -1)), rows, strict=True):
            product += elements[:, None] * row  # in the order of k, as `multiply_in_place`: BLAS has one of its own
        for i in range(TILE_ROWS):
            added = array_at(sums_of(like), addend + i * addend_row, columns) if addend else 0
            array_at(sums_of(like), c + i * c_row, columns)[:] = added + product[i]

    def multiply_in_place(
        like: np.ndarray, rows: int, columns: int, k: int, a: int, a_row: int, a_col: int, b: int, b_row: int,
        c: int, c_row: int, addend: int, addend_row: int,
    ) -> None:  # fmt: skip
        """Do as `multiply_panels` for at most one tile, A and B where they lie; rows but of A have no gaps."""
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
        """Do as `multiply_panels` with A read through any strides."""
        columns = tile_columns(like)
        multiply_in_place(like, TILE_ROWS, columns, k, a, a_row, a_col, b, b_row, c, c_row, addend, addend_row)

    def prefetch(address: int) -> None:
        """Ask for the cache line at `address`, which need not be readable."""

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
    def widened(typing_context: Any, number: Any) -> Any:
        """Return a number as what its products add up in."""
        is_half = number == types.uint16

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if not is_half:
                return arguments[0]
            word = ir.IntType(32)
            bits = builder.shl(builder.zext(arguments[0], word), ir.Constant(word, 16))
            return builder.bitcast(bits, ir.FloatType())

        return (types.float32 if is_half else number)(number), codegen

    class _BFloat(ir.types.Type):  # type: ignore[misc]
        """LLVM's bfloat, which llvmlite has no class for."""

        def _to_string(self) -> str:
            return "bfloat"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, _BFloat)

        def __hash__(self) -> int:
            return hash(_BFloat)

    def _prefetch(builder: Any, address: Any, to_write: bool) -> None:
        i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(address, pointer), i32(int(to_write)), i32(3), i32(1)])

    class _Emitter:
        """Writes vector instructions of one element type."""

        def __init__(self, builder: Any, dtype: Any) -> None:
            self.builder = builder
            self.bytes = dtype.bitwidth // 8
            self.lanes = VECTOR_BYTES // self.bytes
            self.is_pairs = is_pair(dtype)
            number = ir.FloatType() if self.bytes == 4 else ir.DoubleType()
            self.scalar = ir.IntType(32) if self.is_pairs else number
            self.vector = ir.VectorType(self.scalar, self.lanes)
            self.sums = ir.VectorType(number, self.lanes)
            self.zero = ir.Constant(self.sums, [0.0] * self.lanes)
            fma_type = ir.FunctionType(self.sums, [self.sums] * 3)
            # fmuladd, not fma: without such an instruction the latter calls libm for every lane.
            name = f"llvm.fmuladd.v{self.lanes}f{dtype.bitwidth}"
            self._fma = cgutils.get_or_insert_function(builder.module, fma_type, name)

        def fma(self, x: Any, y: Any, z: Any) -> Any:
            if self.is_pairs:
                return self._add_pairs(x, y, z)
            return self.builder.call(self._fma, [x, y, z])

        def _add_pairs(self, x: Any, y: Any, z: Any) -> Any:
            if _multiplies_pairs():
                halves = ir.VectorType(_BFloat(), 2 * self.lanes)
                kind = ir.FunctionType(self.sums, [self.sums, halves, halves])
                dot = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
                return self.builder.call(dot, [z, self.builder.bitcast(x, halves), self.builder.bitcast(y, halves)])
            for half in (self._low_halves, self._high_halves):
                z = self.builder.call(self._fma, [half(x), half(y), z])
            return z

        def _low_halves(self, pairs: Any) -> Any:
            pairs = self.builder.bitcast(pairs, self.vector)
            bits = self.builder.shl(pairs, ir.Constant(self.vector, [16] * self.lanes))
            return self.builder.bitcast(bits, self.sums)

        def _high_halves(self, pairs: Any) -> Any:
            pairs = self.builder.bitcast(pairs, self.vector)
            bits = self.builder.and_(pairs, ir.Constant(self.vector, [0xFFFF0000] * self.lanes))
            return self.builder.bitcast(bits, self.sums)

        def shifted(self, address: Any, elements: int) -> Any:
            return self.builder.add(address, ir.Constant(address.type, elements * self.bytes))

        def load(self, address: Any, lanes: int = 0) -> Any:
            return self._load(address, ir.VectorType(self.scalar, lanes or self.lanes))

        def load_nth(self, address: Any, vector: int) -> Any:
            return self.load(self.shifted(address, vector * self.lanes))

        def load_sums(self, address: Any) -> Any:
            return self._load(address, self.sums)

        def _load(self, address: Any, vector: Any) -> Any:
            value = self.builder.load(self.builder.inttoptr(address, vector.as_pointer()))
            value.align = self.bytes
            return value

        def store(self, value: Any, address: Any) -> None:
            self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer())).align = self.bytes

        def _masked(self, name: str, result: Any, value: Any, address: Any, mask: Any, last: Any) -> Any:
            pointer = self.sums.as_pointer()
            operands = [value] if value is not None else []
            operands += [self.builder.inttoptr(address, pointer), ir.IntType(32)(self.bytes), mask, *last]
            suffix = f"v{self.lanes}f{8 * self.bytes}.p0"
            kind = ir.FunctionType(result, [operand.type for operand in operands])
            function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.{name}.{suffix}")
            return self.builder.call(function, operands)

        def load_some(self, address: Any, mask: Any) -> Any:
            return self._masked("load", self.sums, None, address, mask, [self.zero])

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

        def splat(self, address: Any) -> Any:
            undefined = ir.Constant(self.vector, ir.Undefined)
            value = self._load(address, self.scalar)
            first = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
            return self.shuffle(first, undefined, [0] * self.lanes)

        def shuffle(self, x: Any, y: Any, lanes: list[int]) -> Any:
            return self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), lanes))

        def sums_of_products(
            self, k: Any, a: tuple[list[Any], Any], b: tuple[Any, Any], a_at: Any, b_at: Any, rows: int, vectors: int
        ) -> dict[tuple[int, int], Any]:
            """Return a tile's vectors: for each row i and vector j the sum over k of A's element i times B's vector j.

            `a` is addresses and their step, `b` an address and its step; `a_at` gives the address of an element, `b_at`
            loads a vector.
            """
            builder, integer = self.builder, k.type
            tile = [(i, j) for i in range(rows) for j in range(vectors)]
            entry, loop, done = builder.block, builder.append_basic_block("k"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            step, pb = builder.phi(integer), builder.phi(integer)
            pa = [builder.phi(integer) for _ in a[0]]
            sums = {at: builder.phi(self.sums) for at in tile}
            b_vectors = [b_at(pb, j) for j in range(vectors)]
            updated = {}
            for i in range(rows):
                a_element = self.splat(a_at(pa, i))
                for j in range(vectors):
                    updated[i, j] = self.fma(a_element, b_vectors[j], sums[i, j])
            next_step = builder.add(step, ir.Constant(integer, 1))
            for phi, first, following in (
                (step, ir.Constant(integer, 0), next_step),
                (pb, b[0], builder.add(pb, b[1])),
                *((p, start, builder.add(p, a[1])) for p, start in zip(pa, a[0], strict=True)),
                *((sums[at], self.zero, updated[at]) for at in tile),
            ):
                phi.add_incoming(first, entry)
                phi.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", next_step, k), loop, done)
            builder.position_at_end(done)
            return updated

        def store_tile(self, sums: dict[tuple[int, int], Any], c: Any, c_row: Any, addend: Any, added_row: Any) -> None:
            """Set a tile of C to `sums`, plus a tile at `addend` unless 0."""
            builder = self.builder
            with builder.if_else(cgutils.is_not_null(builder, addend)) as (add, overwrite):
                for branch, is_add in ((add, True), (overwrite, False)):
                    with branch:
                        for (i, j), value in sums.items():
                            if is_add:
                                row = builder.add(addend, builder.mul(added_row, ir.Constant(added_row.type, i)))
                                value = builder.fadd(self.load_sums(self.shifted(row, j * self.lanes)), value)
                            row = builder.add(c, builder.mul(c_row, ir.Constant(c_row.type, i)))
                            self.store(value, self.shifted(row, j * self.lanes))

        def interleave(self, x: Any, y: Any) -> list[Any]:
            pairs = [lane for i in range(self.lanes) for lane in (i, i + self.lanes)]
            return [self.shuffle(x, y, pairs[: self.lanes]), self.shuffle(x, y, pairs[self.lanes :])]

    @intrinsic
    def multiply_panels(
        typing_context: Any, like: Any, k: Any, a: Any, b: Any, b_row: Any, c: Any, c_row: Any, addend: Any,
        addend_row: Any,
    ) -> Any:  # fmt: skip
        """Set one tile of C to the product of a packed panel of A and `k` rows of B, plus a tile at `addend` unless 0.

        Rows of B, C and the addend are `b_row`, `c_row` and `addend_row` bytes apart. Each element is one chain of
        multiply-adds in the order of k, and one addition.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, k, a, b, b_row, c, c_row, addend, addend_row = arguments
            emit = _Emitter(builder, like.dtype)
            integer = k.type
            # The tile of C is needed only at the end: fetch it into the cache meanwhile.
            for i in range(TILE_ROWS):
                row = builder.add(c, builder.mul(c_row, ir.Constant(integer, i)))
                _prefetch(builder, row, to_write=True)
                _prefetch(builder, emit.shifted(row, (_TILE_VECTORS - 1) * emit.lanes), to_write=True)
            sums = emit.sums_of_products(
                k, ([a], ir.Constant(integer, TILE_ROWS * emit.bytes)), (b, b_row),
                lambda pa, i: emit.shifted(pa[0], i), emit.load_nth, TILE_ROWS, _TILE_VECTORS,
            )  # fmt: skip
            emit.store_tile(sums, c, c_row, addend, addend_row)
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 8), codegen

    @intrinsic
    def multiply_strided(
        typing_context: Any, like: Any, k: Any, a: Any, a_row: Any, a_col: Any, b: Any, b_row: Any, c: Any, c_row: Any,
        addend: Any, addend_row: Any,
    ) -> Any:  # fmt: skip
        """Do as `multiply_panels` with A read through any strides."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, k, a, a_row, a_col, b, b_row, c, c_row, addend, addend_row = arguments
            emit = _Emitter(builder, like.dtype)
            rows_apiece = TILE_ROWS // _POINTERS
            distances = [builder.mul(a_row, ir.Constant(k.type, i)) for i in range(TILE_ROWS)]
            starts = [builder.add(a, distances[p * rows_apiece]) for p in range(_POINTERS)]
            sums = emit.sums_of_products(
                k, (starts, a_col), (b, b_row),
                lambda pa, i: builder.add(pa[i // rows_apiece], distances[i % rows_apiece]),
                emit.load_nth, TILE_ROWS, _TILE_VECTORS,
            )  # fmt: skip
            emit.store_tile(sums, c, c_row, addend, addend_row)
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 10), codegen

    @intrinsic
    def prefetch(typing_context: Any, address: Any) -> Any:
        """Ask for the cache line at `address`, which need not be readable."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _prefetch(builder, arguments[0], to_write=False)
            return context.get_dummy_value()

        return types.void(types.intp), codegen

    @intrinsic
    def multiply_in_place(
        typing_context: Any, like: Any, rows: Any, columns: Any, k: Any, a: Any, a_row: Any, a_col: Any, b: Any,
        b_row: Any, c: Any, c_row: Any, addend: Any, addend_row: Any,
    ) -> Any:  # fmt: skip
        """Do as `multiply_panels` for at most one tile, A and B where they lie; rows but of A have no gaps.

        `rows` and `columns` are at least 1. Sums as in `multiply_panels`, to the bit.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, rows, columns, k, a, a_row, a_col, b, b_row, c, c_row, addend, addend_row = arguments
            emit = _Emitter(builder, like.dtype)
            integer = k.type
            adds = cgutils.is_not_null(builder, addend)

            def multiply(tile_rows: int, vectors: int) -> None:
                """Write the code for at most so many rows and vectors."""
                # Rows that are not there are computed from the last one and not stored.
                last = builder.sub(rows, ir.Constant(integer, 1))
                present = [builder.icmp_signed("<", ir.Constant(integer, i), rows) for i in range(tile_rows)]
                nearest = [builder.select(flag, ir.Constant(integer, i), last) for i, flag in enumerate(present)]
                offsets = [builder.mul(row, a_row) for row in nearest]
                counts = [builder.sub(columns, ir.Constant(integer, j * emit.lanes)) for j in range(vectors)]
                masks = [emit.first_lanes(count) for count in counts]

                def b_at(pb: Any, j: int) -> Any:
                    # Where rows are long, no processor foresees that the next tile begins beside this one.
                    _prefetch(builder, emit.shifted(pb, (j + vectors) * emit.lanes), to_write=False)
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
                """Write the code for the lowest of the tiles that has enough rows."""
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
                        multiply(heights[0], _TILE_VECTORS)

            multiply_lower([-(-TILE_ROWS // 3), -(-2 * TILE_ROWS // 3), TILE_ROWS])
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 12), codegen

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

        Columns are stored in ascending order, each a full vector: if `width` is less, the next overwrites the excess.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, source, stride, rows, target, width = arguments
            emit = _Emitter(builder, like.dtype)
            integer = source.type
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
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 5), codegen
