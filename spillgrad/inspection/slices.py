"""Read a part of an array, selected by an index in NumPy's notation; the index is parsed, never evaluated."""

import itertools
import math
import operator
import re
from collections.abc import Iterator
from types import EllipsisType

import numpy as np

from spillgrad.errors import ArgumentError, DimensionError
from spillgrad.inspection.printable import printable
from spillgrad.inspection.values import PIECE_BYTES, StoredValues

Index = int | slice | EllipsisType

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
# Rows that are at most this far apart are read together, with the bytes between them.
_GAP_BYTES = 64 << 10
# NumPy prints EDGE elements from each end of an axis if an array has more than THRESHOLD elements.
EDGE, THRESHOLD = 3, 1000
MOST_SHOWN = 100_000


def parse_index(text: str) -> tuple[Index, ...]:
    """Parse an index: integers, slices with steps, and at most one `...`, separated by commas.

    Raises ArgumentError, which names the character at which `text` stops making sense.
    """
    found: list[Index] = []
    place = 0
    parts = text.split(",") if text.strip() else []
    if len(parts) > 1 and not parts[-1].strip():  # as in Python
        parts.pop()
    for part in parts:
        found.append(_parse_part(part, place, text))
        if found.count(...) > 1:
            raise _mistake(text, place, "only one ... may be there")
        place += len(part) + 1
    return tuple(found)


def _parse_part(part: str, place: int, text: str) -> Index:
    if part.strip() == "...":
        return ...
    numbers: list[int | None] = []
    for number in part.split(":"):
        at = place + len(number) - len(number.lstrip())
        if number.strip() and not _INTEGER.fullmatch(number.strip()):
            raise _mistake(text, at, "an integer, a slice or ... must be there")
        numbers.append(int(number) if number.strip() else None)
        place += len(number) + 1
    if len(numbers) > 3:
        raise _mistake(text, at, "a slice has no more than start:stop:step")
    if len(numbers) == 3 and numbers[2] == 0:
        raise _mistake(text, at, "a step cannot be 0")
    if len(numbers) > 1:
        return slice(*numbers)
    if numbers[0] is None:
        raise _mistake(text, at, "an integer, a slice or ... must be there")
    return numbers[0]


def _mistake(text: str, place: int, what: str) -> ArgumentError:
    return ArgumentError(f"slice: got '{printable(text)}': at character {place + 1}, {what}; write it as '0:4, :, -1'")


class Selection:
    """The part of an array that an index selects: `ranges` has a range for each axis, `shape` is the part's shape.

    Raises DimensionError for too many indices, or for an index out of bounds.
    """

    def __init__(self, index: tuple[Index, ...], shape: tuple[int, ...]) -> None:
        given = len(index) - index.count(...)
        if given > len(shape):
            raise DimensionError(
                f"slice: too many indices: the array is {len(shape)}-dimensional, but {given} were indexed; "
                f"its shape is {shape}"
            )
        place = index.index(...) if ... in index else len(index)
        full = [slice(None)] * (len(shape) - given)
        parts = [*index[:place], *full, *index[place + 1 :]]
        self.ranges = [
            self._range(part, axis, length) for axis, (part, length) in enumerate(zip(parts, shape, strict=True))
        ]
        self.kept = tuple(axis for axis, part in enumerate(parts) if isinstance(part, slice))
        self.shape = tuple(len(self.ranges[axis]) for axis in self.kept)

    @property
    def size(self) -> int:
        """The number of selected elements."""
        return math.prod(self.shape)

    @staticmethod
    def _range(part: Index, axis: int, length: int) -> range:
        if isinstance(part, slice):
            return range(*part.indices(length))
        assert isinstance(part, int)
        if not -length <= part < length:
            there = f"indices {-length} to {length - 1} are there" if length else "it has no elements"
            raise DimensionError(f"slice: index {part} is out of bounds for axis {axis} with size {length}; {there}")
        return range(part % length, part % length + 1)


def read_selection(values: StoredValues, selection: Selection) -> Iterator[np.ndarray]:
    """Yield the elements of a selection as flat pieces in C order; few other elements are read.

    Raises the errors of `StoredValues.elements`.
    """
    return _read(values, selection.ranges)


def read_shown(values: StoredValues, selection: Selection) -> tuple[np.ndarray, bool]:
    """Return the elements that NumPy prints of a selection, and whether NumPy summarises the selection with "...".

    A summarised axis has its first and last `EDGE` elements, and one element between them, which is printed as "...".
    Raises ArgumentError if more than `MOST_SHOWN` elements would be returned.
    """
    large = selection.size > THRESHOLD
    edges = [_edges(axis) if large else [axis] for axis in selection.ranges]
    lengths = [sum(map(len, parts)) for parts in edges]
    if math.prod(lengths) > MOST_SHOWN:
        raise ArgumentError(f"slice: got {math.prod(lengths)} values to print; name fewer, or write them with --export")
    shown = np.empty(lengths, values.dtype)
    for parts in itertools.product(*map(_placed, edges)):
        places, ranges = zip(*parts, strict=True) if parts else ((), ())
        found = [*_read(values, list(ranges))]
        if found:
            shown[places] = np.concatenate(found).reshape([len(one) for one in ranges])
    return shown.reshape([lengths[axis] for axis in selection.kept]), large


def _edges(axis: range) -> list[range]:
    if len(axis) <= 2 * EDGE:
        return [axis]
    return [axis[:EDGE], axis[EDGE : EDGE + 1], axis[-EDGE:]]


def _placed(parts: list[range]) -> list[tuple[slice, range]]:
    """Return each part with the slice that it fills when all parts are joined."""
    ends = list(itertools.accumulate(map(len, parts)))
    return [(slice(end - len(part), end), part) for end, part in zip(ends, parts, strict=True)]


def _read(values: StoredValues, ranges: list[range]) -> Iterator[np.ndarray]:
    shape, itemsize = values.array.shape, values.dtype.itemsize
    if not all(map(len, ranges)):
        return
    if not shape:
        yield values.elements(0, 1)
        return
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    # The rows of this axis are short enough to be read whole.
    axis = next(axis for axis, stride in enumerate(strides) if stride * itemsize <= _GAP_BYTES or stride == 1)
    row, rows = strides[axis], ranges[axis]
    apart = abs(rows.step) * row * itemsize
    together = max(1, PIECE_BYTES // apart) if apart <= _GAP_BYTES else 1
    inside = [np.asarray(one) for one in ranges[axis + 1 :]]
    for outer in itertools.product(*ranges[:axis]):
        start = sum(map(operator.mul, outer, strides))
        for i in range(0, len(rows), together):
            part = np.asarray(rows[i : i + together])
            first, last = int(part.min()), int(part.max()) + 1
            block = values.elements(start + first * row, start + last * row)
            yield block.reshape(last - first, *shape[axis + 1 :])[np.ix_(part - first, *inside)].reshape(-1)
