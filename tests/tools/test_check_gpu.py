"""The script for a machine with a GPU: a part that fails, hangs or crashes is a line of its table, and no more."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spillgrad_kernels.cuda.driver.availability import missing

SCRIPT = Path(__file__).parents[2] / "tools" / "check_gpu.py"


@pytest.fixture(scope="module")
def check_gpu() -> Any:
    spec = importlib.util.spec_from_file_location("check_gpu", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def run(tmp_path: Path, *options: str, **variables: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out"), *options],
        cwd=tmp_path, env={**environment, **variables}, capture_output=True, text=True,
    )  # fmt: skip
    return found.returncode, found.stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="needs the extra cuda")
def test_parts_run_from_anywhere_in_the_simulator(tmp_path: Path):
    status, printed = run(tmp_path, "--quick", "--only", "m", NUMBA_ENABLE_CUDASIM="1")
    table = printed.splitlines()
    assert status == 0, printed
    assert "numba " in printed
    assert [line.split(" | ")[0] for line in table if ": passed" in line or "passed:" in line] == [
        "| machine", "| memory", "| benchmark",
    ]  # fmt: skip
    assert table[-1].startswith("3 of 3 checks passed")
    answer = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    names = [
        line.split(" | ")[0].strip("| ") for line in (tmp_path / "out" / "benchmark.md").read_text().splitlines()[2:]
    ]
    assert names[: len(answer["results"])] == [result["case"] for result in answer["results"]]


@pytest.mark.skipif(missing() is None, reason="there is a device")
def test_without_a_gpu_every_part_says_so(tmp_path: Path):
    status, printed = run(tmp_path, "--quick", "--only", "m", NUMBA_ENABLE_CUDASIM="0")
    assert status == 1
    assert printed.count("| FAILED: ended with status") == 3
    assert "device: got 'cuda'; " in printed


def test_together_the_parts_take_less_than_ten_minutes(check_gpu: Any):
    assert sum(part.limit_s for part in check_gpu.parts(quick=False)) < 600
    assert {part.name for part in check_gpu.parts(quick=True)} < {part.name for part in check_gpu.parts(quick=False)}


def test_a_process_that_hangs_is_ended_with_its_children(check_gpu: Any, tmp_path: Path):
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    log, started = tmp_path / "log", time.monotonic()
    assert check_gpu.execute(["-c", child + "print('begun', flush=True); time.sleep(60)"], log, 1.5) is None
    assert time.monotonic() - started < 20
    assert log.read_text() == "begun\n"
    assert check_gpu.ended(None) == "ran out of time"


@pytest.fixture
def checkout(check_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the checkout."""
    monkeypatch.setattr(check_gpu, "ROOT", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


TESTS = """
import os, pytest
@pytest.mark.parametrize("i", range(6))
def test_right(i): pass
@pytest.mark.parametrize("i", range(2))
def test_wrong(i): assert i == 2
@pytest.mark.skip
def test_left_out(): pass
"""


@pytest.mark.exhaustive
def test_tests_are_counted_and_the_first_failures_named(check_gpu: Any, checkout: Path):
    file = checkout / "test_some.py"
    file.write_text(TESTS)
    outcome = check_gpu.tests(file.name)(checkout / "some.log", 60)
    assert (outcome.passed, outcome.text) == (False, "6 passed, 1 skipped, 2 failed")
    assert len(outcome.lines) == 2
    assert "test_wrong[0] - assert 0 == 2" in outcome.lines[0]
    assert outcome.lines[1] == "and 1 more"


@pytest.mark.exhaustive
def test_a_crash_takes_few_tests_along(check_gpu: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check_gpu, "CORES", 2)
    file = checkout / "test_some.py"
    file.write_text(TESTS + "def test_last(): os._exit(3)\n")
    outcome = check_gpu.tests(file.name)(checkout / "some.log", 60)
    assert not outcome.passed
    assert outcome.text.startswith("5 passed, ")  # the crash took one test along
    assert any("ended with status 3" in line for line in outcome.lines)


@pytest.mark.exhaustive
def test_tests_without_time_are_not_said_to_have_passed(check_gpu: Any, checkout: Path):
    file = checkout / "test_some.py"
    file.write_text("import time\ndef test_slow(): time.sleep(60)\n")
    outcome = check_gpu.tests(file.name)(checkout / "some.log", 4)
    assert not outcome.passed
    assert "ran out of time" in outcome.lines[-1]


def test_no_tests_at_all_are_not_a_success(check_gpu: Any, checkout: Path):
    outcome = check_gpu.tests("none.py")(checkout / "none.log", 30)
    assert (outcome.passed, outcome.text) == (False, "0 passed, 0 skipped, 0 failed")
    assert "collecting the tests ended with status 4" in outcome.lines[0]


def test_losses_that_are_too_far_apart_fail(check_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / check_gpu.HOST_LOSSES).write_text(json.dumps([2.0, 1.0]))
    monkeypatch.setattr(check_gpu, "train", lambda device, spills: [2.0, 1.0005])
    assert "at most 5.0e-04 from the host's" in check_gpu.say_training(tmp_path, True)
    monkeypatch.setattr(check_gpu, "train", lambda device, spills: [2.0, float("nan")])
    with pytest.raises(RuntimeError, match=r"0\.001 is allowed"):
        check_gpu.say_training(tmp_path, True)
