"""List the arrays of a segment from the journal of its run, including those that no flush has given to HDF5 yet."""

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad.errors import SpillCorruptionError, SpillError, SpillFormatError
from spillgrad.inspection.arrays import (
    CODEC_NAME,
    Chunk,
    StoredArray,
    Unreadable,
    check_codec,
    dtype_named,
    stored_itemsize,
)
from spillgrad.inspection.journal_reader import JournalReader
from spillgrad.inspection.journal_state import JournalState, Place, Placed
from spillgrad.inspection.printable import printable
from spillgrad.inspection.values import StoredValues
from spillgrad.storage.codecs import MAX_ITEM_BYTES, Lossless
from spillgrad.storage.disk.chunks import PAGE_BYTES, compressed_chunk_shape, compressed_chunks
from spillgrad.storage.journal.files import JOURNAL_NAME
from spillgrad.storage.store import Label

_DATASET_NAME = re.compile("[0-9]{8,19}")


class Journals(contextlib.AbstractContextManager["Journals"]):
    """Reads the journals in the folders of segments. The last journal stays open, so only its new lines are read.

    A store records in its journal that an array is gone before it reuses the array's bytes. So the bytes read for an
    array are the array's own if the journal still lists the array after the reading.
    """

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._reader: JournalReader | None = None
        self._keys: dict[str, set[str]] = {}  # by segment, the keys of the arrays that the journal lists in it

    def __exit__(self, *exception: object) -> None:
        self._close()

    def of(self, segment: Path) -> JournalState | None:
        """Read the journal in the folder of a segment up to its present end, and return its state.

        Return None if there is no journal, if it cannot be read, or if it is a link to the journal of another run.
        """
        directory = segment.parent
        if directory != self._directory:
            self._close()
            self._directory = directory
            self._reader = JournalReader(directory / JOURNAL_NAME, JournalState(with_places=True), directory)
        reader = self._reader
        if reader is None:
            return None
        try:
            if reader.read():
                self._keys.clear()
        except FileNotFoundError:
            return None
        except (OSError, SpillFormatError):  # a reader of the journal itself gets the reason
            self._close()
            return None
        return reader.state if reader.head.format is not None and not reader.is_cut else None

    def has(self, segment: Path, array: StoredArray) -> bool:
        """Return whether the journal still lists an array in a segment."""
        state = self.of(segment)
        if state is None:
            return False
        if segment.name not in self._keys:
            self._keys[segment.name] = {one.place.dataset for one in state.placed(segment.name)}
        return array.key in self._keys[segment.name]

    def _close(self) -> None:
        self._keys.clear()
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def require_there(segment: Path, array: StoredArray) -> None:
    """If `array` is from a journal that no longer lists it, raise SpillError: its bytes may have been overwritten."""
    if not array.from_journal:
        return
    with Journals() as journals:
        if not journals.has(segment, array):
            raise SpillError(
                f"inspect: {printable(str(segment), 4096)}: {array.key} went while it was read: its run freed it, or "
                "changed it; name another array, or look again"
            )


@contextlib.contextmanager
def there(segment: Path, array: StoredArray) -> Iterator[StoredValues]:
    """Context manager: open the values of an array for reading; at the end, check the array with `require_there`.

    Raises SpillError if the run freed or changed the array meanwhile.
    """
    try:
        with StoredValues(segment, array) as values:
            yield values
    except (SpillCorruptionError, FileNotFoundError):
        require_there(segment, array)
        raise
    require_there(segment, array)


