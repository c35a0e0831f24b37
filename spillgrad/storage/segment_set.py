"""The segment files of one run: which of them an array goes to, and when one may go."""

import os
from pathlib import Path

import numpy as np

from spillgrad.storage.run_directory import segment_name
from spillgrad.storage.segment import Extent, Segment
from spillgrad.storage.store import Label

SEGMENT_BYTES = 256 << 20


class SegmentSet:
    """Segments of bounded size, filled first to last, so that freed space is used again before a file grows.

    All methods belong to the owner thread, but for the counters `disk_bytes` and `peak_disk_bytes`.
    """

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._disk_bytes: dict[Segment, int] = {}
        self._made = 0
        self.disk_bytes = 0
        self.peak_disk_bytes = 0

    def write(self, array: np.ndarray, sequence: int, label: Label) -> Extent:
        """Store a C-contiguous array in the first segment with room for it, or in a new one.

        Raises OSError when the disk refuses.
        """
        segment = self._with_room(array.nbytes)
        try:
            return segment.write(array, f"{sequence:08d}", label)
        finally:
            self._measure(segment)

    def free(self, extent: Extent) -> None:
        """Make the space of `extent` free for other arrays."""
        segment = extent.segment
        segment.free(extent)
        if segment.broken and not segment.live_datasets:  # nothing will come any more
            self._remove(segment)
        else:
            self._measure(segment)

    def flush(self) -> None:
        """Write the structure of every segment out.

        Raises OSError when the disk refuses.
        """
        for segment in self._segments:
            segment.flush()
            self._measure(segment)

    def has_empty(self) -> bool:
        """Return whether some segment holds nothing live."""
        return any(segment.live_datasets == 0 for segment in self._segments)

    def remove_empty(self) -> None:
        """Remove every segment that holds nothing live."""
        for segment in [segment for segment in self._segments if segment.live_datasets == 0]:
            self._remove(segment)

    def close(self) -> None:
        """Remove every segment."""
        for segment in list(self._segments):
            self._remove(segment)

    def _with_room(self, nbytes: int) -> Segment:
        for segment in self._segments:
            fits = segment.live_bytes + nbytes <= segment.capacity_bytes or segment.live_datasets == 0
            if fits and not segment.broken:
                # The file of one large array keeps its blocks: that much is used again before another file grows.
                segment.capacity_bytes = max(segment.capacity_bytes, nbytes)
                return segment
        segment = Segment(os.fspath(self._directory / segment_name(self._made)), max(self._segment_bytes, nbytes))
        self._made += 1
        self._segments.append(segment)
        return segment

    def _remove(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self.disk_bytes -= self._disk_bytes.pop(segment, 0)
        segment.discard()

    def _measure(self, segment: Segment) -> None:
        nbytes = segment.disk_bytes()
        self.disk_bytes += nbytes - self._disk_bytes.get(segment, 0)
        self._disk_bytes[segment] = nbytes
        self.peak_disk_bytes = max(self.peak_disk_bytes, self.disk_bytes)
