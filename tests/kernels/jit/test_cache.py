"""The machine code on disk: found again, never mistaken, bounded, and missing without harm."""

import hashlib
import os
import pickle
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spillgrad_kernels.jit import cache
from spillgrad_kernels.jit.compile import jit

DAY_S = 86400.0
NEEDS_JIT = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

ADDS_ONE = """
import numpy as np
from spillgrad_kernels.jit.compile import counts, jit

@jit(name="adds_one")
def adds_one(start, stop, a):
    for i in range(start, stop):
        a[i] += 1

a = np.zeros(3, np.float32)
adds_one(0, 3, a)
assert a.sum() == 3
print(counts.compiled, counts.loaded)
"""


# The kernel is too long for LLVM to make it part of what calls it.
GENERATED = """
import sys
import numpy as np
from spillgrad_kernels.jit.compile import counts, jit
from spillgrad_kernels.threads.dispatch import parallel_for

def make(number):
    @jit(name=f"adds_{number}")
    def kernel(start, stop, a):
        for i in range(start, stop):
            x = a[i] + number
            LENGTHENED
            a[i] = x

    return kernel

for number in map(int, sys.argv[1:]):
    a = np.zeros(3)
    parallel_for(make(number), 3, 3, a)
    assert a.tolist() == [number] * 3, (number, a)
print(counts.compiled, counts.loaded)
""".replace("LENGTHENED", "x = (x + 8.0) - 8.0; " * 100)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the cache, and the temporary directory that stands in for it, into the test's own directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    cache._prune_once.cache_clear()
    cache._refused.clear()
    return tmp_path


def compiled_and_loaded(program: str = ADDS_ONE, *arguments: str, **variables: str) -> str:
    """Run a program in a process of its own; return how many kernels it says were compiled, and loaded."""
    printed, warned = ran(program, *arguments, **variables)
    assert warned == ""
    return printed


def ran(program: str = ADDS_ONE, *arguments: str, **variables: str) -> tuple[str, str]:
    """Run a program in a process of its own; return what it printed, and what it wrote as errors."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def code_files(home: Path) -> list[Path]:
    return sorted(home.rglob("*" + cache.SUFFIX))


def put(version: str, name: str, size: int, unused_s: float = 0.0) -> Path:
    path = cache.places()[0].path / version / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    used = time.time() - unused_s
    os.utime(path, (used, used))
    return path


def test_what_is_written_is_read_again(home: Path):
    assert cache.read("a") is None
    assert cache.write("a", b"code")
    assert cache.read("a") == b"code"
    assert [path.name for path in home.rglob("*.*")] == ["a.code"]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:20], lambda content: b"", lambda content: content[:-1] + b"?"]
)
def test_a_torn_or_altered_file_counts_as_missing_and_is_replaced(home: Path, damage: Callable[[bytes], bytes]):
    cache.write("a", b"machine code")
    (path,) = code_files(home)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("a") is None
    cache.write("a", b"machine code")
    assert cache.read("a") == b"machine code"


def test_where_the_cache_cannot_be_a_private_temporary_directory_stands_in(home: Path):
    (home / "cache").write_text("a file where the directory should be")
    assert cache.write("a", b"code")
    assert cache.read("a") == b"code"
    (path,) = code_files(home)
    assert path.is_relative_to(home / "tmp")
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert not cache.info().writable


def test_a_temporary_directory_that_others_may_write_to_is_not_trusted(home: Path):
    (home / "cache").write_text("a file where the directory should be")
    shared = home / "tmp" / f"spillgrad-kernels-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write"):
        assert not cache.write("a", b"code")
    assert cache.read("a") is None
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
@pytest.mark.parametrize("place", ["cache", "tmp"])
def test_only_this_user_has_any_right_whatever_the_umask(home: Path, umask: int, place: str):
    if place == "tmp":
        (home / "cache").write_text("a file where the directory should be")
    before = os.umask(umask)
    try:
        assert cache.write("a", b"code")
    finally:
        os.umask(before)
    made = list((home / place).rglob("*"))
    assert {path.stat().st_mode & 0o7777 for path in made if path.is_dir()} == {0o700}
    assert [path.stat().st_mode & 0o7777 for path in made if path.is_file()] == [0o600]
    assert place == "tmp" or (home / place).stat().st_mode & 0o7777 == 0o700


class RunsACommand:
    """An object whose pickle makes a directory when it is read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.directory),)


