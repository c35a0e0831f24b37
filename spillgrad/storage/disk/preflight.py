"""What a disk offers, measured before tensors are spilled to it."""

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
    """The properties of a directory that matter to a store; `str` gives one line.

    `file_system` is its type, such as "ext4"; None if the system does not tell. `direct_io` is what a store would
    choose by itself, and `speed` was measured that way; None if nothing could be written.
    """

    directory: Path
    file_system: str | None
    is_ram_disk: bool
    free_bytes: int
    direct_io: bool
    speed: Speed | None

    def slowdown(self, spilled_bytes: int, step_s: float) -> float | None:
        """Return the predicted factor by which a step of `step_s` seconds grows when it spills `spilled_bytes`.

        The disk works beside the step: either it only takes processor's time from the step, or the step waits for it.
        Returns None if the speed is unknown.
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
    """Return what spilling to `directory` can expect. Measures for some 50 ms the first time.

    Warns of a RAM disk. Raises SpillError when there is no such directory.
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
