"""Write a run's memory as a snapshot for PyTorch's viewer, https://pytorch.org/memory_viz.

Such a file is a pickled dict, as `torch.cuda.memory._dump_snapshot` writes it. The viewer and
`torch/cuda/_memory_viz.py` are the only description of its keys. The viewer reads few of pickle's opcodes: those that
protocol 2 has for dicts, lists, text and numbers.
"""

import functools
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from spillgrad.errors import ArgumentError
from spillgrad.inspection.export import whole_file
from spillgrad.inspection.printable import origin_name, printable
from spillgrad.inspection.records import RamChange, Run
from spillgrad.inspection.runs import ram_changes
from spillgrad.storage.origin_counters import Origin

_PROTOCOL = 2
# Entries that are pickled together; each text among them is written once.
_BATCH = 1000


class _Block(NamedTuple):
    address: int
    nbytes: int
    frames: list[dict[str, Any]]


def write_memory_viz(run: Run, path: Path, overwrite: bool = False) -> None:
    """Write what was in the RAM of a run, and when, to a file for PyTorch's viewer of memory snapshots.

    The snapshot has one device, whose allocations are the arrays in RAM. Each has a frame, which the viewer prints as
    module:step:operation; the step is 0 if it is unknown. Addresses are made up.

    Raises ArgumentError if the journal does not say which arrays were in RAM. Raises the errors of `whole_file`.
    """
    some_in_ram = run.stats.peak_ram_bytes or (run.stats.packed_bytes and run.settings.budget_bytes != 0)
    if some_in_ram and next(ram_changes(run), None) is None:
        raise ArgumentError(
            f"memory-viz: the journal of {printable(str(run.path), 4096)} does not say which arrays were in RAM; only "
            "a journal that is kept does: give save_on_disk keep_journal=FILE"
        )
    with whole_file(path, "a snapshot", overwrite) as file:
        _write(file, _Memory(), ram_changes(run))


def _write(file: BinaryIO, memory: "_Memory", changes: Iterable[RamChange]) -> None:
    """Write the dict in pieces; it would take gigabytes in RAM. What `_value` returns pushes a value on the stack."""
    file.write(pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_DICT + pickle.MARK)
    file.write(_value("device_traces") + pickle.EMPTY_LIST + pickle.EMPTY_LIST)
    before = len(pickle.dumps([], _PROTOCOL)) - len(pickle.STOP)
    batch: list[dict[str, Any]] = []
    for change in changes:
        batch += memory.entries(change)
        if len(batch) >= _BATCH:
            file.write(pickle.dumps(batch, _PROTOCOL)[before:-1])  # appends to the list on the stack
            batch.clear()
    file.write(pickle.dumps(batch, _PROTOCOL)[before:-1])
    file.write(pickle.APPEND + _value("segments") + _value(memory.segments()) + pickle.SETITEMS + pickle.STOP)


def _value(value: object) -> bytes:
    return pickle.dumps(value, _PROTOCOL)[2:-1]  # without the protocol and the stop


class _Memory:
    """Gives the bytes of arrays addresses: those of freed bytes of the same size, if there are any, else new ones."""

    def __init__(self) -> None:
        self._held: dict[int | None, list[_Block]] = {}
        self._free: dict[int, list[int]] = {}  # addresses by size
        self._end = 0

    def entries(self, change: RamChange) -> Iterator[dict[str, Any]]:
        """Yield the entries of the trace for a change. Units: bytes; microseconds since the run began."""
        t_us, missing = round(change.t * 1e6), change.nbytes
        held = self._held.setdefault(change.array, [])
        if missing < 0:
            held.sort(key=lambda block: block.nbytes == -missing)  # a block of just this size comes last
            while missing < 0 and held:
                block = held.pop()
                missing += block.nbytes
                self._free.setdefault(block.nbytes, []).append(block.address)
                yield _entry("free_requested", block, t_us)
                yield _entry("free_completed", block, t_us)
        if missing > 0:
            block = self._take(missing, _frames(change.origin, change.step))
            held.append(block)
            yield _entry("alloc", block, t_us)
        if not held:
            del self._held[change.array]

    def _take(self, nbytes: int, frames: list[dict[str, Any]]) -> _Block:
        if free := self._free.get(nbytes):
            return _Block(free.pop(), nbytes, frames)
        self._end += nbytes
        return _Block(self._end - nbytes, nbytes, frames)

    def segments(self) -> list[dict[str, Any]]:
        """Return what is allocated after the last entry: one segment, which has all addresses, with its blocks."""
        held = [block for blocks in self._held.values() for block in blocks]
        free = [_Block(address, nbytes, []) for nbytes, free in self._free.items() for address in free]
        states = [*((block, "active_allocated") for block in held), *((block, "inactive") for block in free)]
        blocks = [
            {
                "address": block.address,
                "size": block.nbytes,
                "requested_size": block.nbytes,
                "state": state,
                "frames": block.frames,
            }
            for block, state in sorted(states, key=lambda pair: pair[0].address)
        ]
        held_bytes = sum(block.nbytes for block in held)
        segment = {
            "device": 0,
            "address": 0,
            "total_size": self._end,
            "allocated_size": held_bytes,
            "active_size": held_bytes,
            "requested_size": held_bytes,
            "stream": 0,
            "segment_type": "large",
            "frames": [],
            "blocks": blocks,
        }
        return [segment] if blocks else []


@functools.lru_cache(_BATCH)
def _frames(origin: Origin, step: int | None) -> list[dict[str, Any]]:
    name = origin_name(origin._replace(module=None))
    return [{"name": name, "filename": printable(origin.module or "(none)"), "line": step or 0}]


def _entry(action: str, block: _Block, t_us: int) -> dict[str, Any]:
    return {
        "action": action,
        "addr": block.address,
        "size": block.nbytes,
        "stream": 0,
        "time_us": t_us,
        "frames": block.frames,
    }
