import copy
import warnings

import pytest

import spillgrad as sg
from spillgrad import labels, nn
from spillgrad.errors import DeviceError, DtypeError, OperandError


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


def test_converting_by_type_and_staying_on_the_host():
    model = nn.Linear(2, 2)
    assert model.type("float64").weight.dtype == sg.float64


@pytest.mark.parametrize("kind", [sg.float64, "float64", sg.DoubleTensor, "torch.DoubleTensor"])
def test_type_converts_integers_too(kind):
    model = nn.BatchNorm1d(2)
    model.register_buffer("mask", sg.tensor([True, False]))
    model.weight.grad = sg.ones(2)
    assert model.type(kind) is model
    assert {tensor.dtype for tensor in (*model.state_dict().values(), model.weight.grad)} == {sg.float64}


def test_type_gives_no_parameter_that_requires_a_gradient_integers():
    model = nn.Linear(2, 2)
    with pytest.raises(DtypeError, match=r"nn\.Module\.type: got int64; .* requires_grad_"):
        model.type(sg.int64)
    assert {parameter.dtype for parameter in model.parameters()} == {sg.float32}
    assert model.requires_grad_(False).type(sg.int64).weight.dtype == sg.int64
    with pytest.raises(TypeError, match="got None; give a dtype"):
        model.type(None)
    assert model.cpu() is model


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


def with_complex_numbers():
    module = nn.Module()
    module.turn = nn.Parameter(sg.tensor([1 + 2j]))
    module.size = nn.Parameter(sg.ones(1))
    for parameter in module.parameters():
        parameter.grad = sg.ones_like(parameter)
    module.register_buffer("count", sg.tensor([3]))
    return module


DISCARDED, NEW = "Casting complex values to real discards the imaginary part", "Complex modules are a new feature"


# As PyTorch's; a module's integers keep their dtype.
@pytest.mark.parametrize(
    ("convert", "turn", "size", "warning"),
    [
        (lambda module: module.to(sg.complex128), "complex128", "complex128", NEW),
        (lambda module: module.to(dtype=sg.float64), "float64", "float64", DISCARDED),
        (lambda module: module.to("cpu", sg.float16), "float16", "float16", DISCARDED),
        (lambda module: module.to(sg.ones(1, dtype="float64")), "float64", "float64", DISCARDED),
        (lambda module: module.to("cpu"), "complex64", "float32", None),
        (lambda module: module.cpu(), "complex64", "float32", None),
        (lambda module: module.float(), "complex64", "float32", None),
        (lambda module: module.double(), "complex64", "float64", None),
        (lambda module: module.half(), "complex64", "float16", None),
        (lambda module: module.bfloat16(), "complex64", "bfloat16", None),
    ],
)
def test_to_converts_complex_tensors_and_the_methods_of_real_dtypes_leave_them(convert, turn, size, warning):
    module = with_complex_numbers()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert convert(module) is module
    assert [str(module.turn.dtype), str(module.size.dtype), str(module.count.dtype)] == [turn, size, "int64"]
    assert [str(parameter.grad.dtype) for parameter in module.parameters()] == [turn, size]
    assert module.turn.item() == (1 + 2j if turn.startswith("complex") else 1)
    assert {str(found.message).startswith(warning or "none") for found in seen} == ({True} if warning else set())


@pytest.mark.parametrize("dtype", [sg.int64, sg.bool, "int32"])
def test_a_module_of_integers_is_refused(dtype):
    module = with_complex_numbers()
    with pytest.raises(TypeError, match=r"nn\.Module\.to only accepts floating point or complex dtypes"):
        module.to(dtype)
    assert str(module.turn.dtype) == "complex64"


def test_a_sparse_tensor_is_a_buffer_that_no_file_holds():
    model = nn.Module()
    with pytest.raises(TypeError, match="persistent=False"):
        model.register_buffer("graph", sg.eye(3).to_sparse())
    model.register_buffer("graph", sg.eye(3).to_sparse(), persistent=False)
    assert model.double().graph.dtype == sg.float64
    assert model.to(sg.float16).graph.dtype == sg.float16
    assert model.state_dict() == {}
    assert [name for name, _ in copy.deepcopy(model).named_buffers()] == ["graph"]
    with pytest.raises(OperandError, match="wanted a sparse tensor"):
        model.graph.data = sg.eye(3)
