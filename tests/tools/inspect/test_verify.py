"""`spillgrad verify`: status 0 where all is right, 1 with a list where something is wrong, 2 for bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad_tools.cli import main
from tests.inspection.segments import ARRAYS, NORMAL, stored


def test_what_is_all_right_is_said_with_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = stored(tmp_path)
    assert main(["verify", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"checked {len(ARRAYS)} arrays in 1 segment: {len(ARRAYS)} with a verified checksum" in printed.out
    assert printed.out.endswith("nothing is wrong\n")


def test_a_damaged_array_is_named_with_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = stored(tmp_path, [NORMAL, NORMAL + 1])
    data = bytearray(path.read_bytes())
    data[4096 + 99] ^= 8
    path.write_bytes(data)
    assert main(["verify", str(path)]) == 1
    printed = capsys.readouterr().out
    assert f"wrong: {path}/00000000: its checksum is " in printed
    assert "00000001" not in printed
    assert printed.endswith("1 problem\n")
    assert main(["verify", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert [(one["path"], one["key"]) for one in found["problems"]] == [(str(path), "00000000")]
    assert (found["arrays"], found["verified"], found["segments"]) == (2, 1, 1)


def test_a_finished_run_says_that_its_journal_alone_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    store.get(store.put(NORMAL))
    store.close()
    assert main(["verify", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "note: " in printed
    assert "there are no segments (a finished run has none): journals were checked" in printed
    assert printed.endswith("nothing is wrong\n")


def test_a_live_run_is_not_disturbed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = DiskStore(tmp_path, ram_budget=0)
    try:
        handle = store.put(NORMAL)
        store.flush()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "spillgrad_tools", "verify", str(tmp_path), "--json"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert json.loads(ended.stdout)["verified"] == 1
        np.testing.assert_array_equal(store.get(handle), NORMAL)
    finally:
        store.close()


def test_names_of_files_are_printed_without_what_a_terminal_obeys(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "a\x1b[31m[red]"
    folder.mkdir()
    path = stored(tmp_path, [NORMAL]).rename(folder / "segment-00000.h5")
    data = bytearray(path.read_bytes())
    data[4096 + 99] ^= 8
    path.write_bytes(data)
    assert main(["verify", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "a\\x1b[31m[red]/segment-00000.h5/00000000" in printed


def test_what_is_wrong_with_a_file_names_it_once_and_no_other_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run-0123456789abcdef"
    run.mkdir()
    path = run / "segment-00000.h5"
    whole = stored(tmp_path, [NORMAL], codec="lossless").read_bytes()
    (run / ".lock").touch()
    (run / "journal.jsonl").write_text('{"format": 99, "began": "x"}\n')
    for damaged in (whole[:3000], whole.replace(b"\x28\xb5\x2f\xfd", b"\0\0\0\0", 1).replace(b"xxh3_64", b"yyh3_64")):
        path.write_bytes(damaged)
        assert main(["verify", str(tmp_path)]) == 1
        wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong: ")]
        assert len(wrong) == 2
        assert [line.count(str(run)) for line in wrong] == [1, 1]
        assert [line for line in wrong if "inspect: " in line or "verify: " in line] == []


def test_a_journal_is_known_by_how_it_begins_whatever_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept").close()
    assert main(["verify", str(tmp_path / "kept")]) == 0
    assert "in 1 journal\n" in capsys.readouterr().out


def test_a_file_of_others_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "notes.txt").write_text("no segment")
    assert main(["verify", str(tmp_path / "notes.txt")]) == 2
    said = f"spillgrad: verify: got {tmp_path}/notes.txt, which is neither a segment nor a journal"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("kind", ["missing", "text", "empty folder", "pipe", "journal of nothing"])
def test_bad_input_is_one_line_and_status_2(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / ("thing.jsonl" if kind == "journal of nothing" else "thing")
    make = {
        "missing": lambda: None,
        "text": lambda: path.write_text("no segment"),
        "empty folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "journal of nothing": lambda: path.write_text("{}\n"),
    }
    make[kind]()
    assert main(["verify", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("spillgrad: ")
    assert printed.err.count("\n") == 1
    assert str(path) in printed.err