def plant(path: Path, command: Path) -> None:
    """Write as the code of a kernel what runs a command."""
    payload = pickle.dumps(RunsACommand(command))
    path.write_bytes(hashlib.blake2b(payload, digest_size=16).digest() + payload)


def give_away(path: Path) -> None:
    os.chown(path, 12345, 12345)


def move_behind_a_link(path: Path) -> None:
    elsewhere = path.rename(path.with_name(path.name + ".elsewhere"))
    path.symlink_to(elsewhere)


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
CHANGES = [
    pytest.param(lambda path: path.chmod(path.stat().st_mode | 0o020), "mode 7?[67][26]0", id="of a group"),
    pytest.param(lambda path: path.chmod(path.stat().st_mode | 0o002), "mode 7?[67]0[26]", id="of others"),
    pytest.param(give_away, "user 12345", id="another user's", marks=NEEDS_ROOT),
    pytest.param(move_behind_a_link, "symbolic link", id="behind a link"),
]


@NEEDS_JIT
@pytest.mark.parametrize(
    "place",
    [
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("spillgrad", "spillgrad/kernels", "version")),
        "file",
    ],
)
@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_code_that_somebody_else_may_have_written_is_not_run(
    home: Path, place: str, change: Callable[[Path], None], said: str
):
    assert compiled_and_loaded() == "1 0"
    (file,) = code_files(home)
    plant(file, home / "ran")
    path = {"version": file.parent, "file": file}.get(place, home / "cache" / place)
    change(path)
    printed, warned = ran()
    assert not (home / "ran").exists()
    assert printed == "1 0"
    assert warned.count("Warning") == 1
    assert str(path) in warned
    assert "remove it" in warned
    assert re.search(said, warned)
    # Machine code is found again: in place of the planted file, or in the directory that stands in for the cache.
    assert ran()[0] == "0 1"
    assert not (home / "ran").exists()


def test_the_owner_may_let_others_read(home: Path):
    cache.write("a", b"code")
    (path,) = code_files(home)
    path.chmod(0o644)
    for directory in list(path.parents)[:3]:
        directory.chmod(0o755)
    assert cache.read("a") == b"code"


def test_what_is_refused_is_said_once_and_left_alone(home: Path):
    cache.write("a", b"code")
    (path,) = code_files(home)
    path.parent.parent.chmod(0o777)
    with pytest.warns(UserWarning, match=r"may write.*XDG_CACHE_HOME") as said:
        assert cache.read("a") is None
        assert cache.write("b", b"code")  # the temporary directory takes it
    assert len(said) == 1
    assert not cache.info().writable
    assert cache.clear() == 4 + 16
    assert code_files(home) == [path]


def test_a_link_leads_nothing_out_of_the_cache(home: Path):
    """Neither reading nor removing goes where a link points to."""
    (home / "own").mkdir()
    (home / "own" / "thesis.tex").write_text("years of work")
    cache.write("a", b"code")
    (cache.places()[0].path / "older").symlink_to(home / "own")
    assert cache.info().other_versions == 0
    assert cache.prune(cache.places()[0], unused_s=-DAY_S) == 4 + 16
    assert cache.clear() == 0
    assert (home / "own" / "thesis.tex").exists()


def test_a_pipe_in_place_of_a_file_blocks_nobody(home: Path):
    cache.write("a", b"code")
    (path,) = code_files(home)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.warns(UserWarning, match="not a file"):
        assert cache.read("a") is None


def test_a_relative_cache_home_is_ignored_and_no_home_means_the_temporary_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(home))
    assert cache.places()[0].path == home / ".cache" / "spillgrad" / "kernels"
    monkeypatch.setenv("HOME", "nowhere")
    assert cache.places()[0].path.is_relative_to(home / "tmp")


