"""What `spillgrad inspect --watch` draws of a run, for terminals of several sizes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen

from spillgrad.inspection.records import Failure, Settings
from spillgrad.storage.origin_counters import Origin
from spillgrad.storage.store import StoreStats
from spillgrad_tools.inspect.watch_view import Message, View, Watched
from tests.tools.runs import MIB, STEP_S, STEPS, make_run, moved, sample

RUN = Path("spill/run-0123456789abcdef")
NOW_S = STEPS * STEP_S


def drawn(renderable: Any, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(Screen(renderable))
    return captured.get().split("\n")


def lines(phase: str | None = "backward", ended: str | None = None, now_s: float = NOW_S, **changes: Any) -> list[str]:
    run = make_run(RUN, **{"state": "live", **changes})
    return [line.rstrip() for line in drawn(View(Watched(run, now_s, phase, ended)))]


def row(label: str, found: list[str]) -> str:
    (line,) = (line for line in found if line.startswith(label))
    return line.removeprefix(label).strip()


def test_it_says_what_the_run_holds_does_and_waits_for():
    found = lines()
    assert found[0] == "run-0123456789abcdef  live  8 s  process 4711 on mill"
    assert found[1] == "spillgrad train --model tiny"
    assert row("step", found) == "5, backward, 0.513 a second, the last took 1.8 s"
    assert row("RAM", found) == "48 MiB of 64 MiB (75%), peak 60 MiB"
    assert "█ hot 20M  ▓ writing 8.0M  ▒ cached 12M  ░ lent 4.0M  · other 4.0M" in [line.strip() for line in found]
    assert "arrays 150 MiB, disk 120 MiB (peak 130 MiB), process 400 MiB" in [line.strip() for line in found]
    assert row("writing", found).startswith("10 MiB/s, 80 MiB in all   ")
    assert row("reading", found).startswith("5 MiB/s, 40 MiB in all   ")
    assert row("waiting", found).startswith("25% of the time, 25% in all (2 s)   ")
    assert row("hits", found) == "90% of 800 were in RAM, or read ahead in time"
    assert found[-1] == "q leaves"


def test_the_bar_has_a_part_for_each_kind_and_marks_at_the_budget_and_the_peak():
    (bar,) = (line[9:] for line in lines() if "█" in line and "▓" in line and "hot" not in line and "/s" not in line)
    width = 80 - 9
    counts = {sign: bar.count(sign) for sign in "█▓▒░·"}
    wanted = {"█": 20, "▓": 8, "▒": 12, "░": 4, "·": 4}
    assert all(abs(counts[sign] - width * mib / 64) <= 1 for sign, mib in wanted.items())
    assert sum(counts.values()) == round(width * 48 / 64)
    assert bar.index("▏") == width * 60 // 64
    assert bar.index("│") == width - 1


@pytest.mark.parametrize("budget", [0, 1, 3 * MIB, None])
def test_what_is_beyond_the_budget_fits_the_bar(budget: int | None):
    found = lines(settings=Settings(budget), stats=StoreStats(peak_ram_bytes=90 * MIB))
    (bar,) = (line[9:] for line in found if "▓▓" in line)
    assert len(bar) <= 80 - 9
    assert ("│" in bar) == (budget is not None)
    assert "▏" in bar


def test_what_is_now_is_of_the_last_seconds():
    idle = [*(sample(t / 10) for t in range(81)), sample(20.0, written_bytes=80 * MIB, read_bytes=40 * MIB, wait_s=2.0)]
    found = lines(now_s=21.0, samples=idle)
    assert row("writing", found).startswith("0 B/s, 80 MiB in all")
    assert row("waiting", found).startswith("0% of the time, 10% in all (2 s)")


def test_a_run_that_says_no_more_falls_silent():
    assert row("writing", lines(now_s=NOW_S + 1.5)).startswith("5 MiB/s")
    assert row("writing", lines(now_s=NOW_S + 10)).startswith("0 B/s")


def test_an_ended_run_shows_its_means():
    found = lines(ended="it finished", phase=None, state="finished", duration_s=NOW_S)
    assert "ended" in found[0]
    assert row("writing", found).startswith("10 MiB/s")
    assert found[-2:] == ["it finished", "q leaves"]


def test_the_last_seconds_are_drawn_a_bar_for_each():
    silent_at_5 = [sample(t / 10, written_bytes=int(MIB * (t if t <= 50 else max(50, t - 10)))) for t in range(81)]
    plot = row("writing", lines(samples=silent_at_5))[-8:]
    assert [sign == " " for sign in plot] == [number == 5 for number in range(8)]


def test_a_run_that_has_done_nothing_yet_is_shown():
    bare = {"steps": [], "samples": [], "origins": {}, "stats": StoreStats(), "settings": Settings(), "command": None}
    found = lines(phase=None, now_s=0.0, host=None, process=None, **bare)
    assert found[0] == "run-0123456789abcdef  live  0 s"
    assert row("step", found) == "the first"
    assert row("RAM", found) == "0 B, peak 0 B"
    assert "empty" in [line.strip() for line in found]
    assert row("waiting", found).startswith("0% of the time, – in all (0 s)")


def test_operations_come_in_the_order_of_what_was_waited_for_them():
    found = lines()
    table = found[found.index(next(line for line in found if line.startswith("waited longest"))) + 1 :]
    assert [line.split()[0] for line in table[:2]] == ["softmax", "gelu"]
    assert table[0].split()[1:3] == ["1.5", "s"]


def test_of_what_operations_did_the_waits_stay_in_a_narrow_terminal():
    run = make_run(RUN, state="live")
    found = [line.split() for line in drawn(View(Watched(run, NOW_S, None)), 30, 24)]
    assert ["waited", "longest", "for", "waited"] in found
    assert ["softmax", "1.5s"] in found


def test_no_more_operations_are_shown_than_there_is_room_for():
    origins = {Origin(op=f"op{number:02}"): moved(8, 100.0 - number) for number in range(50)}
    for height in range(1, 60):
        found = drawn(View(Watched(make_run(RUN, origins=origins), NOW_S, None)), 80, height)
        assert len(found) == height
        shown = [line.split()[0] for line in found if line.startswith("op")]
        assert shown == [f"op{number:02}" for number in range(len(shown))]
        assert (not shown) == (height < 17)
    assert len(shown) == 12


def test_failures_are_shown_with_their_last_reasons():
    failures = [Failure(float(number), f"reason {number}") for number in range(5)]
    found = lines(failures=failures, failure_count=70)
    place = found.index("the disk refused 70 times; the last reasons:")
    assert [line.strip() for line in found[place + 1 : place + 4]] == [
        "at 2 s: reason 2",
        "at 3 s: reason 3",
        "at 4 s: reason 4",
    ]


@pytest.mark.parametrize("width", [1, 2, 9, 10, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 12, 24, 60])
@pytest.mark.parametrize("ended", [None, "its process died; `spillgrad sweep spill` removes what it left"])
def test_it_fills_terminals_of_any_size(width: int, height: int, ended: str | None):
    run = make_run(RUN, failures=[Failure(1.0, "x" * 999)], failure_count=1, command="层" * 200)
    for renderable in (View(Watched(run, NOW_S, "forward", ended)), Message("waiting for a run in /a/b/c")):
        found = drawn(renderable, width, height)
        assert [cell_len(line) for line in found] == [width] * height


def test_what_matters_most_stays_in_a_small_terminal():
    watched = Watched(make_run(RUN, failures=[Failure(1.0, "full")], failure_count=1), NOW_S, "forward")
    assert [line.split()[0] for line in drawn(View(watched), 60, 6)] == [
        "run-0123456789abcdef", "step", "RAM", "waiting", "the", "q",
    ]  # fmt: skip
    assert [line.split()[0] for line in drawn(View(watched), 60, 3)] == ["run-0123456789abcdef", "RAM", "q"]


HOSTILE = "\x1b[2J[bold red]\x07\u202e\n"


def test_hostile_text_is_shown_as_it_is():
    run = make_run(
        Path(HOSTILE), host=HOSTILE, command=HOSTILE, failures=[Failure(1.0, HOSTILE)], failure_count=1,
        origins={Origin(op=HOSTILE): moved(8, 1.0)},
    )  # fmt: skip
    text = "".join(drawn(View(Watched(run, NOW_S, HOSTILE)), 200))
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert text.count("\\x1b[2J[bold red]\\x07\\u202e\\n") == 5
    assert text.count("\\x1b[2J[bold red]") == 6


def test_a_later_sample_without_counters_lowers_no_rate_below_zero():
    backwards = [sample(1.0), dataclasses.replace(sample(7.9), written_bytes=0, wait_s=0.0)]
    assert row("writing", lines(samples=backwards)).startswith("0 B/s")


@pytest.mark.parametrize(
    ("phase", "step", "said"), [("forward", 4, "4, forward"), ("forward", 5, "5, forward"), (None, 4, "4, ")]
)
def test_a_further_batch_is_of_the_same_step(phase: str | None, step: int, said: str):
    watched = Watched(make_run(RUN), NOW_S, phase, step=step)  # of which a batch of the fourth was the last to end
    (line,) = [line for line in drawn(View(watched)) if line.startswith("step")]
    assert line.split(maxsplit=1)[1].startswith(said)
