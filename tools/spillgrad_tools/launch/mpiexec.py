"""Run mpiexec, pass on what it prints, and stop what it has started when this process is asked to stop."""

import contextlib
import dataclasses
import io
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, Any

import psutil

from spillgrad_tools.launch.banners import OURS, Seen, without_banners
from spillgrad_tools.launch.placement import Lost
from spillgrad_tools.launch.process import end_with_parent

# The status of a program that has failed and said why: it ends the others itself.
_FAILED = 1
# How long mpiexec may take to end when a process is known to be lost, and how often this is looked at. Open MPI's waits
# for a machine that does not answer.
_ENDS_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.5
_STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How the processes have ended: mpiexec's exit status, and the processes that were lost."""

    status: int
    lost: Sequence[Lost]
    was_interrupted: bool

    @property
    def may_go_on(self) -> bool:
        """Whether processes, or mpiexec itself, were lost; otherwise a program has ended by its own fault."""
        return bool(self.lost) or self.status < 0


class Mpiexec:
    """Context manager for runs of mpiexec, one after the other, which the signals of this process reach in this way.

    Ctrl-C and SIGTERM become SIGUSR1, which both MPIs pass on to the programs: those save, and end. What mpiexec itself
    does at Ctrl-C is too short for that, so it has a session of its own, which the terminal's Ctrl-C does not reach. A
    second signal ends all at once. When this process is killed, mpiexec is, too, and then the programs.
    """

    def __init__(self) -> None:
        self._started: subprocess.Popen[bytes] | None = None
        self._signals = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "Mpiexec":
        self._former = {number: signal.signal(number, self._stop) for number in _STOPS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def run(self, command: Sequence[str], environment: Mapping[str, str], captures_output: bool) -> Ending:
        """Run mpiexec to its end. With `captures_output`, its banners come with the programs' output."""
        seen = Seen()
        told: list[str] = []
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE if captures_output else None, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=end_with_parent,
        ) as started:  # fmt: skip
            self._started = started
            if self._signals:  # one came while none ran
                _kill(started)
            assert started.stderr is not None
            with contextlib.ExitStack() as copies:
                copies.enter_context(_ended_after_losses(started, seen))
                if started.stdout is not None:
                    copies.enter_context(_running(_copy, started.stdout, sys.stdout, seen, told))
                _copy(started.stderr, sys.stderr, seen, told)
                started.wait()
        self._started = None
        return self._ending(started.returncode, seen, bool(told))

    def _ending(self, status: int, seen: Seen, has_told: bool) -> Ending:
        lost = list({each.rank: each for each in reversed(seen.lost)}.values())  # of a rank, what was said first
        if self._signals or status == 0:
            return Ending(status, lost, was_interrupted=self._signals > 0)
        if not lost and seen.missed and status != _FAILED:
            lost = [max(seen.missed, key=lambda each: each.host or "")]
            _say(f"a process{f' on {lost[0].host}' if lost[0].host else ''} was lost; probably it was killed")
        elif not has_told:
            words = "and said nothing; probably one was killed, for want of memory or from outside"
            _say(f"the processes ended with status {status}, {words}")
        return Ending(status, lost, was_interrupted=False)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._started is not None:
            if self._signals == 1:
                self._started.send_signal(signal.SIGUSR1)
            else:
                _kill(self._started)


def _kill(started: "subprocess.Popen[bytes]") -> None:
    """Kill mpiexec and what it has started on this machine, which holds the ends of the pipes, too."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
        for process in (mpiexec := psutil.Process(started.pid), *mpiexec.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def _ended_after_losses(started: "subprocess.Popen[bytes]", seen: Seen) -> Iterator[None]:
    """Context manager: kill mpiexec if it goes on although a process is known to be lost."""
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(_LOOK_EVERY_S):
            is_known = bool(seen.lost or seen.missed)
            if is_known and not has_ended.wait(_ENDS_WITHIN_S) and started.poll() is None:
                _kill(started)
                return

    with _running(watch):
        try:
            yield
        finally:
            has_ended.set()


@contextlib.contextmanager
def _running(work: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Context manager: do some work in a thread meanwhile, and wait for its end."""
    thread = threading.Thread(target=work, args=arguments, name="spillgrad-launch")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _copy(source: IO[bytes], target: Any, seen: Seen, told: list[str]) -> None:
    """Copy lines without banners, and note what has told something of the end; what replaces banners goes to stderr.

    Lines end as they do: a progress bar returns to its beginning.
    """
    lines = io.TextIOWrapper(source, "utf-8", "surrogateescape", newline="")
    for line in without_banners(lines, seen):
        is_ours = line.startswith(OURS)
        stream = sys.stderr if is_ours else target
        if stream is sys.stderr:
            told.append(line)
        try:
            stream.buffer.write(line.encode("utf-8", "surrogateescape"))
            stream.flush()
        except BrokenPipeError:  # nobody reads: mpiexec learns it when it writes
            lines.close()
            return


def _say(told: str) -> None:
    print(f"{OURS}{told}", file=sys.stderr, flush=True)
