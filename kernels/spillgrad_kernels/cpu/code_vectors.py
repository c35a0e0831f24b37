"""Vector instructions for quantized numbers: they expand codes, and add up products with codes.

With `NUMBA_DISABLE_JIT=1`, plain NumPy functions take the place of LLVM's code. `codes` tells the format, and `like`
the dtype of the numbers (see `quantization.py`); `a`, `out` and the like are addresses.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES
from spillgrad_kernels.cpu.vector_instructions import Emitter
from spillgrad_kernels.jit.compile import DISABLE_JIT, has_feature, intrinsic, overload, register_jitable, types
from spillgrad_kernels.tables.quantization import BLOCK, INT8, LEVELS, OF_LARGEST

# The most rows that `dot_codes` multiplies with a row of codes at once.
MOST_ROWS = 8
_LANES = VECTOR_BYTES // 4


def expands(like: np.ndarray, count: int) -> int:
    """Return how many of `count` numbers `expand_codes` computes: whole vectors of float32, and nothing of float64."""
    return count - count % _LANES if like.dtype == np.float32 else 0


overload(expands)(
    lambda like, count: (
        (lambda like, count: count - count % _LANES) if like.dtype.bitwidth == 32 else (lambda like, count: 0)
    )
)


@register_jitable
def lines_at_once(rows: int) -> int:
    """Return how many rows of codes `dot_codes` reads at once for `rows` rows of numbers."""
    return 4 if rows <= 2 else 2 if rows <= 4 else 1


if DISABLE_JIT:

    def _numbers(codes: np.ndarray, address: int, count: int) -> np.ndarray:
        """Return the numbers that `count` codes stand for, before they are multiplied by a scale."""
        if codes.dtype == INT8:
            return array_at(codes, address, count).astype(np.float32)
        halves = array_at(codes, address, count // 2)
        return LEVELS[np.stack([halves >> 4, halves & 15], 1).reshape(-1)]

    def expand_codes(
        codes: np.ndarray, like: np.ndarray, count: int, address: int, scale: float, target: int
    ) -> None:  # fmt: skip
        """Write the `count` numbers, whole vectors, whose codes are at `address` to address `target`."""
        if count:
            numbers = _numbers(codes, address, count) * np.float32(scale)
            array_at(like, target, count)[:] = numbers * OF_LARGEST if codes.dtype == INT8 else numbers

    def dot_codes(
        codes: np.ndarray, like: np.ndarray, rows: int, blocks: int, address: int, line: int, scales: int, a: int,
        a_row: int, out: int,
    ) -> None:  # fmt: skip
        """Multiply `rows` rows of float32 numbers with rows of codes; write vectors whose elements add up to products.

        A row has `blocks` blocks. At once, `lines_at_once(rows)` rows of codes are read, `line` bytes apart; the scales
        of the blocks of NF4 are at `scales`, row by row, as float32. Rows of `a` are `a_row` bytes apart. For each row
        of codes and then each of `a`, a vector is written to `out`; the scales of int8 are left out.
        """
        lanes, count = VECTOR_BYTES // 4, blocks * BLOCK
        for i in range(lines_at_once(rows)):
            numbers = _numbers(codes, address + i * line, count)
            if codes.dtype != INT8:
                numbers = numbers * np.repeat(array_at(like, scales + i * blocks * 4, blocks), BLOCK)
            for j in range(rows):
                products = numbers * array_at(like, a + j * a_row, count)
                array_at(like, out + (i * rows + j) * VECTOR_BYTES, lanes)[:] = products.reshape(-1, lanes).sum(0)

else:

    class _Codes:
        """A writer of instructions that turn codes into vectors of float32 numbers."""

        def __init__(self, builder: Any, codes: Any) -> None:
            self.builder = builder
            self.emit = Emitter(builder, types.float32)
            self.is_nf4 = codes.dtype.name == "uint8"
            self.lanes = self.emit.lanes
            self.code_bytes = self.lanes // 2 if self.is_nf4 else self.lanes

        def vector(self, values: list[float]) -> Any:
            return ir.Constant(self.emit.sums, [float(value) for value in values])

        def numbers(self, address: Any) -> Any:
            """Emit code that loads a vector of codes, and return the numbers they stand for, without their scales."""
            builder, lanes = self.builder, self.lanes
            words = ir.VectorType(ir.IntType(32), lanes)
            if not self.is_nf4:
                found = self._load(address, ir.VectorType(ir.IntType(8), lanes))
                return builder.sitofp(builder.sext(found, words), self.emit.sums)
            # Every lane gets the word of its code, and shifts the code to the lowest four bits.
            found = self._load(address, ir.VectorType(ir.IntType(4 * min(lanes, 8)), max(1, lanes // 8)))
            found = found if lanes >= 8 else builder.zext(found, ir.VectorType(ir.IntType(32), 1))
            places = ir.Constant(words, [lane // 8 for lane in range(lanes)])
            shifts = [lane % 8 // 2 * 8 + (0 if lane % 2 else 4) for lane in range(lanes)]
            spread = builder.shuffle_vector(found, ir.Constant(found.type, ir.Undefined), places)
            return self._levels(builder.lshr(spread, ir.Constant(words, shifts)))

        def _load(self, address: Any, kind: Any) -> Any:
            value = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
            value.align = 1
            return value

        def _levels(self, words: Any) -> Any:
            """Return the level of each word; of a word, only the lowest four bits count."""
            builder, lanes, sums = self.builder, self.lanes, self.emit.sums
            if VECTOR_BYTES == 64 and has_feature("avx512f"):
                return self.emit.call("llvm.x86.avx512.permvar.sf.512", sums, self.vector(LEVELS.tolist()), words)
            if VECTOR_BYTES == 32 and has_feature("avx2"):
                name, values = "llvm.x86.avx2.permps", LEVELS.tolist()
                low, high = (self.emit.call(name, sums, self.vector(half), words) for half in (values[:8], values[8:]))
                bit = builder.and_(words, ir.Constant(words.type, [8] * lanes))
                return builder.select(builder.icmp_unsigned("!=", bit, ir.Constant(words.type, [0] * lanes)), high, low)
            table = ir.Constant(ir.VectorType(ir.FloatType(), 16), LEVELS.tolist())
            word, result = ir.IntType(32), ir.Constant(sums, ir.Undefined)
            for lane in range(lanes):
                at = builder.and_(builder.extract_element(words, word(lane)), word(15))
                result = builder.insert_element(result, builder.extract_element(table, at), word(lane))
            return result

        def loop(self, count: Any, firsts: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
            """Emit a loop of `count` steps, at least 1, in which values change; return their last values."""
            builder = self.builder
            entry, body, done = builder.block, builder.append_basic_block("step"), builder.append_basic_block("done")
            builder.branch(body)
            builder.position_at_end(body)
            number, values = builder.phi(count.type), [builder.phi(first.type) for first in firsts]
            following = step(number, values)
            next_number = builder.add(number, ir.Constant(count.type, 1))
            for phi, first, value in zip(
                [number, *values], [count.type(0), *firsts], [next_number, *following], strict=True
            ):
                phi.add_incoming(first, entry)
                phi.add_incoming(value, builder.block)
            builder.cbranch(builder.icmp_signed("<", next_number, count), body, done)
            builder.position_at_end(done)
            return following

    def _code_vectors(write: Callable[..., None]) -> Any:
        """Turn the decorated function, which emits instructions, into a function that kernels call.

        The decorated function takes a `_Codes`, and the values of integers and of `scale`, which is a float32. Kernels
        pass, in place of the first, the arrays `codes` and `like`.
        """
        names = list(inspect.signature(write).parameters)[1:]

        def implementation(_: Any, codes: Any, like: Any, *values: Any) -> Any:
            def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
                write(_Codes(builder, codes), *values[2:])
                return context.get_dummy_value()

            kinds = [types.float32 if name == "scale" else types.intp for name in names]
            return types.void(codes, like, *kinds), codegen

        implementation.__name__ = write.__name__
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in ("_", "codes", "like", *names)]
        implementation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as Numba wants it
        return intrinsic(implementation)

    @_code_vectors
    def expand_codes(write: _Codes, count: Any, address: Any, scale: Any, target: Any) -> None:
        builder, integer = write.builder, count.type
        factor = write.emit.spread(scale)

        def step(number: Any, _: list[Any]) -> list[Any]:
            numbers = write.numbers(builder.add(address, builder.mul(number, integer(write.code_bytes))))
            numbers = builder.fmul(numbers, factor)
            if not write.is_nf4:
                numbers = builder.fmul(numbers, write.vector([float(OF_LARGEST)] * write.lanes))
            write.emit.store(numbers, builder.add(target, builder.mul(number, integer(VECTOR_BYTES))))
            return []

        vectors = builder.sdiv(count, integer(write.lanes))
        with builder.if_then(builder.icmp_signed(">", vectors, integer(0))):
            write.loop(vectors, [], step)

    @_code_vectors
    def dot_codes(
        write: _Codes, rows: Any, blocks: Any, address: Any, line: Any, scales: Any, a: Any, a_row: Any, out: Any
    ) -> None:  # fmt: skip
        builder, integer, emit = write.builder, rows.type, write.emit
        done = builder.append_basic_block("multiplied")
        switch = builder.switch(rows, done)

        def multiply(height: int) -> None:
            lines = lines_at_once(height)
            tile = [(i, j) for i in range(lines) for j in range(height)]
            row_bytes = builder.mul(blocks, integer(4))

            def step(number: Any, sums: list[Any]) -> list[Any]:
                parts = dict.fromkeys(tile, emit.zero) if write.is_nf4 else dict(zip(tile, sums, strict=True))
                at = builder.add(address, builder.mul(number, integer(BLOCK // write.lanes * write.code_bytes)))
                at_a = builder.add(a, builder.mul(number, integer(BLOCK * 4)))
                for vector in range(BLOCK // write.lanes):
                    lines_at = [builder.add(at, builder.mul(line, integer(i))) for i in range(lines)]
                    shift = integer(vector * write.code_bytes)
                    numbers = [write.numbers(builder.add(place, shift)) for place in lines_at]
                    for j in range(height):
                        place = builder.add(at_a, builder.mul(a_row, integer(j)))
                        of_a = emit.load_sums(emit.shifted(place, vector * write.lanes))
                        for i in range(lines):
                            parts[i, j] = emit.fma(numbers[i], of_a, parts[i, j])
                if not write.is_nf4:
                    return [parts[place] for place in tile]
                found = []
                for i in range(lines):
                    of_block = builder.add(builder.mul(row_bytes, integer(i)), builder.mul(number, integer(4)))
                    scale = emit.splat(builder.add(scales, of_block))
                    found += [emit.fma(parts[i, j], scale, sums[i * height + j]) for j in range(height)]
                return found

            for number, total in enumerate(write.loop(blocks, [emit.zero] * len(tile), step)):
                emit.store(total, builder.add(out, integer(number * VECTOR_BYTES)))

        for height in range(1, MOST_ROWS + 1):
            block = builder.append_basic_block(f"of{height}")
            switch.add_case(integer(height), block)
            builder.position_at_end(block)
            multiply(height)
            builder.branch(done)
        builder.position_at_end(done)
