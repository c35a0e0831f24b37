"""Optimizer state in fewer bits, decoded and encoded: whole arrays, and the runs of elements of a kernel."""

import functools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad_kernels.cpu.pointers import row_of
from spillgrad_kernels.cpu.state_vectors import RUN, decoder, encoder, has_vectors
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.half import narrow_bfloat16, widen_bfloat16
from spillgrad_kernels.tables.scalar_math import where
from spillgrad_kernels.tables.state_codes import (
    KINDS,
    LEAST_SCALE,
    SIGNED,
    UNSIGNED,
    Encoded,
    code_of,
    entries,
    narrow_randomly,
    of_bits,
    rounded_product,
    size_bits,
)
from spillgrad_kernels.tables.vector_code import jitable
from spillgrad_kernels.threads.dispatch import Kernel, parallel_for

# The elements of a unit of work: whole blocks and vectors, so that only the last unit has a remainder.
CHUNK = 4096
NO_SIZE = np.int32(0)
_NO_ENTRIES = np.zeros(0, np.int32)
_ZERO, _ONE, _NAN = np.float32(0), np.float32(1), np.float32(np.nan)
_LEAST_SHARE = SIGNED[0]
# How far a quotient may be from the scale of which it was a product, in units of the last place.
_ULPS = 1
_MOST_SCALE = np.float32(np.finfo(np.float32).max)


@jitable
def _decode_signed(code: Any, scale: Any) -> Any:
    return rounded_product(SIGNED[code], scale)


@jitable
def _decode_unsigned(code: Any, scale: Any) -> Any:
    return rounded_product(UNSIGNED[code], scale)


@jitable
def _decode_bfloat16(code: Any, scale: Any) -> Any:
    return widen_bfloat16(code)


@jitable
def _encode_share(value: Any, inverse: Any, table: Any, salt: Any, more_salt: Any) -> Any:
    return code_of(value * inverse, table)


@jitable
def _encode_nearest(value: Any, inverse: Any, table: Any, salt: Any, more_salt: Any) -> Any:
    return narrow_bfloat16(value)


@jitable
def _encode_randomly(value: Any, inverse: Any, table: Any, salt: Any, more_salt: Any) -> Any:
    return narrow_randomly(value, salt, more_salt)


# For each kind, the functions decode(code, scale) and encode(value, inverse, table, salt, more_salt) for kernels.
# `inverse` is that of the scale, and `table` has the `entries` of the kind.
CODERS = {
    "signed": (_decode_signed, _encode_share),
    "unsigned": (_decode_unsigned, _encode_share),
    "nearest": (_decode_bfloat16, _encode_nearest),
    "random": (_decode_bfloat16, _encode_randomly),
}


@jitable
def larger(largest: Any, value: Any) -> Any:
    """Return the larger one of the bits of a number's size and `largest`."""
    size = size_bits(value)
    return where(size > largest, size, largest)


@jitable
def inverse_of(scale: Any) -> Any:
    """Return what turns a block's numbers into shares of its scale: 0 if that has no inverse, and NaN if it is endless.

    If the scale is NaN or endless, no element is decoded to a finite number.
    """
    if scale > _MOST_SCALE:
        return _NAN
    return _ONE / scale if scale >= LEAST_SCALE else _ZERO


@jitable
def recovered_scale(some: Any, largest: Any, table: Any) -> Any:
    """Return the bits of the scale with which the signed map decoded a block, if it did; else `largest`.

    `largest` are the bits of the block's largest absolute value, which is the scale unless that number is negative:
    the map's least share is above -1.
    """
    size = of_bits(largest)
    for k in range(-_ULPS, _ULPS + 1):
        bits = size_bits(size / _LEAST_SHARE) + np.int32(k)
        scale = of_bits(bits)
        inverse = inverse_of(scale)
        j = 0
        while j < some.size and _decode_signed(code_of(some[j] * inverse, table), scale) == some[j]:
            j += 1
        if j == some.size and inverse > _ZERO:
            return bits
    return largest


