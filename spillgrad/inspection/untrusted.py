"""Read the structure of an HDF5 file of unknown origin in a child process, never in this process."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spillgrad.errors import SpillError
from spillgrad.inspection.printable import printable
from spillgrad.storage.runs.run_directory import is_segment

# Processor time: seconds for a file of any size, bytes of the file for each further second, and the most seconds.
_SECONDS, _BYTES_PER_S, _MOST_SECONDS = 30, 4 << 20, 600  # 100,000 datasets take 10 s
# Wall-clock time allowed for each second of processor time: on a busy machine, the child gets only a part of it.
_WALL_PER_CPU = 3
_MOST_ANSWER_BYTES = 128 << 20
_HEAD_BYTES = 4096
_PATH_LENGTH, _REASON_LENGTH = 4096, 1000
DAMAGED = "HDF5 damaged the memory of its process"
_CHILD = Path(__file__).with_name("hdf5_child.py")
# With site packages, the interpreter would load at every start whatever their .pth files ask for.
_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
)
_ENVIRONMENT = {
    "HDF5_PLUGIN_PRELOAD": "::",  # HDF5 loads no filter from a library
    "HDF5_USE_FILE_LOCKING": "FALSE",
    "OPENBLAS_NUM_THREADS": "1",  # each thread's stack would count
    "LIBC_FATAL_STDERR_": "1",  # a crash writes nothing to the terminal
}


class UntrustedReader(contextlib.AbstractContextManager["UntrustedReader"]):
    """Reads files in a child process, in which HDF5 may crash, hang or fill the memory; then a new child is started.

    The first question starts the child, and leaving the context ends it. Only one thread may use the reader.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self.peak_bytes = 0  # the peak memory of the child, if it lived to report it

    def __exit__(self, *exception: object) -> None:
        self._end()

    def structure(self, path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
        """Yield the lines of `hdf5_child.Walk` about each object in a file, and last a line with `left_out`.

        Raises SpillError if HDF5 cannot read the file. Raises OSError if the file cannot be opened.
        """
        path = os.fspath(path)
        size = os.stat(path).st_size
        seconds = min(_SECONDS + size // _BYTES_PER_S, _MOST_SECONDS)
        whole = False
        try:
            for text in self._answer(path, seconds):
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    line = None
                if not isinstance(line, dict):
                    raise refusal(path, DAMAGED)
                if "refused" in line:
                    whole = True
                    if is_unflushed(path):
                        raise SpillError(
                            f"{printable(path, _PATH_LENGTH)} was never flushed: it does not say yet what is in it; "
                            "inspect the folder of its run, whose journal does"
                        )
                    raise refusal(path, str(line["refused"]), line.get("errno"))
                if "end" in line:
                    whole = True
                    self.peak_bytes = max(self.peak_bytes, int(line["end"]["peak_bytes"]))
                    yield {"left_out": int(line["end"]["left_out"])}
                    return
                yield line
        finally:
            if not whole:
                self._end()

    def _answer(self, path: str, seconds: int) -> Iterator[bytes]:
        child = self._started()
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps({"path": os.path.abspath(path), "seconds": seconds}).encode() + b"\n")
        except BrokenPipeError:
            raise self._died(path) from None
        output = child.stdout.fileno()
        poll = select.poll()  # takes descriptors beyond 1023, too
        poll.register(output, select.POLLIN)
        patience_s, nbytes, rest = float(seconds * _WALL_PER_CPU), 0, b""
        while True:
            began = time.monotonic()
            ready = poll.poll(max(0.0, patience_s) * 1000)
            patience_s -= time.monotonic() - began  # the time of the caller does not count
            if not ready:
                raise refusal(path, f"HDF5 took more than {seconds * _WALL_PER_CPU} s")
            data = os.read(output, 1 << 16)
            if not data:
                raise self._died(path)
            nbytes += len(data)
            if nbytes > _MOST_ANSWER_BYTES:
                raise refusal(path, f"its structure is more than {_MOST_ANSWER_BYTES >> 20} MiB")
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            places = json.dumps([os.path.abspath(place) for place in sys.path])
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, places, str(_CHILD)],
                bufsize=0,  # closing the pipe must not send again a question that a dead process did not read
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                cwd="/",
                start_new_session=True,  # only this process handles Ctrl-C
            )
        return self._child

    def _died(self, path: str) -> OSError:
        assert self._child is not None
        status = self._child.wait()
        if status == -signal.SIGXCPU:
            return refusal(path, "HDF5 took too much time")
        if status < 0:
            return refusal(path, f"HDF5 crashed on it ({signal.Signals(-status).name})")
        return refusal(path, f"the process that reads it ended with status {status}")

    def _end(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


def is_unflushed(path: str | os.PathLike[str]) -> bool:
    """Return whether a segment was never flushed, because its run goes on or was killed early.

    The first 4 KiB of such a file hold only zeros. Raises OSError if the file cannot be read.
    """
    if not is_segment(os.path.basename(path)) or not os.path.isfile(path):
        return False
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        return not file.read(_HEAD_BYTES).strip(b"\0")


def refusal(path: str, reason: str, number: int | None = None) -> OSError:
    """Return the error for an unreadable file: an OSError if the errno `number` is given, else a SpillError."""
    if number is not None:
        return OSError(number, os.strerror(number), path)
    return SpillError(
        f"{printable(path, _PATH_LENGTH)} cannot be read as HDF5: {printable(reason, _REASON_LENGTH)}; "
        "it is damaged, or no segment of a spill store: check its disk, or name another file"
    )
