"""Runs made up for pages: what a GPT that spills would have left, and others that are hard to show."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from spillgrad.inspection.records import Advice, Failure, Run, Sample, Settings, Span, Step
from spillgrad.storage.origin_counters import Origin, OriginCounters, total
from spillgrad.storage.store import StoreStats

MIB = 1 << 20
BUDGET = 64 * MIB
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&amp;\u202egnp.exe\x1b[31m<b>bold</b>%{y}"
# What pages show of it: what cannot be seen is written out.
HOSTILE_SHOWN = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")

SAVED = (
    ("ln_1", "layer_norm", "self", 4),
    ("attn.c_attn", "linear", "self", 4),
    ("attn", "scaled_dot_product_attention", "query", 12),
    ("ln_2", "layer_norm", "self", 4),
    ("mlp.c_fc", "linear", "self", 4),
    ("mlp", "gelu", "self", 16),
    ("mlp.c_proj", "linear", "self", 16),
)

EMPTY = Run(
    path=Path("runs/1/run-0123456789abcdef"), journal=None, state="finished", host=None, process=None, command=None,
    version=None, began=None, duration_s=0.0, first_s=0.0, settings=Settings(), stats=StoreStats(), kept_bytes=0,
    origins={}, steps=[], samples=[], failures=[], failure_count=0, shrinkage=[], segments={}, step_plan=None,
    lost_lines=0, damaged_lines=0,
)  # fmt: skip

ADVICE = [
    Advice("Raising ram_budget from 64 to 96 MiB removes 71 % of reads.", {"ram_budget": "96MiB"}, {"reads": 0.71}),
    Advice("72 MiB of dropout masks compress 8:1.", {"codec": "lossless"}, {"ratio": 8.0}),
]


def gpt(layers: int = 12, steps: int = 5) -> tuple[Run, list[Span]]:
    """Return a run that trained a GPT under a budget, and its spans: some 20,000 for 12 layers and 100 steps."""
    draw = np.random.default_rng(0)
    spans: list[Span] = []
    samples: list[Sample] = []
    made: list[Step] = []
    origins: dict[Origin, OriginCounters] = {}
    t, array, disk, peak_disk = 0.05, 0, 0, 0
    written = read = hits = misses = 0
    waited = 0.0

    def sample(hot: int, writing: int, cached: int, lent: int, live: int) -> None:
        ram = hot + writing + cached + lent
        rss = 400 * MIB + ram + int(draw.integers(0, 4 * MIB))
        samples.append(Sample(t, ram, hot, writing, cached, lent, live, disk, rss, written, read, hits, misses, waited))

    for number in range(1, steps + 1):
        began, alive, spilled, parts = t, [], [], []
        hot = 0
        for layer in range(layers):
            for module, op, slot, mib in SAVED:
                t += 0.004 + 0.002 * mib / 4 * draw.random()
                nbytes, array = mib * MIB // 4, array + 1
                origin = Origin(f"transformer.h.{layer}.{module}", op, slot, "float32")
                moved = OriginCounters(1, nbytes)
                hot += nbytes
                while hot > BUDGET * 3 // 4:
                    was, size, source = alive[len(spilled)]
                    took = size / 1.2e9 * (0.8 + 0.4 * draw.random())
                    spans.append(Span("write", t - 0.002, took, was, size, source))
                    if draw.random() < 0.2:
                        spans.append(Span("wait", t, took / 3, array, nbytes, origin, "put"))
                        moved.wait_write_s += took / 3
                        waited += took / 3
                        t += took / 3
                    spilled.append(was)
                    origins[source].written_bytes += size
                    origins[source].stored_bytes += size
                    hot, disk, written = hot - size, disk + size, written + size
                alive.append((array, nbytes, origin))
                parts.append(moved)
                former = origins.get(origin, OriginCounters())
                origins[origin] = total([former, moved])
                live = sum(size for _, size, _ in alive)
                sample(hot, nbytes if spilled else 0, 0, int(draw.integers(0, 4 * MIB)), live)
        peak_disk = max(peak_disk, disk)
        spans.append(Span("forward", began, t - began))
        back = t
        for was, size, source in reversed(alive):
            t += 0.008 + 0.004 * draw.random()
            cached = 0
            if was in spilled:
                took, ahead = size / 0.9e9, bool(draw.random() < 0.8)
                spans.append(Span("read", t - (0.02 if ahead else 0), took, was, size, source, ahead=ahead))
                origins[source].read_bytes += size
                read, hits, misses, cached = read + size, hits + ahead, misses + (not ahead), 3 * size
                if not ahead:
                    spans.append(Span("wait", t, took, was, size, source, "get"))
                    origins[source].wait_read_s += took
                    waited, t = waited + took, t + took
                disk -= size
            else:
                hot -= size
            sample(hot, 0, min(cached, BUDGET - hot - size), size, disk + hot)
        spans.append(Span("backward", back, t - back))
        spans.append(Span("update", t, 0.06))
        t += 0.08
        made.append(Step(number, number, began, t - began, total(parts)))
    everything = total(origins.values())
    stats = StoreStats(
        packed_bytes=everything.packed_bytes, written_bytes=written, stored_bytes=written, read_bytes=read,
        fetched_bytes=read,
        peak_ram_bytes=max(each.ram_bytes for each in samples), peak_disk_bytes=peak_disk,
        cache_hits=hits, cache_misses=misses, wait_write_s=everything.wait_write_s, wait_read_s=everything.wait_read_s,
    )  # fmt: skip
    run = dataclasses.replace(
        EMPTY, journal=Path("runs/1/journal.jsonl"), host="atlas", process=4711, version="0.1.0",
        command="spillgrad train --model small --ram-budget 64MiB --out runs/1", began="2026-11-22T18:00:00+00:00",
        duration_s=t + 0.1, settings=Settings(BUDGET, None, False, True, "raise"), stats=stats,
        origins=origins, steps=made, samples=samples,
    )  # fmt: skip
    return run, spans


def first_version() -> tuple[Run, list[Span]]:
    """Return a run of which only a journal of the first version is left."""
    run, spans = gpt()
    run = dataclasses.replace(
        run, settings=Settings(), samples=[], steps=[], host=None, version=None, command=None, state="dead"
    )
    return run, [span for span in spans if span.kind in ("write", "read", "wait")]


def hostile() -> tuple[Run, list[Span]]:
    """Return a run in which all text is an attack on who shows it."""
    run, spans = gpt(layers=2, steps=2)
    origin = Origin(f"{HOSTILE}.{HOSTILE}", HOSTILE, HOSTILE, HOSTILE)
    long = Origin("a." * 500 + "x" * 100_000, "y" * 100_000, None, None)
    moved = OriginCounters(
        1, 900 * MIB, written_bytes=500 * MIB, stored_bytes=200 * MIB, read_bytes=500 * MIB, wait_read_s=2.5
    )
    run = dataclasses.replace(
        run, path=Path(HOSTILE.replace("/", "")), host=HOSTILE, command=HOSTILE * 100, version=HOSTILE,
        began=HOSTILE, state="dead", settings=dataclasses.replace(run.settings, on_full=HOSTILE, codec=HOSTILE),
        failures=[Failure(1.5, HOSTILE)],
        failure_count=3, origins={**run.origins, origin: moved, long: moved},
    )  # fmt: skip
    return run, [*spans, Span("write", 0.5, 3.0, 1, MIB, origin), Span("read", 0.5, 3.0, 1, MIB, long)]


def extreme() -> tuple[Run, list[Span]]:
    """Return a run of the largest and smallest numbers that a journal may have."""
    much, long, origin = 1 << 62, 1e12, Origin("m", "op", "self", "int8")
    sample = Sample(0.0, much, much, much, much, much, much, much, much, much, much, much, much, long)
    moved = OriginCounters(much, much, much, much, much, much, much, long, long)
    stats = StoreStats(*[much] * 12, *[long] * 4)
    run = dataclasses.replace(
        EMPTY, duration_s=long, stats=stats, origins={origin: moved, Origin(): moved},
        settings=Settings(much), samples=[sample, dataclasses.replace(sample, t=long, ram_bytes=0)],
        steps=[Step(much, -much, 0.0, long, moved), Step(much, None, long, 0.0, OriginCounters())], failure_count=much,
    )  # fmt: skip
    spans = [
        Span("write", -long, long, 10**30, much, origin), Span("write", -long, long, -(10**30), much, origin),
        Span("read", long, 0.0, 1, 0, origin), Span("forward", 0.0, 1e-9), Span("wait", 0.0, long, cause="put"),
    ]  # fmt: skip
    return run, spans * 20


def many(count: int) -> Iterator[Span]:
    """Yield so many spans, of which one is long."""
    draw = np.random.default_rng(0)
    kinds = ("write", "read", "wait")
    origins = [Origin(f"transformer.h.{layer}", "linear", "self", "float32") for layer in range(12)]
    yield Span("wait", 1.0, 7.5, 0, 0, origins[0], "get")
    for place, took in enumerate(draw.exponential(1e-3, count - 1).tolist()):
        began = place * 1e-3
        yield Span(kinds[place % 3], began, took, place, MIB, origins[place % 12], "put" if place % 3 == 2 else None)
