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

    Parameters
    ----------
    directory : Path
        The directory.
    file_system : str or None
        Type of the file system, such as "ext4"; None if the system does not report it.
    is_ram_disk : bool
        Whether files there occupy RAM, so that spilling frees no memory.
    free_bytes : int
        Bytes that this user may still write.
    direct_io : bool
        Whether a store would choose direct I/O by itself.
    speed : Speed or None
        The speed that was measured accordingly: `write_bytes_per_s`, `read_bytes_per_s`, and `busy_s_per_byte`, the
        processor time to write and read one byte. None if nothing could be written.
    """

    directory: Path
    file_system: str | None
    is_ram_disk: bool
    free_bytes: int
    direct_io: bool
    speed: Speed | None

    def slowdown(self, spilled_bytes: int, step_s: float) -> float | None:
        """Predict by which factor a step becomes longer if it spills.

        The disk works in parallel with the step. So the step loses only processor time, or, on a slow disk, waits for
        the disk.

        Parameters
        ----------
        spilled_bytes : int
            Bytes that the step writes, and reads again.
        step_s : float
            Seconds that the step takes without spilling.

        Returns
        -------
        float or None
            The factor; None if the speed is unknown.
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
    """Return what a store can expect of a directory; the first call measures the disk for some 50 ms.

    Parameters
    ----------
    directory : str or path
        An existing folder.

    Returns
    -------
    Preflight
        Free space, file system and speed.

    Raises
    ------
    SpillError
        If the directory does not exist or cannot be examined.

    Warns
    -----
    UserWarning
        If the directory is on a RAM disk.
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
