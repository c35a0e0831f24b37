"""Compute the counters, steps, samples and places of arrays of a run from the lines of its journal."""

import collections
import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from msgspec import UnsetType

from spillgrad.inspection.records import Failure, RamChange, Rank, Sample, Shrinkage, Span, Step, StepPlan
from spillgrad.storage.communication_counters import CommunicationCounters, CommunicationSum
from spillgrad.storage.journal import events
from spillgrad.storage.journal.writer import LONGEST_PLAN
from spillgrad.storage.origin_counters import IN_STATS, NO_ORIGIN, Origin, OriginCounters, total
from spillgrad.storage.store import StoreStats

# No journal of a store has more. A forged journal that has more takes no more memory than these limits allow.
_LIVE_MAX, _ORIGINS_MAX, _STEPS_MAX, _FAILURES_MAX = 600_000, 20_000, 50_000, 100
_PLANS_MAX = 16
# The pieces and chunks of all places together.
_PLACED_MAX = 1 << 20
# Characters in the names of all origins; 20,000 origins of a model have two thirds of that.
_NAMES_MAX = 2 << 20
# If there are more, every other sample is dropped.
_SAMPLES_MAX = 20_000
# A live array is one number, a third of the size of a tuple: the array's bytes, and in this many low bits its source.
_SOURCE_BITS = _ORIGINS_MAX.bit_length()
_OfArray = events.Write | events.ToldEvent
_WithOrigin = events.Keep | _OfArray
_T = TypeVar("_T")
_KINDS = {"p": "put", "u": "use", "d": "drop"}


class _Live(NamedTuple):
    nbytes: int
    origin: Origin
    moved: OriginCounters


class _InRam(NamedTuple):
    nbytes: int
    origin: Origin
    step: int | None


class Place(NamedTuple):
    """The place of an array according to its journal: the `dataset` in a segment, and the `pieces` of the file.

    Each piece is an offset in the file and a number of bytes; `pieces` is None if the journal does not list them.
    `chunks` has the bytes of each compressed chunk. `retold` is None for a place from a `write` line; for a place from
    a `place` line, which repeats a place, `retold` is the number of `totals` lines before that line.
    """

    segment: str
    dataset: str
    shape: list[int]
    pieces: list[tuple[int, int]] | None
    checksum: str | None
    codec: str | None
    order: str | None
    chunks: list[int]
    retold: int | None


class Placed(NamedTuple):
    """A live array on disk: its origin, its training step and its place."""

    origin: Origin
    step: int | None
    place: Place


_UNKNOWN = _Live(0, NO_ORIGIN, OriginCounters())
_ROOM = Origin(op="room")


