"""Answers longer than the terminal, and those that nobody reads to the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.terminal import terminal

SHOW = """
import sys
import typer
from rich.console import Console
from rich.text import Text
from spillgrad_tools import paged
try:
    lines = (f"line {number} \\u2500" for number in range(int(sys.argv[1])))
    paged.show(Console(), Text("\\n".join(lines), style="red"))
except typer.Exit as error:
    sys.exit(error.exit_code)
"""


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "", **variables}


def test_what_fits_is_printed(tmp_path: Path):
    with terminal(python(SHOW, "20"), tmp_path, lines=24, PAGER="sed s/^/paged/") as shown:
        assert shown.end() == 0
        assert "line 19" in shown.written
        assert "paged" not in shown.written


def test_what_does_not_fit_goes_through_the_users_pager(tmp_path: Path):
    with terminal(python(SHOW, "30"), tmp_path, lines=24, PAGER="sed s/^/paged:/") as shown:
        assert shown.end() == 0
        assert shown.written.count("paged:") == 30


def test_a_pager_that_is_left_at_once_leaves_quietly(tmp_path: Path):
    with terminal(python(SHOW, "20000"), tmp_path, PAGER="true") as shown:
        assert (shown.end(), shown.written) == (0, "")


def test_q_leaves_less(tmp_path: Path):
    with terminal(python(SHOW, "1000"), tmp_path, PAGER="less") as shown:
        text = shown.wait_for_words("line 21", ":")
        assert "line 900" not in text
        assert "\x1b[31m" in text
        shown.type("q")
        assert shown.end() == 0
        assert "Traceback" not in shown.written


def test_colours_are_for_terminals_that_want_them(tmp_path: Path):
    with terminal(python(SHOW, "3"), tmp_path) as shown:
        assert shown.end() == 0
        assert "\x1b[31m" in shown.written
    with terminal(python(SHOW, "3"), tmp_path, NO_COLOR="1") as shown:
        assert shown.end() == 0
        assert "\x1b[31m" not in shown.written


def test_away_from_a_terminal_text_is_plain_and_not_paged():
    done = subprocess.run(python(SHOW, "1000"), capture_output=True, text=True, env=environment(PAGER="true"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"line {number} ─" for number in range(1000)]


def test_what_the_encoding_of_the_output_lacks_becomes_escapes():
    done = subprocess.run(python(SHOW, "1"), capture_output=True, env=environment(PYTHONIOENCODING="ascii"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"line 0 \\u2500\n"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_pipe_that_closes_early_ends_the_command_quietly(tmp_path: Path, unbuffered: str):
    with subprocess.Popen(
        python(SHOW, "20000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
        env=environment(PYTHONUNBUFFERED=unbuffered),
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "line 0 ─\n".encode()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
