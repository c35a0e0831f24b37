"""`spillgrad train --ram`: the command plans, and starts anew in the same process before it trains."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spillgrad.errors import BudgetError
from spillgrad_kernels.jit.cache import CacheInfo
from spillgrad_kernels.memory.system_memory import SystemMemory
from spillgrad_tools import start_anew
from spillgrad_tools.train import within
from tests.waiting import wait_until

TEXT = b"It was the best of times, it was the worst of times. " * 60
ARGUMENTS = ["train", "--data", "text.txt", "--model", "tiny", "--steps", "4", "--batch", "2", "--context", "32"]


def _as_on_a_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # also where these are ignored
        signal.signal(number, signal.SIG_DFL)


def start(here: Path, *options: str) -> "subprocess.Popen[str]":
    (here / "text.txt").write_bytes(TEXT)
    return subprocess.Popen(
        [sys.executable, "-m", "spillgrad_tools", *ARGUMENTS, *options],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=_as_on_a_terminal,
    )


def test_the_command_plans_and_trains_in_one_process_and_prints_the_plan_once(tmp_path: Path):
    process = start(tmp_path, "--ram", "1GiB", "--out", "out", "--save-every", "2")
    printed, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (0, "")
    assert [printed.count(words) for words in ("within 1 GiB of RAM", "the least --ram that works is")] == [1, 1]
    assert printed.count("checkpoint: out") == 1
    peak, unit = re.findall(r"peak RSS +(\S+) (\SiB)", printed)[0]
    assert (float(peak) < 400, unit) == (True, "MiB")


def test_two_plans_agree_on_the_least_memory_and_it_trains(tmp_path: Path):
    told = []
    ram = "1GiB"
    for number in range(3):
        printed, error = start(tmp_path, "--ram", ram, "--out", f"out{number}").communicate(timeout=300)
        assert error == ""
        told.append(int(re.findall(r"the least --ram that works is (\d+) MiB", printed)[0]))
        predicted = float(re.findall(r"predicted: peak (\S+) MiB", printed)[0])
        assert predicted <= (1024 if number == 0 else told[0])
        ram = f"{told[0]}MiB"
    assert max(told) <= 1.03 * min(told)


def test_planning_compiles_all_that_the_run_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def kernels() -> set[Path]:
        return {path for path in (tmp_path / "cache").rglob("*") if path.is_file()}

    plan = [sys.executable, "-m", "spillgrad_tools", "plan", *ARGUMENTS[3:5], *ARGUMENTS[7:], "--ram", "280MiB"]
    subprocess.run(plan, cwd=tmp_path, check=True, capture_output=True)
    compiled = kernels()
    assert len(compiled) > 20
    # The run evaluates, clips, and has the model continue a text.
    printed, error = start(tmp_path, "--ram", "280MiB", "--out", "out", "--eval-every", "2").communicate(timeout=300)
    assert ("held-out loss" in printed, error) == (True, "")
    assert kernels() == compiled
    # The sample of a wider model uses a kernel that none of its steps does.
    wider = ["--model", "small", "--batch", "1", "--context", "16", "--ram", "700MiB"]
    subprocess.run([*plan[:4], *wider], cwd=tmp_path, check=True, capture_output=True)
    assert (more := kernels()) > compiled
    start(tmp_path, *wider, "--out", "wider").communicate(timeout=300)
    assert (tmp_path / "wider").exists()
    assert kernels() == more


def test_a_first_run_that_has_no_memory_to_compile_in_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def require(files: int, available_mib: int) -> None:
        found = CacheInfo(tmp_path, True, files, 0, 0, 0)
        monkeypatch.setattr(within.cache, "info", lambda: found)
        memory = SystemMemory(available_mib << 20, 1 << 40)
        monkeypatch.setattr(within, "system_memory", lambda: memory)
        within._require_room_to_compile()

    require(files=1, available_mib=1)
    require(files=0, available_mib=1 << 10)
    with pytest.raises(BudgetError, match=r"the first run compiles kernels, which takes .*; run it once where"):
        require(files=0, available_mib=1)


def test_formats_that_were_asked_for_are_planned_say_what_they_cost_and_stay_when_the_run_goes_on(tmp_path: Path):
    formats = ("--autocast", "--master", "none", "--state", "int8")
    printed, error = start(tmp_path, "--ram", "1GiB", "--out", "out", *formats).communicate(timeout=300)
    assert error == ""
    for words in ("state int8: after 240 steps", "master none: after 240 steps", "checkpoint: out"):
        assert words in printed
    again = ("--resume", "out", "--steps", "6", "--ram", "1GiB")
    printed, error = start(tmp_path, *again).communicate(timeout=300)
    assert error == ""
    assert "master none: after 240 steps" in printed
    refused, error = start(tmp_path, *again[:2], "--steps", "8", "--ram", "1GiB", "--lossy").communicate(timeout=300)
    assert (refused, error.count("\n")) == ("", 1)
    assert "--lossy with --resume, whose run keeps the formats that it has" in error


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)])
def test_a_signal_while_it_plans_ends_it_without_a_trace(number: signal.Signals, status: int, tmp_path: Path):
    process = start(tmp_path, "--ram", "1GiB", "--out", "out")
    wait_until(lambda: any((tmp_path / "out").glob("plan-*")), 120)
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == status
    assert [each.name for each in tmp_path.iterdir()] == ["text.txt"]


def test_a_folder_that_another_training_writes_to_is_refused_before_a_plan(tmp_path: Path):
    first = start(tmp_path, "--steps", "100000", "--out", "out", "--no-spill")
    try:
        wait_until(lambda: (tmp_path / "out").is_dir(), 120)
        refused = start(tmp_path, "--ram", "1GiB", "--out", "out")
        printed, error = refused.communicate(timeout=120)
        assert (refused.returncode, printed, error.count("\n")) == (2, "", 1)
        assert "another training is writing to out" in error
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=120)


def test_what_another_process_was_handed_is_not_taken_and_goes_no_further(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPILLGRAD_HANDED_OVER", f'[{os.getpid() + 1}, {{"ram_bytes": 1}}]')
    assert start_anew.handed_over() == {}
    assert "SPILLGRAD_HANDED_OVER" not in os.environ
    monkeypatch.setenv("SPILLGRAD_HANDED_OVER", f'[{os.getpid()}, {{"ram_bytes": 1}}]')
    assert start_anew.handed_over() == {"ram_bytes": 1}
    assert start_anew.handed_over() == {}
