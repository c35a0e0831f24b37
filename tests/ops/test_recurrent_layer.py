"""A recurrent layer as one operation against the same layer step by step."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.graph import saved_tensors_hooks
from spillgrad.ops.recurrent import STEPS, run_steps
from spillgrad.ops.recurrent_layer import run_layer
from tests.ops.checks import check_gradients

INPUTS, HIDDEN = 3, 5
# How many sequences run at each step: of one length, and of several.
COUNTS = [(2, 2, 2), (4, 2, 2, 1)]


def arguments(mode, counts, dtype="float64", bias=True, seed=0):
    """Data, the four parameters, and the states before the first step."""
    rng = np.random.default_rng(seed)
    rows = STEPS[mode][1] * HIDDEN
    shapes = [(sum(counts), INPUTS), (rows, INPUTS), (rows, HIDDEN), *[(rows,)] * (2 * bias)]
    shapes += [(counts[0], HIDDEN)] * (2 if mode == "LSTM" else 1)
    return [sg.tensor(rng.normal(size=shape), dtype=dtype, requires_grad=True) for shape in shapes]


def outcome(run, mode, counts, reverse, tensors):
    """The output and the last states, in one list."""
    data, weight_ih, weight_hh, *rest = tensors
    biases = rest[:2] if rest[0].ndim == 1 else [None, None]
    state = tuple(x for x in rest if x.ndim == 2)
    output, last = run(mode, data, counts, state, (weight_ih, weight_hh, *biases, None), reverse)
    return [output, *last]


def weighted(results, seed=1):
    """A number that depends on every result, each element with a factor of its own."""
    rng = np.random.default_rng(seed)
    return sum((x * sg.tensor(rng.normal(size=x.shape), dtype=x.dtype)).sum() for x in results)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("mode", STEPS)
def test_values_and_gradients_are_those_of_the_steps(mode, counts, bias, reverse):
    found = []
    for run in (run_layer, run_steps):
        tensors = arguments(mode, counts, bias=bias)
        results = outcome(run, mode, counts, reverse, tensors)
        found.append([*results, *sg.autograd.grad(weighted(results), tensors)])
    for one, steps in zip(*found, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), steps.detach().numpy(), 1e-10, 1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", STEPS)
def test_first_and_second_derivatives_are_differences(mode, reverse):
    counts = (3, 2)
    values = [x.detach().numpy() for x in arguments(mode, counts)]
    check_gradients(
        lambda *tensors: sg.cat([x.reshape(-1) for x in outcome(run_layer, mode, counts, reverse, tensors)]),
        *values, second=True,
    )  # fmt: skip


@pytest.mark.parametrize("mode", STEPS)
def test_a_layer_is_one_node_that_packs_each_slot_once(mode):
    tensors, packed = arguments(mode, COUNTS[1]), []
    with saved_tensors_hooks(lambda x: packed.append(x.shape) or x, lambda x: x):
        results = outcome(run_layer, mode, COUNTS[1], False, tensors)
    assert len({id(x.grad_fn) for x in results}) == 1
    kept = {"LSTM": 6, "GRU": 5}.get(mode, 1)  # gates, cell and hidden state
    assert packed == [*(x.shape for x in tensors), (sum(COUNTS[1]), kept, HIDDEN)]


@pytest.mark.parametrize("mode", STEPS)
def test_a_gradient_that_nobody_wants_is_not_computed(mode):
    tensors = arguments(mode, COUNTS[0])
    expected = sg.autograd.grad(weighted(outcome(run_layer, mode, COUNTS[0], False, tensors)), tensors[2])[0]
    for i, x in enumerate(tensors):
        x.requires_grad_(i == 2)
    for create_graph in (False, True):
        results = outcome(run_layer, mode, COUNTS[0], False, tensors)
        (got,) = sg.autograd.grad(weighted(results), tensors[2], create_graph=create_graph)
        np.testing.assert_allclose(got.detach().numpy(), expected.numpy(), 1e-10, 1e-12)


@pytest.mark.parametrize("mode", STEPS)
def test_a_weight_made_from_the_data_gets_its_own_share_of_the_second_derivative(mode):
    def function(data, scale):
        tensors = arguments(mode, COUNTS[0])
        weight = sg.tile(data.sum(0) * scale, (STEPS[mode][1] * HIDDEN, 1)) + tensors[1].detach()
        return outcome(run_layer, mode, COUNTS[0], False, [data, weight, *(x.detach() for x in tensors[2:])])[0]

    check_gradients(function, arguments(mode, COUNTS[0])[0].detach().numpy(), np.array(0.3), second=True)


@pytest.mark.parametrize("mode", STEPS)
def test_outputs_may_be_changed_in_place(mode):
    tensors = arguments(mode, COUNTS[0])
    expected = sg.autograd.grad(weighted([x * 2 for x in outcome(run_layer, mode, COUNTS[0], False, tensors)]), tensors)
    found = sg.autograd.grad(
        weighted([x.mul_(2) for x in outcome(run_layer, mode, COUNTS[0], False, tensors)]), tensors
    )
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


@pytest.mark.parametrize("mode", STEPS)
def test_a_weight_changed_before_backward_raises(mode):
    tensors = arguments(mode, COUNTS[0])
    loss = weighted(outcome(run_layer, mode, COUNTS[0], False, tensors))
    with sg.no_grad():
        tensors[2].mul_(2)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mode", STEPS)
def test_every_floating_dtype_gives_what_float64_does_to_its_rounding(mode, dtype):
    tensors = [(x.detach() * 0.5).to(dtype).requires_grad_() for x in arguments(mode, COUNTS[1])]
    exact = [x.detach().to("float64").requires_grad_() for x in tensors]
    step = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23}[dtype]
    found = []
    for given in (tensors, exact):
        results = outcome(run_layer, mode, COUNTS[1], False, given)
        found.append([*results, *sg.autograd.grad([x.sum() for x in results], given)])
    for got, wanted in zip(*found, strict=True):
        assert str(got.dtype).endswith(dtype)
        wanted = wanted.detach().numpy()
        np.testing.assert_allclose(got.detach().to("float64").numpy(), wanted, 0, 8 * step * max(1, abs(wanted).max()))


@pytest.mark.parametrize("mode", STEPS)
def test_what_is_not_a_number_stays_so(mode):
    tensors = arguments(mode, COUNTS[0])
    with sg.no_grad():
        tensors[0][1, 0] = float("nan")
    output = outcome(run_layer, mode, COUNTS[0], False, tensors)[0].detach().numpy().reshape(3, 2, HIDDEN)
    assert np.isnan(output[:, 1]).all() and not np.isnan(output[:, 0]).any()


def test_what_does_not_fit_raises_what_the_steps_raise():
    data, *rest = arguments("GRU", COUNTS[0])
    for wrong in (data.detach().to("float32"), data[:, :2]):
        with pytest.raises((sg.errors.DtypeError, sg.errors.ShapeError), match=r"^linear"):
            outcome(run_layer, "GRU", COUNTS[0], False, [wrong, *rest])


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_layer_whose_every_leaf_was_frozen_since_gives_no_gradients():
    tensors = arguments("GRU", COUNTS[0])
    loss = weighted(outcome(run_layer, "GRU", COUNTS[0], False, tensors))
    for x in tensors:
        x.requires_grad_(False)
    loss.backward(create_graph=True)
    assert all(x.grad is None for x in tensors)
