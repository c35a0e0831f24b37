"""Summarize the values of a stored array in a few numbers."""

import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad.inspection.arrays import StoredArray
from spillgrad.inspection.unflushed import there
from spillgrad.inspection.values import StoredValues

BINS = 16

Number = int | float | str  # a date is text


@dataclasses.dataclass(frozen=True)
class Bin:
    """A bin of a histogram.

    Parameters
    ----------
    low : float
        The least value.
    high : float
        End of the bin, which only the last bin includes.
    count : int
        Number of finite values in it.
    """

    low: float
    high: float
    count: int


@dataclasses.dataclass(frozen=True)
class ArrayContents:
    """A summary of the values of an array.

    `min`, `max`, `mean` and `histogram` cover the finite values; for complex values, they cover the magnitudes. All
    four are missing for values without an order, such as text, for encrypted arrays, and if no value is finite.

    Parameters
    ----------
    checksum : {"verified", "wrong", "none"}
        Whether the bytes match the checksum; "none" if the run took none.
    min, max : int, float or str, optional
        The least and the greatest value. For dates, they are ISO 8601.
    mean : float, optional
        The mean; dates have none.
    nan_count : int, optional
        Number of NaNs. NaT counts as NaN.
    infinite_count : int, optional
        Number of infinite values.
    histogram : tuple of Bin, optional
        The histogram; dates have none.
    """

    checksum: str
    min: Number | None = None
    max: Number | None = None
    mean: float | None = None
    nan_count: int | None = None
    infinite_count: int | None = None
    histogram: tuple[Bin, ...] = ()


def array_contents(path: str | os.PathLike[str], array: StoredArray) -> ArrayContents:
    """Read an array of a segment, of any size, piece by piece, and summarize its values.

    Parameters
    ----------
    path : str or path
        The segment.
    array : StoredArray
        One of its arrays, from `inspect_segment`.

    Returns
    -------
    ArrayContents
        Extremes, mean, histogram, and whether the checksum is right.

    Raises
    ------
    ArgumentError
        If the array cannot be read.
    SpillCorruptionError
        If stored bytes are missing, or if no encoder wrote them.
    SpillError
        If the run freed or changed the array meanwhile.
    """
    with there(Path(path), array) as values:
        checksum = values.verdict()
        if array.encrypted or array.dtype is None or (array.dtype.kind in "SUV" and not _is_narrow(array.dtype)):
            return ArrayContents(checksum)
        if array.dtype.kind in "mM":
            return _dates(values, array.dtype, checksum)
        return _numbers(values, checksum)


def _numbers(values: StoredValues, checksum: str) -> ArrayContents:
    nan = infinite = finite = 0
    lows, highs, sums = [], [], []
    with np.errstate(all="ignore"):  # the bytes may mean any numbers
        for piece in map(_plain, values.pieces()):
            nan += int(np.isnan(piece).sum())
            infinite += int(np.isinf(piece).sum())
            piece = piece[np.isfinite(piece)]
            if piece.size:
                finite += piece.size
                lows.append(piece.min().item())
                highs.append(piece.max().item())
                sums.append(float(piece.sum(dtype=np.float64)))
        if not finite:
            return ArrayContents(checksum, nan_count=nan, infinite_count=infinite)
        low, high = min(lows), max(highs)
        mean = _sum(sums) / finite
        if not math.isfinite(mean):  # the sum is beyond what a float holds
            mean = _sum([float((piece / finite).sum()) for piece in _finite(values)])
        return ArrayContents(checksum, low, high, mean, nan, infinite, _histogram(values, low, high))


def _sum(parts: list[float]) -> float:
    return math.fsum(parts) if all(map(math.isfinite, parts)) else math.inf


def _histogram(values: StoredValues, low: Any, high: Any) -> tuple[Bin, ...]:
    whole = isinstance(low, int)
    bins = min(BINS, high - low + 1) if whole else BINS if high > low else 1
    if bins == 1:
        return (Bin(float(low), float(high), sum(piece.size for piece in _finite(values))),)
    scale = 0.5 if not math.isfinite(float(high) - float(low)) else 1.0  # the difference may be infinite
    first, last = float(low) * scale, float(high) * scale
    counts = np.zeros(bins, np.int64)
    for piece in _finite(values):
        place = ((piece.astype(np.float64) * scale - first) / (last - first) * bins).astype(np.int64)
        counts += np.bincount(np.clip(place, 0, bins - 1), minlength=bins)
    edges = [(first + (last - first) * (i / bins)) / scale for i in range(bins)] + [float(high)]
    return tuple(map(Bin, edges, edges[1:], counts.tolist()))


def _finite(values: StoredValues) -> Iterator[np.ndarray]:
    for piece in map(_plain, values.pieces()):
        yield piece[np.isfinite(piece)]


def _plain(piece: np.ndarray) -> np.ndarray:
    """Return values in a dtype that NumPy can compare and add; for complex values, their magnitudes."""
    kind = piece.dtype.kind
    dtype: np.dtype[Any] = np.dtype(np.float64)
    if kind == "b":
        piece, dtype = piece.view(np.uint8) != 0, np.dtype(np.int8)  # any nonzero byte means true
    elif kind == "c":
        piece = np.abs(piece)
    elif _is_narrow(piece.dtype):
        dtype = np.dtype(np.int8 if "int" in piece.dtype.name else np.float32)
    elif piece.itemsize <= 8:
        dtype = piece.dtype.newbyteorder("=")
    return piece.astype(dtype, copy=False)


def _is_narrow(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype comes from ml_dtypes."""
    return dtype.type.__module__ == "ml_dtypes"


def _dates(values: StoredValues, dtype: np.dtype[Any], checksum: str) -> ArrayContents:
    nan = 0
    lows, highs = [], []
    for piece in values.pieces():
        missing = np.isnat(piece)
        nan += int(missing.sum())
        if not missing.all():
            lows.append(piece[~missing].min())
            highs.append(piece[~missing].max())
    if not lows:
        return ArrayContents(checksum, nan_count=nan, infinite_count=0)
    return ArrayContents(checksum, str(min(lows)), str(max(highs)), nan_count=nan, infinite_count=0)
