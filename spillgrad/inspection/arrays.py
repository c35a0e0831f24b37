"""List the arrays of a segment and where their bytes lie; the file is of unknown origin."""

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np

from spillgrad.errors import SpillFormatError
from spillgrad.inspection.untrusted import DAMAGED, UntrustedReader, refusal
from spillgrad.storage.codecs import EXACT_BF16, MAX_ITEM_BYTES, Bfloat16, Int8, Lossless, filters, stored_bytes
from spillgrad.storage.disk.chunks import PAGE_BYTES, compressed_chunk_shape
from spillgrad.storage.disk.segment import FORMAT_VERSION
from spillgrad.storage.encryption import sealed_bytes
from spillgrad.storage.format_version import check_version
from spillgrad.storage.sizes import format_bytes
from spillgrad.storage.store import NO_LABEL, Label, View

# Arrays of a file may have 64 times the bytes that the file occupies on disk, plus 1 GiB: the rest would be holes.
_MOST_PER_DISK_BYTE, _HOLES_BYTES = 64, 1 << 30
_MOST_DIMENSIONS = 64
_DTYPE_NAME = re.compile(
    r"[<>|]?[biufcSV]\d{1,9}|[<>][mM]8(?:\[\w{1,12}\])?|bool|(?:u?int|float|complex)\d{1,3}|(?:datetime|timedelta)64(?:\[\w{1,12}\])?"
)
CODEC_NAME = re.compile(r"lossless|exact-bf16|bf16|int8|(?:(?:lossless|bf16|int8)\+)?aes256gcm")


class Chunk(NamedTuple):
    """The place of some elements of an array in a file.

    Parameters
    ----------
    start : int
        Number of the first element.
    length : int
        Number of elements.
    offset : int
        Where they begin in the file, in bytes.
    nbytes : int
        How many bytes they take there.
    """

    start: int
    length: int
    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array of a segment: a dataset of the root group, or one that the next flush will add there.

    The facts come from the journal of the run if `from_journal`, else from the dataset's attribute. `dtype`, `shape`
    and `nbytes` describe the array before it was encoded; `stored_bytes` and `chunks` describe the bytes in the file.

    Parameters
    ----------
    key : str
        The array's name.
    sequence : int or None
        The array's number in its store; None without an attribute.
    label : Label
        Where the array comes from.
    views : tuple of View
        The tensors that were saved as views of it. Only HDF5 knows them.
    dtype : dtype or None
        NumPy's dtype; None if no array has it.
    shape : tuple of int
        The shape.
    chunk_shape : tuple of int or None
        Shape of HDF5's chunks. Only HDF5 knows it.
    chunks : tuple of Chunk
        Where the elements lie.
    nbytes : int
        Bytes of the array.
    stored_bytes : int
        Bytes in the file.
    codec : str or None
        How the array is encoded; None if it is not.
    checksum : str or None
        Sixteen hex digits; None if the run took no checksums.
    problem : str or None
        Why the values cannot be read. If it is None, they can be read unless they are `encrypted`.
    from_journal : bool, default False
        Whether the journal describes the array.
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
        """Whether the array is encrypted, so that only the process of its run can read it."""
        return self.codec is not None and self.codec.endswith("aes256gcm")

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Item:
    """A named object of an HDF5 file.

    Parameters
    ----------
    path : str
        Its path in the file.
    kind : {"group", "dataset", "soft link", "external link", "type", "unreadable"}
        What it is.
    target : str, optional
        Target of a link.
    members : int, optional
        Number of a group's members.
    shape : tuple of int, optional
        Shape of a dataset.
    dtype : str, optional
        Name of a dataset's dtype.
    layout : str, optional
        How a dataset lies in the file, such as "contiguous" or "chunked".
    chunk_shape : tuple of int, optional
        Shape of a dataset's chunks.
    filters : tuple of int, optional
        Numbers of a dataset's HDF5 filters.
    attributes : tuple of tuple, optional
        Name and size in bytes of each attribute.
    problem : str, optional
        What is wrong with it.
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
    """An HDF5 file of arrays; ``segment[key]`` is the array of this key.

    Parameters
    ----------
    path : Path
        The file.
    file_bytes : int
        Its size.
    disk_bytes : int
        Bytes that it occupies on disk.
    arrays : tuple of StoredArray
        The arrays that the run's journal lists in the file; without a journal, the items that a store could have
        written.
    items : tuple of Item
        All objects that HDF5 names in the file, as of its last flush.
    left_out : int
        Number of objects beyond the limits of reading.
    problems : tuple of str
        What no store would have written.
    note : str, optional
        Which arrays HDF5 does not have yet.
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
        """Return the array named `key`. Raises KeyError if there is none."""
        for array in self.arrays:
            if array.key == key:
                return array
        raise KeyError(key)


