"""Journals that stay: each is one run's, whoever else wants its place, and whatever the disk refuses."""

import contextlib
import errno
import gc
import json
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spillgrad.errors import SpillError
from spillgrad.inspection.records import Run
from spillgrad.inspection.runs import RunReader, goes_on
from spillgrad.storage import inspect, read_journal
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.journal import events, files
from spillgrad.storage.journal import writer as journal
from spillgrad.storage.journal.files import JOURNAL_NAME, old_path
from spillgrad.storage.journal.writer import Journal
from spillgrad.storage.runs.lifecycle import write_journals
from tests.inspection.test_runs import assert_sums_fit, use
from tests.storage.test_disk_store import in_own_mounts, run_script
from tests.tools.jobs import end, job
from tests.waiting import wait_until

TAKEN = "is the journal of a run that goes on"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept.jsonl"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a store that may be about to close."""
    monkeypatch.setattr(files, "_CLOSING_S", 0.0)


def one(path: Path) -> Run:
    (run,) = inspect(path).runs
    return run


# Whose it is


def test_a_living_stores_journal_is_not_replaced(tmp_path: Path, kept: Path, at_once: None):
    first = DiskStore(tmp_path / "a", ram_budget=0, keep_journal=kept)
    use(first, 1)
    with pytest.raises(SpillError, match=f"{TAKEN} .process {os.getpid()}, {first.directory}.; name another file"):
        DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept)
    assert list((tmp_path / "b").iterdir()) == []
    use(first, 1, seed=1)
    first.close()
    assert (one(kept).state, len(one(kept).steps)) == ("finished", 2)
    DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept).close()
    assert one(kept).steps == []


def test_that_of_another_process_is_free_once_that_is_dead(tmp_path: Path, kept: Path, at_once: None):
    with job(tmp_path / "a", kept) as process:
        with pytest.raises(SpillError, match=f"{TAKEN} .process {process.pid}"):
            DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept)
        process.kill()
        process.wait()
        assert one(kept).state == "dead"
        DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept).close()
    assert one(kept).process == os.getpid()


def test_a_forked_child_cannot_take_its_parents(tmp_path: Path):
    script = """
        import os, sys
        from pathlib import Path
        import numpy as np
        from spillgrad.errors import SpillError
        from spillgrad.storage import inspect
        from spillgrad.storage.disk_store import DiskStore
        place = Path(sys.argv[1])
        store = DiskStore(place / "spill", ram_budget=0, keep_journal=place / "run.jsonl")
        store.put(np.ones(1000))
        child = os.fork()
        if not child:
            try:
                DiskStore(place / "other", ram_budget=0, keep_journal=place / "run.jsonl")
            except SpillError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        store.put(np.ones(1000))
        store.close()
        (run,) = inspect(place / "run.jsonl").runs
        print(run.state, run.stats.packed_bytes, run.process == os.getpid())
    """
    ran = run_script(script, tmp_path)
    assert ran.stderr == ""
    refused, told = ran.stdout.splitlines()
    assert TAKEN in refused
    assert told == "finished 16000 True"


