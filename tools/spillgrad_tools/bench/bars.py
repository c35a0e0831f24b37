"""Bars: goals that the rows of a benchmark should reach.

A bar judges a mapping of seconds. Its keys are the contenders "ours", "numpy" and "torch", the bar's yardsticks, and
`LIMIT`: the seconds that the processor's arithmetic or memory needs at least.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spillgrad_tools.bench.harness import LIBRARY_NAMES, Measured

# The names of all contenders and yardsticks that our time is compared with.
PEER_NAMES = {**LIBRARY_NAMES, "unspilled": "unspilled", "ours 1 thread": "one thread"}
Seconds = Mapping[str, float]
LIMIT = "limit"
# The share of the limit from which on a row of memory counts as being at the limit.
AT_LIMIT = 0.85


@dataclass(frozen=True)
class Yardstick:
    """A timing for a bar: `library` copies the row's first operand if `copies`, else runs the row with `threads`."""

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
    """The result of a bar: the values `reached` and `wanted`, in the unit that `bar` names.

    `wanted` is the largest allowed value if `most`, else the smallest.
    """

    bar: str
    reached: float
    wanted: float
    most: bool = False
    detail: str = ""

    @property
    def met(self) -> bool:
        """Return whether `reached` satisfies `wanted`."""
        return self.reached <= self.wanted if self.most else self.reached >= self.wanted

    @property
    def measured(self) -> str:
        """Return what was reached, without what is wanted."""
        places = 2 if abs(self.reached) < 10 else 1
        return f"{self.bar} {self.reached:.{places}f}{self.detail}"

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
    """The result of a case: its measured values by name, their unit (s, B, B/s, % or none), and its bars' verdicts."""

    case: str
    unit: str
    measured: Measured
    verdicts: tuple[Verdict, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        bars = [verdict.as_json() for verdict in self.verdicts]
        return {"case": self.case, "unit": self.unit, "measured": self.measured, "bars": bars}


class Bar:
    """A goal for a row. `yardsticks` are further timings that the bar needs, beside those of the contenders."""

    yardsticks: tuple[Yardstick, ...] = ()

    def judge(self, seconds: Seconds) -> Verdict | None:
        """Return the verdict on the row's `seconds`; None if the peer that the bar compares with was not timed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ratio(Bar):
    """The time of a peer or yardstick is at least `least` times ours."""

    peer: str
    least: float
    yardsticks: tuple[Yardstick, ...] = ()

    def __str__(self) -> str:
        return f"{self.least:g} × {PEER_NAMES[self.peer]}"

    def judge(self, seconds: Seconds) -> Verdict | None:
        if self.peer not in seconds:
            return None
        return Verdict(f"× {PEER_NAMES[self.peer]}", seconds[self.peer] / seconds["ours"], self.least)


@dataclass(frozen=True)
class BestPeer(Bar):
    """The time of the fastest peer is at least `least` times ours."""

    least: float = 1.0

    def judge(self, seconds: Seconds) -> Verdict | None:
        peers = [seconds[name] for name in ("numpy", "torch") if name in seconds]
        return Verdict("× best peer", min(peers) / seconds["ours"], self.least) if peers else None


@dataclass(frozen=True)
class OfLimit(Bar):
    """The row has at least the share `least` of the speed that its limit allows."""

    least: float = AT_LIMIT

    def judge(self, seconds: Seconds) -> Verdict | None:
        return Verdict("of limit", seconds[LIMIT] / seconds["ours"], self.least) if LIMIT in seconds else None


@dataclass(frozen=True)
class UnlessAtLimit(Bar):
    """At least `least` times PyTorch's speed, unless PyTorch itself is at the limit: nobody can be much faster then."""

    least: float = 1.5

    def judge(self, seconds: Seconds) -> Verdict | None:
        if seconds.get(LIMIT, 0.0) >= AT_LIMIT * seconds.get("torch", 0.0):
            return None
        return Ratio("torch", self.least).judge(seconds)


# Two threads are at least 1.8 times as fast as one; not judged on another number of threads.
TWO_THREADS = Ratio(ONE_THREAD.name, 1.8, (ONE_THREAD,))


@dataclass(frozen=True)
class ComputeOrCopy(Bar):
    """At least 1.5 × PyTorch's speed if PyTorch takes more than twice as long as its own copy, else 0.95 ×.

    An operation that takes at most twice as long is bound by memory: no library can be much faster than PyTorch.
    """

    yardsticks = (TORCH_COPY,)

    def judge(self, seconds: Seconds) -> Verdict | None:
        is_compute = seconds.get("torch", 0.0) > 2 * seconds.get("torch copy", 0.0)
        return Ratio("torch", 1.5 if is_compute else 0.95).judge(seconds)


@dataclass(frozen=True)
class CopySpeed(Bar):
    """The row moves at least `least` times as many bytes a second as the fastest copy among `yardsticks`.

    `arrays` counts the arrays of `nbytes` that the row reads and writes; a copy reads one and writes one.
    """

    arrays: int
    nbytes: int
    yardsticks: tuple[Yardstick, ...] = (NUMPY_COPY, TORCH_COPY)
    name: str = "× best copy"
    least: float = 0.85

    def __str__(self) -> str:
        return f"{self.least:g} {self.name}"

    def judge(self, seconds: Seconds) -> Verdict | None:
        ours, copy = self.rates(seconds)
        detail = f" ({ours / 1e9:.1f} of {copy / 1e9:.1f} GB/s)"
        return Verdict(self.name, ours / copy, self.least, detail=detail)

    def rates(self, seconds: Seconds) -> tuple[float, float]:
        """Return how many bytes the row moves in a second, and how many the fastest copy moves."""
        copy_s = min(seconds[yardstick.name] for yardstick in self.yardsticks if yardstick.name in seconds)
        return self.arrays * self.nbytes / seconds["ours"], 2 * self.nbytes / copy_s


def device_copy_speed(arrays: int, nbytes: int) -> CopySpeed:
    """Return the bar for a GPU: at least 80 % of the bytes a second that the driver's copy on the device moves."""
    return CopySpeed(arrays, nbytes, (DEVICE_COPY,), "× device copy", 0.8)


@dataclass(frozen=True)
class Microseconds(Bar):
    """Our time is at most `most_us` microseconds; if `beside` names a peer, at most `most_us` more than its time."""

    most_us: float
    beside: str = ""

    def judge(self, seconds: Seconds) -> Verdict | None:
        more = f" more than {PEER_NAMES[self.beside]}" if self.beside else ""
        us = (seconds["ours"] - (seconds[self.beside] if self.beside else 0.0)) * 1e6
        return Verdict(f"µs{more}", us, self.most_us, most=True)
