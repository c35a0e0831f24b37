"""Optimizer state in fewer bits, decoded and encoded: whole arrays, and the runs of elements of a kernel."""

from typing import Any

import ml_dtypes
import numpy as np

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
    narrow_randomly,
    of_bits,
    signed_code,
    size_bits,
    unsigned_code,
)
from spillgrad_kernels.tables.vector_code import jitable
from spillgrad_kernels.threads.dispatch import Kernel, parallel_for

# The elements of a unit of work: whole blocks and vectors, so that only the last unit has a remainder.
CHUNK = 4096
_ZERO, _ONE, _NAN = np.float32(0), np.float32(1), np.float32(np.nan)
_MOST_SCALE = np.float32(np.finfo(np.float32).max)


@jitable
def _decode_signed(code: Any, scale: Any) -> Any:
    return SIGNED[code] * scale


@jitable
def _decode_unsigned(code: Any, scale: Any) -> Any:
    return UNSIGNED[code] * scale


@jitable
def _decode_bfloat16(code: Any, scale: Any) -> Any:
    return widen_bfloat16(code)


@jitable
def _inverse(values: Any, scales: Any) -> Any:
    """Set the scale of a block, the largest absolute value; return its inverse, 0 if that is no number, or NaN."""
    largest = np.int32(0)
    for j in range(values.size):
        size = size_bits(values[j])
        largest = where(size > largest, size, largest)
    scale = of_bits(largest)
    scales[0] = scale
    if scale > _MOST_SCALE:  # then no element is decoded to a finite number; nor if it is NaN
        return _NAN
    return _ONE / scale if scale >= LEAST_SCALE else _ZERO


@jitable
def _encode_signed(values: Any, codes: Any, scales: Any, salt: Any, more_salt: Any) -> None:
    inverse = _inverse(values, scales)
    for j in range(values.size):
        codes[j] = signed_code(values[j] * inverse)


@jitable
def _encode_unsigned(values: Any, codes: Any, scales: Any, salt: Any, more_salt: Any) -> None:
    inverse = _inverse(values, scales)
    for j in range(values.size):
        codes[j] = unsigned_code(values[j] * inverse)


@jitable
def _encode_nearest(values: Any, codes: Any, scales: Any, salt: Any, more_salt: Any) -> None:
    for j in range(values.size):
        codes[j] = narrow_bfloat16(values[j])


@jitable
def _encode_randomly(values: Any, codes: Any, scales: Any, salt: Any, more_salt: Any) -> None:
    for j in range(values.size):
        codes[j] = narrow_randomly(values[j], salt[j], more_salt[j])


# For each kind, the functions decode(code, scale) and encode(values, codes, scales, salt, more_salt) for kernels. What
# is encoded is a block, whose scale is scales[0]; salts are as long as `values`.
CODERS = {
    "signed": (_decode_signed, _encode_signed),
    "unsigned": (_decode_unsigned, _encode_unsigned),
    "nearest": (_decode_bfloat16, _encode_nearest),
    "random": (_decode_bfloat16, _encode_randomly),
}


def _converter(kind: str, encodes: bool) -> Kernel:
    """Return the kernel that encodes, or decodes, runs of `CHUNK` elements."""
    decode, encode = CODERS[kind]
    block = KINDS[kind].block or CHUNK

    def kernel(start: int, stop: int, values: Any, codes: Any, scales: Any) -> None:
        for chunk in range(start, stop):
            for begin in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, values.size), block):
                some, some_codes = values[begin : begin + block], codes[begin : begin + block]
                scale = scales[begin // block :]
                if encodes:
                    encode(some, some_codes, scale, some, some)
                else:
                    for j in range(some.size):
                        some[j] = decode(some_codes[j], scale[0])

    return jit(kernel, name=f"state_codes.{'encode' if encodes else 'decode'}_{kind}")


_CONVERTERS = {(kind, encodes): _converter(kind, encodes) for kind in KINDS for encodes in (False, True)}


def encode(values: np.ndarray, kind: str) -> Encoded:
    """Return float32 numbers encoded; `random` rounds to the nearest here, where nothing falls step by step."""
    dtype, block = KINDS[kind]
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    codes = buffers.empty(values.shape, np.dtype(_CODES[dtype]))
    scales = buffers.empty((-(-flat.size // block),), np.dtype(np.float32)) if block else None
    _convert("nearest" if kind == "random" else kind, True, flat, codes, scales)
    return Encoded(kind, codes, scales)


def decode(encoded: Encoded) -> np.ndarray:
    """Return the float32 numbers."""
    kind, codes, scales = encoded
    values = buffers.empty(codes.shape, np.dtype(np.float32))
    scales = None if scales is None else np.ascontiguousarray(scales)
    _convert(kind, False, values.reshape(-1), np.ascontiguousarray(codes), scales)
    return values


def _convert(kind: str, encodes: bool, flat: np.ndarray, codes: np.ndarray, scales: np.ndarray | None) -> None:
    bits = codes.reshape(-1) if scales is not None else codes.reshape(-1).view(np.uint16)
    chunks = -(-flat.size // CHUNK)
    parallel_for(_CONVERTERS[kind, encodes], chunks, 2, flat, bits, flat if scales is None else scales)


_CODES = {"uint8": np.uint8, "bfloat16": ml_dtypes.bfloat16}
