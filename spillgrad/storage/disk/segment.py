"""A segment: an HDF5 file of arrays. HDF5 assigns places to arrays; their bytes are read and written without HDF5.

`docs/how_it_works/files.md` describes the file.
"""

import bisect
import contextlib
import dataclasses
import json
import math
import operator
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from spillgrad.errors import SpillCorruptionError
from spillgrad.storage.codecs import EXACT_BF16, Encoding, filters
from spillgrad.storage.disk import hdf5, open_segments
from spillgrad.storage.disk.chunks import (
    PAGE_BYTES,
    TOLD_PIECES_MAX,
    Piece,
    chunk_shape,
    compressed_chunks,
    join_pieces,
    places,
)
from spillgrad.storage.disk.halves import halves_of, room_for_halves, spread
from spillgrad.storage.disk.hdf5_types import hdf5_type
from spillgrad.storage.disk.holes import hole_bytes, punch
from spillgrad.storage.disk.payload import PayloadFile
from spillgrad.storage.disk.spans import BlockDigests, digest_of, is_small, read_spans
from spillgrad.storage.disk.structure_file import StructureFile
from spillgrad.storage.journal import late_events as events
from spillgrad.storage.store import NO_LABEL, Label, View

FORMAT_VERSION = 1
ATTRIBUTE = b"spillgrad"


