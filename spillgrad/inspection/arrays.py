"""List the arrays of a segment and their places, in a file that anybody may have written."""

import dataclasses
import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from spillgrad.errors import SpillFormatError
from spillgrad.inspection.untrusted import DAMAGED, UntrustedReader, refusal
from spillgrad.storage.codecs import MAX_ITEM_BYTES, Bfloat16, Int8, Lossless, filters, stored_bytes
from spillgrad.storage.disk.chunks import PAGE_BYTES, compressed_chunk_shape
from spillgrad.storage.disk.segment import FORMAT_VERSION
from spillgrad.storage.encryption import sealed_bytes
from spillgrad.storage.format_version import check_version
from spillgrad.storage.sizes import format_bytes
from spillgrad.storage.store import NO_LABEL, Label, View

# Beyond a first GiB, no more is read than so many times what the file has on disk: the rest would be holes.
_MOST_PER_DISK_BYTE, _HOLES_BYTES = 64, 1 << 30
_MOST_DIMENSIONS = 64
_DTYPE_NAME = re.compile(
    r"[<>|]?[biufcSV]\d{1,9}|[<>][mM]8(?:\[\w{1,12}\])?|bool|(?:u?int|float|complex)\d{1,3}|(?:datetime|timedelta)64(?:\[\w{1,12}\])?"
)
CODEC_NAME = re.compile(r"lossless|bf16|int8|(?:(?:lossless|bf16|int8)\+)?aes256gcm")


class Chunk(NamedTuple):
    """Stored bytes of `length` elements of an array from the `start`-th on: `nbytes` at `offset` in the file."""

    start: int
    length: int
    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array of a segment: a dataset of the root group, or what the next flush makes one.

    `key` is its name. What is known of it is `from_journal`, that of its run, or else from the dataset's attribute;
    where there is none, `sequence` is None. `views` and `chunk_shape` only HDF5 has. `dtype` and `shape` are the
    array's, `nbytes` too, and `stored_bytes` what a `codec` made of it; `chunks` say where those are. `checksum` is 16
    hexadecimal digits, or None where the run took none. `problem` says why its values cannot be read: for None, they
    can, unless they are `encrypted`.
    """

    key: str
    sequence: int | None
    label: Label
    views: tuple[View, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...] | None
    chunks: tuple[Chunk, ...]
    nbytes: int
    stored_bytes: int
    codec: str | None
    checksum: str | None
    problem: str | None
    from_journal: bool = False

    @property
    def encrypted(self) -> bool:
        """Whether only the process of the run could read it."""
        return self.codec is not None and self.codec.endswith("aes256gcm")

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Item:
    """An object that an HDF5 file names: `kind` is group, dataset, soft link, external link, type or unreadable.

    `target` is where a link leads, `members` how many a group has; `layout`, `chunk_shape` and `filters` (numbers) are
    a dataset's. `attributes` are names and bytes.
    """

    path: str
    kind: str
    target: str | None = None
    members: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    layout: str | None = None
    chunk_shape: tuple[int, ...] | None = None
    filters: tuple[int, ...] = ()
    attributes: tuple[tuple[str, int | None], ...] = ()
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Segment:
    """An HDF5 file of arrays.

    `items` are all that HDF5 names in it, as of its last flush. `arrays` are those that the journal of its run has
    there, or, of a file that is alone, those of the items that a store could have written. `left_out` counts what was
    too much to look at. `problems` say what no store would have written; `note` says what HDF5 does not have yet.
    """

    path: Path
    file_bytes: int
    disk_bytes: int
    arrays: tuple[StoredArray, ...]
    items: tuple[Item, ...]
    left_out: int
    problems: tuple[str, ...]
    note: str | None = None

    def __getitem__(self, key: str) -> StoredArray:
        """Return the array of this name. Raises KeyError."""
        for array in self.arrays:
            if array.key == key:
                return array
        raise KeyError(key)


def read_structure(path: Path, reader: UntrustedReader) -> Segment:
    """Return what HDF5 finds in a segment, without opening the file in this process.

    Raises SpillError for what is no HDF5 file, or one that HDF5 cannot take; SpillFormatError, which is one, for a file
    of a newer version; OSError for one that cannot be opened.
    """
    found = os.stat(path)
    most_bytes = held_bytes(found)
    arrays: list[StoredArray] = []
    items: list[Item] = []
    chunks: list[list[int]] = []
    left_out = 0
    problems = []
    for line in reader.structure(path):
        try:
            if "chunks" in line:
                chunks += line["chunks"]
            elif "left_out" in line:
                left_out = line["left_out"]
            else:
                item = _item(line)
                items.append(item)
                if item.kind == "dataset" and item.path.count("/") == 1:
                    arrays.append(_array(path, item, line, chunks, found.st_size, most_bytes))
                elif item.kind == "unreadable":
                    problems.append(f"{item.path}: {item.problem}")
                else:
                    problems += filter(None, [foreign(item)])
                chunks = []
        except SpillFormatError:
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # the child would not say this
            raise refusal(str(path), DAMAGED) from error
    if (problem := overlap(arrays, most_bytes)) is not None:
        problems.append(problem)
        arrays = [dataclasses.replace(array, problem=array.problem or problem) for array in arrays]
    return Segment(path, found.st_size, found.st_blocks * 512, tuple(arrays), tuple(items), left_out, tuple(problems))


def foreign(item: Item) -> str | None:
    """Return the problem of a file with objects that no store makes; an unreadable object may be a store's."""
    if item.kind == "unreadable" or (item.kind == "dataset" and item.path.count("/") == 1):
        return None
    return f"{item.path}: {item.problem or f'is of a kind that no store makes: {item.kind}'}"


