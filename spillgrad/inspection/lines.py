"""The lines of a journal as values, checked: whoever wrote them may mean harm, or have been killed in the middle."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from spillgrad.storage.disk.chunks import TOLD_PIECES_MAX

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Name = Annotated[str, msgspec.Meta(max_length=1000)] | None

# Longer than any that a journal has; a line that goes on is no line of one.
LONGEST_BYTES = 4 << 20


class Stats(msgspec.Struct, gc=False):
    """`StoreStats`, of whatever version."""

    packed_bytes: Count = 0
    deduplicated_bytes: Count = 0
    written_bytes: Count = 0
    stored_bytes: Count = 0
    read_bytes: Count = 0
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


OriginTotals = tuple[
    Name, Name, Name, Name, Count, Count, Count, Count, Count, Count, Count, Seconds, Seconds
]  # fmt: skip


class Totals(msgspec.Struct):
    """All that happened before, and the arrays there are: number, bytes, place among the origins, and training step."""

    stats: Stats
    kept: Count
    steps: Count
    origins: list[OriginTotals]
    live: list[tuple[Count, Count, Count, int | None]]


class Line(msgspec.Struct, gc=False):
    """A line of whatever event; what it does not have stands at its default. A head has `format`."""

    t: Seconds = 0.0
    event: str = ""
    array: int = -1
    bytes: Count = 0
    took: Seconds = 0.0
    module: Name = None
    op: Name = None
    slot: Name = None
    dtype: Name = None
    step: int | None = None
    stored: int = -1
    ahead: bool = False
    cause: Name = msgspec.field(default=None, name="in")
    phase: Name = None
    number: Count = 0
    plan: int | None = None
    events: Count = 0
    moved: tuple[Count, Count, Count, Count, Count, Count, Count, Seconds, Seconds] | None = None
    lines: Count = 0
    reason: str = ""
    segment: Name = None
    dataset: Name = None
    shape: Annotated[list[Count], msgspec.Meta(max_length=64)] | None = None
    pieces: Annotated[list[tuple[Count, Count]], msgspec.Meta(max_length=TOLD_PIECES_MAX)] | None = None
    xxh3_64: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None
    codec: Name = None
    order: Name = None
    chunks: Annotated[list[Count], msgspec.Meta(max_length=TOLD_PIECES_MAX)] | None = None
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
    sampled: Count = 0
    shrunk: Count = 0
    arrays: list[tuple[Count, bool]] | None = None
    happened: str = ""
    to: list[Count] | None = None
    totals: Totals | None = None


class Head(msgspec.Struct):
    """The first line of a file."""

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


_lines = msgspec.json.Decoder(Line)
_heads = msgspec.json.Decoder(Head)


def read_head(line: bytes) -> Head | None:
    """Return the head of a journal; None where the line is none."""
    try:
        head = _heads.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if head.format is None else head


def read_lines(data: bytes) -> Iterator[Line | None]:
    """Yield whole lines; None for what is none."""
    try:
        yield from _lines.decode_lines(data)
        return
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # which of them, is to be found
    for text in filter(None, data.split(b"\n")):
        try:
            line: Line | None = _lines.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            line = None
        yield line
