"""Bring arrays back from disk into RAM that is counted."""

import time
from pathlib import Path
from typing import cast

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.codecs import Codec, Undecodable
from spillgrad.storage.disk.io_error import io_error
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.state import Account
from spillgrad_kernels import memory


class Loader:
    """Reads entries, in the thread that asks, after their bytes are reserved.

    Invariant: between `begin` and its `end` an entry is `loading`: it has a reader, so its extent stays, and others who
    want it wait for `changed` instead of reading it too. `begin*` and `end*` are called with the lock held.
    """

    def __init__(self, account: Account, directory: Path, codec: Codec | None) -> None:
        self._account = account
        self._codec = codec
        self._directory = directory

    def begin(self, entry: Entry, pinned: bool) -> None:
        """Reserve room for `entry`, which is on disk only; a `pinned` one is for a caller, not for the cache."""
        entry.loading = True
        if not pinned:
            entry.ahead, entry.leaves = True, False
        self._account.cache.absent.discard(entry)
        self.begin_read(entry, pinned)

    def end(self, entry: Entry, array: np.ndarray | None, began_s: float, handed_out: bool) -> None:
        """Count `array` from now on instead of the reservation; None when it could not be read."""
        entry.loading = False
        wanted = handed_out or entry.references > 0
        if array is not None:
            self._account.ledger.read(entry, began_s, ahead=not handed_out)
        if array is not None and wanted:
            self._account.cache.lend(entry, array, handed_out)
        else:
            self._account.cache.unreserve(entry.nbytes, pinned=handed_out)
        self.end_read(entry)
        self._account.drain()

    def begin_read(self, entry: Entry, pinned: bool) -> None:
        """Reserve room to read `entry` and keep its extent from being freed."""
        cache, staging_bytes = self._account.cache, entry.staging_bytes
        cache.make_room(entry.nbytes + staging_bytes)
        cache.reserve(staging_bytes)
        cache.reserve(entry.nbytes, pinned)
        entry.readers += 1
        self._account.readers += 1

    def end_read(self, entry: Entry) -> None:
        """Let the extent go; the room reserved for the array is the caller's to give back."""
        self._account.cache.unreserve(entry.staging_bytes)
        entry.readers -= 1
        self._account.readers -= 1
        if entry.references <= 0:
            self._account.free_extent(entry)
        self._account.changed.notify_all()

    def wait(self, entry: Entry) -> None:
        """Wait while somebody else loads `entry`. Called with the lock held."""
        if entry.loading:
            started = time.perf_counter()
            while entry.loading:
                self._account.changed.wait()
            self._account.ledger.waited_to_get(started, entry)

    def load(self, entry: Entry) -> np.ndarray:
        """Read `entry`, begun, for a caller who needs it now. Called without the lock."""
        started = time.perf_counter()
        array = None
        try:
            array = self.read(entry)
        finally:
            with self._account.lock:
                self._account.ledger.waited_to_get(started, entry)
                self.end(entry, array, started, handed_out=True)
        return array

    def prefetch(self, entry: Entry) -> None:
        """Read `entry`, begun, for whoever will need it. Called without the lock, in the prefetcher's thread."""
        array = None
        started = time.perf_counter()
        try:
            array = self.read(entry)
        except (SpillError, MemoryError):
            # Who needs it reads it again and is told. It is not among the absent ones now, nor tried here again.
            return
        finally:
            with self._account.lock:
                self.end(entry, array, started, handed_out=False)
                # From here on only the cache holds it: who evicts it must see its bytes go.
                array = None

    def read(self, entry: Entry) -> np.ndarray:
        """Read `entry` into new memory, for which room is reserved. Called without the lock.

        Raises SpillCorruptionError, or SpillError when it cannot be read.
        """
        array = memory.empty(entry.shape, entry.dtype)
        extent = cast(Extent, entry.extent)  # not freed while it has a reader
        try:
            if extent.encoding is None or self._codec is None:
                with self._account.ledger.reading:
                    extent.read(array)
            else:
                stored = memory.empty((extent.encoding.nbytes,), np.uint8)
                with self._account.ledger.reading:
                    extent.read(stored)
                self._codec.decode(stored, extent.encoding, entry, array)
        except Undecodable as error:
            raise extent.corrupt(str(error)) from error
        except SpillError:
            raise
        except OSError as error:
            raise io_error("read", entry, self._directory, error) from error
        return array
