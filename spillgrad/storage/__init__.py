"""Keep arrays in RAM or on disk, and give back the same bytes."""

from spillgrad.storage.budget import format_bytes, parse_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.file_system import free_bytes, is_ram_disk
from spillgrad.storage.journal import read_journal
from spillgrad.storage.memory_store import MemoryStore
from spillgrad.storage.preflight import Preflight, preflight
from spillgrad.storage.reader import Stored, read_segment
from spillgrad.storage.store import Handle, Label, Store, StoreStats
from spillgrad.storage.sweep import DeadRun, sweep

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
    "format_bytes",
    "free_bytes",
    "is_ram_disk",
    "parse_bytes",
    "preflight",
    "read_journal",
    "read_segment",
    "sweep",
]
