"""Plans of PyTorch models: their numbers are those of training, and making one leaves everything as it was."""

import collections
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")
transformers = pytest.importorskip("transformers", reason="`make test-peers` installs transformers")

os.environ["HF_HUB_OFFLINE"] = "1"

import spillgrad as sg  # noqa: E402
from spillgrad.errors import ArgumentError, BudgetError, OperandError  # noqa: E402
from spillgrad.interop.torch import disk_offload, plan, save_on_disk  # noqa: E402
from spillgrad.interop.torch.planning import speeds  # noqa: E402
from spillgrad.interop.torch.planning.plan import traced_ways  # noqa: E402
from spillgrad.storage.counters import rss_bytes  # noqa: E402
from tests.interop.test_torch_disk_offload_models import MODELS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

MACHINE = sg.planning.Machine(2, 2e11, sg.planning.Disk(1e9, 1e9, 1e-10, 1 << 40))
WIDTH = 512
MIB = 1 << 20


def block() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH))


def model(layers: int = 8) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(block() for _ in range(layers)))


def mean_of_squares(model: Any, x: Any) -> Any:
    return model(x).square().mean()


def planned(of: Any = None, ram: int | str = "64GiB", **options: Any) -> Any:
    batch = torch.ones(256, WIDTH)
    return plan(of or model(), batch, ram, loss=mean_of_squares, machine=MACHINE, **options)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_counts_what_a_model_saves_to_the_byte(name: str):
    build, given = MODELS[name]
    torch.manual_seed(0)
    whole, batch = build().train(), given()
    found = plan(whole, batch, "64GiB", machine=MACHINE)
    with save_on_disk(ram_budget="1GiB") as spill:
        loss = whole(**batch).loss
    assert found.prediction.saved_bytes == spill.stats().live_bytes
    assert found.parameter_bytes == sum(param.nbytes for param in whole.parameters())
    assert found.trained_bytes == sum(param.nbytes for param in whole.parameters() if param.requires_grad)
    assert found.state_bytes == 2 * sum(
        param.nbytes for param in whole.parameters() if param.requires_grad and param.ndim
    )
    assert loss.requires_grad  # the graph lived until here


def ways(of: Any, at_once: bool = True, clips: float | None = None, optimizer: Any = torch.optim.AdamW) -> Any:
    batch = torch.ones(256, WIDTH)
    return traced_ways(of, batch, Path(), optimizer, mean_of_squares, at_once, clips, MACHINE)


@pytest.mark.parametrize(("at_once", "clips"), [(True, None), (False, None), (True, 1.0)])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_plan_knows_the_traffic_of_an_offloaded_model(
    at_once: bool, clips: float | None, optimizer: Any, directory: Path
):
    budget = 40 * MIB
    whole = model(24)
    expected = ways(whole, at_once, clips, optimizer)[1].predict(budget)
    offload = disk_offload(
        whole, optimizer, directory, ram_budget=budget, step_in_backward=at_once, max_grad_norm=clips
    )
    for _ in range(6):
        before = offload.stats()
        with save_on_disk(offload):
            loss = mean_of_squares(whole, torch.ones(256, WIDTH))
        loss.backward()
        offload.optimizer.step()
        offload.optimizer.zero_grad()
    after = offload.stats()
    written, read = after.written_bytes - before.written_bytes, after.read_bytes - before.read_bytes
    # A store writes ahead of need, and more so where other programs hold it up: some arrays die right after.
    assert 0.75 <= written / expected.written_bytes <= 1.5
    assert 0.75 <= read / expected.read_bytes <= 1.3
    assert after.peak_disk_bytes <= 1.1 * expected.disk_bytes  # with the ends of pages


# Each tensor of 64 KiB and more goes back to the system when it dies, so that the system counts what is used.
MEASURED = """
import sys
import torch
from spillgrad.interop.torch import save_on_disk
from spillgrad.interop.torch.planning.plan import traced_ways  # noqa: E402
from spillgrad.storage.counters import rss_bytes
from spillgrad_kernels.memory import buffers
from tests.interop.test_torch_plan import mean_of_squares, model, WIDTH

torch.set_num_threads(1)
budget = int(sys.argv[1])
whole, x = model(12), torch.ones(2048, WIDTH)
optimizer = torch.optim.AdamW(whole.parameters())

def step():
    if budget:
        with save_on_disk(ram_budget=budget):
            loss = mean_of_squares(whole, x)
    else:
        loss = mean_of_squares(whole, x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

step()
buffers.empty_cache()
held = sum(3 * param.nbytes for param in whole.parameters())
before = rss_bytes() - held
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
step()
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak * 1024 - before)
"""