@dataclasses.dataclass(slots=True, eq=False)
class Extent:
    """The place of one array on disk: its dataset, and the pieces of the file that hold its bytes."""

    segment: "Segment"
    dataset: str  # its name in the file
    sequence: int
    shape: tuple[int, ...]  # of the dataset
    dtype: np.dtype[Any]
    pieces: tuple[Piece, ...]
    allocated_bytes: int
    told_pieces: Any  # the pieces in the form of the journal; UNSET if there are too many
    label: Label
    views: list[View]  # the list of the array's handle
    checksum: int | None = None  # of the written bytes
    written: bool = False
    described: bool = False  # the dataset has its attribute
    cached: bool = False  # it was written through the page cache, and may still be there
    encoding: Encoding | None = None  # None if the array is stored as it is
    blocks: BlockDigests | None = None  # the checksums of its pages, once parts are read

    @property
    def stored_bytes(self) -> int:
        """The number of bytes that the file holds for the array, encoded if there is an encoding."""
        return sum(nbytes for _, _, nbytes in self.pieces)

    @property
    def staging_bytes(self) -> int:
        """The bytes of memory that a read takes in addition to the array."""
        return 0 if self.encoding is None else self.encoding.staging_bytes

    @property
    def holds_halves(self) -> bool:
        """Whether the file holds the upper halves of float32 numbers."""
        return self.encoding is not None and self.encoding.codec == EXACT_BF16

    @property
    def fits_one_only(self) -> bool:
        """Whether no other array can reuse the place, because compression determined the sizes of its chunks."""
        return self.encoding is not None and bool(self.encoding.chunks)

    @property
    def where(self) -> tuple[Any, ...]:
        """The fields of `events.Place` from `segment` on; `dataset` is the dataset's name after the next flush."""
        about = self.encoding or self
        place = (
            self.segment.name,
            _dataset_name(self.sequence),
            about.shape,
            self.told_pieces,
            events.UNSET if self.checksum is None else f"{self.checksum:016x}",
            ">" if about.dtype.byteorder == ">" else events.UNSET,
        )
        if self.encoding is None:
            return (*place, events.UNSET, events.UNSET, events.UNSET)
        chunks = self.encoding.chunks if 0 < len(self.encoding.chunks) <= TOLD_PIECES_MAX else events.UNSET
        return (*place, self.stored_bytes, self.encoding.codec, chunks)

    def write(self, array: np.ndarray, cached: bool = False) -> None:
        """Write the bytes of a C-contiguous array to this place; with `cached`, through the page cache.

        Raises OSError if the write fails. The segment is then full: it takes no more arrays.
        """
        self.cached = cached
        segment = self.segment
        payload = array.reshape(-1).view(np.uint8)
        digest = xxhash.xxh3_64()
        for file_offset, start, nbytes in self.pieces:
            parts = halves_of(array, start, nbytes) if self.holds_halves else [payload[start : start + nbytes]]
            for part in parts:
                if segment.checksums:
                    digest.update(part.data)
                try:
                    segment.payload.write(part, 0, part.nbytes, file_offset, cached)
                except OSError:
                    segment.is_full = True
                    raise
                file_offset += part.nbytes
        if segment.checksums:
            self.checksum = digest.intdigest()
            if self.blocks is not None:
                self.blocks.agree(0, payload.data)
        self.written = True

    def read(self, into: np.ndarray) -> None:
        """Fill a C-contiguous array with the stored bytes.

        Raises SpillCorruptionError if the bytes differ from those written. Raises OSError if the read fails.
        """
        payload = room_for_halves(into) if self.holds_halves else into.reshape(-1).view(np.uint8)
        digest = xxhash.xxh3_64()
        for file_offset, start, nbytes in self.pieces:
            missing = nbytes - self.segment.payload.read(payload, start, nbytes, file_offset, self.cached)
            if missing:
                raise self.corrupt(f"the file ends {missing} bytes too early")
            if self.checksum is not None:
                digest.update(payload[start : start + nbytes].data)
        if self.checksum not in (None, digest.intdigest()):
            raise self.corrupt(f"checksum {digest.intdigest():016x}, written with {self.checksum:016x}")
        if self.holds_halves:
            spread(into)

    def take_blocks(self) -> None:
        """Prepare to take the checksums of pages as they are written, so that parts can be read.

        A no-op for upper halves, which are not in memory together: the first read of parts takes them.
        """
        if self.segment.checksums and not self.holds_halves:
            self.blocks = BlockDigests(0, self.stored_bytes)

    def read_spans(self, spans: np.ndarray, into: np.ndarray) -> int:
        """Fill `into`, of one dimension, with spans of elements; return how many bytes were read.

        What was written without checksums of its pages is read whole, once, to take them. Raises what `read` raises.
        """
        nbytes, whole = 0, self.stored_bytes
        if self.checksum is not None and self.blocks is None:
            digest, blocks = digest_of(self, 0, whole)
            if digest != self.checksum:
                raise self.corrupt(f"checksum {digest:016x}, written with {self.checksum:016x}")
            self.blocks = blocks
            nbytes += whole
        target = room_for_halves(into) if self.holds_halves else into.view(np.uint8)

        def put(content: np.ndarray, start: int) -> None:
            target[start : start + content.size] = content

        nbytes += read_spans(self, spans * self.dtype.itemsize, 0, whole, put)
        if self.holds_halves:
            spread(into)
        return nbytes

    def announce(self, start: int, stop: int) -> None:
        """Have the system begin to read bytes of the array into the page cache."""
        for file_offset, _, nbytes in self._pieces_in(start, stop):
            self.segment.payload.announce(file_offset, nbytes)

    def read_run(self, buffer: np.ndarray, start: int, stop: int) -> memoryview:
        """Return bytes of the array in a page-aligned buffer; they are verified if checksums of pages were taken."""
        cached, content = self.cached or is_small(start, stop), buffer.data[: stop - start]
        for file_offset, done, nbytes in self._pieces_in(start, stop):
            if missing := nbytes - self.segment.payload.read(buffer, done, nbytes, file_offset, cached):
                raise self.corrupt(f"the file ends {missing} bytes too early")
        if self.blocks is not None and not self.blocks.agree(start, content):
            raise self.corrupt(f"its bytes {start} to {stop} are not those that were written")
        return content

    def _pieces_in(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield the parts of pieces that hold bytes `start:stop`; their places in the array count from `start` on."""
        number = bisect.bisect_right(self.pieces, start, key=operator.itemgetter(1)) - 1
        done = start
        while done < stop:
            file_offset, first, nbytes = self.pieces[number]
            count = min(first + nbytes, stop) - done
            yield file_offset + done - first, done - start, count
            done, number = done + count, number + 1

    def corrupt(self, what: str) -> SpillCorruptionError:
        """Return the SpillCorruptionError for an array that came back damaged; `what` describes the damage."""
        return SpillCorruptionError(
            f"get: {self.label} came back damaged from dataset {self.dataset} of {self.segment.path}: {what}; "
            "check that disk, and run the step again"
        )


class Segment:
    """An HDF5 file to which datasets are added, and from which they are removed.

    Invariant: HDF5 assigns every chunk its place when a dataset is created (early allocation, no fill values), and
    never reads or writes a payload itself. Only `free` gives a place back. Only one thread, the owner, calls the
    methods, except `disk_bytes`, which any thread may call. Any thread may write and read an extent until the extent is
    freed.

    Once a write fails, no more arrays are added: HDF5 would keep assigning the place that could not be written.
    """

    def __init__(self, path: str, capacity_bytes: int, *, direct_io: bool, checksums: bool) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self.checksums = checksums
        self._undescribed: set[Extent] = set()
        self.capacity_bytes = capacity_bytes
        self.live_bytes = 0
        self._live: set[Extent] = set()
        self.is_full = False  # the disk refused a write
        self._failed = False
        open_segments.abandon_at_exit()
        access = hdf5.h5p.create(hdf5.h5p.FILE_ACCESS)
        access.set_alignment(PAGE_BYTES, PAGE_BYTES)
        access.set_fclose_degree(hdf5.h5f.CLOSE_STRONG)
        with open_segments.opening, contextlib.ExitStack() as undo:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            undo.callback(os.unlink, path)
            undo.callback(os.close, self._fd)
            self.payload = PayloadFile(path, self._fd, direct_io)
            undo.callback(self.payload.close)
            self._structure = StructureFile(self._fd)
            access.set_fileobj_driver(hdf5.h5fd.fileobj_driver, self._structure)
            self._file = hdf5.h5f.create(os.fsencode(path), hdf5.h5f.ACC_TRUNC, fapl=access)
            undo.pop_all()
            open_segments.present.add(self)

    @property
    def live_datasets(self) -> int:
        """The number of arrays that have a place."""
        return len(self._live)

    @property
    def broken(self) -> bool:
        """Whether HDF5 failed to read or write the structure: live arrays stay readable, but no array is added."""
        return self._failed or self._structure.error is not None

    @property
    def closed_to_more(self) -> bool:
        """Whether no array may be added any more, because a write or HDF5 failed."""
        return self.is_full or self.broken

    def place(
        self, array: np.ndarray, sequence: int, label: Label, views: list[View], encoding: Encoding | None = None
    ) -> Extent:
        """Create a dataset for a C-contiguous array, and return its extent; then `Extent.write` writes the array there.

        With an `encoding`, `array` is the encoded form. Raises OSError if the structure of the file cannot be written.
        """
        dataset = _dataset_name(sequence)
        shape, dtype = array.shape, array.dtype
        if encoding is not None and encoding.chunks:
            shape, dtype = encoding.shape, encoding.dtype
            pieces, allocated = self._create_compressed(array, dataset, encoding)
        else:
            pieces, allocated = self._create(array, dataset)
        told = places(pieces) if len(pieces) <= TOLD_PIECES_MAX else events.UNSET
        extent = Extent(
            self, dataset, sequence, shape, dtype, tuple(pieces), allocated, told, label, views, encoding=encoding
        )
        for file_offset, _, nbytes in pieces:
            self._structure.taken(file_offset, file_offset + nbytes)
        self.live_bytes += allocated
        self._live.add(extent)
        self._undescribed.add(extent)
        return extent

    def place_again(
        self, extent: Extent, sequence: int, label: Label, views: list[View], encoding: Encoding | None = None
    ) -> Extent:
        """Reuse the place of a freed array, whose dataset has no attribute, for one of the same shape and dtype."""
        for extents in (self._undescribed, self._live):
            extents.discard(extent)
        extent = dataclasses.replace(
            extent, sequence=sequence, label=label, views=views, checksum=None, written=False, encoding=encoding,
            blocks=None,
        )  # fmt: skip
        for extents in (self._undescribed, self._live):
            extents.add(extent)
        return extent

    def free(self, extent: Extent) -> None:
        """Give the space of `extent` back to HDF5; no read or write of the extent may be under way.

        Once HDF5 has failed in this file, the space stays in use until the file is removed.
        """
        self.live_bytes -= extent.allocated_bytes
        self._live.discard(extent)
        self._undescribed.discard(extent)
        if not self.broken:
            with contextlib.suppress(Exception), self._structural_change():  # which notes the failure
                self._file.unlink(extent.dataset.encode())

    def flush(self) -> None:
        """Write the descriptions of all arrays, and HDF5's structure, to the file. Then plain h5py finds every dataset.

        No write of an array may be under way. Raises OSError if the structure could not be written, now or earlier.
        """
        if not self.broken:
            with self._structural_change():
                while self._undescribed:
                    self._describe(next(iter(self._undescribed)))
                hdf5.h5f.flush(self._file, hdf5.h5f.SCOPE_LOCAL)
        if self.broken:
            raise OSError(f"the structure of {self.path} could not be written") from self._structure.error

    def describe_one(self) -> bool:
        """Describe one written array, as `flush` does; return False if there is none. Writes may be under way."""
        written = next((extent for extent in self._undescribed if extent.written), None)
        if written is None or self.broken:
            return False
        with contextlib.suppress(Exception), self._structural_change():  # which notes the failure
            self._describe(written)
        return True

    def disk_bytes(self) -> int:
        """Return how many bytes of disk the file occupies."""
        return os.fstat(self._fd).st_blocks * 512

    def hole_bytes(self, extent: Extent) -> int:
        """Return how many bytes of `extent` are in holes, which a write fills. Raises OSError if lseek fails."""
        return sum(hole_bytes(self._fd, start, start + nbytes) for start, _, nbytes in extent.pieces)

    def punch_holes(self) -> None:
        """Free the disk blocks of all pages that hold neither an array nor structure.

        HDF5 may have assigned such a page to structure that it has not written yet; the later write allocates blocks
        again. Raises OSError if holes cannot be punched on a file system that supports them.
        """
        length = -(-os.fstat(self._fd).st_size // PAGE_BYTES)
        used = np.ones(length + 2, np.bool_)
        pages = used[1:-1]
        pages[:] = False
        written = self._structure.pages[:length]
        pages[: len(written)] = written
        for extent in self._live:
            for start, _, nbytes in extent.pieces:
                pages[start // PAGE_BYTES : -(-(start + nbytes) // PAGE_BYTES)] = True
        edges = np.flatnonzero(np.diff(used)) * PAGE_BYTES
        for first, last in edges.reshape(-1, 2).tolist():
            punch(self._fd, first, last)

    def discard(self) -> None:
        """Remove the file and close it. A file that cannot be removed is emptied, if the disk can do that."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:  # the whole directory was removed
            pass
        except OSError:
            # The removal of the run's directory meets the same obstacle, and raises.
            with contextlib.suppress(OSError):  # a disk that is gone refuses this too
                os.truncate(self._fd, 0)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without writing to it."""
        with open_segments.opening:
            if self in open_segments.present:
                self._structure.abandon()
                self._file.close()
                self.payload.close()
                os.close(self._fd)
                open_segments.present.discard(self)

    @contextlib.contextmanager
    def _structural_change(self) -> Iterator[None]:
        """Context manager: record an error that HDF5 raises; raise OSError if I/O of the structure failed."""
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        if self._structure.error is not None:
            raise OSError(*self._structure.error.args) from self._structure.error

    def _describe(self, extent: Extent) -> None:
        """Describe an array in one JSON attribute of its dataset, as each attribute costs 30 to 45 microseconds."""
        self._undescribed.discard(extent)
        if extent.dataset != _dataset_name(extent.sequence):  # another array had the place before
            name = _dataset_name(extent.sequence)
            self._file.links.move(extent.dataset.encode(), self._file, name.encode())
            extent.dataset = name
        encoding = extent.encoding
        secret = encoding is not None and encoding.secret
        text = json.dumps(
            {
                "format": FORMAT_VERSION,
                "sequence": extent.sequence,
                **vars(NO_LABEL if secret else extent.label),
                "views": [] if secret else [view._asdict() for view in list(extent.views)],
                "dtype": (encoding or extent).dtype.name,
                "shape": (encoding or extent).shape,
                "xxh3_64": None if extent.checksum is None else f"{extent.checksum:016x}",
                **({"codec": encoding.codec} if encoding else {}),
            }
        ).encode()
        kind = hdf5.h5t.C_S1.copy()
        kind.set_size(len(text))
        kind.set_cset(hdf5.h5t.CSET_UTF8)
        dataset = hdf5.h5d.open(self._file, extent.dataset.encode())
        attribute = hdf5.h5a.create(dataset, ATTRIBUTE, kind, hdf5.h5s.create(hdf5.h5s.SCALAR))
        attribute.write(np.array(text), mtype=kind)
        extent.described = True

    def _create(self, array: np.ndarray, dataset: str) -> tuple[list[Piece], int]:
        kind = hdf5_type(array.dtype)
        layout = hdf5.h5p.create(hdf5.h5p.DATASET_CREATE)
        layout.set_alloc_time(hdf5.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(hdf5.h5d.FILL_TIME_NEVER)
        if array.ndim == 0:  # HDF5 has no chunks without dimensions
            layout.set_layout(hdf5.h5d.CONTIGUOUS)
            space = hdf5.h5s.create(hdf5.h5s.SCALAR)
            with self._structural_change():
                found = hdf5.h5d.create(self._file, dataset.encode(), kind, space, dcpl=layout)
                return [(found.get_offset(), 0, array.nbytes)], array.nbytes
        chunk = chunk_shape(array.shape, array.itemsize)
        layout.set_chunk(chunk)
        space = hdf5.h5s.create_simple(array.shape)
        strides = [math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]
        pieces: list[Piece] = []
        allocated = 0

        def place(info: Any) -> None:
            nonlocal allocated
            elements = math.prod(map(min, chunk, map(operator.sub, array.shape, info.chunk_offset)))
            start = sum(map(operator.mul, info.chunk_offset, strides))
            pieces.append((info.byte_offset, start * array.itemsize, elements * array.itemsize))
            allocated += info.size

        with self._structural_change():
            found = hdf5.h5d.create(self._file, dataset.encode(), kind, space, dcpl=layout)
            found.chunk_iter(place)
        return join_pieces(pieces), allocated

    def _create_compressed(self, payload: np.ndarray, dataset: str, encoding: Encoding) -> tuple[list[Piece], int]:
        chunk, offsets = compressed_chunks(encoding.shape, encoding.dtype.itemsize)
        layout = hdf5.h5p.create(hdf5.h5p.DATASET_CREATE)
        layout.set_fill_time(hdf5.h5d.FILL_TIME_NEVER)
        layout.set_chunk(chunk)
        for number, parameters in filters(encoding.dtype):  # optional: HDF5 must not look for those it lacks
            layout.set_filter(number, hdf5.h5z.FLAG_OPTIONAL, parameters)
        starts = {}
        pieces: list[Piece] = []
        with self._structural_change(), self._structure.written_elsewhere(payload):
            space = hdf5.h5s.create_simple(encoding.shape)
            found = hdf5.h5d.create(self._file, dataset.encode(), hdf5_type(encoding.dtype), space, dcpl=layout)
            start = 0
            for offset, nbytes in zip(offsets, encoding.chunks, strict=True):
                found.write_direct_chunk(offset, payload[start : start + nbytes])
                starts[offset] = start
                start += nbytes
            found.chunk_iter(lambda info: pieces.append((info.byte_offset, starts[info.chunk_offset], info.size)))
        return join_pieces(pieces), payload.nbytes


def _dataset_name(sequence: int) -> str:
    return f"{sequence:08d}"