def test_of_many_who_want_a_place_at_once_one_gets_it(tmp_path: Path, kept: Path, at_once: None):
    for _ in range(10):
        start, made, refused = threading.Barrier(6), [], []

        def make() -> None:
            start.wait()  # noqa: B023
            try:
                made.append(DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept))  # noqa: B023
            except SpillError as error:
                refused.append(str(error))  # noqa: B023

        threads = [threading.Thread(target=make) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1
        assert len(refused) == 5
        assert all(TAKEN in error for error in refused)
        assert one(made[0].directory).journal == kept
        made[0].close()
        assert one(kept).state == "finished"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.jsonl", "spill"]


def test_nobody_gets_in_while_one_file_follows_another(
    tmp_path: Path, kept: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal, "_FILE_BYTES", 2_000)
    ours = tmp_path / "ours"
    ours.mkdir()
    log = Journal(ours, {"run": str(ours)}, keep=kept)
    intruders: list[Journal] = []
    done = threading.Event()

    def intrude() -> None:
        place = tmp_path / "theirs"
        place.mkdir()
        while not done.is_set():
            try:
                intruders.append(Journal(place, keep=kept))
            except SpillError as error:
                assert TAKEN in str(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    for number in range(3_000):
        for place in range(8):
            log.add(events.Pack(8, array=8 * number + place))
        log.write()
    done.set()
    thread.join()
    log.end({})
    assert intruders == []
    assert [line["array"] for line in read_journal(kept) if "array" in line][-1] == 23_999
    assert old_path(kept).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept-old.jsonl", "kept.jsonl", "ours", "theirs"]


def test_a_store_that_nobody_holds_leaves_its_place_in_a_moment(tmp_path: Path, kept: Path):
    for _ in range(5):
        store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept)
        handle = store.put(np.ones(100_000))
        del store, handle  # closed by a thread of its own
        gc.collect()
    DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept).close()
    assert one(kept).state == "finished"


def test_a_store_that_is_garbage_leaves_its_place(tmp_path: Path, kept: Path):
    gc.disable()
    try:
        store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept)
        held: list[object] = [store, store.put(np.ones(1000))]
        held.append(held)
        del store, held
        DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept).close()
    finally:
        gc.enable()
    assert one(kept).state == "finished"


def test_who_is_refused_a_place_hears_what_to_do(tmp_path: Path, kept: Path, at_once: None):
    store = DiskStore(tmp_path / "a", ram_budget=0, keep_journal=kept)
    with pytest.raises(SpillError, match=r"use that object again, or `del` it, and the graphs that hold it, first$"):
        DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept)
    store.close()
    with (
        job(tmp_path / "a", kept) as process,
        pytest.raises(SpillError, match=rf"process {process.pid}, .*; name another file for this one, or end that run"),
    ):
        DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept)


def test_a_living_runs_journal_that_was_renamed_is_the_one_that_is_blamed(tmp_path: Path, kept: Path, at_once: None):
    store = DiskStore(tmp_path / "a", ram_budget=0, keep_journal=kept)
    kept.rename(old_path(kept))
    with pytest.raises(SpillError, match=f"{old_path(kept)} {TAKEN} .process {os.getpid()}, {store.directory}"):
        DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept)
    store.close()


def test_a_journal_that_was_renamed_between_two_runs_stays(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "_FILE_BYTES", 20_000)
    store = DiskStore(tmp_path / "a", ram_budget=0, keep_journal=kept)
    use(store, 1)
    store.close()
    kept.rename(old_path(kept))
    former = old_path(kept).read_text()
    store = DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept)
    used = 0
    while "totals" not in [line.get("event") for line in read_journal(kept)]:  # a second file
        use(store, 1, seed=(used := used + 1))
        store.flush()
    store.close()
    assert old_path(kept).read_text() == former
    lines = list(read_journal(kept))
    assert [line["run"] for line in lines if "format" in line] == [str(store.directory)]
    run = one(kept)
    assert (run.state, run.stats.packed_bytes) == ("finished", store.stats().packed_bytes)
    DiskStore(tmp_path / "c", ram_budget=0, keep_journal=kept).close()
    assert old_path(kept).read_text() == former


def test_both_files_of_a_run_are_replaced_by_the_next_one(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch):
    fill_two_files(tmp_path, kept, monkeypatch)
    DiskStore(tmp_path, ram_budget=0, keep_journal=kept).close()
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


def test_a_folder_in_the_place_of_the_old_file_stops_nothing(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
):
    log = Journal(tmp_path, keep=kept)
    old_path(kept).mkdir()
    fill_two_files(tmp_path, kept, monkeypatch, log)
    assert [line["array"] for line in read_journal(kept) if "array" in line][-1] == 99
    assert old_path(kept).is_dir()


