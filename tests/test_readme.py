"""The README tells the truth: its programs and commands run as printed, and its targets exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ALL_PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
# What needs another framework `make test-peers` runs.
FRAMEWORK_PROGRAMS = [program for program in ALL_PROGRAMS if re.search(r"^import (torch|paddle)$", program, re.M)]
PROGRAMS = [program for program in ALL_PROGRAMS if program not in FRAMEWORK_PROGRAMS]
COMMANDS = re.findall(r"^spillgrad .*$", "\n".join(re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)), re.M)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_runs_as_printed(program, tmp_path):
    run_as_printed(program, tmp_path)


def run_as_printed(program, tmp_path, warnings="error"):
    """Run a program, which must print something and, unless told otherwise, warn of nothing."""
    result = subprocess.run(
        [sys.executable, "-W", warnings, "-c", program],
        cwd=tmp_path,
        env=_environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_the_first_program_is_short_enough_to_read():
    lines = [line for line in PROGRAMS[0].splitlines() if line.strip()]
    assert len(lines) <= 15


def test_commands_run_as_printed(tmp_path):
    assert COMMANDS
    for command in COMMANDS:
        name, *arguments = command.split()
        assert name == "spillgrad"
        result = subprocess.run(
            [sys.executable, "-m", "spillgrad_tools", *arguments],
            cwd=tmp_path,
            env=_environment(),
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"{command}\n{result.stderr}"


def test_the_make_targets_it_names_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"train", "test", "lint", "bench"} <= named <= targets


def test_ci_calls_only_what_it_names():
    called = re.findall(r"\bmake ([a-z -]+)", (ROOT / ".ci" / "run").read_text())
    assert called
    assert all(f"make {target}" in README for line in called for target in line.split())


def _environment():
    paths = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "tools")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}
