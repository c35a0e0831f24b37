"""A run as an inspection finds it, made up: three blocks of a model that trained for four steps."""

import dataclasses
from pathlib import Path
from typing import Any

from spillgrad.inspection.records import Run, Sample, Settings, Shrinkage, Step, StepPlan
from spillgrad.storage.origin_counters import Origin, OriginCounters, total
from spillgrad.storage.store import StoreStats

MIB = 1 << 20
STEPS = 4
STEP_S = 2.0


def moved(mib: int, waited_s: float = 0.0) -> OriginCounters:
    """Return what became of 8 arrays of `mib` MiB in all."""
    packed = mib * MIB
    return OriginCounters(
        arrays=8, packed_bytes=packed, deduplicated_bytes=packed // 4, kept_bytes=packed // 8,
        written_bytes=packed // 2, stored_bytes=packed // 2, read_bytes=packed // 2 - MIB,
        wait_write_s=waited_s / 4, wait_read_s=waited_s * 3 / 4,
    )  # fmt: skip


def origins() -> dict[Origin, OriginCounters]:
    """Return the arrays of the model, by where they come from."""
    made = {Origin(None, "cross_entropy", "self", "float32"): moved(8)}
    for block in range(3):
        made[Origin(f"blocks.{block}.attention", "softmax", "result", "float32")] = moved(24, 0.5 * block)
        made[Origin(f"blocks.{block}.attention", "matmul", "self", "bfloat16")] = moved(16)
        made[Origin(f"blocks.{block}.mlp", "gelu", "self", "float32")] = moved(32, 0.25)
    return made


def sample(t: float, **changes: Any) -> Sample:
    """Return what a store held at `t`, while bytes went through it at a steady rate."""
    values: dict[str, Any] = {
        "t": t, "ram_bytes": 48 * MIB, "hot_bytes": 20 * MIB, "writing_bytes": 8 * MIB, "cached_bytes": 12 * MIB,
        "lent_bytes": 4 * MIB, "live_bytes": 150 * MIB, "disk_bytes": 120 * MIB, "rss_bytes": 400 * MIB,
        "written_bytes": int(10 * MIB * t), "read_bytes": int(5 * MIB * t), "hits": int(90 * t), "misses": int(10 * t),
        "wait_s": t / 4,
    }  # fmt: skip
    return Sample(**{**values, **changes})


def make_run(path: Path, **changes: Any) -> Run:
    """Return a finished run whose directory, or journal, is `path`."""
    made = origins()
    whole = total(made.values())
    step = [Step(number + 1, number + 1, number * STEP_S, STEP_S * 0.9, moved(60, 0.25)) for number in range(STEPS)]
    values: dict[str, Any] = {
        "path": path, "journal": path / "journal.jsonl", "state": "finished", "host": "mill", "process": 4711,
        "command": "spillgrad train --model tiny", "version": "0.1.0", "began": "2026-03-04T05:06:07.891011+00:00",
        "duration_s": STEPS * STEP_S, "first_s": 0.0, "settings": Settings(64 * MIB, None, False, True, "raise"),
        "stats": StoreStats(
            packed_bytes=whole.packed_bytes, deduplicated_bytes=whole.deduplicated_bytes,
            written_bytes=whole.written_bytes, stored_bytes=whole.stored_bytes, read_bytes=whole.read_bytes,
            peak_ram_bytes=60 * MIB, peak_disk_bytes=130 * MIB, cache_hits=720, cache_misses=80,
            wait_write_s=whole.wait_write_s, wait_read_s=whole.wait_read_s, writing_s=1.0, reading_s=0.5,
        ),
        "kept_bytes": whole.kept_bytes, "origins": made, "steps": step,
        "samples": [sample(tenth / 10) for tenth in range(int(STEPS * STEP_S * 10) + 1)], "failures": [],
        "failure_count": 0, "shrinkage": [Shrinkage(next(iter(made)), 8 * MIB, MIB)], "segments": {},
        "step_plan": StepPlan([(MIB, False)], [("put", 0), ("use", 0), ("drop", 0)]), "lost_lines": 0,
        "damaged_lines": 0,
    }  # fmt: skip
    return Run(**{**values, **changes})


def with_codec(run: Run) -> Run:
    """Return `run` as it is with a codec that makes arrays a quarter as large."""
    smaller = {origin: dataclasses.replace(m, stored_bytes=m.written_bytes // 4) for origin, m in run.origins.items()}
    stored = sum(each.stored_bytes for each in smaller.values())
    return dataclasses.replace(
        run,
        origins=smaller,
        stats=dataclasses.replace(run.stats, stored_bytes=stored),
        settings=dataclasses.replace(run.settings, codec="lossless"),
    )
