"""Benchmarks of the store, and what all benchmarks print."""

import json
import math
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from spillgrad.storage.disk.direct_io import open_direct
from spillgrad_tools.bench import spill as bench_spill
from spillgrad_tools.bench.bars import Row
from spillgrad_tools.bench.options import SpillOptions
from spillgrad_tools.bench.report import format_measured
from spillgrad_tools.train.options import TrainSettings
from tests.waiting import wait_until


def bars(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Return the names of each row's bars, after seeing that every value was measured."""
    found = {row.case: row for row in rows}
    for row in found.values():
        assert all(value >= 0 for value in row.measured.values())
        assert [bar["reached"] for bar in row.as_json()["bars"]] == [verdict.reached for verdict in row.verdicts]
        assert all(0 < verdict.reached < math.inf for verdict in row.verdicts)
    return {case: [verdict.bar for verdict in row.verdicts] for case, row in found.items()}


def test_the_store_is_timed_beside_plain_files(tmp_path: Path):
    found = bars(bench_spill.file_rows(1 << 20, 6 << 20, 2 << 20, tmp_path, rounds=2))
    how = ("page cache", "O_DIRECT") if open_direct(tmp_path, os.O_RDWR | os.O_TMPFILE) else ("page cache",)
    assert found == {f"{part} 1 MiB arrays, {each}": ["× plain"] for each in how for part in ("write", "read")}
    assert list(tmp_path.iterdir()) == []


def test_a_pack_and_a_hit_are_timed(tmp_path: Path):
    found = bars(bench_spill.call_rows(3, tmp_path, rounds=2))
    assert found == {f"{part} a 4 MiB tensor in RAM": ["µs"] for part in ("pack", "hit")}


def test_a_spilled_step_is_timed_beside_its_peers(tmp_path: Path):
    settings = TrainSettings(model="tiny", steps=3, batch=2, context=32)
    rows = list(bench_spill.step_rows(settings, tmp_path, rounds=2))
    assert rows[0].measured["written"] >= rows[0].measured["budget"] > 0
    assert rows[1].measured.keys() == {"in RAM", "spilled", "plain traffic", "file per tensor"}
    assert rows[2].measured.keys() == {"waited", "plain traffic alone"}
    del rows
    wait_until(lambda: list(tmp_path.iterdir()) == [])  # the files per tensor too


SECONDS = {
    "in RAM": 1.0, "spilled": 1.1, "plain traffic": 1.0, "file per tensor": 1.25, "waited": 0.022, "traffic alone": 0.5
}  # fmt: skip


@pytest.mark.parametrize(("alone", "waiting_is_judged"), [(0.59, True), (0.6, False)])
def test_a_step_is_judged_by_its_peers(alone: float, waiting_is_judged: bool):
    rows = list(bench_spill.judged_steps("tiny", {**SECONDS, "traffic alone": alone}, 1, 2, 3))
    reached = {verdict.bar: (pytest.approx(verdict.reached), verdict.met) for row in rows for verdict in row.verdicts}
    assert reached == {
        "× a step beside plain traffic": (1.1, False),
        "× in RAM": (1.1, True),
        "file per tensor's overhead × ours": (2.5, True),
        **({"% waited": (2, True)} if waiting_is_judged else {}),
    }


@pytest.mark.parametrize("shapes", [bench_spill.batches, bench_spill.odd])
def test_the_disks_largest_use_is_found(tmp_path: Path, shapes: Callable[[random.Random], tuple[int, ...]]):
    disk, memory = bench_spill.mixed_rows(shapes, 8, 1 << 20, tmp_path)
    assert disk.measured["peak"] >= disk.measured["largest live set"] >= 1 << 20
    assert [verdict.bar for verdict in disk.verdicts] == ["× largest live set"]
    assert memory.measured["grown after a quarter"] < 100 << 20


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rows_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
):
    monkeypatch.setattr(bench_spill, "rows", lambda directory, rounds: bench_spill.call_rows(2, directory, rounds))
    written = tmp_path / "results"
    bench_spill.run(SpillOptions(as_json, tmp_path, rounds=1, page=written, bars=True))
    printed = capsys.readouterr().out
    if as_json:
        pack, _ = json.loads(printed)["results"]
        assert (pack["unit"], pack["bars"][0]["wanted"]) == ("s", 25)
        assert pack["measured"]["spillgrad"] == pytest.approx(pack["bars"][0]["reached"] / 1e6)
    else:
        assert all(word in printed for word in ("pack a 4 MiB tensor", "hit a 4 MiB tensor", "µs", "bars reached"))
    (path,) = written.iterdir()
    assert [row["unit"] for row in json.loads(path.read_text())["rows"]] == ["s", "s"]
    assert list(tmp_path.iterdir()) == [written]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0456, "s", "45.6 ms"),
        (3 << 20, "B", "3 MiB"),
        (2.5e9, "B/s", "2.50 GB/s"),
        (3.14, "%", "3.1 %"),
        (1234, "", "1,234"),
    ],
)
def test_what_was_measured_has_its_unit(value: float, unit: str, text: str):
    assert format_measured(value, unit) == text
