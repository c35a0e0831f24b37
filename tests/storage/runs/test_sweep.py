"""A dead run's files go, and nobody else's."""

import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from spillgrad.errors import SpillError
from spillgrad.storage.disk.file_system import is_ram_disk
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.runs import file_lock, run_directory
from spillgrad.storage.runs.run_directory import RunDirectory, default_directory
from spillgrad.storage.runs.sweep import sweep

SPILL_AND_WAIT = """
import sys, time
import numpy as np
from spillgrad.storage.disk_store import DiskStore
store = DiskStore(sys.argv[1], ram_budget=0)
store.put(np.ones(100_000))
print(store.directory, flush=True)
time.sleep(60)
"""


@contextmanager
def other_process(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that spills into `directory`; and its run."""
    command = [sys.executable, "-c", SPILL_AND_WAIT, str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_the_next_run_removes_what_a_killed_one_left(directory: Path, make_store: Callable[..., DiskStore]):
    with other_process(directory) as (process, run):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(list(run.glob("*.h5"))) == 1
    (found,) = sweep(directory, dry_run=True)
    assert found.path == run
    assert found.disk_bytes >= 800_000
    assert run.exists()
    store = make_store(0)
    assert list(directory.iterdir()) == [store.directory]


def test_a_live_neighbours_files_stay(directory: Path, make_store: Callable[..., DiskStore]):
    with other_process(directory) as (_, run):
        assert sweep(directory) == []
        make_store(0)
        assert len(list(run.glob("*.h5"))) == 1
    assert [dead.path for dead in sweep(directory)] == [run]


def test_the_runs_of_this_process_stay(directory: Path, make_store: Callable[..., DiskStore]):
    first, second = make_store(0), make_store(0)
    handles = [store.put(np.arange(10)) for store in (first, second)]
    assert sweep(directory) == []
    assert first.get(handles[0])[3] == second.get(handles[1])[3] == 3
    # Had a sweep opened and closed the lock file, this process would have lost its lock: another one would sweep then.
    script = "import sys; from spillgrad.storage.runs.sweep import sweep; print(sweep(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(directory)]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "[]\n"


def test_reading_ones_own_directory_gives_up_no_lock(
    tmp_path: Path, directory: Path, make_store: Callable[..., DiskStore], neighbour_sweeps: Callable[[Path], int]
):
    store = make_store(0)
    handle = store.put(np.arange(10_000))
    shutil.copytree(store.directory, tmp_path / "copy")
    assert neighbour_sweeps(directory) == 0
    assert len(list(store.directory.glob("*.h5"))) == 1
    assert store.get(handle)[3] == 3


FORK_AND_DIE = """
import os, signal, sys, time
import numpy as np
from spillgrad.storage.disk_store import DiskStore
store = DiskStore(sys.argv[1], ram_budget=0)
store.put(np.ones(100_000))
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_run_of_a_dead_parent(directory: Path):
    command = [sys.executable, "-W", "ignore", "-c", FORK_AND_DIE, str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert parent.wait() == -signal.SIGKILL
            os.kill(child, 0)  # it lives
            assert len(sweep(directory)) == 1
        finally:
            os.kill(child, signal.SIGKILL)


LOCK_AS_FORMER_RELEASES = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("taken", flush=True)
    sys.stdin.readline()
except OSError as error:
    print(type(error).__name__)
"""


def test_a_run_and_one_with_a_lock_of_its_process_leave_each_other_alone(
    directory: Path, make_store: Callable[..., DiskStore]
):
    """As releases before this one took."""
    command = [sys.executable, "-c", LOCK_AS_FORMER_RELEASES]
    store = make_store(0)
    refused = subprocess.run([*command, store.directory / ".lock"], capture_output=True, text=True)
    assert refused.stdout == "BlockingIOError\n"
    other = directory / "run-0123456789abcdef"
    other.mkdir()
    (other / ".lock").touch()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, other / ".lock"], **pipes, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        assert run_directory.is_locked(other)
        assert sweep(directory) == []
        process.kill()
    assert not run_directory.is_locked(other)
    assert [dead.path for dead in sweep(directory)] == [other]


WITHOUT_LOCKS_OF_FILES = """
import ctypes, errno, fcntl, platform, struct, sys, tempfile
from pathlib import Path
number = {"x86_64": 72, "aarch64": 25}[platform.machine()]  # of fcntl
LOAD, EQUAL, RETURN, ALLOW, REFUSE = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | errno.EINVAL
filters = [
    (LOAD, 0, 0, 0), (EQUAL, 0, 4, number),  # the system call
    (LOAD, 0, 0, 24), (EQUAL, 1, 0, 36), (EQUAL, 0, 1, 37),  # its second argument: F_OFD_GETLK, F_OFD_SETLK
    (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in filters))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(filters), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 == libc.prctl(22, 2, program)  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
with tempfile.TemporaryFile() as file:
    try:
        sys.exit(f"locked: {fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0))}")
    except OSError as error:
        assert error.errno == errno.EINVAL

import numpy as np
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.runs.run_directory import is_locked
from spillgrad.storage.runs.sweep import sweep
stores = [DiskStore(sys.argv[1], ram_budget=0) for _ in range(2)]
handles = [store.put(np.ones(10_000)) for store in stores]
print(len(sweep(sys.argv[1])), *(is_locked(store.directory) for store in stores), flush=True)
sys.stdin.readline()
print(*(store.get(handle).sum() for store, handle in zip(stores, handles)))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of system calls differ")
def test_a_kernel_without_locks_of_open_files_locks_for_the_process(
    directory: Path, neighbour_sweeps: Callable[[Path], int]
):
    command = [sys.executable, "-c", WITHOUT_LOCKS_OF_FILES, str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
        assert process.stdout.readline() == "0 True True\n"
        assert neighbour_sweeps(directory) == 0
        assert process.communicate("\n")[0] == "10000.0 10000.0\n"
        assert process.returncode == 0


@pytest.mark.parametrize("name", ["run-2024", "run-0123456789abcdef0", "other", "run-0123456789ABCDEF"])
def test_directories_of_other_names_stay(tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    (tmp_path / name / ".lock").touch()
    assert sweep(tmp_path) == []
    assert (tmp_path / name / ".lock").exists()


def test_files_of_other_names_stay(tmp_path: Path):
    run = tmp_path / "run-0123456789abcdef"
    run.mkdir()
    for name in (".lock", "segment-00000.h5", "thesis.h5"):
        (run / name).touch()
    sweep(tmp_path)
    assert [path.name for path in run.iterdir()] == ["thesis.h5"]
    sweep(tmp_path)
    assert [path.name for path in run.iterdir()] == ["thesis.h5"]


def test_only_when_asked_runs_in_folders_below_go_too(tmp_path: Path):
    deep, elsewhere = tmp_path / "deep" / "er", tmp_path / "elsewhere"
    for place in (deep, elsewhere):
        (place / "run-0123456789abcdef").mkdir(parents=True)
    (deep / "link").symlink_to(elsewhere)
    assert sweep(tmp_path / "deep") == []
    assert [dead.path.parent for dead in sweep(tmp_path / "deep", below=True)] == [deep]
    assert [path.name for path in elsewhere.iterdir()] == ["run-0123456789abcdef"]


def test_a_link_to_another_directory_is_not_followed(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".lock").touch()
    (tmp_path / "run-0123456789abcdef").symlink_to(elsewhere)
    assert sweep(tmp_path) == []
    assert (elsewhere / ".lock").exists()


def test_a_run_that_died_before_its_lock_goes(tmp_path: Path):
    (tmp_path / "run-0123456789abcdef").mkdir()
    assert [dead.disk_bytes for dead in sweep(tmp_path)] == [0]
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_makes_its_lock_while_it_is_swept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tmp_path / "run-0123456789abcdef"
    run.mkdir()
    rmdir = os.rmdir

    def rmdir_late(path: Path) -> None:
        (run / ".lock").touch()
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", rmdir_late)
    assert sweep(tmp_path) == []
    assert (run / ".lock").exists()


SWEEP_WHEN_ASKED = """
import sys
from spillgrad.storage.runs.sweep import sweep
for directory in sys.stdin:
    print(len(sweep(directory.strip())), flush=True)
"""


@pytest.fixture(scope="module")
def neighbour_sweeps() -> Iterator[Callable[[Path], int]]:
    """A sweep by another process, and how many runs it removed."""
    command = [sys.executable, "-c", SWEEP_WHEN_ASKED]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(directory: Path) -> int:
            print(directory, file=process.stdin, flush=True)
            return int(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.mark.parametrize(
    ("module", "call", "swept"),
    [(os, "mkdir", 1), (run_directory, "identity", 1), (os, "open", 1), (file_lock, "lock", 0)],
)
def test_a_run_that_is_swept_while_it_is_made_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbour_sweeps, module, call: str, swept: int
):
    real, removed = getattr(module, call), []

    def then_sweep(*arguments, **options):
        result = real(*arguments, **options)
        if not removed:
            removed.append(neighbour_sweeps(tmp_path))
        return result

    monkeypatch.setattr(module, call, then_sweep)
    run = RunDirectory(tmp_path)
    assert removed == [swept]
    assert [*tmp_path.iterdir()] == [run.path]
    assert neighbour_sweeps(tmp_path) == 0
    run.remove()
    assert list(tmp_path.iterdir()) == []


USE = "import sys; from spillgrad.storage.disk_store import DiskStore; DiskStore(sys.argv[1], ram_budget=0)"


@pytest.mark.parametrize("place", ["/proc/self", "/proc/self/fd", "/proc/self/spill", "/sys", "/dev/null"])
def test_a_directory_in_which_none_can_be_made_is_refused_at_once(place: str):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", USE, place]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"spillgrad.errors.SpillError: spill: cannot use {place}: ")
    assert last.endswith("; pass a directory that can be written")
    assert "Warning" not in ended.stderr


@pytest.mark.parametrize("call", ["mkdir", "lstat"])
def test_the_default_directory_is_made_again_when_its_last_run_just_removed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real, directory = getattr(os, call), default_directory()
    calls = []

    def after_it_went(*arguments, **options):
        calls.append(call)
        if len(calls) == 1:
            os.rmdir(directory)
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, after_it_went)
    DiskStore(ram_budget=0).close()
    assert calls
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(SpillError, match=r"spill: cannot use .*file.*; pass a directory that can be written") as caught:
        DiskStore(tmp_path / "file" / "spill", ram_budget=0)
    assert "\n" not in str(caught.value)


def test_who_may_replace_runs_in_a_directory_is_told_of(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.warns(UserWarning, match=f"spill: all users may write to {tmp_path}, and so remove or replace the run"):
        store = DiskStore(tmp_path, ram_budget=0)
    try:
        assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
        handle = store.put(np.arange(10_000))
        assert {stat.S_IMODE(file.stat().st_mode) for file in store.directory.iterdir()} == {0o600}
        assert store.get(handle)[3] == 3
    finally:
        store.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_told_of(tmp_path: Path):
    os.chown(tmp_path, 65534, -1)
    with pytest.warns(UserWarning, match=f"spill: {tmp_path} belongs to another user, who may remove or replace"):
        DiskStore(tmp_path, ram_budget=0).close()


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o1777])
def test_a_directory_in_which_only_friends_replace_runs_is_taken_in_silence(tmp_path: Path, mode: int):
    """A group may be the user's own, as where the umask is 002; the sticky bit leaves files to their owners."""
    tmp_path.chmod(mode)
    DiskStore(tmp_path, ram_budget=0).close()


@pytest.mark.parametrize("replace", [Path.symlink_to, lambda run, others: others.rename(run)], ids=["link", "folder"])
def test_of_a_directory_put_in_the_place_of_a_run_nothing_is_removed(
    tmp_path: Path, replace: Callable[[Path, Path], object]
):
    place, others = tmp_path / "spill", tmp_path / "others"
    others.mkdir()
    (others / "journal.jsonl").write_text("kept")
    run = RunDirectory(place)
    run.path.rename(place / "moved")
    replace(run.path, others)
    with pytest.raises(SpillError, match=f"could not remove {run.path}: .*; remove it by hand"):
        run.remove()
    assert (run.path / "journal.jsonl").read_text() == "kept"


def test_a_sweep_removes_nothing_of_a_directory_put_in_the_place_of_a_dead_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place, others = tmp_path / "spill", tmp_path / "others"
    run = place / "run-0123456789abcdef"
    for directory in (run, others):
        directory.mkdir(parents=True)
        for name in (".lock", "journal.jsonl"):
            (directory / name).touch()
    lock = file_lock.lock

    def lock_late(*arguments: int, **options: bool) -> bool:
        run.rename(place / "moved")
        run.symlink_to(others)
        return lock(*arguments, **options)

    monkeypatch.setattr(file_lock, "lock", lock_late)
    with pytest.raises(OSError, match="remove it by hand"):
        sweep(place)
    assert sorted(path.name for path in others.iterdir()) == [".lock", "journal.jsonl"]


def test_without_a_directory_the_temporary_one_is_used_and_left_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = DiskStore(ram_budget=0)
    store.put(np.ones(10))
    assert store.directory.parent == default_directory()
    assert store.directory.parent.parent == tmp_path
    store.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no RAM disk here")
def test_a_ram_disk_is_told_from_a_disk():
    assert is_ram_disk("/dev/shm")
    assert not is_ram_disk("/proc")
