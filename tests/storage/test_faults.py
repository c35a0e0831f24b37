"""Disks, limits, processes and threads that fail: nothing hangs, nothing is lost in silence, nothing is left."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spillgrad.bell import Bell
from spillgrad.errors import SpillError
from spillgrad.storage.disk_store import DiskStore
from tests.open_files import open_files_below

MakeStore = Callable[..., DiskStore]


def run_script(script: str, directory: Path, wanted_stderr: str = "") -> None:
    """Run `script` as a process that must succeed and say nothing, or end with `wanted_stderr`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(script), str(directory)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    fits = ran.stderr.endswith(wanted_stderr) if wanted_stderr else ran.stderr == ""
    assert fits, f"stderr: {ran.stderr!r}"


HEAD = """
    import os, resource, signal, sys, threading, time
    import numpy as np
    from spillgrad.errors import SpillError
    from spillgrad.storage.disk_store import DiskStore

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background of a script

    def segment_descriptors():
        found = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except FileNotFoundError:  # that of this listing
                continue
            if "segment-" in target:
                found.append(int(fd))
        return found

    store = DiskStore(sys.argv[1], ram_budget=0)
    handles = [store.put(np.full(50_000, i)) for i in range(15)]
"""


def test_a_limit_on_file_sizes_does_not_keep_a_store_from_closing(directory: Path):
    # HDF5's own driver sets the file's length when it closes: "unable to extend file properly".
    run_script(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        store.close()
        assert segment_descriptors() == []
        """,
        directory,
    )


def test_a_process_without_free_descriptors_can_close_a_store(directory: Path):
    run_script(
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        used = []
        try:
            while True:
                used.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for handle in handles:
            store.drop(handle)
        store.close()
        for fd in used:
            os.close(fd)
        assert segment_descriptors() == []
        """,
        directory,
    )


def test_a_file_more_than_the_process_may_open_is_told_of_and_loses_no_array(directory: Path):
    run_script(
        """
        def put_until_refused():
            while len(handles) < 200:
                handles.append(filling.put(np.full(5000, len(handles))))

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 10
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        filling = DiskStore(sys.argv[1], ram_budget=100_000, segment_bytes=200_000)
        handles = []
        for _ in range(2):  # what is freed has room for others, in the files there are
            try:
                put_until_refused()
            except SpillError as error:
                assert f"Too many open files; this process may have {limit} files open" in str(error), error
            else:
                raise SystemExit("never refused")
            assert len(handles) > 10, len(handles)
            assert filling.check() == []
            assert all((filling.get(handle) == i).all() for i, handle in enumerate(handles))
            for handle in handles[10:]:
                filling.drop(handle)
            del handles[10:]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        put_until_refused()
        filling.flush()
        assert all((filling.get(handle) == i).all() for i, handle in enumerate(handles))
        filling.close()
        store.close()
        assert segment_descriptors() == []
        """,
        directory,
    )


def test_structure_that_cannot_be_written_costs_no_array_and_not_the_next_step(directory: Path):
    # HDF5 itself would neither use nor close a file after that: "Target already protected", "slist already enabled".
    run_script(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        for _ in range(2):
            try:
                store.flush()
            except SpillError as error:
                assert "could not write" in str(error), error
            else:
                raise SystemExit("the structure lies beyond the limit")
        assert all((store.get(handle) == i).all() for i, handle in enumerate(handles))
        for handle in handles:
            store.drop(handle)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        handles = [store.put(np.full(50_000, i)) for i in range(15)]
        store.flush()
        assert all((store.get(handle) == i).all() for i, handle in enumerate(handles))
        """,
        directory,
    )


def test_a_file_that_cannot_be_removed_is_emptied_and_reported(directory: Path):
    run_script(
        """
        (path,) = store.directory.glob("*.h5")
        os.rename(path, sys.argv[1] + ".moved")
        path.mkdir()
        try:
            store.close()
        except SpillError as error:
            assert f"could not remove {store.directory}" in str(error), error
        else:
            raise SystemExit("it was removed")
        store.close()
        assert os.path.getsize(sys.argv[1] + ".moved") == 0
        assert segment_descriptors() == []
        path.rmdir()
        for left in store.directory.iterdir():
            left.unlink()
        store.directory.rmdir()
        os.unlink(sys.argv[1] + ".moved")
        """,
        directory,
    )


def test_a_forked_child_keeps_no_file_of_its_parents_open(directory: Path):
    run_script(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads: the very thing tried here
        children = []
        stop = threading.Event()

        def churn():  # files are made and removed at the moment of each fork
            while not stop.is_set():
                with_own = DiskStore(sys.argv[1], ram_budget=0)
                with_own.put(np.ones(10))
                with_own.close()

        thread = threading.Thread(target=churn)
        thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                if segment_descriptors():
                    os._exit(1)
                sys.exit(0)  # an ordinary end, in which HDF5 closes what it finds open
            children.append(child)
        stop.set()
        thread.join()
        assert {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children} == {0}
        assert all((store.get(handle) == i).all() for i, handle in enumerate(handles))
        """,
        directory,
    )


