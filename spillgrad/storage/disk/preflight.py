"""Measure what a disk offers before tensors are spilled to it."""

import dataclasses
import os
import warnings
from pathlib import Path

from spillgrad.errors import SpillError
from spillgrad.storage.disk.direct_io import Speed, speeds
from spillgrad.storage.disk.file_system import file_system, free_bytes, is_ram_disk
from spillgrad.storage.sizes import format_bytes


@dataclasses.dataclass(frozen=True)
class Preflight:
    """The properties of a directory that matter to a store; `str` gives them in one line.

    `file_system` is the type of the file system, such as "ext4", or None if the system does not report it. `direct_io`
    says whether a store would choose direct I/O by itself. `speed` was measured accordingly, and is None if nothing
    could be written.
    """

    directory: Path
    file_system: str | None
    is_ram_disk: bool
    free_bytes: int
    direct_io: bool
    speed: Speed | None

    def slowdown(self, spilled_bytes: int, step_s: float) -> float | None:
        """Return the predicted factor by which a step of `step_s` seconds grows when it spills `spilled_bytes`.

        The disk works in parallel with the step. So the step loses only processor time, or, on a slow disk, waits for
        the disk. Returns None if the speed is unknown.
        """
        if self.speed is None:
            return None
        busy = spilled_bytes * self.speed.busy_s_per_byte / (os.cpu_count() or 1) / step_s
        return max(1 + busy, self.speed.seconds(spilled_bytes) / step_s)

    def __str__(self) -> str:
        parts = [
            f"{self.directory} ({self.file_system or 'unknown file system'})",
            f"{format_bytes(self.free_bytes)} free",
        ]
        if self.speed is None:
            parts.append("cannot be written")
        else:
            way = "direct I/O" if self.direct_io else "through the page cache"
            write, read = map(format_bytes, map(int, self.speed[:2]))
            parts.append(f"writes {write}/s, reads {read}/s, {way}")
        if self.is_ram_disk:
            parts.append("a RAM disk: spilling there frees no memory")
        return ", ".join(parts)


def preflight(directory: str | os.PathLike[str]) -> Preflight:
    """Return what a store can expect of `directory`; the first call measures the disk for some 50 ms.

    Warns if `directory` is on a RAM disk. Raises SpillError if `directory` does not exist or cannot be examined.
    """
    place = Path(directory)
    try:
        place = place.absolute()
        found = speeds(place)
        direct = found.direct_io_pays
        result = Preflight(
            place,
            file_system(place),
            is_ram_disk(place),
            free_bytes(place),
            direct,
            found.direct if direct else found.cached,
        )
    except OSError as error:
        raise SpillError(f"preflight: cannot look at {place}: {error.strerror}; make the directory first") from error
    if result.is_ram_disk:
        warnings.warn(f"preflight: {result}; pass a directory on a real disk", stacklevel=2)
    return result
