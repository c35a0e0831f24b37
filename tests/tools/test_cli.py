"""The command line: what it accepts, and how it refuses: one line on stderr, exit status 2, no traceback."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spillgrad.storage import DiskStore, is_ram_disk
from spillgrad_tools.cli import main


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def run(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spillgrad_tools", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment(**variables), timeout=120)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working directory with something of every kind a user may name by mistake."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "no_files").mkdir()
    (tmp_path / "long.txt").write_text("All work and no play makes a dull boy.\n" * 100)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TINY = ["train", "--data", "long.txt", "--model", "tiny", "--context", "32", "--batch", "2"]

BAD_INPUT = [
    # given, and words the line must contain: what was given, what is accepted
    (["train", "--ram-budget", "64 potatoes"], ["64 potatoes", "MiB"]),
    (["train", "--ram-budget", "-1"], ["-1"]),
    (["train", "--data", "missing.txt"], ["missing.txt", "does not exist"]),
    (["train", "--data", "empty.txt"], ["empty.txt", "empty"]),
    (["train", "--data", "no_files"], ["no_files"]),
    (["train", "--data", "short.txt"], ["9 bytes"]),
    (["train", "--model", "smal"], ["smal", "small", "gpt2"]),
    ([*TINY, "--out", "long.txt/out"], ["long.txt/out"]),
    (
        [*TINY, "--out", "out", "--spill-dir", "long.txt/spill"],
        ["long.txt/spill"],
    ),
    (["train", "--resume", "no_files"], ["no_files"]),
    (["train", "--resume", "missing"], ["missing"]),
    (["train", "--steps", "many"], ["many", "integer"]),
    (["train", "--steps", "0"], ["0", "--steps"]),
    (["train", "--lr", "-1"], ["-1", "--lr"]),
    (["train", "--steep", "3"], ["--steep", "--steps"]),
    (["trian"], ["trian", "spillgrad --help"]),
    (["cache", "fill"], ["fill", "info", "warm", "clear"]),
    (["plan", "--ram", "1GiB"], ["--model"]),
    (["plan", "--model", "tiny"], ["--ram"]),
    (["plan", "--model", "tyni", "--ram", "1GiB"], ["tyni", "tiny"]),
    (["plan", "--model", "tiny", "--ram", "1GiB", "--dir", "missing"], ["missing"]),
    (["plan", "--model", "gpt2", "--ram", "1GiB", "--context", "2000"], ["2000", "1024"]),
    (["sweep"], ["DIR"]),
    (["sweep", "missing"], ["missing"]),
    (["bench", "kernels", "--filter", "nothing"], ["nothing", "matmul"]),
    (["bench", "spill", "--dir", "missing"], ["missing"]),
    (["bench", "soak", "--dir", "missing"], ["missing"]),
    (["bench", "soak", "--minutes", "0"], ["0", "--minutes"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT, ids=[" ".join(arguments) for arguments, _ in BAD_INPUT])
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(here.rglob("*"))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("spillgrad: ")
    assert printed.err.count("\n") == 1
    assert [word for word in words if word not in printed.err] == []
    assert sorted(here.rglob("*")) == before


def test_a_wrong_choice_is_said_without_words_of_a_library(capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", ".", "--by", "modul"]) == 2
    assert ": 'modul' is not one of 'module', 'op', 'kind', 'dtype', 'step'; see " in (said := capsys.readouterr().err)
    assert "Value error" not in said


@pytest.mark.parametrize("command", ["inspect", "verify", "sweep"])
def test_an_empty_name_is_not_the_current_folder(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, ""]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert "got an empty name; wanted that of a folder or file" in found.err


@pytest.mark.parametrize("command", ["--version", "inspect --help", "cache info"])
def test_output_that_cannot_be_written_is_said_once(command: str, tmp_path: Path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spillgrad_tools", *command.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(PYTHONUNBUFFERED=""),
        )  # fmt: skip
    said = "spillgrad: standard output: No space left on device; free space, or name another place\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("command", ["--help", "inspect kept.jsonl", "verify kept.jsonl", "verify --json kept.jsonl"])
def test_without_standard_output_one_line_says_so(command: str, tmp_path: Path):
    DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl").close()
    closed = ["bash", "-c", '"$@" >&-', "bash", sys.executable, "-m", "spillgrad_tools", *command.split()]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment())
    said = "spillgrad: standard output is closed; lead it to a file, or to /dev/null\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("command", ["--help", "cache info"])
def test_a_pipe_that_nobody_reads_is_left_quietly(command: str, unbuffered: str, tmp_path: Path):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "spillgrad_tools", *command.split()],
            stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(PYTHONUNBUFFERED=unbuffered),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (141, "")


def test_a_name_that_a_terminal_would_obey_is_shown_as_text(capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", "missing\x1b[2J"]) == 2
    assert "missing\\x1b[2J: No such file" in capsys.readouterr().err


@pytest.mark.skipif(not is_ram_disk(Path("/dev/shm")), reason="there is no RAM disk")
def test_a_warning_is_a_line_without_a_place_in_the_source(here: Path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        done = run(*TINY, "--steps", "1", "--ram-budget", "0", "--out", "out", "--spill-dir", place, cwd=here)
    assert done.returncode == 0
    assert done.stderr.startswith(f"spillgrad: warning: preflight: {place}")
    assert done.stderr.endswith("a RAM disk: spilling there frees no memory; pass a directory on a real disk\n")
    assert done.stderr.count("\n") == 1


def test_debug_raises_what_was_wrong(here: Path):
    with pytest.raises(ValueError, match=r"missing\.txt"):
        main(["train", "--data", "missing.txt", "--debug"])


def test_the_debug_variable_does_the_same(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPILLGRAD_DEBUG", "1")
    with pytest.raises(ValueError, match=r"missing\.txt"):
        main(["train", "--data", "missing.txt"])


def test_a_process_says_bad_input_in_one_line_too(here: Path):
    done = run("train", "--data", "missing.txt", cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("spillgrad: data: missing.txt")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["train", "bench", "cache", "sweep", "--debug"]),
        (["train", "-h"], ["--ram-budget", "--resume", "--no-spill", "64MiB", "--report"]),
        (["cache", "--help"], ["info", "warm", "clear"]),
        (["plan", "--help"], ["--model", "--ram", "--offload", "--lora", "--json"]),
        (
            ["inspect", "--help"],
            [
                "PATH",
                "--by",
                "--sort",
                "--top",
                "--tree",
                "--tensor",
                "--slice",
                "--export",
                "--html",
                "--perfetto",
                "--memory-viz",
                "--force",
                "--watch",
                "--json",
            ],
        ),
        (["sweep", "--help"], ["--dry-run", "DIR"]),
        (["bench", "kernels", "--help"], ["--json", "--filter", "--threads", "--rounds"]),
        (["bench", "spill", "--help"], ["--json", "--dir", "--rounds"]),
        (["bench", "soak", "--help"], ["--json", "--dir", "--minutes"]),
    ],
)
def test_help_names_every_option(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert [word for word in words if word not in printed.out] == []
    assert printed.err == ""


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "train" in capsys.readouterr().out


def test_help_is_quick_because_it_loads_neither_numpy_nor_numba_nor_hdf5(tmp_path: Path):
    program = (
        "import sys; from spillgrad_tools.cli import main; main(['--help']);"
        "print('loaded:', *({'numba', 'h5py', 'numpy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.stdout.endswith("loaded:\n")


def test_output_is_plain_away_from_a_terminal(tmp_path: Path):
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("given", "is_frozen"), [("", True), ("[]", False)], ids=["a process", "a function"])
def test_a_process_freezes_what_its_command_imports_and_a_function_nothing(given: str, is_frozen: bool, tmp_path: Path):
    program = (
        "import gc, sys; from spillgrad_tools.cli import main; sys.argv[1:] = ['sweep', '.'];"
        f"main({given and 'sys.argv[1:]'}); print(gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.stdout.endswith(f"True {is_frozen}\n"), done.stderr
