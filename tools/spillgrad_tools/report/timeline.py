"""The timeline of a report: spans in lanes; short spans are merged if there are more than a page can hold."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from spillgrad.inspection.printable import origin_name
from spillgrad.inspection.records import Span
from spillgrad.storage.origin_counters import Origin

# The most bars and names in a page; a bar takes some 40 bytes.
MOST_BARS = 40_000
MOST_NAMES = 2_000
# The rows of a lane: spans that overlap get a row each. If more overlap, they share the last row.
MOST_ROWS = 3
# Journals round times to microseconds: a span that begins as another ends must not seem to overlap it.
ROUNDING_S = 2e-6
# The largest integer that JavaScript's numbers hold exactly; a larger number in a journal is forged.
EXACT = 2**53

LANES = (
    ("computing", ("forward", "backward", "update")),
    ("waiting", ("wait for room", "wait for data")),
    ("writing", ("write",)),
    ("reading, asked for", ("read",)),
    ("reading ahead", ("read ahead",)),
)
KINDS = tuple(kind for _, kinds in LANES for kind in kinds)
_LANE_OF = np.array([lane for lane, (_, kinds) in enumerate(LANES) for _ in kinds])
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_COLUMNS = {"kind": "i1", "name": "i4", "began_s": "f8", "took_s": "f8", "nbytes": "i8", "array": "i8"}


class Spans:
    """The spans of a run as NumPy arrays, one a column: a span takes 40 bytes, in place of some 300 as a `Span`."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.names: list[str] = []
        self._number_of: dict[Origin, int] = {}
        rows = (self._row(kind, span) for span in spans if (kind := _NUMBER_OF.get(span.title)) is not None)
        found = np.fromiter(rows, np.dtype([*_COLUMNS.items()], align=True))
        self.kind, self.name, self.began_s, self.took_s, self.nbytes, self.array = (found[each] for each in _COLUMNS)

    def __len__(self) -> int:
        return len(self.kind)

    def _row(self, kind: int, span: Span) -> tuple[float, ...]:
        if span.origin not in self._number_of:
            self._number_of[span.origin] = self._name(span.origin)
        array = span.array if span.array is not None and 0 <= span.array < EXACT else -1
        return kind, self._number_of[span.origin], span.began_s, max(span.took_s, 0.0), span.nbytes, array

    def _name(self, origin: Origin) -> int:
        if origin == Origin() or len(self.names) >= MOST_NAMES:
            return -1
        self.names.append(origin_name(origin))
        return len(self.names) - 1


def timeline(spans: Spans, most_bars: int = MOST_BARS) -> dict[str, Any]:
    """Return the lanes of the page, and for each kind of span the columns of its bars, sorted by when they begin.

    A bar is one span, or the sum of spans of one row that are shorter than `merged_below_us` and began in the same
    interval of that length. Units: microseconds and bytes.
    """
    rows = _rows(spans)
    below_s, cells = _merged(spans, rows, most_bars)
    lanes, first_row = [], 0
    for number, (title, _) in enumerate(LANES):
        count = int(rows[_LANE_OF[spans.kind] == number].max(initial=0)) + 1
        lanes.append({"name": title, "first_row": first_row, "rows": count})
        first_row += count
    bars = [
        {"kind": kind, "lane": int(_LANE_OF[number]), **_bars(spans, rows, cells, np.flatnonzero(spans.kind == number))}
        for number, kind in enumerate(KINDS)
    ]
    found = {"lanes": lanes, "bars": bars, "names": spans.names, "spans": len(spans)}
    return {**found, "merged_below_us": round(below_s * 1e6)}


def _rows(spans: Spans) -> np.ndarray:
    """Return each span's row in its lane: the first row that is free when the span begins, else the last row."""
    rows = np.zeros(len(spans), np.int8)
    ends: list[list[float]] = [[] for _ in LANES]
    lanes, began, ended = _LANE_OF[spans.kind], spans.began_s, spans.began_s + spans.took_s
    for span in np.argsort(began, kind="stable").tolist():
        taken = ends[lanes[span]]
        start = began[span] + ROUNDING_S
        row = next((row for row, end in enumerate(taken) if end <= start), len(taken))
        if row == MOST_ROWS:
            row -= 1
            taken[row] = max(taken[row], ended[span])
        elif row == len(taken):
            taken.append(ended[span])
        else:
            taken[row] = ended[span]
        rows[span] = row
    return rows


def _merged(spans: Spans, rows: np.ndarray, most_bars: int) -> tuple[float, np.ndarray]:
    """Return the seconds below which spans are merged, so that at most `most_bars` bars remain, and each span's cell.

    Spans of the same cell are merged into one bar; a span with the cell -1 is a bar of its own.
    """
    cells = np.full(len(spans), -1, np.int64)
    if len(spans) <= most_bars:
        return 0.0, cells
    from_first_s = spans.began_s - spans.began_s.min()
    lines = spans.kind.astype(np.int64) * MOST_ROWS + rows
    below_s = max(float(from_first_s.max()), ROUNDING_S) / most_bars / 8
    while True:
        cells[:] = np.floor(from_first_s / below_s).astype(np.int64) * (len(KINDS) * MOST_ROWS) + lines
        cells[spans.took_s >= below_s] = -1
        if np.count_nonzero(cells < 0) + len(np.unique(cells[cells >= 0])) <= most_bars:
            return below_s, cells
        below_s *= 2**0.5


def _bars(spans: Spans, rows: np.ndarray, cells: np.ndarray, chosen: np.ndarray) -> dict[str, list[int]]:
    """Merge the spans with the indices `chosen` into bars by their cells, and return the columns of the bars."""
    if not len(chosen):
        return {key: [] for key in ("row", "began", "took", "spans", "bytes", "busy", "name", "array")}
    chosen = chosen[np.argsort(cells[chosen], kind="stable")]
    cell, began, took = cells[chosen], spans.began_s[chosen], spans.took_s[chosen]
    starts = np.flatnonzero(np.append(True, (cell[1:] < 0) | (cell[1:] != cell[:-1])))
    count = np.diff(np.append(starts, len(chosen)))
    ended = np.maximum.reduceat(began + took, starts)
    began = np.minimum.reduceat(began, starts)
    columns = {
        "row": rows[chosen][starts],
        "began": np.rint(began * 1e6),
        "took": np.rint((ended - began) * 1e6),
        "spans": count,
        "bytes": np.add.reduceat(spans.nbytes[chosen].astype(np.float64), starts),
        "busy": np.rint(np.add.reduceat(took, starts) * 1e6),
        "name": np.where(count == 1, spans.name[chosen][starts], -1),
        "array": np.where(count == 1, spans.array[chosen][starts], -1),
    }
    by_time = np.lexsort((columns["row"], columns["began"]))
    return {key: np.clip(column[by_time], -EXACT, EXACT).astype(np.int64).tolist() for key, column in columns.items()}
