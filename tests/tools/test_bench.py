"""Benchmarks of the store, and what all benchmarks print."""

from pathlib import Path

import pytest

from spillgrad.errors import ArgumentError
from spillgrad_tools import bench_spill
from spillgrad_tools.bench_report import format_seconds, write_between_markers
from spillgrad_tools.train_settings import TrainSettings


def test_the_store_is_timed_beside_plain_files_and_steps_in_ram(tmp_path: Path):
    settings = TrainSettings(model="tiny", steps=3, batch=2, context=32)
    results = bench_spill.file_results(3, tmp_path, rounds=1) + bench_spill.step_results(settings, tmp_path, rounds=2)
    assert [result["case"] for result in results] == ["write", "read", "training step, tiny"]
    assert all(result["seconds"].keys() == {"plain", "spillgrad"} for result in results)
    assert all(seconds > 0 for result in results for seconds in result["seconds"].values())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-9, "2 ns"), (1.234e-5, "12.3 us"), (0.0456, "45.6 ms"), (0.9999e-3, "1 ms"), (7.891, "7.89 s")],
)
def test_durations_have_a_unit_that_fits(seconds: float, text: str):
    assert format_seconds(seconds) == text


def test_a_table_goes_between_its_markers_and_nowhere_else(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x -->\nold\n<!-- end of x -->\nafter\n")
    for text in ("| new |", "| newer |"):
        write_between_markers(page, "x", text)
        assert page.read_text() == f"before\n<!-- x -->\n\n{text}\n\n<!-- end of x -->\nafter\n"


@pytest.mark.parametrize("text", ["", "<!-- x -->", "<!-- end of x --><!-- x -->"])
def test_a_page_without_markers_is_refused_and_kept(tmp_path: Path, text: str):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ArgumentError, match="lacks the lines"):
        write_between_markers(page, "x", "new")
    assert page.read_text() == text
