"""Every figure in advice is what a run reaches that follows it, within 20 %."""

import gc
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.inspection.advice import advise
from spillgrad.inspection.records import Advice, Run, Settings, Step, StepPlan
from spillgrad.storage.journal.writer import LONGEST_PLAN
from spillgrad.storage.origin_counters import Origin, OriginCounters, total
from spillgrad.storage.residency import belady
from spillgrad.storage.store import StoreStats
from spillgrad_tools.cli import main
from tests.tools.runs import make_run
from tests.waiting import wait_until

STEPS = 5


def deep(kind: str) -> sg.nn.Module:
    """A model whose activations are noise, or mostly zeros."""
    act = {"gelu": sg.nn.GELU, "relu": sg.nn.ReLU, "dropout": lambda: sg.nn.Dropout(0.9)}[kind]
    return sg.nn.Sequential(*(sg.nn.Sequential(sg.nn.Linear(128, 128), act()) for _ in range(8)))


def train(path: Path, kind: str, **options: Any) -> Run:
    """Train for some steps, and return what the journal says of them."""
    sg.manual_seed(0)
    model = deep(kind)
    optimizer = sg.optim.SGD(model.parameters(), lr=1e-3)
    x = sg.randn(2048, 128)
    spill = sg.save_on_disk(path, keep_journal=path / "run.jsonl", **options)
    for _ in range(STEPS):
        with spill:
            loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del spill, loss
    gc.collect()
    return finished(path / "run.jsonl")


def finished(journal: Path) -> Run:
    """Return what a journal says once its store, which ends in a thread of its own, is closed."""
    wait_until(lambda: sg.storage.inspect(journal).runs[0].state == "finished")
    return sg.storage.inspect(journal).runs[0]


def reached(run: Run, figure: str) -> float:
    """Return what a figure of advice came to in a run: a step's is that of the last."""
    if figure == "stored_bytes":
        return run.stats.stored_bytes
    assert figure == "read_bytes_per_step"
    return run.steps[-1].moved.read_bytes


def followed(advice: Advice, path: Path, kind: str, **options: Any) -> Run:
    path.mkdir()
    return train(path, kind, **(options | advice.arguments))


@pytest.mark.parametrize(
    ("kind", "budget", "kinds"),
    [
        ("gelu", "3MiB", ["ram_budget", "ram_budget"]),
        ("gelu", "64MiB", ["ram_budget"]),
        ("relu", "2MiB", ["ram_budget", "ram_budget", "codec"]),
        ("relu", 0, ["ram_budget", "ram_budget", "codec"]),
    ],
    ids=["more RAM", "less RAM", "codec", "no budget at all"],
)
def test_what_is_advised_comes_true(tmp_path: Path, kind: str, budget: int | str, kinds: list[str]):
    run = train(tmp_path, kind, ram_budget=budget)
    advice = [each for each in advise(run) if each.figures]
    named = [name for each in advice for name in each.arguments]
    assert named[: len(kinds)] == kinds
    for number, each in enumerate(advice):
        after = followed(each, tmp_path / str(number), kind, ram_budget=budget)
        for figure, promised in each.figures.items():
            assert reached(after, figure) == pytest.approx(promised, rel=0.2, abs=0), each


@pytest.mark.parametrize(("kind", "budget"), [("gelu", "3MiB"), ("relu", "2MiB")], ids=["gelu", "relu"])
def test_the_figures_of_now_are_those_of_the_run(tmp_path: Path, kind: str, budget: str):
    """Text and figures speak of the same: what is now, and what will be."""
    run = train(tmp_path, kind, ram_budget=budget)
    for each in advise(run):
        for figure, promised in each.figures.items():
            said = sg.storage.format_bytes(int(promised)) if promised else "all reads"
            assert said in each.text
            now = sg.storage.format_bytes(int(reached(run, figure)))
            assert now in each.text, (now, each.text)


