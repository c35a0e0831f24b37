"""The bound on a program's memory, and the count of a process's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from spillgrad_tools import memory_cap
from spillgrad_tools.memory_cap import MemoryCap, peak_rss_bytes

MIB = 1 << 20
TAKE = "import sys; taken = bytearray(int(sys.argv[1])); taken[::4096] = b'x' * len(taken[::4096]); print('had it')"


def take(cap: MemoryCap, nbytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        cap.command([sys.executable, "-c", TAKE, str(nbytes)]), capture_output=True, text=True, timeout=60
    )


@pytest.fixture(params=["a control group where one can be made", "a limit on each process"])
def cap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MemoryCap:
    if "process" in request.param:
        monkeypatch.setattr(memory_cap, "_HIERARCHIES", ())
    return MemoryCap(200 * MIB)


def test_a_program_gets_what_is_below_the_cap_and_no_more(cap: MemoryCap):
    with cap:
        ran = take(cap, 100 * MIB)
        assert (ran.returncode, ran.stdout) == (0, "had it\n")
        peak = cap.peak_bytes()
        assert peak is None or 100 * MIB < peak < 200 * MIB
        ran = take(cap, 400 * MIB)
        assert ran.returncode != 0
        assert ran.stdout == ""
        assert cap.is_group or "MemoryError" in ran.stderr


def test_without_control_groups_each_process_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_cap, "_HIERARCHIES", ())
    with MemoryCap(100 * MIB) as cap:
        assert not cap.is_group
        assert cap.peak_bytes() is None


def test_the_group_is_removed_also_after_an_error(cap: MemoryCap):
    with pytest.raises(ZeroDivisionError), cap:
        take(cap, 1)
        raise ZeroDivisionError
    assert cap._group is None or not cap._group.exists()


def test_the_peak_of_this_process_rises_with_what_it_takes():
    program = (
        "from spillgrad_tools.memory_cap import peak_rss_bytes as peak; before = peak();"
        "taken = b'x' * (64 << 20); print(peak() - before)"
    )
    path = str(Path(memory_cap.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert 60 * MIB < int(ran.stdout) < 80 * MIB
    assert peak_rss_bytes() > MIB