def held_bytes(found: os.stat_result) -> int:
    """Return how many bytes of arrays a file can hold."""
    return min(found.st_size, _MOST_PER_DISK_BYTE * found.st_blocks * 512 + _HOLES_BYTES)


def overlap(arrays: Sequence[StoredArray], most_bytes: int) -> str | None:
    """Return the problem of arrays that are larger than their file can hold."""
    if sum(array.stored_bytes for array in arrays if array.problem is None) <= most_bytes:
        return None
    return f"its arrays are more than the {format_bytes(most_bytes)} it can hold: they overlap, or are holes"


class Unreadable(Exception):
    """Raised with the reason why the values of an array cannot be read."""


def _item(line: dict[str, Any]) -> Item:
    return Item(
        line["path"],
        line["kind"],
        line.get("target"),
        line.get("members"),
        _numbers(line.get("shape")),
        line.get("type"),
        line.get("layout"),
        _numbers(line.get("chunk")),
        tuple(number for number, _ in line.get("filters", ())),
        tuple((one["name"], one["bytes"]) for one in line.get("attributes", ())),
        line.get("problem"),
    )


def _numbers(found: Iterable[Any] | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(map(operator.index, found))


def _array(
    path: Path, item: Item, line: dict[str, Any], chunks: list[list[int]], file_bytes: int, most_bytes: int
) -> StoredArray:
    """Return what is known of a dataset of the root group."""
    about = _NOTHING
    dtype, shape = None, item.shape or ()
    places: tuple[Chunk, ...] = ()
    problem = None
    try:
        if item.problem is not None:
            raise Unreadable(item.problem)
        if line.get("text") is not None:
            about = _about(path, line["text"])
        dtype = dtype_named(item.dtype, line.get("itemsize"))
        if about.codec not in (None, Lossless.name):  # the dataset is bytes
            dtype, shape = dtype_named(about.dtype, None), about.shape
        _check(item, about, dtype, shape)
        places = _places(item, line, chunks, file_bytes, most_bytes)
        check_codec(about.codec, dtype, shape, sum(place.nbytes for place in places))
    except Unreadable as why:
        problem = str(why)
    return StoredArray(
        item.path[1:], about.sequence, about.label, about.views, dtype, shape, item.chunk_shape, places,
        math.prod(shape) * (dtype.itemsize if dtype else 0), sum(place.nbytes for place in places), about.codec,
        about.checksum, problem,
    )  # fmt: skip


def _places(
    item: Item, line: dict[str, Any], chunks: list[list[int]], file_bytes: int, most_bytes: int
) -> tuple[Chunk, ...]:
    """Return where the bytes of a dataset lie. Raises Unreadable where that is not as a store does it."""
    if line["external"]:
        raise Unreadable("its values are in other files, which are not opened")
    if line["empty"] or item.shape is None:
        raise Unreadable("it has no shape")
    size, itemsize = math.prod(item.shape), line["itemsize"]
    if size * itemsize > most_bytes and not item.filters:
        raise Unreadable(f"it is declared with {size * itemsize} bytes, in a file that can hold {most_bytes}")
    if not size:
        return ()
    if item.chunk_shape is None:
        places = [Chunk(0, size, line["offset"], size * itemsize)] if line["offset"] is not None else []
    else:
        places = sorted(_chunk(item.shape, item.chunk_shape, itemsize, bool(item.filters), one) for one in chunks)
    expected = 0
    for place in places:
        if place.start != expected:
            raise Unreadable("its chunks leave gaps, or are not whole rows")
        if place.offset < 0 or place.offset + place.nbytes > file_bytes:
            raise Unreadable("some of it lies outside of the file")
        expected += place.length
    if expected != size:
        raise Unreadable("some of its chunks are missing, or are more than are looked at")
    if sum(place.nbytes for place in places) > most_bytes:
        raise Unreadable("its chunks overlap, or are holes of the file")
    return tuple(places)


def _chunk(shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int, filtered: bool, found: list[int]) -> Chunk:
    *first, offset, nbytes, skipped_filters = found
    counts = [min(most, length - i) for most, length, i in zip(chunk, shape, first, strict=True)]
    axis = next((i for i, count in enumerate(counts) if count > 1), len(shape))
    if counts[axis + 1 :] != list(shape[axis + 1 :]) or min(counts) < 1 or skipped_filters:
        raise Unreadable("its chunks are not whole rows, as a store makes them")
    start = sum(i * math.prod(shape[axis + 1 :]) for axis, i in enumerate(first))
    count = math.prod(counts)
    if not filtered and nbytes < count * itemsize:
        raise Unreadable("its chunks are smaller than their elements")
    if filtered and (nbytes % PAGE_BYTES or not nbytes):
        raise Unreadable("its compressed chunks are no whole pages")
    return Chunk(start, count, offset, nbytes if filtered else count * itemsize)


def _check(item: Item, about: "_About", dtype: np.dtype[Any] | None, shape: tuple[int, ...]) -> None:
    """Raise Unreadable unless attribute and dataset fit each other, as a store makes them."""
    if item.layout not in ("contiguous", "chunked"):
        raise Unreadable(f"its layout is {item.layout}, which no store uses, and is not followed")
    if dtype is None:
        raise Unreadable("its type is none that an array has")
    if about.codec != Lossless.name and item.filters:
        raise Unreadable(f"it has HDF5's filters {', '.join(map(str, item.filters))}, which no store uses so")
    if about.codec not in (None, Lossless.name):
        if (item.dtype, len(item.shape or ())) != ("|u1", 1):
            raise Unreadable(f"it is no row of bytes, as codec {about.codec} makes it")
    elif about is not _NOTHING and (about.shape, about.dtype) != (shape, dtype.name):
        raise Unreadable(f"it is {dtype.name} {shape}, and its attribute says {about.dtype} {about.shape}")
    if about.codec == Lossless.name:
        if list(item.filters) != [number for number, _ in filters(dtype)] or dtype.itemsize > MAX_ITEM_BYTES:
            raise Unreadable("it is not compressed as a store does it")
        if not math.prod(shape) or item.chunk_shape != compressed_chunk_shape(shape, dtype.itemsize):
            raise Unreadable(f"its chunks are {item.chunk_shape}, which no store makes of {shape}")


def check_codec(codec: str | None, dtype: np.dtype[Any] | None, shape: tuple[int, ...], stored: int) -> None:
    """Raise Unreadable if a codec cannot make so many stored bytes of an array."""
    if codec in (None, Lossless.name) or dtype is None:
        return
    inner = codec.removesuffix("aes256gcm").removesuffix("+")
    if inner in (Bfloat16.name, Int8.name) and dtype not in (np.float32, np.float64):
        raise Unreadable(f"its dtype is {dtype.name}, of which codec {inner} makes nothing")
    if inner == Lossless.name:  # how many bytes it made is not written down
        return
    expected = stored_bytes(inner, math.prod(shape)) if inner else math.prod(shape) * dtype.itemsize
    if inner != codec:
        expected = sealed_bytes(expected)
    if stored != expected:
        raise Unreadable(f"it has {stored} bytes, and codec {codec} makes {expected} of {shape}")


class _About(NamedTuple):
    sequence: int | None = None
    label: Label = NO_LABEL
    views: tuple[View, ...] = ()
    dtype: str = ""
    shape: tuple[int, ...] = ()
    checksum: str | None = None
    codec: str | None = None


_NOTHING = _About()


def _about(path: Path, text: str) -> _About:
    """Return what a dataset's attribute says.

    Raises Unreadable where it makes no sense, SpillFormatError where its version is newer.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise TypeError("it is no object")
        version = found.get("format")
        if type(version) is int and version > FORMAT_VERSION:
            check_version(path, version, FORMAT_VERSION)
        if type(version) is not int or version < 1:
            raise TypeError(f"its format is {version!r:.20}")
        op, slot, module = (_of(found, key, _is_text) for key in ("op", "slot", "module"))
        label = Label(op, slot, module, _of(found, "step", _integer))
        if not _integer(found["sequence"]):
            raise TypeError("its sequence is no number")
        checksum = _of(found, "xxh3_64", lambda value: bool(re.fullmatch("[0-9a-f]{16}", value)))
        codec = _of(found, "codec", lambda value: bool(CODEC_NAME.fullmatch(value)))
        return _About(
            found["sequence"], label, tuple(map(_view, found["views"])), _text(found["dtype"]), _shape(found["shape"]),
            checksum, codec,
        )  # fmt: skip
    except SpillFormatError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise Unreadable(f"its attribute is damaged: {what}") from error


def _view(found: Any) -> View:
    strides, offset = found["strides"], found["offset"]
    if not isinstance(strides, list) or not all(map(_integer, [*strides, offset])) or len(strides) > _MOST_DIMENSIONS:
        raise TypeError("strides or offset of a view are no numbers")
    op, slot = (_of(found, key, _is_text) for key in ("op", "slot"))
    return View(op, slot, _text(found["dtype"]), _shape(found["shape"]), tuple(strides), offset)


def _of(found: dict[str, Any], key: str, fits: Callable[[Any], bool]) -> Any:
    value = found.get(key)
    if value is not None and not fits(value):
        raise TypeError(f"{key} is {value!r:.40}")
    return value


def _integer(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _shape(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        raise TypeError(f"{value!r:.40} is no shape")
    if not all(_integer(length) and length >= 0 for length in value):
        raise TypeError(f"{value!r:.40} is no shape")
    return tuple(value)


def dtype_named(name: str | None, itemsize: int | None) -> np.dtype[Any] | None:
    """Return the dtype of this name, of `itemsize` bytes if that is given; None for a name that no store writes."""
    if name is None:
        return None
    found: np.dtype[Any] | None = None
    if match := re.fullmatch(r"str(\d{1,9})", name):
        found = np.dtype(f"<U{int(match[1]) // 32}")
    elif match := re.fullmatch(r"bytes(\d{1,9})", name):
        found = np.dtype(f"|S{int(match[1]) // 8}")
    elif match := re.fullmatch(r"void(\d{1,9})", name):
        found = np.dtype(f"|V{int(match[1]) // 8}")
    elif _DTYPE_NAME.fullmatch(name):
        try:
            found = np.dtype(name)
        except TypeError:
            return None
    else:
        scalar = getattr(ml_dtypes, name, None)
        if isinstance(scalar, type) and issubclass(scalar, np.generic):
            found = np.dtype(scalar)
    return found if itemsize is None or found is None or found.itemsize == itemsize else None
