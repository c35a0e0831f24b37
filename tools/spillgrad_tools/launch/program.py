"""The words that start one process: at first, and again when processes were lost."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.files import checkpoint_directory
from spillgrad_tools.train.best_so_far import has_ended

_FOLDERS = ("--out", "--resume")


def program_of(words: Sequence[str]) -> list[str]:
    """Return the words that start one process. Raises ArgumentError if a named file is missing."""
    first = words[0]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise ArgumentError(f"launch: got {first}, which is no file; name a Python file or a command of spillgrad")
        program = list(words)
    elif first == "-m":
        if len(words) == 1:
            raise ArgumentError("launch: got -m without a module; name one, such as launch -n 2 -- -m package.module")
        program = list(words)
    else:
        program = ["-m", "spillgrad", *words]
    return [sys.executable, "-m", "spillgrad_tools.launch.process", *program]


class Program:
    """A program, which is started with the same words each time; a training goes on from its last checkpoint.

    A training that names no folder gets a new one in runs/, as it would take itself.
    """

    def __init__(self, words: Sequence[str], starts_again: bool = True) -> None:
        self._words = list(words)
        self._out: Path | None = None
        if starts_again and words[0] == "train":
            named = dict(_options(words))
            if not named:
                numbers = (Path("runs") / str(number) for number in itertools.count(1))
                named["--out"] = str(next(folder for folder in numbers if not folder.exists()))
                self._words += ["--out", named["--out"]]
            self._out = Path(named["--out"] if "--out" in named else named["--resume"])
        self._before = self._pointer()

    @property
    def words(self) -> list[str]:
        """What to start now."""
        if self._out is None or not self._has_saved():
            return self._words
        return [*(word for option, word in _with_options(self._words) if not option), "--resume", str(self._out)]

    @property
    def progress(self) -> str:
        """From where the program goes on, in words."""
        if self._out is None or not self._has_saved():
            return "from where it began"
        return f"from the checkpoint of step {self._state()['step']}"

    @property
    def has_ended(self) -> bool:
        """Whether this training has saved its last step, or has ended early.

        Raises CheckpointError for a damaged checkpoint.
        """
        return self._has_saved() and has_ended(self._state())

    def _has_saved(self) -> bool:
        """Whether there is a checkpoint that was not there before."""
        return self._pointer() not in (None, self._before)

    def _pointer(self) -> bytes | None:
        try:
            return None if self._out is None else (self._out / checkpoint_directory.POINTER).read_bytes()
        except OSError:  # none is there yet, or none that can be read, which the program says
            return None

    def _state(self) -> dict[str, Any]:
        assert self._out is not None
        return checkpoint_directory.open_current(self._out)[1]


def _with_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word behind the name of the folder's option that it belongs to, or else an empty name."""
    belongs = ""
    for word in words:
        name, _, value = word.partition("=")
        if belongs:
            yield belongs, word
            belongs = ""
        elif name in _FOLDERS:
            yield name, word
            belongs = "" if value else name
        else:
            yield "", word


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the folders' options and their values."""
    for option, word in _with_options(words):
        if option and word != option:
            yield option, word.removeprefix(f"{option}=")
