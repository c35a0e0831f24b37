"""What offloaded training takes is known before the first step: the least RAM that works, and the disk."""

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import BudgetError
from spillgrad.spill.offload import owner
from spillgrad.spill.offload.needs import disk_need, largest_need
from spillgrad.spill.offload.training import FRAMEWORK
from tests.storage.test_disk_store import in_own_mounts

TOKENS = np.random.default_rng(0).integers(0, 256, (4, 4, 33))

Optimizers = dict[str, Callable[[list[nn.Parameter]], sg.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "AdamW": lambda params: sg.optim.AdamW(params, lr=1e-3),
    "SGD": lambda params: sg.optim.SGD(params, lr=1e-2),
    "momentum": lambda params: sg.optim.SGD(params, lr=1e-2, momentum=0.9),
    "Lion": lambda params: sg.optim.Lion(params, lr=1e-4),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT": lambda: sg.models.build("tiny"),
    "Llama": lambda: sg.models.build("llama-tiny", tie_word_embeddings=False),
    "tied Llama": lambda: sg.models.build("llama-tiny"),
}


def train(model: nn.Module, optimizer: sg.optim.Optimizer, clip: float | None = None) -> list[str]:
    found = []
    for batch in TOKENS:
        loss = model(np.ascontiguousarray(batch[:, :-1]), np.ascontiguousarray(batch[:, 1:]))[1]
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item().hex())
    return found + [parameter.numpy().tobytes().hex() for parameter in model.parameters()]


WAYS = [*itertools.product([False, True], [None, 0.3])]


@pytest.mark.parametrize("in_backward, clip", WAYS, ids=[f"in backward {b}, clip {c}" for b, c in WAYS])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("name", MODELS)
def test_training_works_with_the_least_budget_and_never_exceeds_it(
    tmp_path: Path, name: str, optimizer: str, in_backward: bool, clip: float | None
):
    def build() -> nn.Module:
        sg.manual_seed(0)
        return MODELS[name]()

    model = build()
    wanted = train(model, OPTIMIZERS[optimizer]([*model.parameters()]), clip)
    gradients = 2 if clip is not None and not in_backward else 1
    budget = largest_need(FRAMEWORK, model, OPTIMIZERS[optimizer]([*model.parameters()]), gradients).nbytes
    offload = sg.disk_offload(
        build, OPTIMIZERS[optimizer], tmp_path, ram_budget=budget, step_in_backward=in_backward, max_grad_norm=clip
    )
    assert offload.least_budget == budget
    assert train(offload.model, offload.optimizer) == wanted
    stats = offload.stats()
    assert stats.peak_ram_bytes <= budget
    assert stats.live_bytes > 1.5 * budget


