"""How an array is cut into the chunks of an HDF5 dataset."""

import functools
import itertools
import math
from collections.abc import Sequence

# The most bytes of a chunk of a compressed dataset: to read any part of a chunk, HDF5 decompresses all of it.
_COMPRESSED_BYTES = 256 << 10
# The most bytes of a piece: its checksum is computed while the processor's cache still has the piece.
PIECE_BYTES = 8 << 20
PAGE_BYTES = 4096
# Chunk sizes are 32-bit in files that HDF5 1.8 can read.
_MAX_CHUNK_BYTES = (1 << 32) - 1

# The journal leaves out longer lists of pieces or chunks (16 GiB in one array); then only the HDF5 file has them.
TOLD_PIECES_MAX = 1 << 16

Piece = tuple[int, int, int]  # offset in the file, offset in the array's bytes, number of bytes


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the chunk shape of an uncompressed array: the whole array, or, from 4 GiB on, consecutive whole rows."""
    if not math.prod(shape):
        return (1,) * len(shape)
    return _rows(shape, itemsize, _MAX_CHUNK_BYTES)


def compressed_chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the chunk shape of a compressed array: consecutive whole rows, of at most 256 KiB altogether."""
    return _rows(shape, itemsize, _COMPRESSED_BYTES)


@functools.lru_cache(maxsize=64)
def compressed_chunks(
    shape: tuple[int, ...], itemsize: int
) -> tuple[tuple[int, ...], dict[tuple[int, ...], tuple[int, int]]]:
    """Return the chunk shape of a compressed array, and a dict of its chunks.

    A key is the tuple of indices, one for each axis, of the first element of a chunk. The value is (flat index of that
    element, number of elements in the chunk).
    """
    chunk = compressed_chunk_shape(shape, itemsize)
    axis = next(i for i in range(len(shape)) if chunk[i] > 1 or i == len(shape) - 1)
    rows, row = chunk[axis], math.prod(shape[axis + 1 :])
    starts = {}
    start = 0
    for outer in itertools.product(*map(range, shape[:axis])):
        for first in range(0, shape[axis], rows):
            count = min(rows, shape[axis] - first) * row
            starts[(*outer, first, *(0 for _ in shape[axis + 1 :]))] = (start, count)
            start += count
    return chunk, starts


def _rows(shape: tuple[int, ...], itemsize: int, most_bytes: int) -> tuple[int, ...]:
    """Return the shape of a block of whole rows, of at most `most_bytes`, along the first axis with rows that small."""
    axis = next(i for i in range(len(shape)) if math.prod(shape[i + 1 :]) * itemsize <= most_bytes)
    most_rows = most_bytes // (math.prod(shape[axis + 1 :]) * itemsize)
    parts = -(-shape[axis] // most_rows)
    return (1,) * axis + (-(-shape[axis] // parts), *shape[axis + 1 :])


def places(pieces: Sequence[Piece]) -> list[list[int]]:
    """Return [file offset, number of bytes] for each run of pieces that are adjacent in the file."""
    found: list[list[int]] = []
    for file_offset, _, nbytes in pieces:
        if found and sum(found[-1]) == file_offset:
            found[-1][1] += nbytes
        else:
            found.append([file_offset, nbytes])
    return found


def join_pieces(pieces: list[Piece]) -> list[Piece]:
    """Join pieces that are adjacent in both file and array, then cut them into pieces of at most `PIECE_BYTES`."""
    joined: list[Piece] = []
    for file_offset, array_offset, nbytes in sorted(pieces, key=lambda piece: piece[1]):
        if joined:
            before = joined[-1]
            if before[0] + before[2] == file_offset and before[1] + before[2] == array_offset:
                file_offset, array_offset, nbytes = before[0], before[1], before[2] + nbytes
                joined.pop()
        for done in range(0, nbytes, PIECE_BYTES):
            joined.append((file_offset + done, array_offset + done, min(PIECE_BYTES, nbytes - done)))
    return joined
