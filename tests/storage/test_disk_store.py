"""The disk store's own promises: the budget, the failures, the end of the process."""

import errno
import gc
import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.errors import ArgumentError, OperandError, SpillError
from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad.storage.threads import io_threads
from spillgrad_kernels.memory import buffers
from tests.waiting import wait_until

MakeStore = Callable[..., DiskStore]


def run_script(script: str, directory: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*wrapper, sys.executable, "-c", textwrap.dedent(script), str(directory)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize("budget", [0, 1, 40_000, 100_000, 1_000_000])
def test_the_budget_is_never_exceeded_but_by_the_array_being_read(make_store: MakeStore, budget: int):
    store = make_store(budget)
    rng = random.Random(budget)
    stored: list[tuple[Handle, int]] = []
    held: list[np.ndarray] = []
    for i in range(600):
        choice = rng.random()
        if choice < 0.5 or not stored:
            array = np.full(rng.randrange(0, 12_000), i, np.int32)
            before = store.stats().ram_bytes
            stored.append((store.put(array), i))
            assert store.stats().ram_bytes <= max(budget, before)
        elif choice < 0.75:
            handle, value = rng.choice(stored)
            held.append(store.get(handle))
            assert (held[-1] == value).all()
        elif choice < 0.95:
            store.drop(stored.pop(rng.randrange(len(stored)))[0])
        else:
            store.prefetch([handle for handle, _ in rng.sample(stored, min(3, len(stored)))])
        while len(held) > rng.randrange(4):
            held.pop(0)
        assert store.stats().ram_bytes <= budget + sum(a.nbytes for a in held)
    largest = 12_000 * 4
    assert store.stats().peak_ram_bytes <= budget + 4 * largest
    held.clear()
    for handle, _ in stored:
        store.drop(handle)
    wait_until(lambda: store.stats().ram_bytes == 0)  # one may be on its way to or from the disk


def test_a_step_in_reverse_order_keeps_to_the_budget_exactly(make_store: MakeStore):
    store = make_store("1MiB")
    for _ in range(3):
        handles = [store.put(np.full(50_000, i, np.float32)) for i in range(30)]
        for i, handle in reversed(list(enumerate(handles))):
            assert (store.get(handle) == i).all()
            store.drop(handle)
    stats = store.stats()
    assert stats.written_bytes >= 3 * 24 * 200_000
    assert stats.peak_ram_bytes <= (1 << 20) + 200_000
    wait_until(lambda: store.stats().ram_bytes == 0)  # a dropped array counts until its write ends


def test_arrays_read_back_count_until_their_last_alias_dies(make_store: MakeStore):
    store = make_store(0)
    handle = store.put(np.arange(100_000))
    alias = store.get(handle)[10:20].reshape(2, 5)
    assert store.stats().ram_bytes == 800_000
    store.drop(handle)
    assert store.stats().ram_bytes == 800_000
    assert alias[1, 4] == 19
    del alias
    assert store.stats().ram_bytes == 0


def test_an_array_is_in_ram_as_long_as_anybody_has_it(make_store: MakeStore):
    store = make_store(0)
    handle = store.put(np.arange(1000))
    assert not store.is_here(handle)
    got = store.get(handle)
    assert store.is_here(handle)
    del got
    assert not store.is_here(handle)


@pytest.mark.parametrize("budget", ["1MiB", 0], ids=["hot", "read back"])
def test_copies_that_a_store_made_count_until_their_last_alias_dies(make_store: MakeStore, budget: int | str):
    store = make_store(budget)
    handle = store.put(np.arange(10_000.0).reshape(100, 100).T)  # not C-contiguous: it is copied
    got = store.get(handle)
    store.drop(handle)
    assert store.stats().ram_bytes == got.nbytes
    alias = got[1:]
    del got
    assert store.stats().ram_bytes == 80_000
    del alias
    assert store.stats().ram_bytes == 0


def test_a_copy_that_only_its_getter_holds_makes_no_put_wait(make_store: MakeStore):
    store = make_store(100_000)
    handle = store.put(np.arange(10_000.0).reshape(100, 100).T)
    got = store.get(handle)
    store.flush()
    others = [store.put(np.full(10_000, float(i))) for i in range(2)]  # one alone does not fit beside it
    assert store.stats().ram_bytes == got.nbytes
    assert (got == np.arange(10_000.0).reshape(100, 100).T).all()
    for i, other in enumerate(others):
        assert (store.get(other) == i).all()


def test_the_newest_stay_in_ram_and_the_oldest_go_to_disk(make_store: MakeStore):
    store = make_store(1_000_000)
    handles = [store.put(np.full(25_000, i, np.float32)) for i in range(30)]
    before = store.stats()
    for handle in handles[-5:]:
        store.get(handle)
    assert store.stats().read_bytes == before.read_bytes
    assert before.written_bytes >= 2_000_000
    assert before.ram_bytes <= 1_000_000


def test_what_fits_is_never_written(make_store: MakeStore):
    store = make_store(1_000_000)
    handles = [store.put(np.ones(10_000)) for _ in range(6)]
    for handle in handles:
        store.drop(handle)
    assert store.stats().written_bytes == 0


def test_backward_finds_its_arrays_prefetched(make_store: MakeStore):
    store = make_store(1_000_000)
    handles = [store.put(np.full(25_000, i, np.float32)) for i in range(30)]
    for i in reversed(range(30)):
        array = store.get(handles[i])
        store.drop(handles[i])
        del array
        time.sleep(0.005)  # the derivative
    stats = store.stats()
    assert stats.read_bytes >= 2_000_000
    assert stats.cache_misses <= 3


def test_a_use_does_not_look_at_all_arrays_that_are_larger_than_the_budget(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
):
    looks = []
    size = DiskEntry.loading_bytes
    monkeypatch.setattr(DiskEntry, "loading_bytes", property(lambda entry: looks.append(1) or size.fget(entry)))
    store = make_store(0)
    handles = [store.put(np.full(1000, i, np.float32)) for i in range(200)]
    looks.clear()
    for i in reversed(range(200)):
        assert (store.get(handles[i]) == i).all()
        store.drop(handles[i])
    assert len(looks) <= 200 * 40


def test_what_was_asked_for_is_prefetched(make_store: MakeStore):
    store = make_store(250_000)
    handles = [store.put(np.full(25_000, i, np.float32)) for i in range(10)]
    for handle in handles[1:]:
        store.drop(handle)
    store.prefetch(handles[:1])
    wait_until(lambda: store.stats().read_bytes == 100_000)
    misses = store.stats().cache_misses
    assert (store.get(handles[0]) == 0).all()
    assert store.stats().cache_misses == misses


def test_a_put_does_not_wait_for_memory_that_only_callers_can_free(make_store: MakeStore):
    store = make_store(1_000_000)
    handles = [store.put(np.full(25_000, i, np.float32)) for i in range(30)]
    held = [store.get(handle) for handle in handles[:15]]
    more = store.put(np.full(25_000, 99, np.float32))
    del held
    assert (store.get(more) == 99).all()


def test_a_closed_store_lets_waiting_threads_go(make_store: MakeStore):
    store = make_store(500_000)
    errors: list[BaseException] = []

    def produce() -> None:
        try:
            while True:
                store.put(np.ones(20_000))
        except SpillError as error:
            errors.append(error)

    threads = [threading.Thread(target=produce) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    store.close()
    for thread in threads:
        thread.join()
    assert ["the store is closed" in str(error) for error in errors] == [True] * 3


def test_a_removed_directory_raises_and_loses_nothing_in_ram(make_store: MakeStore):
    store = make_store(100_000)
    kept = store.put(np.arange(5000))
    shutil.rmtree(store.directory)
    with pytest.raises(SpillError, match=r"could not write 195\.3 KiB \(mul\.self\) .*No such file") as caught:
        store.put(np.ones(25_000), label=Label("mul", "self"))
    assert "raise ram_budget" in str(caught.value)
    with pytest.raises(SpillError, match="could not write"):
        store.flush()
    np.testing.assert_array_equal(store.get(kept), np.arange(5000))
    store.drop(kept)
    assert store.stats().live_bytes == 0


SPILL_UNTIL_FULL = """
    import os, sys
    import numpy as np
    from spillgrad.errors import ArgumentError, SpillError
    from spillgrad.storage.disk_store import DiskStore
    from spillgrad.storage.store import Label

    store = DiskStore(sys.argv[1], ram_budget=200_000)
    for step in range(3):
        handles = []
        try:
            for i in range(400):
                handles.append(store.put(np.full(10_000, i, np.float32), label=Label("mul", "self")))
        except SpillError as error:
            message = str(error)
        else:
            raise SystemExit("the disk was never full")
        assert "could not write 39.1 KiB (mul.self)" in message and os.fspath(store.directory) in message, message
        assert len(handles) > 20
        for i, handle in reversed(list(enumerate(handles))):
            assert (store.get(handle) == i).all()
            store.drop(handle)
        assert store.stats().live_bytes == 0
        handles = [store.put(np.full(10_000, i, np.float32)) for i in range(20)]
        for i, handle in reversed(list(enumerate(handles))):
            assert (store.get(handle) == i).all()
            store.drop(handle)
    print(message)
"""


def test_a_limit_on_file_sizes_is_met_with_more_files(directory: Path):
    script = """
        import resource, sys
        import numpy as np
        from spillgrad.storage.disk_store import DiskStore
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, resource.RLIM_INFINITY))
        store = DiskStore(sys.argv[1], ram_budget=200_000)
        for step in range(3):
            handles = [store.put(np.full(10_000, i, np.float32)) for i in range(400)]
            for i, handle in reversed(list(enumerate(handles))):
                assert (store.get(handle) == i).all()
                store.drop(handle)
        print(store.stats().written_bytes)
    """
    ran = run_script(script, directory)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 12_000_000


KEEP_IN_RAM_WHEN_FULL = """
    import subprocess, sys, time, warnings
    import numpy as np
    from spillgrad.storage.threads import full_disk
    from spillgrad.storage.disk_store import DiskStore

    full_disk._PAUSE_S = 0.05
    store = DiskStore(sys.argv[1], ram_budget=200_000, on_full="ram", segment_bytes=500_000)
    store.put(np.ones(40_000))  # makes a first file
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            handles = [store.put(np.full(n, i, np.float32)) for i, n in enumerate([10_000] * 300 + [100_000] * 5)]
            for i, handle in reversed(list(enumerate(handles))):
                assert (store.get(handle) == i).all()
                store.drop(handle)
            deadline_s = time.monotonic() + 10
            while store.stats().ram_bytes and time.monotonic() < deadline_s:
                time.sleep(0.001)  # one may be on its way to the disk
            assert store.stats().ram_bytes == 0
    assert store.stats().peak_ram_bytes > 1_000_000
    assert len(caught) == 1, [str(each.message) for each in caught]
    print(caught[0].message)
    time.sleep(0.1)
    before = store.stats().written_bytes
    handles = [store.put(np.full(10_000, i, np.float32)) for i in range(20)]
    assert store.stats().written_bytes > before  # the disk is used again
"""


def in_own_mounts(directory: Path, size_kib: int) -> tuple[str, ...]:
    """The start of a command that runs with a real, small file system at `directory`, where the system lets users."""
    own_mounts = ("unshare", "--user", "--map-root-user", "--mount")
    mount = f"mount -t tmpfs -o size={size_kib}k none {directory}"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*own_mounts, "sh", "-c", mount], capture_output=True).returncode
    ):
        pytest.skip("this system does not let users mount a RAM disk")
    return (*own_mounts, "sh", "-c", f'{mount} && exec "$@"', "sh")


