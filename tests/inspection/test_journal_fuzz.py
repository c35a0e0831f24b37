"""Journals that were damaged, or made to do harm: an answer or a clear error, within little memory."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spillgrad.errors import ArgumentError, SpillError
from spillgrad.inspection.advice import advise
from spillgrad.inspection.journal_reader import JournalReader
from spillgrad.inspection.journal_state import JournalState
from spillgrad.inspection.memory_viz import write_memory_viz
from spillgrad.inspection.perfetto import write_perfetto
from spillgrad.inspection.ranks import distributed_runs
from spillgrad.inspection.runs import spans
from spillgrad.inspection.unflushed import placed_array
from spillgrad.storage import inspect
from spillgrad.storage.disk_store import DiskStore
from tests.inspection.test_runs import use

EXAMPLES = int(os.environ.get("SPILLGRAD_FUZZ_EXAMPLES", "300"))
FIXED = "SPILLGRAD_FUZZ_EXAMPLES" not in os.environ  # who asks for more wants others
MEMORY_BYTES = 200 << 20


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("sound")
    store = DiskStore(place, ram_budget=100_000, keep_journal=place / "run.jsonl")
    use(store, 3)
    store.close()
    return (place / "run.jsonl").read_bytes()


def look(path: Path) -> None:
    """Do everything with a journal that is done with one; only a clear error may come of it."""
    try:
        found = inspect(path)
    except SpillError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return
    for run in found.runs:
        assert run.state in ("finished", "dead")
        for _ in spans(run):
            pass
        for each in (run, *distributed_runs(found.runs)):
            write_perfetto(each, path.with_name("trace.json"), overwrite=True)
        with contextlib.suppress(ArgumentError):  # it does not tell of RAM
            write_memory_viz(run, path.with_name("memory.pickle"), overwrite=True)
        for key in ("module", "op", "kind", "dtype", "step"):
            run.by(key)
        advise(run)
    with JournalReader(path, JournalState(with_places=True)) as reader:
        reader.read()
        for one in reader.state.placed("segment-00000.h5"):
            array = placed_array(one, 1 << 20, 1 << 20)
            assert array.problem is not None or array.stored_bytes <= 1 << 20


Change = tuple[str, float, bytes]
changes = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "double"]), st.floats(0, 1), st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=5,
)


def changed(data: bytes, each: Change) -> bytes:
    kind, share, what = each
    place = int(share * len(data))
    if kind == "flip":
        return data[:place] + what + data[place + len(what) :]
    if kind == "cut":
        return data[:place]
    if kind == "insert":
        return data[:place] + what + data[place:]
    return data[:place] + data[place // 2 :]


@settings(
    max_examples=EXAMPLES, derandomize=FIXED, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes)
def test_a_damaged_journal_gives_an_answer_or_a_clear_error(tmp_path: Path, sound: bytes, made: list[Change]):
    data = sound
    for each in made:
        data = changed(data, each)
    path = tmp_path / "run.jsonl"
    path.write_bytes(data)
    look(path)


# What fields may hold, in lines of events that are right but for that.
EVENTS = ["pack", "label", "keep", "share", "write", "read", "wait", "fail", "free", "phase", "step", "plan", "sample"]
EVENTS += ["shrink", "totals", "end", "lost", "place", "change", "flush", "ram", "rank", "collective", ""]
FIELDS = "t array bytes took module op slot dtype step stored ahead in phase number plan moved lines reason"
FIELDS += " ram peak_ram hot live disk rss sampled shrunk arrays happened to totals"
FIELDS += " segment dataset shape pieces xxh3_64 codec order chunks"
FIELDS += " rank ranks group zero error what sent received waited slowest behind"
PLACE = {"segment": "segment-00000.h5", "dataset": "00000001", "shape": [8], "pieces": [[4096, 8]]}
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
lines = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.dictionaries(st.sampled_from(FIELDS.split()), values, max_size=6)),
    max_size=20,
)


@settings(
    max_examples=EXAMPLES, derandomize=FIXED, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lines)
def test_lines_of_any_values_give_an_answer(tmp_path: Path, made: list[tuple[str, dict[str, object]]]):
    text = "".join(json.dumps({"t": 1.0, "event": event, "array": 1} | PLACE | fields) + "\n" for event, fields in made)
    path = tmp_path / "run.jsonl"
    path.write_text('{"format": 2}\n{"t": 0.5, "event": "pack", "array": 1, "bytes": 8, "dtype": "int8"}\n' + text)
    look(path)


def endless_packs() -> Iterator[str]:
    for number in range(1_300_000):
        yield f'{{"t": 1, "event": "pack", "array": {number}, "bytes": 8, "op": "mul", "dtype": "int8"}}\n'


def endless_names() -> Iterator[str]:
    for number in range(200_000):
        yield f'{{"t": 1, "event": "pack", "array": {number}, "bytes": 8, "module": "{number:0900d}"}}\n'


def wide_names() -> Iterator[str]:
    for number in range(14_000):
        name = f"{number:08d}" + "\N{GRINNING FACE}" * 990
        told = {"t": 1, "event": "pack", "array": number, "module": name, "op": name, "slot": name, "dtype": name}
        yield json.dumps(told, ensure_ascii=False) + "\n"


def endless_plans() -> Iterator[str]:
    length = 300_000
    told = {"arrays": [[8, False]], "happened": "u" * length, "to": [0] * length}
    rest = json.dumps(told).removeprefix("{")
    for number in range(40):
        yield f'{{"t": 1, "event": "plan", "plan": {number}, {rest}\n'


def endless_totals() -> Iterator[str]:
    totals = {"stats": {}, "kept": 0, "steps": 0, "origins": [], "live": [[1, 1, 0, None]] * 240_000}
    return itertools.repeat(json.dumps({"t": 1, "event": "totals", "totals": totals}) + "\n", 40)


def endless_steps() -> Iterator[str]:
    for number in range(1_000_000):
        yield f'{{"t": 1, "event": "step", "number": {number}, "moved": [1, 2, 3, 4, 5, 6, 7, 0.5, 0.5]}}\n'


def endless_reasons() -> Iterator[str]:
    for _ in range(300):
        yield json.dumps({"t": 1, "event": "fail", "reason": "x" * 500_000}) + "\n"


def empty_objects() -> Iterator[str]:
    for _ in range(300):
        yield "{}\n" * 100_000


@pytest.mark.parametrize(
    "make",
    [
        endless_packs,
        endless_names,
        *(
            pytest.param(make, marks=pytest.mark.exhaustive)
            for make in (wide_names, endless_plans, endless_totals, endless_steps, endless_reasons, empty_objects)
        ),
    ],
    ids=lambda make: make.__name__,
)
def test_no_journal_takes_much_memory(tmp_path: Path, make: Callable[[], Iterator[str]]):
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        file.write('{"format": 2}\n')
        file.writelines(make())
    script = r"""
        import re, sys
        from pathlib import Path
        from spillgrad.errors import SpillFormatError
        from spillgrad.inspection.runs import inspect
        try:
            inspect(sys.argv[1])
        except SpillFormatError as error:
            assert "is longer than a journal is" in str(error)
        print(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    assert int(ran.stdout) * 1024 < MEMORY_BYTES


@pytest.mark.exhaustive
def test_a_million_events_are_read_within_little_memory(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    draw = random.Random(0)
    with path.open("w") as file:
        file.write('{"format": 2, "budget": 1000000}\n')

        def head(number: int) -> str:
            return f'{{"t": {number / 1000:.6f}, "array": {number}'

        for number in range(250_000):  # all of them live at once
            name = f'"module": "h.{draw.randrange(48)}.mlp", "op": "gelu", "slot": "self", "dtype": "int8"'
            file.write(f'{head(number)}, "event": "pack", "bytes": 4096, {name}}}\n')
        for number in reversed(range(250_000)):
            file.write(
                f'{head(number)}, "event": "write", "took": 0.001, "segment": "segment-00001.h5", '
                f'"pieces": [[{4096 * number}, 4096]], "dataset": "{number:08d}", "xxh3_64": "{number:016x}", '
                '"shape": [64, 64]}\n'
            )
            file.write(f'{head(number)}, "event": "read", "took": 0.001, "ahead": true}}\n')
            file.write(f'{head(number)}, "event": "free"}}\n' if number else "")
    script = r"""
        import re, sys
        from pathlib import Path
        from spillgrad.inspection.runs import inspect
        (run,) = inspect(sys.argv[1]).runs
        (group,) = run.by("op")
        memory_kib = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]
        print(group.moved.read_bytes, run.stats.live_bytes, memory_kib)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    read_bytes, live_bytes, memory_kib = map(int, ran.stdout.split())
    assert (read_bytes, live_bytes) == (250_000 * 4096, 4096)
    assert memory_kib < 300 << 10
