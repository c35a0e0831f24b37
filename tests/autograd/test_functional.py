"""Jacobians, Hessians and their products, against closed forms."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import functional as F
from spillgrad.autograd import gradcheck
from spillgrad.errors import OperandError
from tests.ops.checks import leaf

A = np.array([[1.0, 2.0, -1.0], [0.5, -3.0, 4.0]])
X = np.array([0.3, -0.7, 1.1])
Y = np.array([2.0, 0.5])


def tensor(values):
    return sg.tensor(np.array(values, np.float64))


def cubes(x):
    return (x * x * x).sum()


def two(x, y):
    """Outputs of shapes (2,) and (3,) of inputs of shapes (3,) and (2,)."""
    return tensor(A) @ x * y, x * x


def test_vjp_and_jvp_of_a_linear_function_are_its_products():
    value, product = F.vjp(lambda x: tensor(A) @ x, tensor(X), tensor(Y))
    np.testing.assert_allclose(value.numpy(), A @ X)
    np.testing.assert_allclose(product.numpy(), Y @ A)
    value, product = F.jvp(lambda x: tensor(A) @ x, tensor(X), tensor(X))
    np.testing.assert_allclose(product.numpy(), A @ X)
    assert not value.requires_grad and not product.requires_grad


def test_products_have_the_structure_of_what_they_belong_to():
    outputs, products = F.vjp(two, (tensor(X), tensor(Y)), (tensor(Y), tensor(X)))
    assert isinstance(outputs, tuple) and isinstance(products, tuple)
    np.testing.assert_allclose(products[0].numpy(), (Y * Y) @ A + 2 * X * X)
    np.testing.assert_allclose(products[1].numpy(), (A @ X) * Y)
    outputs, products = F.jvp(two, (tensor(X), tensor(Y)), (tensor(X), tensor(Y)))
    np.testing.assert_allclose(products[0].numpy(), 2 * (A @ X) * Y)
    np.testing.assert_allclose(products[1].numpy(), 2 * X * X)
    (single,) = F.vjp(lambda x: x.sum(), (tensor(X),))[1]
    assert single.tolist() == [1.0, 1.0, 1.0]


def test_the_vector_may_be_left_out_for_a_single_element_only():
    assert F.vjp(cubes, tensor(X))[1].shape == (3,)
    assert F.jvp(lambda x: x * tensor(X), tensor(2.0))[1].tolist() == X.tolist()
    for product in (F.vjp, F.jvp):
        with pytest.raises(RuntimeError, match="v can only be left out for a single tensor with a single element"):
            product(lambda x: x * 2, tensor(X))


def test_a_vector_of_another_shape_is_an_error_that_names_both():
    with pytest.raises(RuntimeError, match=r"vjp: got v of \(2,\); wanted \(3,\)"):
        F.vjp(lambda x: x * 2, tensor(X), tensor(Y))
    with pytest.raises(RuntimeError, match=r"hvp: got v of \(3,\), \(2,\); wanted \(3,\)"):
        F.hvp(cubes, tensor(X), (tensor(X), tensor(Y)))


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
@pytest.mark.parametrize("vectorize", [False, True])
def test_a_jacobian_has_a_block_per_output_and_input(strategy, vectorize):
    options = {"strategy": strategy, "vectorize": vectorize}
    full = F.jacobian(two, (tensor(X), tensor(Y)), **options)
    np.testing.assert_allclose(full[0][0].numpy(), A * Y[:, None])
    np.testing.assert_allclose(full[0][1].numpy(), np.diag(A @ X))
    np.testing.assert_allclose(full[1][0].numpy(), np.diag(2 * X))
    np.testing.assert_array_equal(full[1][1].numpy(), np.zeros((3, 2)))
    single = F.jacobian(lambda x: tensor(A) @ x, tensor(X), **options)
    np.testing.assert_allclose(single.numpy(), A)
    (by_input,) = F.jacobian(lambda x: tensor(A) @ x, (tensor(X),), **options)
    assert by_input.shape == (2, 3)
    (by_output,) = F.jacobian(lambda x: (x.sum(),), tensor(X), **options)
    assert by_output.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_a_jacobian_keeps_the_shapes_of_output_and_input(strategy):
    x = tensor(np.arange(6.0).reshape(2, 3))
    result = F.jacobian(lambda t: t.sum(1) * t[:, :1].t(), x, strategy=strategy)
    assert result.shape == (1, 2, 2, 3)
    assert F.jacobian(lambda t: t * 2, tensor(1.0), strategy=strategy).item() == 2.0
    assert F.jacobian(lambda t: t[:0], tensor(X), strategy=strategy).shape == (0, 3)
    assert F.jacobian(lambda t: t.sum() + tensor(Y), tensor(np.zeros(0)), strategy=strategy).shape == (2, 0)


def test_a_jacobian_of_an_integer_or_constant_output_is_zeros():
    assert F.jacobian(lambda x: (x > 0, tensor(Y)), tensor(X))[0].tolist() == [[0.0] * 3] * 3
    assert F.jacobian(lambda x: (x > 0, tensor(Y)), tensor(X))[1].tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_a_jacobian_can_be_differentiated(strategy):
    def total(x):
        return F.jacobian(lambda t: t * t * t, x, create_graph=True, strategy=strategy).sum()

    x = leaf(X)
    total(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * X)
    assert gradcheck(total, leaf(X))
    assert not F.jacobian(lambda t: t * t, x).requires_grad


def test_what_the_function_captured_counts_as_constant():
    x = leaf(X)
    assert F.jacobian(lambda t: t * x, x, create_graph=True).diagonal().tolist() == X.tolist()
    result = F.jacobian(lambda t: t * x, x, create_graph=True).sum()
    result.backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_the_inputs_are_left_alone():
    x = tensor(X)
    F.hessian(cubes, x)
    assert not x.requires_grad and x.grad is None
    transposed = leaf(A.copy()).t()
    assert F.jacobian(lambda t: t.sum(), transposed, create_graph=True).shape == (3, 2)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_a_hessian_holds_all_second_derivatives(strategy):
    options = {"outer_jacobian_strategy": strategy}
    np.testing.assert_allclose(F.hessian(cubes, tensor(X), **options).numpy(), np.diag(6 * X))

    def mixed(x, y):
        return (x * x).sum() * y.sum() + (y * y).sum()

    full = F.hessian(mixed, (tensor(X), tensor(Y)), **options)
    np.testing.assert_allclose(full[0][0].numpy(), 2 * Y.sum() * np.eye(3))
    np.testing.assert_allclose(full[0][1].numpy(), 2 * X[:, None] * np.ones((1, 2)))
    np.testing.assert_allclose(full[1][0].numpy(), full[0][1].numpy().T)
    np.testing.assert_allclose(full[1][1].numpy(), 2 * np.eye(2))
    matrix = tensor(np.arange(4.0).reshape(2, 2))
    assert F.hessian(lambda t: (t * t).sum().reshape(1, 1), matrix, **options).shape == (2, 2, 2, 2)
    assert F.hessian(lambda t: t.sum(), tensor(X), **options).tolist() == [[0.0] * 3] * 3


def test_a_hessian_can_be_differentiated():
    x = leaf(X)
    F.hessian(cubes, x, create_graph=True).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [6.0, 6.0, 6.0])


def test_products_with_the_hessian():
    def mixed(x, y):
        return (x * x * x).sum() * y.sum()

    vectors = tensor([1.0, 2.0, 3.0]), tensor([4.0, 5.0])
    first = 6 * X * Y.sum() * vectors[0].numpy() + 3 * X * X * 9.0
    second = np.full(2, (3 * X * X * vectors[0].numpy()).sum())
    for product in (F.vhp, F.hvp):
        value, found = product(mixed, (tensor(X), tensor(Y)), vectors)
        np.testing.assert_allclose(value.item(), (X**3).sum() * Y.sum())
        np.testing.assert_allclose(found[0].numpy(), first)
        np.testing.assert_allclose(found[1].numpy(), second)
        assert not found[0].requires_grad
        assert product(lambda x: x * x, tensor(3.0))[1].item() == 2.0
        x = leaf(X)
        product(cubes, x, tensor(np.ones(3)), create_graph=True)[1].sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), [6.0] * 3)
        assert product(lambda x: x.sum(), tensor(X), tensor(X))[1].tolist() == [0.0] * 3


@pytest.mark.parametrize("function", [F.hessian, F.vhp, F.hvp])
def test_a_hessian_is_of_a_single_element(function):
    vector = () if function is F.hessian else (tensor(X),)
    with pytest.raises(RuntimeError, match=r"the function returned \(3,\); it should return a single tensor"):
        function(lambda x: x * 2, tensor(X), *vector)
    with pytest.raises(RuntimeError, match="the function returned a tuple of"):
        function(lambda x: (x.sum(),), tensor(X), *vector)


def test_strict_refuses_what_does_not_depend_on_an_input():
    def ignores_second(x, y):
        return x * 2

    inputs = tensor(X), tensor(Y)
    assert F.jacobian(ignores_second, inputs)[1].tolist() == [[0.0, 0.0]] * 3
    with pytest.raises(RuntimeError, match="jacobian: nothing depends on entry 1"):
        F.jacobian(ignores_second, inputs, strict=True)
    with pytest.raises(RuntimeError, match="vjp: nothing depends on entry 1"):
        F.vjp(ignores_second, inputs, tensor(X), strict=True)
    with pytest.raises(RuntimeError, match="jvp: output 0 does not depend on the inputs"):
        F.jvp(lambda x: tensor(Y), tensor(X), tensor(X), strict=True)
    for function in (F.hessian, F.vhp, F.hvp):
        vector = () if function is F.hessian else (tensor(X),)
        with pytest.raises(RuntimeError, match="the function must be twice differentiable, and not linear"):
            function(lambda x: x.sum(), tensor(X), *vector, strict=True)
    with pytest.raises(RuntimeError, match="jvp: nothing depends on input 1"):
        F.jvp(ignores_second, inputs, inputs, strict=True)
    with pytest.raises(RuntimeError, match="strict=True with create_graph=True"):
        F.jacobian(lambda x: x * 2, leaf(X), create_graph=True, strict=True)
    assert F.jacobian(lambda x: x * x, leaf(X), create_graph=True, strict=True).requires_grad


def test_what_is_no_tensor_is_named():
    with pytest.raises(OperandError, match="jacobian: got float in the inputs at index 1"):
        F.jacobian(lambda x, y: x, (tensor(X), 1.0))
    with pytest.raises(TypeError, match="vjp: got str in the outputs of the function"):
        F.vjp(lambda x: "a", tensor(X))
    with pytest.raises(TypeError, match="jvp: got int in the vector v"):
        F.jvp(lambda x: x, tensor(X), 3)
    with pytest.raises(ValueError, match="jacobian: got strategy 'sideways'"):
        F.jacobian(lambda x: x, tensor(X), strategy="sideways")


def test_derivatives_are_taken_inside_no_grad_too():
    with sg.no_grad():
        assert F.jacobian(lambda x: x * x, tensor(X)).diagonal().tolist() == (2 * X).tolist()
        assert F.hvp(cubes, tensor(X), tensor(X))[1].tolist() == F.vhp(cubes, tensor(X), tensor(X))[1].tolist()