def test_a_full_file_system_raises_and_the_next_step_runs(directory: Path):
    ran = run_script(SPILL_UNTIL_FULL, directory, *in_own_mounts(directory, 4000))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "No space left on device" in ran.stdout


def test_with_on_full_ram_arrays_stay_in_ram_while_the_file_system_is_full(directory: Path):
    ran = run_script(KEEP_IN_RAM_WHEN_FULL, directory, *in_own_mounts(directory, 4000))
    assert (ran.returncode, ran.stderr) == (0, "")
    for said in ("No space left on device", "free there", str(directory), "arrays stay in RAM beyond ram_budget"):
        assert said in ran.stdout


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("on_full", ["raise", "ram"])
def test_any_refusal_of_the_disk_is_answered_as_asked(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, number: int, on_full: str
):
    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    store = make_store(100_000, on_full=on_full, direct_io=False)
    with monkeypatch.context() as patched:
        patched.setattr("os.pwritev", refuse)
        handles = []
        outcome = pytest.raises(SpillError) if on_full == "raise" else pytest.warns(UserWarning)
        with outcome as caught:
            for i in range(20):
                handles.append(store.put(np.full(10_000, i)))
        said = caught.value if on_full == "raise" else caught[0].message
        assert os.strerror(number) in str(said)
        assert str(store.directory) in str(said)
        for i, handle in enumerate(handles):
            assert (store.get(handle) == i).all()
            store.drop(handle)
    assert store.stats().live_bytes == 0


