"""Arrays by kind, and the bytes of the numbers that codes stand for."""

from pathlib import Path

import pytest

import spillgrad as sg
from spillgrad.inspection.kinds import kind_of, logical_bytes
from spillgrad.inspection.runs import inspect
from spillgrad.storage.origin_counters import Origin

WEIGHT, STATE = "parameter", "state"
CODES = Origin("h.0.weight", WEIGHT, None, "uint8")
ORIGINS = {
    origin: (kind, times)
    for origin, kind, times in (
        (CODES, "weights", 8),  # two of NF4 in a byte
        (Origin("h.0.absmax", WEIGHT, None, "uint8"), "weights", 0),
        (Origin("h.0.nested_offset", WEIGHT, None, "float32"), "weights", 0),
        (Origin("h.1.weight", WEIGHT, None, "int8"), "weights", 4),
        (Origin("h.1.absmax", WEIGHT, None, "float32"), "weights", 0),
        (Origin("mask.weight", WEIGHT, None, "uint8"), "weights", 1),  # of bytes that are no codes
        (Origin("meter.absmax", WEIGHT, None, "float32"), "weights", 1),
        (Origin("a", WEIGHT, None, "float32"), "weights", 1),
        (Origin("a", STATE, "exp_avg", "uint8"), "optimizer state", 4),
        (Origin("a", STATE, "exp_avg_scale", "float32"), "optimizer state", 0),
        (Origin("a", STATE, "exp_avg_sq", "bfloat16"), "optimizer state", 2),
        (Origin("b", WEIGHT, "rounded", "bfloat16"), "weights", 1),
        (Origin("b", WEIGHT, "low half", "uint16"), "weights", 1),
        (Origin("b", STATE, "exp_avg", "bfloat16"), "optimizer state", 2),
        (Origin("c", WEIGHT, None, "bfloat16"), "weights", 1),
        (Origin("c", STATE, "exp_avg", "bfloat16"), "optimizer state", 1),  # its own dtype
        (Origin("c", "gradient", None, "bfloat16"), "gradients", 1),
        (Origin("a", "gelu", "input", "uint8"), "saved tensors", 1),
        (Origin(), "saved tensors", 1),
    )
}


@pytest.mark.parametrize("origin", ORIGINS, ids=str)
def test_codes_stand_for_float32_numbers_and_scales_for_none(origin: Origin):
    kind, times = ORIGINS[origin]
    assert (kind_of(origin), logical_bytes(origin, 10, ORIGINS)) == (kind, 10 * times)


@pytest.mark.parametrize("to", [None, "nf4", "int8"])
def test_a_run_says_by_kind_what_its_codes_stand_for(to: str | None, tmp_path: Path):
    model = sg.nn.Sequential(sg.nn.Linear(256, 64, bias=False), sg.nn.Linear(64, 256, bias=False))
    if to is not None:
        model[0].requires_grad_(False)
        sg.nn.quantize(model, to, skip="1")
    journal = tmp_path / "journal.jsonl"
    offload = sg.disk_offload(
        model, sg.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3), tmp_path,
        ram_budget="1MiB", state="int8", keep_journal=journal,
    )  # fmt: skip
    with sg.save_on_disk(offload):
        loss = offload.model(sg.ones(2, 256)).sum()
    loss.backward()
    offload.optimizer.step()
    offload.flush()
    run = inspect(journal).runs[0]
    found = {group.name: group for group in run.by("kind")}
    weights_bytes = 4 * 2 * 256 * 64
    trained = 2 if to is None else 1
    assert found["weights"].logical_bytes == weights_bytes
    assert found["gradients"].logical_bytes == found["gradients"].moved.packed_bytes == trained * weights_bytes // 2
    assert found["optimizer state"].logical_bytes == 2 * trained * weights_bytes // 2 + _steps_bytes(offload)
    assert found["optimizer state"].moved.packed_bytes < found["optimizer state"].logical_bytes / 3
    assert (found["weights"].moved.packed_bytes < weights_bytes) == (to is not None)
    assert all(group.logical_bytes is None for group in run.by("step"))


def _steps_bytes(offload: sg.disk_offload) -> int:
    return sum(
        value.nbytes
        for entries in offload.optimizer.state.values()
        for name, value in entries.items()
        if isinstance(value, sg.Tensor) and not name.startswith("exp_avg")
    )
