"""Read a journal of unknown origin, even while it is being written."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spillgrad.errors import SpillFormatError
from spillgrad.inspection.journal_state import JournalState
from spillgrad.storage.format_version import check_version
from spillgrad.storage.journal.events import AnyEvent, Head
from spillgrad.storage.journal.files import FORMAT_VERSION, is_of, old_path
from spillgrad.storage.runs import file_lock

# Longer than any line of a journal.
LONGEST_BYTES = 4 << 20
_PIECE_BYTES = 256 << 10
# No journal of a store, old file included, is longer. One call reads no more than this; the next call reads the rest.
_READ_MAX_BYTES, _READ_MAX_LINES = 256 << 20, 4_000_000
_MOMENT_S, _PATIENCE = 0.01, 50

_lines = msgspec.json.Decoder(AnyEvent)
_heads = msgspec.json.Decoder(Head)


class JournalReader(contextlib.AbstractContextManager["JournalReader"]):
    """Follows a journal: `read()` adds the lines since the last call to `state`. The first call also reads `old_path`.

    If `directory` is given, a journal that belongs to the run of another directory is ignored.
    Raises OSError if a file cannot be read. Raises SpillFormatError if a file is no journal or is of a newer version.
    """

    def __init__(self, path: Path, state: JournalState | None = None, directory: Path | None = None) -> None:
        self.path = Path(os.path.realpath(path))
        self._directory = directory
        self.head = Head()
        self.state = state or JournalState()
        self._file: _File | None = None
        self._read_bytes = self._read_lines = 0
        self._began: str | None = None
        self._is_over = False  # the path now has the journal of another run
        self.is_others = False  # the path had the journal of another run from the beginning

    def read(self) -> bool:
        """Add the lines written since the last call to `state`; return whether there were any."""
        return any([True for piece in self.pieces() if piece])

    @property
    def is_cut(self) -> bool:
        """Whether the last call stopped early, because the file is longer than a journal can be."""
        return self._read_bytes > _READ_MAX_BYTES or self._read_lines > _READ_MAX_LINES

    def pieces(self) -> Iterator[bool]:
        """Add the lines written since the last call piece by piece; yield for each piece whether it had any lines."""
        self._read_bytes = self._read_lines = 0
        if self._file is None:
            yield from self._begin()
        while self._file is not None and not self._is_over:
            yield from self._read(self._file)
            if self.is_cut or not self._file.was_replaced():
                return
            yield from self._read(self._file)  # lines written just before the file was replaced
            following = self._present()
            self._file.close()
            self._file = following

    @property
    def is_written(self) -> bool:
        """Whether the process that writes the journal lives: that process locks the file that was read last."""
        return self._file is not None and not self._is_over and self._file.is_locked

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> Iterator[bool]:
        self._file = self._present()
        try:
            former = _File(old_path(self.path))
        except FileNotFoundError:
            return
        try:
            # The old file must not be the same file, renamed meanwhile, and must be of the same run.
            if former.identity != self._file.identity and former.is_before(self._file):
                yield from self._read(former)
        finally:
            former.close()

    def _present(self) -> "_File":
        """Open the journal; wait a moment if it is missing because a new file is about to replace it."""
        for _ in range(_PATIENCE):
            with contextlib.suppress(FileNotFoundError):
                return _File(self.path)
            if not old_path(self.path).exists():
                break
            time.sleep(_MOMENT_S)
        return _File(self.path)

    def _read(self, file: "_File") -> Iterator[bool]:
        if not file.begun:
            head = file.head()
            if head is None:
                return
            if self._directory is not None and not is_of(self._directory, head.run):
                self.is_others = self._began is None
                self._is_over = self._is_over or file is self._file
                return
            if file is self._file:
                self._is_over = self._began not in (None, head.began)
                if self._is_over:
                    return
                self._began = head.began
            self.head = head
            file.begun = True
        for lines in file.read():
            self._read_bytes += len(lines)
            before = self._read_lines
            for line in read_lines(lines):
                self.state.add(line)
                self._read_lines += 1
            yield self._read_lines > before
            if self.is_cut:
                return


def head_of(path: Path) -> tuple[Head, bool]:
    """Return the head of a journal, and whether the process that writes the journal lives.

    The head is empty if it is not written yet. Raises the errors of `JournalReader`.
    """
    file = _File(path)
    try:
        return file.head() or Head(), file.is_locked
    finally:
        file.close()


class _File:
    """One file of a journal, opened for reading; it may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise SpillFormatError(f"{path} is no file of a run; name a folder of spill files, or a journal")
        self.identity = found.st_dev, found.st_ino
        self.begun = False  # whether the head was read
        self._fd = fd
        self._head: Head | None = None
        self._rest = b""
        self._skips = False

    def head(self) -> Head | None:
        """Return the head, or None while the first line is incomplete. Raises SpillFormatError if that line is bad."""
        if self._head is not None:
            return self._head
        line, newline, self._rest = os.read(self._fd, _PIECE_BYTES).partition(b"\n")
        if not newline:
            if line and not b'{"format": '.startswith(line[:11]):
                raise self._no_journal()
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._rest = b""
            return None
        head = read_head(line)
        if head is None:
            raise self._no_journal()
        check_version(self._path, head.format, FORMAT_VERSION)
        self._head = head
        return head

    def is_before(self, following: "_File") -> bool:
        """Return whether this file and `following` belong to the same run: their heads are equal."""
        heads = self.head(), following.head()
        return None not in heads and heads[0] == heads[1]

    def _no_journal(self) -> SpillFormatError:
        return SpillFormatError(
            f"{self._path} is no journal of a run; name a folder of spill files, a segment, or a journal"
        )

    def read(self) -> Iterator[bytes]:
        """Yield blocks of whole lines up to the present end of the file."""
        while True:
            found = os.read(self._fd, _PIECE_BYTES)
            data = self._rest + found
            end = data.rfind(b"\n") + 1
            self._rest = data[end:]
            if self._skips and end:
                data, self._skips = data[data.find(b"\n") + 1 :], False
                end = data.rfind(b"\n") + 1
            if len(self._rest) > LONGEST_BYTES:
                self._rest, self._skips = b"", True
                yield b"{\n"  # the overlong line counts as a damaged line
            if end:
                yield data[:end]
            if not found:
                return

    @property
    def is_locked(self) -> bool:
        """Whether the process that writes the file lives and holds its lock."""
        return file_lock.is_locked(self._fd)

    def was_replaced(self) -> bool:
        """Return whether another file has this file's path now."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) != self.identity

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_head(line: bytes) -> Head | None:
    """Decode the head of a journal from its first line; return None if the line is no head."""
    try:
        head = _heads.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if head.format is None else head


def read_lines(data: bytes) -> Iterator[AnyEvent | None]:
    """Decode whole lines and yield their events; yield None for a line that a killed or hostile writer left."""
    try:
        yield from _lines.decode_lines(data)
        return
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # decode one by one, to find the damaged lines
    for text in filter(None, data.split(b"\n")):
        try:
            line: AnyEvent | None = _lines.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            line = None
        yield line
