"""Tokens that one program hands over to the next one of the same process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad_tools.train.data import TrainingData
from spillgrad_tools.train.handed_data import hand_over, taken
from tests.storage.test_disk_store import in_own_mounts
from tests.waiting import wait_until

RECORDS = [{"text": f"The {animal} sleeps all day long, and so do I."} for animal in ("cat", "dog", "bird", "horse")]


def documents(first: int = 0) -> sg.data.Documents:
    return sg.data.Documents.from_records(RECORDS[first:])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    sg.data.BPETokenizer.train([record["text"] for record in RECORDS], 300, ["</s>"]).save(folder / "tokenizer.json")
    return str(folder)


def through(handed: dict[str, Any], tokenizer: str | None = None) -> TrainingData | None:
    return taken(json.loads(json.dumps(handed)), tokenizer)


def test_documents_come_back_with_those_to_evaluate_and_what_was_left_out(tmp_path: Path):
    data = TrainingData(documents(), documents(2), None, "left out 1")
    found = through(hand_over(data, tmp_path))
    assert found is not None
    assert (found.digest, found.left_out, found.tokenizer) == (data.digest, "left out 1", None)
    assert isinstance(found.content, sg.data.Documents) and isinstance(found.held_out, sg.data.Documents)
    assert found.content.tokens.dtype == np.uint8
    assert [found.content[1][0].tobytes(), len(found.held_out)] == [RECORDS[1]["text"].encode(), 2]
    assert list(tmp_path.iterdir()) == []


def test_the_tokens_of_a_text_come_back_and_its_bytes_are_read_again(tmp_path: Path, tokenizer: str):
    data = TrainingData(np.arange(300, dtype=np.uint16), None, sg.data.ChatTokenizer.load(tokenizer))
    found = through(hand_over(data, tmp_path), tokenizer)
    assert found is not None and isinstance(found.content, np.ndarray)
    assert found.content.dtype == np.uint16 and found.digest == data.digest and found.tokenizer is not None
    assert hand_over(TrainingData.of_bytes(b"text"), tmp_path) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"fd": 0}, {"fd": 999}, {"fd": "x"}, {"digest": "0"}, {"contents": []}, {"contents": None},
        {"contents": [[["<u1", 9], ["<i8", 5], ["|b1", 9]]]}, {"contents": [[["|O", 8]]]}, {"contents": [[["<f8", 3]]]},
        {"contents": [[["<u1", -1]]]}, {"contents": [[["<u1"]]]},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_as_it_says_is_not_taken(change: dict[str, Any], tmp_path: Path):
    handed = hand_over(TrainingData(documents()), tmp_path)
    handed["data"] |= change
    assert through(handed) is None


def test_a_file_that_was_cut_or_damaged_is_not_taken(tmp_path: Path):
    for damage in (lambda fd: os.ftruncate(fd, 50), lambda fd: os.pwrite(fd, b"\xff", 3)):
        handed = hand_over(TrainingData(documents()), tmp_path)
        damage(handed["data"]["fd"])
        assert through(handed) is None
    assert through({}) is None


def test_where_there_is_no_room_nothing_is_handed_over(tmp_path: Path):
    assert hand_over(TrainingData(documents()), tmp_path / "missing") == {}
    (tmp_path / "disk").mkdir()
    program = """
import numpy as np
import spillgrad as sg
from pathlib import Path
from spillgrad_tools.train.data import TrainingData
from spillgrad_tools.train.handed_data import hand_over
documents = sg.data.Documents(np.zeros(60_000, np.int64), np.array([0, 60_000]))
print(hand_over(TrainingData(documents), Path("disk")))
"""
    ran = subprocess.run(
        [*in_own_mounts(tmp_path / "disk", 600), sys.executable, "-c", program], cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("{}\n", "")


def test_documents_are_read_once_though_the_command_starts_anew(tmp_path: Path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in RECORDS * 20))
    command = [sys.executable, "-m", "spillgrad_tools", "train", "--data", "lines.jsonl", "--model", "tiny", "--steps"]
    command += ["2", "--batch", "2", "--context", "32", "--ram", "1GiB", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    wait_until(lambda: any((tmp_path / "out").glob("plan-*")), 120)
    lines.unlink()
    printed, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (0, "")
    assert "checkpoint: out" in printed