@pytest.mark.parametrize("call", ["put", "begin", "end_change"])
def test_whichever_call_meets_the_full_disk_first_warns_of_it_once(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, call: str
):
    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def put(store: DiskStore, i: int) -> Handle:
        if call == "put":
            return store.put(np.full(10_000, i))
        array = np.full(10_000, i)
        handle = store.begin(array, Label())
        store.end_change(handle, changed=False)
        return handle

    store = make_store(100_000 if call != "end_change" else 0, on_full="ram", direct_io=False)
    with monkeypatch.context() as patched:
        patched.setattr("os.pwritev", refuse)
        with pytest.warns(UserWarning, match="No space left on device.*arrays stay in RAM") as caught:
            handles = [put(store, i) for i in range(20)]
        assert len(caught) == 1
        for i, handle in enumerate(handles):
            assert (store.get(handle) == i).all()
            store.drop(handle)
    assert store.stats().live_bytes == 0


def test_a_warning_made_an_error_leaves_no_array_behind(make_store: MakeStore):
    store = make_store(100_000, on_full="ram")
    shutil.rmtree(store.directory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="arrays stay in RAM"):
            store.put(np.ones(50_000))
    assert store.stats().live_bytes == 0


def test_on_full_is_one_of_two_words(directory: Path):
    with pytest.raises(ArgumentError, match="on_full='disk'; wanted 'raise' or 'ram'"):
        DiskStore(directory, ram_budget=0, on_full="disk")


