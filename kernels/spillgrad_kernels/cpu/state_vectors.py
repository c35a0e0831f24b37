"""Codes of optimizer state, decoded and encoded 64 at once by instructions that look bytes up in registers.

A processor that has them (AVX512-VBMI: Intel's servers since Ice Lake, AMD's since Zen 4) finds 64 bytes in a table of
128 with one instruction. Numbers of float32 take four tables, one for each of their bytes. Results equal those of
`state_codes.py`. The codes of a block with a number that is not finite may differ; all stand for NaN or infinity.
"""

import functools
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES
from spillgrad_kernels.cpu.vector_instructions import Emitter
from spillgrad_kernels.jit.compile import DISABLE_JIT, emitted, has_feature, types
from spillgrad_kernels.tables.state_codes import DECADES, SIGNED, UNFUSED, UNSIGNED, middles

RUN = 64  # the elements that the functions take at once
_LANES = 16  # the float32 numbers in a vector
_PARTS = range(RUN // _LANES)
_BYTES = ir.VectorType(ir.IntType(8), RUN)
_SHORTS = ir.VectorType(ir.IntType(16), RUN // 2)
_WORDS = ir.VectorType(ir.IntType(32), _LANES)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)


def has_vectors() -> bool:
    """Return whether kernels can call the functions that `decoder` and `encoder` return."""
    return bool(not DISABLE_JIT and VECTOR_BYTES == 64 and has_feature("avx512vbmi") and has_feature("avx512bw"))


def _constant(kind: Any, values: Any) -> Any:
    return ir.Constant(kind, np.asarray(values).tolist())


def _all(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


class _Writer(Emitter):
    """A writer of instructions for 64 elements: a vector of bytes, or four of words or of float32 numbers.

    Instructions that pack and unpack do so within each quarter of a vector. So bytes have another order here, in which
    byte 16 q + 4 p + i is that of element i of quarter q of the vector of numbers p: the order of quarters.
    """

    def __init__(self, builder: Any) -> None:
        super().__init__(builder, types.float32)

    def load_vector(self, kind: Any, row: Any, at: Any, number: int = 0) -> Any:
        """Load vector `number` of those that begin at element `at` of a row."""
        value = self.builder.load(self._place(kind, row, at, number))
        value.align = 1 if kind == _BYTES else 4
        return value

    def store_vector(self, value: Any, row: Any, at: Any, number: int = 0) -> None:
        self.builder.store(value, self._place(value.type, row, at, number)).align = 1 if value.type == _BYTES else 4

    def _place(self, kind: Any, row: Any, at: Any, number: int) -> Any:
        first = self.builder.add(at, ir.Constant(at.type, number * kind.count))
        return self.builder.bitcast(self.builder.gep(row, [first]), kind.as_pointer())

    def reordered(self, codes: Any) -> Any:
        """Return bytes in the order of quarters; of bytes in that order, return them in their own."""
        words = self.builder.bitcast(codes, _WORDS)
        order = [4 * part + quarter for quarter in range(4) for part in _PARTS]
        return self.builder.bitcast(self.shuffle(words, words, order), _BYTES)

    def _unpack(self, x: Any, y: Any, half: int) -> Any:
        """Return the elements of a half of each quarter of x, each followed by that of y, as twice as wide ones."""
        count = x.type.count
        lanes = [
            lane
            for quarter in range(4)
            for i in range(count // 8)
            for lane in (count // 8 * (2 * quarter + half) + i, count // 8 * (2 * quarter + half) + i + count)
        ]
        pairs = self.builder.shuffle_vector(x, y, _constant(ir.VectorType(ir.IntType(32), count), lanes))
        return self.builder.bitcast(pairs, _SHORTS if count == RUN else _WORDS)

    def words(self, planes: list[Any]) -> list[Any]:
        """Return four vectors of words, given their bytes, the lowest ones first, in the order of quarters."""
        found = []
        for half in (0, 1):
            low, high = (self._unpack(planes[i], planes[i + 1], half) for i in (0, 2))
            found += [self._unpack(low, high, part) for part in (0, 1)]
        return found

    def bytes_of(self, words: list[Any]) -> Any:
        """Return the bytes, in the order of quarters, of four vectors of words from 0 to 255."""
        low, high = (self.call("llvm.x86.avx512.packusdw.512", _SHORTS, words[i], words[i + 1]) for i in (0, 2))
        return self.call("llvm.x86.avx512.packuswb.512", _BYTES, low, high)

    def signs_of(self, words: list[Any]) -> Any:
        """Return bytes, in the order of quarters, with the signs of four vectors of words: below 0, 0, or above it."""
        low, high = (self.call("llvm.x86.avx512.packssdw.512", _SHORTS, words[i], words[i + 1]) for i in (0, 2))
        return self.call("llvm.x86.avx512.packsswb.512", _BYTES, low, high)

    def is_negative(self, values: Any) -> Any:
        return self.builder.icmp_signed("<", values, _all(values.type, 0))

    def look_up(self, indices: Any, table: np.ndarray) -> list[Any]:
        """Return, for each byte of a float32 number, those of the numbers of a table with 64 indices.

        The table has 128 numbers, of which an index is the lowest 7 bits, or 256.
        """
        found = []
        for plane in table.view(np.uint8).reshape(-1, 4).T:
            parts = [_constant(_BYTES, part) for part in plane.reshape(-1, RUN)]
            halves = [
                self.call("llvm.x86.avx512.vpermi2var.qi.512", _BYTES, low, indices, high)
                for low, high in zip(parts[::2], parts[1::2], strict=True)
            ]
            found.append(self.builder.select(self.is_negative(indices), halves[-1], halves[0]))
        return found

    def in_table(self, words: Any, table: Any) -> Any:
        """Return the numbers of a vector whose places are the lowest 4 bits of words."""
        return self.call("llvm.x86.avx512.permvar.sf.512", _FLOATS, table, words)


def _bytes_of_signed(write: _Writer, codes: Any) -> list[Any]:
    """Return the four bytes of the signed map's shares: codes 127 - i and 127 + i differ in the sign alone."""
    builder, zeros = write.builder, _all(_BYTES, 0)
    is_positive = write.is_negative(codes)  # codes from 128 on, whose highest bit is set
    indices = builder.select(is_positive, codes, builder.sub(_all(_BYTES, 126), codes))
    planes = write.look_up(indices, SIGNED[128:])
    planes[3] = builder.or_(planes[3], builder.and_(builder.not_(codes), _all(_BYTES, -128)))
    # Code 127 is 0, but finds the last share, 1, whose other bytes are 0.
    is_zero = builder.icmp_signed("==", codes, _all(_BYTES, 127))
    return [*planes[:2], *[builder.select(is_zero, zeros, plane) for plane in planes[2:]]]


@functools.cache
def decoder(kind: str) -> Any:
    """Return the function decode(codes, at, scale, values, to) of rows, and of the elements at which to begin."""

    @emitted(lambda codes, at, scale, values, to: types.void(codes, types.intp, types.float32, values, types.intp))
    def decode(builder: Any, codes: Any, at: Any, scale: Any, values: Any, to: Any) -> None:
        write = _Writer(builder)
        found = write.reordered(write.load_vector(_BYTES, codes, at))
        planes = _bytes_of_signed(write, found) if kind == "signed" else write.look_up(found, UNSIGNED)
        factor = write.spread(scale)
        for part, words in enumerate(write.words(planes)):
            numbers = builder.fmul(builder.bitcast(words, _FLOATS), factor, flags=UNFUSED)
            write.store_vector(numbers, values, to, part)

    return decode


# A number's rank is the place of its share among the shares from 0 on, which rises evenly within a decade. The high 16
# bits of a float32 number rise by about 128 log2(10) in a decade. Times _FACTOR, and without the lowest _SHIFT bits,
# they are _FIRST + i from about where decade i begins.
_FIRST, _FACTOR, _SHIFT = 31, 19618, 23
# A line is lower than the ranks by this. What it gives, rounded down, is the rank or one less, and comparing the number
# with one bound tells which. That holds from two steps of the line before its decade to most of a step behind it, so it
# does not matter that the decades' places are not exact.
_LOWER = 0.81
# Smaller shares have the rank 0, as this one has, and are taken for it: they are below the 16 lines.
_LEAST = int(np.float32(2**-26).view(np.int32))


def _lines(kind: str) -> tuple[Any, Any]:
    """Return the slopes and the offsets of the lines of ranks: that of decade i at place (_FIRST + i) % 16."""
    counts = (1 if kind == "signed" else 2) * 2 ** np.arange(DECADES)
    slopes = counts / 0.9 * 10.0 ** np.arange(DECADES - 1, -1, -1)
    offsets = np.cumsum([1, *counts[:-1]]) - counts / 9 - _LOWER
    # Behind the last decade's line there is another one, for its end: the step to 1 is half of the others.
    slopes, offsets = np.append(slopes, slopes[-1]), np.append(offsets, offsets[-1] + _LOWER - 0.5)
    places = np.arange(_FIRST - _LANES + DECADES + 1, _FIRST + DECADES + 1)
    lines = np.maximum(places - _FIRST, 0)[np.argsort(places % _LANES)]
    return _constant(_FLOATS, slopes[lines]), _constant(_FLOATS, offsets[lines])


@functools.cache
def encoder(kind: str) -> Any:
    """Return the function encode(values, at, inverse, codes, to) of rows, and of the elements at which to begin."""
    slopes, offsets = _lines(kind)
    bounds = middles(kind)
    bounds = np.append(bounds, np.full(-bounds.size % (2 * RUN), np.inf, np.float32))

    @emitted(lambda values, at, inverse, codes, to: types.void(values, types.intp, types.float32, codes, types.intp))
    def encode(builder: Any, values: Any, at: Any, inverse: Any, codes: Any, to: Any) -> None:
        write, factors = _Writer(builder), _constant(_SHORTS, [0, _FACTOR] * _LANES)
        factor, zeros, ones = write.spread(inverse), _all(_BYTES, 0), _all(_BYTES, 1)
        shares, sizes, ranks = [], [], []
        for part in _PARTS:
            share = builder.fmul(write.load_vector(_FLOATS, values, at, part), factor)
            size = share = builder.bitcast(share, _WORDS)
            if kind == "signed":
                size = builder.and_(share, _all(_WORDS, 0x7FFFFFFF))
            size = write.call("llvm.smax.v16i32", _WORDS, size, _all(_WORDS, _LEAST))
            scaled = write.call("llvm.x86.avx512.pmaddw.d.512", _WORDS, builder.bitcast(size, _SHORTS), factors)
            line = builder.lshr(scaled, _all(_WORDS, _SHIFT))
            slope, offset = write.in_table(line, slopes), write.in_table(line, offsets)
            ranks.append(builder.fptosi(write.fma(builder.bitcast(size, _FLOATS), slope, offset), _WORDS))
            shares.append(share)
            sizes.append(size)
        rank = write.bytes_of(ranks)
        # The bits of positive numbers are in the order of the numbers.
        beyond = [builder.sub(x, y) for x, y in zip(sizes, write.words(write.look_up(rank, bounds)), strict=True)]
        rank = builder.select(write.is_negative(write.signs_of(beyond)), rank, builder.add(rank, ones))
        signs = write.signs_of(shares)
        if kind == "signed":
            middle = _all(_BYTES, 127)
            below = write.call("llvm.usub.sat.v64i8", _BYTES, middle, rank)
            code = builder.select(write.is_negative(signs), below, builder.add(middle, rank))
        else:
            above = write.call("llvm.umax.v64i8", _BYTES, rank, ones)
            code = builder.select(builder.icmp_signed(">", signs, zeros), above, zeros)
        write.store_vector(write.reordered(code), codes, to)

    return encode
