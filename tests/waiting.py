"""Wait for what other threads do."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Return when `condition()` holds; fail the test when it still does not after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.002)


def wait_until_no_spill_file_is_below(directory: Path) -> None:
    """Return when no segment is left in a folder or below: a store's own thread removes them, and their folders."""
    # `os.walk` passes over a folder that vanishes meanwhile, where `rglob` raises.
    wait_until(lambda: not any(name.endswith(".h5") for _, _, names in os.walk(directory) for name in names))