def test_an_exception_leaves_no_file(directory: Path):
    script = """
        import sys
        import numpy as np
        from spillgrad.storage.disk_store import DiskStore
        store = DiskStore(sys.argv[1], ram_budget=50_000)
        handles = [store.put(np.ones(5000)) for _ in range(20)]
        raise RuntimeError("in mid-forward")
    """
    ran = run_script(script, directory)
    assert ran.returncode == 1
    assert ran.stderr.strip().endswith("RuntimeError: in mid-forward")
    assert list(directory.iterdir()) == []


def test_a_forked_child_neither_uses_nor_harms_its_parents_store(directory: Path):
    script = """
        import os, shutil, sys, warnings
        import h5py
        import numpy as np
        from spillgrad.errors import ArgumentError, SpillError
        from spillgrad.storage.disk_store import DiskStore
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads: the very thing tried here
        store = DiskStore(sys.argv[1], ram_budget=50_000)
        handles = [store.put(np.full(5000, i, np.float64)) for i in range(20)]
        child = os.fork()
        if child == 0:
            try:
                store.get(handles[0])
            except SpillError as error:
                assert "belongs to process" in str(error)
                store.drop(handles[0])
                store.close()
                own = DiskStore(sys.argv[1], ram_budget=0)
                assert own.get(own.put(np.arange(5)))[4] == 4
                sys.exit(7)  # an ordinary end, in which HDF5 writes out what it thinks it must
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        store.flush()
        (path,) = store.directory.glob("*.h5")
        shutil.copy(path, sys.argv[1] + ".copy")
        with h5py.File(sys.argv[1] + ".copy") as file:
            assert all((file[f"{i:08d}"][()] == i).all() for i in range(20))
        assert all((store.get(handle) == i).all() for i, handle in enumerate(handles))
        assert store.check() == []
    """
    ran = run_script(script, directory)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_store_nobody_holds_leaves_no_directory(directory: Path):
    store = DiskStore(directory, ram_budget="1MiB")
    store.put(np.ones(10))
    del store
    gc.collect()
    wait_until(lambda: list(directory.iterdir()) == [])