def test_programs_started_meanwhile_inherit_no_file(make_store: MakeStore):
    store = make_store(0)
    store.put(np.ones(1000))
    (path,) = store.directory.glob("*.h5")
    ours = open_files_below(path)
    assert ours
    assert not any(os.get_inheritable(fd) for fd in ours)


@pytest.mark.parametrize(
    "wait",
    ["store.put(np.ones(40_000))", "store.flush()", "store.close()", "time.sleep(9)"],
)
def test_control_c_ends_a_process_that_waits_and_leaves_nothing(directory: Path, wait: str):
    """The disk is as slow as can be: the writer waits in the callback of a caller."""
    run_script(
        f"""
        slow = DiskStore(sys.argv[1], ram_budget=500_000)
        let_go = threading.Event()
        blocked = slow.put(np.ones(40_000), unchanged=lambda: let_go.wait(30))
        flusher = threading.Thread(target=lambda: [slow.flush()], daemon=True)
        threading.excepthook = lambda error: None  # the flusher is told that its store closes
        flusher.start()
        time.sleep(0.1)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        threading.Timer(0.4, let_go.set).start()
        store, first = slow, store
        try:
            {wait}
            {wait}
        except KeyboardInterrupt:
            sys.exit(0)
        raise SystemExit("not interrupted")
        """,
        directory,
    )


def test_control_c_while_the_process_ends_and_the_disk_hangs_leaves_nothing(directory: Path):
    run_script(
        """
        hanging = threading.Event()
        slow = DiskStore(sys.argv[1], ram_budget=500_000)
        slow.put(np.ones(40_000), unchanged=lambda: (hanging.set(), time.sleep(30)) is None)
        with slow._state.lock:
            slow._room.waiting_puts = 1  # which makes the writer write
            slow._state.bell.ring()
        hanging.wait()  # a store that closes before would not write at all

        def interrupt():
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        """,
        directory,
        "KeyboardInterrupt: \n",
    )


def test_daemon_threads_that_use_a_store_until_the_process_ends_make_no_noise(directory: Path):
    run_script(
        """
        def use():
            try:
                while True:
                    handle = store.put(np.ones(3000))
                    store.prefetch([handle])
                    store.get(handle)
                    store.drop(handle)
            except SpillError as error:
                assert "the store is closed" in str(error)

        for _ in range(3):
            threading.Thread(target=use, daemon=True).start()
        time.sleep(0.2)
        """,
        directory,
    )


def test_a_store_that_nobody_holds_closes_its_threads_and_files(directory: Path):
    threads = set(threading.enumerate())
    store = DiskStore(directory, ram_budget=0)
    handle = store.put(np.ones(10_000))
    got = store.get(handle)
    ours = {thread for thread in set(threading.enumerate()) - threads if "-io-" not in thread.name}  # those stay
    assert ours
    del store
    gc.collect()
    for thread in ours:
        thread.join(10)
    assert not any(thread.is_alive() for thread in ours)
    assert list(directory.iterdir()) == []
    assert got[9] == 1


