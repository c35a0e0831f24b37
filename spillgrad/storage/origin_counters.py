"""Origins of arrays, and the counters of the arrays of each origin."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Where arrays come from; a field is None if it is unknown.

    Parameters
    ----------
    module : str, optional
        Path of the module.
    op : str, optional
        Name of the operation.
    slot : str, optional
        The operation's name for the array.
    dtype : str, optional
        Name of the dtype.
    """

    module: str | None = None
    op: str | None = None
    slot: str | None = None
    dtype: str | None = None


NO_ORIGIN = Origin()


@dataclasses.dataclass(slots=True)
class OriginCounters:
    """The number of arrays of an origin, and what happened to them, in bytes and seconds.

    Parameters
    ----------
    arrays : int
        Number of arrays.
    packed_bytes : int
        Bytes that were put.
    deduplicated_bytes : int
        Those of the packed bytes that the store had already.
    kept_bytes : int
        Bytes that stayed in RAM outside the store.
    written_bytes : int
        Bytes that were written to disk.
    stored_bytes : int
        Bytes that the written ones took on disk, after encoding.
    read_bytes : int
        Bytes that were read back.
    wait_write_s : float
        Seconds that callers waited for room.
    wait_read_s : float
        Seconds that callers waited for reads.
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
        """Return what was counted since an earlier time.

        Parameters
        ----------
        before : OriginCounters
            The counters of that time.

        Returns
        -------
        OriginCounters
            These counters minus `before`.
        """
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
