"""Wait for what other threads do."""

import gc
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Return when `condition()` holds; fail the test when it still does not after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.002)