@pytest.mark.parametrize("budget", [0, 24 * MIB])
def test_a_plan_knows_the_most_memory_of_a_step(budget: int):
    batch = torch.ones(2048, WIDTH)
    way = traced_ways(model(12), batch, Path(), torch.optim.AdamW, mean_of_squares, True, None, MACHINE)[0]
    expected = way.predict(budget or 1 << 40).peak_bytes - way.base_bytes
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, str(budget)], capture_output=True, text=True, check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert int(measured.stdout) == pytest.approx(expected, rel=0.1)


def test_a_plan_leaves_everything_as_it_was():
    whole = model()
    whole[0][0].register_buffer("count", torch.zeros(2))
    values = [value.clone() for value in (*whole.parameters(), *whole.buffers())]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    threads = torch.get_num_threads()

    def loss(model: Any, x: Any) -> Any:
        model[0][0].count.add_(1)
        return torch.nn.functional.dropout(model(x + torch.randn(())), 0.5).sum()

    plan(whole, torch.ones(8, WIDTH), "4GiB", loss=loss, machine=MACHINE)
    assert all(map(torch.equal, values, (*whole.parameters(), *whole.buffers())))
    assert all(param.grad is None and not param._post_accumulate_grad_hooks for param in whole.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_a_model_that_is_larger_than_ram_is_planned_without_it():
    def build() -> Any:
        return torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(64)))

    before = rss_bytes()
    found = plan(build, torch.ones(4, 8192), "6GiB", loss=mean_of_squares, machine=MACHINE)
    assert rss_bytes() - before < 1 << 30
    assert found.parameter_bytes == 64 * 4 * (8192 * 8192 + 8192)
    assert found.offload
    with torch.device("meta"):
        on_meta = build()
    assert plan(on_meta, torch.ones(4, 8192), "6GiB", loss=mean_of_squares, machine=MACHINE).offload


def test_more_ram_is_used_for_what_helps_most():
    # A step saves 768 MiB. The model and its state are 96 MiB: more than what the least memory is rounded up by.
    batch = torch.ones(8192, WIDTH, device="meta")

    def found(ram: int | str) -> Any:
        return plan(model(24), batch, ram, loss=mean_of_squares, machine=MACHINE)

    least = found("64GiB").least_bytes
    kinds = []
    for ram in (least, least + 200 * MIB, least + 2048 * MIB):
        planned = found(ram)
        assert planned.prediction.peak_bytes <= ram
        kinds.append((planned.offload, planned.policy))
    assert kinds == [(True, "spill"), (False, "spill"), (False, "keep")]


def test_what_a_plan_says_can_be_done(directory: Path):
    whole = model(64)
    found = planned(whole, planned(whole).least_bytes)
    assert found.offload
    offload = disk_offload(
        whole, torch.optim.AdamW, directory, ram_budget=found.prediction.budget_bytes, step_in_backward=True
    )
    assert offload.least_budget <= found.prediction.budget_bytes
    compile(found.code, "code", "exec")
    text = str(found)
    assert "all of it on disk" in text
    assert found.code in text
    assert found.as_dict()["prediction"]["peak_bytes"] == found.prediction.peak_bytes


def test_ties_and_frozen_parameters_count_once():
    whole = model(2)
    whole[1][0].weight = whole[0][0].weight
    whole[0][0].bias.requires_grad_(False)
    found = planned(whole)
    assert found.parameter_bytes == sum(param.nbytes for param in whole.parameters())
    assert found.trained_bytes == sum(param.nbytes for param in whole.parameters() if param.requires_grad)

    def tied() -> Any:
        built = model(2)
        built[1][0].weight = built[0][0].weight
        return built

    assert planned(tied).parameter_bytes == found.parameter_bytes


def test_a_batch_is_given_as_the_model_takes_it():
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any, y: Any) -> Any:
            return {"loss": (self.layer(x) - y).square().mean()}

    x = torch.ones(4, WIDTH)
    for batch in ({"x": x, "y": x}, (x, x), [x, x]):
        assert plan(Pair(), batch, "4GiB", machine=MACHINE).prediction.saved_bytes > 0


