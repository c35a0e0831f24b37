import copy
import math
import pickle
import tracemalloc
from collections import namedtuple

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn, optim
from spillgrad.errors import ArgumentError, ComplexDtypeError, GraphError, ShapeError, StateDictError
from spillgrad.optim import SGD, Adam, AdamW, Lion, Optimizer
from spillgrad.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from tests.peers import record
from tests.peers.programs import optimizers

STEPS = 5
RANDOM = np.random.default_rng(0)
START = RANDOM.standard_normal((3, 5))
GRADIENTS = RANDOM.standard_normal((STEPS, 3, 5))


def sgd_oracle(lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    p, velocity = START.copy(), None
    for g in GRADIENTS:
        g = g + weight_decay * p
        if momentum:
            velocity = g if velocity is None else momentum * velocity + (1 - dampening) * g
            g = g + momentum * velocity if nesterov else velocity
        p = p - lr * g
    return p


def adam_oracle(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False):
    p, m, v = START.copy(), 0.0, 0.0
    for step, g in enumerate(GRADIENTS, 1):
        if decoupled:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * (m / (1 - betas[0] ** step)) / (np.sqrt(v / (1 - betas[1] ** step)) + eps)
    return p


def lion_oracle(lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
    p, m = START.copy(), 0.0
    for g in GRADIENTS:
        p = p - lr * (np.sign(betas[0] * m + (1 - betas[0]) * g) + weight_decay * p)
        m = betas[1] * m + (1 - betas[1]) * g
    return p


# Optimizer, its options, the oracle's result.
CASES = [
    (SGD, {"lr": 0.1}, sgd_oracle(0.1)),
    (SGD, {"lr": 0.1, "weight_decay": 0.1}, sgd_oracle(0.1, weight_decay=0.1)),
    (SGD, {"lr": 0.1, "momentum": 0.9}, sgd_oracle(0.1, 0.9)),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}, sgd_oracle(0.1, 0.9, 0.3)),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, sgd_oracle(0.1, 0.9, nesterov=True)),
    (Adam, {}, adam_oracle()),
    (Adam, {"lr": 0.1, "weight_decay": 0.1, "eps": 0.1}, adam_oracle(0.1, weight_decay=0.1, eps=0.1)),
    (AdamW, {"lr": 0.1}, adam_oracle(0.1, weight_decay=0.01, decoupled=True)),
    (
        AdamW,
        {"lr": 0.1, "betas": (0.5, 0.6), "weight_decay": 0.3},
        adam_oracle(0.1, (0.5, 0.6), weight_decay=0.3, decoupled=True),
    ),
    (Lion, {}, lion_oracle()),
    (Lion, {"lr": 0.01, "betas": (0.5, 0.6), "weight_decay": 0.3}, lion_oracle(0.01, (0.5, 0.6), 0.3)),
]
IDS = [f"{kind.__name__} {options}" for kind, options, _ in CASES]
TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 3e-2, "bfloat16": 0.2}


def run(kind, options, dtype="float32", transposed=False, gradients=GRADIENTS):
    start = sg.tensor(START.T.copy()).t() if transposed else sg.tensor(START)
    param = nn.Parameter(start.to(dtype))
    optimizer = kind([param], **options)
    for gradient in gradients:
        param.grad = sg.tensor(gradient).to(dtype)
        optimizer.step()
    return param, optimizer


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("kind", "options", "expected"), CASES, ids=IDS)
def test_steps_follow_the_formula(kind, options, expected, dtype):
    param, _ = run(kind, options, dtype)
    assert str(param.dtype) == dtype
    np.testing.assert_allclose(
        param.numpy().astype(np.float64), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )


