"""The programs and commands that README.md and the pages of docs/ print, and how the tests run them.

A page with {code-cell} blocks is executed when the site is built. On all others each `python` block is a whole program,
and each line of an `sh` block that begins with `spillgrad ` a command.
"""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MADE_AT_BUILD = ("docs/_build/", "docs/benchmarks/", "docs/reference/", "docs/command_line.md")
FRAMEWORKS = ("torch", "paddle", "transformers", "lightning")


class Block(NamedTuple):
    """A program, or the commands of a page."""

    page: str
    line: int
    text: str

    @property
    def frameworks(self) -> set[str]:
        """The frameworks that it imports, which `make test-peers` installs."""
        return set(re.findall(rf"^(?:import|from) ({'|'.join(FRAMEWORKS)})\b", self.text, re.M))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> dict[str, str]:
    """Return the text of README.md and of each page that is not executed at build, by path."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    return {
        path: text
        for path, text in texts.items()
        if not path.startswith(MADE_AT_BUILD) and "{code-cell}" not in text
    }  # fmt: skip


def blocks(language: str) -> list[Block]:
    """Return the blocks of a language on all pages."""
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1])
        for page, text in pages().items()
        for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    ]


def run_program(program: Block, folder: Path, warnings: str = "error") -> None:
    """Run a program, which must print something and, unless told otherwise, warn of nothing."""
    result = _run([sys.executable, "-W", warnings, "-c", program.text], folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def modules_with_examples() -> list[str]:
    """Return the modules whose docstrings have examples."""
    paths = [path for path in sorted((ROOT / "spillgrad").rglob("*.py")) if ">>> " in path.read_text()]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def run_examples(name: str) -> None:
    """Run the examples in the docstrings of a module; each must give what it shows."""
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder()
    tests = finder.find(module, globs={})
    for value_name, value in vars(module).items():  # the finder looks at no instances
        if type(value).__module__ == name and "__doc__" in getattr(value, "__dict__", {}):
            tests += finder.find(value, value_name, module, globs={})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    told: list[str] = []
    for test in tests:
        runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)
    assert runner.tries > 0


def run_command(command: str, folder: Path) -> None:
    """Run a command of the command line, which must end with status 0."""
    name, *arguments = command.split()
    assert name == "spillgrad"
    result = _run([sys.executable, "-m", "spillgrad_tools", *arguments], folder)
    assert result.returncode == 0, f"{command}\n{result.stderr}"


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "tools")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
