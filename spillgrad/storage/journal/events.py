"""The events of a journal, one class for each kind of line. Stores write these classes, and inspection reads them.

Limits on values protect readers: a line may be cut off, or come from an attacker. A key that a line lacks has its
default value. A store sets a key to `UNSET` to leave it out of the line. `docs/how_it_works/files.md` says what the
keys mean.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from spillgrad.storage.disk.chunks import TOLD_PIECES_MAX

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Name = Annotated[str, msgspec.Meta(max_length=1000)] | None
RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 16))]

# The number in place of an array's, for bytes that are of no array.
NO_ARRAY = -1


class Head(msgspec.Struct):
    """The first line of a file: the run, and the options of its store."""

    format: object = None
    began: Name = None
    process: int | None = None
    host: Name = None
    command: str | None = None
    version: Name = None
    run: str | None = None
    budget: Count | None = None
    codec: Name = None
    encrypt: bool | None = None
    checksums: bool | None = None
    on_full: Name = None


class Event(msgspec.Struct, tag_field="event", kw_only=True, gc=False):
    """An event, `t` seconds after the run began."""

    t: Seconds = 0.0


class ArrayEvent(Event, gc=False):
    """An event of one array."""

    array: int = -1


class Keep(Event, tag="keep", gc=False):
    """An array stays in RAM outside the store."""

    bytes: Count = 0
    module: Name = None
    op: Name = None
    slot: Name = None
    dtype: Name = None
    step: int | None = None


class Pack(Keep, tag="pack", gc=False):
    """A new array was put."""

    array: int = -1


class Label(Pack, tag="label", gc=False):
    """An array got a new label, because its origin became known only now."""


class Share(ArrayEvent, tag="share", gc=False):
    """An array was put again while the store still had it."""


class Change(ArrayEvent, tag="change", gc=False):
    """An array has new values: its stored bytes are out of date."""


class Free(ArrayEvent, tag="free", gc=False):
    """An array was freed."""


class Ram(ArrayEvent, tag="ram", gc=False):
    """So many more bytes of an array, or of `NO_ARRAY`, count as RAM; or fewer, if `bytes` is negative."""

    bytes: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=(1 << 62))] = 0


class Place(ArrayEvent, tag="place", gc=False):
    """The place on disk of an array that was written before."""

    segment: Name = None
    dataset: Name = None
    shape: Annotated[list[Count], msgspec.Meta(max_length=64)] | None = None
    pieces: Annotated[list[tuple[Count, Count]], msgspec.Meta(max_length=TOLD_PIECES_MAX)] | UnsetType | None = UNSET
    xxh3_64: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | UnsetType | None = UNSET
    order: Name | UnsetType = UNSET
    stored: int | UnsetType = UNSET
    codec: Name | UnsetType = UNSET
    chunks: Annotated[list[Count], msgspec.Meta(max_length=TOLD_PIECES_MAX)] | UnsetType | None = UNSET


class Write(Place, tag="write", gc=False):
    """An array was written. If the array was freed meanwhile, the line also has the array's bytes and origin."""

    took: Seconds = 0.0
    bytes: Count | UnsetType = UNSET
    module: Name | UnsetType = UNSET
    op: Name | UnsetType = UNSET
    slot: Name | UnsetType = UNSET
    dtype: Name | UnsetType = UNSET


class ToldEvent(ArrayEvent, gc=False):
    """An event of one array. If the array was freed meanwhile, the line also has the array's bytes and origin."""

    bytes: Count | UnsetType = UNSET
    module: Name | UnsetType = UNSET
    op: Name | UnsetType = UNSET
    slot: Name | UnsetType = UNSET
    dtype: Name | UnsetType = UNSET


class Read(ToldEvent, tag="read", gc=False):
    """An array was read, or `part` of its bytes; `ahead` is true for a prefetch. Encoded, it was `stored` bytes."""

    took: Seconds = 0.0
    ahead: bool | UnsetType = UNSET
    part: Count | UnsetType = UNSET
    stored: Count | UnsetType = UNSET


class Shrink(ToldEvent, tag="shrink", gc=False):
    """The bytes of a sample of an array, before (`sampled`) and after (`shrunk`) lossless compression."""

    sampled: Count = 0
    shrunk: Count = 0


class Wait(ToldEvent, tag="wait", gc=False):
    """A caller waited in `put` or `get`. For `put`, the origin of the new array is always given."""

    took: Seconds = 0.0
    cause: Name = msgspec.field(default=None, name="in")


class Fail(ArrayEvent, tag="fail", gc=False):
    """An array could not be written to disk."""

    reason: str = ""


