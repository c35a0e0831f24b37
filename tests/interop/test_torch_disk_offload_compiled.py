"""Parts of a model that torch.compile compiles train on disk as in RAM, bit for bit."""

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from spillgrad.errors import ArgumentError, BudgetError  # noqa: E402
from spillgrad.interop.torch import disk_offload, save_on_disk  # noqa: E402
from tests.interop.torch_models import all_same  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

WIDTH = 256
BLOCK_BYTES = 2 * 4 * WIDTH * WIDTH
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=needs_compiler)]


@pytest.fixture(autouse=True)
def _compiles_anew():
    inductor = importlib.import_module("torch._inductor.config")
    torch._dynamo.reset()
    # The threads of a pool would stay. The environment decides only until another test has imported the compiler.
    with inductor.patch(compile_threads=1):
        yield
    torch._dynamo.reset()


def block() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))


def model(backend: str | None) -> Any:
    torch.manual_seed(0)
    whole = torch.nn.Sequential(*(block() for _ in range(3)), torch.nn.Linear(WIDTH, WIDTH))
    if backend is not None:
        for number in range(3):
            whole[number] = torch.compile(whole[number], backend=backend)
    return whole


def trained(whole: Any, optimizer: Any, offload: Any = None) -> list[Any]:
    """Train 4 steps; return the losses and the parameters."""
    x = torch.linspace(-1, 1, 32 * WIDTH).view(32, WIDTH)
    losses = []
    for _ in range(4):
        if offload is None:
            loss = whole(x).square().mean()
        else:
            with save_on_disk(offload):
                loss = whole(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(param.clone() for param in whole.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("at_once", [False, True])
def test_compiled_blocks_train_as_in_ram(backend: str, at_once: bool, directory: Path):
    whole = model(backend)
    wanted = trained(whole, torch.optim.AdamW(whole.parameters()))
    offload = disk_offload(model(backend), torch.optim.AdamW, directory, ram_budget="1536KiB", step_in_backward=at_once)
    assert all_same(trained(offload.model, offload.optimizer, offload), wanted)
    stats = offload.stats()
    assert stats.written_bytes > 0
    assert stats.peak_ram_bytes <= 1536 << 10


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH), requires_grad=False)
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.count.add_(1.0)
        return self.layer(x) + self.count[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_a_compiled_block_changes_in_place_is_kept(backend: str, directory: Path):
    def build() -> Any:
        torch.manual_seed(0)
        blocks = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(6))
        return torch.nn.Sequential(torch.compile(Counting(), backend=backend), *blocks)

    whole = build()
    wanted = trained(whole, torch.optim.SGD([param for param in whole.parameters() if param.requires_grad]))
    offload = disk_offload(build(), torch.optim.SGD, directory, ram_budget="600KiB", step_in_backward=True)
    assert all_same(trained(offload.model, offload.optimizer, offload), wanted)


def test_a_compiled_part_that_is_used_outside_its_compiled_part_is_refused(directory: Path):
    inner = torch.compile(block(), backend="eager")
    whole = torch.nn.ModuleDict({"b": inner, "a": torch.compile(torch.nn.Sequential(inner, block()), backend="eager")})
    with pytest.raises(ArgumentError, match=r"b is compiled by torch.compile, and is part of another compiled part"):
        disk_offload(whole, None, directory, ram_budget="4MiB")


def test_an_interrupted_call_gives_the_memory_back(directory: Path):
    class Stop(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if stops:
                raise KeyboardInterrupt
            return x

    stops: list[int] = []
    whole = torch.nn.Sequential(torch.compile(torch.nn.Sequential(block(), Stop()), backend="eager"))
    offload = disk_offload(whole, None, directory, ram_budget="1MiB")
    x = torch.ones(2, WIDTH)
    before = whole(x).detach()
    stops.append(1)
    with pytest.raises(KeyboardInterrupt):
        whole(x)
    stops.clear()
    assert torch.equal(whole(x), before)
    kinds = {type(param).__name__ for param in offload.model.parameters() if param.nbytes >= 1 << 16}
    assert kinds == {"OffloadedParameter"}


def test_the_least_budget_holds_a_compiled_block(directory: Path):
    with pytest.raises(BudgetError, match=r"but 0 needs 514 KiB of parameters"):
        disk_offload(model("eager"), None, directory, ram_budget=BLOCK_BYTES - 1)


def test_a_state_dict_is_that_of_the_model_in_ram(directory: Path):
    offload = disk_offload(model("eager"), torch.optim.SGD, directory, ram_budget="1MiB")
    wanted, found = model("eager").state_dict(), offload.model.state_dict()
    assert list(found) == list(wanted)
    assert all(map(torch.equal, found.values(), wanted.values()))


def in_place(whole: Any) -> Any:
    whole[0].compile(backend="eager")
    return whole


def as_parts(whole: Any) -> Any:
    whole[1] = torch.compile(whole[1], backend="eager")
    return whole


@pytest.mark.parametrize("compiled", [in_place, as_parts, lambda whole: torch.compile(whole, backend="eager")])
def test_what_is_compiled_after_offloading_is_refused(compiled: Callable[[Any], Any], directory: Path):
    offload = disk_offload(model(None), torch.optim.SGD, directory, ram_budget="4MiB")
    with pytest.raises(ArgumentError, match="compile parts of the model before you offload it"):
        compiled(offload.model)(torch.ones(2, WIDTH))
