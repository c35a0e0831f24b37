"""Bars that a measured row should reach; each judges the contenders' seconds.

Seconds are by contender: "ours", "numpy", "torch", and the yardsticks a bar asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from spillgrad_tools.bench.harness import LIBRARY_NAMES, Measured

# Names of all that times are compared with.
PEER_NAMES = {**LIBRARY_NAMES, "unspilled": "unspilled"}
Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Yardstick:
    """A further timing beside a row's own: `library` copies the first operand, or runs the row on `threads` threads."""

    name: str
    library: str
    copies: bool = False
    threads: int | None = None


NUMPY_COPY = Yardstick("numpy copy", "numpy", copies=True)
TORCH_COPY = Yardstick("torch copy", "torch", copies=True)
ONE_THREAD = Yardstick("ours 1 thread", "ours", threads=1)
DEVICE_COPY = Yardstick("device copy", "ours", copies=True)


@dataclass(frozen=True)
class Verdict:
    """The value reached and the value wanted; `most` says that less is better. Units: × the peer, or microseconds."""

    bar: str
    reached: float
    wanted: float
    most: bool = False
    detail: str = ""

    @property
    def met(self) -> bool:
        """Return whether the bar was reached."""
        return self.reached <= self.wanted if self.most else self.reached >= self.wanted

    def __str__(self) -> str:
        places = 2 if abs(self.reached) < 10 else 1
        missing = f" {self.reached / self.wanted - 1:+.0%}" if self.wanted else ""
        mark = "✓" if self.met else f"✗{missing}"
        return f"{self.bar} {self.reached:.{places}f} / {self.wanted:g} {mark}{self.detail}"

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        plain = {"bar": self.bar, "reached": self.reached, "wanted": self.wanted, "met": self.met}
        return {**plain, "detail": self.detail.strip(" ()")} if self.detail else plain


@dataclass(frozen=True)
class Row:
    """Measured values by name, in `unit` (s, B, B/s, % or none), and the verdicts of their bars."""

    case: str
    unit: str
    measured: Measured
    verdicts: tuple[Verdict, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        bars = [verdict.as_json() for verdict in self.verdicts]
        return {"case": self.case, "unit": self.unit, "measured": self.measured, "bars": bars}


class Bar:
    """Something to reach. `yardsticks` are the timings it needs beside the row's own."""

    yardsticks: ClassVar[tuple[Yardstick, ...]] = ()

    def judge(self, seconds: Seconds) -> Verdict | None:
        """Return what was reached, or None where the peer it compares with was not timed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ratio(Bar):
    """The peer's time is at least `least` times ours."""

    peer: str
    least: float

    def __str__(self) -> str:
        return f"{self.least:g} × {PEER_NAMES[self.peer]}"

    def judge(self, seconds: Seconds) -> Verdict | None:
        if self.peer not in seconds:
            return None
        return Verdict(f"× {PEER_NAMES[self.peer]}", seconds[self.peer] / seconds["ours"], self.least)


@dataclass(frozen=True)
class ComputeOrCopy(Bar):
    """At least 1.5 times PyTorch where it takes more than twice as long as its own copy, else 0.95 times.

    Below that its time is the memory's, and there is nothing left to win.
    """

    yardsticks = (TORCH_COPY,)

    def judge(self, seconds: Seconds) -> Verdict | None:
        is_compute = seconds.get("torch", 0.0) > 2 * seconds.get("torch copy", 0.0)
        return Ratio("torch", 1.5 if is_compute else 0.95).judge(seconds)


@dataclass(frozen=True)
class CopySpeed(Bar):
    """Bytes read and written a second are at least 85 % of the better of NumPy's and PyTorch's copy.

    `arrays` is how many arrays of `nbytes` the row reads and writes; a copy reads one and writes one.
    """

    arrays: int
    nbytes: int
    yardsticks: ClassVar[tuple[Yardstick, ...]] = (NUMPY_COPY, TORCH_COPY)
    name: ClassVar[str] = "× best copy"
    least: ClassVar[float] = 0.85

    def __str__(self) -> str:
        return f"{self.least:g} {self.name}"

    def judge(self, seconds: Seconds) -> Verdict | None:
        copy_s = min(seconds[yardstick.name] for yardstick in self.yardsticks if yardstick.name in seconds)
        rates = self.arrays * self.nbytes / seconds["ours"] / 1e9, 2 * self.nbytes / copy_s / 1e9
        detail = f" ({rates[0]:.1f} of {rates[1]:.1f} GB/s)"
        return Verdict(self.name, self.arrays / 2 * copy_s / seconds["ours"], self.least, detail=detail)


@dataclass(frozen=True)
class DeviceCopySpeed(CopySpeed):
    """Bytes read and written a second are at least 80 % of those of the driver's copy on the device."""

    yardsticks = (DEVICE_COPY,)
    name = "× device copy"
    least = 0.8


@dataclass(frozen=True)
class Microseconds(Bar):
    """We take at most `most_us` microseconds, or so many more than the peer `beside`."""

    most_us: float
    beside: str = ""

    def judge(self, seconds: Seconds) -> Verdict | None:
        more = f" more than {PEER_NAMES[self.beside]}" if self.beside else ""
        us = (seconds["ours"] - (seconds[self.beside] if self.beside else 0.0)) * 1e6
        return Verdict(f"µs{more}", us, self.most_us, most=True)


@dataclass(frozen=True)
class TwoThreads(Bar):
    """Two threads are at least 1.8 times as fast as one; not judged on another number of threads."""

    yardsticks = (ONE_THREAD,)

    def judge(self, seconds: Seconds) -> Verdict | None:
        if ONE_THREAD.name not in seconds:
            return None
        return Verdict("× one thread", seconds[ONE_THREAD.name] / seconds["ours"], 1.8)
