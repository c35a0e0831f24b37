"""PyTorch's own functions for memory snapshots read what `spillgrad inspect --memory-viz` writes."""

import base64
import bisect
import gc
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from torch.cuda import _memory_viz  # noqa: E402

import spillgrad as sg  # noqa: E402
from spillgrad.interop.torch import save_on_disk  # noqa: E402
from spillgrad.models.gpt import GPT, GPTConfig  # noqa: E402
from spillgrad_tools.cli import main  # noqa: E402
from tests.interop.torch_models import transformer  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

# A sample that the writer's thread takes has the bytes of a moment after its time.
LATE_US = 200_000
BUDGET_BYTES = 256 << 10


def train_torch(directory: Path, journal: Path) -> None:
    model, tokens = transformer(), torch.randint(0, 100, (8, 32))
    spill = save_on_disk(directory, ram_budget=BUDGET_BYTES, keep_journal=journal)
    for _ in range(3):
        with spill:
            loss = model(tokens).square().mean()
        loss.backward()


def train_gpt(directory: Path, journal: Path) -> None:
    model = GPT(GPTConfig(vocab_size=64, context=32, n_embd=32, n_layer=2, n_head=2))
    spill = sg.save_on_disk(directory, ram_budget=BUDGET_BYTES, keep_journal=journal)
    tokens = sg.zeros(8, 32, dtype=sg.int64)
    for _ in range(3):
        with spill:
            loss = model(tokens)[0].square().mean()
        loss.backward()


@pytest.mark.parametrize(("train", "module"), [(train_torch, "(none)"), (train_gpt, "transformer.h.1.mlp.c_fc")])
def test_its_functions_read_a_run(
    train: Callable[[Path, Path], None], module: str, directory: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    journal, path = tmp_path / "run.jsonl", tmp_path / "memory.pickle"
    train(directory, journal)
    gc.collect()  # models have reference cycles, and hold their store
    wait_until(lambda: sg.storage.inspect(journal).runs[0].state == "finished")
    assert main(["inspect", str(journal), "--memory-viz", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    snapshot = pickle.loads(path.read_bytes())
    (trace,) = snapshot["device_traces"]

    run = sg.storage.inspect(journal).runs[0]
    times, sums = [], [0]
    for entry in trace:
        if entry["action"] != "free_requested":
            times.append(entry["time_us"])
            sums.append(sums[-1] + entry["size"] * (1 if entry["action"] == "alloc" else -1))
    assert max(sums) == run.stats.peak_ram_bytes > 0
    assert sums[-1] == run.stats.ram_bytes == snapshot_bytes(snapshot)
    assert len(run.samples) > 3
    for sample in run.samples:
        t_us = round(sample.t * 1e6)
        assert (
            sample.ram_bytes in sums[bisect.bisect_left(times, t_us) : bisect.bisect_right(times, t_us + LATE_US) + 1]
        )

    assert module in {frame["filename"] for entry in trace for frame in entry["frames"]}
    text = _memory_viz.trace(snapshot)
    assert text.startswith(f"Device 0 ----------------\n{len(trace)} entries\n")
    assert text.count("\ndel ") == text.count("# free completed for") == sum(e["action"] == "alloc" for e in trace)
    assert f"total_allocated: {_memory_viz.Bytes(run.stats.ram_bytes)}\n" in _memory_viz.segsum(snapshot)
    assert "stream_0;" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "stream_0;seg_0;" in _memory_viz.segments(snapshot, format_flamegraph=str)
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        (shown,) = json.loads(re.findall(r"const local_files = (.*)", page)[0])
        assert pickle.loads(base64.b64decode(shown["base64"])) == snapshot
    assert _memory_viz.filter_alloc_free_pairs(snapshot)["device_traces"] == [[]]


def snapshot_bytes(snapshot: dict[str, Any]) -> int:
    return sum(_memory_viz.calc_active(segment) for segment in snapshot["segments"])