@pytest.mark.parametrize(
    "inputs",
    [
        [(1024, 0)] * 7 + [(1024, 9)],
        [(4096, 9)] + [(256, 0)] * 6,
        [(256, 9)] * 5 + [(8192, 0)] + [(256, 0)],
    ],
    ids=["one of eight", "the large one", "all but the large one"],
)
def test_what_compression_promises_comes_true_where_one_operation_saves_unlike_tensors(
    tmp_path: Path, inputs: list[tuple[int, float]]
):
    def train_unlike(path: Path, **options: Any) -> Run:
        """Save what a ReLU leaves of as many rows as said: all zeros where enough is subtracted before."""
        sg.manual_seed(0)
        weight = sg.randn(128, 128, requires_grad=True)
        spill = sg.save_on_disk(path, ram_budget=0, keep_journal=path / "run.jsonl", **options)
        for _ in range(STEPS):
            with spill:
                parts = [sg.nn.functional.relu(sg.randn(rows, 128) @ weight * 0.1 - less) for rows, less in inputs]
                loss = sum((part.sum() for part in parts[1:]), parts[0].sum())
            loss.backward()
        del spill, parts, loss
        gc.collect()
        return finished(path / "run.jsonl")

    (advice,) = [each for each in advise(train_unlike(tmp_path)) if each.arguments == {"codec": "lossless"}]
    (tmp_path / "followed").mkdir()
    after = train_unlike(tmp_path / "followed", codec="lossless")
    assert reached(after, "stored_bytes") == pytest.approx(advice.figures["stored_bytes"], rel=0.2)


def test_recomputing_is_advised_only_where_modules_could_be():
    """What operations outside of modules save, nobody computes again."""
    waited = OriginCounters(arrays=1, packed_bytes=100, written_bytes=100)

    def advised(module: str | None) -> list[dict[str, object]]:
        stats = StoreStats(written_bytes=100, wait_write_s=5.0)
        origins = {Origin(module, "relu", "result", "float32"): waited}
        run = make_run(Path("run"), duration_s=10.0, stats=stats, origins=origins)
        return [each.arguments for each in advise(run)]

    assert {"policy": "auto"} in advised("h.0.mlp")
    assert {"policy": "auto"} not in advised(None)


def test_what_is_advised_for_an_offload_comes_true(tmp_path: Path):
    def train_offloaded(path: Path, budget: int) -> Run:
        sg.manual_seed(0)
        model = deep("gelu")
        optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
        offload = sg.disk_offload(model, optimizer, path, ram_budget=budget, keep_journal=path / "run.jsonl")
        x = sg.randn(256, 128)
        for _ in range(STEPS + 1):
            with sg.save_on_disk(offload):
                loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del offload, model, optimizer, loss
        gc.collect()
        return finished(path / "run.jsonl")

    before = train_offloaded(tmp_path, 1_000_000)
    advice = [each for each in advise(before) if each.figures]
    assert [list(each.arguments) for each in advice] == [["ram_budget"], ["ram_budget"]]
    for number, each in enumerate(advice):
        (tmp_path / str(number)).mkdir()
        after = train_offloaded(tmp_path / str(number), each.arguments["ram_budget"])  # type: ignore[arg-type]
        promised = each.figures["read_bytes_per_step"]
        assert after.steps[-2].moved.read_bytes == pytest.approx(promised, rel=0.2), each


def made_up(plan: StepPlan, budget: int) -> Run:
    """Return a run whose steps are of three batches of a plan."""
    steps = [Step(number, number, 0.0, 1.0, OriginCounters(), 3) for number in range(1, 4)]
    settings = Settings(budget, None, False, True, "raise")
    return make_run(Path("run"), step_plan=plan, settings=settings, steps=steps, shrinkage=[])


LONG = 1000
DRAW = random.Random(0)
HARD = {
    "each used twice": StepPlan(
        [(4096, True)] * LONG, [("use", place) for place in (*range(LONG), *reversed(range(LONG)))]
    ),
    "of any size": StepPlan(
        [(DRAW.randrange(1 << 40), True) for _ in range(2 * LONG)], [("use", place) for place in range(2 * LONG)]
    ),
    "without sense": StepPlan(
        [(DRAW.randrange(1 << 40), place % 2 == 0) for place in range(LONG)],
        [(DRAW.choice(["put", "use", "drop"]), DRAW.randrange(LONG)) for _ in range(2 * LONG)],
    ),
}


