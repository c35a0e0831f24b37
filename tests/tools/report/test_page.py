"""The page of a run: one file that needs nothing else, in which all that comes from files is text."""

import base64
import dataclasses
import hashlib
import html.parser
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from spillgrad.errors import ArgumentError
from spillgrad.inspection.records import Advice, Failure, Sample, Span
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.origin_counters import Origin, OriginCounters
from spillgrad.storage.store import Label
from spillgrad_tools.cli import main
from spillgrad_tools.report import text as report_text
from spillgrad_tools.report.data import memory, modules
from spillgrad_tools.report.page import page, require_packages, write_report
from spillgrad_tools.report.tables import tables
from spillgrad_tools.report.text import headline
from spillgrad_tools.report.timeline import KINDS, MOST_ROWS, Spans, timeline
from tests.page.runs import ADVICE, EMPTY, HOSTILE, HOSTILE_SHOWN, MIB, extreme, first_version, gpt, hostile, many
from tests.tools.runs import make_run

# Bytes of a page without its data: Plotly's, and a tenth of that for what is ours.
PLOTLY_BYTES = 4_900_000


class Reader(html.parser.HTMLParser):
    """Collects what a page is made of: elements with their attributes, text outside of scripts, and the scripts.

    Of those, its data is no program, and stands apart.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.json = ""
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = "data" if dict(attrs).get("id") == "data" else tag
        if self._inside == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "data":
            self.json += data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self) -> dict:
        return json.loads(self.json)


def read(*arguments) -> Reader:
    return Reader(page(*arguments))


def test_a_page_says_what_was_spilled_and_what_it_cost():
    run, spans = gpt()
    found = read(run, spans, ADVICE)
    assert "900 MiB came to the store. 675 MiB (75 %) went to disk, and 675 MiB came back." in found.text
    assert "of a budget of 64 MiB" in found.text
    assert "spillgrad train --model small --ram-budget 64MiB --out runs/1" in found.text
    assert "transformer.h.11.mlp.c_proj" in found.text
    assert "scaled_dot_product_attention" in found.text


def test_a_page_says_when_and_why_ram_was_beyond_the_budget():
    run = make_run(Path("runs/1"))
    assert "the budget in" not in read(run, [], []).text
    beyond = [*run.samples, sample(9.0, 80 * MIB)]
    stats = dataclasses.replace(run.stats, peak_ram_bytes=80 * MIB)
    text = read(dataclasses.replace(run, samples=beyond, stats=stats), [], []).text
    assert "Beyond the budget in 1 of 82 samples, most after 9 s: 80 MiB not on disk yet." in text


def test_advice_is_shown_as_it_was_given_with_the_arguments_it_names():
    text = read(EMPTY, [], [Advice("Use <less>.", {"ram_budget": 96 * MIB, "codec": "lossless"}, {})]).text
    assert "Use <less>." in text
    assert 'save_on_disk(…, ram_budget="96MiB", codec="lossless")' in text
    assert "ram_budget=12345678" in read(EMPTY, [], [Advice("", {"ram_budget": 12345678}, {})]).text


def test_a_page_refers_to_nothing_outside_itself():
    found = read(*gpt(layers=2), ADVICE)
    for tag, attributes in found.elements:
        for name in ("src", "srcset", "action", "poster", "background"):
            assert name not in attributes, tag
        assert re.match(r"(#|data:,$)", attributes.get("href") or "#"), tag
    plotly = max(found.scripts, key=len)
    ours = page(*gpt(layers=2), ADVICE).replace(plotly, "")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|fetch\(|XMLHttpRequest|import\(", ours)


def test_a_page_lets_no_script_run_but_its_own():
    text = page(*gpt(layers=2), ADVICE)
    found = Reader(text)
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    ours = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in found.scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in ours]
    assert not [a for _, a in found.elements if any(name.startswith("on") for name in a)]


def test_hostile_names_are_text_everywhere():
    run, spans = hostile()
    advice = [Advice(HOSTILE, {"codec": HOSTILE}, {})]
    found, plain = read(run, spans, advice), read(*gpt(layers=2, steps=2), ADVICE)
    kinds = {tag for tag, _ in plain.elements} | {"li", "ul", "option"}
    assert {tag for tag, _ in found.elements} <= kinds
    assert found.scripts == plain.scripts
    # Its name, host, module twice in a path, operation, dtype, settings, failure and advice.
    assert found.text.count(HOSTILE_SHOWN) >= 9
    assert any(HOSTILE_SHOWN[:40] in label for label in found.data["modules"]["label"])
    assert any(HOSTILE_SHOWN[:40] in name for name in found.data["timeline"]["names"])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", found.text + found.json)


@pytest.mark.parametrize("most_bars", [24, 40_000])
def test_numbers_of_any_size_make_a_page_without_numbers_that_it_cannot_hold(most_bars: int):
    run, spans = extreme()
    made = timeline(Spans(spans), most_bars)
    numbers = [number for bars in made["bars"] for column in list(bars.values())[2:] for number in column]
    assert numbers
    assert max(map(abs, numbers)) <= 2**53
    assert read(run, spans, []).data["timeline"]["spans"] == len(spans)


def test_very_long_names_are_cut():
    assert len(page(*hostile(), [])) < PLOTLY_BYTES * 1.1


def test_json_ends_no_element():
    name = "</script><!--\u2028\u2029&"
    text = page(dataclasses.replace(EMPTY, origins={Origin("a", name): OriginCounters(1, 1)}), [], [])
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert not re.search("[<>&\u2028\u2029]", data)
    assert any(name[:10] in label for label in json.loads(data)["modules"]["label"])


@pytest.mark.parametrize("state", ["live", "finished", "dead"])
def test_a_run_of_which_nothing_is_known_has_a_page_that_says_so(state: str):
    run = dataclasses.replace(EMPTY, state=state)
    text = read(run, [], []).text
    for words in (
        "nothing was given to the store",
        "The journal has no samples of memory: its version had none",
        "The journal has nothing that took time",
        "Nothing came to the store",
        "None: no other setting is known to do better",
        "The disk refused nothing",
        report_text.state(run)[1:],
    ):
        assert words in text
    assert ("spillgrad sweep" in text) == (state == "dead")


def test_a_journal_of_the_first_version_gives_a_page_of_what_it_has():
    found = read(*first_version(), [])
    assert "its version had none" in found.text
    assert "RAM budget" not in found.text
    assert "transformer.h.1.mlp" in found.text


def test_what_the_journal_no_longer_has_is_said():
    run, spans = gpt(layers=2)
    assert "The journal still has" not in read(run, spans, []).text
    run = dataclasses.replace(run, first_s=3.25, steps=run.steps[2:], lost_lines=7, damaged_lines=2)
    text = read(run, spans, []).text
    assert "from 3.25 s on" in text
    assert re.search(r"lost to a full disk\s*7", text)
    assert re.search(r"damaged lines of the journal\s*2", text)


def test_failures_are_counted_and_the_last_ones_shown():
    failures = [Failure(place, f"no space left, {place}") for place in range(150)]
    text = read(dataclasses.replace(EMPTY, failures=failures, failure_count=1234), [], []).text
    assert "The disk refused 1,234 times; the last 100:" in text
    assert "no space left, 149" in text
    assert "no space left, 49" not in text
    assert "refused 7 times." in read(dataclasses.replace(EMPTY, failure_count=7), [], []).text
    once = dataclasses.replace(EMPTY, failures=failures[:1], failure_count=1)
    assert "refused 1 time:" in read(once, [], []).text


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        ({}, "In 0 s, nothing was given to the store."),
        ({"packed_bytes": 5 * MIB}, "5 MiB came to the store. All of it fitted in RAM: nothing went to disk."),
        (
            {"packed_bytes": 5 * MIB, "written_bytes": MIB},
            "1 MiB (20 %) went to disk, and 0 B came back. Nobody waited",
        ),
        (
            {"packed_bytes": 5 * MIB, "written_bytes": MIB, "read_bytes": MIB, "wait_read_s": 0.5},
            "Callers waited 500 ms: 500 ms for data to be read.",
        ),
    ],
)
def test_the_headline_says_it_in_plain_words(stats: dict[str, float], words: str):
    assert words in headline(dataclasses.replace(EMPTY, stats=dataclasses.replace(EMPTY.stats, **stats)))


def test_a_timeline_keeps_what_took_time_where_it_is_not_too_much():
    _, spans = gpt(layers=2)
    made = timeline(Spans(spans))
    assert made["merged_below_us"] == 0
    assert sum(len(bars["began"]) for bars in made["bars"]) == len(spans) == made["spans"]
    (writes,) = [bars for bars in made["bars"] if bars["kind"] == "write"]
    expected = sorted((round(s.began_s * 1e6), round(s.took_s * 1e6), s.nbytes) for s in spans if s.kind == "write")
    assert sorted(zip(writes["began"], writes["took"], writes["bytes"], strict=True)) == expected


def test_waits_and_reads_are_told_apart_by_their_cause():
    spans = [
        Span("wait", 0, 1, cause="put"), Span("wait", 1, 1, cause="get"),
        Span("read", 2, 1), Span("read", 3, 1, ahead=True), Span("something new", 4, 1),
    ]  # fmt: skip
    kinds = [bars["kind"] for bars in timeline(Spans(spans))["bars"] if bars["began"]]
    assert kinds == ["wait for room", "wait for data", "read", "read ahead"]


def test_merged_spans_keep_their_sums_and_the_long_ones():
    spans = list(many(20_000))
    made = timeline(Spans(spans), most_bars=1_000)
    bars = made["bars"]
    assert sum(len(each["began"]) for each in bars) <= 1_000
    assert made["merged_below_us"] > 0
    assert sum(sum(each["spans"]) for each in bars) == 20_000
    assert sum(sum(each["bytes"]) for each in bars) == sum(span.nbytes for span in spans)
    assert math.isclose(sum(sum(e["busy"]) for e in bars) / 1e6, sum(s.took_s for s in spans), rel_tol=1e-3)
    (waits,) = [each for each in bars if each["kind"] == "wait for data"]
    assert (1_000_000, 7_500_000) in list(zip(waits["began"], waits["took"], strict=True))
    for each in bars:
        assert each["began"] == sorted(each["began"])


def test_what_happens_at_once_lies_in_rows_of_its_lane():
    made = timeline(Spans([Span("write", start, 1.0) for start in (0, 0.1, 0.2, 0.3, 1.05, 5)]))
    (writes,) = [bars for bars in made["bars"] if bars["kind"] == "write"]
    assert writes["row"] == [0, 1, 2, MOST_ROWS - 1, 0, 0]
    (lane,) = [lane for lane in made["lanes"] if lane["name"] == "writing"]
    assert lane["rows"] == MOST_ROWS


def test_every_kind_of_span_has_one_lane():
    assert len(set(KINDS)) == len(KINDS) == len(timeline(Spans([]))["bars"])


def sample(t: float, ram: int, rss: int = 0) -> Sample:
    return Sample(t, ram, ram, 0, 0, 0, ram, ram, rss, 0, 0, 0, 0, 0.0)


def test_few_samples_are_all_drawn_and_of_many_the_extremes():
    samples = [sample(t / 100, 1000 + t % 7) for t in range(50_000)]
    samples[31_234] = sample(312.34, 999_999)
    samples[40_000] = sample(400.0, 3, rss=77_777)
    found = memory(dataclasses.replace(EMPTY, samples=samples), most_samples=1_000)
    assert len(found["t"]) <= 1_000
    assert found["samples"] == 50_000
    assert found["t"] == sorted(found["t"])
    assert (found["t"][0], found["t"][-1]) == (0, 499_990_000)
    assert (max(found["ram"]), min(found["ram"]), max(found["rss"])) == (999_999, 3, 77_777)
    assert len(memory(dataclasses.replace(EMPTY, samples=samples[:900]), most_samples=1_000)["t"]) == 900


def test_parts_of_ram_add_up():
    run, _ = gpt(layers=2)
    run = dataclasses.replace(run, samples=[*run.samples, Sample(9, 100, 30, 20, 10, 5, 0, 0, 0, 0, 0, 0, 0, 0.0)])
    found = memory(run)
    assert found["other"][-1] == 35
    parts = zip(*(found[part] for part in ("lent", "hot", "writing", "cached", "other")), strict=True)
    assert [sum(each) for each in parts] == found["ram"]


def test_modules_are_a_tree_in_which_parts_add_up():
    run, _ = gpt(layers=3)
    tree = modules(run.origins)
    assert tree["parent"][0] == -1
    for measure in ("packed", "written", "read", "waited"):
        inner = set(tree["parent"]) - {-1}
        for node in inner:
            parts = sum(value for value, parent in zip(tree[measure], tree["parent"], strict=True) if parent == node)
            assert parts == tree[measure][node], (measure, tree["path"][node])
    assert tree["packed"][0] == run.stats.packed_bytes
    labels = dict(zip(tree["path"], tree["label"], strict=True))
    assert labels["transformer.h"] == "transformer.h"
    assert labels["transformer.h.2"] == "h.2"
    assert labels["transformer.h.2.mlp.gelu()"] == "gelu()"


def test_beyond_what_anybody_can_see_modules_are_one_tile():
    origins = {Origin(f"m{place}", "mul"): OriginCounters(1, place) for place in range(100)}
    tree = modules(origins, most_tiles=10)
    assert len(tree["path"]) == 1 + 2 * 10 + 1
    assert tree["left_out"] == 90
    assert tree["packed"][tree["label"].index("(others)")] == sum(range(90))
    assert tree["packed"][0] == sum(range(100))


def test_a_path_without_end_is_a_tree_of_bounded_depth():
    tree = modules({Origin("a." * 5_000, "mul"): OriginCounters(1, 1)})
    assert len(tree["path"]) < 15


def test_tables_hold_what_the_run_says_and_leave_columns_of_nothing_out():
    run, _ = gpt(layers=2)
    found = {table.key: table for table in tables(run)}
    assert list(found) == ["module", "op", "kind", "dtype", "step"]
    assert found["op"].titles == ["arrays", "packed", "written", "read", "waited"]
    assert [cell.value for cell in found["op"].total][1:4] == [
        run.stats.packed_bytes, run.stats.written_bytes, run.stats.read_bytes
    ]  # fmt: skip
    packed = [cells[1].value for _, cells in found["module"].rows]
    assert packed == sorted(packed, reverse=True)
    assert found["step"].titles[:2] == ["began", "took"]
    assert [name for name, _ in found["step"].rows] == ["1", "2", "3", "4", "5"]


def test_columns_that_say_something_are_there():
    moved = OriginCounters(1, 10, deduplicated_bytes=1, kept_bytes=2, written_bytes=8, stored_bytes=4)
    (table, *_) = tables(dataclasses.replace(EMPTY, origins={Origin("a"): moved}))
    assert table.titles == ["arrays", "packed", "deduplicated", "kept", "written", "stored", "read", "waited"]


def test_long_tables_end_and_say_how_much_is_left_out():
    origins = {Origin(f"m{place}"): OriginCounters(1, place) for place in range(50)}
    (table, *_) = tables(dataclasses.replace(EMPTY, origins=origins), most_rows=10)
    assert [name for name, _ in table.rows] == [f"m{place}" for place in range(49, 39, -1)]
    assert table.left_out == 40
    assert table.total[1].value == sum(range(50))


def spilled(directory: Path, count: int = 20) -> Path:
    """Return the journal of a store that wrote all it was given and read it back."""
    journal = directory / "kept.jsonl"
    store = DiskStore(directory, ram_budget=0, keep_journal=journal)
    handles = [store.put(np.full(5_000, place), label=Label("mul", "self", "h.0")) for place in range(count)]
    for handle in reversed(handles):
        store.get(handle)
        store.drop(handle)
    store.close()
    return journal


def test_the_command_writes_the_page_of_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    journal = spilled(tmp_path)
    assert main(["inspect", str(journal), "--html", str(tmp_path / "report.html")]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"wrote {tmp_path / 'report.html'}\n", "")
    found = Reader((tmp_path / "report.html").read_text())
    assert "781.2 KiB (100 %) went to disk, and 781.2 KiB came back" in found.text
    kinds = {bars["kind"]: sum(bars["spans"]) for bars in found.data["timeline"]["bars"]}
    assert kinds["write"] == 20
    assert kinds["read"] + kinds["read ahead"] == 20


def test_a_live_run_has_a_page(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0)
    handle = store.put(np.ones(5_000))
    store.flush()
    time.sleep(0.3)  # the journal is written five times a second
    assert main(["inspect", str(store.directory), "--html", str(tmp_path / "report.html")]) == 0
    text = Reader((tmp_path / "report.html").read_text()).text
    assert "Running when this page was made" in text
    assert store.directory.name in text
    assert (store.get(handle) == 1).all()
    store.close()


def test_a_journal_file_of_the_first_version_has_a_page(tmp_path: Path):
    lines = (
        {"format": 1, "began": "2026-01-01T00:00:00+00:00", "process": 1},
        {"t": 0.1, "event": "pack", "array": 0, "bytes": 4096, "op": "mul", "slot": "self", "module": "h", "step": 1},
        {"t": 0.2, "event": "write", "array": 0, "took": 0.05, "segment": "segment-00000.h5", "dataset": "00000000"},
    )
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["inspect", str(journal), "--html", str(tmp_path / "report.html")]) == 0
    text = Reader((tmp_path / "report.html").read_text()).text
    assert "4 KiB (100 %) went to disk" in text
    assert "ended without closing its store, or the disk refused" in text


def test_of_several_runs_one_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    spilled(tmp_path).rename(tmp_path / "first.jsonl")
    spilled(tmp_path)
    assert main(["inspect", str(tmp_path), "--html", str(tmp_path / "report.html")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"spillgrad: report: got 2 runs in {tmp_path}, wanted one; name one, such as the newest: ")
    assert str(tmp_path / "kept.jsonl") in said
    assert said.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_a_segment_is_no_run_of_which_a_page_could_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "segment-00000.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    command = ["inspect", str(tmp_path / "segment-00000.h5"), "--html", str(tmp_path / "report.html")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "a segment, wanted a run; name its folder, or a journal" in said
    assert said.count("\n") == 1


def test_a_device_that_takes_no_more_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(spilled(tmp_path)), "--html", "/dev/full"]) == 2
    assert capsys.readouterr().err.startswith("spillgrad: /dev/full: No space left on device")


def test_a_page_that_has_no_place_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(spilled(tmp_path)), "--html", str(tmp_path / "missing" / "report.html")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(tmp_path / "missing" / "report.html") in said


def test_a_page_replaces_what_was_there_as_a_whole(tmp_path: Path):
    path = tmp_path / "report.html"
    path.write_text("former")
    write_report(EMPTY, [], [], path)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_has_the_permissions_of_any_new_file(tmp_path: Path):
    write_report(EMPTY, [], [], tmp_path / "report.html")
    (tmp_path / "other").touch()
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_page_goes_through_a_pipe():
    program = "from tests.page.runs import EMPTY; from pathlib import Path; "
    program += "from spillgrad_tools.report.page import write_report; write_report(EMPTY, [], [], Path('/dev/stdout'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stderr == ""
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.endswith("</html>")


@pytest.mark.parametrize("name", ["missing/report.html", "file/report.html", ""])
def test_a_place_that_takes_no_file_is_an_error_that_names_it(name: str, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=re.escape(str(tmp_path / name))):
        write_report(EMPTY, [], [], tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_takes_no_more_leaves_the_former_page(tmp_path: Path):
    path = tmp_path / "report.html"
    path.write_text("former")
    program = """
