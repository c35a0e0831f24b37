"""A terminal of a given size with a program in it, and what the program wrote there."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


class Terminal:
    """A program whose standard streams are a terminal of its own."""

    def __init__(self, command: Sequence[str], columns: int, lines: int, cwd: Path, **variables: str) -> None:
        self._master, slave = pty.openpty()
        self._resize_fd(slave, columns, lines)
        self.before = termios.tcgetattr(slave)
        plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        environment = {**plain, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color", **variables}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=environment, start_new_session=True,
            # The terminal's keys become signals only for the session that it controls.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )  # fmt: skip
        self._slave = slave  # kept: its settings are looked at when the program is gone
        self.written = ""

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as who drags a window's corner."""
        self._resize_fd(self._slave, columns, lines)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def wait_for(self, condition: Callable[[str], bool], timeout_s: float = 30) -> str:
        """Return what was written since the last call once `condition` holds for it; fail the test if it does not."""
        text, deadline = "", time.monotonic() + timeout_s
        while not condition(text):
            assert time.monotonic() < deadline, f"the terminal shows {text[-3000:]!r}"
            text += self._read(0.05)
        return text

    def wait_for_words(self, *words: str) -> str:
        """Return what was written since the last call, once all of `words` are in it."""
        return self.wait_for(lambda text: all(word in text for word in words))

    def end(self, timeout_s: float = 30) -> int:
        """Return the exit status of the program, once it ended; its last words are in `written`."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still there: {self.written[-2000:]!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def settings(self) -> list[object]:
        """Return the terminal's settings now."""
        return termios.tcgetattr(self._slave)

    def hang_up(self) -> None:
        """Take the terminal away."""
        for fd in (self._master, self._slave):
            os.close(fd)
        self._master = self._slave = -1

    def close(self) -> None:
        """Take the terminal away, and what still runs in it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._master >= 0:
            self.hang_up()

    def _read(self, timeout_s: float) -> str:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return ""
        text = os.read(self._master, 1 << 16).decode(errors="replace")
        self.written += text
        return text

    @staticmethod
    def _resize_fd(fd: int, columns: int, lines: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextlib.contextmanager
def terminal(
    command: Sequence[str], cwd: Path, columns: int = 80, lines: int = 24, **variables: str
) -> Iterator[Terminal]:
    """Run `command` in a terminal; whatever happens, it is gone afterwards."""
    made = Terminal(command, columns, lines, cwd, **variables)
    try:
        yield made
    finally:
        made.close()
