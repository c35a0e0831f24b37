"""Hooks see what modules register, and may register something else instead."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import HookTypeError
from spillgrad.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

Seen = list[tuple[str, str, object]]


@pytest.fixture
def seen() -> Iterator[Seen]:
    found: Seen = []

    def note(module: nn.Module, name: str, value: object) -> None:
        found.append((type(module).__name__, name, value))

    with (
        register_module_parameter_registration_hook(note),
        register_module_buffer_registration_hook(note),
        register_module_module_registration_hook(note),
    ):
        yield found


def test_hooks_see_parameters_buffers_and_modules_before_they_are_registered(seen: Seen):
    layer = nn.BatchNorm1d(3)
    assert [name for _, name, _ in seen] == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    seen.clear()
    model = nn.Module()
    model.layer = layer
    model.layer = None
    model.register_buffer("nothing", None)
    model.register_parameter("none", None)  # as in PyTorch, parameters that are None are not shown
    assert seen == [("Module", "layer", layer), ("Module", "layer", None), ("Module", "nothing", None)]


def test_hooks_see_what_loading_assigns(seen: Seen):
    layer = nn.Linear(2, 2)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    seen.clear()
    layer.load_state_dict(state, assign=True)
    assert [name for _, name, _ in seen] == ["weight", "bias"]


def test_what_a_hook_returns_is_registered_instead():
    other = nn.Parameter(sg.ones(2))
    with register_module_parameter_registration_hook(lambda module, name, param: other):
        layer = nn.Linear(2, 2, bias=False)
    assert layer.weight is other
    assert nn.Linear(2, 2).weight is not other


@pytest.mark.parametrize(
    ("register", "make"),
    [
        (register_module_parameter_registration_hook, lambda: nn.Linear(2, 2)),
        (register_module_buffer_registration_hook, lambda: nn.BatchNorm1d(2)),
        (register_module_module_registration_hook, lambda: nn.Sequential(nn.Identity())),
    ],
    ids=["parameter", "buffer", "module"],
)
def test_a_hook_that_returns_something_else_is_told(register: Callable[..., object], make: Callable[[], object]):
    with register(lambda module, name, value: 3), pytest.raises(HookTypeError, match="returned a int"):  # type: ignore[attr-defined]
        make()


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(2, 2), lambda: nn.Sequential(nn.Linear(2, 2))], ids=["layer", "two"]
)
@pytest.mark.parametrize(
    "walk",
    [
        lambda model: model(sg.ones(1, 2)),
        lambda model: [*model.named_modules()],
        lambda model: next(model.named_parameters()),
    ],
    ids=["call", "all modules", "first parameter"],
)
def test_a_walked_model_dies_with_its_last_reference(
    make: Callable[[], nn.Module], walk: Callable[[nn.Module], object]
):
    gc.collect()
    gc.disable()
    try:
        model = make()
        walk(model)
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()
