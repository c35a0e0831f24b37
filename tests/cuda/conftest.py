"""The simulator's blocks are Python threads, and who waits for them asks all the time: that thread gives way sooner."""

import sys
from collections.abc import Iterator

import pytest

# As against Python's 5 ms, launches take a quarter of the time.
_INTERVAL_S = 1e-4


@pytest.fixture(scope="session", autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_INTERVAL_S)
    yield
    sys.setswitchinterval(interval)
