"""`spillgrad inspect` on runs that go on, and on what is left of others; which options go together."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

import spillgrad as sg
from spillgrad.inspection.segments import inspect_segment
from spillgrad.storage import DiskStore, Label
from spillgrad.storage.journal.reader import read_journal
from spillgrad_tools.cli import main
from spillgrad_tools.inspect import json_output
from spillgrad_tools.inspect.words import began as began_words
from tests.tools.terminal import terminal
from tests.waiting import wait_until

NOT_TOGETHER = [
    (["--tree", "--tensor", "3"], ["--tree and --tensor"]),
    (["--tree", "--watch"], ["--tree and --watch"]),
    (["--html", "page.html", "--watch"], ["--html and --watch"]),
    (["--force", "--tensor", "3"], ["--force", "--export or --perfetto or --memory-viz FILE"]),
    (["--slice", "0"], ["--slice", "--tensor KEY"]),
    (["--export", "a.npy"], ["--export", "--tensor KEY"]),
    (["--tree", "--slice", "0"], ["--slice", "--tensor KEY"]),
    (["--tree", "--by", "op"], ["--by with --tree"]),
    (["--tensor", "3", "--sort", "read"], ["--sort with --tensor"]),
    (["--watch", "--top", "3"], ["--top with --watch"]),
    (["--watch", "--json"], ["--json with --watch"]),
    (["--html", "page.html", "--json"], ["--json with --html"]),
    (["--perfetto", "a.json", "--memory-viz", "a.pickle"], ["--perfetto and --memory-viz"]),
    (["--memory-viz", "a.pickle", "--top", "3"], ["--top with --memory-viz"]),
    (["--perfetto", "a.json", "--export", "a.npy"], ["--export without --tensor"]),
    (["--html", "page.html", "--force"], ["--force", "--export or --perfetto or --memory-viz FILE"]),
    (["--by", "moduel"], ["moduel", "module", "dtype"]),
    (["--sort", "size"], ["size", "packed", "wait"]),
    (["--top", "0"], ["0", "--top"]),
]


@pytest.mark.parametrize(("options", "words"), NOT_TOGETHER, ids=[" ".join(options) for options, _ in NOT_TOGETHER])
def test_options_that_do_not_go_together_are_named_in_one_line(
    options: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["inspect", str(tmp_path), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("spillgrad: ")
    assert printed.err.count("\n") == 1
    assert [word for word in words if word not in printed.err] == []
    assert list(tmp_path.iterdir()) == []


def steps_of(store: DiskStore, count: int) -> None:
    """Put, get and drop arrays of two modules, `count` times."""
    for step in range(count):
        labels = [Label(op, "self", f"blocks.{block}", step) for block in range(2) for op in ("mul", "exp")]
        handles = [store.put(np.full(10_000, float(step)), label=label) for label in labels]
        store.flush()
        for handle in reversed(handles):
            store.get(handle)
            store.drop(handle)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Return the journal of a run that is over."""
    path = tmp_path / "kept.jsonl"
    store = DiskStore(tmp_path / "spill", ram_budget=100_000, keep_journal=path)
    steps_of(store, 5)
    store.close()
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["inspect", *map(str, arguments)]) == status
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def test_a_finished_run_is_shown_from_its_journal(finished: Path, capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, finished)
    stats = sg.storage.inspect(finished).runs[0].stats
    assert stats.packed_bytes == 5 * 4 * 80_000
    assert f"packed        {sg.storage.format_bytes(stats.packed_bytes)} in 20 arrays" in text
    assert f"written       {sg.storage.format_bytes(stats.written_bytes)} (" in text
    assert "state         finished: its store was closed" in text
    rows = re.findall(r"^(blocks\.\d|total) +(\d+)", text, re.MULTILINE)
    assert rows == [("blocks.0", "10"), ("blocks.1", "10"), ("total", "20")]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("module", ["blocks.0", "blocks.1"]),
        ("op", ["exp", "mul"]),
        ("dtype", ["float64"]),
        ("step", ["0", "1", "2", "3", "4"]),
    ],
)
def test_groups_of_real_runs_are_by_what_was_asked_for(
    by: str, names: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
):
    text = printed(capsys, finished, "--by", by, "--sort", "name")
    table = text[text.index("──") :].splitlines()[1:]
    assert [line.split()[0] for line in table if line.strip()] == [*names, "total"]
    assert printed(capsys, finished, "--by", by, "--sort", "name", "--top", 1).count(" other") == (len(names) > 1)


