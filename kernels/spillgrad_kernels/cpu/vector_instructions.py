"""Vector instructions as LLVM code, for inner loops that LLVM does not write as well: above all, matrix products."""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES, is_pair
from spillgrad_kernels.jit.compile import cgutils, has_feature, intrinsic, types


def multiplies_pairs() -> bool:
    """Return whether the target processor has instructions that multiply pairs of bfloat16 (AVX512-BF16)."""
    return bool(VECTOR_BYTES == 64 and has_feature("avx512bf16"))


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's type bfloat, for which llvmlite has no class."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def prefetch_line(builder: Any, address: Any, to_write: bool) -> None:
    i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, pointer), i32(int(to_write)), i32(3), i32(1)])


class Emitter:
    """A writer of vector instructions for one dtype of elements."""

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
        # Not llvm.fma: on a processor without fused multiply-add, llvm.fma calls libm for every lane.
        self._fma = f"llvm.fmuladd.v{self.lanes}f{dtype.bitwidth}"

    def call(self, name: str, result: Any, *operands: Any) -> Any:
        """Call LLVM's function `name`, and return its result, of the type `result`."""
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), operands)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        if self.is_pairs:
            return self._add_pairs(x, y, z)
        return self.call(self._fma, self.sums, x, y, z)

    def _add_pairs(self, x: Any, y: Any, z: Any) -> Any:
        if multiplies_pairs():
            halves = ir.VectorType(_BFloat(), 2 * self.lanes)
            x, y = (self.builder.bitcast(pairs, halves) for pairs in (x, y))
            return self.call("llvm.x86.avx512bf16.dpbf16ps.512", self.sums, z, x, y)
        for x_half, y_half in zip(self._halves(x), self._halves(y), strict=True):
            z = self.call(self._fma, self.sums, x_half, y_half, z)
        return z

    def _halves(self, pairs: Any) -> list[Any]:
        """Return the low and the high halves of pairs, as float32 numbers."""
        pairs = self.builder.bitcast(pairs, self.vector)
        low = self.builder.shl(pairs, ir.Constant(self.vector, [16] * self.lanes))
        high = self.builder.and_(pairs, ir.Constant(self.vector, [0xFFFF0000] * self.lanes))
        return [self.builder.bitcast(half, self.sums) for half in (low, high)]

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
        return self.call(f"llvm.masked.{name}.v{self.lanes}f{8 * self.bytes}.p0", result, *operands)

    def load_some(self, address: Any, mask: Any) -> Any:
        return self._masked("load", self.sums, None, address, mask, [self.zero])

    def store_some(self, value: Any, address: Any, mask: Any) -> None:
        self._masked("store", ir.VoidType(), value, address, mask, [])

    def first_lanes(self, count: Any) -> Any:
        """Return the mask of the first `count` lanes. `count` may be below 0 or above the number of lanes."""
        counts = self.spread(count)
        return self.builder.icmp_signed("<", ir.Constant(counts.type, list(range(self.lanes))), counts)

    def splat_flag(self, flag: Any) -> Any:
        """Return a mask in which all lanes are set if `flag` is set, else no lane."""
        mask = ir.VectorType(ir.IntType(1), self.lanes)
        return self.builder.select(flag, ir.Constant(mask, [1] * self.lanes), ir.Constant(mask, [0] * self.lanes))

    def splat(self, address: Any) -> Any:
        return self.spread(self._load(address, self.scalar))

    def spread(self, value: Any) -> Any:
        """Return a vector that has `value` in all lanes."""
        undefined = ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        return self.shuffle(first, undefined, [0] * self.lanes)

    def shuffle(self, x: Any, y: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), lanes))

    def sums_of_products(
        self, k: Any, a: tuple[list[Any], Any], b: tuple[Any, Any], a_at: Any, b_at: Any, rows: int, vectors: int
    ) -> dict[tuple[int, int], Any]:
        """Emit a loop of `k` steps that adds up products of elements of A and vectors of B; return the sums.

        Sum (i, j) adds up, over the steps of the loop, element i of A times vector j of B. `a` is (addresses, bytes by
        which each address grows in a step); `b` is (address, bytes by which it grows in a step). `a_at(addresses, i)`
        returns the address of element i, and `b_at(address, j)` loads vector j.
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
        """Emit code that sets the tile of C at address `c` to `sums`, plus the tile at `addend` (0: no addend)."""
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


def vector_code(write: Callable[..., None]) -> Any:
    """Turn the decorated function, which emits vector instructions, into a function that kernels call.

    The decorated function takes an `Emitter`, and LLVM values of integers. Kernels pass, in place of the emitter, an
    array `like` of the emitter's dtype.
    """

    def implementation(_: Any, like: Any, *integers: Any) -> Any:
        def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
            write(Emitter(builder, like.dtype), *values[1:])
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * len(integers)), codegen

    emitter, *integers = inspect.signature(write).parameters.values()
    implementation.__name__ = write.__name__
    parameters = [emitter, emitter.replace(name="like"), *integers]
    implementation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as Numba wants it
    return intrinsic(implementation)
