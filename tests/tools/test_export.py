"""`spillgrad export`: what it prints, and what it leaves after a full disk, Ctrl-C and a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import spillgrad as sg
from spillgrad_tools.cli import main
from tests.storage.test_disk_store import in_own_mounts


def make_run(folder: Path, **sizes: int) -> Path:
    """Save a model with adapters, as `spillgrad train` does; return the folder."""
    model = sg.nn.lora(sg.models.build("llama-tiny", **sizes), rank=2)
    sg.save_checkpoint(folder, model)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def test_a_line_says_what_was_written(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", str(run), "--to", str(tmp_path / "merged"), "--merge", "--dtype", "bfloat16"]) == 0
    assert main(["export", str(run), "--to", str(tmp_path / "model.gguf"), "--dtype", "q8_0"]) == 0
    folder, file = capsys.readouterr().out.splitlines()
    assert folder.startswith("Wrote ") and folder.endswith(f"to {tmp_path}/merged: config.json, model.safetensors.")
    assert file.startswith("Wrote ") and file.endswith(f"to {tmp_path}/model.gguf: model.gguf.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--to", "place"], "nowhere does not exist"),
        (["run"], "Missing option '--to'"),
        (["run", "--to", "place"], "merge them, or name the base with weights"),
        (["run", "--to", "place", "--merge", "--dtype", "q8_0"], "files of the format gguf alone"),
        (["run", "--to", "model.gguf", "--format", "peft"], "wanted the name of a folder"),
        (["run", "--to", "other", "--merge"], "holds notes, which no export writes"),
        (["other", "--to", "place"], "other holds neither, wanted model.safetensors"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    before = content(tmp_path)
    assert main(["export", *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1 and said in found.err
    assert content(tmp_path) == before and sorted(os.listdir(tmp_path)) == ["other", "run"]


def export_in_process(folder: Path, before: str = "", *place: str) -> subprocess.CompletedProcess[str]:
    """Export the run of a folder to a folder and a file of it, in another process that runs a program before."""
    program = f"""
import resource, signal, sys
from spillgrad_tools.cli import main
{before}
statuses = [
    main(["export", "run", "--to", "merged", "--merge"]), main(["export", "run", "--to", "model.gguf"]),
]
print(statuses)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*place, sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


LIMIT = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
"""


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path, run: Path):
    assert export_in_process(tmp_path).stdout.endswith("[0, 0]\n")
    before = content(tmp_path)
    make_run(run, num_hidden_layers=3)
    new = content(tmp_path)
    ended = export_in_process(tmp_path, LIMIT)
    assert ended.stdout == "[2, 2]\n"
    first, second = ended.stderr.splitlines()
    assert first == (
        f"spillgrad: export: {tmp_path}/merged cannot be written (File too large); free space there, or name another "
        "place"
    )
    assert second == first.replace("merged", "model.gguf")
    assert content(tmp_path) == new
    assert {name: new[name] for name in ("merged/model.safetensors", "model.gguf")}.items() <= before.items()
    assert export_in_process(tmp_path).stdout.endswith("[0, 0]\n")
    assert content(tmp_path)["model.gguf"] != before["model.gguf"]


def test_a_full_file_system_is_seen_before_anything_is_written(tmp_path: Path):
    place = tmp_path / "small"
    place.mkdir()
    make_run(tmp_path / "run")
    ended = export_in_process(place, COPY, *in_own_mounts(place, 1800))
    assert ended.stdout == "[2, 2]\n"
    for line in ended.stderr.splitlines():
        assert "are free there; free space, or name another place" in line


COPY = """
import os, shutil
os.chdir(os.getcwd())  # into the file system that is mounted there
shutil.copytree("../run", "run")
"""
# Someone else fills the disk after its free space was looked at.
FILL = """
def fill(frame, event, value):
    if event == "call" and frame.f_code.co_name in ("write_tensors", "_encoded") and not os.path.exists("filler"):
        with open("filler", "wb") as file:
            file.write(bytes(shutil.disk_usage(".").free))
sys.setprofile(fill)
import atexit
atexit.register(lambda: print(sorted(os.listdir("."))))
"""


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(tmp_path: Path):
    place = tmp_path / "small"
    place.mkdir()
    make_run(tmp_path / "run")
    ended = export_in_process(place, COPY + FILL, *in_own_mounts(place, 4000))
    assert ended.stdout == "[2, 2]\n['filler', 'run']\n", ended.stderr
    first, second = ended.stderr.splitlines()
    assert first.endswith("merged cannot be written (No space left on device); free space there, or name another place")
    assert "are free there" in second or "No space left on device" in second


FILES = ("replacement.py", "exporting.py", "safetensors_io.py")


def at_call(number: int, action: Callable[[], object]) -> Callable[[FrameType, str, object], None]:
    """Return a profiler that does something at a call of a function that exports or writes files."""
    calls = 0

    def profile(frame: FrameType, event: str, value: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.endswith(FILES):
            calls += 1
            if calls == number:
                action()

    return profile


@pytest.mark.parametrize("number", range(1, 120, 11))
def test_ctrl_c_at_any_moment_leaves_the_old_or_the_new(
    number: int, tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["export", str(run), "--to", str(tmp_path / "merged"), "--merge"]
    assert main(arguments) == 0
    old = content(tmp_path / "merged")
    make_run(run, num_hidden_layers=3)
    capsys.readouterr()
    sys.setprofile(at_call(number, lambda: signal.raise_signal(signal.SIGINT)))
    try:
        status = main(arguments)
    finally:
        sys.setprofile(None)
    found = content(tmp_path / "merged")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert sorted(os.listdir(tmp_path)) == ["merged", "run"]
    assert main(arguments) == 0
    new = content(tmp_path / "merged")
    assert new != old
    if status == 130:
        assert printed.out == "Interrupted; nothing is half written.\n" and found in (old, new)
    else:
        assert status == 0 and found == new


KILL = """
import os
calls = 0
def profile(frame, event, value):
    global calls
    if event == "call" and frame.f_code.co_filename.endswith({files}):
        calls += 1
        if calls == {number}:
            os.kill(os.getpid(), signal.SIGKILL)
sys.setprofile(profile)
"""


@pytest.mark.parametrize("number", [60, 100])
def test_after_a_kill_the_former_export_is_there_and_the_next_one_tidies_up(number: int, tmp_path: Path, run: Path):
    assert export_in_process(tmp_path).stdout.endswith("[0, 0]\n")
    old = content(tmp_path / "merged")
    make_run(run, num_hidden_layers=3)
    killed = export_in_process(tmp_path, KILL.format(number=number, files=FILES))
    assert killed.returncode == -signal.SIGKILL
    left = content(tmp_path / "merged")
    assert left == old or sg.models.from_safetensors(tmp_path / "merged").config.num_hidden_layers == 3
    assert export_in_process(tmp_path).stdout.endswith("[0, 0]\n")
    assert sorted(os.listdir(tmp_path)) == ["merged", "model.gguf", "run"]
    assert sg.models.from_safetensors(tmp_path / "merged").config.num_hidden_layers == 3