@functools.cache
def _converter(kind: str, encodes: bool) -> Kernel:
    """Return the kernel that encodes, or decodes, runs of `CHUNK` elements."""
    decode, encode = CODERS[kind]
    has_scales = KINDS[kind].block > 0
    in_vectors = has_scales and has_vectors()
    decode_run: Any = decoder(kind) if in_vectors else None
    encode_run: Any = encoder(kind) if in_vectors else None
    block = KINDS[kind].block or CHUNK

    def kernel(start: int, stop: int, values: Any, codes: Any, scales: Any, table: Any, recovers: Any) -> None:
        for chunk in range(start, stop):
            for begin in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, values.size), block):
                some, some_codes = values[begin : begin + block], codes[begin : begin + block]
                scale = scales[begin // block :]
                runs = some.size // RUN * RUN if in_vectors else 0
                if encodes:
                    largest = NO_SIZE
                    for j in range(some.size):
                        largest = larger(largest, some[j])
                    if kind == "signed" and recovers:
                        largest = recovered_scale(some, largest, table)
                    if has_scales:
                        scale[0] = of_bits(largest)
                    inverse = inverse_of(of_bits(largest))
                    if in_vectors:
                        for run in range(0, runs, RUN):
                            encode_run(row_of(values), begin + run, inverse, row_of(codes), begin + run)
                    for j in range(runs, some.size):
                        some_codes[j] = encode(some[j], inverse, table, some[j], some[j])
                else:
                    if in_vectors:
                        for run in range(0, runs, RUN):
                            decode_run(row_of(codes), begin + run, scale[0], row_of(values), begin + run)
                    for j in range(runs, some.size):
                        some[j] = decode(some_codes[j], scale[0])

    return jit(kernel, name=f"state_codes.{'encode' if encodes else 'decode'}_{kind}")


def empty(kind: str, shape: tuple[int, ...]) -> Encoded:
    """Return uninitialized codes, and scales if the kind has them, for an array of this shape."""
    dtype, block = KINDS[kind]
    scales = buffers.empty((-(-math.prod(shape) // block),), np.dtype(np.float32)) if block else None
    return Encoded(kind, buffers.empty(shape, np.dtype(_CODES[dtype])), scales)


def encode(values: np.ndarray, kind: str, into: Encoded | None = None, recovers_scales: bool = False) -> Encoded:
    """Return float32 numbers encoded, in C-contiguous arrays `into` if given.

    `random` rounds to the nearest here. With `recovers_scales`, numbers that were decoded get the codes and scales that
    they had, also in blocks whose largest number is negative: the signed map lacks -1, so they have lost their scale.
    """
    encoded = empty(kind, values.shape) if into is None else into
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    _convert("nearest" if kind == "random" else kind, True, flat, encoded.codes, encoded.scales, recovers_scales)
    return encoded


def decode(encoded: Encoded, new: Callable[..., np.ndarray] = buffers.empty) -> np.ndarray:
    """Return the float32 numbers, in an array that `new` makes from a shape and a dtype."""
    kind, codes, scales = encoded
    values = new(codes.shape, np.dtype(np.float32))
    scales = None if scales is None else np.ascontiguousarray(scales)
    _convert(kind, False, values.reshape(-1), np.ascontiguousarray(codes), scales)
    return values


def _convert(
    kind: str, encodes: bool, flat: np.ndarray, codes: np.ndarray, scales: np.ndarray | None, recovers: bool = False
) -> None:
    bits = codes.reshape(-1) if scales is not None else codes.reshape(-1).view(np.uint16)
    chunks = -(-flat.size // CHUNK)
    table = _NO_ENTRIES if scales is None else entries(kind)
    parallel_for(_converter(kind, encodes), chunks, 2, flat, bits, flat if scales is None else scales, table, recovers)


_CODES = {"uint8": np.uint8, "bfloat16": ml_dtypes.bfloat16}