class Around(nn.Module):
    """A module with a parameter of its own around a layer, which it looks at beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(sg.ones(100, 100))
        self.layer = nn.Linear(100, 100, bias=False)
        self.many = nn.ParameterList([sg.ones(100, 100) for _ in range(10)])

    def forward(self, x: sg.Tensor) -> sg.Tensor:
        x = self.layer(x * self.scale.sum()) @ self.scale
        for each in self.many:
            x = x @ each
        return x


def test_the_need_is_that_of_a_layer_with_what_is_around_it_or_of_an_update():
    model = Around()
    assert largest_need(FRAMEWORK, model, None).nbytes == 2 * 40_000  # of a list, one at a time
    assert largest_need(FRAMEWORK, model, sg.optim.SGD(model.layer.parameters())).nbytes == 2 * 40_000
    need = largest_need(FRAMEWORK, model, sg.optim.Adam(model.parameters()))
    assert need.nbytes == 4 * 40_000
    assert need.why == (
        "scale needs 156.2 KiB when it is updated: 39.1 KiB itself, as much for its gradient and 78.1 KiB of Adam's "
        "state"
    )
    clipped = largest_need(FRAMEWORK, model, sg.optim.Adam(model.parameters()), gradients=2)
    assert clipped.nbytes == 5 * 40_000
    assert "as much for its gradient, as much for that clipped and 78.1 KiB" in clipped.why
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert largest_need(FRAMEWORK, model, sg.optim.Adam(model.parameters())).nbytes == 2 * 40_000
    assert largest_need(FRAMEWORK, nn.Identity(), None).nbytes == 0


def test_a_module_that_uses_more_than_fits_at_once_lets_go_of_what_it_used_first(tmp_path: Path):
    model = Around()
    x = sg.full((2, 100), 0.01)
    wanted = model(x).detach().numpy()
    offload = sg.disk_offload(model, directory=tmp_path, ram_budget=largest_need(FRAMEWORK, model, None).nbytes)
    np.testing.assert_array_equal(model(x).detach().numpy(), wanted)
    assert offload.stats().peak_ram_bytes <= offload.least_budget
    assert offload.stats().live_bytes == 12 * 40_000


@pytest.mark.parametrize("how", ["a model", "a function"])
def test_a_smaller_budget_is_refused_before_the_first_step(tmp_path: Path, how: str):
    model = sg.models.build("tiny")
    optimizer = OPTIMIZERS["AdamW"]([*model.parameters()])
    least = largest_need(FRAMEWORK, model, optimizer).nbytes
    with pytest.raises(BudgetError) as caught:
        if how == "a model":
            sg.disk_offload(model, optimizer, tmp_path, ram_budget=least - 1)
        else:
            sg.disk_offload(lambda: sg.models.build("tiny"), OPTIMIZERS["AdamW"], tmp_path, ram_budget=least - 1)
    assert str(caught.value) == (
        "disk_offload: got a ram_budget of 262143 bytes, but transformer.wte.weight needs 256 KiB when it is updated: "
        "64 KiB itself, as much for its gradient and 128 KiB of AdamW's state; give at least 262144 bytes (256 KiB)"
    )
    if how == "a model":  # is as it was
        assert not any(parameter.storage.offloaded for parameter in model.parameters())
        assert train(model, optimizer)
    (given,) = re.findall(r"at least (\d+) bytes", str(caught.value))
    sg.disk_offload(sg.models.build("tiny"), None, tmp_path, ram_budget=int(given))


def test_the_need_of_a_layer_is_named_too(tmp_path: Path):
    with pytest.raises(
        BudgetError, match=r"but 1 needs 39\.2 KiB of parameters and buffers; give at least 40160 bytes"
    ):
        sg.disk_offload(nn.Sequential(nn.GELU(), nn.Linear(250, 40)), directory=tmp_path, ram_budget="1KiB")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_say_how_many_tensors_they_keep(name: str):
    layer = nn.Linear(3, 5)
    optimizer = OPTIMIZERS[name]([*layer.parameters()])
    (group,) = optimizer.param_groups
    expected = disk_need(FRAMEWORK, layer, optimizer, gradients=True)
    layer(sg.ones(1, 3)).sum().backward()
    optimizer.step()
    for parameter in layer.parameters():
        tensors = [value for value in optimizer.state[parameter].values() if isinstance(value, sg.Tensor)]
        assert [tensor.shape for tensor in tensors] == [parameter.shape] * optimizer.state_tensors(group)
    assert disk_need(FRAMEWORK, layer, optimizer, gradients=True) == expected  # nothing is counted twice
    assert (expected.parameters, expected.gradients) == (80, 80)


ON_A_SMALL_DISK = """
    import sys
    import spillgrad as sg
    from spillgrad.errors import SpillError
    from spillgrad.spill.offload.needs import disk_need
    from spillgrad.spill.offload.training import FRAMEWORK
    directory, how, on_full = sys.argv[1:]
    build = lambda: sg.models.build("tiny")
    adamw = lambda params: sg.optim.AdamW(params, lr=1e-3)
    options = dict(ram_budget="512KiB", on_full=on_full, step_in_backward=how == "in backward")
    try:
        if how == "a function":
            offload = sg.disk_offload(build, adamw, directory, **options)
        else:
            model = build()
            offload = sg.disk_offload(model, adamw, directory, **options)
    except SpillError as error:
        print(error)
    else:
        print("fits", sum(disk_need(FRAMEWORK, offload.model, offload.optimizer, how != "in backward")) >> 10, "KiB")
"""


def on_a_small_disk(directory: Path, size_kib: int, how: str, on_full: str = "raise") -> str:
    program = "\n".join(line[4:] for line in ON_A_SMALL_DISK.splitlines())
    ran = subprocess.run(
        [*in_own_mounts(directory, size_kib), sys.executable, "-W", "error", "-c", program, directory, how, on_full],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stderr == ""
    return ran.stdout.strip()


@pytest.mark.parametrize("how", ["a model", "a function"])
def test_a_disk_that_is_too_small_is_told_before_training(tmp_path: Path, how: str):
    said = on_a_small_disk(tmp_path, 1700, how)  # where parameters may have been written, 1 MiB is left
    assert re.fullmatch(
        r"disk_offload: 1\.8 MiB will be stored \(parameters and buffers 471 KiB, gradients 471 KiB, optimizer state "
        rf"942 KiB\), [\d.]+ MiB of it yet to be written, but {re.escape(str(tmp_path))} has "
        r"1\.\d MiB free; free space there, give another directory, or keep in RAM what the disk refuses with "
        r"on_full='ram'",
        said,
    ), said


def test_a_measurement_of_the_disk_takes_no_room_from_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another thread's measurement may fill a small disk for a moment; `speeds` returns when it is over."""
    over: list[Path] = []
    monkeypatch.setattr(owner, "speeds", over.append)
    monkeypatch.setattr(owner, "free_bytes", lambda place: 1 << 30 if over else 0)
    offload = sg.disk_offload(sg.models.build("tiny"), OPTIMIZERS["AdamW"], tmp_path, ram_budget="512KiB")
    assert over == [offload.directory.parent]


@pytest.mark.parametrize(
    ("how", "size_kib", "on_full"),
    [
        ("a model", 1500, "ram"),
        ("in backward", 1500, "raise"),
        ("a model", 4000, "raise"),
        ("a function", 4000, "raise"),
    ],
    ids=["RAM may take the rest", "no gradients are stored", "it is large enough", "built there"],
)
def test_a_disk_on_which_all_has_room_is_taken(tmp_path: Path, how: str, size_kib: int, on_full: str):
    assert on_a_small_disk(tmp_path, size_kib, how, on_full).startswith("fits 1")


def test_what_fits_the_budget_needs_no_disk(tmp_path: Path):
    model = nn.Linear(100, 100)
    optimizer = sg.optim.Adam(model.parameters())
    total = sum(disk_need(FRAMEWORK, model, optimizer, gradients=True))
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=total)
    for _ in range(3):
        model(sg.ones(2, 100)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert offload.stats().written_bytes == 0
