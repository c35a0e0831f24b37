"""The segment files of one run: choose a segment for each array, and remove empty segments."""

import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad.storage.codecs import Encoding
from spillgrad.storage.disk.direct_io import Speeds, is_awaited, note_step, speeds
from spillgrad.storage.disk.file_part import FilePart
from spillgrad.storage.disk.segment import Extent, Segment
from spillgrad.storage.disk.source_file import NoValues, SourceExtent, SourceFiles
from spillgrad.storage.runs.run_directory import segment_name
from spillgrad.storage.store import Label, View
from spillgrad_kernels.memory.buffers import POOLED_MIN_BYTES
from spillgrad_kernels.memory.system_memory import system_memory

SEGMENT_BYTES = 256 << 20
# Waits shorter than this share of a step do not justify a change to the page cache.
_WAIT_SHARE = 0.03
# The page cache must leave this share of all memory free; the system is asked how much is free at this interval.
_LEFT_SHARE = 1 / 16
_ROOM_EVERY_S = 0.1
# Free space in the files is given back when the files exceed this multiple of the most bytes that were live.
_MOST_DISK = 1.05

_Form = tuple[tuple[int, ...], np.dtype[Any]]


class SegmentSet:
    """Segments of bounded size, and the other files that arrays are read from.

    Each array goes to the first segment with room, to reuse space before a file grows.

    Each training step stores the same arrays, and HDF5 takes 200 microseconds to give up a place and make another. So
    the place of a freed array is kept for an array of the same shape and dtype. When an array fits none of the kept
    places, all of them are given up, so that files do not grow.

    Only the owner thread calls the methods, except `source`, `measure`, `disk_usage`, `goes_through_cache` and
    `note_step`. A lock guards the counters `disk_bytes` and `peak_disk_bytes`. `device` is the number of the device
    that `directory` is on.
    """

    def __init__(
        self, directory: Path, device: int, segment_bytes: int, *, direct_io: bool | None, checksums: bool
    ) -> None:  # fmt: skip
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._direct_io = direct_io
        self._may_choose = direct_io is None
        self._speeds: Speeds | None = None  # measured when they are needed to choose
        self._device = device
        self._checksums = checksums
        self._sources = SourceFiles(checksums)
        self._room_bytes, self._room_asked_s = 0.0, -math.inf
        self._measuring = threading.Lock()
        self._waiting: dict[_Form, list[Extent]] = {}
        self._segments: list[Segment] = []
        self._disk_bytes: dict[Segment, int] = {}
        self._made = 0
        self._needed_bytes = 0
        self.disk_bytes = 0
        self.peak_disk_bytes = 0

    def place(
        self, array: np.ndarray, sequence: int, label: Label, views: list[View], encoding: Encoding | None = None
    ) -> Extent:
        """Return a place for a C-contiguous array: a kept place, or a new one in the first segment with room.

        With an `encoding`, `array` is the encoded form. Makes a new segment if none has room. Raises OSError if a file
        cannot be made or its structure cannot be written.
        """
        compressed = encoding is not None and encoding.chunks
        waiting = None if compressed else self._waiting.get((array.shape, array.dtype))
        if waiting and not waiting[-1].segment.closed_to_more:
            extent = waiting.pop()
            return extent.segment.place_again(extent, sequence, label, views, encoding)
        self._free_waiting()
        segment = self._with_room(array.nbytes)
        try:
            extent = segment.place(array, sequence, label, views, encoding)
            try:
                self._make_way(segment.hole_bytes(extent))
            except OSError:
                segment.free(extent)
                raise
            return extent
        finally:
            self.measure(segment)

    def keeps(self, array: np.ndarray) -> bool:
        """Return whether a place is kept for an array of this shape and dtype."""
        return bool(self._waiting.get((array.shape, array.dtype)))

    def _make_way(self, nbytes: int) -> None:
        """Punch holes if `nbytes` more would make the files over 5 % larger than the most bytes that were ever live."""
        live_bytes = sum(segment.live_bytes for segment in self._segments)
        self._needed_bytes = max(self._needed_bytes, live_bytes)
        if nbytes and self.disk_bytes + nbytes > self._needed_bytes * _MOST_DISK:
            for segment in self._segments:
                segment.punch_holes()
                self.measure(segment)
            self._needed_bytes = max(self._needed_bytes, self.disk_bytes)  # structure too

    def source(self, part: FilePart) -> SourceExtent:
        """Return the place of an array in a file that is not of this run; `free` gives it up.

        Raises SpillCorruptionError if the file was changed since its header was read, SpillError if it cannot be read.
        """
        direct = bool(self._direct_io)
        if self._may_choose:
            try:
                found = speeds(Path(part.path).parent)
            except OSError:  # to open the file says why
                found = Speeds(None, None)
            direct = found.direct_io_pays
            self._speeds = self._speeds or found
        return self._sources.extent(part, direct, lambda: self._may_choose and is_awaited(self._device))

    def free(self, extent: Extent | SourceExtent | NoValues) -> None:
        """Free the space of an extent, or keep its place for an array of the same shape and dtype."""
        if isinstance(extent, SourceExtent):
            self._sources.free(extent)
        elif isinstance(extent, Extent):
            self._free_or_keep(extent)

    def _free_or_keep(self, extent: Extent) -> None:
        if extent.segment.closed_to_more:
            self._free_waiting()
            self._free(extent)
        elif extent.described or extent.fits_one_only:
            self._free(extent)
        else:
            self._waiting.setdefault((extent.shape, extent.dtype), []).append(extent)

    def _free_waiting(self) -> None:
        for extents in self._waiting.values():
            for extent in extents:
                self._free(extent)
        self._waiting.clear()

    def _free(self, extent: Extent) -> None:
        segment = extent.segment
        segment.free(extent)
        if segment.closed_to_more and not segment.live_datasets:
            self._remove(segment)
        else:
            self.measure(segment)

    def flush(self) -> None:
        """Write the descriptions and structure of every segment to its file. Raises OSError if that fails."""
        self._free_waiting()
        for segment in self._segments:
            segment.flush()
            self.measure(segment)

    def describe_one(self) -> bool:
        """Describe one written array, as `flush` does; return False if there is none. Writes may be under way."""
        self._free_waiting()
        return any(segment.describe_one() for segment in self._segments)

    def goes_through_cache(self, fitting: bool, nbytes: int) -> bool:
        """Return whether to write an array through the page cache although its file is open for direct I/O.

        A large array that does not fit the budget (not `fitting`) goes through the page cache, if that has room,
        because callers wait for both its write and its read. Once steps waited for direct I/O, all arrays do.
        """
        if not (self._may_choose and self._direct_io):
            return False
        is_large = nbytes >= POOLED_MIN_BYTES  # smaller ones go through it anyway
        return is_awaited(self._device) or (not fitting and is_large and self._has_room(nbytes))

    def _has_room(self, nbytes: int) -> bool:
        """Return whether the page cache may grow by `nbytes`; subtract them from the room that was last measured."""
        now_s = time.monotonic()
        if now_s - self._room_asked_s > _ROOM_EVERY_S:
            self._room_asked_s, self._room_bytes = now_s, _cache_room_bytes()
        self._room_bytes -= nbytes
        return self._room_bytes > 0

    def note_step(self, step_s: float, waited_s: float, moved_bytes: int) -> None:
        """Record whether callers waited long for direct I/O in a step.

        The page cache hides such waits, at the cost of processor time, if it has room for the bytes that a step moves.
        """
        if self._may_choose and self._speeds is not None:
            worth_s = max(_WAIT_SHARE * step_s, self._speeds.cache_costs_s(moved_bytes))
            note_step(self._device, waited_s > worth_s and _cache_room_bytes() > moved_bytes)

    def disk_usage(self) -> tuple[int, int]:
        """Return the bytes of disk in use now, and the most that were in use so far."""
        return self.disk_bytes, self.peak_disk_bytes

    def has_unused(self) -> bool:
        """Return whether there is a kept place or an empty segment, which `remove_unused` would remove."""
        return bool(self._waiting) or any(segment.live_datasets == 0 for segment in self._segments)

    def remove_unused(self) -> None:
        """Free every kept place, and remove every empty segment."""
        self._free_waiting()
        for segment in [segment for segment in self._segments if segment.live_datasets == 0]:
            self._remove(segment)

    def close(self) -> None:
        """Remove every segment."""
        self._waiting.clear()
        self._sources.close()
        for segment in list(self._segments):
            self._remove(segment)

    def _with_room(self, nbytes: int) -> Segment:
        for segment in self._segments:
            fits = segment.live_bytes + nbytes <= segment.capacity_bytes or segment.live_datasets == 0
            if fits and not segment.closed_to_more:
                # The file of a large array keeps its blocks, so they are used again before another file grows.
                segment.capacity_bytes = max(segment.capacity_bytes, nbytes)
                return segment
        if self._direct_io is None:
            self._speeds = speeds(self._directory)
            self._direct_io = self._speeds.direct_io_pays
        path = os.fspath(self._directory / segment_name(self._made))
        capacity_bytes = max(self._segment_bytes, nbytes)
        segment = Segment(path, capacity_bytes, direct_io=self._direct_io, checksums=self._checksums)
        self._made += 1
        self._segments.append(segment)
        return segment

    def _remove(self, segment: Segment) -> None:
        self._segments.remove(segment)
        try:
            segment.discard()
        finally:
            with self._measuring:  # only now: whoever reads the count finds no file that it does not have
                self.disk_bytes -= self._disk_bytes.pop(segment, 0)

    def measure(self, segment: Segment) -> None:
        """Update the bytes of disk that a segment takes. Any thread may call it while the segment has a live array."""
        with self._measuring:
            nbytes = segment.disk_bytes()
            self.disk_bytes += nbytes - self._disk_bytes.get(segment, 0)
            self._disk_bytes[segment] = nbytes
            self.peak_disk_bytes = max(self.peak_disk_bytes, self.disk_bytes)


def _cache_room_bytes() -> float:
    """Return by how many bytes the page cache may grow: few in a cgroup with little memory, infinity if unknown."""
    system = system_memory()
    return math.inf if system is None else system.available_bytes - system.total_bytes * _LEFT_SHARE