import resource, sys
from pathlib import Path
from spillgrad_tools.report.page import write_report
from tests.page.runs import EMPTY
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    write_report(EMPTY, [], [], Path(sys.argv[1]))
except OSError as error:
    print(error.filename, error.strerror)
"""
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert (done.stdout, done.stderr) == (f"{path} File too large\n", "")
    assert path.read_text() == "former"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ArgumentError, match=r"--report without plotly; pip install 'spillgrad\[report\]'"):
        require_packages("--report")


@pytest.mark.exhaustive
def test_a_journal_of_a_million_lines_makes_a_page_within_time_memory_and_size(tmp_path: Path):
    journal = tmp_path / "journal.jsonl"
    with journal.open("w") as file:
        file.write('{"format": 2, "began": "2026-01-01T00:00:00+00:00", "process": 1, "budget": 67108864}\n')
        for array in range(250_000):
            t, origin = array / 1000, f'"module": "h.{array % 48}", "op": "mul", "slot": "self", "dtype": "float32"'
            file.write(
                f'{{"t": {t}, "event": "pack", "array": {array}, "bytes": 4096, {origin}, "step": 1}}\n'
                f'{{"t": {t + 3e-4}, "event": "write", "array": {array}, "took": 0.0002, "segment": "segment-0.h5"}}\n'
                f'{{"t": {t + 6e-4}, "event": "read", "array": {array}, "took": 0.0002}}\n'
                f'{{"t": {t + 9e-4}, "event": "free", "array": {array}}}\n'
            )
    program = """
import re, sys, time
from pathlib import Path
from spillgrad_tools.report.page import report
began = time.perf_counter()
report(Path(sys.argv[1]), Path(sys.argv[2]))
peak_kib = re.search("VmHWM:[^0-9]*([0-9]+)", Path("/proc/self/status").read_text())[1]
print(round(time.perf_counter() - began, 1), int(peak_kib) >> 10)
"""
    page = tmp_path / "report.html"
    command = [sys.executable, "-c", program, str(journal), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.stderr == ""
    seconds, peak_mib = map(float, done.stdout.split())
    assert seconds < 30
    assert peak_mib < 500
    assert page.stat().st_size < 12e6
    text = Reader(page.read_text()).text
    assert "500,000 spans" in text
    assert re.search(r"Those shorter than [0-9.]+ m?s are merged", text)


def environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
