"""The plainest store: a dictionary in RAM. Other stores must behave like it, except for the memory they take."""

import collections
from collections.abc import Callable, Hashable, Iterable
from typing import cast

import numpy as np

from spillgrad.errors import SpillCorruptionError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.storage.store import (
    Handle,
    Label,
    Remote,
    StoreStats,
    changed_error,
    closed_error,
    dense_copy,
    gone_error,
    may_be_kept,
    storable,
)


class _Kept(Handle):
    __slots__ = ("array", "arrival", "changing", "key", "references", "unchanged")
    array: np.ndarray
    arrival: Callable[[], None] | None
    key: Hashable | None
    references: int
    unchanged: Callable[[], bool] | None
    changing: bool


class MemoryStore:
    """Store that keeps arrays in RAM, without bound.

    It has all methods of `Store`.

    Notes
    -----
    The lock guards everything except `_dropped`, to which `drop` appends without the lock.

    Examples
    --------
    >>> import numpy as np
    >>> import spillgrad as sg
    >>> store = sg.storage.MemoryStore()
    >>> handle = store.put(np.arange(3))
    >>> store.get(handle)
    array([0, 1, 2])
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._dropped: collections.deque[Handle] = collections.deque()
        self._kept: dict[int, _Kept] = {}
        self._by_key: dict[Hashable, _Kept] = {}
        self._closed = self._retiring = False
        self._sequence = self._packed = self._deduplicated = self._live = self._peak = self._hits = 0

    def put(
        self, array: np.ndarray | Remote, *, key: Hashable | None = None, label: Label | None = None,
        unchanged: Callable[[], bool] | None = None, persistent: bool = False,
    ) -> Handle:  # fmt: skip
        """Keep `array` and return its handle, as `Store.put` does.

        Parameters
        ----------
        array : ndarray or Remote
            The array.
        key : hashable, optional
            Identity of the array. With the key of a live handle, that handle is returned again, with one more
            reference.
        label : Label, optional
            Where the array comes from.
        unchanged : callable, optional
            Function that returns False once the caller has modified the array.
        persistent : bool, default False
            Makes no difference here.

        Returns
        -------
        Handle
            For the other methods.

        Raises
        ------
        SpillError
            If the store is closed, or if the array cannot be stored.
        """
        array = storable(array)
        with self._lock:
            self._drain()
            if self._closed:
                raise closed_error("put")
            self._packed += array.nbytes
            if key is not None and key in self._by_key:
                handle = self._by_key[key]
                handle.references += 1
                self._deduplicated += array.nbytes
                return handle
            handle = _Kept(array, self._sequence, label)
            handle.array, handle.arrival = _dense(array)
            handle.key, handle.references = key, 1
            handle.unchanged, handle.changing = unchanged if handle.array is array else None, False
            self._sequence += 1
            self._kept[handle.sequence] = handle
            if key is not None:
                self._by_key[key] = handle
            self._live += array.nbytes
            self._peak = max(self._peak, self._live)
            return handle

    def get(self, handle: Handle) -> np.ndarray:
        """Return the array of a handle.

        Parameters
        ----------
        handle : Handle
            What `put` returned.

        Returns
        -------
        ndarray
            The array.

        Raises
        ------
        SpillError
            If the array was changed, if its handle was dropped, or if the store is closed.
        """
        with self._lock:
            self._drain()
            if self._closed:
                raise closed_error("get")
            kept = self._kept.get(handle.sequence)
            if kept is None or kept is not handle:
                raise gone_error("get", handle)
            self._hits += 1
        if kept.arrival is not None:
            kept.arrival()
        if kept.unchanged is not None and not kept.changing and not kept.unchanged():
            raise changed_error(handle)
        return kept.array

    def use(self, handle: Handle) -> None:
        """Do what `get` does, without returning the array.

        Parameters
        ----------
        handle : Handle
            The handle of the array.

        Raises
        ------
        SpillError
            As by `get`.
        """
        self.get(handle)

    def begin_change(self, handle: Handle, array: np.ndarray) -> None:
        """Announce that an array is about to be modified, as `Store.begin_change` does.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        array : ndarray
            The array that is modified, which becomes the array of `handle`.

        Raises
        ------
        SpillError
            As by `get`.
        """
        self.get(handle)
        kept = cast(_Kept, handle)
        kept.array, kept.changing = array, True

    def end_change(self, handle: Handle, changed: bool = True) -> None:
        """Announce that an array has its values, as `Store.end_change` does.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        changed : bool, default True
            Whether the array has new values.
        """
        kept = cast(_Kept, handle)
        kept.changing = False
        if changed:
            kept.unchanged = None

    def replace(self, handle: Handle, array: Remote) -> None:
        """Store the values of a remote array under a handle, as `Store.replace` does.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        array : Remote
            Array outside of the host's memory, of the same shape and dtype.

        Raises
        ------
        SpillError
            As by `get`.
        """
        self.get(handle)
        kept = cast(_Kept, handle)
        (kept.array, kept.arrival), kept.unchanged = _dense(array), None

    def begin_step(self) -> None:
        """Do nothing: all is in RAM."""

    def drop(self, handle: Handle) -> None:
        """Release one reference of a handle; the last one frees the array.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        """
        self._dropped.append(handle)
        self._try_drain()

    def prefetch(self, handles: Iterable[Handle]) -> None:
        """Do nothing: all is in RAM.

        Parameters
        ----------
        handles : iterable of Handle
            The handles of the arrays.
        """

    def flush(self) -> None:
        """Do nothing: there are no files."""

    def stats(self) -> StoreStats:
        """Return the present counters.

        Returns
        -------
        StoreStats
            Those of the disk are 0.
        """
        with self._lock:
            self._drain()
            return StoreStats(
                packed_bytes=self._packed,
                deduplicated_bytes=self._deduplicated,
                live_bytes=self._live,
                ram_bytes=self._live,
                peak_ram_bytes=self._peak,
                cache_hits=self._hits,
            )

    def check(self) -> list[SpillCorruptionError]:
        """Do nothing: there are no files.

        Returns
        -------
        list of SpillCorruptionError
            Empty.
        """
        return []

    def retire(self) -> None:
        """Close as soon as no handle is live."""
        self._retiring = True
        self._try_drain()

    def _try_drain(self) -> None:
        """Drop the handles in `_dropped`, unless any thread, this one included, has the lock."""
        if not self._lock.is_mine() and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Free everything; arrays handed out stay valid."""
        with self._lock:
            self._closed = True
            self._kept.clear()
            self._by_key.clear()
            self._live = 0

    def _drain(self) -> None:
        while self._dropped:
            handle = self._dropped.popleft()
            kept = self._kept.get(handle.sequence)
            if kept is None or kept is not handle:
                continue
            kept.references -= 1
            if kept.references == 0:
                del self._kept[kept.sequence]
                if kept.key is not None:
                    del self._by_key[kept.key]
                self._live -= kept.nbytes
        if self._retiring and not self._kept:
            self._closed = True


def _dense(array: np.ndarray | Remote) -> tuple[np.ndarray, Callable[[], None] | None]:
    return (cast(np.ndarray, array), None) if may_be_kept(array) else dense_copy(array)
