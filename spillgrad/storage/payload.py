"""Move bytes between memory and their places in a file, through the page cache or past it."""

import errno
import os
from collections.abc import Callable

import numpy as np

from spillgrad.storage.chunks import PAGE_BYTES
from spillgrad.storage.disk_speed import open_direct


class PayloadFile:
    """A file's bytes, as `descriptor` sees them, and past the page cache if `direct`.

    Direct I/O (O_DIRECT) takes a third of the processor's time but moves whole pages between page addresses only. What
    else there is, such as an array's last, partial page, goes through the page cache, which the kernel keeps in step
    with the file; so does everything where the file system knows no direct I/O. Any thread may read and write.
    """

    def __init__(self, path: str, descriptor: int, direct: bool) -> None:
        self._descriptor = descriptor
        self._direct = open_direct(path, os.O_RDWR) if direct else None

    def close(self) -> None:
        """Close what was opened here; nothing may be under way."""
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def write(self, array: np.ndarray, start: int, nbytes: int, file_offset: int, cached: bool = False) -> None:
        """Write bytes `start:start + nbytes` of a C-contiguous array at `file_offset`.

        With `cached` they go through the page cache.
        Raises OSError when the disk refuses.
        """
        self._move(os.pwritev, array, start, nbytes, file_offset, cached)

    def read(self, array: np.ndarray, start: int, nbytes: int, file_offset: int, cached: bool = False) -> int:
        """Fill bytes `start:start + nbytes` of a C-contiguous array from `file_offset`; return how many there were.

        Raises OSError when they cannot be read.
        """
        return self._move(os.preadv, array, start, nbytes, file_offset, cached)

    def _move(
        self, call: Callable[..., int], array: np.ndarray, start: int, nbytes: int, file_offset: int, cached: bool
    ) -> int:
        direct = None if cached else self._direct
        payload = array.reshape(-1).view(np.uint8)[start : start + nbytes]
        address = payload.__array_interface__["data"][0]
        memory = payload.data
        done = 0
        while done < nbytes:
            place = file_offset + done
            count = 0
            if direct is not None and (address + done) % PAGE_BYTES == 0 and place % PAGE_BYTES == 0:
                count = _move_pages(call, direct, memory[done:], place)
            if not count:
                count = call(self._descriptor, [memory[done:]], place)
            if not count:
                break
            done += count
        return done


def _move_pages(call: Callable[..., int], direct: int, memory: memoryview, place: int) -> int:
    """Move the whole pages of memory that begins at a page's address; return how many bytes that were.

    0 if the file refuses.
    """
    whole = len(memory) // PAGE_BYTES * PAGE_BYTES
    try:
        return call(direct, [memory[:whole]], place) if whole else 0
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return 0  # this file system wants larger blocks than pages
