"""Codecs encode arrays for the disk: without loss, or smaller and a little less exact."""

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.storage.disk.chunks import PAGE_BYTES, compressed_chunks
from spillgrad.storage.store import Handle, Remote
from spillgrad_kernels.memory import buffers

# Smaller arrays are not encoded: structure in the file and the work in Python would cost more than the bytes saved.
MIN_BYTES = 4 * PAGE_BYTES
# An array is compressed if a sample shrinks to this share. Normal floats: 0.88, at 0.2 GB/s; outputs of ReLU: 0.57.
_PAYS = 0.8
MAX_ITEM_BYTES = 64
_SAMPLES, _SAMPLE_BYTES = 4, 16 << 10
_ZSTD_LEVEL = 1
# Every zstd decoder skips frames of this magic number; such frames pad chunks to whole pages.
_SKIPPABLE = 0x184D2A50.to_bytes(4, "little")
_SKIPPABLE_HEAD_BYTES = 8
# The number of elements encoded at a time: intermediate results fit the processor's cache, and need not be counted.
_STEP = 16 << 10
INT8_BLOCK = 128
# Values above the first could become infinite. Below the second, the scale of a block could be subnormal, so inexact.
_INT8_LARGEST = 3.4e38
_INT8_SMALLEST = 127 * 2.0**-126
# What files call the encoding of `disk/halves.py`, which stores choose themselves.
EXACT_BF16 = "exact-bf16"
# The dtypes that lossy codecs encode.
LOSSY_DTYPES = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


