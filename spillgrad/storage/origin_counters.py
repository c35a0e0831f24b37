"""Origins of arrays, and the counters of the arrays of each origin."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Where arrays come from; a field is None if it is unknown."""

    module: str | None = None
    op: str | None = None
    slot: str | None = None
    dtype: str | None = None


NO_ORIGIN = Origin()


@dataclasses.dataclass(slots=True)
class OriginCounters:
    """Counts the arrays of an origin, and what happened to them.

    Units: bytes and seconds. `packed_bytes` were put; the store had `deduplicated_bytes` of them already. `kept_bytes`
    stayed in RAM outside the store. `written_bytes` were written to disk, where they took `stored_bytes` after
    encoding, and `read_bytes` were read back. Callers waited `wait_write_s` for room, and `wait_read_s` for reads.
    """

    arrays: int = 0
    packed_bytes: int = 0
    deduplicated_bytes: int = 0
    kept_bytes: int = 0
    written_bytes: int = 0
    stored_bytes: int = 0
    read_bytes: int = 0
    wait_write_s: float = 0.0
    wait_read_s: float = 0.0

    @property
    def wait_s(self) -> float:
        """How many seconds callers waited."""
        return self.wait_write_s + self.wait_read_s

    def since(self, before: "OriginCounters") -> "OriginCounters":
        """Return these counters minus `before`."""
        return OriginCounters(*(now - then for now, then in zip(values(self), values(before), strict=True)))


# The fields that `StoreStats` has too.
IN_STATS = tuple(name for name in OriginCounters.__slots__ if name not in ("arrays", "kept_bytes"))


def values(moved: OriginCounters) -> tuple[Any, ...]:
    """Return the counters as a tuple, in the journal's order."""
    return tuple(getattr(moved, name) for name in OriginCounters.__slots__)


def total(parts: Iterable[OriginCounters]) -> OriginCounters:
    """Return the sum of the counters in `parts`."""
    return (
        OriginCounters(*map(sum, zip(*map(values, parts), strict=True))) if (parts := list(parts)) else OriginCounters()
    )