def test_a_full_disk_leaves_nothing_behind(home: Path):
    cache.write("a", b"code")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # the kernel's own refusal, after a part was written
    try:
        assert not cache.write("b", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert cache.read("b") is None
    assert [path.name for path in home.rglob("*.*")] == ["a.code"]


def test_what_was_not_used_for_long_goes_and_then_what_was_used_longest_ago(home: Path):
    put("old", "dead", 10, unused_s=31 * DAY_S)
    put("old", "older", 10, unused_s=3 * DAY_S)
    put("new", "newer", 10, unused_s=2 * DAY_S)
    put("new", "newest", 10, unused_s=1 * DAY_S)
    assert cache.prune(cache.places()[0], limit_bytes=25) == 20
    assert sorted(path.name for path in cache.places()[0].path.rglob("*")) == ["new", "newer", "newest"]


def test_writing_bounds_the_cache_and_reading_counts_as_use(home: Path):
    cache.write("a", b"code")
    (path,) = code_files(home)
    used = time.time() - 40 * DAY_S
    os.utime(path, (used, used))
    assert cache.read("a") == b"code"
    put("dead", "b", 10, unused_s=31 * DAY_S)
    cache._prune_once.cache_clear()
    cache.write("c", b"code")
    assert [found.name for found in code_files(home)] == ["a.code", "c.code"]
    assert not (cache.places()[0].path / "dead").exists()


def test_code_that_this_user_may_only_read_is_used(home: Path, monkeypatch: pytest.MonkeyPatch):
    cache.write("a", b"code")
    (path,) = code_files(home)
    os.utime(path, (0, 0))

    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.read("a") == b"code"


def test_info_counts_this_version_and_the_others_and_clear_removes_all(home: Path):
    cache.write("a", b"code")
    put("other", "b", 10)
    found = cache.info()
    assert (found.files, found.size_bytes, found.other_versions, found.other_bytes, found.writable) == (
        1, 4 + 16, 1, 10, True,
    )  # fmt: skip
    assert cache.clear() == 30
    assert cache.info().files == 0
    assert list(cache.places()[0].path.iterdir()) == []


@NEEDS_JIT
def test_a_second_process_compiles_nothing(home: Path):
    assert compiled_and_loaded() == "1 0"
    assert compiled_and_loaded() == "0 1"


@pytest.mark.exhaustive
@NEEDS_JIT
@pytest.mark.parametrize(
    "variables", [{"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, {"NUMBA_BOUNDSCHECK": "1"}]
)
def test_another_processor_or_compiler_setting_finds_nothing(home: Path, variables: dict[str, str]):
    assert compiled_and_loaded() == "1 0"
    assert compiled_and_loaded(**variables) == "1 0"
    assert compiled_and_loaded(**variables) == "0 1"
    assert compiled_and_loaded() == "0 1"


@pytest.mark.exhaustive
@NEEDS_JIT
def test_generated_code_under_the_same_name_is_not_mistaken(home: Path):
    assert compiled_and_loaded() == "1 0"
    assert compiled_and_loaded(ADDS_ONE.replace("+= 1", "+= 2 / 2")) == "1 0"


@pytest.mark.exhaustive
@NEEDS_JIT
def test_code_of_several_processes_is_not_mixed_up(home: Path):
    """Each process numbers its functions from the start: one's symbols must not stand in for another's."""
    compiled_and_loaded(GENERATED, "1")
    compiled_and_loaded(GENERATED, "2")
    compiled_and_loaded(GENERATED, "1", "3", "2")


@NEEDS_JIT
def test_a_forked_child_names_its_functions_apart(home: Path):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, symbol_of_new_kernel("theirs"))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 4096) != symbol_of_new_kernel("ours")
    os.close(ours)
    os.close(theirs)


def symbol_of_new_kernel(name: str) -> bytes:
    @jit(name=name)
    def kernel() -> None:
        pass

    kernel()
    (compiled,) = kernel.overloads.values()
    symbol: str = compiled.fndesc.mangled_name
    return symbol.encode()


@pytest.mark.exhaustive
@NEEDS_JIT
def test_a_kill_while_writing_leaves_a_cache_that_works(home: Path):
    dies = "import os\nos.replace = lambda *paths, **directories: os._exit(0)\n" + ADDS_ONE
    assert compiled_and_loaded(dies) == ""
    assert list(home.rglob("*.partial"))
    assert compiled_and_loaded() == "1 0"
    assert compiled_and_loaded() == "0 1"


@NEEDS_JIT
def test_processes_that_start_together_on_an_empty_cache_agree(home: Path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ADDS_ONE]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    assert [(process.communicate(timeout=120)[1], process.returncode) for process in processes] == [(b"", 0)] * 3
    assert len(code_files(home)) == 1
    assert compiled_and_loaded() == "0 1"


@pytest.mark.exhaustive
@NEEDS_JIT
def test_without_any_place_to_write_kernels_are_compiled_all_the_same(home: Path):
    (home / "cache").write_text("a file where the directory should be")
    for _ in range(2):
        assert compiled_and_loaded("import tempfile\ntempfile.tempdir = '/proc'\n" + ADDS_ONE) == "1 0"
