"""What a store does when the disk is full, or refuses writes for another reason."""

import time

from spillgrad.errors import SpillError
from spillgrad.storage.state import StoreState

# After a failed write, a store that may keep all arrays in RAM writes nothing for this time.
_PAUSE_S = 2.0


class FullDisk:
    """Decides what a store does about failed writes.

    With `on_full="raise"`, the error of a failed write is raised, once. With `on_full="ram"`, a caller warns of the
    first error; then arrays stay in RAM beyond the budget for a while, after which the disk is tried again.

    The store's lock guards everything, and every method is called with the lock held.
    """

    def __init__(self, state: StoreState, on_full: str) -> None:
        self._state = state
        self._keeps_in_ram = on_full == "ram"
        self._paused_until_s = 0.0
        self._unheard: SpillError | None = None  # the first failure, until a caller warns of it
        self._warned = False

    @property
    def is_paused(self) -> bool:
        """Whether nothing is written for now, and arrays stay in RAM."""
        return time.monotonic() < self._paused_until_s

    def answer_failures(self) -> None:
        """If writes failed, keep arrays in RAM for a while if `on_full` allows it; else raise the first error once."""
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
        """Return the text that the caller must warn with, once; None if there is none."""
        error, self._unheard = self._unheard, None
        return None if error is None else f"{error}; meanwhile arrays stay in RAM beyond ram_budget (on_full='ram')"
