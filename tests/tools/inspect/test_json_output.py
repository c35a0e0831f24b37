"""What `spillgrad inspect --json` prints of runs: each field of the records, strictly JSON."""

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from spillgrad.inspection.records import Failure, Inspection, Run
from spillgrad.storage.origin_counters import Origin, OriginCounters
from spillgrad_tools.inspect import json_output
from spillgrad_tools.inspect.groups import choose
from tests.tools.runs import make_run, sample

RUN = Path("spill/run-0123456789abcdef")


def loaded(*runs: Run, by: str = "module", sort: str | None = None, top: int | None = None) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    document = json_output.of_runs(Inspection(Path("spill"), list(runs)), by, sort, top)
    return json.loads("".join(json_output.pieces(document)), parse_constant=refuse)


def test_every_field_of_a_run_is_there_under_its_name():
    run = make_run(RUN, segments={RUN / "segment-00000.h5": 4096}, failures=[Failure(1.5, "full")], failure_count=1)
    document = loaded(run)
    assert (document["format"], document["path"]) == (1, "spill")
    (found,) = document["runs"]
    assert found.keys() == {field.name for field in dataclasses.fields(Run)} | {"groups"}
    simple = {"state", "host", "process", "command", "version", "began", "duration_s", "first_s", "kept_bytes"}
    simple |= {"failure_count", "lost_lines", "damaged_lines"}
    assert {name: found[name] for name in simple} == {name: getattr(run, name) for name in simple}
    assert (found["path"], found["journal"]) == (str(run.path), str(run.journal))
    assert found["segments"] == {"spill/run-0123456789abcdef/segment-00000.h5": 4096}
    assert found["settings"] == dataclasses.asdict(run.settings)
    assert found["stats"] == dataclasses.asdict(run.stats)
    assert found["steps"] == [dataclasses.asdict(step) for step in run.steps]
    assert found["samples"] == [dataclasses.asdict(each) for each in run.samples]
    assert found["failures"] == [{"t": 1.5, "reason": "full"}]
    assert found["step_plan"] == json.loads(json.dumps(dataclasses.asdict(run.step_plan)))
    assert found["shrinkage"][0] == {
        **dataclasses.asdict(run.shrinkage[0]),
        "origin": {"module": None, "op": "cross_entropy", "slot": "self", "dtype": "float32"},
    }
    origin_names = {"module", "op", "slot", "dtype"}
    assert {
        Origin(**{name: each[name] for name in origin_names}): OriginCounters(
            **{name: value for name, value in each.items() if name not in origin_names}
        )
        for each in found["origins"]
    } == run.origins


@pytest.mark.parametrize("by", ["module", "op", "kind", "dtype", "step"])
def test_groups_are_those_that_the_table_shows(by: str):
    run = make_run(RUN)
    found = loaded(run, by=by, sort="read", top=2)["runs"][0]["groups"]
    chosen = choose(run, by, "read", 2)
    assert found == dataclasses.asdict(chosen)
    assert (found["by"], found["sort"], len(found["shown"])) == (by, "read", min(2, len(run.by(by))))


def test_without_a_number_all_groups_are_there():
    run = make_run(RUN)
    found = loaded(run)["runs"][0]["groups"]
    assert (len(found["shown"]), found["left_out"]) == (len(run.by("module")), 0)


def test_a_run_that_says_little_has_the_same_keys():
    bare = make_run(RUN, journal=None, host=None, origins={}, steps=[], samples=[], step_plan=None, shrinkage=[])
    found, full = loaded(bare)["runs"][0], loaded(make_run(RUN))["runs"][0]
    assert found.keys() == full.keys()
    assert (found["origins"], found["step_plan"], found["journal"], found["host"]) == ([], None, None, None)


def test_numbers_that_are_not_finite_are_null():
    run = make_run(RUN, duration_s=float("nan"), samples=[sample(1.0, wait_s=float("inf"))])
    found = loaded(run)["runs"][0]
    assert (found["duration_s"], found["samples"][0]["wait_s"]) == (None, None)


@pytest.mark.exhaustive
def test_the_text_of_a_long_run_is_never_there_as_a_whole():
    run = make_run(RUN)
    document = json_output.of_runs(Inspection(RUN, [make_run(RUN, steps=run.steps * 5000)]), "step", None, None)
    tracemalloc.start()
    length = sum(map(len, json_output.pieces(document)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert length > 8_000_000
    assert peak_bytes < 1_000_000


def test_hostile_text_is_a_json_string():
    text = '\x1b[2J"\\\u2028</script>\udcff'
    found = loaded(make_run(Path("\udcff"), host=text, origins={Origin(text): OriginCounters()}))["runs"][0]
    assert (found["host"], found["origins"][0]["module"], found["path"]) == (text, text, "\udcff")


def test_json_is_ascii_so_that_no_terminal_obeys_it():
    document = json_output.of_runs(Inspection(Path("é\x1b"), [make_run(RUN, host="\x9b\u202e")]), "op", None, None)
    text = "".join(json_output.pieces(document))
    assert text.isascii()
    assert not {character for character in text if not character.isprintable()} - {"\n"}
