"""Softmax and normalizations against NumPy, their gradients against central differences."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DimensionError, DtypeError, ShapeError
from spillgrad.ops import normalization
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(1)
A = RNG.normal(size=(3, 4, 2))
WEIGHT, BIAS = RNG.normal(size=(4, 2)), RNG.normal(size=(4, 2))


def softmax(a, axis):
    exponentials = np.exp(a - a.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(
    ("function", "oracle"),
    [(normalization.softmax, softmax), (normalization.log_softmax, lambda a, axis: np.log(softmax(a, axis)))],
    ids=["softmax", "log_softmax"],
)
def test_softmax_agrees_with_numpy_and_differences(function, oracle, dim):
    np.testing.assert_allclose(function(sg.tensor(A), dim).numpy(), oracle(A, dim), 1e-12)
    np.testing.assert_allclose(function(sg.tensor(A).transpose(0, 2), dim).numpy(), oracle(A.T, dim), 1e-12)
    check_gradients(lambda x: function(x, dim), A)
    check_half_precision(lambda x: function(x, dim), A)


def test_softmax_of_a_number_is_one_and_of_nothing_is_nothing():
    assert normalization.softmax(sg.tensor(3.0), 0).item() == 1
    assert normalization.log_softmax(sg.zeros(0, 3), 1).shape == (0, 3)
    assert normalization.softmax(sg.zeros(3, 0), 1).shape == (3, 0)


def test_softmax_does_not_overflow_and_converts_first():
    assert normalization.softmax(sg.tensor([1000.0, 1000.0]), 0).tolist() == [0.5, 0.5]
    assert normalization.softmax(sg.tensor([1, 1]), 0, dtype="float64").dtype == sg.float64
    assert normalization.softmax(sg.tensor([0.0, -math.inf]), axis=0).tolist() == [1, 0]


def test_softmax_saves_its_result_only():
    x = leaf(A)
    y = normalization.softmax(x, 1)
    assert y.grad_fn._saved_result.shape == y.shape
    assert not hasattr(y.grad_fn, "_saved_self")


def layer_norm(a, weight, bias, axes, eps):
    mean, variance = a.mean(axes, keepdims=True), a.var(axes, keepdims=True)
    return (a - mean) / np.sqrt(variance + eps) * weight + bias


@pytest.mark.parametrize("shape", [(4, 2), (2,), (3, 4, 2)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_agrees_with_numpy_and_differences(shape, affine):
    axes = tuple(range(-len(shape), 0))
    weight, bias = (RNG.normal(size=shape), RNG.normal(size=shape)) if affine else (1.0, 0.0)
    parameters = (weight, bias) if affine else ()
    got = normalization.layer_norm(sg.tensor(A), shape, *map(sg.tensor, parameters), eps=1e-3)
    np.testing.assert_allclose(got.numpy(), layer_norm(A, weight, bias, axes, 1e-3), 1e-10, 1e-12)

    def function(x, *parameters):
        return normalization.layer_norm(x, shape, *parameters, eps=1e-3)

    check_gradients(function, A, *parameters)
    check_half_precision(function, A, *parameters, tolerance=5e-2)


@pytest.mark.parametrize("weight", [WEIGHT, None], ids=["weight", "none"])
def test_rms_norm_agrees_with_numpy_and_differences(weight):
    parameters = () if weight is None else (weight,)
    got = normalization.rms_norm(sg.tensor(A), (4, 2), *map(sg.tensor, parameters), eps=1e-3)
    wanted = A / np.sqrt((A**2).mean((1, 2), keepdims=True) + 1e-3) * (1 if weight is None else weight)
    np.testing.assert_allclose(got.numpy(), wanted, 1e-12)

    def function(x, *parameters):
        return normalization.rms_norm(x, (4, 2), *parameters, eps=1e-3)

    check_gradients(function, A, *parameters)
    check_half_precision(function, A, *parameters, tolerance=5e-2)


def test_normalizations_take_any_strides():
    check_gradients(lambda x: normalization.layer_norm(x.transpose(0, 2), 3), A[:, :2], second=False)
    check_gradients(lambda x: normalization.rms_norm(x.transpose(0, 2), 3), A[:, :2], second=False)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_layer_norm_gives_gradients_to_whoever_wants_one(wanted):
    operands = [sg.tensor(v) for v in (A, WEIGHT, BIAS)]
    alone = [operand.clone().requires_grad_(want) for operand, want in zip(operands, wanted, strict=True)]
    everyone = [operand.clone().requires_grad_() for operand in operands]
    for x, weight, bias in (alone, everyone):
        (normalization.layer_norm(x, (4, 2), weight, bias) ** 2).sum().backward()
    for got, reference, want in zip(alone, everyone, wanted, strict=True):
        assert (got.grad is not None) == want
        if want:
            np.testing.assert_array_equal(got.grad.numpy(), reference.grad.numpy())


def test_layer_norm_saves_what_its_gradient_needs():
    node = normalization.layer_norm(leaf(A), 2, leaf([1, 1]), leaf([0, 0])).grad_fn
    assert node._saved_input.shape == A.shape
    assert node._saved_mean.shape == node._saved_rstd.shape == (12,)
    assert not hasattr(node, "_saved_bias")


def test_statistics_of_half_precision_rows_stay_float32():
    x = sg.tensor(A, dtype="bfloat16", requires_grad=True)
    y = normalization.layer_norm(x, 2)
    assert y.dtype == sg.bfloat16
    assert y.grad_fn._saved_rstd.dtype == sg.float32


def test_empty_rows_and_no_rows_are_normalized():
    assert normalization.layer_norm(sg.zeros(0, 3), 3).shape == (0, 3)
    x, weight = sg.zeros(0, 3).requires_grad_(), sg.ones(3).requires_grad_()
    normalization.rms_norm(x, 3, weight).sum().backward()
    assert weight.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: normalization.softmax(sg.zeros(2, 3), 2), DimensionError, "softmax: got dim 2"),
        (lambda: normalization.softmax(sg.tensor([1]), 0), DtypeError, "softmax: got a tensor of int64"),
        (
            lambda: normalization.layer_norm(sg.zeros(2, 3), 4),
            ShapeError,
            r"got input \(2, 3\) and norm.*_shape \(4,\)",
        ),
        (
            lambda: normalization.layer_norm(sg.zeros(2, 3), 3, sg.ones(2)),
            ShapeError,
            r"got weight \(2,\) and normalized_",
        ),
        (
            lambda: normalization.rms_norm(sg.zeros(2, 3), 3, sg.ones(3).double()),
            DtypeError,
            "float32 and weight float64",
        ),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("shape", [(0, 4, 2), (3, 0, 4, 2)])
def test_norms_of_no_rows_have_gradients(shape):
    x, bias = sg.zeros(shape).requires_grad_(), sg.zeros(4, 2).requires_grad_()
    result = sg.layer_norm(x, (4, 2), bias=bias) + sg.layer_norm(x, (4, 2)) + sg.nn.functional.rms_norm(x, (4, 2))
    result.sum().backward()
    assert x.grad.shape == shape
    assert bias.grad.tolist() == [[0.0] * 2] * 4