def test_the_folder_of_a_run_that_goes_on_shows_it_without_disturbing_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = DiskStore(tmp_path / "spill", ram_budget=0)
    handle = store.put(np.arange(10_000))
    store.flush()
    (run,) = (tmp_path / "spill").iterdir()
    wait_until(lambda: (run / "journal.jsonl").exists())
    before = sorted(run.iterdir())
    for path in (tmp_path / "spill", run):
        assert "state         live: its process runs" in printed(capsys, path)
    assert sorted(run.iterdir()) == before
    assert (store.get(handle) == np.arange(10_000)).all()
    store.drop(handle)
    store.close()


def test_of_several_runs_there_is_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("a.jsonl", "b.jsonl"):
        store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / name)
        steps_of(store, 2)
        store.close()
    text = printed(capsys, tmp_path)
    assert re.findall(r"^([ab]\.jsonl) +finished ", text, re.MULTILINE) == ["a.jsonl", "b.jsonl"]
    one = text.splitlines()[-1].removeprefix("2 runs, the newest last; to see it: spillgrad ")
    assert main(shlex.split(one)) == 0
    assert "in 8 arrays" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--by", "op"]) == 2
    assert f"got --by with 2 runs; name one, such as the newest: {tmp_path / 'b.jsonl'}" in capsys.readouterr().err
    runs = json.loads(printed(capsys, tmp_path, "--by", "op", "--json"))["runs"]
    assert [run["groups"]["by"] for run in runs] == ["op", "op"]


def test_json_holds_what_the_library_returns(finished: Path, capsys: pytest.CaptureFixture[str]):
    found = sg.storage.inspect(finished)
    document = json.loads(printed(capsys, finished, "--json", "--by", "op"))
    assert document == json_output.plain({"format": 1, **json_output.of_runs(found, "op", None, None)})
    (run,) = document["runs"]
    assert run["stats"]["packed_bytes"] == found.runs[0].stats.packed_bytes > 0
    assert [group["name"] for group in run["groups"]["shown"]] == ["mul", "exp"]
    assert len(run["steps"]) == 5


def test_damaged_lines_are_counted_and_the_status_is_1(finished: Path, capsys: pytest.CaptureFixture[str]):
    whole = finished.read_bytes().splitlines(keepends=True)
    finished.write_bytes(b"".join([*whole[:4], b'{"t": \x00}\n', b"not JSON\n", *whole[4:]]))
    assert "2 lines of the journal, without sense" in printed(capsys, finished, status=1)
    document = json.loads(printed(capsys, finished, "--json", status=1))
    assert document["runs"][0]["damaged_lines"] == 2


def test_a_last_line_that_is_cut_off_is_no_damage(finished: Path, capsys: pytest.CaptureFixture[str]):
    finished.write_bytes(finished.read_bytes()[:-10])
    assert "state         dead" in printed(capsys, finished)