def test_a_dead_thread_is_told_to_whoever_needs_it(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    heard = threading.Event()
    monkeypatch.setattr("threading.excepthook", lambda error: heard.set())
    store = make_store(0)
    store.put(np.ones(10))
    store._segments.has_unused = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(SpillError, match=r"spillgrad-writer thread ended with ZeroDivisionError"):
        while True:
            store.put(np.ones(10))
    assert heard.wait(5)
    with pytest.raises(SpillError, match="make a new store"):
        store.flush()


def test_a_defect_in_an_io_thread_is_told_and_the_thread_serves_others(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
):
    heard = threading.Event()
    monkeypatch.setattr("threading.excepthook", lambda error: heard.set())
    broken, other = make_store(0), make_store(0)
    monkeypatch.setattr(broken._writer, "_written", lambda *_: 1 / 0)
    with pytest.raises(SpillError, match=r"spillgrad-io-\d thread met ZeroDivisionError.*; make a new store"):
        broken.put(np.ones(10))
    assert heard.wait(5)
    for _ in range(4):
        assert other.get(other.put(np.ones(10)))[9] == 1
    broken.close()


def test_a_watched_array_evicted_in_mid_get_is_still_checked(make_store: MakeStore):
    """What `get` found is the caller's memory: that it left the cache meanwhile does not make it unchanged."""
    store = make_store(100_000)
    array, changed = np.zeros(10_000), threading.Event()
    evicting: list[threading.Thread] = []

    def unchanged() -> bool:
        for thread in evicting:  # the eviction falls between finding the array and asking about it
            thread.join()
        return not changed.is_set()

    handle = store.put(array, unchanged=unchanged)
    store.flush()
    state = store._state
    found = state.tier.held

    def evicted_in_mid_get(entry: object) -> object:
        result = found(entry)  # type: ignore[arg-type]
        state.tier.held = found  # type: ignore[method-assign]
        evicting.append(threading.Thread(target=evict))
        evicting[0].start()
        return result

    def evict() -> None:
        with state.lock:
            state.tier.make_room(100_000)
            array[:] = 1
            changed.set()

    state.tier.held = evicted_in_mid_get  # type: ignore[method-assign]
    got = store.get(handle)
    evicting[0].join()
    assert (got == 0).all()


def test_a_bell_wakes_its_sleeper_however_rings_and_interrupts_fall():
    bell = Bell()
    done = []

    def sleeper() -> None:
        while len(done) < 300:
            assert bell.wait(10)
            done.extend(range(len(posted) - len(done)))

    posted: list[int] = []
    thread = threading.Thread(target=sleeper)
    thread.start()
    for i in range(300):
        posted.append(i)
        bell.ring()
    thread.join(10)
    assert len(done) == 300


def test_an_array_dropped_while_it_is_prefetched_does_not_stay(make_store: MakeStore):
    store = make_store(9 << 20)
    for _ in range(5):
        first = store.put(np.ones(1 << 20))
        second = store.put(np.ones(1 << 20))  # which moves the first to disk
        store.drop(second)
        store.prefetch([first])
        deadline = time.monotonic() + 5
        while not store._state.readers and time.monotonic() < deadline:
            time.sleep(0)
        store.drop(first)
        while store.stats().ram_bytes and time.monotonic() < deadline:
            time.sleep(0.001)
        assert store.stats().ram_bytes == 0


@pytest.mark.parametrize("case", ["put straight to disk", "put that waits", "flush", "get", "check", "close"])
def test_an_error_that_was_caught_keeps_nothing_alive(directory: Path, case: str):
    # Without garbage collection: a cycle of error, traceback and frame would hold arrays of callers, and their bytes.
    run_script(
        f"""
        import gc, weakref
        case = {case!r}
        """
        """
        def limit_file_sizes(nbytes):
            resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

        def put_until_refused():
            while True:
                handles.append(store.put(np.ones(50_000)))

        def damage():
            (path,) = store.directory.glob("*.h5")
            place = path.read_bytes().index(np.full(50_000, 7).tobytes())
            if case == "get":
                os.truncate(path, place)
            else:
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(b"?")

        def check(array):
            (error,) = store.check()
            raise SpillError("as wanted")

        def caught(work):
            array = np.ones(50_000)
            try:
                work(array)
            except SpillError as error:
                return weakref.ref(array)
            raise SystemExit("nothing failed")

        if case == "put that waits":
            store.close()
            store = DiskStore(sys.argv[1], ram_budget=1_000_000)
            handles = []
        if case in ("get", "check"):
            damage()
        elif case == "close":
            (path,) = store.directory.glob("*.h5")
            os.rename(path, sys.argv[1] + ".moved")
            path.mkdir()
        else:
            limit_file_sizes(8192)
        work = {
            "put straight to disk": lambda array: store.put(array),
            "put that waits": lambda array: put_until_refused(),
            "flush": lambda array: store.flush(),
            "get": lambda array: store.get(handles[7]),
            "check": check,
            "close": lambda array: store.close(),
        }[case]
        gc.collect()
        gc.disable()
        array = caught(work)
        if case == "close":
            path.rmdir()
            for left in store.directory.iterdir():
                left.unlink()
            store.directory.rmdir()
            os.unlink(sys.argv[1] + ".moved")
        assert array() is None
        while handles:
            store.drop(handles.pop())
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, (np.ndarray, memoryview))]
        """,
        directory,
    )
