"""Optimizer state in fewer bits: how a float32 number is encoded in 8 bits, or as bfloat16, and decoded.

In 8 bits, each block of elements has a scale, its largest absolute value, and an element has the code of its share of
the scale. The codes of a map are its 256 shares in ascending order. Between powers of ten the shares lie evenly, and
the denser the larger they are: the signed map has 2^i of either sign in the decade that ends at 10^(i - 6), for i from
0 to 6; the unsigned map, for numbers that are never negative, has twice as many. Both have 0 and 1.
Source: Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", sections 1.3 and 2.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.compile import DISABLE_JIT, emitted, types
from spillgrad_kernels.tables.scalar_math import where
from spillgrad_kernels.tables.vector_code import jitable

# The elements that share a scale.
BLOCK = 256
# Scales below the smallest normal float32 number have no inverse that is one. Such a block is taken for zeros.
LEAST_SCALE = np.float32(np.finfo(np.float32).tiny)

_DECADES = 7
_F32, _I32, _U8 = np.float32, np.int32, np.uint8


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
    for i in range(_DECADES):
        count = factor * 2**i
        # The ends of even steps from 0.1 to 1, computed in float64 from a float32 step: PyTorch's to the last bit.
        step, ends = float((_F32(1) - _F32(0.1)) / _F32(count)), np.arange(count + 1)
        from_start, from_end = float(_F32(0.1)) + step * ends, 1 - step * (count - ends)
        bounds = np.where(ends < (count + 1) // 2, from_start, from_end).astype(_F32)
        decades.append(_F32(10.0 ** (i - _DECADES + 1)) * ((bounds[:-1] + bounds[1:]) / _F32(2)))
    positive = np.concatenate(decades)
    negative = [-positive] if factor == 1 else []
    return np.sort(np.concatenate([*negative, positive, [0, 1]]).astype(_F32))


SIGNED, UNSIGNED = _shares(1), _shares(2)
# Shares whose float32 bits differ in the low ones alone are in one bucket. A bucket has at most one middle between
# shares of a map. The first bucket is below any middle; in the last one is 1.
_LOW_BITS = 16
_LOW = (1 << _LOW_BITS) - 1
_FIRST_BUCKET = (127 - 23) << 23 - _LOW_BITS
_BUCKETS = (23 << 23 - _LOW_BITS) + 1
# An entry has, from bit _RANK_AT on, the number of the share nearest to the bucket's start, and below it the low bits
# of the middle from which on the next share is nearer: _BOUND's highest bit for none.
_RANK_AT, _BOUND = 20, 2 * _LOW + 1


def _entries(shares: np.ndarray) -> np.ndarray:
    """Return the entry of each bucket, of a map's shares from 0 on."""
    middles = ((shares[:-1] + shares[1:]) / _F32(2)).view(_I32).tolist()
    entries, number = [], 0
    for start in range(_FIRST_BUCKET, _FIRST_BUCKET + _BUCKETS):
        is_inside = number < len(middles) and middles[number] >> _LOW_BITS == start
        entries.append(number << _RANK_AT | (middles[number] & _LOW if is_inside else _LOW + 1))
        number += is_inside
    assert number == len(middles)
    return np.array(entries, _I32)


_ENTRIES, _ENTRIES_OF_UNSIGNED = _entries(SIGNED[127:]), _entries(UNSIGNED)


@jitable
def signed_code(share: Any) -> Any:
    """Return the code of a share, from -1 to 1, in the signed map."""
    size = abs(share)
    number = rank(_ENTRIES[bucket(size)], size)
    return _U8(where(share < _ZERO, _I32(127) - where(number < _MOST, number, _MOST), _I32(127) + number))


@jitable
def unsigned_code(share: Any) -> Any:
    """Return the code of a share, from 0 to 1, in the unsigned map; that of 0 for negative numbers.

    Only 0 itself has the code of 0: a first moment that outlives a second moment of 0 would be divided by eps alone.
    """
    number = rank(_ENTRIES_OF_UNSIGNED[bucket(share)], share)
    return _U8(where(number > _I32(0), number, where(share > _ZERO, _I32(1), _I32(0))))


_ZERO, _MOST = _F32(0), _I32(127)
_MIX = 0x9E3779B1, 0x85EBCA77  # odd numbers whose products mix bits

if DISABLE_JIT:

    def bucket(x: Any) -> Any:
        """Return the number of the bucket of a share that is not negative; the first one for what is less than any."""
        return min(max((int(_F32(x).view(_I32)) >> _LOW_BITS) - _FIRST_BUCKET, 0), _BUCKETS - 1)

    def rank(entry: Any, x: Any) -> Any:
        """Return the number of the share nearest to `x`, from the entry of its bucket."""
        return (entry >> _RANK_AT) + ((int(_F32(x).view(_I32)) & _LOW) >= (entry & _BOUND))

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

    @emitted(lambda x: types.uint32(types.float32))
    def bucket(builder: Any, x: Any) -> Any:
        number = builder.sub(builder.ashr(builder.bitcast(x, _WORD), _WORD(_LOW_BITS)), _WORD(_FIRST_BUCKET))
        number = builder.select(builder.icmp_signed("<", number, _WORD(0)), _WORD(0), number)
        return builder.select(builder.icmp_signed("<", number, _WORD(_BUCKETS)), number, _WORD(_BUCKETS - 1))

    @emitted(lambda entry, x: types.int32(types.int32, types.float32))
    def rank(builder: Any, entry: Any, x: Any) -> Any:
        low, bound = builder.and_(builder.bitcast(x, _WORD), _WORD(_LOW)), builder.and_(entry, _WORD(_BOUND))
        beyond = builder.zext(builder.icmp_unsigned(">=", low, bound), _WORD)
        return builder.add(builder.lshr(entry, _WORD(_RANK_AT)), beyond)

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