@pytest.mark.parametrize("nth", [1, 2])
def test_a_place_that_refuses_the_next_file_keeps_the_one_there(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, nth: int
):
    """The first of two renames puts the file away, the second one the next file in its place."""
    log = Journal(tmp_path, keep=kept)
    replace, calls = os.replace, []

    def refuse_once(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_once)
    fill_two_files(tmp_path, kept, monkeypatch, log)
    assert len(calls) > nth
    arrays = [line["array"] for line in read_journal(kept) if "array" in line]
    assert arrays == list(range(arrays[0], 100))
    assert {path.name for path in tmp_path.glob("*kept*")} == {kept.name, old_path(kept).name}


def fill_two_files(directory: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, log: Journal | None = None) -> None:
    """Write so many lines that a second file begins, and some more."""
    monkeypatch.setattr(journal, "_FILE_BYTES", 2_000)
    log = log or Journal(directory, keep=kept)
    for number in range(100):
        log.add(events.Pack(8, array=number))
        log.write()
    log.end({})
    (directory / JOURNAL_NAME).unlink()


def test_a_fork_while_a_journal_begins_does_not_keep_the_run_alive(tmp_path: Path):
    script = """
        import os, signal, sys, threading, time
        from pathlib import Path
        import numpy as np
        from spillgrad.storage import inspect
        from spillgrad.storage.journal import writer as journal
        from spillgrad.storage.disk_store import DiskStore
        place = Path(sys.argv[1])
        append, locked, forked, made = journal._append, threading.Event(), threading.Event(), []
        def wait(*arguments):
            locked.set()
            forked.wait()
            return append(*arguments)
        journal._append = wait
        def make():
            made.append(DiskStore(place / "spill", ram_budget=0, keep_journal=place / "run.jsonl"))
        thread = threading.Thread(target=make)
        thread.start()
        locked.wait()
        parent = os.getpid()
        if not os.fork():
            while os.getppid() == parent:
                time.sleep(0.01)
            # A dying process has another parent for its children before its last thread has closed its files.
            deadline_s = time.monotonic() + 30
            while inspect(place / "run.jsonl").runs[0].state == "live" and time.monotonic() < deadline_s:
                time.sleep(0.01)
            print([run.state for run in inspect(place / "run.jsonl").runs], flush=True)
            os._exit(0)
        forked.set()
        thread.join()
        made[0].put(np.ones(1000))
        made[0].flush()
        os.kill(parent, signal.SIGKILL)
    """
    ran = run_script(script, tmp_path)
    assert (ran.stdout, ran.stderr) == ("['dead']\n", "")


def test_what_became_of_the_place_meanwhile_is_left_alone(tmp_path: Path, kept: Path):
    log = Journal(tmp_path, keep=kept)
    log.add(events.Free(1))
    assert log.write()
    with no_more_to(kept):
        log.add(events.Free(2))
        assert not log.write()
        others = tmp_path / "others.jsonl"
        others.write_text('{"format": 2, "began": "2026-01-01T00:00:00+00:00"}\n')
        text = others.read_text()
        os.replace(others, kept)
    log.add(events.Free(3))
    log.end({})
    assert kept.read_text() == text


def test_a_folder_never_shows_another_runs_journal(tmp_path: Path, kept: Path):
    with job(tmp_path / "a", kept) as process:
        wait_until(lambda: len(one(kept).steps) > 1)
        process.kill()
    (dead,) = (tmp_path / "a").iterdir()
    assert one(dead).process == process.pid
    (tmp_path / "b").mkdir()
    shutil.move(dead, tmp_path / "b" / dead.name)
    dead = tmp_path / "b" / dead.name
    store = DiskStore(tmp_path / "c", ram_budget=0, keep_journal=kept)
    use(store, 1)
    assert (one(dead).state, one(dead).journal, one(dead).process) == ("dead", None, None)
    assert list(read_journal(dead)) == []
    assert one(store.directory).process == os.getpid()
    store.close()
    shutil.move(kept, tmp_path / "b" / "kept.jsonl")
    (dead / JOURNAL_NAME).unlink()
    (dead / JOURNAL_NAME).symlink_to(tmp_path / "b" / "kept.jsonl")
    assert {run.state for run in inspect(tmp_path / "b").runs} == {"dead", "finished"}


