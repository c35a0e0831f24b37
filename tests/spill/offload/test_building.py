"""Models that are built straight to disk are those built in RAM, and were never in RAM as a whole."""

import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, BudgetError
from spillgrad.nn import registration

TOKENS = np.random.default_rng(0).integers(0, 256, (3, 4, 33))


def adamw(params: list[nn.Parameter]) -> sg.optim.Optimizer:
    return sg.optim.AdamW(params, lr=1e-3)


def train(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[str]:
    found = []
    for batch in TOKENS:
        loss = model(np.ascontiguousarray(batch[:, :-1]), np.ascontiguousarray(batch[:, 1:]))[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item().hex())
    return found + values(model)


def values(model: nn.Module) -> list[str]:
    return [tensor.numpy().tobytes().hex() for tensor in (*model.parameters(), *model.buffers())]


class Unusual(nn.Module):
    """What constructors may do to what they registered."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced = nn.Linear(60, 60)
        self.replaced = nn.Linear(30, 30)
        self.tied = nn.Linear(30, 30)
        self.tied.weight = self.replaced.weight
        self.norm = nn.BatchNorm1d(30)
        self.norm.running_mean.add_(3)
        self.tables = nn.Module()
        self.tables.register_buffer("first", sg.arange(15000).float())
        self.tables.second = nn.Buffer(sg.arange(15000).float())
        self.register_buffer("nothing", None)
        self.whole = nn.Parameter(sg.randn(40, 50))
        self.part = nn.Parameter(sg.randn(40, 50)[3:9])
        with sg.no_grad():
            self.whole[3] = 1.0
            self.whole *= self.replaced.weight.abs().max()
        self.whole.data = self.whole.data * 2
        self.passing = nn.Parameter(sg.ones(1000))
        del self.passing
        self.rnn = nn.LSTM(5, 7)
        self.attention = nn.MultiheadAttention(8, 2)
        self.norm.double()


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "GPT": lambda: sg.models.build("tiny"),
    "Llama": lambda: sg.models.build("llama-tiny"),
    "LoRA": lambda: nn.lora(sg.models.build("tiny"), rank=2),
    "unusual": Unusual,
    "half": lambda: sg.models.build("tiny").bfloat16(),
    "loaded": lambda: loaded(sg.models.build("tiny")),
}


def loaded(model: nn.Module) -> nn.Module:
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True)
    return model.eval()


def built(build: Callable[[], nn.Module]) -> nn.Module:
    sg.manual_seed(0)
    return build()


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_built_to_disk_is_that_built_in_ram(tmp_path: Path, name: str):
    wanted = built(BUILDERS[name])
    budget = 70_000
    offload = sg.disk_offload(lambda: built(BUILDERS[name]), directory=tmp_path, ram_budget=budget)
    assert isinstance(offload.model, type(wanted))
    assert [*offload.model.state_dict()] == [*wanted.state_dict()]
    tensors = [*offload.model.parameters(), *offload.model.buffers()]
    assert all(tensor.storage.offloaded for tensor in tensors)
    stats = offload.stats()
    largest = max(tensor.nbytes for tensor in tensors)
    assert stats.peak_ram_bytes <= budget + largest  # one that changes is held until another does
    # Of what was replaced nothing is left.
    assert stats.live_bytes == sum(tensor.nbytes for tensor in tensors) > budget
    assert values(offload.model) == values(wanted)
    assert [p.requires_grad for p in offload.model.parameters()] == [p.requires_grad for p in wanted.parameters()]
    assert {tensor.storage._handle.label.module for tensor in tensors} == {
        *dict(offload.model.named_parameters()), *dict(offload.model.named_buffers())
    }  # fmt: skip


@pytest.mark.parametrize("in_backward", [False, True])
def test_it_trains_as_in_ram(tmp_path: Path, in_backward: bool):
    model = built(BUILDERS["GPT"])
    wanted = train(model, adamw([*model.parameters()]))
    offload = sg.disk_offload(
        lambda: built(BUILDERS["GPT"]), adamw, tmp_path, ram_budget="256KiB", step_in_backward=in_backward
    )
    assert isinstance(offload.optimizer, sg.optim.AdamW)
    assert train(offload.model, offload.optimizer) == wanted
    assert offload.stats().peak_ram_bytes <= 256 << 10


def test_the_optimizers_function_gets_the_parameters_that_require_gradients(tmp_path: Path):
    got: list[nn.Parameter] = []

    def make(params: list[nn.Parameter]) -> sg.optim.Optimizer:
        got.extend(params)
        return adamw(params)

    offload = sg.disk_offload(lambda: nn.lora(sg.models.build("tiny"), rank=2), make, tmp_path, ram_budget="1MiB")
    assert [*map(id, got)] == [id(p) for p in offload.model.parameters() if p.requires_grad]
    layer = nn.Linear(3, 3)
    assert sg.disk_offload(layer, adamw, tmp_path, ram_budget="1MiB").model is layer


def test_weights_of_files_are_read_into_the_store(tmp_path: Path):
    model = built(BUILDERS["GPT"])
    sg.save_checkpoint(tmp_path / "saved", model)
    offload = sg.disk_offload(
        lambda: sg.models.gpt.from_safetensors(tmp_path / "saved"), directory=tmp_path / "spill", ram_budget="70KB"
    )
    assert offload.stats().cache_misses == 0  # what is overwritten is not read before
    assert values(offload.model) == values(model)
    assert not offload.model.training
    assert offload.stats().peak_ram_bytes <= 70_000 + (64 << 10)


def test_what_other_threads_build_meanwhile_stays_in_ram(tmp_path: Path):
    others: list[nn.Module] = []

    def build() -> nn.Module:
        thread = threading.Thread(target=lambda: others.append(nn.Linear(30, 30)))
        thread.start()
        thread.join()
        return nn.Linear(30, 30)

    sg.disk_offload(build, directory=tmp_path, ram_budget="1MiB")
    (other,) = others
    assert not other.weight.storage.offloaded
    assert not nn.Linear(3, 3).weight.storage.offloaded


def test_a_function_that_fails_leaves_no_hook_and_no_file(tmp_path: Path):
    def build() -> nn.Module:
        nn.Linear(300, 300)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sg.disk_offload(build, directory=tmp_path, ram_budget=1000)
    assert not any(registration._hooks.values())
    deadline = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "optimizer", "says"),
    [
        (3, None, "got int as model; wanted a spillgrad.nn.Module, or a function"),
        (lambda: 3, None, "the function returned int; it must return a spillgrad.nn.Module"),
        (lambda: nn.Linear(2, 2), 3, "got int as optimizer; wanted a spillgrad.optim.Optimizer, or a function"),
        (
            lambda: nn.Linear(2, 2),
            lambda params: params,
            "the function returned list; it must return a spillgrad.optim.Optimizer",
        ),
    ],
    ids=["model", "built", "optimizer", "made"],
)
def test_what_is_no_model_or_optimizer_is_told(tmp_path: Path, model: object, optimizer: object, says: str):
    with pytest.raises(ArgumentError, match=says):
        sg.disk_offload(model, optimizer, tmp_path, ram_budget="1MiB")


def test_a_model_is_offloaded_once(tmp_path: Path):
    layer = nn.Linear(3, 3)
    sg.disk_offload(layer, directory=tmp_path, ram_budget="1MiB")
    with pytest.raises(ArgumentError, match="weight is offloaded already"):
        sg.disk_offload(layer, directory=tmp_path, ram_budget="1MiB")
    with pytest.raises(ArgumentError, match=r"1\.weight is offloaded already"):
        sg.disk_offload(lambda: nn.Sequential(nn.Linear(3, 3), layer), directory=tmp_path, ram_budget="1MiB")


@pytest.mark.parametrize("first", ["model", "object"])
@pytest.mark.parametrize("build", [lambda: sg.models.build("tiny"), lambda: nn.Linear(64, 64)], ids=["GPT", "layer"])
def test_nothing_is_left_without_the_model_and_the_object(tmp_path: Path, first: str, build: Callable[[], nn.Module]):
    offload = sg.disk_offload(build, adamw, tmp_path, ram_budget="320KiB", max_grad_norm=1.0)
    model, optimizer = offload.model, offload.optimizer

    def step(model: nn.Module, optimizer: sg.optim.Optimizer) -> None:
        x = sg.tensor(TOKENS[0]) if isinstance(model, sg.models.GPT) else sg.ones(2, 64)
        result = model(x)
        (result[0] if isinstance(result, tuple) else result).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(model, optimizer)
    gone = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        if first == "model":
            del model, optimizer
            step(offload.model, offload.optimizer)
            del offload
        else:
            del offload
            step(model, optimizer)
            del model, optimizer
        assert gone() is None
        deadline = time.monotonic() + 10
        while list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(tmp_path.iterdir()) == []
    finally:
        gc.enable()


# 24 layers of 4 MiB, an embedding of 16 MiB and a head of its own that is replaced by it.
PEAK = """
    import sys
    import spillgrad as sg

    def peak_bytes():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

    SIZES = dict(vocab_size=8192, n_embd=512, n_layer=8, n_head=8)

    def build():
        sg.manual_seed(0)
        return sg.models.build("tiny", **SIZES)

    directory, how = sys.argv[1:]
    sg.models.build("tiny")  # loads the kernels
    before = peak_bytes()
    adamw = lambda parameters: sg.optim.AdamW(parameters)
    if how == "in RAM":
        model = build()
        optimizer = adamw(model.parameters())
        with sg.no_grad():
            for parameter in model.parameters():
                parameter.grad = sg.ones_like(parameter)
        optimizer.step()
        sg.save_checkpoint(directory, model, optimizer)
    elif how == "training from a file":
        build_empty = lambda: sg.models.build("tiny", **SIZES)
        offload = sg.disk_offload(build_empty, adamw, directory + "/spill", ram_budget="64MiB", step_in_backward=True)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak from here on
        sg.load_checkpoint(directory, offload.model, offload.optimizer)
        model = offload.model
    else:
        from_file = lambda: sg.models.gpt.from_safetensors(directory)
        source = build if how == "built" else from_file
        model = sg.disk_offload(source, None, directory + "/spill", ram_budget="20MiB").model
    print(sum(parameter.nbytes for parameter in model.parameters()), peak_bytes() - before)
"""


def peak(directory: Path, how: str) -> tuple[int, int]:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK), directory, how],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    model_bytes, peak_bytes = map(int, ran.stdout.split())
    return model_bytes, peak_bytes


@pytest.mark.exhaustive
def test_the_process_holds_the_budget_a_tensor_or_two_and_no_more(tmp_path: Path):
    model_bytes, in_ram = peak(tmp_path, "in RAM")
    assert in_ram > model_bytes > 100 << 20
    largest, budget, constant = 16 << 20, 20 << 20, 40 << 20
    assert peak(tmp_path, "from a file")[1] <= budget + largest + constant
    # The budget is the least for the largest update: of 64 MiB. Each tensor of a checkpoint is read into its place.
    assert peak(tmp_path, "training from a file")[1] <= (64 << 20) + largest + constant
    assert peak(tmp_path, "built")[1] <= budget + 2 * largest + constant  # random numbers become its first values


def test_what_was_built_is_removed_at_once_where_it_cannot_be_trained(tmp_path: Path):
    with pytest.raises(BudgetError) as caught:
        sg.disk_offload(lambda: sg.models.build("tiny"), directory=tmp_path, ram_budget="1KiB")
    assert caught.value.__traceback__ is not None  # which holds all there was
    assert list(tmp_path.iterdir()) == []
