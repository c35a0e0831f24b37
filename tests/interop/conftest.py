"""Places to spill to."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in which nothing may be left once the test's objects are gone."""
    place = tmp_path / "spill"
    yield place
    wait_until(lambda: [name for _, _, names in os.walk(place) for name in names] == [])
