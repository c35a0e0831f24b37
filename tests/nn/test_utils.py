import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import utils


def parameters(*gradients, dtype="float32"):
    made = []
    for gradient in gradients:
        parameter = nn.Parameter(sg.zeros(*np.shape(gradient), dtype=dtype))
        parameter.grad = sg.tensor(gradient, dtype=dtype)
        made.append(parameter)
    return [*made, nn.Parameter(sg.zeros(2))]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(("norm_type", "norm"), [(2.0, 13.0), (math.inf, 12.0), (1.0, 19.0)])
def test_clipping_scales_all_gradients_by_one_factor(dtype, norm_type, norm):
    clipped = parameters([[3.0, 0.0]], [-4.0, 12.0], dtype=dtype)
    total = utils.clip_grad_norm_(clipped, 1.0, norm_type)
    assert total.item() == pytest.approx(norm, rel=1e-5)
    assert str(total.dtype) == dtype
    tolerance = 0.01 if dtype in ("bfloat16", "float16") else 1e-5
    values = [value for parameter in clipped[:2] for value in parameter.grad.reshape(-1).tolist()]
    assert values == pytest.approx([3 / norm, 0, -4 / norm, 12 / norm], rel=tolerance)


def test_small_gradients_are_left_alone():
    small = parameters([3.0, 4.0])
    assert utils.clip_grad_norm_(small, 6.0).item() == 5.0
    assert small[0].grad.tolist() == [3.0, 4.0]


def test_gradients_that_do_not_lie_in_order_are_clipped_too():
    parameter = nn.Parameter(sg.zeros(2, 3))
    parameter.grad = sg.ones(3, 2).t()
    utils.clip_grad_norm_(parameter, 1.0)
    assert np.linalg.norm(parameter.grad.numpy()) == pytest.approx(1, rel=1e-4)


def test_without_gradients_the_norm_is_zero():
    assert utils.clip_grad_norm_(parameters(), 1.0).item() == 0.0


def test_the_norm_does_not_depend_on_the_number_of_threads():
    gradient = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    norms = []
    before = sg.get_num_threads()
    try:
        for threads in (1, 2):
            sg.set_num_threads(threads)
            norms.append(utils.clip_grad_norm_(parameters(gradient), 1e9).item())
    finally:
        sg.set_num_threads(before)
    assert norms[0] == norms[1] == pytest.approx(float(np.linalg.norm(gradient.astype(np.float64))), rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_shows(bad):
    broken = parameters([bad, 1.0])
    with pytest.raises(ArgumentError, match=str(bad)):
        utils.clip_grad_norm_(broken, 1.0, error_if_nonfinite=True)
    assert broken[0].grad.tolist()[1] == 1.0
    assert not math.isfinite(utils.clip_grad_norm_(broken, 1.0).item())
    assert math.isnan(broken[0].grad.tolist()[0])


def test_values_are_clamped():
    clipped = parameters([-3.0, 0.5, 3.0])
    utils.clip_grad_value_(clipped, 1.0)
    assert clipped[0].grad.tolist() == [-1.0, 0.5, 1.0]


def test_parameters_go_into_a_vector_and_back():
    model = nn.Linear(3, 2)
    vector = utils.parameters_to_vector(model.parameters())
    assert vector.tolist() == [*model.weight.numpy().reshape(-1).tolist(), *model.bias.tolist()]
    utils.vector_to_parameters(sg.arange(8) * 1.0, model.parameters())
    assert model.weight.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert model.bias.tolist() == [6.0, 7.0]
    with pytest.raises(ShapeError, match=r"got shape \(7,\), wanted \(8,\)"):
        utils.vector_to_parameters(sg.zeros(7), model.parameters())


def test_a_call_with_a_tensor_in_place_of_a_parametrized_one_has_gradients_by_it():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2).double())
    weight = sg.tensor(np.arange(1.0, 7.0).reshape(2, 3), requires_grad=True)
    x, g = sg.ones(4, 3, dtype="float64"), sg.tensor(np.arange(8.0).reshape(4, 2))
    before = {name: p.clone() for name, p in layer.named_parameters()}
    found = utils.stateless.functional_call(layer, {"weight": weight}, x)
    np.testing.assert_allclose((found - layer.bias).detach().numpy(), (x @ weight.T).detach().numpy())
    found.backward(g)
    np.testing.assert_allclose(weight.grad.numpy(), (g.T @ x).numpy(), atol=1e-12)
    for name, parameter in layer.named_parameters():
        assert parameter.tolist() == before[name].tolist()
        assert (parameter.grad is None) == (name != "bias")


# As PyTorch's: 3 - 4i and 12 have the moduli 5 and 12.
@pytest.mark.parametrize(("norm_type", "norm"), [(2.0, 13.0), (math.inf, 12.0), (1.0, 17.0), (0.5, 32.49193338482967)])
@pytest.mark.parametrize(("dtype", "real"), [("complex64", "float32"), ("complex128", "float64")])
def test_the_norm_of_complex_gradients_is_that_of_their_moduli(norm_type, norm, dtype, real):
    clipped = parameters([[3 - 4j]], [12j], dtype=dtype)
    total = utils.clip_grad_norm_(clipped, 1.0, norm_type)
    assert total.item() == pytest.approx(norm, rel=1e-5)
    assert str(total.dtype) == real
    values = [value for parameter in clipped[:2] for value in parameter.grad.reshape(-1).tolist()]
    assert values == pytest.approx([(3 - 4j) / norm, 12j / norm], rel=1e-5)
    told = utils.get_total_norm([sg.tensor([3 - 4j], dtype=dtype), sg.tensor([12.0])], norm_type)
    assert (told.item(), str(told.dtype)) == (pytest.approx(norm, rel=1e-5), real)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("bfloat16", "float32"), "float32"), (("bfloat16", "float16"), "float32"), (("float16",), "float16"),
        (("float32", "complex128"), "float64"), (("complex64", "float64"), "float64"),
    ],
)  # fmt: skip
def test_the_norm_has_the_real_dtype_to_which_all_gradients_promote(dtypes, expected):
    mixed = [parameters([3.0], dtype=dtype)[0] for dtype in dtypes]
    assert str(utils.get_total_norm([parameter.grad for parameter in mixed]).dtype) == expected
    assert str(utils.clip_grad_norm_(mixed, 1e9).dtype) == expected
