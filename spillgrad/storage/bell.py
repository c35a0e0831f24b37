"""Wake a thread from anywhere, finalizers included."""

import queue


class Bell:
    """Lets one thread sleep until something happened since it last woke.

    `ring` takes no lock, so a finalizer may call it in the middle of any locked section, where a condition variable
    deadlocks.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._rung = False

    def ring(self) -> None:
        """Wake the sleeper, or keep it from falling asleep once."""
        if not self._rung:  # two ringers at once may both get here: one idle wake-up more
            self._rung = True
            self._rings.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until rung; return False when `timeout_s` passed instead."""
        try:
            self._rings.get(timeout=timeout_s)
        except queue.Empty:
            return False
        # Cleared before the sleeper looks around: a ring from now on wakes it again.
        self._rung = False
        return True
