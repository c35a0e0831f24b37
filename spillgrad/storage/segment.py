"""One HDF5 file of arrays, whose bytes move past HDF5, straight to and from the places HDF5 gave them."""

import dataclasses
import json
import os
from typing import Any

import h5py
import numpy as np
import xxhash

from spillgrad.errors import SpillCorruptionError
from spillgrad.storage.chunks import PAGE_BYTES, Piece, chunk_length, chunk_shape, join_pieces
from spillgrad.storage.hdf5_types import hdf5_type
from spillgrad.storage.store import Label

FORMAT_VERSION = 1
ATTRIBUTE = b"spillgrad"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """Where one array lies: its dataset, and the pieces of the file that hold its bytes."""

    segment: "Segment"
    dataset: str
    pieces: tuple[Piece, ...]
    allocated_bytes: int
    checksum: int
    label: Label

    def read(self, into: np.ndarray) -> None:
        """Fill a C-contiguous array with the stored bytes.

        Raises SpillCorruptionError when they are not what was written, OSError when they cannot be read.
        """
        self.segment.read(self, into)


class Segment:
    """An HDF5 file in which datasets come and go.

    Invariant: HDF5 gives every chunk its place when a dataset is created (early allocation, no fill values) and never
    reads or writes a payload itself; place is given back only by `free`. All methods belong to one thread, the owner,
    but for `read`, which any thread may call while the extent is not freed.
    """

    def __init__(self, path: str, capacity_bytes: int) -> None:
        self.path = path
        self.capacity_bytes = capacity_bytes
        self.live_bytes = 0
        self.live_datasets = 0
        # HDF5 would create the file with the umask's permissions; it keeps those of a file that exists.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
            access.set_alignment(PAGE_BYTES, PAGE_BYTES)
            access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
            access.set_file_locking(False, True)
            self._file = h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access)
        except BaseException:
            os.close(self._fd)
            os.unlink(path)
            raise
        self._hdf5_fd: int = self._file.get_vfd_handle()

    def write(self, array: np.ndarray, dataset: str, label: Label) -> Extent:
        """Store a C-contiguous array as a new dataset.

        Raises OSError when the disk refuses; the dataset is then gone again.
        """
        found, pieces, allocated = self._create(array, dataset)
        try:
            checksum = self._write_payload(array, pieces)
            _describe(found, array, label, int(dataset), checksum)
        except BaseException:
            del found
            self._file.unlink(dataset.encode())
            raise
        self.live_bytes += allocated
        self.live_datasets += 1
        return Extent(self, dataset, tuple(pieces), allocated, checksum, label)

    def read(self, extent: Extent, into: np.ndarray) -> None:
        """Fill `into`, C-contiguous, from `extent`, and verify the checksum."""
        payload = into.reshape(-1).view(np.uint8).data
        digest = xxhash.xxh3_64()
        for file_offset, array_offset, nbytes in extent.pieces:
            piece = payload[array_offset : array_offset + nbytes]
            done = 0
            while done < nbytes:
                count = os.preadv(self._fd, [piece[done:]], file_offset + done)
                if count == 0:
                    raise self._corrupt(extent, f"the file ends {nbytes - done} bytes too early")
                done += count
            digest.update(piece)
        if digest.intdigest() != extent.checksum:
            raise self._corrupt(extent, f"checksum {digest.intdigest():016x}, written with {extent.checksum:016x}")

    def free(self, extent: Extent) -> None:
        """Give the space of `extent` back to HDF5; no read or write of it may be under way."""
        self.live_bytes -= extent.allocated_bytes
        self.live_datasets -= 1
        self._file.unlink(extent.dataset.encode())

    def flush(self) -> None:
        """Write HDF5's structure out, so that plain h5py finds every dataset."""
        h5py.h5f.flush(self._file, h5py.h5f.SCOPE_LOCAL)

    def disk_bytes(self) -> int:
        """Return how many bytes of disk the file occupies."""
        return os.fstat(self._fd).st_blocks * 512

    def discard(self) -> None:
        """Remove the file and close it."""
        if os.path.exists(self.path):
            os.unlink(self.path)
        # Nobody will read the structure HDF5 writes when it closes; and on a full disk it could not close at all.
        self.abandon()
        self._file.close()
        os.close(self._fd)

    def abandon(self) -> None:
        """Make sure that this process writes nothing more to the file, whatever HDF5 does when it ends."""
        nowhere = os.memfd_create("spillgrad-abandoned")  # HDF5 sets the length of its file, which /dev/null refuses
        os.dup2(nowhere, self._hdf5_fd, inheritable=False)
        os.close(nowhere)

    def _create(self, array: np.ndarray, dataset: str) -> tuple[Any, list[Piece], int]:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        if array.ndim == 0:  # HDF5 has no chunks without dimensions
            layout.set_layout(h5py.h5d.CONTIGUOUS)
            space = h5py.h5s.create(h5py.h5s.SCALAR)
            found = h5py.h5d.create(self._file, dataset.encode(), hdf5_type(array.dtype), space, dcpl=layout)
            return found, [(found.get_offset(), 0, array.nbytes)], array.nbytes
        chunk, axis = chunk_shape(array.shape, array.itemsize)
        layout.set_chunk(chunk)
        limits = [h5py.h5s.UNLIMITED if i == axis else n for i, n in enumerate(array.shape)]
        space = h5py.h5s.create_simple(array.shape, tuple(limits))
        found = h5py.h5d.create(self._file, dataset.encode(), hdf5_type(array.dtype), space, dcpl=layout)
        pieces: list[Piece] = []
        allocated = 0

        def place(info: Any) -> None:
            nonlocal allocated
            elements = chunk_length(info.chunk_offset, chunk, axis, array.shape)
            start = int(np.ravel_multi_index(info.chunk_offset, array.shape))
            pieces.append((info.byte_offset, start * array.itemsize, elements * array.itemsize))
            allocated += info.size

        found.chunk_iter(place)
        return found, join_pieces(pieces), allocated

    def _write_payload(self, array: np.ndarray, pieces: list[Piece]) -> int:
        payload = array.reshape(-1).view(np.uint8).data
        digest = xxhash.xxh3_64()
        for file_offset, array_offset, nbytes in pieces:
            piece = payload[array_offset : array_offset + nbytes]
            digest.update(piece)
            while piece:
                written = os.pwrite(self._fd, piece, file_offset)
                piece, file_offset = piece[written:], file_offset + written
        return digest.intdigest()

    def _corrupt(self, extent: Extent, what: str) -> SpillCorruptionError:
        return SpillCorruptionError(
            f"get: {extent.label} came back damaged from dataset {extent.dataset} of {self.path}: {what}; "
            "check that disk, and run the step again"
        )


def _describe(dataset: Any, array: np.ndarray, label: Label, sequence: int, checksum: int) -> None:
    """Attach what a reader may want to know, as one JSON attribute: each attribute costs 30 to 45 microseconds."""
    text = json.dumps(
        {
            "format": FORMAT_VERSION,
            "sequence": sequence,
            **dataclasses.asdict(label),
            "dtype": array.dtype.name,
            "shape": array.shape,
            "xxh3_64": f"{checksum:016x}",
        }
    ).encode()
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(text))
    kind.set_cset(h5py.h5t.CSET_UTF8)
    attribute = h5py.h5a.create(dataset, ATTRIBUTE, kind, h5py.h5s.create(h5py.h5s.SCALAR))
    attribute.write(np.array(text), mtype=kind)