def placed_array(found: Placed, file_bytes: int, most_bytes: int) -> StoredArray:
    """Convert a journal's array; the array's file has `file_bytes`, and can hold at most `most_bytes` of arrays."""
    place, origin = found.place, found.origin
    dtype, shape = None, tuple(place.shape)
    chunks: tuple[Chunk, ...] = ()
    problem = None
    try:
        if not _DATASET_NAME.fullmatch(place.dataset):
            raise Unreadable("its name is none that a store gives")
        dtype = dtype_named(origin.dtype, None)
        if dtype is None or not dtype.itemsize:
            raise Unreadable("its type is none that an array has")
        if place.order == ">":
            dtype = dtype.newbyteorder(">")
        chunks = tuple(_chunks(place, shape, dtype, file_bytes, most_bytes))
        check_codec(place.codec, dtype, shape, sum(chunk.nbytes for chunk in chunks))
    except Unreadable as why:
        problem, chunks = str(why), ()
    return StoredArray(
        place.dataset, int(place.dataset) if _DATASET_NAME.fullmatch(place.dataset) else None,
        Label(origin.op, origin.slot, origin.module, found.step), (), dtype, shape, None, chunks,
        math.prod(shape) * (dtype.itemsize if dtype else 0), sum(chunk.nbytes for chunk in chunks), place.codec,
        place.checksum, problem, from_journal=True,
    )  # fmt: skip


def _chunks(
    place: Place, shape: tuple[int, ...], dtype: np.dtype[Any], file_bytes: int, most_bytes: int
) -> Iterator[Chunk]:
    """Yield the chunks of an array whose pieces in the file, as the journal says, are `place.pieces`.

    Raises Unreadable if a piece is beyond the `file_bytes` of the file, if all are more than `most_bytes`, or if they
    do not make up an array of `shape` and `dtype`.
    """
    if place.pieces is None:
        raise Unreadable("the journal does not say where it lies")
    if place.codec is not None and not CODEC_NAME.fullmatch(place.codec):
        raise Unreadable(f"its codec is {place.codec:.40}, which no store has")
    if any(not nbytes or offset + nbytes > file_bytes for offset, nbytes in place.pieces):
        raise Unreadable("some of it lies outside of the file")
    stored = sum(nbytes for _, nbytes in place.pieces)
    if stored > most_bytes:
        raise Unreadable(f"it has {stored} bytes, in a file that can hold {most_bytes}")
    if place.codec == Lossless.name:
        yield from _compressed(place, shape, dtype)
        return
    if place.codec is None and stored != math.prod(shape) * dtype.itemsize:
        raise Unreadable(f"it has {stored} bytes, and is {dtype.name} {shape}")
    itemsize = stored_itemsize(place.codec, dtype)
    start = 0
    for offset, nbytes in place.pieces:
        if nbytes % itemsize:
            raise Unreadable("its pieces are no whole elements")
        yield Chunk(start, nbytes // itemsize, offset, nbytes)
        start += nbytes // itemsize


def _compressed(place: Place, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Chunk]:
    """Yield a compressed array's chunks. Raises Unreadable unless each lies in one piece and they fill the pieces."""
    if not math.prod(shape) or dtype.itemsize > MAX_ITEM_BYTES:
        raise Unreadable("it is not compressed as a store does it")
    rows = zip(shape, compressed_chunk_shape(shape, dtype.itemsize), strict=True)
    count = math.prod(-(-length // most) for length, most in rows)
    if count != len(place.chunks):
        raise Unreadable(f"it has {len(place.chunks)} chunks, and {shape} makes {count}")
    pieces = iter(place.pieces or ())
    offset = left = 0
    # Forged arrays must not fill the cache.
    starts = compressed_chunks.__wrapped__(shape, dtype.itemsize)[1].values()
    for (start, length), nbytes in zip(starts, place.chunks, strict=True):
        if not left:
            offset, left = next(pieces, (0, 0))
        if not 0 < nbytes <= left or nbytes % PAGE_BYTES:
            raise Unreadable("its compressed chunks are no whole pages of its pieces")
        yield Chunk(start, length, offset, nbytes)
        offset, left = offset + nbytes, left - nbytes
    if left or next(pieces, None) is not None:
        raise Unreadable("its pieces hold more than its chunks")
