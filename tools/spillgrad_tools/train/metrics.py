"""The metrics of a run in files: JSON lines, and event files for TensorBoard where tensorboardX is installed."""

import collections
import errno
import json
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad_tools.train.training import Evaluation, StepRecord

NAME = "metrics.jsonl"
# The most lines that wait for room on a full disk; older ones are dropped then.
_MOST_WAITING = 10_000


class Metrics:
    """Writes a line for each step and each evaluation to `metrics.jsonl` in a folder, and the same for TensorBoard.

    A run that goes on from step `first_step` continues the file, without the lines of later steps. A new run moves a
    file that is there to `metrics-1.jsonl`, or the next number. Nothing that happens to the disk stops the run: `say`
    is called with a line, and what could not be written is written when there is room again.
    Without a folder, nothing is written.
    Raises ArgumentError if the folder cannot be written, or if the file to continue has no lines of metrics.
    """

    def __init__(self, folder: Path | None, first_step: int, say: Callable[[str], None]) -> None:
        self._lines: _Appended | None = None
        self._events: _Events | None = None
        if folder is None:
            return
        path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            moved = _continue(path, first_step)
            self._lines = _Appended(path, say)
            self._events = _Events.begin(folder, first_step, say)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ArgumentError(f"train: --log-dir {folder} cannot be written ({reason}); name another") from error
        also = " and TensorBoard's event files" if self._events else (
            "; for TensorBoard's event files, too: pip install 'spillgrad[tensorboard]'"
        )  # fmt: skip
        say(f"metrics: {path}{also}")
        if moved is not None:
            say(f"metrics of a former run are in {moved} now")

    def stepped(self, record: StepRecord) -> None:
        """Write a step's line."""
        self._write("train", {
            "step": record.step, "loss": record.loss, "lr": record.lr, "grad_norm": record.grad_norm,
            "tokens": record.tokens, "tokens_per_s": record.tokens_per_s, "seconds": record.duration_s,
            "rss_bytes": record.rss_bytes, "written_bytes": record.written_bytes, "read_bytes": record.read_bytes,
            "stored_bytes": record.stored_bytes, "fetched_bytes": record.fetched_bytes,
            "waited_share": record.wait_share,
        })  # fmt: skip

    def evaluated(self, step: int, found: Evaluation, seconds: float) -> None:
        """Write an evaluation's line."""
        numbers = {"held_out_loss": found.loss, "batches": found.batches, "seconds": seconds}
        self._write("evaluation", {"step": step, **numbers})

    def _write(self, what: str, numbers: dict[str, Any]) -> None:
        if self._lines is None:
            return
        # JSON has no word for numbers that are not finite.
        known = {name: None if value is None or not math.isfinite(value) else value for name, value in numbers.items()}
        self._lines.append(json.dumps(known).encode() + b"\n")
        if self._events is not None:
            self._events.append(numbers["step"], {
                f"{what}/{name}": value for name, value in known.items() if name != "step" and value is not None
            })  # fmt: skip


class _Appended:
    """A file that grows by whole pieces, each in one write: after a kill it ends with the last one."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._waiting: collections.deque[bytes] = collections.deque(maxlen=_MOST_WAITING)
        self._fails = False
        with path.open("ab"):  # raises before the run begins
            pass

    def append(self, piece: bytes) -> None:
        """Append a piece, after those that wait; if the disk refuses, it waits, too, and the first time a line says so.

        The file is opened each time, so that it need not be closed, and may be moved meanwhile.
        """
        self._waiting.append(piece)
        try:
            with self._path.open("ab", buffering=0) as file:
                while self._waiting:
                    end = file.seek(0, os.SEEK_END)
                    try:
                        if file.write(self._waiting[0]) != len(self._waiting[0]):
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    except OSError:
                        file.truncate(end)
                        raise
                    self._waiting.popleft()
        except OSError as error:
            if not self._fails:
                reason = error.strerror or str(error)
                self._say(f"metrics: {self._path} cannot be written ({reason}). Training goes on; free space there")
            self._fails = True
        else:
            self._fails = False


class _Events:
    """An event file of TensorBoard's, in which each record is an `Event`.

    Source: TensorFlow's `tfrecord` format: length, its checksum, the record, its checksum.
    """

    def __init__(self, file: _Appended, event: Callable[..., Any], checksum: Callable[[bytes], int]) -> None:
        self._file, self._event, self._checksum = file, event, checksum

    @classmethod
    def begin(cls, folder: Path, first_step: int, say: Callable[[str], None]) -> "_Events | None":
        """Begin a file of a run that goes on from step `first_step`; return None without tensorboardX."""
        try:
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.record_writer import masked_crc32c
        except ImportError:
            return None
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        free = (folder / (name + (f".{number}" if number else "")) for number in range(1_000_000))
        events = cls(_Appended(next(path for path in free if not path.exists()), say), Event, masked_crc32c)
        events._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        # TensorBoard then leaves out what earlier files say of later steps.
        session = SessionLog(status=SessionLog.START)
        events._write(Event(wall_time=time.time(), step=first_step + 1, session_log=session))
        return events

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        """Append numbers of a step by their tags."""
        values = [{"tag": tag, "simple_value": value} for tag, value in numbers.items()]
        self._write(self._event(wall_time=time.time(), step=step, summary={"value": values}))

    def _write(self, event: Any) -> None:
        record = event.SerializeToString()
        length = struct.pack("<Q", len(record))
        ends = (struct.pack("<I", self._checksum(part)) for part in (length, record))
        self._file.append(length + next(ends) + record + next(ends))


def _continue(path: Path, first_step: int) -> Path | None:
    """Cut the lines of steps after `first_step`; if there is none before, move the file, and return where it is now.

    Raises ArgumentError if a line, but for the last one, which a kill may have cut, has no step.
    """
    if not path.exists():
        return None
    if first_step == 0:
        if not path.stat().st_size:
            return None
        number = 1
        while (moved := path.with_name(f"metrics-{number}.jsonl")).exists():
            number += 1
        return path.rename(moved)
    with path.open("r+b") as file:
        end, torn = 0, None
        for number, line in enumerate(file, 1):
            if torn is not None:
                raise ArgumentError(
                    f"train: {path} has no metrics of a run in line {torn}; remove it, or name another --log-dir"
                )
            step = _step_of(line)
            if step is None:
                torn = number
            elif step > first_step:
                break
            else:
                end += len(line)
        file.truncate(end)
    return None


def _step_of(line: bytes) -> int | None:
    try:
        step = json.loads(line)["step"] if line.endswith(b"\n") else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return step if type(step) is int else None
