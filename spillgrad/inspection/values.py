"""Read and decode the values of a stored array piece by piece, in memory that does not grow with the array."""

import bisect
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from spillgrad.errors import ArgumentError, SpillCorruptionError, SpillError
from spillgrad.inspection.arrays import Chunk, StoredArray, stored_itemsize
from spillgrad.inspection.printable import printable
from spillgrad.storage.codecs import (
    EXACT_BF16,
    INT8_BLOCK,
    Bfloat16,
    Codec,
    Encoding,
    Int8,
    Lossless,
    Undecodable,
    decompress,
)
from spillgrad.storage.codecs import stored_bytes as encoded_bytes
from spillgrad.storage.store import Handle

# The statistics of a piece take several times this memory.
PIECE_BYTES = 4 << 20
_ELEMENTWISE: dict[str, Codec] = {EXACT_BF16: Bfloat16(), Bfloat16.name: Bfloat16(), Int8.name: Int8()}


class StoredValues(contextlib.AbstractContextManager["StoredValues"]):
    """The values of an array of a segment, opened for reading; a context manager, which closes the file.

    The places of the bytes were checked when the `StoredArray` was made; this class reads the bytes without HDF5.
    Raises ArgumentError if the array cannot be read. Raises OSError if the file cannot be opened.
    """

    def __init__(self, path: Path, array: StoredArray) -> None:
        who = f"{printable(str(path), 4096)}: {printable(array.key)}"
        if array.problem is not None:
            raise ArgumentError(
                f"{who} has no values that can be read: {printable(array.problem, 1000)}; name another array"
            )
        self.path = path
        self.array = array
        self._who = who
        self._decompressed: tuple[Chunk, np.ndarray] | None = None  # the chunk that was needed last
        self._starts = [chunk.start for chunk in array.chunks]
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise ArgumentError(f"{who}: the file is no regular file any more; name one that is")

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def checksum(self) -> str:
        """Return the XXH3 of the stored bytes as 16 hex digits. Raises SpillCorruptionError if bytes are missing."""
        digest = xxhash.xxh3_64()
        for chunk in self.array.chunks:
            for start in range(0, chunk.nbytes, PIECE_BYTES):
                digest.update(self._bytes(chunk.offset + start, min(PIECE_BYTES, chunk.nbytes - start)).data)
        return digest.hexdigest()

    def verdict(self) -> str:
        """Compare the stored bytes with the checksum: return "verified", "wrong", or "none" if there is no checksum.

        Raises the errors of `checksum`.
        """
        if self.array.checksum is None:
            return "none"
        return "verified" if self.checksum() == self.array.checksum else "wrong"

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all elements in C order, as flat pieces. Raises the errors of `elements`."""
        most = self._piece_length()
        for start in range(0, self.array.size, most):
            yield self.elements(start, min(start + most, self.array.size))

    def elements(self, start: int, stop: int) -> np.ndarray:
        """Return elements `start:stop` in C order, decoded, as a flat array.

        Raises SpillCorruptionError if stored bytes are missing, or if no encoder wrote them. Raises ArgumentError if
        the array is encrypted.
        """
        array = self.array
        dtype = self.dtype
        into = np.empty(max(0, stop - start), dtype)
        if not into.size:
            return into
        items = into.view(np.uint8).reshape(-1, dtype.itemsize)
        if array.codec == Lossless.name:
            self._decompress(start, stop, items)
        elif array.codec is None:
            items.reshape(-1)[:] = self._stored(start * dtype.itemsize, stop * dtype.itemsize)
        else:
            self._decode(array.codec, start, into)
        return into

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements. Raises ArgumentError if the array is encrypted."""
        if self.array.encrypted or self.array.dtype is None:
            raise ArgumentError(
                f"{self._who} is encrypted, under a key that only its own process has; name another array"
            )
        return self.array.dtype

    def _piece_length(self) -> int:
        """Return the number of elements of a piece: whole chunks if compressed, else whole blocks of the codec int8."""
        length = max(1, PIECE_BYTES // self.dtype.itemsize)
        if self.array.codec == Lossless.name:
            chunk = self.array.chunks[0].length
            return max(1, length // chunk) * chunk
        return -(-length // INT8_BLOCK) * INT8_BLOCK

    def _decompress(self, start: int, stop: int, items: np.ndarray) -> None:
        chunks = self.array.chunks
        whole = chunks[0].length  # the last chunk may have fewer elements, and is padded
        for chunk in chunks[bisect.bisect_right(self._starts, start) - 1 :]:
            if chunk.start >= stop:
                break
            if self._decompressed is None or self._decompressed[0] != chunk:
                part = np.empty((chunk.length, items.shape[1]), np.uint8)
                with self._decoding():
                    decompress(self._bytes(chunk.offset, chunk.nbytes), whole, part)
                self._decompressed = chunk, part
            first, last = max(start, chunk.start), min(stop, chunk.start + chunk.length)
            items[first - start : last - start] = self._decompressed[1][first - chunk.start : last - chunk.start]

    def _decode(self, codec: str, start: int, into: np.ndarray) -> None:
        stop = start + into.size
        first = start // INT8_BLOCK * INT8_BLOCK if codec == Int8.name else start
        values = np.empty(stop - first, into.dtype)
        if codec == Int8.name:
            head = encoded_bytes(codec, self.array.size) - self.array.size
            scales = self._stored(first // INT8_BLOCK * 4, -(-stop // INT8_BLOCK) * 4)
            stored = np.concatenate([scales, self._stored(head + first, head + stop)])
        else:
            stored = self._stored(first * 2, stop * 2)
        encoding = Encoding(codec, values.shape, values.dtype, stored.nbytes)
        with self._decoding(), np.errstate(over="ignore", invalid="ignore"):  # forged scales may overflow
            _ELEMENTWISE[codec].decode(stored, encoding, Handle(values, 0, None), values)
        into[:] = values[start - first :]

    def _stored(self, start: int, stop: int) -> np.ndarray:
        """Return stored bytes `start:stop` of an array whose chunks are not compressed."""
        itemsize = stored_itemsize(self.array.codec, self.dtype)
        found = []
        for chunk in self.array.chunks[bisect.bisect_right(self._starts, start // itemsize) - 1 :]:
            begins = chunk.start * itemsize
            first, last = max(start, begins), min(stop, begins + chunk.nbytes)
            if first >= last:
                break
            found.append(self._bytes(chunk.offset + first - begins, last - first))
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.uint8), *found])

    def _bytes(self, offset: int, nbytes: int) -> np.ndarray:
        into = np.empty(nbytes, np.uint8)
        done = 0
        while done < nbytes:
            try:
                count = os.preadv(self._fd, [into[done:].data], offset + done)
            except OSError as error:
                raise SpillError(f"{self._who} could not be read: {error.strerror}; check its disk") from error
            if not count:
                raise self._damaged(f"the file ends {nbytes - done} bytes too early")
            done += count
        return into

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except Undecodable as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, what: str) -> SpillCorruptionError:
        return SpillCorruptionError(f"{self._who} is damaged: {printable(what)}; check its disk")