def test_what_another_run_left_beside_a_journal_is_no_part_of_it(tmp_path: Path, kept: Path):
    """As after a kill while one run took the place of another, or where somebody gave a journal that name."""
    former = DiskStore(tmp_path / "a", ram_budget=0, keep_journal=tmp_path / "former.jsonl")
    use(former, 2)
    former.close()
    store = DiskStore(tmp_path / "b", ram_budget=0, keep_journal=kept)
    use(store, 1)
    (tmp_path / "former.jsonl").rename(old_path(kept))
    run = one(kept)
    assert (run.state, run.stats.packed_bytes, len(run.steps)) == ("live", store.stats().packed_bytes, 1)


@pytest.mark.parametrize("named", ["..", "../run-0123456789abcdef/.", "a\0/run-0123456789abcdef"])
def test_what_is_no_runs_folder_is_not_taken_for_one(tmp_path: Path, kept: Path, named: str):
    """Nobody is told to sweep where a journal of somebody else says."""
    (tmp_path / "run-0123456789abcdef").mkdir()
    (tmp_path / "segment-00000.h5").touch()
    kept.write_text(json.dumps({"format": 2, "began": "2026-11-22", "run": f"{tmp_path}/a/{named}"}) + "\n")
    (tmp_path / "a").mkdir()
    run = one(kept)
    if named.endswith("/."):  # another way to write one
        assert run.folder is not None and run.folder.samefile(tmp_path / "run-0123456789abcdef")
    else:
        assert (run.folder, run.segments) == (None, {})


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_where_there_are_no_links_the_journal_stays_all_the_same(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    monkeypatch.setattr(os, "symlink", refuse(number))
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept)
    use(store, 1)
    assert [path.name for path in store.directory.glob("journal*")] == []
    assert one(kept).state == "live"
    store.close()
    assert (one(kept).state, len(one(kept).steps)) == ("finished", 1)


def test_a_folder_that_refuses_the_link_is_blamed_for_it(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch):
    DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept).close()
    text = kept.read_text()
    monkeypatch.setattr(os, "symlink", refuse(errno.EROFS))
    with pytest.raises(SpillError, match=rf"cannot link to the journal in {tmp_path}/spill/run-\w+: Read-only"):
        DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept)
    assert kept.read_text() == text
    assert list((tmp_path / "spill").iterdir()) == []
    monkeypatch.undo()
    DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept).close()  # nobody has it locked


