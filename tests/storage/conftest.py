"""Stores under test, and what they must not leave behind."""

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.residency.budgeted_tier import BudgetedTier
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.residency.residence import ALLOWED, Residence
from tests.open_files import open_files_below
from tests.waiting import wait_until

# No storage test takes a tenth of this: a deadlock must end the run and show every thread's stack.
DEADLINE_S = 60


@pytest.fixture(autouse=True)
def a_deadlock_ends_the_run() -> Iterator[None]:
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def arrays_go_only_where_they_may(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which an entry of a store goes from one residence to another that the table does not allow."""
    forbidden = []
    move = BudgetedTier._move

    def checked(tier: BudgetedTier, entry: Entry, following: Residence) -> None:
        if following not in ALLOWED[entry.residence]:
            forbidden.append(f"{entry} from {entry.residence.name} to {following.name}")
        move(tier, entry, following)

    monkeypatch.setattr(BudgetedTier, "_move", checked)
    yield
    assert forbidden == []


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in which no store leaves a file, an open descriptor, an open HDF5 file or a thread."""
    place = tmp_path / "spill"
    place.mkdir()
    before = open_things()
    yield place
    wait_until(lambda: open_things() <= before)  # a thread that was told to stop takes a moment
    assert open_files_below(place) == {}
    assert sorted(path.name for path in place.iterdir()) == []


def open_things() -> set[object]:
    """Stores' threads, and the files that HDF5 has open."""
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("spillgrad-writer")}
    return threads | {file.name for file in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)}


@pytest.fixture
def make_store(directory: Path) -> Iterator[Callable[..., DiskStore]]:
    """Make disk stores in `directory`, closed after the test."""
    made: list[DiskStore] = []

    def make(ram_budget: int | str, **options: Any) -> DiskStore:
        made.append(DiskStore(directory, ram_budget=ram_budget, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()
