"""What `spillgrad inspect` prints of runs, as text of a given width."""

import dataclasses
import re
import socket
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from spillgrad.inspection.records import Failure, Run, Settings, Step, StepPlan
from spillgrad.storage.origin_counters import Origin, OriginCounters
from spillgrad.storage.store import StoreStats
from spillgrad_tools.inspect import tables as inspect_tables
from spillgrad_tools.inspect.groups import COLUMNS, choose
from spillgrad_tools.inspect.words import began, beyond_budget
from spillgrad_tools.quantities import UNKNOWN
from tests.tools.runs import MIB, make_run, moved, sample, with_codec

RUN = Path("spill/run-0123456789abcdef")


def printed(answer: RenderableType, width: int) -> str:
    console = Console(width=width, no_color=True, color_system=None)
    with console.capture() as captured:
        console.print(answer, crop=False)
    return captured.get()


def shown(run: Run, width: int = 100, by: str = "module", sort: str | None = None, top: int | None = 20) -> str:
    return printed(inspect_tables.of_run(run, choose(run, by, sort, top), width), width)


def summary(run: Run) -> dict[str, str]:
    lines = shown(run, width=300).split("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, value in (re.split(r"  +", line, maxsplit=1) for line in lines)}


def names(text: str) -> list[str]:
    """Return the first column of the table in a run's text."""
    table = text[text.index("──") :].splitlines()[1:]
    return [re.split(r"  +", line)[0].strip() for line in table if line.strip()]


def test_a_summary_says_what_the_run_was_what_it_moved_and_what_it_waited_for():
    assert summary(make_run(RUN)) == {
        "run": "spill/run-0123456789abcdef",
        "state": "finished: its store was closed",
        "process": "4711 on mill",
        "command": "spillgrad train --model tiny",
        "version": "spillgrad 0.1.0",
        "began": "2026-03-04 05:06:07 UTC, for 8 s",
        "settings": "RAM budget 64 MiB, when the disk is full: raise",
        "packed": "224 MiB in 80 arrays",
        "deduplicated": "56 MiB (25% of that packed)",
        "kept in RAM": "28 MiB, beside the store",
        "written": "112 MiB (50% of that packed), at 112 MiB/s",
        "read": "102 MiB, at 204 MiB/s",
        "hits": "720, and 80 misses (90% were in RAM, or read ahead in time)",
        "waited": "562 ms for room (7% of the time), 1.69 s for reads (21% of the time)",
        "RAM": "peak 60 MiB of 64 MiB (94%)",
        "disk": "peak 130 MiB",
    }


def test_counts_have_separators_and_no_share_is_rounded_to_nothing():
    moved = dict.fromkeys(("written_bytes", "stored_bytes"), MIB)
    stats = StoreStats(packed_bytes=1000 * MIB, cache_hits=47_993, cache_misses=7, **moved)
    found = summary(make_run(RUN, stats=stats, lost_lines=154_281))
    assert found["hits"] == "47,993, and 7 misses (>99% were in RAM, or read ahead in time)"
    assert found["lost"] == "154,281 lines of the journal, which the disk refused"
    assert found["written"] == "1 MiB (<1% of that packed)"


def test_a_codec_is_named_with_what_it_made_of_the_bytes():
    found = summary(with_codec(make_run(RUN)))
    assert found["settings"] == "RAM budget 64 MiB, codec lossless, when the disk is full: raise"
    assert found["written"] == "112 MiB (50% of that packed), stored as 28 MiB (4.0:1), at 112 MiB/s"


def test_settings_out_of_the_ordinary_are_named():
    run = make_run(RUN, settings=Settings(0, None, True, False, "ram"))
    assert summary(run)["settings"] == "RAM budget 0 B, encrypted, without checksums, when the disk is full: ram"
    assert summary(run)["RAM"] == f"peak 60 MiB of 0 B ({UNKNOWN})"


def beyond(**changes: object) -> list[str]:
    run = make_run(RUN, **changes)
    return list(beyond_budget(dataclasses.replace(run, stats=dataclasses.replace(run.stats, peak_ram_bytes=80 * MIB))))


def test_ram_beyond_the_budget_is_said_with_what_is_known_of_it():
    plan = StepPlan([(MIB, False), (70 * MIB, False)], [("put", 0), ("put", 1)])
    lent = sample(1.5, ram_bytes=80 * MIB, hot_bytes=0, writing_bytes=0, cached_bytes=0, lent_bytes=80 * MIB)
    when = "beyond the budget in 1 of 2 samples, most after 1.5 s: 80 MiB held by callers"
    large = "a step has an array of 70 MiB: more than the budget, and read whole when it is needed"
    held = "what is asked for is read also while callers hold so much that it does not fit beside that"
    refused = "the disk refused 3 times, and then arrays stay in RAM, as on_full says"
    samples = [sample(1.0), lent]
    assert beyond(samples=samples, step_plan=plan) == [when, large]
    assert beyond(samples=samples) == [when, held]
    full = Settings(64 * MIB, None, False, True, "ram")
    hot = sample(1.5, ram_bytes=80 * MIB, hot_bytes=72 * MIB, writing_bytes=8 * MIB, cached_bytes=0, lent_bytes=0)
    assert beyond(samples=[hot], settings=full, failure_count=3) == [
        "beyond the budget in 1 of 1 sample, most after 1.5 s: 72 MiB not on disk yet, 8 MiB being written",
        refused,
    ]
    unseen = "beyond the budget for so short a time, or so long ago, that no sample in the journal shows it"
    assert beyond(samples=[], step_plan=None) == [unseen]
    assert list(beyond_budget(make_run(RUN))) == []
    assert list(beyond_budget(make_run(RUN, settings=Settings()))) == []


def test_a_reason_is_shown_to_its_end():
    reason = f"could not write 4 MiB in {'/'.join(['a long name'] * 30)}: No space left on device; free space"
    run = make_run(RUN, failures=[Failure(1.0, reason)], failure_count=1)
    assert f"at 1 s: {reason}" in " ".join(shown(run, 500).split())


def test_a_live_run_says_what_it_holds_now():
    run = make_run(RUN, state="live", segments={RUN / "segment-00000.h5": 3 * MIB, RUN / "segment-00001.h5": MIB})
    found = summary(dataclasses.replace(run, stats=dataclasses.replace(run.stats, ram_bytes=12 * MIB)))
    assert found["state"] == "live: its process runs"
    assert found["began"] == "2026-03-04 05:06:07 UTC, until now 8 s"
    assert found["RAM"] == "peak 60 MiB of 64 MiB (94%), now 12 MiB"
    assert found["disk"] == "peak 130 MiB, now 4 MiB in 2 files"
    one = make_run(RUN, segments={RUN / "segment-00000.h5": 3 * MIB})
    assert summary(one)["disk"] == "peak 130 MiB, now 3 MiB in 1 file"


def test_what_removes_a_run_can_be_copied_to_a_shell(tmp_path: Path):
    folder = tmp_path / "my runs; $(x)" / "run-0123456789abcdef"
    run = make_run(folder, state="dead", folder=folder)
    assert f"`spillgrad sweep '{folder.parent}'` removes what it left" in summary(run)["state"]


def test_a_dead_run_says_what_removes_it_and_how_much_that_frees(tmp_path: Path):
    run = make_run(tmp_path, state="dead", folder=tmp_path, segments={tmp_path / "segment-00000.h5": 3 * MIB})
    assert summary(run)["state"] == (
        "dead: its process ended without closing its store; "
        f"`spillgrad sweep {tmp_path.parent}` removes what it left, which frees 3 MiB"
    )


def test_a_dead_run_whose_journal_alone_is_there_may_have_ended_in_order_too(tmp_path: Path):
    run = make_run(tmp_path / "kept.jsonl", state="dead", host=socket.gethostname())
    words = "dead: its process ended without closing its store, or the disk refused the journal's last lines"
    assert summary(run)["state"] == words
    assert summary(dataclasses.replace(run, host="mill"))["state"] == f"{words}, or it goes on, on mill"


def test_the_disks_refusals_and_lines_that_are_missing_are_said():
    failures = [Failure(1.0 + number, f"reason {number}") for number in range(5)]
    text = shown(make_run(RUN, failures=failures, failure_count=7, lost_lines=4, damaged_lines=2))
    assert "the disk refused 7 times; the last reasons:" in text
    assert re.findall(r"at ([\d.]+ s): (reason \d)", text) == [
        ("3 s", "reason 2"),
        ("4 s", "reason 3"),
        ("5 s", "reason 4"),
    ]
    assert "4 lines of the journal, which the disk refused" in text
    assert "2 lines of the journal, without sense: not counted" in text
    one = shown(make_run(RUN, failures=failures[:1], failure_count=1, lost_lines=1, damaged_lines=1))
    assert "the disk refused 1 time; " in one
    assert one.count("1 line of the journal") == 2


def test_a_journal_that_says_little_gives_a_summary_of_what_it_says():
    unknown = dict.fromkeys(("host", "process", "command", "version", "began"))
    nothing = {"origins": {}, "steps": [], "samples": [], "stats": StoreStats(), "kept_bytes": 0, "duration_s": 0.0}
    found = make_run(RUN, settings=Settings(), **unknown, **nothing)
    assert summary(found) == {
        "run": "spill/run-0123456789abcdef",
        "state": "finished: its store was closed",
        "began": f"{UNKNOWN}, for 0 s",
        "packed": "0 B in 0 arrays",
        "deduplicated": "0 B",
        "kept in RAM": "0 B, beside the store",
        "written": "0 B",
        "read": "0 B",
        "waited": f"0 s for room ({UNKNOWN} of the time), 0 s for reads ({UNKNOWN} of the time)",
        "RAM": "peak 0 B",
        "disk": "peak 0 B",
    }
    assert names(shown(found)) == ["total"]


def test_the_table_has_the_largest_groups_first_then_the_others_and_the_total():
    text = shown(make_run(RUN), top=3)
    assert names(text) == ["blocks.0.attention", "blocks.1.attention", "blocks.2.attention", "4 others", "total"]
    cells = [re.split(r"  +", line.strip()) for line in text.splitlines()[-5:] if line.strip()]
    assert cells[-3:] == [
        ["blocks.2.attention", "16", "40 MiB", "10 MiB", "5 MiB", "20 MiB", "18 MiB", "1 s"],
        ["4 others", "32", "104 MiB", "26 MiB", "13 MiB", "52 MiB", "48 MiB", "750 ms"],
        ["total", "80", "224 MiB", "56 MiB", "28 MiB", "112 MiB", "102 MiB", "2.25 s"],
    ]


@pytest.mark.parametrize("by", ["module", "op", "kind", "dtype", "step"])
@pytest.mark.parametrize("sort", [None, "name", *COLUMNS])
@pytest.mark.parametrize("top", [1, 3, None])
def test_what_is_shown_and_what_is_left_out_are_all(by: str, sort: str | None, top: int | None):
    run = make_run(RUN)
    groups = choose(run, by, sort, top)
    assert len(groups.shown) + groups.left_out == len(run.by(by))
    assert len(groups.shown) <= (top or 99)
    for column in COLUMNS.values():
        whole = sum(column.of(group.moved) for group in run.by(by))
        assert sum(column.of(group.moved) for group in groups.shown) + column.of(groups.rest) == pytest.approx(whole)
        assert column.of(groups.total) == pytest.approx(whole)
    if sort in COLUMNS:
        values = [COLUMNS[sort].of(group.moved) for group in groups.shown]
        assert values == sorted(values, reverse=True)


def test_names_sort_as_people_count():
    made = [f"blocks.{number}.mlp" for number in (10, 9, 2, 100)] + ["ln", "blocks"]
    run = make_run(RUN, origins={Origin(name): moved(8) for name in made})
    shown_names = [group.name for group in choose(run, "module", "name", None).shown]
    assert shown_names == ["blocks", "blocks.2.mlp", "blocks.9.mlp", "blocks.10.mlp", "blocks.100.mlp", "ln"]


def test_a_name_of_endless_digits_is_sorted_too():
    run = make_run(RUN, origins={Origin("9" * 100_000): moved(8), Origin("1"): moved(8)})
    assert choose(run, "module", "name", None).shown[0].name == "1"


def test_steps_stay_in_their_order_and_the_last_ones_are_shown():
    steps = [Step(number, number, number * 1.0, 0.5, moved(8 * (30 - number))) for number in range(1, 30)]
    text = shown(make_run(RUN, steps=steps), by="step", top=4)
    assert names(text) == ["26", "27", "28", "29", "25 others", "total"]


def test_steps_that_the_journal_no_longer_has_are_counted():
    steps = [Step(number, None, number * 1.0, 0.5, moved(8)) for number in range(8, 10)]
    text = shown(make_run(RUN, steps=steps), by="step")
    assert text.splitlines()[-1].strip() == "not in the journal any more: the first 7 steps"


def test_columns_that_say_nothing_are_left_out():
    plain = OriginCounters(arrays=2, packed_bytes=MIB, written_bytes=MIB, stored_bytes=MIB)
    head = shown(make_run(RUN, origins={Origin("ln"): plain})).split("\n\n")[-1].splitlines()[0]
    assert head.split() == ["module", "arrays", "packed", "written", "read"]


def test_a_column_to_sort_by_is_shown_whatever_it_says():
    plain = OriginCounters(arrays=2, packed_bytes=MIB, written_bytes=MIB, stored_bytes=MIB)
    text = shown(make_run(RUN, origins={Origin("ln"): plain}), sort="kept")
    assert "kept" in text.split("\n\n")[-1].splitlines()[0].split()


def test_what_a_codec_stored_has_a_column():
    assert "stored" in shown(with_codec(make_run(RUN))).split("\n\n")[-1].splitlines()[0].split()
    assert "stored" not in shown(make_run(RUN)).split("\n\n")[-1].splitlines()[0].split()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal_and_columns_without_room_are_named(width: int):
    text = shown(with_codec(make_run(RUN, failures=[Failure(1.0, "x " * 50)], failure_count=1)), width)
    assert max(map(len, text.splitlines())) <= width
    head = next(line for line in text.splitlines() if line.startswith("module")).split()
    wanted = ["arrays", "packed", "dedup", "kept", "written", "stored", "read", "waited"]
    left_out = re.findall(r"no room for: (.*); --json has all", text.replace("\n", " ").replace("  ", " "))
    assert head[1:] + (left_out[0].split(", ") if left_out else []) == sorted(
        wanted, key=lambda name: (name not in head, wanted.index(name))
    )
    assert bool(left_out) == (width < 80)


HOSTILE = "\x1b]0;owned\x07[bold red]blocks\u202e[/]\n" + "y" * 500


def test_wide_characters_do_not_break_the_table():
    run = make_run(RUN, origins={Origin("层" * 40): moved(8)})
    assert max(cell_len(line) for line in shown(run, 60).splitlines()) <= 60


@pytest.mark.parametrize("width", [40, 80, 300])
def test_hostile_text_is_shown_as_it_is_and_bounded(width: int):
    run = make_run(
        Path(HOSTILE[:30]), host=HOSTILE, command=HOSTILE, version=HOSTILE, began=HOSTILE,
        settings=Settings(MIB, HOSTILE, False, True, HOSTILE), failures=[Failure(1.0, HOSTILE)], failure_count=1,
        origins={Origin(HOSTILE, HOSTILE, HOSTILE, HOSTILE): moved(8)},
    )  # fmt: skip
    for by in ("module", "op", "dtype"):
        text = shown(run, width, by)
        assert not set("\x1b\x07\u202e") & set(text)
        assert "\\x1b]0;owned\\x07[boldred]blocks\\u202e[/]" in re.sub(r"\s", "", text)
        assert len(text) < 20_000
    assert "\x1b" not in printed(inspect_tables.of_runs(Path(), [run, run], width), width)


def test_several_runs_are_a_line_each_and_the_last_line_says_how_to_name_one():
    runs = [make_run(RUN), make_run(Path("spill/run-fedcba9876543210"), state="live", host=None, process=None)]
    lines = printed(inspect_tables.of_runs(Path("spill"), runs, 160), 160).splitlines()
    assert re.split(r"  +", lines[2].strip()) == [
        "run-0123456789abcdef", "finished", "mill", "4711", "2026-03-04 05:06:07 UTC", "8 s", "224 MiB", "112 MiB",
        "102 MiB", "2.25 s", "60 MiB, 64 MiB",
    ]  # fmt: skip
    assert re.split(r"  +", lines[3].strip())[:4] == ["run-fedcba9876543210", "live", UNKNOWN, UNKNOWN]
    assert lines[-1] == "2 runs, the newest last; to see it: spillgrad inspect spill/run-fedcba9876543210"


def test_the_path_in_the_last_line_is_whole_and_quoted_in_a_narrow_terminal():
    runs = [make_run(Path("my spill") / f"run-{number:016x}") for number in range(2)]
    text = printed(inspect_tables.of_runs(Path("my spill"), runs, 40), 40)
    assert text.splitlines()[-1].endswith("spillgrad inspect 'my spill/run-0000000000000001'")
    assert "run-0000000000000000" in text


def test_times_that_are_none_are_not_known():
    assert began(make_run(RUN, began=None)) == UNKNOWN
    assert began(make_run(RUN, began="2026-03-04T07:06:07+02:00")) == "2026-03-04 05:06:07 UTC"
    assert began(make_run(RUN, began="0001-01-01T00:00:00+14:00")) == "0001-01-01T00:00:00+14:00"
    assert began(make_run(RUN, began="yesterday")) == "yesterday"