@pytest.mark.parametrize(("kind", "options", "expected"), CASES[2:6], ids=IDS[2:6])
def test_a_parameter_that_does_not_lie_in_order_is_updated_in_place(kind, options, expected):
    param, _ = run(kind, options, "float64", transposed=True)
    np.testing.assert_allclose(param.numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize(("kind", "options", "expected"), CASES, ids=IDS)
def test_a_resumed_optimizer_goes_on_bit_for_bit(kind, options, expected):
    straight, _ = run(kind, options)
    half, optimizer = run(kind, options, gradients=GRADIENTS[:2])
    resumed = nn.Parameter(half.detach().clone())
    other = kind([resumed], lr=7.0)
    other.load_state_dict(optimizer.state_dict())
    for gradient in GRADIENTS[2:]:
        resumed.grad = sg.tensor(gradient).to("float32")
        other.step()
    assert resumed.numpy().tobytes() == straight.numpy().tobytes()
    assert {key: value for key, value in other.param_groups[0].items() if key != "params"} == {
        key: value for key, value in optimizer.param_groups[0].items() if key != "params"
    }


# What they do in float64 is compared with PyTorch, in `tests/peers/programs/optimizers.py`.
OTHERS = [
    (optim.Adam, {"amsgrad": True}), (optim.NAdam, {}), (optim.RAdam, {"betas": (0.5, 0.6)}), (optim.Adamax, {}),
    (optim.Adagrad, {"lr": 0.1}), (optim.Adadelta, {"eps": 0.1}), (optim.RMSprop, {"centered": True, "eps": 0.1}),
    (optim.RMSprop, {"momentum": 0.5, "eps": 0.1}), (optim.Rprop, {}), (optim.ASGD, {"lr": 0.1, "t0": 2}),
    (optim.AdamW, {"maximize": True}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("kind", "options"), OTHERS)
def test_steps_of_another_dtype_follow_those_of_float64(kind, options, dtype):
    param, _ = run(kind, options, dtype)
    expected, _ = run(kind, options, "float64")
    assert str(param.dtype) == dtype
    near = TOLERANCES[dtype]
    np.testing.assert_allclose(param.numpy().astype(np.float64), expected.numpy(), rtol=near, atol=near)


@pytest.mark.parametrize(("kind", "options"), OTHERS)
def test_any_optimizer_resumes_bit_for_bit(kind, options):
    straight, _ = run(kind, options)
    half, optimizer = run(kind, options, gradients=GRADIENTS[:2])
    resumed = nn.Parameter(half.detach().clone())
    other = kind([resumed])
    other.load_state_dict(optimizer.state_dict())
    for gradient in GRADIENTS[2:]:
        resumed.grad = sg.tensor(gradient).to("float32")
        other.step()
    assert resumed.numpy().tobytes() == straight.numpy().tobytes()


def test_recorded_updates_are_refused_and_unknown_options_named():
    with pytest.raises(ArgumentError, match="differentiable=True"):
        optim.Adam([nn.Parameter(sg.ones(1))], differentiable=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'learning_rate'"):
        optim.SGD([nn.Parameter(sg.ones(1))], learning_rate=1.0)


def test_lbfgs_needs_a_closure_and_all_parameters_in_ram(tmp_path):
    layer = nn.Linear(2, 1)
    optimizer = optim.LBFGS(layer.parameters())
    with pytest.raises(ArgumentError, match="closure"):
        optimizer.step()
    sg.disk_offload(layer, optimizer, tmp_path, ram_budget="1MiB")
    with pytest.raises(GraphError, match="use another optimizer"):
        optimizer.step(lambda: layer(sg.ones(1, 2)).sum())


# What PyTorch's makes of them in three steps of up to four iterations.
@pytest.mark.parametrize(
    ("search", "lr", "loss", "turn", "size"),
    [
        (
            None, 0.3, 5.415805499091465,
            [-0.8040188978306446 + 0.26412619355839756j, 0.5687546312086182 - 0.4421403215333818j],
            [0.3306360196315837, 1.2758721558008554],
        ),
        (
            "strong_wolfe", 1.0, 5.551704989752483,
            [-1.1087882351449878 + 0.30503761230055904j, 1.2671517831518595 - 0.7333894101266979j],
            [0.3163361486570804, 1.059808263564739],
        ),
    ],
)  # fmt: skip
def test_lbfgs_moves_the_real_and_the_imaginary_parts_of_complex_parameters(search, lr, loss, turn, size):
    x = nn.Parameter(sg.tensor([-1.5 + 0.5j, 2 - 1j], dtype="complex128"))
    y = nn.Parameter(sg.tensor([0.3, -0.7], dtype="float64"))
    unused = nn.Parameter(sg.ones(3, dtype="complex128"))
    optimizer = optim.LBFGS([x, unused, y], lr=lr, history_size=3, max_iter=4, line_search_fn=search)

    def closure():
        optimizer.zero_grad()
        value = (1 - x[0]).abs() ** 2 + 10 * (x[1] - x[0] ** 2).abs() ** 2 + ((y - 0.5) ** 4).sum()
        value.backward()
        return value

    for _ in range(3):
        last = optimizer.step(closure)
    assert last.item() == pytest.approx(loss, rel=1e-9)
    assert x.tolist() == pytest.approx(turn, rel=1e-9)
    assert y.tolist() == pytest.approx(size, rel=1e-9)
    assert unused.tolist() == [1] * 3


@pytest.mark.parametrize(
    ("kind", "refused", "error", "words"),
    [
        (optim.Muon, sg.ones(2, 2, dtype="complex64"), ComplexDtypeError, "Muon does not support complex parameters"),
        (optim.Muon, sg.ones(2), ArgumentError, r"Muon only supports 2D parameters .* size: \(2,\)"),
        (optim.Adafactor, sg.ones(2, dtype="complex64"), ComplexDtypeError, "does not support complex parameters"),
    ],
)
def test_what_an_optimizer_cannot_update_is_refused_in_every_group(kind, refused, error, words):
    with pytest.raises(error, match=words):
        kind([nn.Parameter(refused)])
    optimizer = kind([nn.Parameter(sg.ones(2, 2))])
    with pytest.raises(error, match=words):
        optimizer.add_param_group({"params": [nn.Parameter(refused)]})
    assert len(optimizer.param_groups) == 1


def test_hooks_of_all_optimizers_surround_those_of_one():
    param = nn.Parameter(sg.ones(1))
    optimizer, seen = SGD([param]), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    with (
        register_optimizer_step_pre_hook(lambda *_: seen.append("all before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("all after")),
    ):
        optimizer.step()
    optimizer.step()
    assert seen == ["all before", "before", "after", "all after", "before", "after"]


def test_a_step_counts_as_an_in_place_change():
    param = nn.Parameter(sg.ones(3))
    y = (param * param).sum()
    param.grad = sg.ones(3)
    SGD([param], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified"):
        y.backward()


def test_parameters_without_gradient_are_left_alone():
    used, unused = nn.Parameter(sg.ones(2)), nn.Parameter(sg.ones(2))
    optimizer = AdamW([used, unused], lr=0.1)
    used.grad = sg.ones(2)
    optimizer.step()
    assert unused.tolist() == [1.0, 1.0]
    assert list(optimizer.state_dict()["state"]) == [0]


def test_groups_have_options_of_their_own():
    fast, slow = nn.Parameter(sg.ones(1)), nn.Parameter(sg.ones(1))
    optimizer = SGD([{"params": [fast], "lr": 0.5}, {"params": slow}], lr=0.1)
    fast.grad = slow.grad = sg.ones(1)
    optimizer.step()
    assert [fast.item(), slow.item()] == pytest.approx([0.5, 0.9])
    assert "lr: 0.5" in repr(optimizer)


def test_state_has_pytorchs_shape():
    _, optimizer = run(AdamW, {"lr": 0.1})
    state = optimizer.state_dict()
    assert set(state) == {"state", "param_groups"}
    assert state["state"][0]["step"] == STEPS
    assert state["state"][0]["exp_avg"].shape == state["state"][0]["exp_avg_sq"].shape == (3, 5)
    assert state["param_groups"] == [
        {
            "lr": 0.1,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 0.01,
            "amsgrad": False,
            "maximize": False,
            "decoupled_weight_decay": True,
            "params": [0],
        }
    ]


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned():
    param = nn.Parameter(sg.ones(1))
    optimizer = SGD([param], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (param * 3.0).sum()
        loss.backward()
        return loss

    with sg.no_grad():
        assert optimizer.step(closure).item() == 3.0
    assert param.item() == pytest.approx(0.7)


def test_gradients_are_forgotten_or_zeroed():
    param = nn.Parameter(sg.ones(2))
    param.grad = sg.ones(2)
    optimizer = SGD([param])
    optimizer.zero_grad(set_to_none=False)
    assert param.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert param.grad is None


def test_what_cannot_be_optimized_is_refused():
    param = nn.Parameter(sg.ones(1))
    with pytest.raises(ArgumentError, match="empty parameter list"):
        SGD([])
    with pytest.raises(TypeError, match="float"):
        SGD([1.0])
    with pytest.raises(ArgumentError, match="given twice"):
        SGD([param, param])
    with pytest.raises(ArgumentError, match="leaf"):
        SGD([param * 2])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SGD, {"lr": -1.0}),
        (SGD, {"momentum": math.nan}),
        (SGD, {"nesterov": True}),
        (AdamW, {"betas": (0.9, 1.0)}),
        (Adam, {"eps": -1e-8}),
        (Adam, {"weight_decay": -1.0}),
        (Lion, {"betas": (1.0, 0.9)}),
        (Lion, {"weight_decay": -1.0}),
    ],
)
def test_options_out_of_range_are_refused(kind, options):
    with pytest.raises(ArgumentError, match=kind.__name__):
        kind([nn.Parameter(sg.ones(1))], **options)


def test_state_of_another_model_is_refused_and_nothing_changes():
    _, optimizer = run(AdamW, {})
    state = optimizer.state_dict()
    two = AdamW([nn.Parameter(sg.ones(1)), nn.Parameter(sg.ones(1))])
    with pytest.raises(StateDictError, match=r"\[1\] parameters, wanted \[2\]"):
        two.load_state_dict(state)
    other = AdamW([nn.Parameter(sg.ones(4))], lr=0.5)
    with pytest.raises(StateDictError, match=r"0\.exp_avg \(got \(3, 5\), wanted \(4,\)\)"):
        other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.5
    assert other.state_dict()["state"] == {}


def test_state_of_another_kind_of_optimizer_is_refused_and_nothing_changes():
    _, optimizer = run(AdamW, {})
    other = sg.optim.SGD([nn.Parameter(sg.ones(3, 5))], lr=0.5, momentum=0.9)
    with pytest.raises(StateDictError, match=r"groups without .*momentum.*another kind of optimizer"):
        other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.5
    assert other.state_dict()["state"] == {}


def test_an_optimizer_is_one_method():
    class SignDescent(Optimizer):
        def update(self, param, grad, state, group):
            param.sub_(grad.sign() * group["lr"])

    param = nn.Parameter(sg.ones(2))
    param.grad = sg.tensor([3.0, -4.0])
    SignDescent([param], {"lr": 0.5}).step()
    assert param.tolist() == [0.5, 1.5]


def test_parameters_over_the_same_memory_are_updated_one_after_the_other():
    memory = sg.tensor([1.0, 2.0, 3.0])
    params = [memory.detach().requires_grad_(), memory.detach().requires_grad_(), memory[1:].detach().requires_grad_()]
    for param in params:
        param.grad = sg.ones_like(param)
    SGD(params, lr=0.5, weight_decay=1.0).step()
    expected = np.array([1.0, 2.0, 3.0])
    for start in (0, 0, 1):
        expected[start:] -= 0.5 * (1 + expected[start:])
    assert memory.tolist() == expected.tolist()
    assert memory._version == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_copies_of_parameters_over_the_same_memory_see_the_update_before(dtype):
    memory = sg.ones(8).to(dtype)
    params = [memory.detach().requires_grad_(), memory.detach().requires_grad_()]
    for param in params:
        param.grad = sg.ones_like(param)
    SGD(params, lr=0.25).step()
    assert memory.tolist() == [0.5] * 8
    square = sg.ones(4, 4)
    turned = [square.t().detach().requires_grad_(), square.t().detach().requires_grad_()]
    for param in turned:
        param.grad = sg.ones(4, 4)
    SGD(turned, lr=0.25).step()
    assert square.tolist() == [[0.5] * 4] * 4


@pytest.mark.parametrize(
    ("dtype", "state_dtype"), [("float32", "float64"), ("float64", "float32"), ("bfloat16", "float64")]
)
@pytest.mark.parametrize(("kind", "options"), [(SGD, {"lr": 0.1, "momentum": 0.9}), (AdamW, {"lr": 0.1}), (Lion, {})])
def test_state_of_another_dtype_is_converted(kind, options, dtype, state_dtype):
    def updated(dtype_of_state):
        param = sg.ones(5000, dtype=dtype, requires_grad=True)
        optimizer = kind([param], **options)
        for _ in range(2):
            param.grad = sg.full_like(param, 0.5)
            optimizer.step()
            state = optimizer.state[param]
            state.update({key: v.to(dtype_of_state) for key, v in state.items() if isinstance(v, sg.Tensor) and v.ndim})
        return param.to("float64").numpy(), optimizer.state[param]

    (got, state), (expected, _) = updated(state_dtype), updated(dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-2 if dtype == "bfloat16" else 1e-6)
    assert {v.dtype for v in state.values() if isinstance(v, sg.Tensor) and v.ndim} == {np.dtype(state_dtype)}


def test_memory_that_is_read_only_is_refused_and_left_alone():
    memory = np.frombuffer(np.ones(4, np.float32).tobytes(), np.float32)
    param = sg.from_numpy(memory).requires_grad_()
    param.grad = sg.ones(4)
    for kind in (SGD, AdamW):
        with pytest.raises(GraphError, match="read-only"):
            kind([param], lr=0.1).step()
    assert memory.tolist() == [1.0] * 4


def test_an_update_that_fails_leaves_those_before_it_done():
    params = [sg.ones(3, requires_grad=True), sg.ones(3, requires_grad=True)]
    params[0].grad, params[1]._grad = sg.ones(3), sg.ones(4)
    with pytest.raises(ShapeError, match="one shape"):
        SGD(params, lr=0.5).step()
    assert [p.tolist() for p in params] == [[0.5] * 3, [1.0] * 3]


def test_the_copies_of_half_precision_do_not_pile_up():
    params = [sg.zeros(1 << 20, dtype="bfloat16", requires_grad=True) for _ in range(12)]
    for param in params:
        param.grad = sg.ones_like(param)
    optimizer = AdamW(params)
    optimizer.step()
    tracemalloc.start()
    optimizer.step()
    nn.utils.clip_grad_norm_(params, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Four copies of 4 MiB for each of 12 parameters, of which two parameters' may wait.
    assert peak < 48 << 20


def test_states_of_pytorch_with_tensors_as_counts_and_without_later_flags_go_on_exactly():
    straight, optimizer = run(AdamW, {"lr": 0.1}, "float64", gradients=GRADIENTS[:3])
    state = optimizer.state_dict()
    state["state"][0]["step"] = sg.tensor(3.0)
    state["param_groups"] = [{k: v for k, v in state["param_groups"][0].items() if k not in ("amsgrad", "maximize")}]
    resumed = nn.Parameter(straight.detach().clone())
    other = AdamW([resumed])
    other.load_state_dict(state)
    assert other.state[resumed]["step"] == 3
    for gradient in GRADIENTS[3:]:
        resumed.grad = sg.tensor(gradient)
        other.step()
    whole, _ = run(AdamW, {"lr": 0.1}, "float64")
    assert resumed.numpy().tobytes() == whole.numpy().tobytes()


@pytest.mark.parametrize(
    "options", [(AdamW, {}), (sg.optim.Muon, {}), (sg.optim.Adafactor, {}), (SGD, {"momentum": 0.9})]
)
def test_loaded_state_takes_the_dtype_of_the_parameter(options):
    (kind, given), first, second = options, nn.Parameter(sg.ones(2, 2)), nn.Parameter(sg.ones(2, 2, dtype="float64"))
    optimizers = kind([first], **given), kind([second], **given)
    first.grad, second.grad = sg.ones(2, 2), sg.ones(2, 2, dtype="float64")
    optimizers[0].step()
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    optimizers[1].step()
    tensors = [value for value in optimizers[1].state[second].values() if isinstance(value, sg.Tensor)]
    assert [tensor.dtype for tensor in tensors] == [sg.float64] * len(tensors) != []


def test_loaded_state_of_an_optimizer_of_ones_own_keeps_its_types():
    Pair = namedtuple("Pair", "high low")

    class Own(Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    weight = nn.Parameter(sg.ones(2, dtype="bfloat16"))
    first, second = Own([weight]), Own([weight])
    first.state[weight] = {"master": sg.full((2,), 1.0001), "parts": Pair(sg.ones(1), [sg.zeros(1)])}
    second.load_state_dict(first.state_dict())
    found = second.state[weight]
    assert found["master"].dtype == sg.float32 and found["master"].tolist() == first.state[weight]["master"].tolist()
    assert type(found["parts"]) is Pair and found["parts"].low[0].tolist() == [0.0]


def test_copies_of_an_optimizer_have_no_hooks():
    optimizer, seen = SGD([nn.Parameter(sg.ones(1))]), []
    optimizer.register_step_post_hook(lambda *_: seen.append("hook"))
    pickle.loads(pickle.dumps(optimizer)).step()
    copy.deepcopy(optimizer).step()
    assert seen == []


def test_the_state_of_pytorchs_lbfgs_goes_on_here():
    recorded = dict(record.stored("torch")["optimizers.states_of_lbfgs"])
    (entries,) = recorded["state"]
    x = nn.Parameter(sg.tensor(recorded["x"][0]["values"], dtype="float64"))
    optimizer = sg.optim.LBFGS([x], lr=0.3, history_size=3, max_iter=4)
    state = optimizer.state_dict()
    entries = {key: optimizers._as_tensors(sg, value) for key, value in entries.items()}
    entries["ro"] = [sg.tensor(value, dtype="float64") for value in entries["ro"]]  # as PyTorch has them
    entries["H_diag"] = sg.tensor(entries["H_diag"], dtype="float64")
    state["state"] = {0: {**entries, "al": [None, *entries["ro"]]}}
    optimizer.load_state_dict(state)
    loss = optimizers._minimise(sg, x, optimizer)
    assert [loss, *x.tolist()] == pytest.approx([*recorded["loss"], *recorded["next"][0]["values"]], rel=1e-6)


def orthogonal(matrix, steps):
    """Return Newton's and Schulz's iteration of Muon in float64."""
    x = matrix.T if len(matrix) > len(matrix.T) else matrix
    x = x / np.linalg.norm(x)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.T if len(matrix) > len(matrix.T) else x


@pytest.mark.parametrize("shape", [(6, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("rule", [None, "match_rms_adamw"])
def test_muon_steps_along_orthogonal_matrices(shape, rule):
    random = np.random.default_rng(0)
    value, grads = random.standard_normal(shape), random.standard_normal((3, *shape))
    param, buffer = nn.Parameter(sg.tensor(value)), np.zeros(shape)
    optimizer = optim.Muon([param], lr=0.1, adjust_lr_fn=rule)
    scale = math.sqrt(max(1, shape[0] / shape[1])) if rule is None else 0.2 * math.sqrt(max(shape))
    for grad in grads:
        param.grad = sg.tensor(grad)
        optimizer.step()
        buffer = 0.95 * buffer + 0.05 * grad
        value = value * (1 - 0.1 * 0.1) - 0.1 * scale * orthogonal(0.05 * grad + 0.95 * buffer, 5)
    np.testing.assert_allclose(param.detach().numpy(), value, atol=0.01)
