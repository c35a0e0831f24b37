"""Read arrays back from disk into RAM that the budget counts."""

import time
from typing import cast

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.codecs import Codec, Undecodable
from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.disk.io_error import io_error
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.disk.source_file import NoValues, SourceExtent
from spillgrad.storage.disk.spans import digest_bytes
from spillgrad.storage.state import StoreState
from spillgrad_kernels.memory import buffers


class Loader:
    """Reads entries in the calling thread, after room for their bytes is reserved.

    Invariant: between `begin` and `end` an entry is LOADING and has a reader. So its extent is not freed, and other
    threads that want the entry wait for `changed` instead of reading the entry too. Methods whose names begin with
    `begin` or `end` are called with the lock held.
    """

    def __init__(self, state: StoreState, codec: Codec | None) -> None:
        self._state = state
        self._codec = codec

    def begin(self, entry: DiskEntry, pinned: bool) -> None:
        """Begin to read an entry that is on disk only, for a caller (`pinned`) or as a prefetch; reserve room."""
        self._state.tier.begin_load(entry, pinned)
        self.begin_read(entry, pinned)

    def end(self, entry: DiskEntry, array: np.ndarray | None, began_s: float, handed_out: bool) -> None:
        """End a read for a caller (`handed_out`) or a prefetch: count `array`, not its room; None: the read failed."""
        if array is not None:
            self._state.counters.read(entry, began_s, prefetched=not handed_out)
        self._state.tier.end_load(entry, array, handed_out)
        self.end_read(entry)
        self._state.drain_posts()

    def begin_read(self, entry: DiskEntry, pinned: bool) -> None:
        """Reserve room to read an entry, and keep its extent from being freed until `end_read`."""
        tier, staging_bytes = self._state.tier, entry.staging_bytes
        tier.make_room(entry.loading_bytes)
        tier.reserve(staging_bytes, entry=entry)
        tier.reserve(entry.nbytes, pinned, entry)
        entry.readers += 1
        self._state.readers += 1

    def end_read(self, entry: DiskEntry) -> None:
        """Let the extent be freed again. The caller gives back the room that is reserved for the array."""
        self._state.tier.unreserve(entry.staging_bytes, entry=entry)
        entry.readers -= 1
        self._state.readers -= 1
        if entry.references <= 0:
            self._state.free_below(entry)
        self._state.changed.notify_all()

    def load(self, entry: DiskEntry) -> np.ndarray:
        """Read an entry, after `begin`, for a caller that needs it now. Called without the lock."""
        started = time.perf_counter()
        array = None
        try:
            array = self.read(entry)
        finally:
            with self._state.lock:
                self._state.counters.waited_to_get(started, entry)
                self.end(entry, array, started, handed_out=True)
        return array

    def begin_spans(self, entry: DiskEntry) -> bool:
        """Begin to read parts of an entry that is not in RAM: keep its extent from being freed until `end_read`.

        Count the memory of the checksums of its pages. Return False if parts cannot be read.
        """
        if not entry.is_absent or entry.extent is None or entry.staging_bytes:  # to decode takes the whole
            return False
        if not entry.digest_bytes:
            entry.digest_bytes = digest_bytes(entry.nbytes)
            entry.beside_bytes += entry.digest_bytes
            self._state.tier.reserve(entry.digest_bytes, pinned=True, entry=entry)
        entry.readers += 1
        self._state.readers += 1
        return True

    def read_spans(self, entry: DiskEntry, spans: np.ndarray, into: np.ndarray) -> None:
        """Read parts of an entry, after `begin_spans`, for a caller. Called without the lock."""
        started = time.perf_counter()
        nbytes = 0
        try:
            with self._state.counters.reading:
                nbytes = cast(Extent | SourceExtent | NoValues, entry.extent).read_spans(spans, into)
        except SpillError:
            raise
        except OSError as error:
            raise io_error("read", entry, self._state.directory, error) from error
        finally:
            with self._state.lock:
                self._state.counters.read_part(entry, nbytes, started)
                self.end_read(entry)

    def prefetch(self, entry: DiskEntry) -> None:
        """Read an entry, after `begin`, before a caller asks for it. Called without the lock, in an I/O thread."""
        array = None
        started = time.perf_counter()
        try:
            array = self.read(entry)
        except (SpillError, MemoryError):
            # The caller that needs it reads it again, and gets the error. It is UNREADABLE, so not prefetched again.
            return
        finally:
            with self._state.lock:
                self.end(entry, array, started, handed_out=False)
                # From here on only the tier holds it: when it is evicted, its bytes must go.
                array = None

    def read(self, entry: DiskEntry) -> np.ndarray:
        """Read an entry into new memory, for which room is reserved. Called without the lock.

        Raises SpillCorruptionError if the bytes are damaged, and SpillError if they cannot be read.
        """
        array = buffers.empty(entry.shape, entry.dtype)
        extent = entry.extent  # not freed while it has readers
        if not isinstance(extent, Extent):
            with self._state.counters.reading:
                cast(SourceExtent | NoValues, extent).read(array)
            return array
        try:
            if extent.encoding is None or self._codec is None:
                with self._state.counters.reading:
                    extent.read(array)
            else:
                stored = buffers.empty((extent.encoding.nbytes,), np.uint8)
                with self._state.counters.reading:
                    extent.read(stored)
                self._codec.decode(stored, extent.encoding, entry, array)
        except Undecodable as error:
            raise extent.corrupt(str(error)) from error
        except SpillError:
            raise
        except OSError as error:
            raise io_error("read", entry, self._state.directory, error) from error
        return array