def read_structure(path: Path, reader: UntrustedReader) -> Segment:
    """Return what HDF5 finds in a segment; `reader` opens the file in another process.

    Raises SpillError if HDF5 cannot read the file. Raises SpillFormatError, a SpillError, if the file is of a newer
    version. Raises OSError if the file cannot be opened.
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
                item = msgspec.convert(line, Item)
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
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            # A sound child process never answers so.
            raise refusal(str(path), DAMAGED) from error
    arrays = without_overlap(arrays, most_bytes, problems)
    return Segment(path, found.st_size, found.st_blocks * 512, tuple(arrays), tuple(items), left_out, tuple(problems))


def foreign(item: Item) -> str | None:
    """Return why no store makes `item`; None for a dataset of the root group or an unreadable object."""
    if item.kind == "unreadable" or (item.kind == "dataset" and item.path.count("/") == 1):
        return None
    return f"{item.path}: {item.problem or f'is of a kind that no store makes: {item.kind}'}"


def held_bytes(found: os.stat_result) -> int:
    """Return the most bytes of arrays that a file can hold, judged by its size and its disk blocks."""
    return min(found.st_size, _MOST_PER_DISK_BYTE * found.st_blocks * 512 + _HOLES_BYTES)


def without_overlap(arrays: list[StoredArray], most_bytes: int, problems: list[str]) -> list[StoredArray]:
    """Return the arrays; if their bytes exceed `most_bytes` in total, add a problem to `problems` and to each array."""
    if sum(array.stored_bytes for array in arrays if array.problem is None) <= most_bytes:
        return arrays
    problem = f"its arrays are more than the {format_bytes(most_bytes)} it can hold: they overlap, or are holes"
    problems.append(problem)
    return [dataclasses.replace(array, problem=array.problem or problem) for array in arrays]


class Unreadable(Exception):
    """Raised if the values of an array cannot be read; the message gives the reason."""


def _array(
    path: Path, item: Item, line: dict[str, Any], chunks: list[list[int]], file_bytes: int, most_bytes: int
) -> StoredArray:
    """Return the array in a dataset of the root group; `line` and `chunks` are the child process's answers about it."""
    about: _About | None = None
    codec = None
    dtype, shape = None, item.shape or ()
    places: tuple[Chunk, ...] = ()
    problem = None
    try:
        if item.problem is not None:
            raise Unreadable(item.problem)
        if line.get("text") is not None:
            about = _about(path, line["text"])
            codec = about.codec
        dtype = dtype_named(item.dtype, line.get("itemsize"))
        if about is not None and codec not in (None, Lossless.name):  # the dataset holds encoded bytes
            dtype, shape = dtype_named(about.dtype, None), about.shape
        _check(item, about, dtype, shape)
        places = _places(item, line, chunks, file_bytes, most_bytes)
        check_codec(codec, dtype, shape, sum(place.nbytes for place in places))
    except Unreadable as why:
        problem = str(why)
    array = StoredArray(
        item.path[1:], None, NO_LABEL, (), dtype, shape, item.chunk_shape, places,
        math.prod(shape) * (dtype.itemsize if dtype else 0), sum(place.nbytes for place in places), codec, None,
        problem,
    )  # fmt: skip
    if about is None:
        return array
    label = Label(about.op, about.slot, about.module, about.step)
    views = tuple(View(**msgspec.structs.asdict(view)) for view in about.views)
    return dataclasses.replace(array, sequence=about.sequence, label=label, views=views, checksum=about.xxh3_64)


def _places(
    item: Item, line: dict[str, Any], chunks: list[list[int]], file_bytes: int, most_bytes: int
) -> tuple[Chunk, ...]:
    """Return where the bytes of a dataset lie. Raises Unreadable if no store would place them so."""
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


