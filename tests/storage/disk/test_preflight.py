"""What is known of a disk before anything is spilled to it."""

import os
from pathlib import Path

import pytest

from spillgrad.errors import SpillError
from spillgrad.storage.disk.direct_io import Speed
from spillgrad.storage.disk.file_system import file_system
from spillgrad.storage.disk.preflight import Preflight, preflight

FAST = Speed(2e9, 1e9, 1e-10)


def disk(speed: Speed | None, is_ram_disk: bool = False) -> Preflight:
    return Preflight(Path("/data"), "tmpfs" if is_ram_disk else "ext4", is_ram_disk, 3 << 30, True, speed)


@pytest.mark.filterwarnings("ignore:preflight")  # the system's temporary directory may be a RAM disk
def test_a_directory_is_looked_at_and_left_as_it_was(tmp_path: Path):
    found = preflight(tmp_path)
    assert found.directory == tmp_path
    assert found.free_bytes == pytest.approx(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.2)
    assert found.speed is not None
    assert min(found.speed) > 0
    assert str(found).startswith(f"{tmp_path} (")
    assert "\n" not in str(found)
    assert list(tmp_path.iterdir()) == []


def test_as_text_it_is_one_line():
    assert str(disk(FAST)) == "/data (ext4), 3 GiB free, writes 1.9 GiB/s, reads 953.7 MiB/s, direct I/O"
    assert str(disk(None)) == "/data (ext4), 3 GiB free, cannot be written"
    assert str(disk(FAST, is_ram_disk=True)).endswith("a RAM disk: spilling there frees no memory")


def test_a_step_is_slowed_by_the_work_or_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert disk(FAST).slowdown(10**9, 10.0) == pytest.approx(1.005)  # 0.1 s of two processors
    assert disk(FAST).slowdown(10**10, 10.0) == pytest.approx(1.5)  # 5 s to write, 10 s to read
    assert disk(None).slowdown(1, 1.0) is None


def test_a_ram_disk_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spillgrad.storage.disk.file_system._RAM_FILE_SYSTEMS", (file_system(tmp_path),))
    with pytest.warns(UserWarning, match="a RAM disk.*; pass a directory on a real disk"):
        preflight(tmp_path)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(SpillError, match=f"cannot look at {tmp_path / 'none'}: No such file or directory"):
        preflight(tmp_path / "none")