class Undecodable(ValueError):
    """Raised for stored bytes that cannot be decoded, because they are damaged or no encoder wrote them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """How an array was encoded: what `Codec.decode` needs in addition to the stored bytes."""

    codec: str  # the codec's name in files
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int  # of the stored bytes
    chunks: tuple[int, ...] = ()  # the bytes of each chunk, if HDF5's own filters decode them
    inner: "Encoding | None" = None  # how the decrypted bytes are encoded
    secret: bool = False  # labels and views stay out of the file

    @property
    def staging_bytes(self) -> int:
        """How many bytes of memory decoding needs in addition to the decoded array."""
        if self.codec == EXACT_BF16:
            return 0
        return self.nbytes + (self.inner.staging_bytes if self.inner else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """The bytes that are stored instead of an array, and the `Encoding` that says how to decode them."""

    payload: np.ndarray
    encoding: Encoding


class Codec(Protocol):
    """Turns arrays into stored bytes and back. Every method may be called from any thread."""

    def bound(self, array: np.ndarray | Handle | Remote) -> int:
        """Return the most bytes of memory that encoding `array` may take; 0 if such an array is stored unencoded."""
        ...

    def encode(self, array: np.ndarray, handle: Handle) -> Encoded | None:
        """Return the encoded form of a C-contiguous `array`, or None if the array is to be stored unencoded."""
        ...

    def decode(self, stored: np.ndarray, encoding: Encoding, handle: Handle, into: np.ndarray) -> None:
        """Decode `stored` into `into`, a C-contiguous array. Raises Undecodable for damaged bytes."""
        ...


def codec_named(name: str | None) -> Codec | None:
    """Return the codec of this name; None for None. Raises ArgumentError for an unknown name."""
    if name is None:
        return None
    if name not in _CODECS:
        raise ArgumentError(f"spill: got codec={name!r}; wanted None, 'lossless', 'bf16' or 'int8'")
    return _CODECS[name]()


def is_lossy(name: str | None) -> bool:
    """Return whether a codec of this name may alter arrays."""
    return name in (Bfloat16.name, Int8.name)


def stored_bytes(codec: str, size: int) -> int:
    """Return how many bytes `size` elements take when encoded by `bf16`, `exact-bf16` or `int8`."""
    return size * 2 if codec in (Bfloat16.name, EXACT_BF16) else _scale_bytes(size) + size


class Lossless:
    """Encodes as HDF5's shuffle and zstd filters do, but without HDF5.

    `h5py` can read the chunks if `hdf5plugin` is imported. Each chunk is padded to whole pages with a frame that zstd
    decoders skip, so that direct I/O can move it.
    """

    name = "lossless"

    def bound(self, array: np.ndarray | Handle | Remote) -> int:
        takes = array.nbytes >= MIN_BYTES and array.shape and array.dtype.itemsize <= MAX_ITEM_BYTES
        return int(array.nbytes * _PAYS) // PAGE_BYTES * PAGE_BYTES if takes else 0

    def encode(self, array: np.ndarray, handle: Handle) -> Encoded | None:
        if not _pays(array):
            return None
        items = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
        chunk, starts = compressed_chunks(array.shape, array.itemsize)
        length = math.prod(chunk)
        payload = buffers.empty((self.bound(array),), np.uint8)
        sizes = []
        done = 0
        for start, count in starts.values():
            frame = _frame(items[start : start + count], length)
            nbytes = _whole_pages(len(frame))
            if done + nbytes > payload.nbytes:
                return None
            payload[done : done + len(frame)] = np.frombuffer(frame, np.uint8)
            _fill_up(payload[done + len(frame) : done + nbytes])
            sizes.append(nbytes)
            done += nbytes
        return Encoded(payload[:done], Encoding(self.name, array.shape, array.dtype, done, tuple(sizes)))

    def sample(self, array: np.ndarray) -> tuple[int, int]:
        """Compress a sample of an array; return the sample's bytes before and after compression."""
        if not self.bound(array) or not _pays(array):
            return array.nbytes, array.nbytes
        items = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
        chunk, starts = compressed_chunks(array.shape, array.itemsize)
        places = list(starts.values())
        sampled = stored = 0
        for start, count in {places[len(places) // 4], places[3 * len(places) // 4]}:
            sampled += count * array.itemsize
            stored += _whole_pages(len(_frame(items[start : start + count], math.prod(chunk))))
        return sampled, min(sampled, stored)

    def decode(self, stored: np.ndarray, encoding: Encoding, handle: Handle, into: np.ndarray) -> None:
        items = into.reshape(-1).view(np.uint8).reshape(-1, into.itemsize)
        chunk, starts = compressed_chunks(into.shape, into.itemsize)
        done = 0
        for (start, count), nbytes in zip(starts.values(), encoding.chunks, strict=True):
            decompress(stored[done : done + nbytes], math.prod(chunk), items[start : start + count])
            done += nbytes


def decompress(frame: np.ndarray, length: int, items: np.ndarray) -> None:
    """Decompress `frame`, a chunk of `length` items, into `items`, a row of bytes for each. Raises Undecodable."""
    itemsize = items.shape[1]
    try:
        if _zstd.content_bytes(frame.data) != length * itemsize:  # decoding would take as much memory as the frame says
            raise Undecodable("a frame of another size")
        planes = np.frombuffer(_zstd.decompressor.decompress(frame.data), np.uint8).reshape(itemsize, length)
    except _zstd.error as error:
        raise Undecodable(f"{error}") from error
    for i in range(itemsize):
        items[:, i] = planes[i, : len(items)]


class _Lossy:
    """A codec that encodes each float in a fixed number of bits."""

    name: str

    def bound(self, array: np.ndarray | Handle | Remote) -> int:
        takes = array.nbytes >= MIN_BYTES and array.dtype in LOSSY_DTYPES
        return stored_bytes(self.name, array.nbytes // array.dtype.itemsize) if takes else 0


class Bfloat16(_Lossy):
    """Encodes float32 and float64 as bfloat16, rounded to nearest, ties to even.

    NaN and infinities stay what they are. A value that is nearer to 2¹²⁸ than to the largest bfloat16, 3.39e38, becomes
    infinite.
    """

    name = "bf16"

    def encode(self, array: np.ndarray, handle: Handle) -> Encoded | None:
        values = array.reshape(-1)
        payload = buffers.empty((values.size * 2,), np.uint8)
        halves = payload.view(np.uint16)
        for start in range(0, values.size, _STEP):
            part = values[start : start + _STEP]
            halves[start : start + _STEP] = _rounded_to_bfloat16(part)
        return Encoded(payload, Encoding(self.name, array.shape, array.dtype, payload.nbytes))

    def decode(self, stored: np.ndarray, encoding: Encoding, handle: Handle, into: np.ndarray) -> None:
        halves, values = stored.view(np.uint16), into.reshape(-1)
        for start in range(0, values.size, _STEP):
            bits = halves[start : start + _STEP].astype(np.uint32)
            bits <<= 16
            values[start : start + _STEP] = bits.view(np.float32)


class Int8(_Lossy):
    """Encodes float32 and float64 as int8, in blocks of 128 values that share a float32 scale.

    The encoded form is all scales, then one byte for each value. A decoded value is within 0.4 % of its block's largest
    magnitude. An array is stored unencoded if a value is not finite or is beyond ±3.4e38, or if the largest magnitude
    of a block is below 1.5e-36, but not 0.
    """

    name = "int8"

    def encode(self, array: np.ndarray, handle: Handle) -> Encoded | None:
        values = array.reshape(-1)
        head = _scale_bytes(values.size)
        payload = buffers.empty((head + values.size,), np.uint8)
        scales, levels = payload[:head].view(np.float32), payload[head:].view(np.int8)
        for start in range(0, values.size, _STEP):
            part = values[start : start + _STEP]
            blocks = part if part.size % INT8_BLOCK == 0 else np.pad(part, (0, -part.size % INT8_BLOCK))
            blocks = blocks.reshape(-1, INT8_BLOCK)
            rounded = np.abs(blocks)
            largest = rounded.max(1)
            scalable = (largest <= _INT8_LARGEST) & ((largest >= _INT8_SMALLEST) | (largest == 0))
            if not scalable.all():  # comparisons with NaN are False
                return None
            scale = (largest / 127).astype(np.float32)
            first = start // INT8_BLOCK
            scales[first : first + len(scale)] = scale
            np.divide(blocks, np.where(scale > 0, scale, 1)[:, None], out=rounded)
            np.rint(rounded, out=rounded)
            levels[start : start + part.size] = rounded.reshape(-1)[: part.size]
        return Encoded(payload, Encoding(self.name, array.shape, array.dtype, payload.nbytes))

    def decode(self, stored: np.ndarray, encoding: Encoding, handle: Handle, into: np.ndarray) -> None:
        values = into.reshape(-1)
        head = _scale_bytes(values.size)
        scales, levels = stored[:head].view(np.float32), stored[head:].view(np.int8)
        for start in range(0, values.size, _STEP):
            part = values[start : start + _STEP]
            scale = scales[start // INT8_BLOCK : (start + _STEP) // INT8_BLOCK].repeat(INT8_BLOCK)
            np.multiply(levels[start : start + _STEP], scale[: part.size], out=part)


_CODECS: dict[str, Callable[[], Codec]] = {codec.name: codec for codec in (Lossless, Bfloat16, Int8)}


class _Zstd(threading.local):
    """A zstd compressor and decompressor for each thread, as threads must not share them. Loaded on first use."""

    def __init__(self) -> None:
        import zstandard

        self.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()
        self.error = zstandard.ZstdError
        self.content_bytes = zstandard.frame_content_size


_zstd = _Zstd()


def filters(dtype: np.dtype[Any]) -> list[tuple[int, tuple[int, ...]]]:
    """Return (filter number, parameters) of each HDF5 filter that is needed to read what `Lossless` writes."""
    shuffle, zstd = 2, 32015
    return [(shuffle, (dtype.itemsize,)), (zstd, (_ZSTD_LEVEL,))]


def _pays(array: np.ndarray) -> bool:
    """Return whether to compress an array: whether a few samples, spread over the array, shrink enough."""
    items = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
    length = max(1, _SAMPLE_BYTES // array.itemsize)
    before = after = 0
    for i in range(_SAMPLES):
        start = (len(items) - length) * i // (_SAMPLES - 1)
        sample = _shuffled(items[max(0, start) : max(0, start) + length], 0)
        before += sample.nbytes
        after += len(_zstd.compressor.compress(sample.data))
    return after <= before * _PAYS


def _frame(items: np.ndarray, length: int) -> bytes:
    """Return the zstd frame of a chunk, without page padding; zeros pad `items` to the `length` of the chunk."""
    frame: bytes = _zstd.compressor.compress(_shuffled(items, length).data)
    return frame


def _shuffled(items: np.ndarray, length: int) -> np.ndarray:
    """Return the first bytes of all items, then all second bytes, and so on; zeros pad `items` to `length` items."""
    planes = np.zeros((items.shape[1], max(length, len(items))), np.uint8)
    for i, plane in enumerate(planes):
        plane[: len(items)] = items[:, i]
    return planes


def _whole_pages(nbytes: int) -> int:
    pages = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    return pages + PAGE_BYTES if 0 < pages - nbytes < _SKIPPABLE_HEAD_BYTES else pages


def _fill_up(rest: np.ndarray) -> None:
    if rest.nbytes:
        head = _SKIPPABLE + (rest.nbytes - _SKIPPABLE_HEAD_BYTES).to_bytes(4, "little")
        rest[:_SKIPPABLE_HEAD_BYTES] = np.frombuffer(head, np.uint8)
        rest[_SKIPPABLE_HEAD_BYTES:] = 0


def _scale_bytes(size: int) -> int:
    return -(-size // INT8_BLOCK) * 4


def _rounded_to_bfloat16(values: np.ndarray) -> np.ndarray:
    bits = _rounded_to_odd(values) if values.dtype == np.float64 else values.view(np.uint32)
    rounded = (bits >> 16) & 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    nan = np.isnan(values)
    if nan.any():
        rounded[nan] = (bits[nan] >> 16) | 0x40  # a NaN whose upper half alone would mean infinity
    return rounded


def _rounded_to_odd(values: np.ndarray) -> np.ndarray:
    """Round float64 `values` to float32 with rounding to odd, and return the bits.

    Rounding these bits again, to bfloat16, gives the same result as rounding `values` at once.

    Source: Boldo, Melquiond (2008), Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
    odd.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        singles = values.astype(np.float32)
    bits = singles.view(np.uint32)
    bits -= np.abs(singles) > np.abs(values)
    bits |= singles != values
    return bits