def test_files_that_hold_nothing_are_removed_after_a_while(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spillgrad.storage.threads.writer._KEEP_EMPTY_S", 0.02)
    store = make_store(0)
    handle = store.put(np.ones(10_000))
    assert store.stats().disk_bytes >= 80_000
    store.drop(handle)
    wait_until(lambda: store.stats().disk_bytes == 0)
    assert list(store.directory.glob("*.h5")) == []


def test_memory_watched_for_changes_is_not_kept_once_it_is_on_disk(make_store: MakeStore):
    store = make_store(0)

    class Watched:
        """A weak reference to this tells when the store let go of it."""

    watched = Watched()
    released = threading.Event()
    weakref.finalize(watched, released.set)
    store.put(np.ones(10), unchanged=lambda watched=watched: watched is not None)
    del watched
    assert released.wait(5)


def test_open_descriptors_do_not_grow(make_store: MakeStore):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for _ in range(20):
        store = make_store(0)
        store.get(store.put(np.ones(1000)))
        store.close()
    assert len(os.listdir("/proc/self/fd")) < limit // 4


def test_who_asks_is_told_once_what_the_present_step_moved(make_store: MakeStore):
    store = make_store(0)
    before = store.put(np.zeros(5_000, np.int64))
    store.drop(before)
    told = []
    handles = [store.put(np.full(10_000, i)) for i in range(3)]
    store.at_step_end(told.append)
    for handle in reversed(handles):
        store.get(handle)
    assert told == []
    for handle in handles:
        store.drop(handle)
    wait_until(lambda: len(told) == 1)
    (step,) = told
    assert (step.written_bytes, step.read_bytes, step.moved_bytes) == (240_000, 240_000, 480_000)
    assert 0 < step.writing_s < step.seconds
    assert 0 < step.reading_s < step.seconds
    assert step.waited_s > 0
    stats = store.stats()
    assert stats.writing_s > step.writing_s  # with the step before
    assert stats.wait_write_s + stats.wait_read_s == pytest.approx(store.waited_s)
    store.drop(store.put(np.zeros(10_000)))
    store.flush()
    assert len(told) == 1


def test_persistent_arrays_that_changed_and_cannot_stay_are_written_before_any_wait_for_room(
    make_store: MakeStore,
):
    nbytes = 100_000
    store = make_store(3 * nbytes)
    handles = [store.put(np.zeros(nbytes, np.uint8), persistent=True) for _ in range(8)]
    store.flush()

    def change(handle: Handle) -> None:
        array = store.get(handle)
        store.begin_change(handle, array)
        array += 1
        store.end_change(handle)

    for _ in range(2):
        store.begin_step()
        for handle in handles:
            change(handle)
    store.flush()
    before = store.stats().written_bytes
    store.begin_step()
    for handle in handles[:4]:  # two of them stay, beside one that is read ahead
        change(handle)
    wait_until(lambda: store.stats().written_bytes == before + 2 * nbytes)
    time.sleep(0.05)
    assert store.stats().written_bytes == before + 2 * nbytes
    # While the one ahead is still being read, what is wanted before it has room only if another is written.
    assert all((store.get(handle) == value).all() for handle, value in zip(handles, 4 * [3] + 4 * [2], strict=True))


def test_an_array_that_is_sampled_for_the_journal_counts_no_longer_for_that(make_store: MakeStore, tmp_path: Path):
    store = make_store(0, keep_journal=tmp_path / "journal")
    for number in range(20):
        handle = store.put(np.zeros(1 << 20, np.uint8), label=Label(f"{number}"), persistent=True)
        array = store.get(handle)
        store.begin_change(handle, array)
        del array
        store.end_change(handle)
        assert store.stats().ram_bytes == 0


def test_persistent_arrays_that_are_expected_to_fit_are_not_written(make_store: MakeStore):
    nbytes = 100_000
    store = make_store(8 * nbytes)
    store.expect(8 * nbytes)
    handles = [store.put(np.zeros(nbytes, np.uint8), persistent=True) for _ in range(8)]
    with pytest.raises(AssertionError):
        wait_until(lambda: store.stats().written_bytes > 0, timeout_s=0.2)
    store.drop(handles.pop())
    store.expect(9 * nbytes)  # two more will come: one has to leave
    store.put(np.zeros(nbytes, np.uint8), persistent=True)
    wait_until(lambda: store.stats().written_bytes == nbytes)


def test_room_that_a_caller_asks_for_counts_while_he_uses_it(make_store: MakeStore):
    store = make_store(400_000)
    handles = [store.put(np.full(100_000, i, np.uint8)) for i in range(4)]
    with store.room(250_000):
        assert 250_000 <= store.stats().ram_bytes <= 400_000
    assert store.stats().ram_bytes <= 200_000
    with store.room(500_000):  # more than there can be: what he uses is beyond the budget
        assert store.stats().ram_bytes >= 500_000
    assert all((store.get(handle) == i).all() for i, handle in enumerate(handles))


def test_what_is_no_path_is_refused():
    with pytest.raises(OperandError, match="got int as a directory; wanted a path"):
        DiskStore(3, ram_budget=0)


def raises_spill_error(call: Callable[[], None]) -> None:
    with pytest.raises(SpillError):
        call()


class LateArray:
    """An array elsewhere, which comes when it is told to."""

    shape, dtype, nbytes = (100_000,), np.dtype(np.uint8), 100_000

    def __init__(self) -> None:
        self.is_asked_for, self.may_come = threading.Event(), threading.Event()

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        return np.full(self.shape, 7, self.dtype), self._wait

    def _wait(self) -> None:
        self.is_asked_for.set()
        assert self.may_come.wait(30)


def test_where_the_writer_died_files_are_closed_only_once_nobody_writes_them(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)  # the writer's death is told
    store, late = make_store("1MiB", direct_io=False), LateArray()
    store.put(late)
    flushing = threading.Thread(target=raises_spill_error, args=(store.flush,))
    flushing.start()
    assert late.is_asked_for.wait(30)  # an I/O thread is about to write
    monkeypatch.setattr(store._writer, "_next", lambda: {}["an error in the writer"])
    store._state.bell.ring()
    flushing.join()
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.5)
    others = [(tmp_path / f"other {i}").open("w+b") for i in range(50)]  # which get descriptors that were closed
    late.may_come.set()
    closing.join()
    all_ended = threading.Barrier(io_threads._THREADS + 1)  # of what the I/O threads had to do before
    for _ in range(io_threads._THREADS):
        io_threads.submit(lambda: all_ended.wait(30), lambda error: None)
    all_ended.wait(30)
    assert [os.fstat(file.fileno()).st_size for file in others] == [0] * 50
    for file in others:
        file.close()


