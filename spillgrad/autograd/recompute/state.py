"""Whether this thread is recomputing a function in backward.

State that changes in each forward pass, such as running statistics, must not change in a recomputation.
"""

import contextlib
import threading
from collections.abc import Iterator


class _Recomputation(threading.local):
    is_running = False


_state = _Recomputation()


def is_recomputing() -> bool:
    """Return whether this thread is recomputing."""
    return _state.is_running


@contextlib.contextmanager
def recomputing() -> Iterator[None]:
    """Context manager: mark this thread as recomputing."""
    before, _state.is_running = _state.is_running, True
    try:
        yield
    finally:
        _state.is_running = before
