"""LU factorizations multiply back, exchange rows for the largest pivots, and have first and second derivatives."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DtypeError, LinAlgError, ShapeError, UnsupportedError

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(70, 70), (33, 80), (80, 33), (2, 3, 40, 40), (1, 1), (0, 0), (3, 0), (0, 2, 2)])
def test_the_factors_multiply_back(shape, dtype):
    a = RNG.normal(size=shape) + (1j * RNG.normal(size=shape) if dtype == "complex128" else 0)
    P, L, U = (x.numpy() for x in sg.linalg.lu(sg.tensor(a)))
    np.testing.assert_allclose(P @ L @ U, a, atol=1e-12)
    assert np.array_equal(L, np.tril(L))
    assert np.array_equal(U, np.triu(U))
    assert np.abs(L).max(initial=0) <= (1 if dtype == "float64" else 2**0.5)  # pivots are the largest of their columns
    assert np.array_equal(np.sort(P, -1)[..., -1:].sum(-2), np.full((*shape[:-2], min(1, shape[-2])), shape[-2]))


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (2, 3, 3)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_are_those_of_central_differences(shape, dtype):
    a = RNG.normal(size=shape) + (1j * RNG.normal(size=shape) if dtype == "complex128" else 0)
    x = sg.tensor(a, requires_grad=True)
    assert sg.autograd.gradcheck(lambda x: sg.linalg.lu(x)[1:], (x,))
    assert sg.autograd.gradgradcheck(lambda x: sg.linalg.lu_factor(x).LU, (x,))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("imaginary", [0, 1j])
def test_systems_are_solved_and_differentiated(left, adjoint, imaginary):
    a, b = (RNG.normal(size=(2, 4, 4)) + imaginary * RNG.normal(size=(2, 4, 4)) for _ in range(2))
    A, B = sg.tensor(a, requires_grad=True), sg.tensor(b, requires_grad=True)

    def solved(A, B):
        return sg.linalg.lu_solve(*sg.linalg.lu_factor(A), B, left=left, adjoint=adjoint)

    matrix = a.conj().swapaxes(-2, -1) if adjoint else a
    found = solved(A, B).detach().numpy()
    np.testing.assert_allclose(matrix @ found if left else found @ matrix, b, atol=1e-10)
    assert sg.autograd.gradcheck(solved, (A, B))


def test_a_singular_matrix_is_factorized_but_solves_nothing():
    x = sg.tensor([[1.0, 2.0], [2.0, 4.0]])
    P, L, U = sg.linalg.lu(x)
    assert (P @ L @ U).tolist() == x.tolist()
    assert sg.linalg.lu_factor_ex(sg.stack([x, sg.eye(2)])).info.tolist() == [2, 0]
    with pytest.raises(LinAlgError, match=r"U\[2,2\] is zero and using it on lu_solve would result"):
        sg.linalg.lu_factor(x)
    with pytest.raises(LinAlgError, match=r"linalg.lu_factor_ex: U\[2,2\] is zero"):
        sg.linalg.lu_factor_ex(x, check_errors=True)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: sg.linalg.lu(x, pivot=False), UnsupportedError, "LU without pivoting is not implemented on the CPU"),
        (lambda x: sg.linalg.lu(x[0]), ShapeError, "must have at least 2 dimensions"),
        (lambda x: sg.linalg.lu_factor(x.long()), DtypeError, "linalg.lu_factor"),
        (lambda x: sg.linalg.lu_solve(*sg.linalg.lu_factor(x), x[:2]), ShapeError, "equation AX = B: got"),
        (lambda x: sg.linalg.lu_solve(*sg.linalg.lu_factor(x[:2]), x[:2]), ShapeError, "lu_factor of square matrices"),
    ],
)
def test_what_cannot_be_factorized_or_solved_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call(sg.eye(3) + 1)


def test_the_older_names_are_the_newer_ones():
    a, b = sg.tensor(RNG.normal(size=(3, 3))), sg.tensor(RNG.normal(size=(3, 2)))
    LU, pivots, info = a.lu(get_infos=True)
    assert (LU == sg.linalg.lu_factor(a).LU).all()
    assert info.item() == 0
    assert pivots.dtype == sg.int32
    assert b.lu_solve(LU, pivots).allclose(sg.linalg.solve(a, b))
    P, L, U = sg.lu_unpack(LU, pivots, unpack_pivots=False)
    assert P.shape == (0,)
    assert (sg.lu_unpack(LU, pivots, unpack_data=False).P.mT @ a).allclose(L @ U)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_the_older_triangular_solve_warns(upper, transpose):
    a, b = sg.tensor(RNG.normal(size=(3, 3))), sg.tensor(RNG.normal(size=(3, 2)))
    with pytest.warns(UserWarning, match="deprecated in favor of torch.linalg.solve_triangular"):
        found = sg.triangular_solve(b, a, upper, transpose)
    triangle = a.triu() if upper else a.tril()
    assert ((triangle.mT if transpose else triangle) @ found.solution).allclose(b)
    assert (found.cloned_coefficient == a).all()
