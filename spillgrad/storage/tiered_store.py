"""A store of two tiers: the arrays needed soonest are in one, within a budget, the others in the tier below."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, cast

import numpy as np

from spillgrad.storage.residency.entry import E, Entry
from spillgrad.storage.residency.residence import CHANGING, LOADING
from spillgrad.storage.residency.tier_state import TierState
from spillgrad.storage.store import Handle, Label, Watcher, changed_error
from spillgrad.storage.threads.store_lock import interrupted_error


class TieredStore(Generic[E]):
    """The base of stores of two tiers; a class that derives from it defines the tier below.

    The lock of the state guards everything. Reads, writes and callbacks of callers run without the lock.
    """

    _state: TierState[E]

    # What the tier below does

    def _wait_for_room(
        self, nbytes: int, label: Label, dtype: np.dtype[Any] | None, raises: bool = True
    ) -> bool:  # fmt: skip
        """Wait until `nbytes` fit; return False if only callers could make room. Called with the lock held.

        A failed write raises SpillError, or ends the wait if not `raises`.
        """
        raise NotImplementedError

    def _begin_load(self, entry: E) -> None:
        """Reserve room for an array that a caller needs from the tier below. Called with the lock held."""
        raise NotImplementedError

    def _load(self, entry: E) -> np.ndarray:
        """Read an array, after `_begin_load`. Called without the lock."""
        raise NotImplementedError

    def _note_use(self, entry: E, is_here: bool) -> None:
        """No-op hook for subclasses: called, with the lock held, at a use; `is_here` unless the array is read."""

    def _begin_change(self, entry: E) -> None:
        """No-op hook for subclasses: called, with the lock held, when a caller is about to modify an array."""

    def _end_change(self, entry: E, changed: bool) -> None:
        """Let the array of an entry be written and evicted again. Called with the lock held."""
        raise NotImplementedError

    def own(self, array: np.ndarray) -> np.ndarray:
        """Return an array that the store can take over as a persistent one: `array` or a copy."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array in the tier, which a caller can fill and give to `begin_change`."""
        raise NotImplementedError

    # What callers do

    @property
    def budget_bytes(self) -> int:
        """How many bytes the tier may hold."""
        return self._state.tier.budget_bytes

    def allow(self, budget_bytes: int) -> None:
        """Change the budget, and evict what may go at once; the rest goes as callers store and use arrays.

        Parameters
        ----------
        budget_bytes : int
            The new budget.
        """
        with self._state.lock:
            self._state.tier.allow(budget_bytes)
            self._state.tier.make_room(0)

    def get(self, handle: Handle) -> np.ndarray:
        """Return the array of a handle; see `Store.get`. Reads the tier below unless the array is loaded or loading.

        Parameters
        ----------
        handle : Handle
            The handle of the array.

        Returns
        -------
        ndarray
            The array, which all callers share.
        """
        state, tier = self._state, self._state.tier
        checked = None
        while True:
            with state.lock:
                state.require_open("get")
                entry = state.live_entry("get", handle)
                if entry.residence is LOADING:
                    self._wait_for_load(entry)
                    continue  # it may have been evicted since, and another thread may be loading it again
                if entry.is_below_only:
                    # Backward needs what is on disk, also if the disk takes no more.
                    self._wait_for_room(entry.loading_bytes, entry.label, entry.dtype, raises=entry.persistent)
                    if not entry.is_below_only:
                        continue  # it was loaded meanwhile, or was dropped
                array, unchanged = tier.held(entry)
                if unchanged is None or array is checked:
                    self._use(entry, array)
                    break
            if unchanged():
                checked = array
            else:
                self._discard_changed(entry, cast(np.ndarray, array), unchanged)
        if array is None:
            array = self._load(entry)
        entry.await_arrival()
        return array

    def held(self, handle: Handle) -> np.ndarray | None:
        """Return an array if it is in RAM; unlike `get`, this is no use that later steps are to expect.

        Parameters
        ----------
        handle : Handle
            The handle of the array.

        Returns
        -------
        ndarray or None
            The array, which all callers share; None if it must be read, or is being read, and if somebody watches it
            for changes.
        """
        state = self._state
        with state.lock:
            entry = state.open_entry("get", handle)
            array, unchanged = state.tier.held(entry)
        if array is None or unchanged is not None:
            return None
        entry.await_arrival()
        return array

    def _use(self, entry: E, array: np.ndarray | None) -> None:
        """Record a use of an entry, and begin to load the array if `array` is None. Called with the lock held."""
        self._state.tier.schedule.get(entry)
        if array is None:
            self._begin_load(entry)
            entry.moving_thread = threading.get_ident()
        else:
            self._state.tier.hand_out(entry)
        self._note_use(entry, array is not None)

    def use(self, handle: Handle) -> None:
        """Record that a caller uses an array that it holds already; see `Store.use`.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        """
        state = self._state
        with state.lock:
            entry = state.open_entry("use", handle)
            state.tier.schedule.get(entry)
            self._note_use(entry, is_here=True)

    def begin_change(self, handle: Handle, array: np.ndarray) -> None:
        """Announce that an array is about to be modified; see `Store.begin_change`.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        array : ndarray
            The array, or the one that becomes the array of `handle`.
        """
        state = self._state
        with state.lock:
            entry = state.open_entry("begin_change", handle)
            self._wait_until_idle("begin_change", entry)
            while not state.tier.counts(entry, array):
                self._wait_for_room(entry.nbytes, entry.label, entry.dtype)
                if not entry.is_in_use:
                    break
                self._wait_until_idle("begin_change", entry)  # another array may have taken the room meanwhile
            if entry.residence is not CHANGING:
                state.tier.begin_change(entry, array)
                self._begin_change(entry)

    def end_change(self, handle: Handle, changed: bool = True) -> None:
        """Announce that the array has its new values; see `Store.end_change`. Waits while the budget is exceeded."""
        state = self._state
        with state.lock:
            entry = state.open_entry("end_change", handle)
            while entry.residence is CHANGING and changed and entry.readers:  # `check` reads its place below
                state.changed.wait()
                entry = state.open_entry("end_change", handle)
            if entry.residence is CHANGING:
                self._end_change(entry, changed)

    @contextlib.contextmanager
    def room(self, nbytes: int) -> Iterator[None]:
        """Count bytes for the caller in a ``with`` block; first wait, as `put` does, until they fit, if they can.

        Parameters
        ----------
        nbytes : int
            The number of bytes.

        Yields
        ------
        None
            While the bytes are counted.
        """
        state = self._state
        with state.lock:
            room = self._begin_room(nbytes)
        try:
            yield
        finally:
            with state.lock:
                state.tier.end_room(nbytes, room)

    def _begin_room(self, nbytes: int) -> Any:
        """Wait for room, and count it; return what `end_room` of the tier takes. Called with the lock held."""
        self._state.require_open("room")
        self._wait_for_room(nbytes, Label(op="room"), None)
        return self._state.tier.begin_room(nbytes)

    def watch(self, handle: Handle, array: np.ndarray, watcher: Watcher, instead_of: object) -> Any:
        """Ask a watcher, before an array is handed out again, whether the array is unchanged.

        The store holds the watcher as long as it holds the array. If the watcher dies before the array, the store
        presumes that the array changed, and reads its own copy.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        array : ndarray
            The array.
        watcher : Watcher
            Its method `is_unchanged` answers.
        instead_of : object
            The watcher that is to be replaced; None if there is none.

        Returns
        -------
        object
            `watcher`, or the watcher with which another thread has replaced `instead_of` meanwhile.
        """
        state = self._state
        with state.lock:
            present = handle.watcher()
            if present is instead_of or present is None:
                handle.watcher, present = weakref.ref(watcher), watcher
                entry = state.entries.get(handle.sequence)
                if entry is handle:
                    state.tier.watch(entry, array, watcher.is_unchanged)
        return present

    def drop(self, handle: Handle) -> None:
        """Release one reference; see `Store.drop`. Does nothing for a handle without references.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        """
        self._state.posted.append(handle)
        self._state.try_drain_posts()

    def is_here(self, handle: Handle) -> bool:
        """Return whether `get` would find an array in the tier now.

        Parameters
        ----------
        handle : Handle
            The handle of the array.

        Returns
        -------
        bool
            False for an array that is only below, or that is being loaded.
        """
        with self._state.lock:
            entry = self._state.open_entry("is_here", handle)
            return not entry.is_below_only and entry.residence is not LOADING

    def _wait_until_idle(self, who: str, entry: E) -> None:
        """Wait until no thread reads or writes an entry's array or its place below. Called with the lock held."""
        state = self._state
        while entry.is_in_use:
            _require_another_thread(entry)
            state.changed.wait()
            state.open_entry(who, entry)

    def _wait_for_load(self, entry: E) -> None:
        """Wait until another thread has read the array. Called with the lock held, which is released meanwhile."""
        _require_another_thread(entry)
        while entry.residence is LOADING:
            self._state.changed.wait()

    def _discard_changed(self, entry: E, array: np.ndarray, unchanged: Callable[[], bool]) -> None:
        """Forget an array that a caller modified; values in the tier below stay valid. Called without the lock.

        Does nothing if the array is no longer checked by `unchanged`: the caller may have begun to change it.
        """
        tier = self._state.tier
        with self._state.lock:
            present, tells = tier.held(entry)
            if entry.references <= 0 or present is not array or tells != unchanged:
                return
            if entry.has_copy_below:
                tier.forget(entry)
            else:
                entry.error = changed_error(entry)
                tier.remove(entry)


def _require_another_thread(entry: Entry) -> None:
    """Raise SpillError if this thread, interrupted by a finalizer or signal handler, reads or writes the array."""
    if entry.moving_thread == threading.get_ident():
        raise interrupted_error()
