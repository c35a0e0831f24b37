"""A snapshot for PyTorch's viewer: whole, of the opcodes that the viewer reads, and with the bytes of the run."""

import itertools
import pickle
import pickletools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.errors import ArgumentError
from spillgrad.inspection import memory_viz
from spillgrad.inspection.memory_viz import write_memory_viz
from spillgrad.storage import DiskStore, Label, ram_changes
from tests.inspection.test_runs import one, use

# `unpickle` in torch/utils/viz/MemoryViz.js, but for those of protocols 3 and 4.
READ_BY_THE_VIEWER = {
    "APPEND", "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "EMPTY_DICT", "EMPTY_LIST",
    "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "PROTO", "SETITEM", "SETITEMS", "STOP",
}  # fmt: skip


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return the journal of a run that still holds an array in RAM, since a caller does."""
    store = DiskStore(tmp_path / "spill", ram_budget=100_000, keep_journal=tmp_path / "run.jsonl")
    use(store, 4)
    handle = store.put(np.ones(3_000), persistent=True, label=Label("parameter", None, "h.\x1b9", 2))
    held = store.get(handle)
    store.close()
    assert held.nbytes == 24_000
    return tmp_path / "run.jsonl"


def written(journal: Path) -> dict[str, Any]:
    path = journal.with_name("memory.pickle")
    write_memory_viz(one(journal), path, overwrite=True)
    found = pickle.loads(path.read_bytes())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("batch", [1, 2, 7, 1000])
def test_its_allocations_are_the_arrays_in_ram(journal: Path, batch: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_viz, "_BATCH", batch)
    snapshot = written(journal)
    (trace,) = snapshot["device_traces"]
    live: dict[int, int] = {}
    sums = []
    for number, entry in enumerate(trace):
        address, nbytes = entry["addr"], entry["size"]
        if entry["action"] == "alloc":
            # The viewer wants one allocation at an address, and no two that overlap.
            assert all(end <= address or start >= address + nbytes for start, end in live.items())
            live[address] = address + nbytes
            sums.append(nbytes)
        elif entry["action"] == "free_requested":
            assert trace[number + 1] == {**entry, "action": "free_completed"}
            assert live.pop(address) == address + nbytes
            sums.append(-nbytes)
    changes = list(ram_changes(one(journal)))
    assert sums == [change.nbytes for change in changes]
    assert [entry["time_us"] for entry in trace if entry["action"] != "free_completed"] == [
        round(change.t * 1e6) for change in changes
    ]
    (segment,) = snapshot["segments"]
    blocks = segment["blocks"]
    ends = list(itertools.accumulate(block["size"] for block in blocks))
    assert [block["address"] for block in blocks] == [0, *ends[:-1]]
    assert segment["total_size"] == ends[-1]
    (stays,) = [block for block in blocks if block["state"] == "active_allocated"]
    assert stays["size"] == segment["allocated_size"] == 24_000
    assert stays["frames"] == [{"filename": r"h.\x1b9", "line": 2, "name": "parameter, float64"}]


def test_a_frame_is_the_module_the_step_and_the_operation(journal: Path):
    (trace,) = written(journal)["device_traces"]
    told = Counter(str(change.origin.module) for change in ram_changes(one(journal)) if change.nbytes > 0)
    frames = [frame for entry in trace if entry["action"] == "alloc" for frame in entry["frames"]]
    assert Counter(frame["filename"] for frame in frames) == {
        name.replace("\x1b", r"\x1b"): told[name] for name in told
    }
    assert {frame["line"] for frame in frames if frame["filename"] == "h.0"} == {0, 1, 2, 3}
    names = {frame["name"] for frame in frames if frame["filename"] == "h.0"}
    assert names <= {
        f"{op}.self, {dtype}" for op in ("mul", "gelu", "linear") for dtype in ("float32", "float64", "uint8")
    }


def test_the_viewer_can_read_it(journal: Path):
    written(journal)
    data = journal.with_name("memory.pickle").read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= READ_BY_THE_VIEWER
    assert data[:2] == b"\x80\x02"


def test_bytes_that_go_in_part_leave_the_rest(tmp_path: Path):
    journal = tmp_path / "run.jsonl"
    lines = ['{"format": 2, "began": ""}', '{"t": 0, "event": "sample", "ram": 0, "peak_ram": 30}']
    lines += [f'{{"t": {t}, "event": "ram", "array": 1, "bytes": {n}}}' for t, n in enumerate((10, 20, -15, -10, -5))]
    journal.write_text("\n".join(lines) + "\n")
    (trace,) = written(journal)["device_traces"]
    left = Counter[int]()
    for entry in trace:
        left[entry["time_us"]] += (
            entry["size"] * {"alloc": 1, "free_requested": 0, "free_completed": -1}[entry["action"]]
        )
    assert list(left.values()) == [10, 20, -15, -10, -5]


def test_a_run_without_arrays_is_empty(tmp_path: Path):
    journal = tmp_path / "run.jsonl"
    DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=journal).close()
    assert written(journal) == {"device_traces": [[]], "segments": []}


def test_a_journal_that_does_not_tell_of_ram_is_refused(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget="1MiB")
    store.put(np.ones(1000))
    store.flush()
    with pytest.raises(ArgumentError, match=r"memory-viz: the journal of .*: give save_on_disk keep_journal=FILE"):
        write_memory_viz(one(store.directory), tmp_path / "memory.pickle")
    store.close()
    assert not (tmp_path / "memory.pickle").exists()


def test_it_needs_no_torch(journal: Path):
    program = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; from spillgrad.storage import inspect;"
        "from spillgrad.inspection.memory_viz import write_memory_viz;"
        "write_memory_viz(inspect(sys.argv[1]).runs[0], Path(sys.argv[2]))"
    )
    path = journal.with_name("memory.pickle")
    subprocess.run([sys.executable, "-c", program, journal, path], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert pickle.loads(path.read_bytes())["segments"]
