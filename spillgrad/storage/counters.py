"""What a store moved so far, and from where it came; the journal tells of it."""

import dataclasses
import json
import operator
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.journal.writer import Journal, plain_text
from spillgrad.storage.origin_counters import IN_STATS, Origin, OriginCounters, values
from spillgrad.storage.process_memory import rss_bytes
from spillgrad.storage.residency.budgeted_tier import BudgetedTier
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.residency.step_plan import StepPlan
from spillgrad.storage.store import NO_LABEL, Label, StoreStats
from spillgrad.storage.threads.busy_clock import BusyClock

# Plans of steps that are told: a training loop has a few.
_PLANS_MAX = 16
# Arrays of further origins come from nowhere: a model of thousands of modules has fewer.
_ORIGINS_MAX = 8192

_OriginKey = tuple[str | None, str | None, str | None, np.dtype[Any] | None]


class StepTraffic(NamedTuple):
    """What a step of so many seconds moved, how long something was under way, and how long callers waited.

    Of that, `cached_wait_s` for what went through the page cache.
    """

    seconds: float
    written_bytes: int
    read_bytes: int
    writing_s: float
    reading_s: float
    waited_s: float
    cached_wait_s: float

    @property
    def moved_bytes(self) -> int:
        """Bytes written and read."""
        return self.written_bytes + self.read_bytes

    def since(self, before: "StepTraffic") -> "StepTraffic":
        """Return the difference."""
        return StepTraffic._make(now - then for now, then in zip(self, before, strict=True))


