"""Origins of arrays, and the counters of the arrays of each origin."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Where arrays come from; None where it is unknown."""

    module: str | None = None
    op: str | None = None
    slot: str | None = None
    dtype: str | None = None


NO_ORIGIN = Origin()


@dataclasses.dataclass(slots=True)
class OriginCounters:
    """How many arrays came, and what became of them.

    Units: bytes and seconds. `packed_bytes` came to the store, `deduplicated_bytes` of them were there already;
    `kept_bytes` stayed in RAM beside it. `written_bytes` went to disk, where a codec made `stored_bytes` of them, and
    `read_bytes` came back. Callers waited `wait_write_s` for room, and `wait_read_s` for what was read.
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
        """Return the difference."""
        return OriginCounters(*(now - then for now, then in zip(values(self), values(before), strict=True)))


# The fields that `StoreStats` has too.
IN_STATS = tuple(name for name in OriginCounters.__slots__ if name not in ("arrays", "kept_bytes"))


def values(moved: OriginCounters) -> tuple[Any, ...]:
    """Return the fields in order, as journals have them."""
    return tuple(getattr(moved, name) for name in OriginCounters.__slots__)


def total(parts: Iterable[OriginCounters]) -> OriginCounters:
    """Return the sum."""
    return (
        OriginCounters(*map(sum, zip(*map(values, parts), strict=True))) if (parts := list(parts)) else OriginCounters()
    )
