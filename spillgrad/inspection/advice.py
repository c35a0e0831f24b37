"""Advise what would make a run better, in plain words with numbers.

The effect of another budget comes from the simulation by which a store decides what goes to disk (`belady`), run on the
recorded step. The effect of compression comes from the samples that the store compressed.
"""

import bisect
import functools
import math
import statistics
from collections.abc import Callable, Iterator

from spillgrad.inspection.records import Advice, Run, Shrinkage, StepPlan
from spillgrad.storage.journal.writer import LONGEST_PLAN
from spillgrad.storage.origin_counters import Origin, OriginCounters, total
from spillgrad.storage.residency import belady
from spillgrad.storage.sizes import format_bytes

_MIB = 1 << 20
# The number of budgets that may be advised, up to the budget in which everything stays in RAM. Few are simulated: each
# takes 0.4 s for the longest step that a journal records (2-core Zen 5).
_STAGES = 16
# A smaller gain is not worth a change.
_WORTH = 0.1
_MUCH = 0.5
# Up to an eighth of the budget may be more than a step needs, without advice.
_SPARE = 0.125
# Callers that wait for the disk for a larger share of the time wait too long.
_WAITS = 0.05
# The share of their bytes that arrays of a dtype take as bfloat16; other dtypes stay as they are.
_AS_BF16: dict[str | None, float] = {"float32": 0.5, "float64": 0.25}


def advise(run: Run) -> list[Advice]:
    """Return the changes that would improve a run, the most effective first.

    Parameters
    ----------
    run : Run
        A run that `inspect` returned.

    Returns
    -------
    list of Advice
        Text, with the arguments for `save_on_disk` and the numbers that they reach.
    """
    return [*_budgets(run), *_codecs(run), *_waits(run)]


