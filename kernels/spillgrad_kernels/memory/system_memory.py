"""The memory that this process may still take, as limited by the machine and by the process's control groups."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")


class _Hierarchy(NamedTuple):
    """The names of the files and fields in which one version of control groups reports memory limits and use."""

    controller: str
    root: Path
    limit: str
    used: str
    cached: tuple[str, str]


# Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
_HIERARCHIES = (
    _Hierarchy("", Path("/sys/fs/cgroup"), "memory.max", "memory.current", ("active_file", "inactive_file")),
    _Hierarchy(
        "memory", Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class SystemMemory:
    """The bytes that this process may still take before the system swaps or kills processes, and the total bytes."""

    available_bytes: int
    total_bytes: int


def system_memory() -> SystemMemory | None:
    """Return the memory of the machine or of a control group, whichever has the fewest available bytes.

    Return None if neither can be read.
    """
    return min((*_machine(), *_control_groups()), key=lambda found: found.available_bytes, default=None)


def _machine() -> Iterator[SystemMemory]:
    with contextlib.suppress(OSError, KeyError, ValueError):
        values = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        yield SystemMemory(*(int(values[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal")))


def _control_groups() -> Iterator[SystemMemory]:
    """Yield the memory of each control group that has a limit, among the process's groups and all their parents."""
    try:
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return
    own = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    for hierarchy in _HIERARCHIES:
        group = hierarchy.root / own.get(hierarchy.controller, "").strip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(hierarchy.root):
                break
            try:
                limit = (directory / hierarchy.limit).read_text().strip()
                used = int((directory / hierarchy.used).read_text())
                parts = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
                cached = sum(int(parts[name]) for name in hierarchy.cached)  # the group gives up its page cache first
                found = None if limit == "max" else SystemMemory(int(limit) - used + cached, int(limit))
            # The root has no limit; a container does not see its parent groups; some kernels' files say less.
            except (OSError, KeyError, ValueError):
                continue
            if found is not None:
                yield found
