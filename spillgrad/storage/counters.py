"""Count the bytes a store moved and the time callers waited, in total and by origin; add the events to the journal."""

import dataclasses
import operator
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from spillgrad.communication import Collective, Member
from spillgrad.errors import SpillError
from spillgrad.storage import trim_memory
from spillgrad.storage.communication_counters import CommunicationSum
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
# The most origins; further arrays are counted without origin. A model of thousands of modules has fewer origins.
_ORIGINS_MAX = 8192

_OriginKey = tuple[str | None, str | None, str | None, np.dtype[Any] | None]


class StepTraffic(NamedTuple):
    """The length of a step, the bytes that it moved, and the seconds that the disk was busy and that callers waited.

    `cached_wait_s` is the part of `waited_s` that was for arrays that went through the page cache.
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
        """Return this traffic minus `before`, field by field."""
        return StepTraffic._make(now - then for now, then in zip(self, before, strict=True))


class Counters:
    """Counts what a store moved, in total (`total`) and for each origin.

    Invariant: `total` is the sum over all origins. The store's lock guards everything. Every method is called with the
    lock held, unless its docstring says otherwise.
    """

    def __init__(self, journal: Journal, tier: BudgetedTier[DiskEntry]) -> None:
        self._journal = journal
        self._tier = tier
        self.total = OriginCounters()
        self.live_bytes = self.hits = self.misses = 0
        self.fetched_bytes = 0
        self.writing, self.reading = BusyClock(), BusyClock()  # these lock themselves
        self._cached_wait_s = 0.0
        self._origins: dict[_OriginKey, tuple[Origin, OriginCounters]] = {}
        self._phase: str | None = None
        self._steps = 0  # training steps, if the labels of arrays have a step
        self._step_label: int | None = None
        self._labelled: tuple[int | None, int] = None, 0  # the newest label, and the number of its step
        self._step_began_s = time.perf_counter()
        self._total_before = OriginCounters()  # when the step began
        self._plans: list[StepPlan] = []
        self._ram: dict[int, int] | None = None  # bytes in RAM by array, for a journal that stays
        self.communication = CommunicationSum()
        self._member: Member | None = None
        self._rank: events.Rank | None = None
        tier.schedule.on_step = self._step_ended
        if journal.kept:  # two microseconds for each array
            self._ram, tier.on_count = {}, self._ram_changed

    # What happened

    def packed(self, entry: DiskEntry) -> None:
        """Count a new array that was put."""
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
        """Count an array that was put again while the store still had it."""
        for counters in (self.total, entry.counters):
            counters.packed_bytes += entry.nbytes
            counters.deduplicated_bytes += entry.nbytes
        self._journal.add(events.Share(entry.sequence))

    def relabeled(self, entry: DiskEntry) -> None:
        """Move the counts of an array from the origin of its former label to the origin of its new label."""
        former = entry.counters
        origin, entry.counters = self._origin(entry.label, entry.dtype)
        for counters, sign in ((former, -1), (entry.counters, 1)):
            counters.arrays += sign
            counters.packed_bytes += sign * entry.nbytes
        self._journal.add(events.Label(entry.nbytes, *origin, self._step_of(entry.label), entry.sequence))

    def kept(self, nbytes: int, label: Label, dtype: np.dtype[Any]) -> None:
        """Count the bytes of an array that stays in RAM outside the store."""
        origin, of_origin = self._origin(label, dtype)
        for counters in (self.total, of_origin):
            counters.kept_bytes += nbytes
        self._journal.add(events.Keep(nbytes, *origin, self._step_of(label)))

    def used(self, entry: DiskEntry, is_here: bool) -> None:
        """Count a use of an array: a hit if the array is in RAM (`is_here`), else a miss."""
        if is_here:
            self.hits += 1
        else:
            self.misses += 1
        if not entry.persistent and self._phase == "forward":
            self.begin_phase("backward")

    def written(self, entry: DiskEntry, stored_bytes: int, began_s: float, where: tuple[Any, ...]) -> None:
        """Count a finished write that began at `began_s`; `where` is the `Extent.where` of the written array."""
        for counters in (self.total, entry.counters):
            counters.written_bytes += entry.nbytes
            counters.stored_bytes += stored_bytes
        about = (*where, _seconds_since(began_s))
        self._journal.add(events.Write(entry.sequence, *about, **self._if_freed(entry)))

    def read(self, entry: DiskEntry, began_s: float, prefetched: bool) -> None:
        """Count a finished read that began at `began_s`; `prefetched` means that no caller had asked for the array."""
        for counters in (self.total, entry.counters):
            counters.read_bytes += entry.nbytes
        fetched_bytes = entry.fetched_bytes
        self.fetched_bytes += fetched_bytes
        took_s, ahead = _seconds_since(began_s), prefetched or events.UNSET
        stored = events.UNSET if fetched_bytes == entry.nbytes else fetched_bytes
        self._journal.add(events.Read(entry.sequence, took=took_s, ahead=ahead, stored=stored, **self._if_freed(entry)))

    def read_part(self, entry: DiskEntry, nbytes: int, began_s: float) -> None:
        """Count a caller's finished read, since `began_s`, of `nbytes` of an array."""
        self.misses += 1
        for counters in (self.total, entry.counters):
            counters.read_bytes += nbytes
        self.fetched_bytes += nbytes
        told = self._if_freed(entry)
        self._journal.add(events.Read(entry.sequence, took=_seconds_since(began_s), part=nbytes, **told))
        self.waited_to_get(began_s, entry)

    def waited_to_put(
        self, began_s: float, sequence: int, label: Label, dtype: np.dtype[Any] | None, cached: bool = False
    ) -> None:
        """Count a caller's wait, since `began_s`, for room or a write; `cached`: the write used the page cache."""
        waited_s = time.perf_counter() - began_s
        self._cached_wait_s += waited_s if cached else 0.0
        origin, of_origin = self._origin(label, dtype)
        for counters in (self.total, of_origin):
            counters.wait_write_s += waited_s
        self._journal.add(events.Wait(sequence, events.UNSET, *origin, round(waited_s, 6), "put"))

    def waited_to_get(self, began_s: float, entry: DiskEntry) -> None:
        """Count a caller's wait, since `began_s`, for a read of `entry`."""
        waited_s = time.perf_counter() - began_s
        for counters in (self.total, entry.counters):
            counters.wait_read_s += waited_s
        self._cached_wait_s += waited_s if entry.went_through_page_cache else 0.0
        self._journal.add(events.Wait(entry.sequence, took=round(waited_s, 6), cause="get"))

    def changed(self, entry: DiskEntry) -> None:
        """Record in the journal that an array has new values, which are not on disk."""
        self._journal.add(events.Change(entry.sequence))

    def freed(self, entry: DiskEntry) -> None:
        """Count an array as freed, and record it in the journal."""
        self.live_bytes -= entry.nbytes
        self._journal.add(events.Free(entry.sequence))

    def flushed(self) -> None:
        """Record in the journal that the structure of the files is complete."""
        self._journal.add(events.Flush())

    def shrunk(self, entry: DiskEntry, sampled_bytes: int, stored_bytes: int) -> None:
        """Record in the journal how far a sample of an uncompressed array shrinks by lossless compression."""
        told = self._if_freed(entry)
        self._journal.add(events.Shrink(entry.sequence, sampled=sampled_bytes, shrunk=stored_bytes, **told))

    def failed(self, entry: DiskEntry, error: SpillError) -> None:
        """Record in the journal that a write failed, and why."""
        reason = error if self._journal.with_origin else error.__cause__  # the cause names no origin
        self._journal.add(events.Fail(entry.sequence, plain_text(str(reason))))

    def joined(self, member: Member) -> None:
        """Record in the journal which rank the process is, if that is new."""
        if member is self._member:
            return
        self._member = member
        zero_s = None if member.clock_s is None else round(self._journal.began_s + member.clock_s, 6)
        error_s = None if member.clock_error_s is None else round(member.clock_error_s, 6)
        self._rank = events.Rank(member.rank, member.ranks, member.group, zero_s, error_s)
        self._journal.add(self._rank)

    def communicated(self, ended_s: float, done: Collective) -> None:
        """Count a collective that ended at `ended_s`, by `time.perf_counter`."""
        moved = done.sent_bytes, done.received_bytes
        self.communication.add(
            ended_s, done.took_s, done.waited_s, *moved, done.slowest, done.slowest_s
        )  # fmt: skip
        what = plain_text(done.what) if self._journal.with_origin else None
        took_s, waited_s, behind_s = (round(each, 6) for each in (done.took_s, done.waited_s, done.slowest_s))
        self._journal.add(events.Collective(what, *moved, took_s, waited_s, done.slowest, behind_s), ended_s)

    def _ram_changed(self, entry: DiskEntry | None, nbytes: int) -> None:
        """Record in the journal that so many more bytes of `entry`, or of no array, are about to count as RAM."""
        if self._ram is not None and nbytes:
            array = events.NO_ARRAY if entry is None else entry.sequence
            held = self._ram.pop(array, 0) + nbytes
            if held:
                self._ram[array] = held
            self._journal.add(events.Ram(array, bytes=nbytes))

    def begin_phase(self, name: str | None) -> None:
        """Begin the phase `name` of a step: "forward", "backward" or "update"; None is the time between steps."""
        if name != self._phase:
            if self._phase == "forward":  # so that live readers see each phase of short steps
                self._journal.write_soon()
            self._phase = name
            self._journal.sample_next()  # at a change of phase the bytes held are at their most or least
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
        """In a forked child: continue with the empty tier `tier`, no live arrays, and clocks at zero."""
        self._tier, self.live_bytes = tier, 0
        self.writing, self.reading = BusyClock(), BusyClock()

    # Origins

    def _origin(self, label: Label, dtype: np.dtype[Any] | None) -> tuple[Origin, OriginCounters]:
        """Return the origin of a label and dtype, and its counters. A journal without origins ignores the label."""
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
        """Return event fields: bytes and origin of a freed array, which journal readers forgot; {} for a live array."""
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
        """Return the totals since the store was made; `seconds` is the present time."""
        total, busy_s = self.total, (self.writing.seconds, self.reading.seconds)
        waited_s = total.wait_s, self._cached_wait_s
        return StepTraffic(time.perf_counter(), total.written_bytes, total.read_bytes, *busy_s, *waited_s)

    def stats(self, disk_bytes: int, peak_disk_bytes: int) -> StoreStats:
        """Return the store's statistics; `disk_bytes` are in use now, `peak_disk_bytes` are the most so far."""
        return StoreStats(
            **{name: getattr(self.total, name) for name in IN_STATS},
            fetched_bytes=self.fetched_bytes,
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
        """Return the sums of all events until now, and the live arrays, for journal readers who lack earlier lines."""
        self._plans.clear()  # the journal gets them again
        numbers = {id(counters): number for number, (_, counters) in enumerate(self._origins.values())}
        return events.Sums(
            events.Stats(**dataclasses.asdict(stats)),
            self.total.kept_bytes,
            self._steps,
            [(*origin, *values(counters)) for origin, counters in self._origins.values()],
            [(entry.sequence, entry.nbytes, numbers[id(entry.counters)], self._step_of(entry.label)) for entry in live],
            None if self._ram is None else list(self._ram.items()),
            self._communication_sums(),
        )

    def _communication_sums(self) -> "events.CommunicationSums | None":
        counted, rank = self.communication.counters, self._rank
        if rank is None and not counted.collectives:
            return None
        return events.CommunicationSums(
            counted.collectives, counted.sent_bytes, counted.received_bytes, counted.busy_s, counted.exposed_s,
            list(counted.waited_for_s.items()), rank,
        )  # fmt: skip

    def sample(self, disk_bytes: int) -> "events.Event":
        """Return the present bytes and counters. Called in any thread without the lock: not all are of one moment."""
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
    """Return the resident set size of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _seconds_since(began_s: float) -> float:
    return round(time.perf_counter() - began_s, 6)


def _name(part: str | None) -> str | None:
    return None if part is None else plain_text(str(part))