class HeldUp:
    """An array elsewhere; whoever copies it meets the test, and goes on when it says so."""

    shape, dtype, nbytes = (1000,), np.dtype(np.uint8), 1000

    def __init__(self) -> None:
        self.meeting = threading.Barrier(2)

    def fetch(self) -> tuple[np.ndarray, None]:
        self.meeting.wait(30)
        self.meeting.wait(30)
        return np.full(self.shape, 7, self.dtype), None


@pytest.mark.parametrize("kind", ["remote", "not contiguous"])
def test_others_use_the_store_while_an_array_is_copied_into_it(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, kind: str
):
    store, held_up = make_store("10KiB"), HeldUp()
    array: Any = held_up
    if kind == "not contiguous":
        array = np.full((1000, 2), 7, np.uint8)[:, 0]
        monkeypatch.setattr(buffers, "copy", lambda array: held_up.fetch()[0])
    handles: list[Handle] = []
    putting = threading.Thread(target=lambda: handles.append(store.put(array, key="one")))
    putting.start()
    held_up.meeting.wait(30)
    assert store.stats().ram_bytes == 1000  # the copy counts from before it is made
    if kind == "not contiguous":
        monkeypatch.undo()
    other = store.put(np.full((1000, 2), 7, np.uint8)[:, 1], key="one")  # the same, and quicker
    held_up.meeting.wait(30)
    putting.join()
    assert handles == [other]
    assert (store.get(other) == 7).all()
    assert store.stats().ram_bytes == 1000


