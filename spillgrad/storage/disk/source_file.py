"""Read arrays where they lie: in files that are no store's, such as the weights of a model.

A store never writes to such a file. It keeps the file open, so a file that was removed or replaced is read on.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import xxhash

from spillgrad.errors import SpillCorruptionError, SpillError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.storage.disk.chunks import PAGE_BYTES, PIECE_BYTES
from spillgrad.storage.disk.direct_io import open_direct
from spillgrad.storage.disk.file_part import FilePart, FileState
from spillgrad.storage.disk.io_error import what_to_do
from spillgrad.storage.disk.spans import RUN_BYTES, BlockDigests, digest_of, is_small, read_spans
from spillgrad_kernels.memory import buffers

_FLOAT32 = np.dtype(np.float32)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Elements of these types are float32 numbers of fewer bits.
_WIDENED = (_BFLOAT16, np.dtype(np.float16))


def can_read(part: FilePart, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array can be read from a file: it has the same elements, or float32 ones that are as exact."""
    is_widened = dtype == _FLOAT32 and part.dtype in _WIDENED and part.offset % part.dtype.itemsize == 0
    return part.shape == shape and (part.dtype == dtype or is_widened)


class SourceFile:
    """An open file, and the number of arrays that are read from it. Any thread may read.

    `through_cache` tells whether to read through the page cache although the file is open for direct I/O.
    """

    def __init__(self, path: str, state: FileState, direct: bool, through_cache: Callable[[], bool]) -> None:
        """Open the file. Raises OSError; raises SpillCorruptionError if the file is in another state."""
        self.path = path
        self.state = state
        self.arrays = 0
        self._through_cache = through_cache
        self._direct: int | None = None
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._direct = open_direct(path, os.O_RDONLY) if direct else None
            self.require_unchanged()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; no read may be under way."""
        for descriptor in (self._descriptor, self._direct):
            if descriptor is not None:
                os.close(descriptor)
        self._direct = None

    @property
    def is_cached(self) -> bool:
        """Whether reads go through the page cache now."""
        return self._direct is None or self._through_cache()

    def require_unchanged(self) -> None:
        """Raise SpillCorruptionError if the file was changed. Raises OSError."""
        found = FileState.of(self._descriptor)
        if found != self.state:
            how = "its modification time is another"
            if found.size != self.state.size:
                how = f"it has {found.size} bytes, and had {self.state.size}"
            raise SpillCorruptionError(
                f"get: {self.path} was changed while this run reads weights there ({how}); put the former file back, "
                "and run again"
            )

    def announce(self, place: int, nbytes: int) -> None:
        """Have the system begin to read bytes into the page cache; the caller reads them soon."""
        os.posix_fadvise(self._descriptor, place, nbytes, os.POSIX_FADV_WILLNEED)

    def read(self, into: memoryview, place: int) -> int:
        """Fill `into` with the bytes from `place` on, through the page cache; return their number, less at the end."""
        done = 0
        while done < len(into):
            count = os.preadv(self._descriptor, [into[done:]], place + done)
            if not count:
                break
            done += count
        return done

    def read_direct(self, buffer: memoryview, place: int, nbytes: int) -> memoryview:
        """Return `nbytes` from `place` on, fewer at the end of the file, in a page-aligned buffer with a spare page.

        Direct I/O moves whole pages: what lies before and behind on the same pages is read, too.
        """
        first = place // PAGE_BYTES * PAGE_BYTES
        pages = buffer[: -(-(place + nbytes - first) // PAGE_BYTES) * PAGE_BYTES]
        done, direct = 0, self._direct
        while direct is not None and done < place + nbytes - first and done % PAGE_BYTES == 0:
            try:
                count = os.preadv(direct, [pages[done:]], first + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break  # this file system wants larger blocks than pages
            if not count:
                break
            done += count
        if done < place + nbytes - first:
            done += self.read(pages[done : place + nbytes - first], first + done)
        return pages[place - first : max(place - first, min(done, place + nbytes - first))]


class SourceExtent:
    """The place of an array in a file that is no store's.

    The first whole read takes the checksum, and the first read of a part those of the pages in which it lies.
    """

    encoding = None
    staging_bytes = 0

    def __init__(self, file: SourceFile, part: FilePart, checksums: bool) -> None:
        self.file = file
        self.cached = file.is_cached
        self._offset, self._dtype = part.offset, part.dtype
        self._nbytes = int(np.prod(part.shape, dtype=np.int64)) * part.dtype.itemsize
        self._checksums = checksums
        self._checksum: int | None = None
        self._blocks: BlockDigests | None = None  # once parts are read

    def read(self, into: np.ndarray) -> None:
        """Fill a C-contiguous array with the values in the file.

        Raises SpillCorruptionError if the file was changed. Raises SpillError if it cannot be read.
        """
        with self._reading():
            digest = self._fill(into.reshape(-1))
        if self._checksums and self._checksum is None:
            self._checksum = digest  # two threads that read one array have the same
        elif self._checksums:
            self._require_digest(digest)

    def read_spans(self, spans: np.ndarray, into: np.ndarray) -> int:
        """Fill `into`, of one dimension, with spans of elements; return how many bytes of the file were read.

        Raises what `read` raises.
        """
        begin, end = self._offset, self._offset + self._nbytes
        nbytes = 0
        if self._checksums and self._blocks is None:
            if self._checksum is None:
                self._blocks = BlockDigests(begin, self._nbytes)
            else:  # the parts must be those of the whole that was read
                with self._reading():
                    digest, blocks = digest_of(self, begin, end)
                self._require_digest(digest)
                self._blocks = blocks
                nbytes += self._nbytes
        with self._reading():
            places = spans * self._dtype.itemsize + begin
            nbytes += read_spans(self, places, begin, end, lambda content, start: self._convert(content, into, start))
        return nbytes

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Context manager: raise SpillError instead of OSError, and SpillCorruptionError if the file was changed."""
        try:
            try:
                yield
            except SpillCorruptionError:
                self.file.require_unchanged()  # its error says more
                raise
            self.file.require_unchanged()
        except SpillError:
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            raise SpillError(
                f"spill: could not read {self.file.path}: {reason}; {what_to_do(error, 'check that disk')}"
            ) from error

    def announce(self, start: int, stop: int) -> None:
        """Have the system begin to read bytes of the file, counted from its beginning, into the page cache."""
        self.file.announce(start, stop - start)

    def read_run(self, buffer: np.ndarray, start: int, stop: int) -> memoryview:
        """Return bytes of the file, counted from its beginning, in a page-aligned buffer; they are verified."""
        if is_small(start, stop) or self.file.is_cached:
            found = buffer.data[: stop - start]
            found = found[: self.file.read(found, start)]
        else:
            found = self.file.read_direct(buffer.data, start, stop - start)
        self._verify(start, found, stop - start)
        return found

    def _verify(self, start: int, found: memoryview, nbytes: int) -> None:
        if len(found) < nbytes:
            raise self.corrupt("it ends too early")
        if self._blocks is not None and not self._blocks.agree(start, found):
            raise self.corrupt(f"bytes {start} to {start + nbytes} of the file are not those that were read before")

    def _require_digest(self, digest: int) -> None:
        if digest != self._checksum:
            raise self.corrupt(f"checksum {digest:016x}, read with {self._checksum:016x} before")

    def _fill(self, values: np.ndarray) -> int:
        """Fill `values`; return the checksum of the bytes in the file."""
        self.cached = cached = is_small(0, self._nbytes) or self.file.is_cached
        is_straight = cached and self._dtype == values.dtype
        payload, digest = values.view(np.uint8), xxhash.xxh3_64()
        step = PIECE_BYTES if is_straight else RUN_BYTES
        held = None if is_straight else buffers.empty((min(step, self._nbytes) + 2 * PAGE_BYTES,), np.uint8)
        begin, end = self._offset, self._offset + self._nbytes
        while begin < end:
            # Whole pages but at both ends, so that direct I/O reads no page twice.
            stop = min(end, (begin // step + 1) * step)
            start, nbytes = begin - self._offset, stop - begin
            if held is None or cached:
                found = payload.data[start : start + nbytes] if held is None else held.data[:nbytes]
                found = found[: self.file.read(found, begin)]
            else:
                found = self.file.read_direct(held.data, begin, nbytes)
            self._verify(begin, found, nbytes)
            if self._checksums:
                digest.update(found)
            if held is not None:
                self._convert(np.frombuffer(found, np.uint8), values, start)
            begin = stop
        return digest.intdigest()

    def _convert(self, content: np.ndarray, values: np.ndarray, start: int) -> None:
        """Put bytes of the file, from `start` on, to their place in `values`."""
        if self._dtype == values.dtype:
            values.view(np.uint8)[start : start + content.size] = content
            return
        itemsize = self._dtype.itemsize
        target = values[start // itemsize : (start + content.size) // itemsize]
        if self._dtype == _BFLOAT16:  # the first half of the bits of a float32 number; ml_dtypes takes longer
            bits = target.view(np.uint32)
            bits[:] = content.view(np.uint16)
            bits <<= 16
        else:
            target[:] = content.view(self._dtype)

    @property
    def stored_bytes(self) -> int:
        """The number of bytes that the file holds for the array."""
        return self._nbytes

    def corrupt(self, what: str) -> SpillCorruptionError:
        """Return the SpillCorruptionError for an array that came back damaged; `what` describes the damage."""
        return SpillCorruptionError(
            f"get: weights came back damaged from byte {self._offset} of {self.file.path}: {what}; the file was "
            "changed, or that disk is failing: put the former file back, and run again"
        )


class NoValues:
    """The place of an array that has no values yet. Read all the same, it is zeros."""

    encoding = None
    staging_bytes = stored_bytes = 0
    cached = False

    def read(self, into: np.ndarray) -> None:
        """Fill an array with zeros."""
        into.fill(0)

    def read_spans(self, spans: np.ndarray, into: np.ndarray) -> int:
        """Fill an array with zeros; no byte is read."""
        into.fill(0)
        return 0


NO_VALUES = NoValues()


class SourceFiles:
    """The files that the arrays of a store are read from, each opened once, and closed with its last array."""

    def __init__(self, checksums: bool) -> None:
        self._checksums = checksums
        self._lock = ForkSafeLock()
        self._files: dict[tuple[str, FileState], SourceFile] = {}

    def extent(self, part: FilePart, direct: bool, through_cache: Callable[[], bool]) -> SourceExtent:
        """Return the place of an array in a file, which stays open until `free`.

        Raises SpillCorruptionError if the file was changed since its header was read, SpillError if it cannot be read.
        """
        key = part.path, part.state
        with self._lock:
            file = self._files.get(key)
            if file is None:
                try:
                    file = SourceFile(part.path, part.state, direct, through_cache)
                except SpillError:
                    raise
                except OSError as error:
                    reason = error.strerror or str(error)
                    remedy = what_to_do(error, "check that file")
                    raise SpillError(f"spill: could not open {part.path}: {reason}; {remedy}") from error
                self._files[key] = file
            file.arrays += 1
            return SourceExtent(file, part, self._checksums)

    def free(self, extent: SourceExtent) -> None:
        """Forget an array; close its file if that was the last one. No read of the array may be under way."""
        file = extent.file
        key = file.path, file.state
        with self._lock:
            file.arrays -= 1
            if not file.arrays and self._files.get(key) is file:
                del self._files[key]
                file.close()

    def close(self) -> None:
        """Close all files; no read may be under way."""
        with self._lock:
            while self._files:
                self._files.popitem()[1].close()
