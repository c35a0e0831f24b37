"""The file object through which HDF5 reads and writes its structure."""

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from spillgrad.storage.disk.chunks import PAGE_BYTES


class StructureFile:
    """The file object through which h5py's `fileobj` driver reads and writes everything but payloads.

    Invariant: HDF5 never sees an I/O error. An error while HDF5 writes, on a full disk or past a limit on file sizes,
    would leave its metadata cache in a state in which the file can neither be used nor closed ("Target already
    protected", "slist already enabled"). HDF5's own driver also fails to close if it cannot set the length of the file.
    So the first error is kept in `error`, where callers look for it. From then on nothing is written, as after
    `abandon`.

    `pages` has an element for each page of the file: whether structure was written there.

    It is used only under h5py's lock, as all of HDF5 is.
    """

    def __init__(self, fd: int) -> None:
        self.error: OSError | None = None
        self._fd = fd
        self._position = 0
        self._abandoned = False
        self._elsewhere = range(0)
        self.pages = np.zeros(1024, np.bool_)

    @contextlib.contextmanager
    def written_elsewhere(self, payload: np.ndarray) -> Iterator[None]:
        """Context manager: HDF5 assigns places to the bytes of `payload`, but its writes of these bytes are ignored."""
        start = payload.__array_interface__["data"][0]
        self._elsewhere = range(start, start + payload.nbytes)
        try:
            yield
        finally:
            self._elsewhere = range(0)

    def taken(self, start: int, stop: int) -> None:
        """Record that bytes `start:stop` of the file now belong to a payload, and hold no structure."""
        self.pages[-(-start // PAGE_BYTES) : stop // PAGE_BYTES] = False

    def abandon(self) -> None:
        """Ignore all writes from now on."""
        self._abandoned = True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to `offset`, counted from the start, or from the end with SEEK_END; return the position."""
        self._position = offset + (os.fstat(self._fd).st_size if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer` from the position, with zeros past the end of the file; return its length."""
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:]], self._position + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            self._fail(error)
        buffer[done:] = bytes(len(buffer) - done)
        return len(buffer)

    def write(self, buffer: memoryview) -> int:
        """Write all of `buffer` at the position, and return its length."""
        done = 0
        if self._elsewhere and np.asarray(buffer).__array_interface__["data"][0] in self._elsewhere:
            return len(buffer)
        self._note(self._position, self._position + len(buffer))
        try:
            while done < len(buffer) and not self._abandoned:
                done += os.pwrite(self._fd, buffer[done:], self._position + done)
        except OSError as error:
            self._fail(error)
        return len(buffer)

    def truncate(self, nbytes: int) -> None:
        """Set the file's length."""
        try:
            if not self._abandoned:
                os.ftruncate(self._fd, nbytes)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Do nothing: this object has no buffer."""

    def _note(self, start: int, stop: int) -> None:
        if stop > len(self.pages) * PAGE_BYTES:
            self.pages = np.append(self.pages, np.zeros(stop // PAGE_BYTES + 1, np.bool_))
        self.pages[start // PAGE_BYTES : -(-stop // PAGE_BYTES)] = True

    def _fail(self, error: OSError) -> None:
        self.error = self.error or error
        self._abandoned = True
