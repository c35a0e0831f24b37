"""Rows of an offloaded table: a lookup reads those that its indices name, and has few of them in RAM at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.memory import buffers

# Tables of no more bytes are read whole. Of larger ones, so many bytes of rows are in RAM at once.
ROWS_BYTES = 2 << 20


def looked_up(
    shape: tuple[int, ...], dtype: np.dtype[Any], indices: np.ndarray,
    empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray], read: Callable[[np.ndarray, np.ndarray], None],
) -> np.ndarray:  # fmt: skip
    """Return the rows of a table of this shape at indices, which are in its range.

    `read` fills an array, which `empty` made, with spans of the table's elements.
    """
    width, wanted = shape[1], indices.reshape(-1).astype(np.int64, copy=False)
    result = buffers.empty((*indices.shape, width), dtype)
    if not result.size:
        return result
    target = _bytes_of(result, width)
    order = np.argsort(wanted, kind="stable")
    rows, firsts = np.unique(wanted[order], return_index=True)
    ends = np.append(firsts, wanted.size)
    count = max(1, ROWS_BYTES // (width * dtype.itemsize))
    for start in range(0, rows.size, count):
        some = rows[start : start + count]
        found = empty((some.size * width,), dtype)
        read(_spans_of(some, width), found)
        places = order[ends[start] : ends[start + some.size]]
        each = np.searchsorted(some, wanted[places])
        for at in range(0, places.size, count):  # a row that is named often must not fill the RAM either
            part = slice(at, at + count)
            target[places[part]] = _bytes_of(found, width)[each[part]]
        del found  # before the next ones
    return result


def _bytes_of(array: np.ndarray, width: int) -> np.ndarray:
    """Return rows as bytes, which NumPy copies whole, whatever their dtype."""
    return array.reshape(-1, width).view(np.uint8)


def _spans_of(rows: np.ndarray, width: int) -> np.ndarray:
    """Return the spans of elements of rows; rows that follow each other have one span."""
    firsts = np.flatnonzero(np.append(True, np.diff(rows) > 1))
    lasts = np.append(firsts[1:], rows.size) - 1
    return np.stack([rows[firsts] * width, (rows[lasts] + 1) * width], axis=1)
