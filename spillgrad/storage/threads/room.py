"""Let callers wait for room in RAM."""

import time
from typing import Any

import numpy as np

from spillgrad.storage.state import StoreState
from spillgrad.storage.store import Label
from spillgrad.storage.threads.full_disk import FullDisk


class Room:
    """Lets callers wait for room. If the disk refuses writes and arrays may stay in RAM, no caller waits.

    The store's lock guards everything, and every method is called with the lock held.
    """

    def __init__(self, state: StoreState, full_disk: FullDisk) -> None:
        self._state = state
        self._full_disk = full_disk
        self.waiting_puts = self.waiting_bytes = 0
        state.tier.on_room = self.wake_waiting

    def missing_bytes(self) -> int:
        """Evict what can be evicted, and return how many bytes the waiting callers still lack."""
        tier = self._state.tier
        if not self.waiting_puts or tier.make_room(self.waiting_bytes):
            return 0
        return self.waiting_bytes + tier.used_bytes - tier.budget_bytes

    def wake_waiting(self) -> None:
        """Wake the waiting callers to check again for room."""
        if self.waiting_puts:
            self._state.changed.notify_all()

    def wait_for(
        self, nbytes: int, label: Label, dtype: np.dtype[Any] | None, until_all_left: bool = False, raises: bool = True,
    ) -> bool:  # fmt: skip
        """Wait until `nbytes` fit, or the disk refuses writes; return False if only callers could make room.

        `label` and `dtype` describe the array that needs the room; `dtype` is None if no array does. With
        `until_all_left`, returns False only once no other array can leave RAM. Raises SpillError if a write failed and
        arrays may not stay in RAM; returns False then if not `raises`.
        """
        state, tier = self._state, self._state.tier
        if self._full_disk.is_paused:
            return True
        if nbytes > tier.budget_bytes:
            return False
        if tier.make_room(nbytes):
            return True
        started = time.perf_counter()
        self.waiting_puts += 1
        self.waiting_bytes += nbytes
        try:
            while not tier.make_room(nbytes):
                others_leave = until_all_left and (tier.dirty or tier.writing_bytes)
                if tier.pinned_bytes + nbytes > tier.budget_bytes and not others_leave:
                    return False
                if state.failures and not raises:
                    return False
                if self._is_paused(raises):  # after a failure nothing is written, and nobody would wake this caller
                    return True
                state.bell.ring()
                state.changed.wait()
                state.require_open("put")
                if self._is_paused(raises):
                    return True
        finally:
            self.waiting_puts -= 1
            self.waiting_bytes -= nbytes
            state.counters.waited_to_put(started, state.sequence, label, dtype)
        return True

    def _is_paused(self, raises: bool) -> bool:
        """Return whether arrays stay in RAM now; if `raises`, first raise SpillError for failures if they may not."""
        if raises:
            self._full_disk.answer_failures()
        return self._full_disk.is_paused
