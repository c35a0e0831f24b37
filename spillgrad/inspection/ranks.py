"""Runs of several processes: which journals are of one run, who waited for whom, and how their times compare."""

import dataclasses
import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from spillgrad.errors import ArgumentError
from spillgrad.inspection.find import is_segment_file
from spillgrad.inspection.printable import printable
from spillgrad.inspection.records import Run
from spillgrad.inspection.runs import inspect

# Processes whose journals share no name are taken for those of one run if they began within this time.
_BEGAN_TOGETHER_S = 600.0


@dataclasses.dataclass(frozen=True)
class DistributedRun:
    """A run of several processes that train together.

    Parameters
    ----------
    size : int
        How many processes there are.
    ranks : dict
        Maps the rank of each process whose journal was found to its `Run`, in the order of the ranks.
    """

    size: int
    ranks: dict[int, Run]

    @property
    def first(self) -> Run:
        """The run of the lowest rank that was found."""
        return next(iter(self.ranks.values()))

    @property
    def missing(self) -> list[int]:
        """The ranks whose journals were not found."""
        return [rank for rank in range(self.size) if rank not in self.ranks]

    @property
    def state(self) -> str:
        """Whether any process is "live", or else any is "dead", or all are "finished"."""
        states = {run.state for run in self.ranks.values()}
        return next(state for state in ("live", "dead", "finished") if state in states)

    @property
    def zeros_s(self) -> dict[int, float]:
        """By rank, how many seconds after the first of them each began: add this to the times of its run."""
        zeros_s = {rank: run.rank.zero_s for rank, run in self.ranks.items() if run.rank is not None}
        if None in zeros_s.values():  # the ranks have not compared their clocks
            zeros_s = {rank: _as_seconds(run.began) for rank, run in self.ranks.items()}
        known = [each for each in zeros_s.values() if each is not None]
        first_s = min(known, default=0.0)
        return {rank: 0.0 if each is None else each - first_s for rank, each in zeros_s.items()}

    @property
    def clock_error_s(self) -> float | None:
        """By how much the times of two ranks may be shifted; None if the ranks have not compared their clocks."""
        errors = [run.rank.error_s for run in self.ranks.values() if run.rank is not None]
        known = sorted(each for each in errors if each is not None)
        return sum(known[-2:]) if len(known) == len(errors) else None

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning of the first process to the last event of any."""
        zeros_s = self.zeros_s
        return max(zeros_s[rank] + run.duration_s for rank, run in self.ranks.items())

    @property
    def waited_for_s(self) -> dict[int, float]:
        """By rank, how many seconds the programs of the others stood still for it, all together."""
        found = dict.fromkeys(self.ranks, 0.0)
        for waiting, run in self.ranks.items():
            for rank, waited_s in (run.rank.counters.waited_for_s if run.rank is not None else {}).items():
                if rank != waiting and rank < self.size:
                    found[rank] = found.get(rank, 0.0) + waited_s
        return dict(sorted(found.items()))

    @property
    def straggler(self) -> int | None:
        """The rank for which the others waited most; None if nobody waited."""
        waited_for_s = self.waited_for_s
        most = max(waited_for_s, key=lambda rank: waited_for_s[rank], default=None)
        return most if most is not None and waited_for_s[most] else None


class Part(NamedTuple):
    """A run that is shown beside others: what it is called there, and what is to be added to its times."""

    run: Run
    name: str
    zero_s: float


def parts(run: Run | DistributedRun) -> list[Part]:
    """Return the runs of all ranks, or a run alone, which has no name."""
    if isinstance(run, Run):
        return [Part(run, "", 0.0)]
    zeros_s = run.zeros_s
    return [Part(each, f"rank {rank}", zeros_s[rank]) for rank, each in run.ranks.items()]


def distributed_runs(runs: Iterable[Run]) -> list[DistributedRun]:
    """Return the runs of several processes that are among `runs`, from the oldest to the newest.

    Parameters
    ----------
    runs : iterable of Run
        What `inspect` found in a folder.

    Returns
    -------
    list of DistributedRun
        Runs of a process alone are left out. If two journals are of one rank of a run, the older one is left out.
    """
    found: dict[object, list[dict[int, Run]]] = {}
    for run in sorted(runs, key=lambda run: run.began or ""):
        if run.rank is None or run.rank.ranks < 2:
            continue
        rank, group = run.rank.rank, run.rank.group
        same = found.setdefault((group, run.rank.ranks) if group else (None, run.rank.ranks, run.command), [])
        if group:
            same[:] = same or [{}]
            same[0][rank] = run
        else:
            place = next((each for each in same if rank not in each and _began_together(each, run)), None)
            if place is None:
                same.append(place := {})
            place[rank] = run
    made = [
        DistributedRun(next(iter(each.values())).rank.ranks, dict(sorted(each.items())))  # type: ignore[union-attr]
        for same in found.values()
        for each in same
    ]
    return sorted(made, key=lambda each: min(run.began or "" for run in each.ranks.values()))


def inspect_together(who: str, path: Path) -> Run | DistributedRun:
    """Return the record of the one run at a path, which may be of several processes.

    Raises ArgumentError, with `who` at its beginning, if there are several runs or a segment. Raises the errors of
    `inspect`.
    """
    if is_segment_file(path):
        raise ArgumentError(f"{who}: got {path}, a segment, wanted a run; name its folder, or a journal")
    runs = inspect(path).runs
    if len(runs) == 1:
        return runs[0]
    together = distributed_runs(runs)
    if len(together) == 1 and len(together[0].ranks) == len(runs):
        return together[0]
    one = f"name one, such as the newest: {printable(str(runs[-1].path), 4096)}"
    raise ArgumentError(f"{who}: got {len(runs)} runs in {path}, wanted one; {one}")


def _began_together(ranks: dict[int, Run], run: Run) -> bool:
    others_s, own_s = _as_seconds(next(iter(ranks.values())).began), _as_seconds(run.began)
    return others_s is None or own_s is None or abs(own_s - others_s) <= _BEGAN_TOGETHER_S


def _as_seconds(began: str | None) -> float | None:
    """Return the time in a journal's head in seconds since 1970; None if there is none."""
    try:
        return datetime.datetime.fromisoformat(began or "").timestamp()
    except (ValueError, OverflowError):
        return None
