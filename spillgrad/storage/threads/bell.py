"""Wake a thread from anywhere, finalizers included."""

import queue
from collections.abc import Callable


class Bell:
    """Lets one thread sleep until something happened since it last woke.

    `ring` takes no lock, so a finalizer may call it in the middle of any locked section, where a condition variable
    deadlocks. It keeps no state but the rings themselves, so nothing that interrupts it can make the bell go deaf.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[object] = queue.SimpleQueue()
        # Rings too, whatever it is called with: a finalizer in which nothing of Python may run.
        self.ring_in_c: Callable[[object], None] = self._rings.put

    def ring(self) -> None:
        """Wake the sleeper, or keep it from falling asleep once."""
        # A ring that waits there already is heard after this moment. Two ringers at once cost one idle wake-up more.
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until rung; return False when `timeout_s` passed instead."""
        try:
            self._rings.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True