def test_a_copy_that_fails_leaves_nothing_counted(make_store: MakeStore):
    class Refusing(HeldUp):
        def fetch(self) -> Any:
            raise MemoryError("none left")

    store = make_store("10KiB")
    with pytest.raises(MemoryError, match="none left"):
        store.put(Refusing())
    assert store.stats().ram_bytes == store.stats().live_bytes == 0


def test_a_relative_directory_stays_where_the_program_began(directory: Path, monkeypatch: pytest.MonkeyPatch):
    elsewhere = directory.parent / "elsewhere"
    elsewhere.mkdir()
    (directory / "link").symlink_to(elsewhere)
    monkeypatch.chdir(directory.parent)
    store = DiskStore(directory.name, ram_budget=0, keep_journal=f"{directory.name}/link/../kept.jsonl")
    monkeypatch.chdir(elsewhere)
    handles = [store.put(np.full(10_000, i)) for i in range(3)]
    assert [store.get(handle)[0] for handle in handles] == [0, 1, 2]
    store.flush()
    assert store.directory.parent == directory
    assert len(list(store.directory.glob("*.h5"))) == 1
    store.close()
    (directory / "link").unlink()
    assert [path.name for path in directory.iterdir()] == []
    assert [path.name for path in elsewhere.iterdir()] == []
    (directory.parent / "kept.jsonl").unlink()


def test_a_store_writes_over_nothing_in_a_directory_put_in_the_place_of_its_run(directory: Path):
    store = DiskStore(directory, ram_budget=1 << 20)
    others = directory / "others"
    others.mkdir()
    kept = dict.fromkeys(("journal.jsonl", "journal-old.jsonl"), "kept")
    for name in kept:
        (others / name).write_text("kept")
    store.directory.rename(directory / "moved")
    store.directory.symlink_to(others)
    handle = store.put(np.arange(10_000))
    store.flush()
    assert store.get(handle)[3] == 3
    with pytest.raises(SpillError, match="could not remove"):
        store.close()
    assert {path.name: path.read_text() for path in others.iterdir()} == kept
    for place in (others, directory / "moved"):
        shutil.rmtree(place)
    store.directory.unlink()


def test_a_directory_of_no_place_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch):
    gone = directory / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SpillError, match="cannot use spill: No such file or directory"):
        DiskStore("spill", ram_budget=0)


def test_a_thread_that_cannot_be_started_hangs_nothing(tmp_path: Path):
    script = """
        import sys, threading
        import numpy as np
        from spillgrad.errors import SpillError
        from spillgrad.storage.threads import io_threads
        from spillgrad.storage.disk_store import DiskStore
        store = DiskStore(sys.argv[1], ram_budget=0, direct_io=False)
        start = threading.Thread.start
        def refuse(thread):
            if thread.name.startswith("spillgrad-io"):
                threading.Thread.start = start
                raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = refuse
        threading.excepthook = lambda arguments: None
        try:
            store.put(np.ones(1000))
        except SpillError as error:
            print("can't start" in str(error))
        store.close()
        other = DiskStore(sys.argv[1], ram_budget=0, direct_io=False)
        print(other.get(other.put(np.ones(1000))).sum())
        other.close()
    """
    ran = run_script(script, tmp_path)
    assert (ran.stdout, ran.stderr) == ("True\n1000.0\n", "")


