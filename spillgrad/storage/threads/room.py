"""Let callers wait for room in RAM; and let them exceed the budget while the disk refuses writes, if they may."""

import time
from typing import Any

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.state import StoreState
from spillgrad.storage.store import Label

# After a failed write, a store that may keep all arrays in RAM leaves the disk alone for so long.
_PAUSE_S = 2.0


class Room:
    """Callers that wait for room, and what they do when the disk refuses writes.

    With `on_full="raise"` a failed write is raised, once. With `on_full="ram"` a caller warns of the first one; then
    arrays stay in RAM beyond the budget for a while, after which the disk is tried again.

    Everything is guarded by the store's lock, and every method is called with it held.
    """

    def __init__(self, state: StoreState, on_full: str) -> None:
        self._state = state
        self._keeps_in_ram = on_full == "ram"
        self._paused_until_s = 0.0
        self._unheard: SpillError | None = None  # the first failure, until a caller warns of it
        self._warned = False
        self.waiting_puts = self.waiting_bytes = 0
        state.ram.on_room = self.wake_waiting

    def missing_bytes(self) -> int:
        """Evict what can go, and return how many bytes the callers that wait still lack."""
        ram = self._state.ram
        if not self.waiting_puts or ram.make_room(self.waiting_bytes):
            return 0
        return self.waiting_bytes + ram.ram_bytes - ram.budget_bytes

    def wake_waiting(self) -> None:
        """Have the callers that wait look again."""
        if self.waiting_puts:
            self._state.changed.notify_all()

    def wait_for(
        self, nbytes: int, label: Label, dtype: np.dtype[Any] | None, until_all_left: bool = False
    ) -> bool:  # fmt: skip
        """Wait until so many bytes fit, or the disk refuses; return False if only callers could make them fit.

        `label` and `dtype` say what the room is for; there is no dtype if it is for no array. With `until_all_left` it
        returns False only once no other array can leave RAM.
        """
        state, ram = self._state, self._state.ram
        if self.is_paused:
            return True
        if nbytes > ram.budget_bytes:
            return False
        if ram.make_room(nbytes):
            return True
        started = time.perf_counter()
        self.waiting_puts += 1
        self.waiting_bytes += nbytes
        try:
            while not ram.make_room(nbytes):
                others_leave = until_all_left and (ram.dirty or ram.writing_bytes)
                if ram.pinned_bytes + nbytes > ram.budget_bytes and not others_leave:
                    return False
                state.bell.ring()
                state.changed.wait()
                state.require_open("put")
                self.answer_failures()
                if self.is_paused:
                    return True
        finally:
            self.waiting_puts -= 1
            self.waiting_bytes -= nbytes
            state.counters.waited_to_put(started, state.sequence, label, dtype)
        return True

    # While the disk refuses

    @property
    def is_paused(self) -> bool:
        """Whether the disk is left alone, and arrays stay in RAM."""
        return time.monotonic() < self._paused_until_s

    def answer_failures(self) -> None:
        """Raise the error of failed writes, once; or keep arrays in RAM for a while, if that is allowed."""
        state = self._state
        if state.failures and self.keep_in_ram(next(iter(state.failures.values()))):
            state.failures.clear()
        state.raise_failure()

    def keep_in_ram(self, error: SpillError) -> bool:
        """Keep arrays in RAM for a while after a failed write; return False if that is not allowed."""
        if self._keeps_in_ram:
            self._paused_until_s = time.monotonic() + _PAUSE_S
            if not self._warned:
                self._warned, self._unheard = True, error
        return self._keeps_in_ram

    def warning(self) -> str | None:
        """Return the text that the caller must warn with, once."""
        error, self._unheard = self._unheard, None
        return None if error is None else f"{error}; meanwhile arrays stay in RAM beyond ram_budget (on_full='ram')"
