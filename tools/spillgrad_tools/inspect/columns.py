"""The counters of a group of arrays, each a column in the terminal's tables and in those of a report."""

from collections.abc import Callable
from typing import Any, NamedTuple

from spillgrad.storage.origin_counters import OriginCounters
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.quantities import format_duration, short_bytes, short_duration


class Counted(NamedTuple):
    """A counter: its names in `--sort`, in a report (`title`) and on the terminal (`head`), and how it is written.

    Where not all columns have room, those of the least `worth` are left out first.
    """

    name: str
    attribute: str
    worth: int
    title: str
    head: str
    write: Callable[[Any], str] = format_bytes
    write_short: Callable[[Any], str] = short_bytes

    def of(self, moved: OriginCounters) -> Any:
        """Return the counter's value."""
        return getattr(moved, self.attribute)

    def matters(self, total: OriginCounters) -> bool:
        """Return whether to show the counter of arrays with these totals: `stored` only if a codec changed the size."""
        if self.name == "stored":
            return total.stored_bytes not in (0, total.written_bytes)
        return self.name in ("packed", "written", "read") or self.of(total) > 0


COLUMNS = {
    column.name: column
    for column in (
        Counted("arrays", "arrays", 0, "arrays", "arrays", "{:,}".format, str),
        Counted("packed", "packed_bytes", 4, "packed", "packed"),
        Counted("deduplicated", "deduplicated_bytes", 2, "deduplicated", "dedup"),
        Counted("kept", "kept_bytes", 1, "kept", "kept"),
        Counted("written", "written_bytes", 7, "written", "written"),
        Counted("stored", "stored_bytes", 3, "stored", "stored"),
        Counted("read", "read_bytes", 6, "read", "read"),
        Counted("wait", "wait_s", 5, "waited", "waited", format_duration, short_duration),
    )
}
