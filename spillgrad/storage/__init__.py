"""Keep arrays in RAM or on disk, and give back the same bytes."""

import importlib
from typing import TYPE_CHECKING, Any

from spillgrad.storage.budget import format_bytes, parse_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.file_system import free_bytes, is_ram_disk
from spillgrad.storage.journal import read_journal
from spillgrad.storage.memory_store import MemoryStore
from spillgrad.storage.preflight import Preflight, preflight
from spillgrad.storage.reader import Stored, read_segment
from spillgrad.storage.store import Handle, Label, Store, StoreStats
from spillgrad.storage.sweep import DeadRun, sweep

if TYPE_CHECKING:
    from spillgrad.storage.inspection.contents import array_contents
    from spillgrad.storage.inspection.runs import inspect
    from spillgrad.storage.inspection.segments import inspect_segment
    from spillgrad.storage.inspection.verify import verify

__all__ = [
    "DeadRun",
    "DiskStore",
    "Handle",
    "Label",
    "MemoryStore",
    "Preflight",
    "Store",
    "StoreStats",
    "Stored",
    "array_contents",
    "format_bytes",
    "free_bytes",
    "inspect",
    "inspect_segment",
    "is_ram_disk",
    "parse_bytes",
    "preflight",
    "read_journal",
    "read_segment",
    "sweep",
    "verify",
]

# What looks at runs, by the module that has it: `import spillgrad` must not wait for that.
_LATE = {"array_contents": "contents", "inspect": "runs", "inspect_segment": "segments", "verify": "verify"}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f"spillgrad.storage.inspection.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
