"""The memory that the system has left, read from files as Linux writes them."""

from pathlib import Path

import psutil
import pytest

from spillgrad_kernels.memory import system_memory as module
from spillgrad_kernels.memory.system_memory import SystemMemory, system_memory

GIB = 1 << 30


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a machine of 16 GiB with 8 left, without control groups."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    monkeypatch.setattr(module, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "_OWN_GROUPS", tmp_path / "own")
    v2, v1 = module._HIERARCHIES
    monkeypatch.setattr(
        module, "_HIERARCHIES", (v2._replace(root=tmp_path / "v2"), v1._replace(root=tmp_path / "v1" / "memory"))
    )
    return tmp_path


def group(directory: Path, limit: str, used: int, cached: int) -> None:
    v1 = "v1" in directory.parts
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(f"{limit}\n")
    (directory / ("memory.usage_in_bytes" if v1 else "memory.current")).write_text(f"{used}\n")
    prefix = "total_" if v1 else ""
    (directory / "memory.stat").write_text(f"{prefix}active_file {cached}\n{prefix}inactive_file 0\nanon 7\n")


def test_without_limits_the_machine_counts(linux: Path):
    assert system_memory() == SystemMemory(8 * GIB, 16 * GIB)


def test_a_group_without_a_limit_changes_nothing(linux: Path):
    (linux / "own").write_text("0::/job\n")
    group(linux / "v2" / "job", "max", 3 * GIB, 0)
    assert system_memory() == SystemMemory(8 * GIB, 16 * GIB)


@pytest.mark.parametrize(("line", "place"), [("0::/a/b", "v2/a/b"), ("4:cpu,memory:/a/b", "v1/memory/a/b")])
def test_the_scarcest_of_all_groups_counts_and_cached_files_are_free(linux: Path, line: str, place: str):
    (linux / "own").write_text(f"1:cpuset:/x\n{line}\n")
    group(linux / place, str(4 * GIB), 3 * GIB, GIB)
    assert system_memory() == SystemMemory(2 * GIB, 4 * GIB)
    group((linux / place).parent, str(5 * GIB), 4 * GIB, 0)
    assert system_memory() == SystemMemory(1 * GIB, 5 * GIB)


def test_inside_a_container_the_group_in_sight_is_the_root(linux: Path):
    (linux / "own").write_text("0::/\n")
    group(linux / "v2", str(4 * GIB), 3 * GIB, 0)
    assert system_memory() == SystemMemory(1 * GIB, 4 * GIB)


def test_a_system_that_does_not_say_is_none(linux: Path):
    (linux / "meminfo").unlink()
    assert system_memory() is None


def test_this_machine_agrees_with_psutil():
    found = system_memory()
    assert found is not None
    assert 0 < found.available_bytes <= found.total_bytes <= psutil.virtual_memory().total
