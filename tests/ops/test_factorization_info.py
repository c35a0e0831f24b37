"""Factorizations of batches in which some matrices fail: the others are right, and have their gradients."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import LinAlgError

GOOD = np.array([[4.0, 1.0], [1.0, 3.0]])
BAD = np.array([[1.0, 2.0], [2.0, 4.0]])  # singular, and its second minor is not positive


def batch():
    return sg.tensor(np.stack([BAD, GOOD]), requires_grad=True)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (lambda A: sg.linalg.cholesky_ex(A), np.linalg.cholesky(GOOD)),
        (lambda A: sg.linalg.cholesky_ex(A, upper=True), np.linalg.cholesky(GOOD).T),
        (lambda A: sg.linalg.inv_ex(A), np.linalg.inv(GOOD)),
        (lambda A: sg.linalg.solve_ex(A, sg.tensor(GOOD[None])), np.eye(2)),
        (lambda A: sg.linalg.solve_ex(A, sg.tensor(GOOD[0])), np.array([1.0, 0.0])),
        (lambda A: sg.linalg.solve_ex(A, sg.tensor(GOOD[None]), left=False), np.eye(2)),
    ],
)
def test_matrices_that_fail_leave_the_others_right(found, wanted):
    A = batch()
    result, info = found(A)
    assert (info.tolist(), info.dtype) == ([2, 0], sg.int32)
    assert np.isnan(result[0].detach().numpy()).all()
    np.testing.assert_allclose(result[1].detach().numpy(), wanted, atol=1e-12)
    result[1].sum().backward()
    alone = sg.tensor(GOOD[None], requires_grad=True)
    found(alone)[0].sum().backward()
    assert np.isfinite(A.grad.numpy()).all()
    np.testing.assert_allclose(A.grad[1].numpy(), alone.grad[0].numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda A: sg.linalg.cholesky_ex(A, check_errors=True),
        lambda A: sg.linalg.inv_ex(A, check_errors=True),
        lambda A: sg.linalg.solve_ex(A, A, check_errors=True),
    ],
)
def test_failures_raise_where_they_are_checked(call):
    with pytest.raises(LinAlgError):
        call(batch())


def test_the_largest_singular_values_are_found():
    a = np.random.default_rng(2).normal(size=(30, 4)) @ np.random.default_rng(3).normal(size=(4, 20))
    for matrix in (a, a.T):
        u, s, v = sg.svd_lowrank(sg.tensor(matrix), 5)
        np.testing.assert_allclose(s.numpy()[:4], np.linalg.svd(matrix)[1][:4], rtol=1e-9)
        np.testing.assert_allclose((u * s @ v.mH).numpy(), matrix, atol=1e-9)
    centred = a - a.mean(0)
    np.testing.assert_allclose(sg.pca_lowrank(sg.tensor(a), 4).S.numpy(), np.linalg.svd(centred)[1][:4], rtol=1e-9)
    with pytest.raises(ValueError, match=r"q\(=21\) must be non-negative integer and not greater than"):
        sg.pca_lowrank(sg.tensor(a), 21)