@pytest.mark.parametrize("options", [[], ["--json"], ["--by", "op"]], ids=" ".join)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", ["missing", "No such file"]),
        ("empty", ["empty", "holds no run"]),
        ("notes.txt", ["notes.txt", "no journal of a run"]),
        ("nothing.jsonl", ["nothing.jsonl is empty"]),
        ("newer.jsonl", ["newer.jsonl", "999"]),
        ("pipe", ["pipe", "no file of a run"]),
    ],
)
def test_where_there_is_nothing_of_ours_one_line_says_so(
    name: str, words: list[str], options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.jsonl").touch()
    (tmp_path / "notes.txt").write_text("All work and no play\n")
    (tmp_path / "newer.jsonl").write_text('{"format": 999, "began": "x"}\n')
    os.mkfifo(tmp_path / "pipe")
    assert main(["inspect", str(tmp_path / name), *options]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert [word for word in words if word not in found.err] == []


@pytest.mark.parametrize("width", ["40", "200"])
def test_of_several_runs_it_is_said_which_is_the_newest_and_when_each_began(
    width: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name in ("journal.jsonl", "journal-2.jsonl", "journal-10.jsonl"):  # none of them by its name
        DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / name).close()
    monkeypatch.setenv("COLUMNS", width)
    text = printed(capsys, tmp_path)
    began = [began_words(run, fine=width == "200") for run in sg.storage.inspect(tmp_path).runs]
    assert re.findall(r"^(journal[-0-9]*)\.jsonl .*?(20\d\d-.*?)(?:  |$)", text, re.MULTILINE) == list(
        zip(["journal", "journal-2", "journal-10"], began, strict=True)
    )
    assert f"3 runs, the newest last; to see it: spillgrad inspect {tmp_path}/journal-10.jsonl\n" in text
    assert main(["inspect", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 2
    assert f"the newest: {tmp_path}/journal-10.jsonl" in capsys.readouterr().err


def test_a_run_beyond_its_budget_says_when_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "kept.jsonl"
    store = DiskStore(tmp_path / "spill", ram_budget=100_000, keep_journal=path)
    for _ in range(2):
        handle = store.put(np.arange(100_000))
        store.flush()
        held = store.get(handle)
        time.sleep(0.1)  # for a sample
        store.drop(handle)
        del held
    store.close()
    text = " ".join(printed(capsys, path).split())
    assert re.search(r"beyond the budget in \d+ of \d+ samples, most after [\d.]+ m?s: 781.2 KiB held by callers", text)
    assert "a step has an array of 781.2 KiB: more than the budget, and read whole when it is needed" in text


@pytest.mark.parametrize("options", [["--tree"], ["--tensor", "3"]], ids=" ".join)
def test_a_journal_holds_no_arrays(options: list[str], finished: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(finished), *options]) == 2
    said = f"spillgrad: {finished} is a journal, which holds no arrays; name a segment, or the folder of a run\n"
    assert capsys.readouterr() == ("", said)


def test_a_page_into_a_pipe_that_nobody_reads_is_left_quietly(finished: Path, tmp_path: Path):
    command = [sys.executable, "-m", "spillgrad_tools", "inspect", str(finished), "--html", "/dev/stdout"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    piped = ["bash", "-c", '"$@" | head -c 9; exit ${PIPESTATUS[0]}', "bash", *command]
    done = subprocess.run(piped, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (141, "<!DOCTYPE", "")


VIEWERS = ["--perfetto", "--memory-viz"]


@pytest.mark.parametrize("option", VIEWERS)
def test_a_file_for_a_viewer_is_written_once_and_again_only_with_force(
    option: str, finished: Path, capsys: pytest.CaptureFixture[str]
):
    path = finished.with_name("shown")
    assert printed(capsys, finished, option, path) == f"wrote {path}\n"
    size = path.stat().st_size
    path.write_text("precious")
    assert main(["inspect", str(finished), option, str(path)]) == 2
    said = f"spillgrad: export: {path} exists; name another file, or overwrite it with --force\n"
    assert capsys.readouterr() == ("", said)
    assert path.read_text() == "precious"
    assert printed(capsys, finished, option, path, "--force") == f"wrote {path}\n"
    assert path.stat().st_size == size
    assert sorted(each.name for each in finished.parent.iterdir()) == ["kept.jsonl", "shown", "spill"]


@pytest.mark.parametrize("option", VIEWERS)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("missing/shown", "missing/shown: No such file or directory; free space, or name another place"),
        ("spill", "spill exists; name another file, or overwrite it with --force"),
        ("kept.jsonl", "kept.jsonl is a segment or a journal, not to be overwritten; name another file"),
    ],
)
def test_a_place_that_takes_no_file_for_a_viewer_is_named(
    option: str, place: str, words: str, finished: Path, capsys: pytest.CaptureFixture[str]
):
    before = finished.read_bytes()
    assert main(["inspect", str(finished), option, str(finished.parent / place)]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert words in found.err
    assert finished.read_bytes() == before


@pytest.mark.parametrize("option", VIEWERS)
def test_a_disk_that_takes_no_more_leaves_nothing_for_a_viewer(option: str, finished: Path):
    # In a process of its own, for the limit is one of the whole process.
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
    program += "from spillgrad_tools.cli import main; sys.exit(main(sys.argv[1:]))"
    path = finished.with_name("shown")
    command = [sys.executable, "-c", program, "inspect", str(finished), option, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        rf"spillgrad: export: could not write a \w+ to {re.escape(str(path))}: File too large; free space, or name "
        "another place\n",
        done.stderr,
    )
    assert sorted(each.name for each in finished.parent.iterdir()) == ["kept.jsonl", "spill"]


@pytest.mark.parametrize("option", VIEWERS)
def test_a_viewer_gets_one_run(
    option: str, finished: Path, segment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copy(finished, finished.with_name("other.jsonl"))
    for place, words in (
        (tmp_path, "got 2 runs in"),
        (segment, "a segment, wanted a run; name its folder, or a journal"),
    ):
        assert main(["inspect", str(place), option, str(tmp_path / "shown")]) == 2
        found = capsys.readouterr()
        assert found.err.startswith(f"spillgrad: {option.removeprefix('--')}: got ")
        assert words in found.err
    assert not (tmp_path / "shown").exists()


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Path]:
    """Return a segment with 30 arrays."""
    store = DiskStore(tmp_path / "spill", ram_budget=0)
    handles = [store.put(np.full((10, 10 + n), n), label=Label("mul", "self", f"h.{n}", n)) for n in range(30)]
    store.flush()
    (path,) = (tmp_path / "spill").glob("run-*/*.h5")
    yield path
    for handle in handles:
        store.drop(handle)
    store.close()


def test_of_a_segment_the_arrays_are_shown(segment: Path, capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, segment)
    assert re.search(r"^arrays +30 of 57.4 KiB$", text, re.MULTILINE)
    rows = re.findall(r"^(\d{8}  mul.self in h\.\d+ at step \d+) +int64 +\((\d+), (\d+)\)", text, re.MULTILINE)
    assert rows == [(f"{n:08}  mul.self in h.{n} at step {n}", "10", str(10 + n)) for n in range(20)]
    assert text.endswith("and 10 others\n")
    assert printed(capsys, segment, "--top", 30).count("mul.self") == 30


def test_a_segment_is_known_by_how_it_begins_whatever_its_name(segment: Path, capsys: pytest.CaptureFixture[str]):
    copy = segment.parent.parent / "copy.bin"
    shutil.copy(segment, copy)
    assert re.search(r"^arrays +30 of ", printed(capsys, copy), re.MULTILINE)


def test_the_json_of_a_segment_has_all_its_arrays(segment: Path, capsys: pytest.CaptureFixture[str]):
    document = json.loads(printed(capsys, segment, "--json"))
    assert document["format"] == 1
    (found,) = document["segments"]
    assert [array["key"] for array in found["arrays"]] == [f"{n:08}" for n in range(30)]
    assert found["arrays"][3]["shape"] == [10, 13]


def test_a_segment_in_which_something_is_wrong_gives_status_1(segment: Path, capsys: pytest.CaptureFixture[str]):
    copy = segment.parent.parent / "copy.h5"
    shutil.copy(segment, copy)
    with h5py.File(copy, "r+") as file:
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/")
    assert re.search(
        r"^problems +.*elsewhere: is of a kind that no store makes: external link",
        printed(capsys, copy, status=1),
        re.MULTILINE,
    )
    for options in (["--json"], ["--tree"], ["--tree", "--json"]):
        assert "elsewhere" in printed(capsys, copy, *options, status=1)


def test_a_segment_has_no_groups(segment: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(segment), "--by", "op"]) == 2
    assert "got --by with a segment" in capsys.readouterr().err


def test_a_segment_that_was_never_flushed_is_called_so_and_keeps_no_other_from_being_shown(
    segment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "run-0123456789abcdef"
    folder.mkdir()
    new = folder / "segment-00001.h5"
    new.write_bytes(bytes(10_000))
    words = f"spillgrad: {new} was never flushed: it does not say yet what is in it; inspect the folder of its run"
    for options in (["--tree"], ["--tensor", "3"]):
        assert main(["inspect", str(folder), *options]) == 2
        assert (found := capsys.readouterr()).err.startswith(words)
        assert (found.out, found.err.count("\n")) == ("", 1)
    shutil.copy(segment, folder / "segment-00000.h5")
    assert main(["inspect", str(folder), "--tree", "--json"]) == 1
    found = capsys.readouterr()
    assert len(json.loads(found.out)["segments"][0]["arrays"]) == 30
    assert found.err.startswith(words)
    new.write_bytes(b"something else")
    assert main(["inspect", str(folder), "--tree"]) == 1
    found = capsys.readouterr()
    assert "mul.self in h.29" in found.out
    assert f"{new} cannot be read as HDF5" in found.err


def test_a_folder_of_segments_alone_says_how_to_see_one(
    segment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (folder := tmp_path / "copies").mkdir()
    shutil.copy(segment, folder)
    assert main(["inspect", str(folder)]) == 2
    said = f"spillgrad: {folder} holds no run, but segments; name one of them, such as {folder}/segment-00000.h5\n"
    assert capsys.readouterr() == ("", said)


def test_what_is_named_as_a_segment_and_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "segment-00000.h5").write_text("no HDF5\n")
    assert main(["inspect", str(tmp_path / "segment-00000.h5")]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert "segment-00000.h5" in found.err


@pytest.mark.parametrize(
    ("command", "options", "keys"),
    [
        ("inspect", ["--tree"], ["segments"]),
        ("inspect", ["--tensor", "3"], ["path", "key", "contents"]),
        ("inspect", ["--tensor", "3", "--slice", "0"], ["path", "key", "slice"]),
        ("inspect", ["--tensor", "3", "--export", "a.npy"], ["path", "key", "export"]),
        ("verify", [], ["path", "ok", "problems"]),
    ],
)
def test_json_of_every_kind_begins_with_its_version(
    command: str,
    options: list[str],
    keys: list[str],
    segment: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.chdir(tmp_path)
    assert main([command, str(segment), *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert next(iter(document.items())) == ("format", 1)
    assert [key for key in keys if key not in document] == []


def test_lines_of_a_tree_are_whole_however_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    store = DiskStore(tmp_path / ("long" * 20), ram_budget=0)
    handle = store.put(np.arange(10_000), label=Label("mul", "self", "blocks." * 20 + "last", 3))
    wait_until(lambda: any(line.get("event") == "write" for line in read_journal(store.directory)))
    (path,) = store.directory.glob("*.h5")
    note = inspect_segment(path).note  # it was never flushed
    lines = printed(capsys, path, "--tree").splitlines()
    assert lines[0].startswith(f"{path} (")
    assert any(line.endswith("blocks.last at step 3") for line in lines)
    assert lines[-1] == f"└── {note}"
    store.drop(handle)
    store.close()


def test_a_long_tree_is_paged(segment: Path, tmp_path: Path):
    command = [sys.executable, "-m", "spillgrad_tools", "inspect", str(segment), "--tree"]
    with terminal(command, tmp_path, PAGER="sed s/^/paged:/") as shown:
        assert shown.end() == 0
        assert shown.written.count("paged:") > 60


def test_a_long_table_is_paged_and_a_pipe_that_closes_is_left_quietly(segment: Path, tmp_path: Path):
    command = [sys.executable, "-m", "spillgrad_tools", "inspect", str(segment), "--top", "30"]
    with terminal(command, tmp_path, PAGER="sed s/^/paged:/") as shown:
        assert shown.end() == 0
        assert len(re.findall(r"^paged:\d{8}  mul.self", shown.written, re.MULTILINE)) == 30
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    piped = ["bash", "-c", '"$@" --json | head -1; exit ${PIPESTATUS[0]}', "bash", *command]
    done = subprocess.run(piped, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("{\n", "")
    assert done.returncode in (0, 141)  # it may have written all before
