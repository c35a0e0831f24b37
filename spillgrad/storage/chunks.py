"""How an array is cut into the chunks of an HDF5 dataset."""

import functools
import itertools
import math

# Smaller chunks fit into more holes of the file (`test_segment.py`), larger ones cost less to create.
CHUNK_BYTES = 256 << 10
# Pieces of this size keep the checksum in cache and the system calls few.
PIECE_BYTES = 8 << 20
PAGE_BYTES = 4096
# Chunk sizes are 32-bit in files that HDF5 1.8 can read.
_MAX_CHUNK_BYTES = (1 << 32) - 1

Piece = tuple[int, int, int]  # offset in the file, offset in the array's bytes, number of bytes


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], int]:
    """Return a chunk shape whose bytes are consecutive in the array and fill whole pages; and the axis it may overhang.

    A chunk is `k` whole rows of one axis. The axis is the one whose padding wastes least; the padding belongs to the
    chunk, so that a page written behind the array's end damages nothing.
    """
    nbytes = math.prod(shape) * itemsize
    best: tuple[int, int, tuple[int, ...]] | None = None
    for axis, length in enumerate(shape):
        outer = math.prod(shape[:axis])
        row_bytes = math.prod(shape[axis + 1 :]) * itemsize
        if not row_bytes or not length or not outer:
            continue
        rows_in_pages = PAGE_BYTES // math.gcd(row_bytes, PAGE_BYTES)
        parts = max(1, round(length * row_bytes / CHUNK_BYTES))
        rows = -(-length // (parts * rows_in_pages)) * rows_in_pages
        if rows * row_bytes > _MAX_CHUNK_BYTES:
            continue
        allocated = outer * -(-length // rows) * rows * row_bytes
        if best is None or allocated < best[0]:
            best = allocated, axis, (1,) * axis + (rows, *shape[axis + 1 :])
        if allocated - nbytes < PAGE_BYTES:
            break
    if best is None:  # nothing to store
        return (1,) * len(shape), 0
    return best[2], best[1]


def chunk_length(chunk_offset: tuple[int, ...], chunk: tuple[int, ...], axis: int, shape: tuple[int, ...]) -> int:
    """Return how many elements of the array a chunk at `chunk_offset` holds."""
    return min(chunk[axis], shape[axis] - chunk_offset[axis]) * math.prod(shape[axis + 1 :])


@functools.lru_cache(maxsize=64)
def compressed_chunks(
    shape: tuple[int, ...], itemsize: int
) -> tuple[tuple[int, ...], dict[tuple[int, ...], tuple[int, int]]]:
    """Return the shape of chunks that are compressed; and where each begins: its first element, and how many there are.

    A chunk is whole consecutive rows of the first axis whose rows are no larger than a chunk, whatever they come to.
    """
    axis = next(i for i in range(len(shape)) if math.prod(shape[i + 1 :]) * itemsize <= CHUNK_BYTES)
    row = math.prod(shape[axis + 1 :])
    parts = -(-shape[axis] * row * itemsize // CHUNK_BYTES)
    rows = -(-shape[axis] // parts)
    chunk = (1,) * axis + (rows, *shape[axis + 1 :])
    starts = {}
    start = 0
    for outer in itertools.product(*map(range, shape[:axis])):
        for first in range(0, shape[axis], rows):
            count = min(rows, shape[axis] - first) * row
            starts[(*outer, first, *(0 for _ in shape[axis + 1 :]))] = (start, count)
            start += count
    return chunk, starts


def join_pieces(pieces: list[Piece]) -> list[Piece]:
    """Join pieces that follow each other in the file and in the array, up to `PIECE_BYTES` each.

    Chunks of less than that come from arrays with many short rows, where a system call for each would cost more than
    its bytes.
    """
    joined: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece[1]):
        if joined:
            file_offset, array_offset, nbytes = joined[-1]
            follows = file_offset + nbytes == piece[0] and array_offset + nbytes == piece[1]
            if follows and nbytes + piece[2] <= PIECE_BYTES:
                joined[-1] = (file_offset, array_offset, nbytes + piece[2])
                continue
        joined.append(piece)
    return joined
