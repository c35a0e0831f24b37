"""Optimizers whose state is in fewer bits: which parameters', how it is saved, loaded and converted."""

import copy
import io

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn, optim
from spillgrad.errors import ArgumentError, StateDictError
from spillgrad_kernels.cpu import state_codes
from spillgrad_kernels.tables.state_codes import Encoded

OPTIMIZERS = {
    "Adam": (optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {"lr": 1e-2}),
    "amsgrad": (optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
    "Lion": (optim.Lion, {"lr": 1e-3}),
    "SGD": (optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
}
FORMATS = ("float32", "bf16", "int8")
SHAPE = (70, 100)


def made(kind, options, state, seed=0, dtype="float32"):
    generator = np.random.default_rng(seed)
    param = nn.Parameter(sg.tensor(generator.standard_normal(SHAPE)).to(dtype))
    return param, kind([param], state=state, **options)


def steps(param, optimizer, start, stop):
    for step in range(start, stop):
        drawn = np.random.default_rng([7, step]).standard_normal(SHAPE)
        param.grad = sg.tensor(drawn).to(param.dtype)
        optimizer.step()


def decoded(optimizer, param):
    """The state of a parameter as float32 arrays, by name."""
    state, found = optimizer.state[param], {}
    for name, is_signed in type(optimizer).encodable.items():
        if f"{name}_scale" in state:
            kind = "signed" if is_signed else "unsigned"
            codes, scales = state[name].numpy(), state[f"{name}_scale"].numpy()
            found[name] = state_codes.decode(Encoded(kind, codes, scales))
        elif name in state:
            found[name] = state[name].numpy().astype(np.float32)
    return found


def equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        same = value.numpy().tobytes() == other[key].numpy().tobytes() if isinstance(value, sg.Tensor) else None
        assert same if same is not None else value == other[key], key


@pytest.mark.parametrize("state", ["bf16", "int8"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_in_fewer_bits_stays_near_the_exact_state(name, state):
    exact, few = made(*OPTIMIZERS[name], "float32"), made(*OPTIMIZERS[name], state)
    for each in (exact, few):
        steps(*each, 0, 20)
    assert few[1].state_formats() == {few[0]: state}
    for key, value in decoded(few[1], few[0]).items():
        wanted = decoded(exact[1], exact[0])[key]
        assert np.abs(value - wanted).mean() < 0.05 * np.abs(wanted).mean(), key
    moved = exact[0].numpy() - np.random.default_rng(0).standard_normal(SHAPE)
    assert np.abs(few[0].numpy() - exact[0].numpy()).mean() < 0.05 * np.abs(moved).mean()


def test_state_in_8_bits_takes_a_byte_an_element_and_a_scale_a_block():
    param, optimizer = made(optim.AdamW, {}, "int8")
    (group,) = optimizer.param_groups
    assert optimizer.state_bytes(param, group) == 2 * (7000 + 4 * 28)
    steps(param, optimizer, 0, 1)
    state = optimizer.state[param]
    assert {key: (str(value.dtype), tuple(value.shape)) for key, value in state.items() if key != "step"} == {
        "exp_avg": ("uint8", SHAPE), "exp_avg_scale": ("float32", (28,)),
        "exp_avg_sq": ("uint8", SHAPE), "exp_avg_sq_scale": ("float32", (28,)),
    }  # fmt: skip
    assert sum(value.nbytes for value in state.values() if isinstance(value, sg.Tensor)) == optimizer.state_bytes(
        param, group
    )


MODEL = {
    "linear": (lambda: nn.Linear(100, 70).weight, "int8"),
    "half": (lambda: nn.Linear(100, 70, dtype="bfloat16").weight, "int8"),
    "bias": (lambda: nn.Linear(4, 9000).bias, "float32"),
    "norm": (lambda: nn.LayerNorm(8192).weight, "float32"),
    "small": (lambda: nn.Linear(63, 65).weight, "float32"),
    "just large enough": (lambda: nn.Linear(64, 64).weight, "int8"),
    "embedding": (lambda: nn.Embedding(500, 32).weight, "float32"),
    "copy of an embedding": (lambda: copy.deepcopy(nn.Embedding(500, 32)).weight, "float32"),
    "double": (lambda: nn.Linear(100, 70, dtype="float64").weight, "float32"),
    "complex": (lambda: nn.Parameter(sg.zeros(100, 100, dtype="complex64")), "float32"),
}


@pytest.mark.parametrize("name", MODEL)
def test_small_and_sensitive_parameters_keep_exact_state(name):
    make, expected = MODEL[name]
    param = make()
    optimizer = optim.AdamW([param], state="int8")
    assert optimizer.state_formats() == {param: expected}
    param.grad = sg.ones_like(param)
    optimizer.step()
    assert (str(optimizer.state[param]["exp_avg"].dtype) == "uint8") == (expected == "int8")


def test_an_option_a_group_and_a_parameter_can_say_otherwise():
    table, small, plain, marked = nn.Embedding(500, 32).weight, nn.Linear(8, 8).weight, *[
        nn.Linear(100, 70).weight for _ in range(2)
    ]  # fmt: skip
    marked.exact_state = True
    groups = [
        {"params": [table], "keep_exact": False},
        {"params": [small], "state": "bf16", "keep_exact": False},
        {"params": [plain], "state": "float32"},
        {"params": [marked]},
    ]
    optimizer = optim.AdamW(groups, state="int8")
    assert list(optimizer.state_formats().values()) == ["int8", "bf16", "float32", "float32"]
    assert "state: bf16" in repr(optimizer)
    optimizer.set_state_format("bf16")  # groups of another format keep it
    assert list(optimizer.state_formats().values()) == ["bf16", "bf16", "float32", "float32"]
    assert set(optim.AdamW([table, small], state="int8", keep_exact=False).state_formats().values()) == {"int8"}


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("state", FORMATS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loaded_state_is_converted_to_the_optimizers_own_format(name, state, to):
    param, optimizer = made(*OPTIMIZERS[name], state)
    steps(param, optimizer, 0, 3)
    other_param, other = made(*OPTIMIZERS[name], to)
    with sg.no_grad():
        other_param.copy_(param)
    other.load_state_dict(optimizer.state_dict())
    assert other.state_formats() == {other_param: to}
    if state == to:
        equal(optimizer.state[param], other.state[other_param])
        for each in ((param, optimizer), (other_param, other)):
            steps(*each, 3, 6)
        assert param.numpy().tobytes() == other_param.numpy().tobytes()
        equal(optimizer.state[param], other.state[other_param])
        return
    for key, value in decoded(other, other_param).items():
        wanted = decoded(optimizer, param)[key]
        assert np.abs(value - wanted).mean() < 0.02 * np.abs(wanted).mean(), key
    steps(other_param, other, 3, 5)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("state", FORMATS)
def test_state_that_exists_is_converted_as_loaded_state_is(state, to):
    param, optimizer = made(optim.AdamW, {}, state)
    steps(param, optimizer, 0, 3)
    other_param, other = made(optim.AdamW, {}, to)
    other.load_state_dict(optimizer.state_dict())
    optimizer.set_state_format(to)
    equal(optimizer.state[param], other.state[other_param])
    steps(param, optimizer, 3, 5)


def test_checkpoints_copies_and_pickles_go_on_bit_for_bit(tmp_path):
    model = nn.Sequential(nn.Embedding(50, 100), nn.Linear(100, 70))
    weight = model[1].weight
    optimizer = optim.AdamW(model.parameters(), state="int8")
    model(sg.tensor([[1, 2, 3]])).square().sum().backward()
    optimizer.step()
    sg.save_checkpoint(tmp_path, model, optimizer)
    copied_model, copied = copy.deepcopy((model, optimizer))
    other_model = nn.Sequential(nn.Embedding(50, 100), nn.Linear(100, 70))
    other = optim.AdamW(other_model.parameters(), state="int8")
    sg.load_checkpoint(tmp_path, other_model, other)
    file = io.BytesIO()
    sg.save(optimizer.state_dict(), file)
    file.seek(0)
    third_model = copy.deepcopy(model)
    third = optim.AdamW(third_model.parameters(), state="int8")
    third.load_state_dict(sg.load(file))
    for each_model, each in ((copied_model, copied), (other_model, other), (third_model, third)):
        equal(optimizer.state[weight], each.state[each_model[1].weight])
        assert list(each.state_formats().values()) == ["float32", "int8", "float32"]


def spoilt(**changes):
    def change(state):
        for key, value in changes.items():
            if value is None:
                del state[key]
            else:
                state[key] = value
        return state

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoilt(exp_avg_scale=None), "exp_avg without exp_avg_scale"),
        (spoilt(exp_avg=None), "exp_avg_scale alone"),
        (spoilt(exp_avg_scale=sg.zeros(27)), r"exp_avg_scale \(got \(27,\), wanted \(28,\)\)"),
        (spoilt(exp_avg=sg.zeros(*SHAPE)), "exp_avg_scale for float32"),
    ],
)
def test_encoded_state_that_does_not_fit_is_refused_and_nothing_changes(change, message):
    param, optimizer = made(optim.AdamW, {}, "int8")
    steps(param, optimizer, 0, 1)
    saved = optimizer.state_dict()
    saved["state"][0] = change(dict(saved["state"][0]))
    other_param, other = made(optim.AdamW, {}, "int8")
    with pytest.raises(StateDictError, match=message):
        other.load_state_dict(saved)
    assert not other.state.get(other_param)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: optim.AdamW(p, state="fp8"), "AdamW: got state='fp8'; wanted 'float32', 'bf16' or 'int8'"),
        (lambda p: optim.AdamW([{"params": p, "state": 8}]), "AdamW: got state=8"),
        (lambda p: optim.Adagrad(p, state="int8"), "Adagrad: got state='int8'; its state is exact; Adam, AdamW"),
        (lambda p: optim.NAdam([{"params": p, "state": "bf16"}]), "NAdam: got state='bf16'; its state is exact"),
        (lambda p: optim.Muon(p).set_state_format("int8"), "Muon: got state='int8'; its state is exact"),
        (lambda p: optim.Lion(p).set_state_format("int4"), "Lion: got state='int4'"),
    ],
)
def test_what_is_no_format_and_optimizers_without_one_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make([nn.Parameter(sg.zeros(*SHAPE))])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("state", ["bf16", "int8"])
def test_parameters_in_half_precision_have_state_in_fewer_bits(dtype, state):
    param, optimizer = made(optim.AdamW, {"lr": 1e-2}, state, dtype=dtype)
    wide, exact = made(optim.AdamW, {"lr": 1e-2}, "float32")
    for each in ((param, optimizer), (wide, exact)):
        steps(*each, 0, 10)
    assert np.abs(param.numpy().astype(np.float32) - wide.numpy()).mean() < 0.01


def test_small_second_moments_beside_large_ones_make_no_huge_steps():
    """A block's scale is that of its largest number; a second moment of 0 would leave eps alone to divide by."""
    drawn = np.random.default_rng(3)
    sizes = np.where(np.arange(256) % 2, 1.0, 1e-4)
    param = nn.Parameter(sg.zeros(64, 256))
    optimizer = optim.AdamW([param], lr=1e-3, state="int8")
    for _ in range(100):
        param.grad = sg.tensor((drawn.standard_normal((64, 256)) * sizes).astype(np.float32))
        optimizer.step()
    assert abs(param.detach().numpy()).max() < 0.1  # a step is about lr, up or down


@pytest.mark.parametrize("scales", [sg.zeros(28, dtype="bfloat16"), sg.zeros(28, dtype="float64"), None, 1.0], ids=str)
def test_scales_of_another_kind_are_refused(scales):
    param, optimizer = made(optim.Lion, {"lr": 1e-3}, "int8")
    steps(param, optimizer, 0, 1)
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg_scale"] = scales
    with pytest.raises(StateDictError, match="exp_avg_scale"):
        optimizer.load_state_dict(saved)