def _budgets(run: Run) -> Iterator[Advice]:
    plan, budget_bytes = run.step_plan, run.settings.budget_bytes
    if plan is None or budget_bytes is None:
        return
    if plan.untold:
        yield Advice(
            f"What another ram_budget comes to is not known: {plan.untold:,} things happen to arrays in a batch, and "
            f"the journal tells what of {LONGEST_PLAN:,} at most; try one, and compare what is read.",
            {},
            {},
        )
        return
    read_bytes = _reads(plan, _batches(run))
    now_bytes = read_bytes(budget_bytes)
    needed_bytes = _whole_mib(_needed_bytes(plan))
    if not now_bytes:
        if needed_bytes < budget_bytes * (1 - _SPARE) and not run.stats.read_bytes:
            yield Advice(
                f"A step needs {format_bytes(needed_bytes)} at most: with that for ram_budget, instead of "
                f"{format_bytes(budget_bytes)}, nothing is read from disk either.",
                {"ram_budget": needed_bytes},
                {"read_bytes_per_step": 0.0},
            )
        return
    stages = sorted({_whole_mib(needed_bytes * part // _STAGES) for part in range(1, _STAGES + 1)})
    *fewer, most = [each for each in stages if each > budget_bytes] or [budget_bytes]
    # More RAM never means more reads, so the first budget that saves much is found by bisection.
    much = bisect.bisect_left(fewer, True, key=lambda each: read_bytes(each) <= now_bytes * (1 - _MUCH))
    for each in [*(budget for budget in fewer[much : much + 1] if read_bytes(budget)), most]:
        left_bytes = read_bytes(each)
        if left_bytes > now_bytes * (1 - _WORTH):
            continue
        share = 1 - left_bytes / now_bytes
        what = "all reads" if not left_bytes else f"{share:.0%} of the reads".replace("%", " %")
        left = format_bytes(left_bytes) if left_bytes else "nothing"
        yield Advice(
            f"Raising ram_budget from {format_bytes(budget_bytes)} to {format_bytes(each)} removes {what}: {left} "
            f"comes back from disk in a step instead of {format_bytes(now_bytes)}.",
            {"ram_budget": each},
            {"read_bytes_per_step": float(left_bytes)},
        )


def _batches(run: Run) -> int:
    """Return the number of batches that most steps have; a step repeats the step plan for each batch."""
    return statistics.mode([step.batches for step in run.steps] or [1])


def _reads(plan: StepPlan, batches: int) -> Callable[[int], int]:
    """Return a function that predicts, for a budget in bytes, the bytes that a step of `batches` batches reads."""
    items = [belady.Item(nbytes, persistent) for nbytes, persistent in plan.arrays]
    events = [belady.Event(kind, place) for kind, place in plan.happened]

    @functools.cache
    def read_bytes(budget_bytes: int) -> int:
        return batches * belady.of_store(items, events, budget_bytes)[0].read_bytes

    return read_bytes


def _needed_bytes(plan: StepPlan) -> int:
    """Return the most bytes that are live at once in a step."""
    live_bytes = most_bytes = sum(nbytes for nbytes, persistent in plan.arrays if persistent)
    for kind, place in plan.happened:
        live_bytes += {"put": 1, "use": 0, "drop": -1}[kind] * plan.arrays[place][0]
        most_bytes = max(most_bytes, live_bytes)
    return most_bytes


def _codecs(run: Run) -> Iterator[Advice]:
    written_bytes = run.stats.written_bytes
    is_offload = run.step_plan is not None and any(persistent for _, persistent in run.step_plan.arrays)
    if run.settings.codec is not None or is_offload or not written_bytes:
        return
    lossless_bytes = 0.0
    best: tuple[float, str, float] | None = None
    kinds = _by_kind(run)
    ratios = _ratios(run)
    for kind, moved in kinds.items():
        ratio = ratios[kind]
        lossless_bytes += moved.written_bytes * ratio
        gain = moved.written_bytes * (1 - ratio)
        if best is None or gain > best[0]:
            best = gain, f"{format_bytes(moved.written_bytes)} of {_name(kind)} compress {_as_ratio(ratio)}", ratio
    if best is not None and lossless_bytes < written_bytes * (1 - _WORTH):
        yield Advice(
            f'{best[1]}: codec="lossless" writes {format_bytes(int(lossless_bytes))} in all instead of '
            f"{format_bytes(written_bytes)}.",
            {"codec": "lossless"},
            {"stored_bytes": lossless_bytes},
        )
    if _wait_share(run) > _WAITS:
        bf16_bytes = sum(moved.written_bytes * _AS_BF16.get(kind[2], 1.0) for kind, moved in kinds.items())
        if bf16_bytes < written_bytes * (1 - _WORTH):
            yield Advice(
                f'codec="bf16" writes {format_bytes(int(bf16_bytes))} in all instead of {format_bytes(written_bytes)}, '
                "where gradients may be inexact in the third digit.",
                {"codec": "bf16"},
                {"stored_bytes": bf16_bytes},
            )


Kind = tuple[str | None, str | None, str | None]


def _kind(origin: Origin) -> Kind:
    return origin.op, origin.slot, origin.dtype


def _by_kind(run: Run) -> dict[Kind, OriginCounters]:
    parts: dict[Kind, list[OriginCounters]] = {}
    for origin, moved in run.origins.items():
        parts.setdefault(_kind(origin), []).append(moved)
    return {kind: total(each) for kind, each in parts.items()}


def _ratios(run: Run) -> dict[Kind, float]:
    """Return, for each kind of array (op, slot, dtype), the share of the written bytes that remains after compression.

    An origin without samples gets the share of all samples of its kind.
    """
    by_origin = {each.origin: [each] for each in run.shrinkage}
    by_kind: dict[Kind, list[Shrinkage]] = {}
    for each in run.shrinkage:
        by_kind.setdefault(_kind(each.origin), []).append(each)
    written_bytes: dict[Kind, float] = {}
    left_bytes: dict[Kind, float] = {}
    for origin, moved in run.origins.items():
        kind = _kind(origin)
        share = _share(by_origin.get(origin) or by_kind.get(kind) or [])
        written_bytes[kind] = written_bytes.get(kind, 0.0) + moved.written_bytes
        left_bytes[kind] = left_bytes.get(kind, 0.0) + moved.written_bytes * share
    return {kind: left_bytes[kind] / nbytes if nbytes else 1.0 for kind, nbytes in written_bytes.items()}


def _share(samples: list[Shrinkage]) -> float:
    nbytes = sum(each.nbytes for each in samples)
    return sum(each.stored_bytes for each in samples) / nbytes if nbytes else 1.0


def _as_ratio(ratio: float) -> str:
    times = 1 / max(ratio, 1 / 64)
    return f"{times:.0f}:1" if times >= 3 else f"{times:.1f}:1"


def _name(kind: Kind) -> str:
    op, slot, dtype = kind
    return f"{'.'.join(part for part in (op, slot) if part) or 'arrays'} ({dtype})"


def _waits(run: Run) -> Iterator[Advice]:
    share = _wait_share(run)
    in_modules = sum(moved.written_bytes for origin, moved in run.origins.items() if origin.module)
    if share > _WAITS and in_modules > run.stats.written_bytes * _MUCH:  # only modules can be recomputed
        yield Advice(
            f'Callers waited {share:.0%} of the time for the disk: policy="auto", where it is not set yet, computes '
            "again what takes less time than writing and reading it.".replace("%", " %"),
            {"policy": "auto"},
            {},
        )


def _wait_share(run: Run) -> float:
    waited_s = run.stats.wait_write_s + run.stats.wait_read_s
    return waited_s / run.duration_s if run.duration_s else 0.0


def _whole_mib(nbytes: int) -> int:
    return math.ceil(nbytes / _MIB) * _MIB
