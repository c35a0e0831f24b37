"""Parameters of PyTorch in a store: every function computes what it computes without, bit for bit."""

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from spillgrad.errors import OperandError, SavedTensorError  # noqa: E402
from spillgrad.interop.torch.offloaded_tensor import OffloadedParameter, offload_tensor  # noqa: E402
from spillgrad.spill.offload.residents import Residents  # noqa: E402
from spillgrad.storage.disk_store import DiskStore  # noqa: E402
from spillgrad.storage.store import Label  # noqa: E402

torch.set_num_threads(1)  # as in `torch_models`
functional = torch.nn.functional


@pytest.fixture(params=[0, 1 << 30], ids=["budget 0", "budget for all"])
def residents(request: Any, tmp_path: Path) -> Iterator[Residents]:
    store = DiskStore(tmp_path, ram_budget=request.param)
    yield Residents(store)
    gc.collect()
    store.close()


def offloaded(module: Any, residents: Residents) -> Any:
    for name, parameter in module.named_parameters():
        offload_tensor(residents, parameter, Label("parameter", None, name))
    return module


class Tied(torch.nn.Module):
    """An embedding whose weight is the last layer's, too, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = torch.nn.Embedding(128, 160), torch.nn.Linear(160, 160)
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Any) -> Any:
        hidden = self.layer(torch.tanh(self.layer(self.words(x)))) * self.scale
        return functional.linear(hidden, self.words.weight)


def image(*shape: int) -> Any:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def two_layers() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(160, 120), torch.nn.ReLU(), torch.nn.Linear(120, 160))


def convolutions() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(16, 128, 3), torch.nn.BatchNorm2d(128), torch.nn.PReLU(), torch.nn.ConvTranspose2d(128, 16, 3)
    )


def partly_frozen() -> Any:
    model = two_layers()
    model[2].requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "linear": (two_layers, lambda: image(4, 160)),
    "tied": (Tied, lambda: torch.arange(10).reshape(2, 5)),
    "convolutions": (convolutions, lambda: image(2, 16, 8, 8)),
    "attention": (lambda: torch.nn.TransformerEncoderLayer(96, 2, 192, dropout=0.0), lambda: image(5, 2, 96)),
    "lstm": (lambda: torch.nn.LSTM(96, 64, 2, bidirectional=True), lambda: image(7, 2, 96)),
    "weight norm": (
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(160, 120)),
        lambda: image(4, 160),
    ),
    "frozen": (partly_frozen, lambda: image(4, 160)),
}


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def run(module: Any, x: Any, mode: str) -> tuple[Any, list[Any]]:
    if mode == "checkpoint":
        result = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            result = module(x)
    loss = first(result).float().square().sum()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if mode == "double":
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        loss = loss + sum(gradient.square().sum() for gradient in found)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in parameters]


# PyTorch has no second derivative of its attention and of its LSTM on the CPU.
ONCE = ("attention", "lstm")


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in MODELS for mode in ("plain", "autocast", "checkpoint", "double")
     if mode != "double" or name not in ONCE],
)  # fmt: skip
def test_results_and_gradients_are_the_same_bit_for_bit(residents: Residents, name: str, mode: str):
    build, given = MODELS[name]
    found = []
    for offload in (lambda module: module, lambda module: offloaded(module, residents)):
        torch.manual_seed(0)
        module = build()
        try:
            found.append(run(offload(module), given(), mode))
        except RuntimeError as error:
            if found or "could not create a primitive" not in str(error):
                raise
            pytest.skip(f"PyTorch itself has no {name} in bfloat16 for this processor")
    assert torch.equal(found[0][0], found[1][0])
    for wanted, got in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(wanted, got)
        assert wanted.stride() == got.stride()


def layer(residents: Residents) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = torch.nn.Linear(160, 120)
    weight = module.weight.detach().clone()
    return offloaded(module, residents), weight


def test_what_is_asked_about_a_parameter_is_that_of_its_memory(residents: Residents):
    module, weight = layer(residents)
    parameter = module.weight
    assert type(parameter) is OffloadedParameter
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.is_leaf
    assert parameter.requires_grad
    assert (parameter.shape, parameter.dtype, parameter.numel()) == (weight.shape, weight.dtype, weight.numel())
    assert (parameter.stride(), parameter.is_contiguous(), parameter.storage_offset()) == ((160, 1), True, 0)
    assert torch.equal(parameter, weight)
    assert repr(parameter) == "<parameter in weight, torch.float32 (120, 160), in a store>"
    assert list(dict(module.named_parameters())) == ["weight", "bias"]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "mul_": lambda p: p.mul_(2),
    "*=": lambda p: p.__imul__(2),
    "item": lambda p: p.__setitem__((0, 0), 7.0),
    "init": lambda p: torch.nn.init.constant_(p, 3.0),
    "out": lambda p: torch.add(p.detach().clone(), 1, out=p),
    "a view": lambda p: p.view(-1).mul_(2),
    "a view of a view": lambda p: p.t()[3].fill_(1.0),
    "detached": lambda p: p.detach().add_(1),
    "data": lambda p: p.data.add_(1),
    "numpy": lambda p: p.detach().numpy().__setitem__(0, 5.0),
    "other data": lambda p: setattr(p, "data", torch.full((120, 160), 2.0)),
    "few data": lambda p: setattr(p, "data", torch.full((2, 3), 2.0)),
    "copy_": lambda p: p.copy_(torch.ones(120, 160)),
    "foreach": lambda p: torch._foreach_mul_([p], 2.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_reach_the_store(residents: Residents, name: str):
    module, wanted = layer(residents)
    with torch.no_grad():
        CHANGES[name](wanted)
        CHANGES[name](module.weight)
        residents.return_changed(with_last=True)
        residents.store.flush()
        assert torch.equal(module.weight, wanted)


def test_a_view_that_is_kept_shows_later_changes_of_the_parameter(residents: Residents):
    module, _ = layer(residents)
    with torch.no_grad():
        view = module.weight.view(-1)
        module.weight.fill_(3.0)
        assert view[5] == 3.0
        view[5] = 4.0
        assert module.weight[0, 5] == 4.0
        del view
        residents.return_changed(with_last=True)
        residents.store.flush()
        assert module.weight[0, 5] == 4.0


def test_a_parameter_changed_after_forward_is_an_error_in_backward(residents: Residents):
    module, _ = layer(residents)
    x = torch.ones(2, 160, requires_grad=True)
    loss = module(x).sum()
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(SavedTensorError, match=r"modified by an inplace operation: \[torch.float32 \[160, 120\]\]"):
        loss.backward()


def test_the_hooks_around_see_what_is_no_parameter(residents: Residents):
    module, _ = layer(residents)
    seen: list[Any] = []
    x = torch.ones(2, 160, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: seen.append(tensor.shape) or tensor, lambda tensor: tensor
    ):
        module(x).sum().backward()
    assert seen == [(2, 160)]


def test_memory_is_in_ram_only_while_it_is_used(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0)
    residents = Residents(store)
    module, _ = layer(residents)
    module(torch.ones(2, 160)).sum().backward()
    store.flush()
    assert store.ram_bytes == 0
    assert store.stats().live_bytes == 4 * 120 * 160  # the bias stays in RAM
    del module
    gc.collect()
    store.see_to_drops()
    assert store.stats().live_bytes == 0
    store.close()


def test_numbers_of_every_dtype_are_kept(residents: Residents):
    for dtype in (torch.float64, torch.bfloat16, torch.complex64, torch.uint8, torch.bool, torch.int64):
        values = torch.arange(1 << 16).to(dtype)
        parameter = torch.nn.Parameter(values.clone(), requires_grad=False)
        offload_tensor(residents, parameter, Label("parameter", None, "weight"))
        assert type(parameter) is OffloadedParameter
        assert torch.equal(parameter, values)


def test_a_parameter_on_a_device_is_refused(residents: Residents):
    parameter = torch.nn.Parameter(torch.empty(1 << 16, device="meta"))
    with pytest.raises(OperandError, match="parameter in weight: got a tensor on meta; wanted one on the CPU"):
        offload_tensor(residents, parameter, Label("parameter", None, "weight"))


def test_copies_and_pickles_are_refused(residents: Residents):
    module, _ = layer(residents)
    with pytest.raises(OperandError, match="cannot be copied or pickled"):
        copy.deepcopy(module)


@pytest.mark.parametrize("name", ["t_", "unsqueeze_", "as_strided_"])
def test_changes_of_the_layout_in_place_are_kept(residents: Residents, name: str):
    arguments = {"unsqueeze_": (1,), "as_strided_": ((160, 60), (1, 320), 160)}.get(name, ())
    module, wanted = layer(residents)
    with torch.no_grad():
        for tensor in (module.weight, wanted):
            getattr(tensor, name)(*arguments)
        assert module.weight.shape == wanted.shape
        assert module.weight.stride() == wanted.stride()
        assert torch.equal(module.weight, wanted)


class Named(torch.Tensor):  # type: ignore[misc]
    """A class of tensors that counts the functions that it computes."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


def test_another_class_of_tensors_computes_with_the_memory(residents: Residents):
    found = []
    for offloads in (False, True):
        torch.manual_seed(0)
        module, x = torch.nn.Linear(160, 120), torch.ones(2, 160).as_subclass(Named)
        if offloads:
            module = offloaded(module, residents)
        Named.seen.clear()
        result = module(x) + (x @ module.weight.t())
        assert type(result) is Named
        assert set(Named.seen) == {"linear", "matmul", "add"}
        found.append(result.as_subclass(torch.Tensor))
    assert torch.equal(*found)


def test_a_parameter_can_be_seen_as_another_class(residents: Residents):
    module, weight = layer(residents)
    assert torch.equal(module.weight.as_subclass(torch.Tensor), weight)


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")
def test_what_reads_no_memory_sees_a_number_that_is_wrong(residents: Residents):
    parameter = torch.nn.Parameter(torch.ones(1 << 14, dtype=torch.int64), requires_grad=False)
    offload_tensor(residents, parameter, Label("parameter", None, "weight"))
    assert (torch.tensor(parameter) == torch.iinfo(torch.int64).min).all()
    assert (parameter == 1).all()
