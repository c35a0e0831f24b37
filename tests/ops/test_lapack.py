"""Linear algebra against NumPy, its gradients against central differences."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import linalg
from spillgrad.errors import ArgumentError, DtypeError, GraphError, LinAlgError, ShapeError
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(0)
A = RNG.normal(size=(2, 3, 3)) + 2 * np.eye(3)
B = RNG.normal(size=(2, 3, 2))
TALL, WIDE = RNG.normal(size=(2, 4, 3)), RNG.normal(size=(2, 3, 4))
POSITIVE = A @ A.swapaxes(-2, -1) + np.eye(3)


def symmetric(x):
    """Make a symmetric matrix of any, as a function that can be differentiated by each element."""
    return (x + x.mT) * 0.5


def T(a):
    return a.swapaxes(-2, -1)


def exponential(a):
    """Return the exponential by the definition, summed up in float64 for small matrices."""
    total = term = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    for k in range(1, 60):
        term = term @ a / k
        total = total + term
    return total


def each(function):
    """Return a function of matrices as one of batches."""

    def batched(*operands):
        if operands[0].ndim == 2:
            return np.asarray(function(*operands))
        return np.stack([function(*part) for part in zip(*operands, strict=True)])

    return batched


def norm_of(order):
    return each(lambda a: np.linalg.norm(a, order))


# Name: function of tensors, the same in NumPy, operands. Vectors come in with their arbitrary signs undone.
CASES = {
    "inv": (linalg.inv, np.linalg.inv, (A,)),
    "det": (linalg.det, np.linalg.det, (A,)),
    "slogdet": (lambda a: linalg.slogdet(a).logabsdet, lambda a: np.linalg.slogdet(a)[1], (A,)),
    "logdet": (sg.logdet, lambda a: np.log(np.linalg.det(a)), (POSITIVE,)),
    "solve": (linalg.solve, np.linalg.solve, (A, B)),
    "solve of one matrix": (linalg.solve, np.linalg.solve, (A[0], B)),
    "solve of vectors": (linalg.solve, lambda a, b: np.linalg.solve(a, b[..., None])[..., 0], (A, B[..., 0])),
    "solve of one vector": (linalg.solve, np.linalg.solve, (A[0], B[0, :, 0])),
    "solve from the right": (
        lambda a, b: linalg.solve(a, b, left=False), lambda a, b: b @ np.linalg.inv(a), (A, T(B)),
    ),
    "solve_triangular": (
        lambda a, b: linalg.solve_triangular(a, b, upper=True), lambda a, b: np.linalg.inv(np.triu(a)) @ b, (A, B),
    ),
    "solve_triangular from the right, ones on the diagonal": (
        lambda a, b: linalg.solve_triangular(a, b, upper=False, left=False, unitriangular=True),
        lambda a, b: b @ np.linalg.inv(np.tril(a, -1) + np.eye(3)), (A, T(B)),
    ),
    "cholesky": (lambda a: linalg.cholesky(symmetric(a)), lambda a: np.linalg.cholesky((a + T(a)) / 2), (POSITIVE,)),
    "cholesky upper": (
        lambda a: linalg.cholesky(symmetric(a), upper=True), lambda a: T(np.linalg.cholesky((a + T(a)) / 2)),
        (POSITIVE,),
    ),
    "cholesky_solve": (
        sg.cholesky_solve, lambda b, a: np.linalg.inv(np.tril(a) @ T(np.tril(a))) @ b, (B, A),
    ),
    "cholesky_solve upper": (
        lambda b, a: sg.cholesky_solve(b, a, upper=True), lambda b, a: np.linalg.inv(T(np.triu(a)) @ np.triu(a)) @ b,
        (B, A),
    ),
    "cholesky_inverse": (sg.cholesky_inverse, lambda a: np.linalg.inv(np.tril(a) @ T(np.tril(a))), (A,)),
    "qr": (
        lambda a: linalg.qr(a).Q @ linalg.qr(a).R.cos(), lambda a: np.linalg.qr(a)[0] @ np.cos(np.linalg.qr(a)[1]),
        (TALL,),
    ),
    "qr of wide matrices": (
        lambda a: linalg.qr(a).Q @ linalg.qr(a).R.cos(), lambda a: np.linalg.qr(a)[0] @ np.cos(np.linalg.qr(a)[1]),
        (WIDE,),
    ),
    "qr without Q": (lambda a: linalg.qr(a, "r").R, lambda a: np.linalg.qr(a)[1], (TALL,)),
    "eigh": (
        lambda a: linalg.eigh(symmetric(a)).eigenvectors ** 2 + linalg.eigh(symmetric(a)).eigenvalues.unsqueeze(-1),
        lambda a: np.linalg.eigh((a + T(a)) / 2)[1] ** 2 + np.linalg.eigh((a + T(a)) / 2)[0][..., None], (A,),
    ),
    "eigvalsh": (lambda a: linalg.eigvalsh(symmetric(a)), lambda a: np.linalg.eigvalsh((a + T(a)) / 2), (A,)),
    "svdvals": (linalg.svdvals, each(lambda a: np.linalg.svd(a, compute_uv=False)), (WIDE,)),
    **{
        f"svd {name}": (
            lambda a: (lambda u, s, vh: (u * u * s.unsqueeze(-2)) @ (vh * vh))(*linalg.svd(a, full_matrices=False)),
            lambda a: (lambda u, s, vh: (u * u * s[..., None, :]) @ (vh * vh))(*np.linalg.svd(a, full_matrices=False)),
            (operand,),
        )
        for name, operand in (("tall", TALL), ("wide", WIDE), ("square", A))
    },
    "pinv": (linalg.pinv, np.linalg.pinv, (TALL,)),
    "pinv of wide matrices": (linalg.pinv, np.linalg.pinv, (WIDE,)),
    "lstsq": (
        lambda a, b: linalg.lstsq(a, b).solution, each(lambda a, b: np.linalg.lstsq(a, b)[0]),
        (TALL, TALL[..., :2] + 1),
    ),
    "lstsq residuals": (
        lambda a, b: linalg.lstsq(a, b).residuals, each(lambda a, b: np.linalg.lstsq(a, b)[1]),
        (TALL, TALL[..., :2] ** 2),
    ),
    "lstsq of vectors": (
        lambda a, b: linalg.lstsq(a, b).solution, each(lambda a, b: np.linalg.lstsq(a, b)[0]), (WIDE, WIDE[..., 0]),
    ),
    "matrix_power": (lambda a: linalg.matrix_power(a, 5), lambda a: np.linalg.matrix_power(a, 5), (A,)),
    "negative matrix_power": (lambda a: linalg.matrix_power(a, -2), lambda a: np.linalg.matrix_power(a, -2), (A,)),
    "first matrix_power": (lambda a: linalg.matrix_power(a, 1), lambda a: a, (A,)),
    "matrix_exp": (linalg.matrix_exp, exponential, (A,)),
    **{
        f"matrix_norm {order}": (lambda a, order=order: linalg.matrix_norm(a, order), norm_of(order), (TALL,))
        for order in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)
    },
    "matrix_norm of other dimensions": (
        lambda a: linalg.matrix_norm(a, 1, dim=(2, 0), keepdim=True),
        lambda a: np.abs(a).sum(2).max(0)[None, :, None], (TALL,),
    ),
    "norm of all": (linalg.norm, lambda a: np.sqrt((a * a).sum()), (TALL,)),
    "norm of a matrix": (lambda a: linalg.norm(a, 1), lambda a: np.linalg.norm(a, 1), (TALL[0],)),
    "norm along one dimension": (
        lambda a: linalg.norm(a, 3, dim=1), lambda a: (np.abs(a) ** 3).sum(1) ** (1 / 3), (TALL,),
    ),
    "vector_norm": (
        lambda a: linalg.vector_norm(a, 4, dim=(0, 2), keepdim=True),
        lambda a: (a**4).sum((0, 2), keepdims=True) ** 0.25, (TALL,),
    ),
    "cond": (linalg.cond, np.linalg.cond, (A,)),
    "cond by a smallest value": (lambda a: linalg.cond(a, -2), lambda a: np.linalg.cond(a, -2), (A,)),
    "cond by a norm": (lambda a: linalg.cond(a, "fro"), lambda a: np.linalg.cond(a, "fro"), (A,)),
    "multi_dot": (
        lambda *m: linalg.multi_dot(m), lambda *m: np.linalg.multi_dot(m), (TALL[0], WIDE[0], TALL[1], A[0], WIDE[1]),
    ),
    "multi_dot between vectors": (
        lambda *m: linalg.multi_dot(m), lambda *m: np.linalg.multi_dot(m), (B[0, :, 0], WIDE[0], TALL[1], A[0, 0]),
    ),
    "vecdot": (lambda a, b: linalg.vecdot(a, b, dim=1), lambda a, b: (a * b).sum(1), (TALL, TALL + 1)),
    "cross": (linalg.cross, np.cross, (A, A[0] + 1)),
    "vander": (lambda a: linalg.vander(a, N=4), lambda a: a[..., None] ** np.arange(4), (B[0],)),
    "diagonal": (linalg.diagonal, lambda a: np.diagonal(a, axis1=-2, axis2=-1), (A,)),
    "tensorinv": (linalg.tensorinv, np.linalg.tensorinv, (RNG.normal(size=(2, 3, 3, 2)),)),
    "tensorsolve": (
        linalg.tensorsolve, np.linalg.tensorsolve, (RNG.normal(size=(2, 3, 6)), RNG.normal(size=(2, 3))),
    ),
    "tensorsolve of other dimensions": (
        lambda a, b: linalg.tensorsolve(a, b, dims=(0, 2)), lambda a, b: np.linalg.tensorsolve(a, b, (0, 2)),
        (RNG.normal(size=(2, 6, 3)), RNG.normal(size=6)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_function_agrees_with_numpy_and_its_gradients_with_differences(name):
    function, oracle, operands = CASES[name]
    got = function(*map(sg.tensor, operands))
    np.testing.assert_allclose(got.numpy(), oracle(*operands), 1e-9, 1e-11)
    check_gradients(function, *operands)


@pytest.mark.parametrize("name", CASES)
def test_float32_agrees_with_float64_and_half_precision_nearly(name):
    """Rounding the operands alone moves results and gradients of an inverse by several roundings."""
    function, _, operands = CASES[name]
    check_half_precision(function, *operands, tolerance=0.5)


@pytest.mark.parametrize("name", CASES)
def test_operands_may_lie_in_any_order(name):
    function, oracle, operands = CASES[name]
    strided = [sg.tensor(np.repeat(a.T, 2, 0))[::2].permute(*reversed(range(a.ndim))) for a in operands]
    assert not all(x.is_contiguous() for x in strided)
    np.testing.assert_allclose(function(*strided).numpy(), oracle(*operands), 1e-9, 1e-11)


@pytest.mark.parametrize("name", [n for n, (*_, operands) in CASES.items() if all(a.ndim > 2 for a in operands)])
def test_a_batch_without_matrices_has_an_empty_result_and_gradient(name):
    function, _, operands = CASES[name]
    if name in ("norm of all", "vector_norm", "matrix_norm of other dimensions") or "tensor" in name:
        return  # these reduce the batch, or have none
    leaves = [leaf(a[:0]) for a in operands]
    result = function(*leaves)
    result.sum().backward()
    assert result.numel() == 0
    assert all(x.grad.shape == x.shape for x in leaves)


def test_the_determinant_of_a_singular_matrix_has_its_gradient():
    """The cofactors, which no inverse gives: of rank 2 they are not zero, below all are."""
    of_rank_2 = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    x = leaf(of_rank_2)
    linalg.det(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), [[-3, 6, -3], [6, -12, 6], [-3, 6, -3]], 1e-9, 1e-9)
    check_gradients(linalg.det, of_rank_2)
    check_gradients(linalg.det, np.outer([1.0, 2, 3], [3, 1, 2]))
    check_gradients(linalg.det, np.zeros((2, 3, 3)))
    check_gradients(linalg.det, np.diag([1.0, 0, 2, 3]))


def test_equal_eigenvalues_have_a_gradient_where_no_vector_counts():
    x = leaf(np.eye(3))
    linalg.eigvalsh(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.eye(3), 1e-12, 1e-12)
    x = leaf(np.eye(3))
    linalg.svdvals(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.eye(3), 1e-12, 1e-12)
    x = leaf(np.eye(3))
    linalg.eigh(x).eigenvectors[0].sum().backward()
    assert not np.isfinite(x.grad.numpy()).all()


def test_the_gradient_of_symmetric_factorizations_is_symmetric():
    for function in (linalg.cholesky, lambda a: linalg.eigh(a).eigenvectors, linalg.eigvalsh):
        x = leaf(POSITIVE)
        (function(x) ** 3).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), T(x.grad.numpy()), 1e-12, 1e-12)


def test_factors_have_the_properties_that_name_them():
    q, r = linalg.qr(sg.tensor(TALL), mode="complete")
    assert (q.shape, r.shape) == ((2, 4, 4), (2, 4, 3))
    np.testing.assert_allclose((q @ r).numpy(), TALL, 1e-9, 1e-12)
    u, s, vh = linalg.svd(sg.tensor(WIDE))
    assert (u.shape, s.shape, vh.shape) == ((2, 3, 3), (2, 3), (2, 4, 4))
    np.testing.assert_allclose((vh @ vh.mT).numpy(), np.broadcast_to(np.eye(4), (2, 4, 4)), 1e-9, 1e-12)
    assert linalg.qr(sg.tensor(TALL), mode="r").Q.shape == (0,)
    values, vectors = linalg.eigh(sg.tensor(A), "U")
    upper = np.triu(A) + T(np.triu(A, 1))
    np.testing.assert_allclose((vectors * values.unsqueeze(-2) @ vectors.mT).numpy(), upper, 1e-9, 1e-12)


def test_vectors_that_only_complete_a_basis_have_no_gradient():
    x = leaf(WIDE)
    u, s, vh = linalg.svd(x)
    (u.sum() + s.sum() + vh[:, :3].sum()).backward(retain_graph=True)
    y = leaf(WIDE)
    u, s, few = linalg.svd(y, full_matrices=False)
    (u.sum() + s.sum() + few.sum()).backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), 1e-9, 1e-9)
    with pytest.raises(GraphError, match="full_matrices=False"):
        vh.sum().backward()
    with pytest.raises(GraphError, match=r"not differentiable when mode=\"complete\" and nrows > ncols"):
        linalg.qr(leaf(TALL), mode="complete").R.sum().backward()


def test_ranks_and_pseudoinverses_take_cutoffs():
    deficient = np.array([[1.0, 2], [2, 4], [0, 0]])
    assert linalg.matrix_rank(sg.tensor(deficient)).item() == 1
    assert linalg.matrix_rank(sg.tensor(A)).tolist() == [3, 3]
    assert linalg.matrix_rank(sg.tensor(np.diag([3.0, 2, 1])), atol=1.5).item() == 2
    assert linalg.matrix_rank(sg.tensor(np.diag([4.0, 2, 1])), rtol=0.3, hermitian=True).item() == 2
    np.testing.assert_allclose(linalg.pinv(sg.tensor(deficient)).numpy(), np.linalg.pinv(deficient), 1e-9, 1e-12)
    cut = linalg.pinv(sg.tensor(np.diag([4.0, 2, 1])), atol=1.5)
    np.testing.assert_allclose(cut.numpy(), np.diag([0.25, 0.5, 0]), 1e-9, 1e-12)
    assert linalg.lstsq(sg.tensor(TALL), sg.tensor(TALL)).rank.tolist() == [3, 3]
    assert linalg.lstsq(sg.tensor(WIDE), sg.tensor(WIDE), driver="gelsd").singular_values.shape == (2, 3)


@pytest.mark.parametrize("bounds", [{"rtol": [0.5, 0.9, 0.1]}, {"atol": [2.5, 0.0, 5.0]}, {"atol": [2.5], "rtol": 0.9}])
def test_a_tensor_of_cutoffs_has_one_for_each_matrix(bounds):
    batch = np.stack([np.diag([1.0, 2, 3]), np.diag([1e-17, 2, 3]), np.diag([4.0, 4, 1])])
    for function in (linalg.matrix_rank, linalg.pinv):
        got = function(sg.tensor(batch), **{key: sg.tensor(b, dtype=sg.float64) for key, b in bounds.items()})
        for i, matrix in enumerate(batch):
            single = {key: b if isinstance(b, float) else b[i % len(b)] for key, b in bounds.items()}
            np.testing.assert_allclose(got[i].numpy(), function(sg.tensor(matrix), **single).numpy(), rtol=1e-12)


def test_determinants_of_other_signs_and_none():
    sign, logarithm = linalg.slogdet(sg.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert (sign.item(), logarithm.item()) == (-1, 0)
    assert math.isnan(sg.logdet(sg.tensor([[0.0, 1.0], [1.0, 0.0]])).item())
    singular = linalg.slogdet(sg.ones(2, 2))
    assert (singular.sign.item(), singular.logabsdet.item()) == (0, -math.inf)
    assert linalg.det(sg.zeros(0, 0)).item() == 1


def test_matrices_without_elements_have_factors_without_elements():
    assert linalg.inv(sg.zeros(0, 0)).shape == (0, 0)
    assert [x.shape for x in linalg.svd(sg.zeros(0, 3), full_matrices=False)] == [(0, 0), (0,), (0, 3)]
    assert [x.shape for x in linalg.qr(sg.zeros(3, 0))] == [(3, 0), (0, 0)]
    assert linalg.pinv(sg.zeros(0, 3)).shape == (3, 0)
    assert linalg.matrix_rank(sg.zeros(0, 3)).item() == 0
    assert [x.shape for x in linalg.eigh(sg.zeros(0, 0))] == [(0,), (0, 0)]


def test_a_power_of_zero_is_the_identity_and_conditions_may_be_infinite():
    np.testing.assert_array_equal(linalg.matrix_power(sg.tensor(A), 0).numpy(), np.broadcast_to(np.eye(3), A.shape))
    first = leaf(A)
    assert linalg.matrix_power(first, 1) is not first
    assert linalg.cond(sg.ones(2, 2), 1).item() == math.inf
    np.testing.assert_array_equal(linalg.matrix_exp(sg.zeros(2, 2)).numpy(), np.eye(2))


def test_the_names_outside_linalg_are_the_same_functions():
    assert (sg.inverse, sg.det, sg.pinverse) == (linalg.inv, linalg.det, linalg.pinv)
    assert all(callable(getattr(linalg, name)) for name in linalg.__all__)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.inv(sg.ones(2, 2)), LinAlgError, r"linalg\.inv: .* matrix is singular: use linalg\.pinv"),
        (lambda: linalg.inv(sg.ones(2, 3)), ShapeError, "must be batches of square matrices, but they are 2 by 3"),
        (lambda: linalg.inv(sg.ones(3)), ShapeError, r"must have at least 2 dimensions, got \(3,\)"),
        (lambda: linalg.inv(sg.ones(2, 2, dtype="int64")), DtypeError, r"linalg\.inv: got a tensor of int64"),
        (lambda: linalg.cholesky(-sg.ones(2, 2)), LinAlgError, "not positive-definite: add a multiple"),
        (lambda: linalg.svd(sg.full((2, 2), math.nan)), LinAlgError, "NaN or infinite"),
        (lambda: linalg.matrix_exp(sg.full((2, 2), math.nan)), LinAlgError, "NaN or infinite"),
        (lambda: linalg.solve(sg.ones(2, 2), sg.ones(3, 2)), ShapeError, r"Incompatible shapes of A and B.*\(3, 2\)"),
        (lambda: linalg.solve(sg.eye(2), sg.ones(2, dtype="float64")), DtypeError, "got A float32 and B float64"),
        (lambda: linalg.solve(sg.eye(2), sg.tensor(1.0)), ShapeError, "wanted a vector or matrices"),
        (lambda: linalg.solve(sg.eye(2), sg.ones(2), left=False), ArgumentError, "left=False"),
        (lambda: linalg.qr(sg.eye(2), mode="full"), ArgumentError, 'one of "reduced", "complete" and "r"'),
        (lambda: linalg.eigh(sg.eye(2), "X"), ArgumentError, "UPLO"),
        (lambda: linalg.lstsq(sg.eye(2), sg.ones(2), driver="qr"), ArgumentError, "driver"),
        (lambda: linalg.lstsq(sg.eye(2), sg.ones(3, 1)), ShapeError, "with one m"),
        (lambda: linalg.matrix_norm(sg.eye(2), 3), ArgumentError, "got ord 3; accepted"),
        (lambda: linalg.matrix_norm(sg.eye(2), 1, dim=(0,)), ArgumentError, "2-tuple"),
        (lambda: linalg.vector_norm(sg.eye(2), "fro"), ArgumentError, "matrix_norm takes names"),
        (lambda: linalg.norm(sg.ones(2, 2, 2), 2), ArgumentError, "must be 1D or 2D"),
        (lambda: linalg.cond(sg.ones(2, 2, 2), 1), ArgumentError, "singular matrices in a batch"),
        (lambda: linalg.multi_dot([sg.eye(2)]), ArgumentError, "at least 2 tensors"),
        (lambda: linalg.multi_dot([sg.eye(2), sg.eye(3)]), ShapeError, "cannot be multiplied"),
        (lambda: linalg.multi_dot([sg.eye(2), sg.ones(2), sg.eye(2)]), ShapeError, "as tensor 1"),
        (lambda: linalg.vander(sg.ones(3), N=1), ArgumentError, "greater than 1"),
        (lambda: linalg.tensorinv(sg.ones(2, 3), 1), ShapeError, "equally many"),
        (lambda: linalg.tensorsolve(sg.ones(2, 3), sg.ones(2)), ShapeError, "as many elements"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_singular_matrix_is_a_runtime_error_and_a_value_error():
    for kind in (RuntimeError, ValueError, linalg.LinAlgError):
        with pytest.raises(kind):
            linalg.solve(sg.zeros(2, 2), sg.ones(2, 1))