class Flush(Event, tag="flush", gc=False):
    """The structure of the files is complete: HDF5 finds every array."""


class Phase(Event, tag="phase", gc=False):
    """A phase of a step begins: forward, backward, update, or None between steps."""

    phase: Name = None


class Step(Event, tag="step", gc=False):
    """A step ended."""

    took: Seconds = 0.0
    number: Count = 0
    step: int | None = None
    plan: int | None = None
    moved: tuple[Count, Count, Count, Count, Count, Count, Count, Seconds, Seconds] | None = None


class Plan(Event, tag="plan", gc=False):
    """The puts, uses and drops of a step; for a long step, only their number."""

    plan: int | None = None
    arrays: list[tuple[Count, bool]] | UnsetType | None = UNSET
    happened: str | UnsetType = UNSET
    to: list[Count] | UnsetType | None = UNSET
    events: Count | UnsetType = UNSET


class Rank(Event, tag="rank", gc=False):
    """The process is rank `rank` of `ranks` that train together.

    `group` is a name that they share; `zero` is when the run began, in seconds since 1970 by the clock of rank 0, to
    within `error` seconds. Each is None if it is unknown.
    """

    rank: RankNumber = 0
    ranks: RankNumber = 1
    group: Name = None
    zero: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    error: Seconds | None = None


class Collective(Event, tag="collective", gc=False):
    """A collective ended. The program stood still for `waited` of the seconds that the collective `took`.

    The messages of the rank `slowest` came last, and were awaited for `behind` seconds.
    """

    what: Name = None
    sent: Count = 0
    received: Count = 0
    took: Seconds = 0.0
    waited: Seconds = 0.0
    slowest: RankNumber | None = None
    behind: Seconds = 0.0


class Sample(Event, tag="sample", gc=False):
    """The bytes that the store holds at this moment, and its counters."""

    ram: Count = 0
    peak_ram: Count = 0
    hot: Count = 0
    writing: Count = 0
    cached: Count = 0
    lent: Count = 0
    live: Count = 0
    disk: Count = 0
    rss: Count = 0
    written: Count = 0
    read: Count = 0
    hits: Count = 0
    misses: Count = 0
    waited: Seconds = 0.0


class Stats(msgspec.Struct, gc=False):
    """The fields of `StoreStats`; a field that an older version did not write is 0."""

    packed_bytes: Count = 0
    deduplicated_bytes: Count = 0
    written_bytes: Count = 0
    stored_bytes: Count = 0
    read_bytes: Count = 0
    fetched_bytes: Count = 0
    live_bytes: Count = 0
    ram_bytes: Count = 0
    peak_ram_bytes: Count = 0
    disk_bytes: Count = 0
    peak_disk_bytes: Count = 0
    cache_hits: Count = 0
    cache_misses: Count = 0
    wait_write_s: Seconds = 0.0
    wait_read_s: Seconds = 0.0
    writing_s: Seconds = 0.0
    reading_s: Seconds = 0.0


OriginSums = tuple[
    Name, Name, Name, Name, Count, Count, Count, Count, Count, Count, Count, Seconds, Seconds
]  # fmt: skip


class CommunicationSums(msgspec.Struct):
    """Sums of all collectives; `waited_for` has (rank, seconds) of ranks for which the program stood still."""

    collectives: Count = 0
    sent: Count = 0
    received: Count = 0
    busy: Seconds = 0.0
    exposed: Seconds = 0.0
    waited_for: list[tuple[RankNumber, Seconds]] = []
    rank: Rank | None = None


class Sums(msgspec.Struct):
    """Sums of all earlier events; `live` has (number, bytes, index into `origins`, training step) of live arrays.

    `ram` has (number, bytes in RAM) of all arrays in RAM, or is None in a journal without `ram` events.
    """

    stats: Stats
    kept: Count
    steps: Count
    origins: list[OriginSums]
    live: list[tuple[Count, Count, Count, int | None]]
    ram: list[tuple[int, Count]] | None = None
    communication: CommunicationSums | None = None


class Totals(Event, tag="totals", gc=False):
    """The sums of all events before this one."""

    totals: Sums | None = None


class End(Event, tag="end", gc=False):
    """The store was closed."""

    totals: Sums | UnsetType | None = UNSET


class Lost(Event, tag="lost", gc=False):
    """Lines of the journal could not be written; `lines` is their number."""

    lines: Count = 0


AnyEvent = (
    Pack | Label | Keep | Share | Change | Free | Ram | Place | Write | Read | Shrink | Wait | Fail | Flush | Phase
    | Step | Plan | Rank | Collective | Sample | Totals | End | Lost
)  # fmt: skip
encoder = msgspec.json.Encoder()