def test_contexts_inside_the_loss_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speeds, "_median", lambda run: 1e-4)  # a busy machine measures other speeds each time

    def loss(model: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return mean_of_squares(model, x)

    def recomputed(model: Any, x: Any) -> Any:
        for layer in model:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    batch = torch.ones(256, WIDTH)
    full = planned().prediction
    half = plan(model(), batch, "4GiB", loss=loss, machine=MACHINE).prediction
    least = plan(model(), batch, "4GiB", loss=recomputed, machine=MACHINE).prediction
    assert least.saved_bytes < half.saved_bytes < full.saved_bytes
    assert least.compute_s > full.compute_s


class Choosing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y[y > 0].mean()


@pytest.mark.parametrize(
    ("of", "options", "error", "says"),
    [
        (model, {"ram": "1MiB"}, BudgetError, "the least that works is"),
        (Choosing, {"loss": None}, ArgumentError, "asks for values of a computed tensor"),
        (model, {"loss": None}, ArgumentError, "the loss is .256, 512."),
        (model, {"loss": lambda model, x: 3.0}, ArgumentError, "the loss is float"),
        (model, {"loss": lambda model, x: x.sum()}, ArgumentError, "requires a gradient"),
        (model, {"optimizer": torch.optim.LBFGS}, ArgumentError, "plan: got LBFGS"),
        (model, {"optimizer": lambda params: "adam"}, OperandError, "plan: got str"),
        (
            model,
            {"optimizer": lambda params: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])},
            ArgumentError,
            "plan: parameter 0 of the optimizer's group 0",
        ),
        (lambda: torch.nn.LazyLinear(3), {}, ArgumentError, "has no shape yet"),
        (lambda: None, {}, ArgumentError, "returned a NoneType"),
    ],
)
def test_what_cannot_be_planned_is_an_error(of: Any, options: dict[str, Any], error: type, says: str):
    given = {"ram": "4GiB", "loss": mean_of_squares, "machine": MACHINE, **options}
    with pytest.raises(error, match=says):
        plan(of, torch.ones(256, WIDTH), **given)


def test_an_offloaded_model_is_planned_before(directory: Path):
    whole = model()
    offload = disk_offload(whole, torch.optim.AdamW, directory, ram_budget="16MiB")
    with pytest.raises(ArgumentError, match=r"0.0.weight is offloaded already; plan before"):
        planned(whole)
    assert offload.model is whole


def test_an_error_of_the_model_says_that_it_was_planned():
    with pytest.raises(RuntimeError) as caught:
        plan(model(), torch.ones(4, 3), "4GiB", machine=MACHINE)
    assert "on tensors without values" in caught.value.__notes__[0]


class Shared(torch.nn.Module):
    """Three layers save the same batch, and two functions the same buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("mask", torch.ones(256, WIDTH, dtype=torch.bool))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            y = layer(x).masked_fill(self.mask, 0.0)
        return y


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(WIDTH, WIDTH, 2)

    def forward(self, x: Any) -> Any:
        return self.layers(x.view(16, 16, WIDTH))[0]


@pytest.mark.parametrize("of", [Shared, Recurrent])
def test_what_several_nodes_save_counts_once_and_what_a_library_saves_counts(of: Any):
    whole, x = of(), torch.ones(256, WIDTH)
    found = planned(whole)
    with save_on_disk(ram_budget="1GiB") as spill:
        loss = mean_of_squares(whole, x)
    assert found.prediction.saved_bytes == spill.stats().live_bytes
    loss.backward()


def test_a_batch_stays_as_it_is():
    x = torch.ones(8, WIDTH, requires_grad=True)
    batch = {"x": x, "more": [torch.ones(8, WIDTH)]}

    def loss(model: Any, batch: dict[str, Any]) -> Any:
        return model(batch.pop("x") * batch["more"].pop().mul_(2)).sum()

    def build() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout())

    random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    plan(build, batch, "64GiB", loss=loss, machine=MACHINE)
    assert x.grad is None
    assert (batch["x"] is x, len(batch["more"]), float(batch["more"][0].max())) == (True, 1, 1.0)
    assert before[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[2], torch.get_rng_state())


def test_a_batch_may_be_any_mapping_and_on_meta():
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            assert torch.isfinite(y).all()
            return collections.UserDict(loss=y.square().mean())

    for x in (torch.ones(4, WIDTH), torch.ones(4, WIDTH, device="meta")):
        assert plan(Pair(), collections.UserDict(x=x), "64GiB", machine=MACHINE).prediction.saved_bytes > 0


def test_buffers_that_are_not_in_ram_yet_count():
    def build(nbytes: int = 256 << 20) -> Any:
        whole = model(2)
        whole.register_buffer("table", torch.zeros(nbytes, dtype=torch.uint8))
        return whole

    least = planned(model(2)).least_bytes
    with torch.device("meta"):
        on_meta = build()
    for with_table in (on_meta, build):
        assert planned(with_table).least_bytes - least >= 240 << 20


def test_the_least_that_works_works():
    least = planned(model(64)).least_bytes  # the model and its state are 256 MiB, and must be on disk then
    assert planned(model(64), ram=least).offload


def test_a_model_without_trained_parameters_is_an_error():
    with pytest.raises(ArgumentError, match="no parameter of the model requires a gradient"):
        planned(model(2).requires_grad_(False))


def test_a_model_that_keeps_what_it_computed_cannot_be_copied():
    whole = model(2)
    whole.last = whole(torch.ones(2, WIDTH))
    with pytest.raises(ArgumentError, match=r"it cannot be copied: .*; plan before the first call, or give a function"):
        planned(whole)
