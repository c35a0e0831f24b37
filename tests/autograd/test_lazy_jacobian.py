"""Paddle's Jacobians and Hessians: rows are computed when asked for, and once."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DimensionError
from tests.ops.checks import leaf

A = np.array([[1.0, 2.0, -1.0], [0.5, -3.0, 4.0]])
X = np.array([0.3, -0.7, 1.1])


def counted(y):
    """Return a tensor equal to `y` and a list that grows with every backward through it."""
    runs = []
    y = y * 1.0
    y.register_hook(lambda g: runs.append(g.tolist()))
    return y * 1.0, runs


def test_a_jacobian_is_indexed_as_the_matrix_it_is():
    x = leaf(X)
    J = sg.autograd.jacobian(sg.tensor(A) @ x, x)
    assert J.shape == (2, 3) and len(J) == 2
    for index in [
        np.s_[:], np.s_[0], np.s_[-1], np.s_[1, 2], np.s_[:, 1], np.s_[0:1, ::2], np.s_[::-1], np.s_[..., 0],
        np.s_[2:], np.s_[1, ...], np.s_[[1, 0]], np.s_[None],
    ]:  # fmt: skip
        np.testing.assert_allclose(J[index].numpy(), A[index])
    with pytest.raises(DimensionError, match="jacobian: got row 2; wanted one of 2"):
        J[2]


def test_only_rows_that_are_looked_at_are_computed_and_each_once():
    x = leaf(X)
    y, runs = counted(x * x)
    J = sg.autograd.jacobian(y, x)
    assert runs == []
    assert J[1].tolist() == [0.0, 2 * X[1], 0.0]
    assert runs == [[0.0, 1.0, 0.0]]
    J[1:, 0]
    J[-1]
    assert runs == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert "2 rows computed" in repr(J)
    J[:]
    assert len(runs) == 3


def test_tensors_without_dimension_have_none_in_the_result():
    x, s = leaf(X), leaf(2.0)
    by_vector = sg.autograd.jacobian((x * x).sum(), x)
    assert by_vector.shape == (3,) and by_vector[1].item() == 2 * X[1]
    by_scalar = sg.autograd.jacobian(sg.tensor(X) * s, s)
    assert by_scalar.shape == (3,) and by_scalar[:2].tolist() == X[:2].tolist()
    both = sg.autograd.jacobian(s * s, s)
    assert both.shape == () and both[...].item() == 4.0


def test_a_batch_has_a_matrix_per_member():
    x = leaf(np.arange(6.0).reshape(2, 3))
    J = sg.autograd.jacobian(x @ sg.tensor(A.T), x, batch_axis=0)
    assert J.shape == (2, 2, 3)
    full = np.stack([A, A])
    for index in [np.s_[:], np.s_[0], np.s_[:, 1], np.s_[1, 0, 2], np.s_[:, :, 1:], np.s_[:, 0:1]]:
        np.testing.assert_allclose(J[index].numpy(), full[index])
    v = leaf([1.0, 2.0])
    assert sg.autograd.jacobian(v * v, v, batch_axis=0)[:].tolist() == [2.0, 4.0]
    assert sg.autograd.jacobian(x.sum(1), x, batch_axis=0).shape == (2, 3)


def test_sequences_give_tuples_outputs_outside():
    x, y = leaf(X), leaf([1.0, 2.0])
    outputs = x * x, y * y
    full = sg.autograd.jacobian(outputs, [x, y])
    assert [[J.shape for J in row] for row in full] == [[(3, 3), (3, 2)], [(2, 3), (2, 2)]]
    assert full[1][0][:].tolist() == [[0.0] * 3] * 2
    assert [J.shape for J in sg.autograd.jacobian(outputs, x)] == [(3, 3), (2, 3)]
    assert [J.shape for J in sg.autograd.jacobian(outputs[0], (x, y))] == [(3, 3), (3, 2)]


def test_a_jacobian_stands_for_its_matrix_in_arithmetic():
    x = leaf(X)
    J = sg.autograd.jacobian(x * x, x)
    D = np.diag(2 * X)
    np.testing.assert_allclose((J + J).numpy(), 2 * D)
    np.testing.assert_allclose((J @ sg.tensor(A.T)).numpy(), D @ A.T)
    np.testing.assert_allclose((J * 2 - 1).numpy(), 2 * D - 1)
    assert (J == J).all() and J.sum().item() == pytest.approx(2 * X.sum())
    assert J.numpy().shape == (3, 3)


def test_rows_can_be_differentiated():
    x = leaf(X)
    row = sg.autograd.jacobian(x * x * x, x)[0]
    assert sg.grad(row.sum(), x)[0].tolist() == pytest.approx([6 * X[0], 0.0, 0.0])


def test_a_hessian_is_the_jacobian_of_the_gradient():
    x, y = leaf(X), leaf([1.0, 2.0])
    value = (x * x * x).sum() * y.sum()
    H = sg.autograd.hessian(value, x)
    np.testing.assert_allclose(H[:].numpy(), np.diag(18 * X))
    full = sg.autograd.hessian(value, (x, y))
    assert [[h.shape for h in row] for row in full] == [[(3, 3), (3, 2)], [(2, 3), (2, 2)]]
    np.testing.assert_allclose(full[0][1][:].numpy(), 3 * (X * X)[:, None] * np.ones((1, 2)))
    np.testing.assert_allclose(full[1][0][1].numpy(), 3 * X * X)
    assert full[1][1][:].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert type(H).__name__ == "Hessian"
    assert sg.autograd.hessian((x * x).sum().reshape(1), x)[0, 0].item() == 2.0


def test_the_gradient_behind_a_hessian_is_computed_once_and_late():
    x = leaf(X)
    y, runs = counted(x * x * x)
    value = y.sum()
    H = sg.autograd.hessian(value, x)
    assert runs == []
    H[:]
    H[1]
    assert len(runs) == 1


def test_a_batched_hessian_has_a_matrix_per_member():
    x = leaf(np.arange(1.0, 7.0).reshape(2, 3))
    for value in ((x * x * x).sum(1), (x * x * x).sum(1, True)):
        H = sg.autograd.hessian(value, x, batch_axis=0)
        assert H.shape == (2, 3, 3)
        np.testing.assert_allclose(H[:].numpy(), np.stack([np.diag(6 * row) for row in x.numpy()]))


def test_what_has_no_jacobian_is_refused():
    x = leaf(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"jacobian: got xs of \(2, 3\); wanted 0 or 1 dimensions"):
        sg.autograd.jacobian(x.sum(), x)
    with pytest.raises(ValueError, match=r"got ys of \(\); wanted 1 or 2 dimensions with batch_axis"):
        sg.autograd.jacobian(x.sum(), x, batch_axis=0)
    with pytest.raises(ValueError, match="batches must be equally long"):
        sg.autograd.jacobian(x.sum(0), x, batch_axis=0)
    with pytest.raises(ValueError, match="batch_axis=1; wanted None or 0"):
        sg.autograd.jacobian(x, x, batch_axis=1)
    with pytest.raises(ValueError, match=r"hessian: got ys of \(3,\); wanted one element"):
        sg.autograd.hessian(leaf(X) * 2, leaf(X))
    with pytest.raises(TypeError, match="jacobian: got str"):
        sg.autograd.jacobian("y", x)