class JournalState:
    """Adds up the lines of a journal, given one after the other.

    Sums cover the whole run, even if older lines are gone, because each file begins with totals. `is_flushed` says
    whether a flush has written every array into HDF5's structure. Places are recorded only if `with_places`.
    `on_span` and `on_ram` are called with what the lines tell of spans, and of arrays that come into RAM or leave it.
    """

    def __init__(
        self, on_span: Callable[[Span], None] | None = None, with_places: bool = False,
        on_ram: Callable[[RamChange], None] | None = None,
    ) -> None:  # fmt: skip
        self.origins: dict[Origin, OriginCounters] = {}
        self._sources: list[tuple[Origin, OriginCounters]] = []
        self._known: dict[Origin, int] = {}  # indices in `_sources`
        self._names_length = 0
        self.moved = OriginCounters()
        self.steps: collections.deque[Step] = collections.deque(maxlen=_STEPS_MAX)
        self._unlabelled_steps = 0  # since the newest step with a label
        self.samples: list[Sample] = []
        self.failures: collections.deque[Failure] = collections.deque(maxlen=_FAILURES_MAX)
        self.failure_count = self.lost_lines = self.damaged_lines = 0
        self._shrunk_bytes: dict[Origin, list[int]] = {}
        self.first_s: float | None = None
        self.last_s = 0.0
        self.ended = False
        self.phase: str | None = None
        self.step: int | None = None  # the training step of the array that was put last
        self._rank: events.Rank | None = None
        self._communication = CommunicationSum()
        self._stats = StoreStats()
        self._fetched_bytes = 0
        self._live: dict[int, int] = {}
        self._live_bytes = 0
        self.is_flushed = False
        self._with_places = with_places
        self._places: dict[int, Place] = {}
        self._steps: dict[int, int] = {}  # the training steps of live arrays
        self._placed = 0
        self._totals = 0  # the number of `totals` lines so far
        self.knows_places = True  # no line is missing, so the places of all arrays are known
        self.unplaced = 0  # the number of arrays on disk whose places are left out
        self._plans: dict[int, StepPlan] = {}
        self._uses: collections.Counter[int] = collections.Counter()
        self._last_plan: int | None = None
        self._sample_gap_s = 0.0
        self._phase_began_s = 0.0
        self._on_span = on_span
        self._on_ram = on_ram
        self._ram: dict[int, _InRam] = {}
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.Pack: self._packed,
            events.Label: self._relabeled,
            events.Keep: self._kept,
            events.Share: self._shared,
            events.Write: self._written,
            events.Read: self._read,
            events.Wait: self._waited,
            events.Place: self._stands,
            events.Ram: lambda line: self._ram_changed(line.t, line.array, line.bytes),
            events.Change: lambda line: self._leaves(line.array),
            events.Flush: self._flushed,
            events.Free: self._freed,
            events.Fail: self._failed,
            events.Phase: self._phase_began,
            events.Step: self._step_ended,
            events.Plan: self._planned,
            events.Rank: self._joined,
            events.Collective: self._communicated,
            events.Sample: self._sampled,
            events.Shrink: self._shrunk,
            events.Totals: self._begun,
            events.End: self._ended,
            events.Lost: self._lost,
        }

    def add(self, line: events.AnyEvent | None) -> None:
        """Add a line to the sums; None stands for a damaged line."""
        if line is None:
            self.damaged_lines += 1
            return
        t = line.t
        if t > self.last_s:
            self.last_s = t
        if self.first_s is None:
            self.first_s = t
        self._handlers[type(line)](line)

    @property
    def stats(self) -> StoreStats:
        """The statistics of the store so far; its RAM, disk space, hits and misses are those of the last sample."""
        moved = {name: getattr(self.moved, name) for name in IN_STATS}
        found = dataclasses.replace(self._stats, **moved, live_bytes=self._live_bytes)
        return dataclasses.replace(found, fetched_bytes=self._fetched_bytes)

    @property
    def plan(self) -> StepPlan | None:
        """The step plan that most steps used; None if there is none."""
        best = max(self._uses, key=lambda number: (self._uses[number], number == self._last_plan), default=None)
        return None if best is None else self._plans.get(best)

    @property
    def rank(self) -> Rank | None:
        """Which of several processes the run is of; None if the journal does not say so."""
        told, counters = self._rank, self._communication.counters
        if told is None or told.rank >= told.ranks:
            return None
        counters = dataclasses.replace(counters, waited_for_s=dict(counters.waited_for_s))
        return Rank(told.rank, told.ranks, told.group, told.zero, told.error, counters)

    @property
    def shrinkage(self) -> list[Shrinkage]:
        """For each origin, the bytes of its sampled arrays before and after compression."""
        return [Shrinkage(origin, *sums) for origin, sums in self._shrunk_bytes.items()]

    def _source(self, line: _WithOrigin) -> int:
        """Return the index in `_sources` of the origin that a line names; a new origin is added."""
        origin = Origin(*map(_told, (line.module, line.op, line.slot, line.dtype)))
        source = self._known.get(origin)
        if source is None:
            length = sum(len(name or "") for name in origin)
            if len(self._known) >= _ORIGINS_MAX or self._names_length + length > _NAMES_MAX:
                origin, length = NO_ORIGIN, 0
            self._names_length += length
            source = self._known.setdefault(origin, len(self._sources))
            if source == len(self._sources):
                self._sources.append((origin, self.origins.setdefault(origin, OriginCounters())))
        return source

    def _live_array(self, number: int) -> _Live | None:
        packed = self._live.get(number)
        if packed is None:
            return None
        return _Live(packed >> _SOURCE_BITS, *self._sources[packed & ((1 << _SOURCE_BITS) - 1)])

    def _note_step(self, number: int, step: int | None) -> None:
        if (self._with_places or self._on_ram is not None) and step is not None:
            self._steps[number] = step

    def _packed(self, line: events.Pack) -> None:
        source, nbytes = self._source(line), line.bytes
        for each in (self._sources[source][1], self.moved):
            each.arrays += 1
            each.packed_bytes += nbytes
        if len(self._live) < _LIVE_MAX:
            self._live[line.array] = nbytes << _SOURCE_BITS | source
            self._note_step(line.array, line.step)
            self._live_bytes += nbytes
        if line.step is not None:
            self.step = line.step

    def _relabeled(self, line: events.Label) -> None:
        former = self._live_array(line.array)
        if former is None:
            return
        source = self._source(line)
        for each, sign in ((former.moved, -1), (self._sources[source][1], 1)):
            each.arrays += sign
            each.packed_bytes += sign * former.nbytes
        self._live[line.array] = former.nbytes << _SOURCE_BITS | source
        self._note_step(line.array, line.step)
        if (held := self._ram.get(line.array)) is not None:
            self._ram_changed(line.t, line.array, -held.nbytes)
            self._ram_changed(line.t, line.array, held.nbytes)

    def _whose(self, line: _OfArray) -> _Live:
        """Return the array of a line: from the line if it describes the array, else the live array, else `_UNKNOWN`."""
        is_told = _told(line.dtype) is not None or (isinstance(line, events.Wait) and line.cause == "put")
        if not is_told:
            return self._live_array(line.array) or _UNKNOWN
        return _Live(_told(line.bytes) or 0, *self._sources[self._source(line)])

    def _kept(self, line: events.Keep) -> None:
        for each in (self._sources[self._source(line)][1], self.moved):
            each.kept_bytes += line.bytes

    def _shared(self, line: events.Share) -> None:
        nbytes, _, moved = self._live_array(line.array) or _UNKNOWN
        for each in (moved, self.moved):
            each.packed_bytes += nbytes
            each.deduplicated_bytes += nbytes

    def _written(self, line: events.Write) -> None:
        if line.array in self._live:
            self._stands(line)
        elif _told(line.dtype) is None and len(self._live) >= _LIVE_MAX:
            self.unplaced += 1
        nbytes, origin, moved = self._whose(line)
        stored = nbytes if isinstance(line.stored, UnsetType) or line.stored < 0 else line.stored
        for each in (moved, self.moved):
            each.written_bytes += nbytes
            each.stored_bytes += stored
        if self._on_span is not None:
            self._on_span(Span("write", line.t - line.took, line.took, line.array, nbytes, origin))

    def _read(self, line: events.Read) -> None:
        nbytes, origin, moved = self._whose(line)
        nbytes = nbytes if isinstance(line.part, UnsetType) else line.part
        self._fetched_bytes += nbytes if isinstance(line.stored, UnsetType) else line.stored
        for each in (moved, self.moved):
            each.read_bytes += nbytes
        if self._on_span is not None:
            self._on_span(
                Span("read", line.t - line.took, line.took, line.array, nbytes, origin, ahead=line.ahead is True)
            )

    def _waited(self, line: events.Wait) -> None:
        nbytes, origin, moved = self._whose(line)
        for each in (moved, self.moved):
            if line.cause == "put":
                each.wait_write_s += line.took
            else:
                each.wait_read_s += line.took
        if self._on_span is not None:
            cause = "put" if line.cause == "put" else "get"
            self._on_span(Span("wait", line.t - line.took, line.took, line.array, nbytes, origin, cause))

    def _stands(self, line: events.Place) -> None:
        """Record the place of an array; if the array is not live, the next `totals` line removes the place."""
        self._leaves(line.array)
        if not self._with_places or line.segment is None or line.dataset is None:
            return
        place = Place(
            sys.intern(line.segment), line.dataset, line.shape or [], _told(line.pieces), _told(line.xxh3_64),
            _told(line.codec), _told(line.order), _told(line.chunks) or [],
            None if isinstance(line, events.Write) else self._totals,
        )  # fmt: skip
        if len(self._places) < _LIVE_MAX and self._placed + _length(place) <= _PLACED_MAX:
            self._places[line.array] = place
            self._placed += _length(place)
        else:
            self.unplaced += 1

    def _leaves(self, array: int) -> None:
        self.is_flushed = False
        place = self._places.pop(array, None)
        if place is not None:
            self._placed -= _length(place)

    def _flushed(self, line: events.Flush) -> None:
        self.is_flushed = True

    def placed(self, segment: str) -> list[Placed]:
        """Return the arrays in a segment."""
        return [
            Placed(live.origin, self._steps.get(number), place)
            for number, place in self._places.items()
            if place.segment == segment and (live := self._live_array(number)) is not None
        ]

    def _freed(self, line: events.Free) -> None:
        self._leaves(line.array)
        self._steps.pop(line.array, None)
        packed = self._live.pop(line.array, None)
        if packed is not None:
            self._live_bytes -= packed >> _SOURCE_BITS

    def _ram_changed(self, t: float, array: int, nbytes: int) -> None:
        """Record that more or fewer bytes of an array count as RAM. No more go than came, whatever the line says."""
        if self._on_ram is None:
            return
        held = self._ram.pop(array, None)
        if held is None:
            origin = _ROOM if array == events.NO_ARRAY else (self._live_array(array) or _UNKNOWN).origin
            held = _InRam(0, origin, self._steps.get(array))
        nbytes = max(nbytes, -held.nbytes) if len(self._ram) < _LIVE_MAX else -held.nbytes
        if held.nbytes + nbytes:
            self._ram[array] = held._replace(nbytes=held.nbytes + nbytes)
        if nbytes:
            number = None if array == events.NO_ARRAY else array
            self._on_ram(RamChange(t, number, nbytes, held.origin, held.step))

    def _failed(self, line: events.Fail) -> None:
        self.failure_count += 1
        self.failures.append(Failure(line.t, line.reason[:1000]))

    def _lost(self, line: events.Lost) -> None:
        self.lost_lines += line.lines
        self.knows_places = False
        for number in list(self._places):  # the array may be freed, and another array in its place
            self._leaves(number)

    def _phase_began(self, line: events.Phase) -> None:
        if self._on_span is not None and self.phase is not None:
            self._on_span(Span(self.phase, self._phase_began_s, max(0.0, line.t - self._phase_began_s)))
        known = line.phase in ("forward", "backward", "update")
        self.phase, self._phase_began_s = line.phase if known else None, line.t

    def _step_ended(self, line: events.Step) -> None:
        began_s, batches = max(0.0, line.t - line.took), 1
        moved = OriginCounters() if line.moved is None else OriginCounters(*line.moved)
        number, place = line.number, len(self.steps) - 1 - self._unlabelled_steps
        newest = self.steps[place] if line.step is not None and place >= 0 else None
        is_batch = newest is not None and newest.label == line.step
        if newest is not None and is_batch:
            number, began_s, batches = newest.number, min(newest.began_s, began_s), newest.batches + 1
            moved = total([newest.moved, moved])
        step = Step(number, line.step, began_s, max(0.0, line.t - began_s), moved, batches)
        if is_batch:
            self.steps[place] = step
        else:
            self.steps.append(step)
            self._unlabelled_steps = 0 if line.step is not None else self._unlabelled_steps + 1
        if line.plan is not None:
            self._uses[line.plan] += 1
            self._last_plan = line.plan
            if len(self._uses) > 2 * _PLANS_MAX:
                self._uses.clear()

    def _planned(self, line: events.Plan) -> None:
        arrays, happened, to = _told(line.arrays) or [], _told(line.happened) or "", _told(line.to) or []
        is_sound = len(happened) == len(to) and all(kind in _KINDS for kind in set(happened))
        # A store lists only arrays that take part in an event.
        if line.plan is None or not is_sound or (to and max(to) >= len(arrays)) or len(arrays) > len(to):
            self.damaged_lines += 1
        elif line.plan in self._plans or len(self._plans) < _PLANS_MAX:
            told = [(_KINDS[kind], place) for kind, place in zip(happened, to, strict=True)]
            too_long = len(told) > LONGEST_PLAN
            self._plans[line.plan] = (
                StepPlan([], [], len(told)) if too_long else StepPlan(arrays, told, _told(line.events) or 0)
            )
            self._uses[line.plan] = 0

    def _joined(self, line: events.Rank) -> None:
        self._rank = line

    def _communicated(self, line: events.Collective) -> None:
        waited_s, moved = min(line.waited, line.took), (line.sent, line.received)
        self._communication.add(line.t, line.took, waited_s, *moved, line.slowest, line.behind)
        if self._on_span is not None:
            about: dict[str, Any] = {"what": line.what or "collective", "slowest": line.slowest}
            self._on_span(Span("collective", line.t - line.took, line.took, nbytes=line.sent, **about))
            if waited_s:
                self._on_span(Span("wait", line.t - waited_s, waited_s, cause="collective", **about))

    def _sampled(self, line: events.Sample) -> None:
        self._stats = dataclasses.replace(
            self._stats,
            ram_bytes=line.ram,
            peak_ram_bytes=line.peak_ram,
            disk_bytes=line.disk,
            peak_disk_bytes=max(self._stats.peak_disk_bytes, line.disk),
            cache_hits=line.hits,
            cache_misses=line.misses,
        )
        if self.samples and line.t - self.samples[-1].t < self._sample_gap_s:
            return
        self.samples.append(
            Sample(
                line.t, line.ram, line.hot, line.writing, line.cached, line.lent, line.live, line.disk, line.rss,
                line.written, line.read, line.hits, line.misses, line.waited,
            )
        )  # fmt: skip
        if len(self.samples) > _SAMPLES_MAX:
            del self.samples[1::2]
            self._sample_gap_s = 2 * (self.samples[-1].t - self.samples[0].t) / len(self.samples)

    def _shrunk(self, line: events.Shrink) -> None:
        nbytes, origin, _ = self._whose(line)
        if nbytes and line.sampled:
            sums = self._shrunk_bytes.setdefault(origin, [0, 0])
            sums[0] += nbytes
            sums[1] += math.ceil(nbytes * min(line.shrunk / line.sampled, 1.0))

    def _begun(self, line: events.Totals) -> None:
        if line.totals is not None:
            self._take(line.totals, line.t)

    def _ended(self, line: events.End) -> None:
        if line.totals:
            self._take(line.totals, line.t)
        self.ended = True

    def _take(self, sums: events.Sums, t: float) -> None:
        """Replace all sums by those of a `totals` or `end` line."""
        stats = sums.stats
        self._stats = StoreStats(**{field.name: getattr(stats, field.name) for field in dataclasses.fields(StoreStats)})
        self._fetched_bytes = stats.fetched_bytes or stats.read_bytes  # which older versions did not tell apart
        origins = [Origin(*each[:4]) for each in sums.origins]
        moved = [OriginCounters(*each[4:]) for each in sums.origins]
        self._sources = list(zip(origins[:_ORIGINS_MAX], moved, strict=False))
        self._known = {origin: source for source, (origin, _) in enumerate(self._sources)}
        self.origins = dict(self._sources)
        self.moved = OriginCounters(
            arrays=sum(each.arrays for each in moved),
            kept_bytes=sums.kept,
            **{name: getattr(stats, name) for name in IN_STATS},
        )
        self._live = {
            number: nbytes << _SOURCE_BITS | source
            for number, nbytes, source, _ in sums.live[:_LIVE_MAX]
            if source < len(self._sources)
        }
        self._steps = {}
        for number, _, _, step in sums.live[:_LIVE_MAX]:
            self._note_step(number, step)
        for number, place in list(self._places.items()):
            if number not in self._live or place.retold != self._totals:
                self._leaves(number)
        self._totals += 1
        self.knows_places = True
        self._live_bytes = sum(packed >> _SOURCE_BITS for packed in self._live.values())
        if (told := sums.communication) is not None:
            self._rank = told.rank or self._rank
            moved_bytes, waited_for_s = (told.sent, told.received), dict(told.waited_for)
            counters = CommunicationCounters(told.collectives, *moved_bytes, told.busy, told.exposed, waited_for_s)
            self._communication = CommunicationSum(counters)
        if sums.ram is not None:  # the lines that told of it may be missing
            in_ram = dict(sums.ram)
            for number in (*self._ram, *in_ram):
                held = self._ram.get(number)
                self._ram_changed(t, number, in_ram.get(number, 0) - (0 if held is None else held.nbytes))


def _told(value: _T | UnsetType | None) -> _T | None:
    return None if isinstance(value, UnsetType) else value


def _length(place: Place) -> int:
    return 1 + len(place.pieces or ()) + len(place.chunks)