class RemoteThat:
    """An array elsewhere; before it is copied, something is done."""

    def __init__(self, values: np.ndarray, before: Callable[[], object]) -> None:
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self._values, self._before = values, before

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        self._before()
        return self._values.copy(), lambda: None


@pytest.mark.parametrize("is_in_ram", [True, False])
def test_a_store_works_on_while_a_remote_array_is_copied(make_store: MakeStore, is_in_ram: bool):
    array = np.arange(1000, dtype=np.int32)
    store = make_store(8 * array.nbytes if is_in_ram else array.nbytes)
    answered = threading.Event()

    def ask_meanwhile() -> None:
        thread = threading.Thread(target=lambda: (store.stats(), answered.set()))
        thread.start()
        answered.wait(30)

    handle = store.put(array.copy(), persistent=True)
    store.flush()
    if not is_in_ram:
        store.drop(store.put(array + 1))
        assert not store.is_here(handle)
    store.replace(handle, RemoteThat(array + 2, ask_meanwhile))
    assert answered.is_set()
    np.testing.assert_array_equal(store.get(handle), array + 2)
    assert store.stats().peak_ram_bytes <= store.ram_budget


@pytest.mark.parametrize("is_written", [True, False])
def test_an_array_whose_successor_cannot_be_copied_stays(make_store: MakeStore, is_written: bool):
    array = np.arange(1000, dtype=np.int32)
    store = make_store(2 * array.nbytes)

    def fail() -> None:
        raise MemoryError("no pinned memory")

    handle = store.put(array.copy(), persistent=True)
    if is_written:
        store.flush()
    for _ in range(2):
        with pytest.raises(MemoryError, match="pinned"):
            store.replace(handle, RemoteThat(array + 1, fail))
    np.testing.assert_array_equal(store.get(handle), array)
    store.flush()
    assert store.check() == []
    assert store.stats().ram_bytes <= store.ram_budget


def test_an_array_dropped_while_its_successor_is_copied_is_gone(make_store: MakeStore):
    array = np.arange(1000, dtype=np.int32)
    store = make_store(2 * array.nbytes)
    for former in (array.copy(), RemoteThat(array, lambda: None)):
        handle = store.put(former, persistent=True)
        with pytest.raises(SpillError, match="dropped"):
            store.replace(handle, RemoteThat(array, lambda: store.drop(handle)))  # noqa: B023
        del former
    gc.collect()
    assert store.stats().ram_bytes == 0


def test_an_array_read_back_gives_its_room_to_its_successor(make_store: MakeStore):
    array = np.arange(1000, dtype=np.int32)
    store = make_store(array.nbytes)
    handle = store.put(array.copy(), persistent=True)
    store.flush()
    store.drop(store.put(array + 1))
    store.prefetch([handle])
    wait_until(lambda: store.is_here(handle))
    store.replace(handle, RemoteThat(array + 2, lambda: None))
    np.testing.assert_array_equal(store.get(handle), array + 2)
    assert store.stats().peak_ram_bytes <= store.ram_budget


def test_the_place_of_a_dropped_persistent_array_is_given_back_though_nothing_else_happens(make_store: MakeStore):
    store = make_store(0)
    handle = store.put(np.zeros(1000), persistent=True)
    store.flush()
    store.drop(handle)
    assert handle.sequence not in store._state.entries
    wait_until(lambda: not store._state.freed)


def test_reading_what_backward_needs_waits_until_other_arrays_are_written(make_store: MakeStore):
    array = np.arange(1000, dtype=np.int32)
    store = make_store(3 * array.nbytes)
    store.expect(3 * array.nbytes)  # so that nothing is written early
    saved = store.put(array.copy())
    store.flush()
    kept = [store.put(array + i, persistent=True) for i in range(1, 4)]
    assert not store.is_here(saved)
    np.testing.assert_array_equal(store.get(saved), array)
    assert store.stats().peak_ram_bytes <= store.ram_budget
    for i, handle in enumerate(kept, start=1):
        np.testing.assert_array_equal(store.get(handle), array + i)
