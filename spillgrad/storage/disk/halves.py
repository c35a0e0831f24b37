"""float32 arrays of bfloat16 numbers, of which files hold only the upper halves: half the bytes, the same numbers.

Such are gradients under `autocast`, which products in bfloat16 made, and weights that were bfloat16 in a checkpoint.
They take no memory that grows with the array: they are written from a small buffer, and read into the second half of
the array, where they are then spread out.
"""

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from spillgrad.storage.codecs import EXACT_BF16, MIN_BYTES, Encoding
from spillgrad.storage.disk.chunks import PAGE_BYTES
from spillgrad.storage.disk.payload import copy_buffer

_FLOAT32, _HALF_BYTES = np.dtype(np.float32), 2
_LOWER_BITS, _LOWER = 16, 0xFFFF
# The number of elements that are checked or spread out at a time: they fit the processor's cache.
_STEP = 64 << 10
# Halves that are read begin at a page, for direct I/O, so perhaps so many elements before the middle of the array.
_BEFORE_MIDDLE = PAGE_BYTES // _HALF_BYTES


def encoding_of(array: np.ndarray) -> Encoding | None:
    """Return how an array is stored as the upper halves of its numbers; None if that would lose any, or save little."""
    if array.dtype != _FLOAT32 or array.nbytes < MIN_BYTES or not array.flags.c_contiguous or not _is_exact(array):
        return None
    return Encoding(EXACT_BF16, array.shape, array.dtype, array.nbytes // 2)


def form_of(encoding: Encoding) -> np.ndarray:
    """Return an array without memory, with the shape and dtype of what is stored: bfloat16 numbers."""
    return np.broadcast_to(np.empty((), ml_dtypes.bfloat16), encoding.shape)


def halves_of(array: np.ndarray, start: int, nbytes: int) -> Iterator[np.ndarray]:
    """Yield bytes `start:start + nbytes` of the upper halves, in a buffer that the next part overwrites."""
    halves = array.reshape(-1).view(np.uint16)[1::2][start // _HALF_BYTES : (start + nbytes) // _HALF_BYTES]
    try:
        buffer = copy_buffer(nbytes)
    except MemoryError:  # once written, the array can be freed
        buffer = np.empty(min(PAGE_BYTES, nbytes), np.uint8)
    for done in range(0, nbytes, buffer.nbytes):
        part = buffer[: min(buffer.nbytes, nbytes - done)]
        first = done // _HALF_BYTES
        part.view(np.uint16)[:] = halves[first : first + part.nbytes // _HALF_BYTES]
        yield part


def room_for_halves(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array into which its upper halves are read, for `spread` to make its numbers of them."""
    payload: np.ndarray = array.reshape(-1).view(np.uint8)
    nbytes = payload.nbytes // 2
    first = nbytes // PAGE_BYTES * PAGE_BYTES
    return payload[first : first + nbytes]


def spread(array: np.ndarray) -> None:
    """Make the numbers of a float32 array from their upper halves, which are in `room_for_halves`."""
    words = array.reshape(-1).view(np.uint32)
    halves = room_for_halves(array).view(np.uint16)
    start = 0
    while start < words.size:
        # A copy, as the last numbers lie where their halves do. No others lie where the halves of later ones do.
        stop = start + _STEP if start + _STEP + _BEFORE_MIDDLE <= words.size else words.size
        part = halves[start:stop].astype(np.uint32)
        np.left_shift(part, _LOWER_BITS, out=words[start:stop])
        start = stop


def _is_exact(array: np.ndarray) -> bool:
    """Return whether the lower halves of all numbers are zero; of most arrays, the first numbers say no."""
    words = array.reshape(-1).view(np.uint32)
    starts = range(0, words.size, _STEP)
    return not np.bitwise_or.reduce(words[:64]) & _LOWER and not any(
        np.bitwise_or.reduce(words[start : start + _STEP]) & _LOWER for start in starts
    )
