"""Stores keep arrays in RAM or on disk and give back the same bytes; inspection shows what they did and what it cost.

* stores: `DiskStore` and `MemoryStore`, which follow the protocol `Store`, with `Handle Label View StoreStats`;
* disks: `preflight` measures a directory and returns a `Preflight`; `sweep` removes the files of dead runs and returns
  a `DeadRun` for each; `free_bytes`, `is_ram_disk`; sizes as text: `parse_bytes`, `format_bytes`;
* runs: `inspect(path)` returns an `Inspection` with a `Run` for each run, which consists of `Settings Origin
  OriginCounters Group Step StepPlan Sample Shrinkage Failure`; `spans(run)` yields a `Span` for each thing that took
  time, `ram_changes(run)` a `RamChange` whenever an array came into RAM or left it; `advise(run)` returns a list of
  `Advice`; the run of one of several processes has a `Rank`, with `CommunicationCounters`, and `distributed_runs(runs)`
  returns a `DistributedRun` of all of them;
* untrusted files: `inspect_segment(path)` returns a `Segment`, which consists of `Item Chunk StoredArray`;
  `array_contents(path, array)` returns the `ArrayContents` of one array, with a histogram of `Bin`; `verify(path)`
  returns a `Verification`, with each `Problem`;
* files of your own runs: `read_segment` yields a `Stored` for each array, `read_journal` a dict for each line.

Each parameter of a record, such as `Run`, is its attribute, too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from spillgrad.storage.communication_counters import CommunicationCounters
from spillgrad.storage.disk.file_system import free_bytes, is_ram_disk
from spillgrad.storage.disk.preflight import Preflight, preflight
from spillgrad.storage.disk.segment_reader import Stored, read_segment
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.journal.reader import read_journal
from spillgrad.storage.memory_store import MemoryStore
from spillgrad.storage.origin_counters import Origin, OriginCounters
from spillgrad.storage.runs.sweep import DeadRun, sweep
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad.storage.store import Handle, Label, Store, StoreStats, View

if TYPE_CHECKING:
    from spillgrad.inspection.advice import advise
    from spillgrad.inspection.arrays import Chunk, Item, Segment, StoredArray
    from spillgrad.inspection.contents import ArrayContents, Bin, array_contents
    from spillgrad.inspection.ranks import DistributedRun, distributed_runs
    from spillgrad.inspection.records import (
        Advice,
        Failure,
        Group,
        Inspection,
        RamChange,
        Rank,
        Run,
        Sample,
        Settings,
        Shrinkage,
        Span,
        Step,
        StepPlan,
    )
    from spillgrad.inspection.runs import inspect, ram_changes, spans
    from spillgrad.inspection.segments import inspect_segment
    from spillgrad.inspection.verify import Problem, Verification, verify

__all__ = [
    "Advice",
    "ArrayContents",
    "Bin",
    "Chunk",
    "CommunicationCounters",
    "DeadRun",
    "DiskStore",
    "DistributedRun",
    "Failure",
    "Group",
    "Handle",
    "Inspection",
    "Item",
    "Label",
    "MemoryStore",
    "Origin",
    "OriginCounters",
    "Preflight",
    "Problem",
    "RamChange",
    "Rank",
    "Run",
    "Sample",
    "Segment",
    "Settings",
    "Shrinkage",
    "Span",
    "Step",
    "StepPlan",
    "Store",
    "StoreStats",
    "Stored",
    "StoredArray",
    "Verification",
    "View",
    "advise",
    "array_contents",
    "distributed_runs",
    "format_bytes",
    "free_bytes",
    "inspect",
    "inspect_segment",
    "is_ram_disk",
    "parse_bytes",
    "preflight",
    "ram_changes",
    "read_journal",
    "read_segment",
    "spans",
    "sweep",
    "verify",
]

# The names for inspection, by module. They load on first use, so that `import spillgrad` does not wait for them.
_LATE = {
    "advice": ("advise",),
    "arrays": ("Chunk", "Item", "Segment", "StoredArray"),
    "contents": ("ArrayContents", "Bin", "array_contents"),
    "ranks": ("DistributedRun", "distributed_runs"),
    "records": (
        "Advice", "Failure", "Group", "Inspection", "RamChange", "Rank", "Run", "Sample", "Settings", "Shrinkage",
        "Span", "Step", "StepPlan",
    ),
    "runs": ("inspect", "ram_changes", "spans"),
    "segments": ("inspect_segment",),
    "verify": ("Problem", "Verification", "verify"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _LATE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"spillgrad.inspection.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