def refuse(number: int) -> object:
    def refused(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return refused


# What the disk refuses


@contextlib.contextmanager
def no_more_to(path: Path) -> Iterator[None]:
    """No file of this process grows beyond what this one has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("lifted", ["meanwhile", "at the end"])
def test_what_was_refused_is_told_when_there_is_room_again(tmp_path: Path, kept: Path, lifted: str):
    store = DiskStore(tmp_path / "spill", ram_budget=100_000, on_full="ram", keep_journal=kept)
    use(store, 1)
    store.flush()
    with no_more_to(kept), pytest.warns(UserWarning, match="File too large"):
        use(store, 3, seed=1)
        assert not store._state.journal.write() or lifted == "meanwhile"
    if lifted == "meanwhile":
        wait_until(lambda: one(kept).failure_count > 0)
        wait_until(lambda: one(kept).stats.packed_bytes == store.stats().packed_bytes)
        assert_sums_fit(one(kept))
    store.close()
    run = one(kept)
    assert run.state == "finished"
    assert run.lost_lines > 0
    assert "File too large" in run.failures[-1].reason
    assert run.stats.packed_bytes == store.stats().packed_bytes
    assert run.damaged_lines == 0
    assert_sums_fit(run)


SPILL_UNTIL_FULL = """
    import os, sys
    from pathlib import Path
    import numpy as np
    from spillgrad.errors import SpillError
    from spillgrad.storage import inspect
    from spillgrad.storage.disk_store import DiskStore
    place = Path(sys.argv[1])
    store = DiskStore(place / "spill", ram_budget=200_000, segment_bytes=500_000, keep_journal=place / "run.jsonl")
    journal = place / "run.jsonl"
    filler = os.open(place / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(filler, bytes(1 << 20))
    handles = []
    try:
        for i in range(1000):
            handles.append(store.put(np.full(10_000, i, np.float32)))
    except SpillError:
        pass
    def fill():
        "Other programs take all that is left."
        try:
            while os.write(filler, bytes(4096)):
                pass
        except OSError:
            pass
    def is_shaped():
        "Whether the last block has room for an end and a reason, but not for sums."
        return 300 < -journal.stat().st_size % 4096 < 600
    while True:
        fill()
        while not is_shaped():
            os.ftruncate(filler, os.fstat(filler).st_size - 4096)
            store.begin_phase("update")
            store.begin_phase(None)
            inspect(journal)
        fill()
        for _ in range(50):
            store.begin_phase("update")
            store.begin_phase(None)
        inspect(journal)  # some of that has room, where the store happened to write it a few lines at a time
        if is_shaped():
            break
    if EVER:
        close = store._segments.close
        store._segments.close = lambda: (close(), fill())
    store.close()
    (run,) = inspect(journal).runs
    print(run.state, run.failure_count > 0, run.lost_lines > 0, '"totals"' in journal.read_text().splitlines()[-1])
"""


@pytest.mark.parametrize("how", ["until it ends", "for ever"])
def test_a_run_that_filled_the_disk_ends_in_order(tmp_path: Path, how: str):
    script = SPILL_UNTIL_FULL.replace("EVER", str(how == "for ever"))
    ran = run_script(script, tmp_path, *in_own_mounts(tmp_path, 6000))
    assert (ran.stdout, ran.stderr) == (f"finished True True {how != 'for ever'}\n", "")


REFUSED_LINES = """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    from spillgrad.storage import inspect
    from spillgrad.storage.disk_store import DiskStore
    from spillgrad.inspection.verify import verify
    full = Path(sys.argv[1])
    store = DiskStore(full.parent / "spill", ram_budget=0, segment_bytes=1 << 20, keep_journal=full / "run.jsonl")
    first = [store.put(np.full(1000, i, np.float32)) for i in range(20)]
    inspect(full / "run.jsonl")
    print(verify(store.directory).verified)
    with open(full / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass
    for i in range(2000):  # in the places of those that went
        store.drop(first.pop(0))
        first.append(store.put(np.full(1000, -i, np.float32)))
    inspect(full / "run.jsonl")
    found = verify(store.directory)
    print(found.problems, found.changed, inspect(full / "run.jsonl").runs[0].lost_lines > 0)
    print([note.what for note in found.notes if "of the run's journal" in note.what] != [])
    os.unlink(full / "filler")
    store.drop(first.pop())
    deadline = time.monotonic() + 20
    while verify(store.directory).verified < 19 and time.monotonic() < deadline:
        time.sleep(0.1)
    found = verify(store.directory)
    print(found.problems, found.changed, found.verified)
    store.close()
"""


def test_what_a_full_disk_kept_the_journal_from_saying_is_no_damage(tmp_path: Path):
    full = tmp_path / "full"
    full.mkdir()
    ran = run_script(REFUSED_LINES, full, *in_own_mounts(full, 64))
    assert (ran.stdout, ran.stderr) == ("20\n[] [] True\nTrue\n[] [] 19\n", "")


def test_a_run_that_could_not_tell_its_end_may_have_been_killed_or_not(tmp_path: Path, kept: Path):
    store = DiskStore(tmp_path / "spill", ram_budget="1GiB", keep_journal=kept)
    use(store, 1)
    store.flush()
    with no_more_to(kept):
        store.close()
    assert (one(kept).state, one(kept).folder) == ("dead", None)
    with job(tmp_path / "spill", kept) as process:
        process.kill()
    (folder,) = (tmp_path / "spill").iterdir()
    assert (one(kept).state, one(kept).folder) == ("dead", folder)


def test_a_run_whose_folder_was_removed_lives(tmp_path: Path, kept: Path):
    with job(tmp_path / "spill", kept) as process:
        wait_until(lambda: len(one(kept).steps) > 1)
        (folder,) = (tmp_path / "spill").iterdir()
        with RunReader(kept) as reader:
            reader.read()
            shutil.rmtree(folder)
            assert reader.run().state == "live"
        assert (one(kept).state, goes_on(kept)) == ("live", True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (one(kept).state, goes_on(kept)) == ("dead", False)


def test_the_end_is_seen_whenever_one_looks(tmp_path: Path, kept: Path):
    """Between the last look at the lines and that at the locks, a run may end."""
    with job(tmp_path / "spill", kept) as process, RunReader(kept) as reader:
        reader.read()
        assert reader.run().state == "live"
        end(process)
        assert reader.run().state == "finished"


# Who looks at once


def test_a_run_of_this_process_is_told_up_to_now(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget="1GiB")
    for count in range(1, 20):
        store.put(np.ones(1000))
        assert one(tmp_path).stats.packed_bytes == count * 8000
    store.close()


def test_after_a_flush_the_journal_has_all(tmp_path: Path, kept: Path):
    store = DiskStore(tmp_path, ram_budget="1GiB", keep_journal=kept)
    for count in range(1, 20):
        store.put(np.ones(1000))
        store.flush()
        told = [line["event"] for line in read_journal(kept) if "event" in line]
        assert (told.count("pack"), told.count("write")) == (count, count)
    store.close()


def test_looking_waits_for_no_store_that_is_closed_or_forked(tmp_path: Path):
    script = """
        import os, sys, time
        import numpy as np
        from spillgrad.storage import inspect
        from spillgrad.storage.disk_store import DiskStore
        store = DiskStore(sys.argv[1], ram_budget=0)
        store.put(np.ones(1000))
        began = time.monotonic()
        child = os.fork()
        if not child:
            print(inspect(sys.argv[1]).runs[0].state, flush=True)
            os._exit(time.monotonic() - began > 0.9)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    ran = run_script(script, tmp_path)
    assert (ran.stdout, ran.stderr) == ("live\n0\n", "")


def test_looking_wakes_no_store_that_has_nothing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DiskStore(tmp_path, ram_budget=0)
    rings: list[bool] = []
    with monkeypatch.context() as watched:
        watched.setattr(store._state.bell, "ring", lambda: rings.append(True))
        write_journals(1.0)
    assert rings == []
    store.close()


def test_lines_wait_until_they_are_there(tmp_path: Path):
    log = Journal(tmp_path)
    waited: list[bool] = []

    def line() -> events.Event:  # made while the file is written
        waited.append(log.waits)
        return events.Flush()

    log._lines.append(line)
    assert log.write()
    assert (waited, log.waits) == ([True], False)
    log.close()


def test_looking_waits_for_all_stores_no_longer_than_for_one(tmp_path: Path):
    stores = [DiskStore(tmp_path, ram_budget="1GiB") for _ in range(8)]
    are_busy, may_end = threading.Event(), threading.Event()

    def be_busy() -> None:
        for store in stores:
            store._state.lock.acquire()
            store._state.journal.add(events.Free(0))  # of which the journal is to tell
        are_busy.set()
        may_end.wait(30)
        for store in stores:
            store._state.lock.release()

    thread = threading.Thread(target=be_busy)
    thread.start()
    are_busy.wait(30)
    began_s = time.monotonic()
    write_journals(1.0)
    assert 1.0 <= time.monotonic() - began_s < 5.0  # 8, were they waited for one after another
    may_end.set()
    thread.join()
    for store in stores:
        store.close()
