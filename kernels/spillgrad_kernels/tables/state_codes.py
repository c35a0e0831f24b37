"""Optimizer state in fewer bits: how a float32 number is encoded in 8 bits, or as bfloat16, and decoded.

In 8 bits, each block of elements has a scale, its largest absolute value, and an element has the code of its share of
the scale. The codes of a map are its 256 shares in ascending order. Between powers of ten the shares lie evenly, and
the denser the larger they are: the signed map has 2^i of either sign in the decade that ends at 10^(i - 6), for i from
0 to 6; the unsigned map, for numbers that are never negative, has twice as many. Both have 0 and 1.
Source: Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", sections 1.3 and 2.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.compile import DISABLE_JIT, emitted, types
from spillgrad_kernels.tables.vector_code import jitable

# The elements that share a scale.
BLOCK = 256
# Scales below the smallest normal float32 number have no inverse that is one. Such a block is taken for zeros.
LEAST_SCALE = np.float32(np.finfo(np.float32).tiny)

DECADES = 7
_F32, _I32 = np.float32, np.int32


class Encoded(NamedTuple):
    """A tensor of state in fewer bits. `kind` is a key of `KINDS`; `scales` is None for a kind without scales."""

    kind: str
    codes: Any
    scales: Any


class Kind(NamedTuple):
    """How state is encoded: the dtype of its codes, and the elements that share a scale, or 0 for none."""

    codes: str
    block: int


# For second moments, bfloat16 is rounded up or down at random: the nearest number never lets them fall, because a step
# takes away less than half of the last place.
KINDS = {
    "signed": Kind("uint8", BLOCK), "unsigned": Kind("uint8", BLOCK),
    "nearest": Kind("bfloat16", 0), "random": Kind("bfloat16", 0),
}  # fmt: skip


def _shares(factor: int) -> np.ndarray:
    """Return the shares of the map whose decade i has factor * 2^i positive ones: the signed map's factor is 1."""
    decades = []
    for i in range(DECADES):
        count = factor * 2**i
        # The ends of even steps from 0.1 to 1, computed in float64 from a float32 step: PyTorch's to the last bit.
        step, ends = float((_F32(1) - _F32(0.1)) / _F32(count)), np.arange(count + 1)
        from_start, from_end = float(_F32(0.1)) + step * ends, 1 - step * (count - ends)
        bounds = np.where(ends < (count + 1) // 2, from_start, from_end).astype(_F32)
        decades.append(_F32(10.0 ** (i - DECADES + 1)) * ((bounds[:-1] + bounds[1:]) / _F32(2)))
    positive = np.concatenate(decades)
    negative = [-positive] if factor == 1 else []
    return np.sort(np.concatenate([*negative, positive, [0, 1]]).astype(_F32))


SIGNED, UNSIGNED = _shares(1), _shares(2)
_MAPS = {"signed": SIGNED, "unsigned": UNSIGNED}
_LOW_BITS = 16
_LOW = (1 << _LOW_BITS) - 1
ENTRIES = 1 << 32 - _LOW_BITS


def middles(kind: str) -> np.ndarray:
    """Return the numbers from which on the next share of a map is nearer, of its shares from 0 on."""
    shares = _MAPS[kind][_MAPS[kind] >= 0]
    between: np.ndarray = ((shares[:-1] + shares[1:]) / _F32(2)).astype(_F32)
    return between


def _nearest(kind: str, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of float32 numbers, given by their bits, and how many middles are not above their sizes.

    In the unsigned map, negative numbers have the code of 0, and only 0 has it besides: a first moment that outlives a
    second moment of 0 would be divided by eps alone. NaN has the code of 1.
    """
    between, share = middles(kind), words.view(_F32)
    rank = np.searchsorted(between, np.where(np.isnan(share), math.inf, abs(share)).astype(_F32), side="right")
    if kind == "unsigned":
        return np.where(share < 0, 0, np.where(share > 0, np.maximum(rank, 1), rank)), rank
    return np.where(share < 0, 127 - np.minimum(rank, 127), 127 + rank), rank


@functools.cache
def entries(kind: str) -> np.ndarray:
    """Return the table with which `code_of` finds the code of a share, for a kind with scales: 65536 of int32.

    Shares whose float32 bits differ in the low 16 alone share an entry, whose number is the high 16. There is at most
    one middle between shares of a map among them. An entry has the code of the first of them in its high half; in its
    low half it has what carries into the high one when it is added to the low bits of a share beyond the middle. Codes
    of negative shares, which fall, are stored with all bits inverted.
    """
    words = np.arange(ENTRIES, dtype=np.uint32) << _LOW_BITS
    between = middles(kind).view(np.uint32)
    (first, rank), (last, _) = _nearest(kind, words), _nearest(kind, words | _LOW)
    bounds = np.where(rank < between.size, between[np.minimum(rank, between.size - 1)] & _LOW, 0)
    if kind == "unsigned":
        bounds[0] = 1  # the first number above 0
    first = np.where(words >> 31 == 1, first ^ 0xFF, first)
    last = np.where(words >> 31 == 1, last ^ 0xFF, last)
    return ((first << _LOW_BITS) + np.where(last == first, 0, _LOW + 1 - bounds)).astype(_I32)


@jitable
def code_of(share: Any, table: Any) -> Any:
    """Return the code of the share of a map, -1 to 1, that is nearest to `share`; `table` are the map's `entries`."""
    return code_in(table[bucket(share)], share)


# LLVM's flags of a product that it must not fuse with an addition. Numba lets it fuse those without flags; this flag
# allows nothing that concerns products.
UNFUSED = ("arcp",)
_MIX = 0x9E3779B1, 0x85EBCA77  # odd numbers whose products mix bits

if DISABLE_JIT:

    def bucket(share: Any) -> Any:
        """Return the number of the entry of a share."""
        return int(_F32(share).view(np.uint32)) >> _LOW_BITS

    def code_in(entry: Any, share: Any) -> Any:
        """Return the code of a share, given its entry."""
        word = int(_F32(share).view(np.uint32))
        return np.uint8((int(entry) + (word & _LOW) >> _LOW_BITS ^ -(word >> 31)) & 0xFF)

    def rounded_product(share: Any, scale: Any) -> Any:
        """Return the number that a share stands for, rounded before anything is added to it."""
        return share * scale

    def size_bits(x: Any) -> Any:
        """Return the bits of the absolute value of a float32 number: larger for larger numbers, the largest for NaN."""
        return _I32(int(_F32(x).view(np.uint32)) & 0x7FFFFFFF)

    def of_bits(word: Any) -> Any:
        """Return the float32 number with these bits."""
        return _I32(word).view(_F32)

    def narrow_randomly(x: Any, salt: Any, more_salt: Any) -> Any:
        """Return the bits of one of the two bfloat16 numbers beside `x`, the likelier the nearer it is.

        The bits of the float32 numbers `salt` and `more_salt` decide which.
        """
        word, mixed, more = [int(_F32(number).view(np.uint32)) for number in (x, salt, more_salt)]
        mixed = (mixed + more * _MIX[1]) * _MIX[0] & 0xFFFFFFFF
        mixed = (mixed ^ mixed >> 15) * _MIX[1] & 0xFFFFFFFF
        if x != x or abs(x) == math.inf:
            return np.uint16((word | (x != x) << 22) >> 16)
        return np.uint16(word + (mixed >> 16) >> 16)

else:
    _SHORT, _WORD, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()

    @emitted(lambda share: types.uint32(types.float32))
    def bucket(builder: Any, share: Any) -> Any:
        return builder.lshr(builder.bitcast(share, _WORD), _WORD(_LOW_BITS))

    @emitted(lambda entry, share: types.uint8(types.int32, types.float32))
    def code_in(builder: Any, entry: Any, share: Any) -> Any:
        word = builder.bitcast(share, _WORD)
        found = builder.lshr(builder.add(entry, builder.and_(word, _WORD(_LOW))), _WORD(_LOW_BITS))
        return builder.trunc(builder.xor(found, builder.ashr(word, _WORD(31))), ir.IntType(8))

    @emitted(lambda share, scale: types.float32(types.float32, types.float32))
    def rounded_product(builder: Any, share: Any, scale: Any) -> Any:
        return builder.fmul(share, scale, flags=UNFUSED)

    @emitted(lambda x: types.int32(types.float32))
    def size_bits(builder: Any, x: Any) -> Any:
        return builder.and_(builder.bitcast(x, _WORD), _WORD(0x7FFFFFFF))

    @emitted(lambda word: types.float32(types.int32))
    def of_bits(builder: Any, word: Any) -> Any:
        return builder.bitcast(word, _FLOAT)

    @emitted(lambda x, salt, more_salt: types.uint16(types.float32, types.float32, types.float32))
    def narrow_randomly(builder: Any, x: Any, salt: Any, more_salt: Any) -> Any:
        more = builder.mul(builder.bitcast(more_salt, _WORD), _WORD(_MIX[1]))
        mixed = builder.mul(builder.add(builder.bitcast(salt, _WORD), more), _WORD(_MIX[0]))
        mixed = builder.mul(builder.xor(mixed, builder.lshr(mixed, _WORD(15))), _WORD(_MIX[1]))
        word = builder.bitcast(x, _WORD)
        rounded = builder.add(word, builder.lshr(mixed, _WORD(16)))
        endless = builder.icmp_unsigned(">=", builder.and_(word, _WORD(0x7FFFFFFF)), _WORD(0x7F800000))
        quiet = builder.or_(word, builder.select(builder.fcmp_unordered("uno", x, x), _WORD(1 << 22), _WORD(0)))
        return builder.trunc(builder.lshr(builder.select(endless, quiet, rounded), _WORD(16)), _SHORT)
