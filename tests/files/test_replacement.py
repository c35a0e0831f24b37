"""Files and folders that take their place when all of them is on the disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files import replacement
from spillgrad.files.replacement import replacing


def write(place: Path, text: str) -> None:
    """Replace a folder by one with a file of this text."""
    with replacing(place, 10) as new:
        new.mkdir()
        (new / "file").write_text(text)


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_folder_is_replaced_as_a_whole(in_one_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not in_one_step:  # a file system that cannot exchange
        monkeypatch.setattr(replacement, "_exchanged", lambda new, place: False)
    for text in ("first", "second", "third"):
        write(tmp_path / "place", text)
        assert (tmp_path / "place" / "file").read_text() == text
        assert os.listdir(tmp_path) == ["place"]


def test_an_error_leaves_what_was_there(tmp_path: Path):
    write(tmp_path / "place", "old")
    with pytest.raises(KeyError), replacing(tmp_path / "place", 10) as new:
        new.mkdir()
        raise KeyError
    assert (tmp_path / "place" / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["place"]


def test_what_a_kill_between_two_moves_left_comes_back(tmp_path: Path):
    write(tmp_path / "place", "old")
    staging = tmp_path / ".place.export"
    staging.mkdir()
    (tmp_path / "place").rename(staging / "old")
    (staging / "new").mkdir()
    with pytest.raises(KeyError), replacing(tmp_path / "place", 10):
        raise KeyError
    assert (tmp_path / "place" / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["place"]


HOLD = """
import sys
from pathlib import Path
from spillgrad.files.replacement import replacing
with replacing(Path(sys.argv[1]), 10) as new:
    new.mkdir()
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_two_processes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spillgrad.files.checkpoint_directory._PATIENCE_S", 0.1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "place")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None and other.stdout.readline() == "begun\n"
        with pytest.raises(CheckpointError, match=rf"process {other.pid} on .* is saving to .*\.place\.export"):
            write(tmp_path / "place", "mine")
        other.communicate("")
    assert other.returncode == 0
    write(tmp_path / "place", "mine")
    assert os.listdir(tmp_path) == ["place"]


def test_a_disk_without_room_is_not_written_to(tmp_path: Path):
    with (
        pytest.raises(CheckpointError, match=r"takes 8388608 TiB, and .* are free there"),
        replacing(tmp_path / "a", 1 << 63),
    ):
        pytest.fail("it began")
    with pytest.raises(ArgumentError, match="none is no folder"), replacing(tmp_path / "none" / "a", 1):
        pytest.fail("it began")
    assert os.listdir(tmp_path) == []
