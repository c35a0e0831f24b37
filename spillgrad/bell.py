"""Wake a thread from anywhere, finalizers included."""

import queue
from collections.abc import Callable


class Bell:
    """Lets one thread sleep until the bell is rung; a ring while the thread was awake ends its next sleep at once.

    `ring` takes no lock, so a finalizer may call it in the middle of any locked section, where a condition variable
    deadlocks. The only state is the rings themselves, so nothing that interrupts `ring` can make later rings go
    unheard.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[object] = queue.SimpleQueue()
        # Rings too, with any argument, and runs no Python code: for callbacks of weak references.
        self.ring_in_c: Callable[[object], None] = self._rings.put

    def ring(self) -> None:
        """Wake the sleeping thread; if it is awake, its next `wait` returns at once."""
        # A ring that waits already will be heard later than now. Two rings at once cost one needless wake-up.
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until the bell is rung, and return True; return False if `timeout_s` passes first."""
        try:
            self._rings.get(block=False)
        except queue.Empty:
            pass
        else:
            return True
        # Only now: CPython 3.11's `get` sleeps for ever if the time passes while it takes a lock that is free, as after
        # rings that nobody waited for. The first call has left the lock taken.
        try:
            self._rings.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True
