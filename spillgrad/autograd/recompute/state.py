"""Whether this thread computes again what it has computed before, as checkpointed functions do in backward.

State that moves with each forward, such as running statistics, does not move then.
"""

import contextlib
import threading
from collections.abc import Iterator


class _Recomputation(threading.local):
    is_running = False


_state = _Recomputation()


def is_recomputing() -> bool:
    """Return whether what this thread computes was computed before."""
    return _state.is_running


@contextlib.contextmanager
def recomputing() -> Iterator[None]:
    """Say that what this thread computes within the block was computed before."""
    before, _state.is_running = _state.is_running, True
    try:
        yield
    finally:
        _state.is_running = before
