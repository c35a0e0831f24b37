"""How much memory the system has left for this process: of the machine, and of the control groups it runs in."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")


class _Hierarchy(NamedTuple):
    """Where a version of control groups keeps its memory limits, and how it names them."""

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
    """Bytes that may still be taken before something is killed or swapped, of how many."""

    available_bytes: int
    total_bytes: int


def system_memory() -> SystemMemory | None:
    """Return what is left where it is scarcest, or None where the system does not say."""
    return min((*_machine(), *_control_groups()), key=lambda found: found.available_bytes, default=None)


def _machine() -> Iterator[SystemMemory]:
    with contextlib.suppress(OSError, KeyError):
        values = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        yield SystemMemory(*(int(values[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal")))


def _control_groups() -> Iterator[SystemMemory]:
    """Yield what is left of each limit on this process's groups and on those around them."""
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
            except OSError:  # the root has no limit; inside a container the groups around it are not visible
                continue
            if limit != "max":
                cached = sum(int(parts[name]) for name in hierarchy.cached)  # what the group gives up first
                yield SystemMemory(int(limit) - used + cached, int(limit))
