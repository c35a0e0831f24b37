"""A control group with a memory limit, for a process that is to be stopped for real when it takes more."""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

# Where each version of control groups has its groups, and what it calls the limit.
_VERSIONS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """Yield a new group, which a process joins by its number in `cgroup.procs`; None where this one may make none."""
    group = next((made for root, limit in _VERSIONS if (made := _make(root, limit, limit_bytes))), None)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group)


def _make(root: Path, limit: str, limit_bytes: int) -> Path | None:
    group = root / f"spillgrad-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        group.mkdir()
    except OSError:
        return None
    if (group / limit).exists() and os.access(group / limit, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK):
        (group / limit).write_text(str(limit_bytes))
        return group
    group.rmdir()
    return None


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
            return
        except OSError:  # the last process in it is not quite gone
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