def _check(item: Item, about: "_About | None", dtype: np.dtype[Any] | None, shape: tuple[int, ...]) -> None:
    """Raise Unreadable unless a store could have made the dataset and the attribute that describes it."""
    if item.layout not in ("contiguous", "chunked"):
        raise Unreadable(f"its layout is {item.layout}, which no store uses, and is not followed")
    if dtype is None:
        raise Unreadable("its type is none that an array has")
    codec = None if about is None else about.codec
    if codec != Lossless.name and item.filters:
        raise Unreadable(f"it has HDF5's filters {', '.join(map(str, item.filters))}, which no store uses so")
    if codec == EXACT_BF16:
        if (item.dtype, item.shape) != (np.dtype(ml_dtypes.bfloat16).name, shape):
            raise Unreadable(f"it is not bfloat16 {shape}, as codec {codec} makes it")
    elif codec not in (None, Lossless.name):
        if (item.dtype, len(item.shape or ())) != ("|u1", 1):
            raise Unreadable(f"it is no row of bytes, as codec {codec} makes it")
    elif about is not None and (about.shape, about.dtype) != (shape, dtype.name):
        raise Unreadable(f"it is {dtype.name} {shape}, and its attribute says {about.dtype} {about.shape}")
    if codec == Lossless.name:
        if list(item.filters) != [number for number, _ in filters(dtype)] or dtype.itemsize > MAX_ITEM_BYTES:
            raise Unreadable("it is not compressed as a store does it")
        if not math.prod(shape) or item.chunk_shape != compressed_chunk_shape(shape, dtype.itemsize):
            raise Unreadable(f"its chunks are {item.chunk_shape}, which no store makes of {shape}")


def stored_itemsize(codec: str | None, dtype: np.dtype[Any]) -> int:
    """Return the bytes of an element of the dataset of an array that is not compressed."""
    if codec is None:
        return dtype.itemsize
    return 2 if codec == EXACT_BF16 else 1


def check_codec(codec: str | None, dtype: np.dtype[Any] | None, shape: tuple[int, ...], stored: int) -> None:
    """Raise Unreadable if a codec cannot turn an array of this dtype and shape into `stored` bytes."""
    if codec in (None, Lossless.name) or dtype is None:
        return
    inner = codec.removesuffix("aes256gcm").removesuffix("+")
    takes = (np.float32,) if inner == EXACT_BF16 else (np.float32, np.float64)
    if inner in (Bfloat16.name, EXACT_BF16, Int8.name) and dtype not in takes:
        raise Unreadable(f"its dtype is {dtype.name}, of which codec {inner} makes nothing")
    if inner == Lossless.name:  # the compressed size before encryption is not recorded
        return
    expected = stored_bytes(inner, math.prod(shape)) if inner else math.prod(shape) * dtype.itemsize
    if inner != codec:
        expected = sealed_bytes(expected)
    if stored != expected:
        raise Unreadable(f"it has {stored} bytes, and codec {codec} makes {expected} of {shape}")


_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Shape = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], ...], msgspec.Meta(max_length=_MOST_DIMENSIONS)
]


class _View(msgspec.Struct):
    dtype: str
    shape: _Shape
    strides: Annotated[tuple[_Integer, ...], msgspec.Meta(max_length=_MOST_DIMENSIONS)]
    offset: _Integer
    op: str | None = None
    slot: str | None = None


class _About(msgspec.Struct):
    """The content of a dataset's attribute. `docs/how_it_works/files.md` explains the keys."""

    sequence: _Integer
    views: tuple[_View, ...]
    dtype: str
    shape: _Shape
    op: str | None = None
    slot: str | None = None
    module: str | None = None
    step: _Integer | None = None
    xxh3_64: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")] | None = None
    codec: Annotated[str, msgspec.Meta(pattern=rf"^(?:{CODEC_NAME.pattern})\Z")] | None = None


def _about(path: Path, text: str) -> _About:
    """Decode the text of a dataset's attribute.

    Raises Unreadable if the text makes no sense. Raises SpillFormatError if its format is of a newer version.
    """
    try:
        found = json.loads(text)
        version = found.get("format") if isinstance(found, dict) else None
        if type(version) is not int or version < 1:
            raise ValueError(f"its format is {version!r:.20}")
        check_version(path, version, FORMAT_VERSION)
        return msgspec.convert(found, _About)
    except SpillFormatError:
        raise
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise Unreadable(f"its attribute is damaged: {error}") from error


def dtype_named(name: str | None, itemsize: int | None) -> np.dtype[Any] | None:
    """Return the dtype of this name; None if no store writes the name, or if a given `itemsize` does not match."""
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
