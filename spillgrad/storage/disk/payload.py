"""Read and write the bytes of arrays at given offsets of a file, through the page cache or past it."""

import errno
import os
from collections.abc import Callable

import numpy as np

from spillgrad.storage.disk.chunks import PAGE_BYTES
from spillgrad.storage.disk.direct_io import open_direct
from spillgrad_kernels.memory import buffers

# The bytes of a piece in which arrays are copied for writing. Larger pieces take more memory and are no faster.
_COPIED_BYTES = 2 << 20


class PayloadFile:
    """Reads and writes the bytes of arrays in a file, through the page cache, or past it if `direct`.

    Direct I/O (O_DIRECT) takes a third of the page cache's processor time, but moves only whole pages, to and from
    page-aligned addresses. A large array that is not page-aligned, because another library allocated it, is written
    from a buffer, to which it is copied first. Each writing thread has one such buffer, which no budget counts. Small
    arrays, the last partial page of other arrays, and everything on a file system without direct I/O go through the
    page cache, which the kernel keeps consistent with the file. Any thread may read and write.
    """

    def __init__(self, path: str, descriptor: int, direct: bool) -> None:
        self._descriptor = descriptor
        self._direct = open_direct(path, os.O_RDWR) if direct else None

    def close(self) -> None:
        """Close the descriptor for direct I/O; no read or write may be under way."""
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def write(self, array: np.ndarray, start: int, nbytes: int, file_offset: int, cached: bool = False) -> None:
        """Write bytes `start:start + nbytes` of a C-contiguous array at `file_offset`.

        With `cached`, the bytes go through the page cache. Raises OSError if the write fails.
        """
        payload = array.reshape(-1).view(np.uint8)[start : start + nbytes]
        if cached or self._direct is None or nbytes < buffers.POOLED_MIN_BYTES or _is_at_page(payload):
            self._move(os.pwritev, payload, file_offset, cached)
            return
        try:
            buffer = copy_buffer(nbytes)
        except MemoryError:  # write without a buffer: once written, the array can be freed
            self._move(os.pwritev, payload, file_offset, cached=True)
            return
        for done in range(0, nbytes, buffer.nbytes):
            piece = payload[done : done + buffer.nbytes]
            buffer[: piece.size] = piece
            self._move(os.pwritev, buffer[: piece.size], file_offset + done, cached)

    def announce(self, file_offset: int, nbytes: int) -> None:
        """Have the system begin to read bytes into the page cache; the caller reads them soon."""
        os.posix_fadvise(self._descriptor, file_offset, nbytes, os.POSIX_FADV_WILLNEED)

    def read(self, array: np.ndarray, start: int, nbytes: int, file_offset: int, cached: bool = False) -> int:
        """Fill bytes `start:start + nbytes` of a C-contiguous array from `file_offset`; return how many bytes it read.

        The result is below `nbytes` only if the file ends. With `cached`, the bytes go through the page cache. Raises
        OSError if the read fails.
        """
        return self._move(os.preadv, array.reshape(-1).view(np.uint8)[start : start + nbytes], file_offset, cached)

    def _move(self, call: Callable[..., int], payload: np.ndarray, file_offset: int, cached: bool) -> int:
        direct = None if cached or not _is_at_page(payload) else self._direct
        view = payload.data
        done = 0
        while done < len(view):
            place = file_offset + done
            count = 0
            if direct is not None and done % PAGE_BYTES == 0 and place % PAGE_BYTES == 0:
                count = _move_pages(call, direct, view[done:], place)
            if not count:
                count = call(self._descriptor, [view[done:]], place)
            if not count:
                break
            done += count
        return done


def copy_buffer(nbytes: int) -> np.ndarray:
    """Return a page-aligned buffer, to which the parts of a payload of `nbytes` are copied before they are written."""
    return buffers.empty((min(_COPIED_BYTES, nbytes),), np.uint8)


def _is_at_page(payload: np.ndarray) -> bool:
    """Return whether the memory of `payload` begins at a page boundary."""
    address: int = payload.__array_interface__["data"][0]
    return address % PAGE_BYTES == 0


def _move_pages(call: Callable[..., int], direct: int, view: memoryview, place: int) -> int:
    """Have `call` move the whole pages of a page-aligned `view`; return the bytes moved, 0 if blocks must be larger."""
    whole = len(view) // PAGE_BYTES * PAGE_BYTES
    try:
        return call(direct, [view[:whole]], place) if whole else 0
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return 0  # this file system wants larger blocks than pages