@pytest.mark.parametrize("plan", HARD.values(), ids=HARD)
def test_advice_takes_no_more_work_however_hard_a_plan_is(plan: StepPlan):
    """Few budgets are simulated, and an event of a simulated step calls few functions."""
    run, calls = made_up(plan, 1 << 20), 0

    def count(frame: object, event: str, called: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert advise(run)
    finally:
        sys.setprofile(None)
    assert calls < 700 * len(plan.happened)


def test_halving_finds_what_trying_all_budgets_finds():
    for seed in range(20):
        draw = random.Random(seed)
        sizes = [(draw.randrange(1, 8 << 20), False) for _ in range(40)]
        happened = [("put", place) for place in range(40)]
        happened += [(kind, place) for place in reversed(range(40)) for kind in ("use", "drop")]
        plan = StepPlan(sizes, happened)
        now_bytes, *found = [
            3 * belady.of_store([belady.Item(*size) for size in sizes], events(plan), budget)[0].read_bytes
            for budget in (1 << 20, *stages(plan))
        ]
        half = next(read for read in found if read <= now_bytes / 2)
        advised = [each.figures.get("read_bytes_per_step") for each in advise(made_up(plan, 1 << 20))]
        assert advised[:2] == [half, 0]


def events(plan: StepPlan) -> list[belady.Event]:
    return [belady.Event(*each) for each in plan.happened]


def stages(plan: StepPlan) -> list[int]:
    """Return the budgets in whole MiB that are a sixteenth of what a step needs, two sixteenths, and so on."""
    whole = math.ceil(sum(nbytes for nbytes, _ in plan.arrays) / 2**20)
    return [math.ceil(whole * part / 16) << 20 for part in range(1, 17)]


def test_a_step_too_long_to_be_told_is_why_there_is_no_advice_on_budgets(tmp_path: Path):
    store = sg.storage.DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    array = np.ones(1, np.uint8)
    for _ in range(2):
        handles = [store.put(array, key=0) for _ in range(LONGEST_PLAN + 1)]
        for handle in handles:
            store.use(handle)
        for handle in handles:
            store.drop(handle)
    store.close()
    run = finished(tmp_path / "run.jsonl")
    assert run.step_plan == StepPlan([], [], LONGEST_PLAN + 3)
    (said,) = [each for each in advise(run) if "ram_budget" in each.text]
    assert f"{LONGEST_PLAN + 3:,} things happen to arrays in a batch" in said.text
    assert (said.arguments, said.figures) == ({}, {})
    assert run.damaged_lines == 0


def test_what_is_advised_for_a_step_is_for_all_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_bytes(b"It was the best of times, it was the worst of times. " * 60)
    arguments = ["train", "--data", "text.txt", "--model", "tiny", "--batch", "2", "--context", "32"]
    arguments += ["--steps", "4", "--accumulate", "3"]
    assert main([*arguments, "--ram-budget", "100KiB", "--out", "before"]) == 0
    gc.collect()
    run = finished(Path("before/journal.jsonl"))
    assert [(step.number, step.label, step.batches) for step in run.steps] == [(n, n, 3) for n in (1, 2, 3, 4)]
    assert [group.name for group in run.by("step")] == ["1", "2", "3", "4"]
    assert total(group.moved for group in run.by("step")).read_bytes == run.stats.read_bytes
    advice = [each for each in advise(run) if "read_bytes_per_step" in each.figures]
    assert advice
    for number, each in enumerate(advice):
        assert main([*arguments, "--ram-budget", str(each.arguments["ram_budget"]), "--out", str(number)]) == 0
        gc.collect()
        after = finished(Path(f"{number}/journal.jsonl"))
        promised = each.figures["read_bytes_per_step"]
        assert reached(after, "read_bytes_per_step") == pytest.approx(promised, rel=0.2, abs=0), each
