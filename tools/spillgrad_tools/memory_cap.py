"""Run programs within a memory limit, and measure the peak memory of processes."""

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

_OWN_GROUPS = Path("/proc/self/cgroup")
# Added to a limit by RLIMIT_DATA, which also counts thread stacks and freed memory that stays mapped.
_UNTOUCHED_BYTES = 144 << 20
# The time that the kernel may take to empty a group whose processes have ended.
_EMPTY_S = 10.0


class _Hierarchy(NamedTuple):
    """The folder of one version of control groups, and the names of the files that limit and report memory.

    `swap` is the file that limits swap; `swap_bytes` is the limit to write to it, or None if the file limits the
    sum of memory and swap.
    """

    controller: str
    root: Path
    limit: str
    peak: str
    swap: str
    swap_bytes: int | None


# Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
_HIERARCHIES = (
    _Hierarchy(
        "memory", Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes",
        "memory.memsw.limit_in_bytes", None,
    ),
    _Hierarchy("", Path("/sys/fs/cgroup"), "memory.max", "memory.peak", "memory.swap.max", 0),
)  # fmt: skip


class MemoryCap:
    """Limits the memory of the programs that are started with the command lines that `command` returns.

    A memory control group limits all programs together, page cache included, and kills a process that needs more. If
    no group can be made (`is_group` is False), RLIMIT_DATA limits each process: allocations beyond the limit fail.
    Leaving the context removes the group; all programs must have ended before.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._group = _make_group(limit_bytes)

    @property
    def is_group(self) -> bool:
        """Whether a control group limits the programs; if not, RLIMIT_DATA does."""
        return self._group is not None

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs the command line `words` within the limit."""
        if self._group is None:
            return ["sh", "-c", f'ulimit -d {(self.limit_bytes + _UNTOUCHED_BYTES) >> 10} && exec "$@"', "sh", *words]
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._group / "cgroup.procs"), *words]

    def peak_bytes(self) -> int | None:
        """Return the peak memory of all programs together, page cache included; None if Linux does not count it."""
        files = [] if self._group is None else [self._group / hierarchy.peak for hierarchy in _HIERARCHIES]
        counted = [file.read_text() for file in files if file.exists()]  # version 2 counts it since Linux 5.19
        return int(counted[0]) if counted else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _EMPTY_S
        while self._group is not None and self._group.exists():
            try:
                self._group.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _make_group(limit_bytes: int) -> Path | None:
    """Make a control group with this limit, in a group that this process is in; return None if none can be made."""
    for hierarchy in _HIERARCHIES:
        for parent in _own_and_outer(hierarchy):
            group = parent / f"spillgrad-cap-{secrets.token_hex(4)}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                (group / hierarchy.limit).write_text(str(limit_bytes))
            except OSError:  # version 2: a group that holds processes cannot limit groups inside it
                group.rmdir()
                continue
            with contextlib.suppress(OSError):  # this kernel does not count swap
                swap_bytes = limit_bytes if hierarchy.swap_bytes is None else hierarchy.swap_bytes
                (group / hierarchy.swap).write_text(str(swap_bytes))
            return group
    return None


def _own_and_outer(hierarchy: _Hierarchy) -> Iterator[Path]:
    """Yield this process's control group and the groups around it, as far as this process can see them."""
    try:
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return
    own = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    if hierarchy.controller not in own:
        return
    group = hierarchy.root / own[hierarchy.controller].strip("/")
    for directory in (group, *group.parents):
        if not directory.is_relative_to(hierarchy.root):
            return
        if (directory / "cgroup.procs").exists():
            yield directory


def peak_rss_bytes() -> int:
    """Return this process's peak resident memory; getrusage would include the parent's memory before the fork."""
    status = Path("/proc/self/status").read_text()
    (kibibytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024


def forget_peak_rss() -> None:
    """Let this process's peak resident memory begin again with what is resident now, if Linux allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
