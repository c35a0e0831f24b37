import copy
import pickle
import threading

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import labels, nn
from spillgrad.errors import DeviceError, StateDictError


class Tied(nn.Module):
    """Two layers that share a weight, a buffer of each kind, and a list."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.blocks = nn.ModuleList([nn.Sequential(nn.Tanh(), nn.Dropout(0.5)) for _ in range(2)])
        self.register_buffer("mean", sg.zeros(3))
        self.register_buffer("scratch", sg.zeros(3), persistent=False)

    def forward(self, x):
        x = self.second(self.first(x)) - self.mean
        for block in self.blocks:
            x = block(x)
        return x


def test_parameters_buffers_and_modules_are_found_by_path():
    model = Tied()
    assert [name for name, _ in model.named_parameters()] == ["first.weight", "first.bias"]
    assert [name for name, _ in model.named_parameters(remove_duplicate=False)] == [
        "first.weight",
        "first.bias",
        "second.weight",
    ]
    assert [name for name, _ in model.named_buffers()] == ["mean", "scratch"]
    assert [name for name, _ in model.named_modules()] == [
        "",
        "first",
        "second",
        "blocks",
        "blocks.0",
        "blocks.0.0",
        "blocks.0.1",
        "blocks.1",
        "blocks.1.0",
        "blocks.1.1",
    ]
    assert [name for name, _ in model.named_children()] == ["first", "second", "blocks"]
    assert [name for name, _ in model.first.named_parameters(prefix="p")] == ["p.weight", "p.bias"]
    assert list(model.parameters(recurse=False)) == []


def test_a_child_registered_twice_is_named_once():
    model = nn.Module()
    model.a = model.b = nn.Identity()
    assert [name for name, _ in model.named_children()] == ["a"]


def test_an_attribute_is_one_thing_at_a_time():
    model = nn.Module()
    model.x = nn.Parameter(sg.ones(2))
    assert [name for name, _ in model.named_parameters()] == ["x"]
    model.x = nn.Identity()
    assert [name for name, _ in model.named_parameters()] == []
    assert [name for name, _ in model.named_children()] == ["x"]
    del model.x
    assert not hasattr(model, "x")
    model.x = 3
    model.x = nn.Parameter(sg.ones(2))
    assert isinstance(model.x, nn.Parameter)
    assert "x" in dir(model)


@pytest.mark.parametrize(
    ("kind", "value"), [("parameter", nn.Parameter(sg.ones(2))), ("module", nn.Identity()), ("buffer", sg.ones(2))]
)
def test_a_registered_name_takes_none_but_nothing_of_another_kind(kind, value):
    model = nn.Module()
    getattr(model, f"register_{kind}")("x", value)
    with pytest.raises(TypeError, match=r"Module\.x: got int, wanted"):
        model.x = 3
    model.x = None
    assert model.x is None
    assert model.state_dict() == {}


def test_assigning_before_the_constructor_says_so():
    class Hasty(nn.Module):
        def __init__(self):
            self.layer = nn.Identity()

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) first"):
        Hasty()


@pytest.mark.parametrize("name", ["", "a.b"])
def test_names_that_would_break_paths_are_refused(name):
    with pytest.raises(KeyError):
        nn.Module().register_module(name, nn.Identity())


def test_a_missing_attribute_is_named():
    with pytest.raises(AttributeError, match="'Tied' object has no attribute 'thrid'"):
        _ = Tied().thrid


def test_a_state_dict_shares_memory_and_holds_what_persists():
    model = Tied()
    state = model.state_dict()
    assert list(state) == ["mean", "first.weight", "first.bias", "second.weight"]
    assert all(not tensor.requires_grad for tensor in state.values())
    state["mean"].add_(1.0)
    assert model.mean.tolist() == [1.0, 1.0, 1.0]


def test_loading_copies_tensors_and_arrays_and_keeps_ties():
    source, target = Tied(), Tied()
    state = {name: tensor if name == "mean" else tensor.numpy().copy() for name, tensor in source.state_dict().items()}
    weight = target.first.weight
    assert target.load_state_dict(state) == ([], [])
    assert target.first.weight is weight is target.second.weight
    assert (weight.numpy() == source.first.weight.numpy()).all()
    assert not np.shares_memory(weight.numpy(), source.first.weight.numpy())


def test_loading_lists_everything_that_is_wrong_and_changes_nothing():
    model = Tied()
    before = model.mean.tolist()
    state = {"mean": sg.ones(3), "first.weight": sg.zeros(2, 3), "second.weight": sg.zeros(4), "extra": sg.zeros(1)}
    with pytest.raises(StateDictError) as caught:
        model.load_state_dict(state)
    for part in (
        "Error(s) in loading state_dict for Tied:",
        '\n\tMissing key(s) in state_dict: "first.bias".',
        '\n\tUnexpected key(s) in state_dict: "extra".',
        "\n\tsize mismatch for first.weight: copying a param with shape (2, 3) from checkpoint, the shape in current "
        "model is (3, 3).",
        "size mismatch for second.weight",
    ):
        assert part in str(caught.value)
    assert model.mean.tolist() == before


def test_loading_that_is_not_strict_takes_what_fits_by_name():
    model = Tied()
    result = model.load_state_dict({"mean": sg.ones(3), "extra": sg.zeros(1)}, strict=False)
    assert result.missing_keys == ["first.weight", "first.bias", "second.weight"]
    assert result.unexpected_keys == ["extra"]
    assert model.mean.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(StateDictError, match="size mismatch for mean"):
        model.load_state_dict({"mean": sg.ones(4)}, strict=False)


def test_modes_reach_every_module():
    model = Tied()
    assert model.eval() is model
    assert not any(module.training for module in model.modules())
    model.blocks[0].train()
    assert [name for name, module in model.named_modules() if module.training] == [
        "blocks.0",
        "blocks.0.0",
        "blocks.0.1",
    ]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_conversion_keeps_parameters_ties_and_integer_buffers(dtype):
    model = Tied()
    model.register_buffer("steps", sg.zeros(1, dtype="int64"))
    weight = model.first.weight
    assert model.to(dtype) is model
    assert model.first.weight is weight is model.second.weight
    assert {str(tensor.dtype) for name, tensor in model.state_dict().items() if name != "steps"} == {dtype}
    assert str(model.steps.dtype) == "int64"
    assert weight.requires_grad
    assert weight.is_leaf


def test_conversion_leaves_integers_and_ties_of_buffers():
    model = nn.Module()
    model.first, model.second = nn.Module(), nn.Module()
    model.first.register_buffer("shared", sg.ones(2))
    model.second.register_buffer("shared", model.first.shared)
    model.order = nn.Parameter(sg.tensor([2, 1]), requires_grad=False)
    model.half()
    assert model.first.shared is model.second.shared
    assert (model.first.shared.dtype, model.order.dtype) == (sg.float16, sg.int64)
    with pytest.raises(TypeError, match="data: got int64 for a tensor that requires a gradient"):
        nn.Linear(2, 2).to("int64")


def test_gradients_are_forgotten_or_zeroed():
    model = nn.Linear(2, 1)
    model(sg.ones(1, 2)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert model.weight.grad.tolist() == [[0.0, 0.0]]
    model.zero_grad()
    assert model.weight.grad is None


def test_freezing_reaches_every_parameter():
    model = Tied().requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model(sg.ones(1, 3)).requires_grad


def test_apply_visits_children_first():
    seen = []
    Tied().apply(lambda module: seen.append(type(module).__name__))
    assert seen == [
        "Linear",
        "Linear",
        *["Tanh", "Dropout", "Sequential"] * 2,
        "ModuleList",
        "Tied",
    ]


def test_hooks_may_replace_arguments_and_results_until_removed():
    layer = nn.Identity()
    calls = []
    handles = [
        layer.register_forward_pre_hook(lambda module, args: args[0] + 1),
        layer.register_forward_hook(lambda module, args, output: output * 10),
        layer.register_forward_hook(lambda module, args, output: calls.append((args[0], output))),
        layer.register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0] * 2,), kwargs), prepend=True, with_kwargs=True
        ),
    ]
    assert layer(3) == 70
    assert calls == [(7, 70)]
    for handle in handles:
        handle.remove()
        handle.remove()
    assert layer(3) == 3
    with layer.register_forward_hook(lambda *_: 0):
        assert layer(3) == 0
    assert layer(3) == 3


def test_a_hook_may_remove_itself():
    layer = nn.Identity()
    handle = layer.register_forward_hook(lambda *_: handle.remove())
    assert layer(1) == layer(2) - 1 == 1


def test_the_module_that_runs_is_known_by_its_path():
    model = nn.Sequential(nn.ModuleDict({"inner": nn.Identity()}))
    model.forward = lambda x: model[0]["inner"](x)
    seen = []
    model[0]["inner"].register_forward_hook(lambda *_: seen.append(labels.current.module))
    model(1)
    assert seen == ["0.inner"]
    assert labels.current.module is None
    model.add_module("later", model[0]["inner"])
    del model[0]["inner"]
    model.forward = lambda x: model.later(x)
    model(1)
    assert seen == ["0.inner", "later"]


def test_labels_return_to_what_they_were_after_an_error_and_are_per_thread():
    def fail(*_):
        raise ValueError(labels.current.module)

    model = nn.Sequential(nn.Identity())
    model[0].register_forward_hook(fail)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append((labels.current.module, labels.current.step)))
    with labels.step_scope(7), labels.module_scope("outer"):
        with pytest.raises(ValueError, match="0"):
            model(1)
        assert (labels.current.module, labels.current.step) == ("outer", 7)
        thread.start()
        thread.join()
    assert elsewhere == [(None, None)]
    assert (labels.current.module, labels.current.step) == (None, None)


def test_a_hook_that_a_pre_hook_registers_runs_in_the_same_call():
    seen = []
    model = nn.Identity()

    def before(module, args):
        module.register_forward_hook(lambda module, args, result: seen.append(result))

    model.register_forward_pre_hook(before)
    model(3)
    assert seen == [3]


def test_an_always_called_hook_runs_when_a_pre_hook_or_an_interrupt_ended_the_call():
    seen = []
    model = nn.Identity()
    model.register_forward_hook(lambda module, args, result: seen.append(result), always_call=True)

    def stop(module, args):
        raise KeyboardInterrupt

    model.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        model(3)
    assert seen == [None]


def test_an_always_called_hook_that_raises_does_not_hide_why_forward_failed():
    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("forward")

    def fails(module, args, result):
        raise OSError("a hook's own")

    seen = []
    model = Failing()
    model.register_forward_hook(fails, always_call=True)
    model.register_forward_hook(lambda module, args, result: seen.append(result), always_call=True)
    with (
        pytest.warns(UserWarning, match="silenced as another error was raised in forward: OSError: a hook's own"),
        pytest.raises(ValueError, match="forward"),
    ):
        model(3)
    assert seen == [None]


def test_a_module_without_forward_says_which():
    class Silent(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Silent"):
        Silent()(1)


@pytest.mark.parametrize("other", [nn.Parameter(sg.ones(1)), nn.Buffer(sg.ones(1)), None, "deleted"])
def test_a_sub_module_whose_name_something_else_took_has_no_path(other):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()
            self.also = (self.inner,)

        def forward(self, x):
            return self.also[0](x)

    seen = []
    model = Outer()
    model.inner.register_forward_hook(lambda *_: seen.append(labels.current.module))
    model(1)
    if other == "deleted":
        del model.inner
    else:
        model.inner = other
    model(1)
    assert seen == ["inner", ""]


def test_a_deep_copy_is_independent_and_keeps_ties():
    model = Tied()
    model(sg.ones(1, 3))
    twin = copy.deepcopy(model)
    assert twin.first.weight is twin.second.weight
    assert twin.first.weight is not model.first.weight
    seen = []
    twin.first.register_forward_hook(lambda *_: seen.append(labels.current.module))
    twin(sg.ones(1, 3))
    model(sg.ones(1, 3))
    assert seen == ["first"]


def test_the_representation_is_pytorchs():
    assert repr(Tied()) == (
        "Tied(\n"
        "  (first): Linear(in_features=3, out_features=3, bias=True)\n"
        "  (second): Linear(in_features=3, out_features=3, bias=False)\n"
        "  (blocks): ModuleList(\n"
        "    (0-1): 2 x Sequential(\n"
        "      (0): Tanh()\n"
        "      (1): Dropout(p=0.5, inplace=False)\n"
        "    )\n"
        "  )\n"
        ")"
    )


def test_a_module_list_behaves_as_a_list():
    a, b, c = (nn.Identity() for _ in range(3))
    modules = nn.ModuleList([a]).append(c)
    modules.insert(1, b)
    assert [*modules] == [a, b, c]
    assert (modules[-1], [*modules[1:]]) == (c, [b, c])
    modules[-1] = a
    del modules[0]
    assert [*modules] == [b, a]
    assert [name for name, _ in modules.named_children()] == ["0", "1"]


def test_a_module_dict_behaves_as_a_dict():
    a, b = nn.Identity(), nn.Identity()
    modules = nn.ModuleDict({"a": a})
    modules["b"] = b
    assert ([*modules], [*modules.values()], "b" in modules, len(modules)) == (["a", "b"], [a, b], True, 2)
    assert modules.pop("a") is a
    assert dict(modules.items()) == {"b": b}


def test_a_sequence_can_be_named_sliced_and_extended():
    a, b = nn.Tanh(), nn.ReLU()
    modules = nn.Sequential({"a": a, "b": b})
    assert [name for name, _ in modules.named_children()] == ["a", "b"]
    assert [*modules[1:]] == [b]
    assert modules[0] is a
    assert len(nn.Sequential(a).append(b)) == 2


def test_modules_parameters_and_buffers_are_got_by_path():
    model = Tied()
    assert model.get_submodule("blocks.0.1") is model.blocks[0][1]
    assert model.get_submodule("") is model
    assert model.get_parameter("first.weight") is model.first.weight
    assert model.get_buffer("mean") is model.mean
    replacement = nn.ReLU()
    model.set_submodule("blocks.1.0", replacement)
    assert model.blocks[1][0] is replacement


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.get_submodule("first.bias"), AttributeError, "`bias` is not an nn.Module"),
        (lambda m: m.get_submodule("third.layer"), AttributeError, "Tied has no attribute `third`"),
        (lambda m: m.get_parameter("mean"), AttributeError, "`mean` is not an nn.Parameter"),
        (lambda m: m.get_parameter("first.scale"), AttributeError, "Linear has no attribute `scale`"),
        (lambda m: m.get_buffer("first.weight"), AttributeError, "`weight` is not a buffer"),
        (lambda m: m.set_submodule("blocks.7", nn.ReLU()), AttributeError, "ModuleList has no sub-module `7`"),
        (lambda m: m.set_submodule("", nn.ReLU()), ValueError, "cannot replace itself"),
        (lambda m: m.register_buffer("forward", sg.ones(1)), KeyError, "attribute 'forward' already exists"),
        (lambda m: m.register_parameter("mean", nn.Parameter(sg.ones(1))), KeyError, "attribute 'mean' already exists"),
        (lambda m: m.add_module(3, None), TypeError, "got int as a name"),
        (lambda m: m.load_state_dict(3), TypeError, "Expected state_dict to be dict-like, got <class 'int'>"),
        (lambda m: m.get_extra_state(), NotImplementedError, "Tied: defines no get_extra_state"),
        (lambda m: m.set_extra_state(1), NotImplementedError, "Tied: defines no set_extra_state"),
    ],
)
def test_what_a_module_does_not_have_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(Tied())


def test_a_buffer_registers_itself():
    model = nn.Module()
    model.kept, model.scratch = nn.Buffer(sg.ones(2)), nn.Buffer(sg.ones(3), persistent=False)
    assert [name for name, _ in model.named_buffers()] == ["kept", "scratch"]
    assert list(model.state_dict()) == ["kept"]
    twin = copy.deepcopy(model)
    twin.again = twin.kept
    assert list(twin.state_dict()) == ["kept", "again"]


def test_state_goes_under_a_prefix_into_a_destination():
    found = {"before": 1}
    assert Tied().first.state_dict(destination=found, prefix="layer.") is found
    assert list(found) == ["before", "layer.weight", "layer.bias"]


def test_loaded_tensors_may_take_the_place_of_the_modules_own():
    model = Tied()
    state = {key: sg.ones(*value.shape, dtype="float64") for key, value in model.state_dict().items()}
    model.first.bias.requires_grad_(False)
    model.load_state_dict(state, assign=True)
    assert {str(value.dtype) for value in model.state_dict().values()} == {"float64"}
    assert model.mean is state["mean"]
    assert model.first.weight.storage is state["first.weight"].storage
    assert isinstance(model.first.weight, nn.Parameter)
    assert (model.first.weight.requires_grad, model.first.bias.requires_grad) == (True, False)


def test_what_loading_found_is_shown_as_in_pytorch():
    model = Tied()
    assert repr(model.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
    found = nn.Tanh().load_state_dict({"a": sg.ones(1)}, strict=False)
    assert repr(found) == "IncompatibleKeys(missing_keys=[], unexpected_keys=['a'])"


def test_other_state_travels_with_the_tensors():
    class Counting(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.count = count

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    source, target = nn.Sequential(Counting(3)), nn.Sequential(Counting(0))
    state = source.state_dict()
    assert state == {"0._extra_state": {"count": 3}}
    target.load_state_dict(state)
    assert target[0].count == 3
    with pytest.raises(StateDictError, match=r'Missing key.* "0\._extra_state"'):
        target.load_state_dict({})


def test_hooks_see_and_change_state_on_its_way():
    calls = []
    model = nn.Sequential(nn.Linear(2, 1))
    layer = model[0]
    layer.register_state_dict_pre_hook(lambda module, prefix, keep_vars: calls.append((prefix, keep_vars)))
    handle = layer.register_state_dict_post_hook(
        lambda module, state, prefix, metadata: state.update({prefix + "new": state.pop(prefix + "bias")})
    )
    state = model.state_dict()
    assert list(state) == ["0.weight", "0.new"]
    assert calls == [("0.", False)]
    handle.remove()
    with pytest.raises(StateDictError, match=r'Missing key.* "0\.bias"'):
        model.load_state_dict(state)

    def rename(module, state, prefix, metadata, strict, missing, unexpected, errors):
        assert (module, prefix, strict, missing, unexpected, errors) == (layer, "0.", False, [], [], [])
        state[prefix + "bias"] = state.pop(prefix + "new")

    layer.register_load_state_dict_pre_hook(rename)
    layer.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.append("told"))
    assert model.load_state_dict(state, strict=False).missing_keys == ["told"]
    assert list(state) == ["0.weight", "0.new"]
    layer.register_load_state_dict_post_hook(lambda module, keys: keys)
    with pytest.raises(StateDictError, match="change the keys in place"):
        model.load_state_dict(state, strict=False)


def test_strict_loading_looks_at_the_keys_that_hooks_after_it_leave():
    model = nn.Sequential(nn.Linear(2, 1))
    state = {"0.weight": sg.full((1, 2), 7.0), "1.weight": sg.ones(1)}

    def excuse(module, keys):
        assert model[0].weight.tolist() == [[7.0, 7.0]]  # all is loaded by then
        keys.missing_keys.clear()
        keys.unexpected_keys.clear()

    handle = model.register_load_state_dict_post_hook(excuse)
    assert model.load_state_dict(state) == ([], [])
    handle.remove()
    with sg.no_grad():
        model[0].weight.zero_()
    with pytest.raises(StateDictError, match=r'Missing .*: "0\.bias"\.\n\tUnexpected .*: "1\.weight"'):
        model.load_state_dict(state)
    assert model[0].weight.tolist() == [[0.0, 0.0]]

    whole = {"0.weight": sg.full((1, 2), 7.0), "0.bias": sg.ones(1)}
    model[0].register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.append("told"))
    with pytest.raises(StateDictError, match=r'Missing key\(s\) in state_dict: "told"'):
        model.load_state_dict(whole)
    assert model.load_state_dict(whole, strict=False) == (["told"], [])
    with pytest.raises(StateDictError, match=r"size mismatch for 0\.bias"):
        model.load_state_dict({**whole, "0.weight": sg.zeros(1, 2), "0.bias": sg.ones(2)})
    assert model[0].weight.tolist() == [[7.0, 7.0]]


def test_a_hook_may_be_called_although_forward_raised():
    seen = []

    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    model = Failing()
    model.register_forward_hook(lambda *_: seen.append("usual"))
    model.register_forward_hook(lambda module, args, output: seen.append((args, output)), always_call=True)
    with pytest.raises(ValueError, match="no"):
        model(1)
    assert seen == [((1,), None)]
    working = nn.Identity()
    working.register_forward_hook(lambda module, args, output: seen.append(output), always_call=True)
    working(2)
    assert seen[1:] == [2]


def test_converting_by_type_and_staying_on_the_host():
    model = nn.Linear(2, 2)
    assert model.type("float64").weight.dtype == sg.float64
    assert model.cpu() is model


def test_a_module_may_save_state_of_its_own():
    class Counted(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}steps"] = sg.tensor(3)

    state = nn.Sequential(Counted(1, 1)).state_dict()
    assert list(state) == ["0.weight", "0.bias", "0.steps"]


def test_memory_without_values_keeps_shapes_and_what_is_trained():
    layer = nn.Linear(2, 3).to_empty(device="cpu")
    assert (layer.weight.shape, layer.weight.requires_grad, layer.weight.is_leaf) == ((3, 2), True, True)
    assert layer.share_memory() is layer
    assert sum(1 for _ in nn.ModuleList([layer, layer]).modules(remove_duplicate=False)) == 3


def test_a_device_that_is_not_there_is_refused_and_can_be_asked_for():
    assert not sg.cuda.is_available()
    assert sg.cuda.device_count() == 0
    for move in (nn.Linear(1, 1).cuda, sg.ones(1).cuda):
        with pytest.raises(DeviceError, match="device: got 'cuda'; "):
            move()
    x = sg.ones(1)
    assert x.pin_memory() is x.share_memory_() is x
    assert x.is_cpu


def test_a_class_may_name_itself():
    class Named(nn.Linear):
        def _get_name(self):
            return "Dense"

    assert repr(Named(1, 2)) == "Dense(in_features=1, out_features=2, bias=True)"


def double_arguments(module: nn.Module, args: tuple[sg.Tensor, ...]) -> tuple[sg.Tensor, ...]:
    return tuple(argument * 2 for argument in args)


def negate_result(module: nn.Module, args: tuple[sg.Tensor, ...], result: sg.Tensor) -> sg.Tensor:
    return -result


def test_a_pickled_module_has_its_hooks_and_takes_more():
    module = nn.Identity()
    module.register_forward_pre_hook(double_arguments)
    module.register_forward_hook(negate_result)
    again = pickle.loads(pickle.dumps(module))
    assert again(sg.ones(1)).item() == -2
    numbers = set(again._forward_hooks)
    next_number = again.register_forward_hook(negate_result).id
    pickled = nn.Identity()
    pickled._forward_hooks[next_number + 1] = negate_result  # as another process may have numbered it
    handle = pickled.register_forward_hook(lambda *_: None)
    assert len(pickled._forward_hooks) == 2
    assert handle.id in pickled._forward_hooks
    assert numbers <= set(again._forward_hooks)
