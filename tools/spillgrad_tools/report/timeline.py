"""The timeline of a report: spans in lanes; short spans are merged if there are more than a page can hold."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

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
    ("waiting", ("wait for room", "wait for data", "wait for ranks")),
    ("communicating", ("collective",)),
    ("writing", ("write",)),
    ("reading, asked for", ("read",)),
    ("reading ahead", ("read ahead",)),
)
KINDS = tuple(kind for _, kinds in LANES for kind in kinds)
_LANE_OF = np.array([lane for lane, (_, kinds) in enumerate(LANES) for _ in kinds])
# A run alone has no lanes for these.
_OF_RANKS = ("communicating",)
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_COLUMNS = {"part": "i4", "kind": "i1", "name": "i4", "began_s": "f8", "took_s": "f8", "nbytes": "i8", "array": "i8"}


class Spans:
    """The spans of runs as NumPy arrays, one a column: a span takes 40 bytes, in place of some 300 as a `Span`.

    `parts` names the runs: one alone has no name. `zeros_s` are added to the times of each.
    """

    def __init__(self, *timed: Iterable[Span], parts: Sequence[str] = ("",), zeros_s: Sequence[float] = (0.0,)) -> None:
        self.parts = list(parts)
        self.names: list[str] = []
        self._number_of: dict[tuple[Origin, str | None, int | None], int] = {}
        rows = (
            self._row(part, kind, span)
            for part, spans in enumerate(timed)
            for span in spans
            if (kind := _NUMBER_OF.get(span.title)) is not None
        )
        found = np.fromiter(rows, np.dtype([*_COLUMNS.items()], align=True))
        self.part, self.kind, self.name, began_s, self.took_s, self.nbytes, self.array = (found[c] for c in _COLUMNS)
        self.began_s = began_s + np.asarray(zeros_s)[self.part]

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def lane(self) -> np.ndarray:
        """The lane of each span: those of the first run come first."""
        found: np.ndarray = self.part * len(LANES) + _LANE_OF[self.kind]
        return found

    def _row(self, part: int, kind: int, span: Span) -> tuple[float, ...]:
        about = span.origin, span.what, span.slowest
        if about not in self._number_of:
            self._number_of[about] = self._name(span)
        array = span.array if span.array is not None and 0 <= span.array < EXACT else -1
        return part, kind, self._number_of[about], span.began_s, max(span.took_s, 0.0), span.nbytes, array

    def _name(self, span: Span) -> int:
        if (span.origin == Origin() and span.what is None) or len(self.names) >= MOST_NAMES:
            return -1
        self.names.append(span.name)
        return len(self.names) - 1


def timeline(spans: Spans, most_bars: int = MOST_BARS) -> dict[str, Any]:
    """Return the lanes of the page, and for each kind of span the columns of its bars, sorted by when they begin.

    A bar is one span, or the sum of spans of one row that are shorter than `merged_below_us` and began in the same
    interval of that length. Units: microseconds and bytes.
    """
    rows = _rows(spans)
    below_s, cells = _merged(spans, rows, most_bars)
    lanes: list[dict[str, Any]] = []
    place_of, first_row = {}, 0
    lane_of = spans.lane
    for number, (part, (title, _)) in enumerate(itertools.product(spans.parts, LANES)):
        in_lane = rows[lane_of == number]
        if not len(in_lane) and (part or title in _OF_RANKS):
            continue
        place_of[number] = len(lanes)
        count = int(in_lane.max(initial=0)) + 1
        name = f"{part}, {title.replace(',', '')}" if part else title
        lanes.append({"name": name, "first_row": first_row, "rows": count})
        first_row += count
    bars = [
        {
            "kind": kind,
            "lane": place_of.get(part * len(LANES) + int(_LANE_OF[number]), -1),  # a lane that is left out has no bars
            **_bars(spans, rows, cells, np.flatnonzero((spans.kind == number) & (spans.part == part))),
        }
        for part in range(len(spans.parts))
        for number, kind in enumerate(KINDS)
    ]
    found = {"lanes": lanes, "bars": bars, "names": spans.names, "spans": len(spans)}
    return {**found, "merged_below_us": round(below_s * 1e6)}


def _rows(spans: Spans) -> np.ndarray:
    """Return each span's row in its lane: the first row that is free when the span begins, else the last row."""
    rows = np.zeros(len(spans), np.int8)
    ends: list[list[float]] = [[] for _ in itertools.product(spans.parts, LANES)]
    lanes, began, ended = spans.lane, spans.began_s, spans.began_s + spans.took_s
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
    count = len(KINDS) * MOST_ROWS * len(spans.parts)
    lines = (spans.part.astype(np.int64) * len(KINDS) + spans.kind) * MOST_ROWS + rows
    below_s = max(float(from_first_s.max()), ROUNDING_S) / most_bars / 8
    while True:
        cells[:] = np.floor(from_first_s / below_s).astype(np.int64) * count + lines
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
