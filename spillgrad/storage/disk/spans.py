"""Read some elements of an array where it lies on disk, and verify the blocks in which they lie.

Spans are an array of shape (n, 2): where each begins and ends, in order, without overlaps.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import xxhash

from spillgrad.storage.disk.chunks import PAGE_BYTES
from spillgrad_kernels.memory import buffers

# The bytes that are read at once into a buffer, which no budget counts; as for writing.
RUN_BYTES = 2 << 20
# A checksum is that of a page: direct I/O reads whole pages anyway.
_BLOCK_BYTES = PAGE_BYTES
# What lies between two spans is read too if it is no more than this: another request would take longer.
_GAP_BYTES = 16 << 10
_DIGEST = np.dtype(np.uint64)


def digest_bytes(nbytes: int) -> int:
    """Return the most memory that the checksums of the blocks of an array of `nbytes` take."""
    return (nbytes // _BLOCK_BYTES + 2) * _DIGEST.itemsize


class BlockDigests:
    """The checksums of the pages in which an array lies. A page's is taken when the page is first read or written.

    `begin` is where the array begins. Two threads may compare at a time; of a new page, both take the same checksum.
    """

    def __init__(self, begin: int, nbytes: int) -> None:
        self._first = begin // _BLOCK_BYTES
        self._known = np.zeros(-(-(begin + nbytes) // _BLOCK_BYTES) - self._first, _DIGEST)  # 0: not yet

    def agree(self, start: int, content: memoryview) -> bool:
        """Return whether bytes from `start` on, the array's whole part of some pages, are as they were before."""
        stop = start + len(content)
        first = start // _BLOCK_BYTES
        found = np.fromiter(
            (
                xxhash.xxh3_64_intdigest(content[max(0, at - start) : at + _BLOCK_BYTES - start])
                for at in range(first * _BLOCK_BYTES, stop, _BLOCK_BYTES)
            ),
            _DIGEST,
        )
        known = self._known[first - self._first :][: found.size]
        is_new = known == 0
        if not np.all(is_new | (known == found)):
            return False
        known[is_new] = found[is_new]
        return True


class Readable(Protocol):
    """An array on disk, by the places of its bytes."""

    def announce(self, start: int, stop: int) -> None:
        """Have the system begin to read bytes into the page cache; they are read from there soon."""
        ...

    def read_run(self, buffer: np.ndarray, start: int, stop: int) -> memoryview:
        """Return bytes in a page-aligned buffer that has two pages to spare, verified."""
        ...


def read_spans(
    array: Readable, spans: np.ndarray, begin: int, end: int, put: Callable[[np.ndarray, int], None]
) -> int:  # fmt: skip
    """Hand the bytes of spans to `put`, each with its place among the bytes of all; return how many bytes were read.

    The spans are places of bytes, as `begin` and `end` are, between which the array lies. Whole pages are read, and
    small gaps between spans.
    """
    runs = _runs(spans, begin, end)
    buffer = buffers.empty((max((stop - start for start, stop in runs), default=0) + 2 * PAGE_BYTES,), np.uint8)
    small = [run for run in runs if is_small(*run)]
    for run in small if len(small) > 1 else []:
        array.announce(*run)
    number, done = 0, 0
    wanted: list[list[int]] = spans.tolist()
    for start, stop in runs:
        content = np.frombuffer(array.read_run(buffer, start, stop), np.uint8)
        while number < len(wanted):
            first, last = wanted[number]
            if first >= stop:
                break
            here, there = max(first, start), min(last, stop)
            if here < there:
                put(content[here - start : there - start], done + here - first)
            if last > stop:  # the next run goes on with it
                break
            done += last - first
            number += 1
    return sum(stop - start for start, stop in runs)


def digest_of(array: Readable, begin: int, end: int) -> tuple[int, BlockDigests]:
    """Return the checksum of all bytes of an array, and those of its pages; little of it is in RAM at a time."""
    digest, blocks = xxhash.xxh3_64(), BlockDigests(begin, end - begin)

    def take(content: np.ndarray, start: int) -> None:
        digest.update(content.data)
        blocks.agree(begin + start, content.data)

    read_spans(array, np.array([[begin, end]]), begin, end, take)
    return digest.intdigest(), blocks


def is_small(start: int, stop: int) -> bool:
    """Return whether bytes go through the page cache, as those of small arrays do; direct I/O would wait for each."""
    return stop - start < buffers.POOLED_MIN_BYTES


def _runs(spans: np.ndarray, begin: int, end: int) -> list[tuple[int, int]]:
    """Return what to read, in pieces: whole pages, but where the array begins and ends."""
    if not len(spans):
        return []
    starts = np.maximum(spans[:, 0] // _BLOCK_BYTES * _BLOCK_BYTES, begin)
    stops = np.minimum(-(-spans[:, 1] // _BLOCK_BYTES) * _BLOCK_BYTES, end)
    firsts = np.flatnonzero(np.append(True, starts[1:] > stops[:-1] + _GAP_BYTES))
    lasts = np.append(firsts[1:], len(spans)) - 1
    runs = []
    for start, stop in zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True):
        while start < stop:
            cut = min(stop, (start // RUN_BYTES + 1) * RUN_BYTES)
            runs.append((start, cut))
            start = cut
    return runs


def copy_spans(flat: np.ndarray, spans: np.ndarray, into: np.ndarray) -> None:
    """Fill an array with the spans of another one that is in RAM."""
    done = 0
    for first, last in spans.tolist():
        into[done : done + last - first] = flat[first:last]
        done += last - first
