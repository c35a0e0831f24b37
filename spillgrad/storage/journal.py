"""What a store does, line by line, beside its segments: readable while it runs, and after it was killed.

`FORMAT.md` says what is in it.
"""

import collections
import datetime
import functools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spillgrad.storage.store import NO_LABEL, Label
from spillgrad.storage.versions import check_version

FORMAT_VERSION = 1
JOURNAL_NAME = "journal.jsonl"
OLD_JOURNAL_NAME = "journal-old.jsonl"

# A line takes some 90 bytes; a journal and the one before it cover tens of thousands of arrays.
_FILE_BYTES = 16 << 20
# Lines that wait for so many others before they are written, and for so long.
_BATCH = 256
WRITE_EVERY_S = 0.2


class Journal:
    """Collects lines without a lock; one thread, the store's writer, writes them.

    Nothing depends on the journal: where the disk refuses it, lines are lost, and the journal says how many.
    """

    def __init__(self, directory: Path, with_origin: bool = True) -> None:
        """Make the journal of a run; without `with_origin`, `op`, `slot`, `module` and `step` are null."""
        self._directory = directory
        self._with_origin = with_origin
        self._lines: collections.deque[str] = collections.deque()
        self._began_s = time.perf_counter()
        self._began = datetime.datetime.now(datetime.UTC).isoformat()
        self._fd: int | None = None
        self._size = self._lost = 0

    def note(self, event: str, array: int, values: str = "") -> None:
        """Add a line; `values` is more of its JSON, beginning with a comma."""
        t = time.perf_counter() - self._began_s
        self._lines.append(f'{{"t": {t:.6f}, "event": "{event}", "array": {array}{values}}}\n')

    def pack(self, array: int, nbytes: int, label: Label) -> None:
        """Note that an array came."""
        label = label if self._with_origin else NO_LABEL
        step = "null" if label.step is None else label.step  # not in the cache's key: it is new in every step
        origin = _origin(label.op, label.slot, label.module)
        self.note("pack", array, f', "bytes": {nbytes}, {origin}, "step": {step}')

    def took(self, event: str, array: int, began_s: float, values: str = "") -> None:
        """Note something that began at `began_s` by `time.perf_counter` and ends now."""
        self.note(event, array, f', "took": {time.perf_counter() - began_s:.6f}{values}')

    @property
    def waits(self) -> bool:
        """Whether a line waits to be written."""
        return bool(self._lines)

    @property
    def is_behind(self) -> bool:
        """Whether many lines wait."""
        return len(self._lines) >= _BATCH

    def write(self) -> None:
        """Write what waits. Called by one thread."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            if self._fd is None or self._size > _FILE_BYTES:
                self._begin_file()
            self._append("".join(lines))
        except OSError:
            self._lost += len(lines)
            self.close()

    def close(self) -> None:
        """Close the file; it goes with the run's directory."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _begin_file(self) -> None:
        self.close()
        path = self._directory / JOURNAL_NAME
        if self._size > _FILE_BYTES:
            os.replace(path, self._directory / OLD_JOURNAL_NAME)
            self._size = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if not self._size:
            head = {"format": FORMAT_VERSION, "began": self._began, "process": os.getpid()}
            self._append(json.dumps(head) + "\n")
        if self._lost:
            t = time.perf_counter() - self._began_s
            self._append(f'{{"t": {t:.6f}, "event": "lost", "lines": {self._lost}}}\n')
            self._lost = 0

    def _append(self, text: str) -> None:
        data = text.encode()
        while data:
            written = os.write(self._fd, data)  # type: ignore[arg-type]  # open
            self._size += written
            data = data[written:]


@functools.lru_cache(maxsize=4096)
def _origin(op: str | None, slot: str | None, module: str | None) -> str:
    return json.dumps({"op": op, "slot": slot, "module": module})[1:-1]


def read_journal(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's journal, the older file's first; what was cut off, or is no JSON object, is left out.

    Raises SpillFormatError for a file of a newer version, OSError for one that cannot be read.
    """
    for name in (OLD_JOURNAL_NAME, JOURNAL_NAME):
        try:
            text = (run / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                if "format" in found:
                    check_version(run / name, found["format"], FORMAT_VERSION)
                yield found
