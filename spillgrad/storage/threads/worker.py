"""A thread of a store."""

import threading
from collections.abc import Callable

from spillgrad.errors import SpillError
from spillgrad.storage.state import StoreState
from spillgrad.storage.threads.store_lock import own_threads


class Worker:
    """Runs `loop` once, in a daemon thread; when the process ends, `lifecycle.py` closes the store first.

    If `loop` raises, the store becomes unusable and says so, and no thread waits for this one for ever.
    """

    def __init__(self, name: str, state: StoreState, loop: Callable[[], None]) -> None:
        self._name = name
        self._state = state
        self._loop = loop
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Raises RuntimeError when the system gives none."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def join(self) -> None:
        """Wait for the thread to end, unless it is the present one."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def forget(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._thread = None

    def _run(self) -> None:
        own_threads.add(threading.get_ident())
        try:
            self._loop()
        except BaseException as error:
            with self._state.lock:
                self._state.end(SpillError(f"the {self._name} thread ended with {error!r}; make a new store"))
            raise
        finally:
            own_threads.discard(threading.get_ident())