class Counters:
    """What was moved in all, and of each origin.

    Invariant: `moved` is the sum over origins. Everything is guarded by the store's lock, and every method is called
    with it held.
    """

    def __init__(self, journal: Journal, ram: BudgetedTier) -> None:
        self.journal = journal
        self.total = OriginCounters()
        self.live_bytes = self.hits = self.misses = 0
        self._cached_wait_s = 0.0
        self.writing, self.reading = BusyClock(), BusyClock()  # these lock themselves
        self._ram = ram
        self._origins: dict[_OriginKey, tuple[Origin, OriginCounters]] = {}
        self.on_phase: Callable[[], None] = lambda: None  # called when a phase of a step begins, once arrays go to disk
        self._phase: str | None = None
        self._steps = 0  # those of training, where arrays say of which they are
        self._step_label: int | None = None
        self._labelled: tuple[int | None, int] = None, 0  # the newest label, and the number of its step
        self._step_began_s = time.perf_counter()
        self._moved_before = OriginCounters()
        self._plans: list[StepPlan] = []
        ram.schedule.on_step = self._step_ended

    # What happened

    def packed(self, entry: Entry) -> None:
        """Note that an array came."""
        origin, entry.counters = self.origin(entry.label, entry.dtype)
        for moved in (self.total, entry.counters):
            moved.arrays += 1
            moved.packed_bytes += entry.nbytes
        self.live_bytes += entry.nbytes
        if not entry.persistent:
            self._step_label = self._step_of(entry.label)
            if self._phase is None:
                self.begin_phase("forward")
        self.journal.arrived("pack", entry.sequence, entry.nbytes, origin, self._step_of(entry.label))

    def shared(self, entry: Entry) -> None:
        """Note that what came was there already."""
        for moved in (self.total, entry.counters):
            moved.packed_bytes += entry.nbytes
            moved.deduplicated_bytes += entry.nbytes
        self.journal.note("share", entry.sequence)

    def relabeled(self, entry: Entry) -> None:
        """Note that an array comes from somewhere else than was said."""
        former = entry.counters
        origin, entry.counters = self.origin(entry.label, entry.dtype)
        for moved, sign in ((former, -1), (entry.counters, 1)):
            moved.arrays += sign
            moved.packed_bytes += sign * entry.nbytes
        self.journal.arrived("label", entry.sequence, entry.nbytes, origin, self._step_of(entry.label))

    def kept(self, nbytes: int, label: Label, dtype: np.dtype[Any]) -> None:
        """Note that so much stays in RAM beside the store."""
        origin, of_origin = self.origin(label, dtype)
        for moved in (self.total, of_origin):
            moved.kept_bytes += nbytes
        self.journal.arrived("keep", None, nbytes, origin, self._step_of(label))

    def used(self, entry: Entry) -> None:
        """Note that an array is wanted."""
        if not entry.persistent and self._phase == "forward":
            self.begin_phase("backward")

    def written(self, entry: Entry, stored_bytes: int, began_s: float, where: str) -> None:
        """Note that an array was stored."""
        for moved in (self.total, entry.counters):
            moved.written_bytes += entry.nbytes
            moved.stored_bytes += stored_bytes
        self.journal.took("write", entry.sequence, time.perf_counter() - began_s, where + self._whose(entry))

    def read(self, entry: Entry, began_s: float, prefetched: bool) -> None:
        """Note that an array was read back, perhaps ahead of its use."""
        for moved in (self.total, entry.counters):
            moved.read_bytes += entry.nbytes
        took_s = time.perf_counter() - began_s
        told = ', "ahead": true' if prefetched else ""
        self.journal.took("read", entry.sequence, took_s, told + self._whose(entry))

    def waited_to_put(
        self, began_s: float, sequence: int, label: Label, dtype: np.dtype[Any] | None, cached: bool = False
    ) -> None:
        """Note that a caller waited for room, or for a write, which may have gone through the page cache."""
        waited_s = time.perf_counter() - began_s
        self._cached_wait_s += waited_s if cached else 0.0
        origin, of_origin = self.origin(label, dtype)
        for moved in (self.total, of_origin):
            moved.wait_write_s += waited_s
        self.journal.took("wait", sequence, waited_s, f', "in": "put", {self.journal.origin(origin)}')

    def waited_to_get(self, began_s: float, entry: Entry) -> None:
        """Note that a caller waited for what was to be read."""
        waited_s = time.perf_counter() - began_s
        for moved in (self.total, entry.counters):
            moved.wait_read_s += waited_s
        self._cached_wait_s += waited_s if entry.went_through_page_cache else 0.0
        self.journal.took("wait", entry.sequence, waited_s, ', "in": "get"')

    def changed(self, entry: Entry) -> None:
        """Note that what is on disk is not the array any more."""
        self.journal.note("change", entry.sequence)

    def freed(self, entry: Entry) -> None:
        """Note that nobody needs an array any more."""
        self.live_bytes -= entry.nbytes
        self.journal.note("free", entry.sequence)

    def flushed(self) -> None:
        """Note that HDF5 says in the files of all there is where it lies."""
        self.journal.note("flush", None)

    def shrunk(self, entry: Entry, sampled_bytes: int, stored_bytes: int) -> None:
        """Note what lossless compression makes of a sample of an array that was stored as it is."""
        values = f', "sampled": {sampled_bytes}, "shrunk": {stored_bytes}'
        self.journal.note("shrink", entry.sequence, values + self._whose(entry))

    def begin_phase(self, name: str | None) -> None:
        """Note that a phase of a step begins: "forward", "backward" or "update"; or that none goes on."""
        if name != self._phase:
            if self._phase == "forward":  # now most is held; and who looks at short steps sees each of their phases
                self.journal.write_soon()
            self._phase = name
            self.journal.sample_next()  # between phases most is held, or least
            self.journal.note("phase", None, f', "phase": {json.dumps(name)}')
            if self.total.written_bytes:
                self.on_phase()

    def origin(self, label: Label, dtype: np.dtype[Any] | None) -> tuple[Origin, OriginCounters]:
        """Return where arrays come from, and what became of those from there; who encrypts tells nobody."""
        if not self.journal.with_origin:
            label = NO_LABEL
        key = label.module, label.op, label.slot, dtype
        found = self._origins.get(key)
        if found is None and len(self._origins) >= _ORIGINS_MAX:
            key = None, None, None, dtype
            found = self._origins.get(key)
        if found is None:
            module, op, slot = map(_name, key[:3])
            self._origins[key] = found = (
                Origin(module, op, slot, None if dtype is None else dtype.name),
                OriginCounters(),
            )
        return found

    def forget(self, ram: BudgetedTier) -> None:
        """In a forked child: go on with a cache that holds nothing."""
        self._ram, self.live_bytes = ram, 0
        self.writing, self.reading = BusyClock(), BusyClock()

    def failed(self, entry: Entry, error: SpillError) -> None:
        """Note that the disk refused an array."""
        reason = error if self.journal.with_origin else error.__cause__  # which names no origin
        self.journal.note("fail", entry.sequence, f', "reason": {json.dumps(plain_text(str(reason)))}')

    # What is told

    def traffic(self) -> StepTraffic:
        """Return what was moved since the store was made."""
        moved, busy_s = self.total, (self.writing.seconds, self.reading.seconds)
        waited_s = moved.wait_s, self._cached_wait_s
        return StepTraffic(time.perf_counter(), moved.written_bytes, moved.read_bytes, *busy_s, *waited_s)

    def stats(self, disk_bytes: int, peak_disk_bytes: int) -> StoreStats:
        """Return the counters; so much of the disk is used, and was at most."""
        return StoreStats(
            **{name: getattr(self.total, name) for name in IN_STATS},
            live_bytes=self.live_bytes,
            ram_bytes=self._ram.ram_bytes,
            peak_ram_bytes=self._ram.peak_ram_bytes,
            disk_bytes=disk_bytes,
            peak_disk_bytes=peak_disk_bytes,
            cache_hits=self.hits,
            cache_misses=self.misses,
            writing_s=self.writing.seconds,
            reading_s=self.reading.seconds,
        )

    def totals(self, stats: StoreStats, live: Iterable[Entry]) -> dict[str, Any]:
        """Return what all until now comes to, and which arrays there are, for who does not have the lines of it."""
        self._plans.clear()  # they are told again
        numbers = {id(moved): number for number, (_, moved) in enumerate(self._origins.values())}
        return {
            "stats": dataclasses.asdict(stats),
            "kept": self.total.kept_bytes,
            "steps": self._steps,
            "origins": [[*origin, *values(moved)] for origin, moved in self._origins.values()],
            "live": [
                [entry.sequence, entry.nbytes, numbers[id(entry.counters)], self._step_of(entry.label)]
                for entry in live
            ],
        }

    def sample(self, disk_bytes: int) -> str:
        """Return what is held now, as a part of a line. Called in any thread: numbers may not fit each other."""
        ram, moved = self._ram, self.total
        return (
            f', "ram": {ram.ram_bytes}, "peak_ram": {ram.peak_ram_bytes}, "hot": {ram.dirty.nbytes}, '
            f'"writing": {ram.writing_bytes}, "cached": {ram.clean.nbytes}, "lent": {ram.pinned_bytes}, '
            f'"live": {self.live_bytes}, "disk": {disk_bytes}, "rss": {rss_bytes()}, '
            f'"written": {moved.written_bytes}, "read": {moved.read_bytes}, "hits": {self.hits}, '
            f'"misses": {self.misses}, "waited": {moved.wait_s:.6f}'
        )

    def _whose(self, entry: Entry) -> str:
        """Return what a line says of an array that was freed meanwhile, and is not known any more."""
        if entry.references > 0:
            return ""
        return f', "bytes": {entry.nbytes}, {self.journal.origin(self.origin(entry.label, entry.dtype)[0])}'

    def _step_of(self, label: Label) -> int | None:
        if not self.journal.with_origin:
            return None
        try:
            return None if label.step is None else operator.index(label.step)
        except TypeError:  # no number of a step, whatever it is
            return None

    def _step_ended(self, plan: StepPlan | None) -> None:
        label, self._step_label = self._step_label, None
        if label is None or label != self._labelled[0]:  # else it is a further batch of the same
            self._steps += 1
        if label is not None and label != self._labelled[0]:
            self._labelled = label, self._steps
        number = None
        if plan is not None and plan in self._plans:
            number = self._plans.index(plan)
        elif plan is not None and len(self._plans) < _PLANS_MAX:
            number = len(self._plans)
            self._plans.append(plan)
            self.journal.plan(number, plan)
        moved, now_s = dataclasses.replace(self.total), time.perf_counter()
        told = {
            "number": self._steps if label is None else self._labelled[1],
            "step": label,
            "plan": number,
            "moved": values(moved.since(self._moved_before)),
        }
        self.journal.took("step", None, now_s - self._step_began_s, f", {json.dumps(told)[1:-1]}")
        self._moved_before, self._step_began_s = moved, now_s


def _name(part: str | None) -> str | None:
    return None if part is None else plain_text(str(part))
