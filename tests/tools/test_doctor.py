"""`spillgrad doctor`: what it finds, and what it says of that."""

import json
from pathlib import Path
from typing import Any

import pytest

from spillgrad_tools import doctor
from spillgrad_tools.cli import main

FINE: dict[str, Any] = {
    "cores": 4, "machine_cores": 4, "instructions": ["avx2"], "available_ram_bytes": 8 << 30, "is_ram_disk": False,
    "directory": "here", "write_bytes_per_s": 1e9, "read_bytes_per_s": 1e9, "direct_io": True,
    "free_disk_bytes": 100 << 30, "kernel_cache_writable": True, "cached_kernels": 5,
}  # fmt: skip


def test_it_names_processor_memory_disk_and_software(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor", "--dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for words in ("cores usable", "GFLOP/s", "available of", str(tmp_path), "numpy", "HDF5", "kernel cache", "reads"):
        assert words in printed
    assert len(printed.splitlines()) < 25  # one screen
    assert main(["doctor", "--dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["matmul_flop_per_s"] > 0 and found["write_bytes_per_s"] > 0 and found["free_disk_bytes"] > 0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--dir", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"instructions": []}, ["no vector instructions"]),
        ({"cores": 2}, ["2 of 4 cores"]),
        ({"available_ram_bytes": 1 << 29}, ["512 MiB of RAM are available"]),
        ({"is_ram_disk": True, "free_disk_bytes": 1}, ["it is a RAM disk"]),
        ({"write_bytes_per_s": None}, ["cannot be written, or is full"]),
        ({"read_bytes_per_s": 5e7}, ["recompute instead"]),
        ({"direct_io": False}, ["through the page cache"]),
        ({"free_disk_bytes": 1 << 30}, ["1 GiB are free in here"]),
        ({"kernel_cache_writable": False}, ["XDG_CACHE_HOME"]),
        ({"cached_kernels": 0}, ["spillgrad cache warm"]),
    ],
    ids=lambda value: " ".join(map(str, value)) or "fine",
)
def test_each_reason_to_be_slow_has_its_advice(change: dict[str, Any], words: list[str]):
    advice = list(doctor._advice({**FINE, **change}))
    assert len(advice) == len(words)
    assert all(word in line for word, line in zip(words, advice, strict=True))
