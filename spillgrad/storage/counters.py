"""Count what a store moved, in all and by origin, and write it to the journal."""

import dataclasses
import operator
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage import trim_memory
from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.journal import late_events as events
from spillgrad.storage.journal.files import plain_text
from spillgrad.storage.journal.writer import Journal
from spillgrad.storage.origin_counters import IN_STATS, Origin, OriginCounters, values
from spillgrad.storage.residency.budgeted_tier import BudgetedTier
from spillgrad.storage.residency.step_plan import StepPlan
from spillgrad.storage.store import NO_LABEL, Label, StoreStats
from spillgrad.storage.threads.busy_clock import BusyClock

# The most step plans written to the journal; a training loop has a few.
_PLANS_MAX = 16
# Arrays of further origins are counted without origin; a model of thousands of modules has fewer origins.
_ORIGINS_MAX = 8192

_OriginKey = tuple[str | None, str | None, str | None, np.dtype[Any] | None]


class StepTraffic(NamedTuple):
    """The bytes that a step moved, its length, and the seconds that the disk was busy and callers waited.

    `cached_wait_s` of that was for arrays that went through the page cache.
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
    """What a store moved, in all (`total`) and for each origin.

    Invariant: `total` is the sum over origins. The store's lock guards everything, and every method is called with it
    held, unless its docstring says otherwise.
    """

    def __init__(self, journal: Journal, tier: BudgetedTier[DiskEntry]) -> None:
        self._journal = journal
        self._tier = tier
        self.total = OriginCounters()
        self.live_bytes = self.hits = self.misses = 0
        self.writing, self.reading = BusyClock(), BusyClock()  # these lock themselves
        self._cached_wait_s = 0.0
        self._origins: dict[_OriginKey, tuple[Origin, OriginCounters]] = {}
        self._phase: str | None = None
        self._steps = 0  # of training, if arrays say to which step they belong
        self._step_label: int | None = None
        self._labelled: tuple[int | None, int] = None, 0  # the newest label, and the number of its step
        self._step_began_s = time.perf_counter()
        self._total_before = OriginCounters()  # when the step began
        self._plans: list[StepPlan] = []
        tier.schedule.on_step = self._step_ended

    # What happened

    def packed(self, entry: DiskEntry) -> None:
        """Count a new array."""
        origin, entry.counters = self._origin(entry.label, entry.dtype)
        for counters in (self.total, entry.counters):
            counters.arrays += 1
            counters.packed_bytes += entry.nbytes
        self.live_bytes += entry.nbytes
        step = self._step_of(entry.label)
        if not entry.persistent:
            self._step_label = step
            if self._phase is None:
                self.begin_phase("forward")
        self._journal.add(events.Pack(entry.nbytes, *origin, step, entry.sequence))

    def shared(self, entry: DiskEntry) -> None:
        """Count an array that was put although the store had it already."""
        for counters in (self.total, entry.counters):
            counters.packed_bytes += entry.nbytes
            counters.deduplicated_bytes += entry.nbytes
        self._journal.add(events.Share(entry.sequence))

    def relabeled(self, entry: DiskEntry) -> None:
        """Move the counts of an array to another origin than that of its first label."""
        former = entry.counters
        origin, entry.counters = self._origin(entry.label, entry.dtype)
        for counters, sign in ((former, -1), (entry.counters, 1)):
            counters.arrays += sign
            counters.packed_bytes += sign * entry.nbytes
        self._journal.add(events.Label(entry.nbytes, *origin, self._step_of(entry.label), entry.sequence))

    def kept(self, nbytes: int, label: Label, dtype: np.dtype[Any]) -> None:
        """Count bytes that stay in RAM beside the store."""
        origin, of_origin = self._origin(label, dtype)
        for counters in (self.total, of_origin):
            counters.kept_bytes += nbytes
        self._journal.add(events.Keep(nbytes, *origin, self._step_of(label)))

    def used(self, entry: DiskEntry, is_here: bool) -> None:
        """Count a use of an array as a hit, if it is in RAM, or as a miss."""
        if is_here:
            self.hits += 1
        else:
            self.misses += 1
        if not entry.persistent and self._phase == "forward":
            self.begin_phase("backward")

    def written(self, entry: DiskEntry, stored_bytes: int, began_s: float, where: tuple[Any, ...]) -> None:
        """Count a finished write; `where` has the fields of `Extent.where`."""
        for counters in (self.total, entry.counters):
            counters.written_bytes += entry.nbytes
            counters.stored_bytes += stored_bytes
        about = (*where, _seconds_since(began_s))
        self._journal.add(events.Write(entry.sequence, *about, **self._if_freed(entry)))

    def read(self, entry: DiskEntry, began_s: float, prefetched: bool) -> None:
        """Count a finished read."""
        for counters in (self.total, entry.counters):
            counters.read_bytes += entry.nbytes
        took_s, ahead = _seconds_since(began_s), prefetched or events.UNSET
        self._journal.add(events.Read(entry.sequence, took=took_s, ahead=ahead, **self._if_freed(entry)))

    def waited_to_put(
        self, began_s: float, sequence: int, label: Label, dtype: np.dtype[Any] | None, cached: bool = False
    ) -> None:
        """Count a caller's wait for room or for a write, which went through the page cache if `cached`."""
        waited_s = time.perf_counter() - began_s
        self._cached_wait_s += waited_s if cached else 0.0
        origin, of_origin = self._origin(label, dtype)
        for counters in (self.total, of_origin):
            counters.wait_write_s += waited_s
        self._journal.add(events.Wait(sequence, events.UNSET, *origin, round(waited_s, 6), "put"))

    def waited_to_get(self, began_s: float, entry: DiskEntry) -> None:
        """Count a caller's wait for a read."""
        waited_s = time.perf_counter() - began_s
        for counters in (self.total, entry.counters):
            counters.wait_read_s += waited_s
        self._cached_wait_s += waited_s if entry.went_through_page_cache else 0.0
        self._journal.add(events.Wait(entry.sequence, took=round(waited_s, 6), cause="get"))

    def changed(self, entry: DiskEntry) -> None:
        """Tell the journal that an array has new values, which the disk does not have."""
        self._journal.add(events.Change(entry.sequence))

    def freed(self, entry: DiskEntry) -> None:
        """Count an array as freed, and tell the journal."""
        self.live_bytes -= entry.nbytes
        self._journal.add(events.Free(entry.sequence))

    def flushed(self) -> None:
        """Tell the journal that the structure of the files is complete."""
        self._journal.add(events.Flush())

    def shrunk(self, entry: DiskEntry, sampled_bytes: int, stored_bytes: int) -> None:
        """Tell the journal how far a sample of an uncompressed array shrinks by lossless compression."""
        told = self._if_freed(entry)
        self._journal.add(events.Shrink(entry.sequence, sampled=sampled_bytes, shrunk=stored_bytes, **told))

    def failed(self, entry: DiskEntry, error: SpillError) -> None:
        """Count a write that the disk refused."""
        reason = error if self._journal.with_origin else error.__cause__  # which names no origin
        self._journal.add(events.Fail(entry.sequence, plain_text(str(reason))))

    def begin_phase(self, name: str | None) -> None:
        """Begin a phase of a step: "forward", "backward" or "update"; None between steps."""
        if name != self._phase:
            if self._phase == "forward":  # readers who follow short steps see each of their phases
                self._journal.write_soon()
            self._phase = name
            self._journal.sample_next()  # between phases the most is held, or the least
            self._journal.add(events.Phase(name))
            if self.total.written_bytes:
                trim_memory.trim_soon()

    def _step_ended(self, plan: StepPlan | None) -> None:
        label, self._step_label = self._step_label, None
        if label is None or label != self._labelled[0]:  # else it is a further batch of the same step
            self._steps += 1
        if label is not None and label != self._labelled[0]:
            self._labelled = label, self._steps
        place = None
        if plan is not None and plan in self._plans:
            place = self._plans.index(plan)
        elif plan is not None and len(self._plans) < _PLANS_MAX:
            place = len(self._plans)
            self._plans.append(plan)
            self._journal.plan(place, plan)
        moved = values(self.total.since(self._total_before))
        number = self._steps if label is None else self._labelled[1]
        self._journal.add(events.Step(_seconds_since(self._step_began_s), number, label, place, moved))
        self._total_before, self._step_began_s = dataclasses.replace(self.total), time.perf_counter()

    def forget(self, tier: BudgetedTier[DiskEntry]) -> None:
        """Go on with an empty tier, in a forked child."""
        self._tier, self.live_bytes = tier, 0
        self.writing, self.reading = BusyClock(), BusyClock()

    # Origins

    def _origin(self, label: Label, dtype: np.dtype[Any] | None) -> tuple[Origin, OriginCounters]:
        """Return the origin of arrays and its counters. The journal of a store that encrypts names no origins."""
        if not self._journal.with_origin:
            label = NO_LABEL
        key: _OriginKey = label.module, label.op, label.slot, dtype
        found = self._origins.get(key)
        if found is None and len(self._origins) >= _ORIGINS_MAX:
            key = None, None, None, dtype
            found = self._origins.get(key)
        if found is None:
            module, op, slot = map(_name, key[:3])
            origin = Origin(module, op, slot, None if dtype is None else dtype.name)
            self._origins[key] = found = origin, OriginCounters()
        return found

    def _if_freed(self, entry: DiskEntry) -> dict[str, Any]:
        """Return the bytes and the origin of an array that was freed meanwhile; readers of the journal forgot them."""
        if entry.references > 0:
            return {}
        return {"bytes": entry.nbytes, **self._origin(entry.label, entry.dtype)[0]._asdict()}

    def _step_of(self, label: Label) -> int | None:
        if not self._journal.with_origin or label.step is None:
            return None
        try:
            step = operator.index(label.step)
        except TypeError:  # not the number of a step
            return None
        return step if abs(step) < 1 << 63 else None

    # Sums

    def traffic(self) -> StepTraffic:
        """Return the traffic since the store was made."""
        total, busy_s = self.total, (self.writing.seconds, self.reading.seconds)
        waited_s = total.wait_s, self._cached_wait_s
        return StepTraffic(time.perf_counter(), total.written_bytes, total.read_bytes, *busy_s, *waited_s)

    def stats(self, disk_bytes: int, peak_disk_bytes: int) -> StoreStats:
        """Return the counters; the two arguments are the bytes of disk in use now, and at most so far."""
        return StoreStats(
            **{name: getattr(self.total, name) for name in IN_STATS},
            live_bytes=self.live_bytes,
            ram_bytes=self._tier.used_bytes,
            peak_ram_bytes=self._tier.peak_bytes,
            disk_bytes=disk_bytes,
            peak_disk_bytes=peak_disk_bytes,
            cache_hits=self.hits,
            cache_misses=self.misses,
            writing_s=self.writing.seconds,
            reading_s=self.reading.seconds,
        )

    def sums(self, stats: StoreStats, live: Iterable[DiskEntry]) -> "events.Sums":
        """Return the sums of all events until now, and the live arrays, for readers who lack the earlier lines."""
        self._plans.clear()  # they are told again
        numbers = {id(counters): number for number, (_, counters) in enumerate(self._origins.values())}
        return events.Sums(
            events.Stats(**dataclasses.asdict(stats)),
            self.total.kept_bytes,
            self._steps,
            [(*origin, *values(counters)) for origin, counters in self._origins.values()],
            [(entry.sequence, entry.nbytes, numbers[id(entry.counters)], self._step_of(entry.label)) for entry in live],
        )

    def sample(self, disk_bytes: int) -> "events.Event":
        """Return the bytes held now. Called in any thread without the lock: the numbers may be of different moments."""
        tier, total = self._tier, self.total
        return events.Sample(
            ram=tier.used_bytes,
            peak_ram=tier.peak_bytes,
            hot=tier.dirty.nbytes,
            writing=tier.writing_bytes,
            cached=tier.clean.nbytes,
            lent=tier.pinned_bytes,
            live=self.live_bytes,
            disk=disk_bytes,
            rss=rss_bytes(),
            written=total.written_bytes,
            read=total.read_bytes,
            hits=self.hits,
            misses=self.misses,
            waited=round(total.wait_s, 6),
        )


def rss_bytes() -> int:
    """Return the bytes of this process that are in RAM; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _seconds_since(began_s: float) -> float:
    return round(time.perf_counter() - began_s, 6)


def _name(part: str | None) -> str | None:
    return None if part is None else plain_text(str(part))
