"""Reductions, products, linear algebra and indexing of complex tensors: gradients against central differences."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ComplexDtypeError, GradcheckError, GraphError
from spillgrad.ops.operation import operation

linalg, functional = sg.linalg, sg.nn.functional
PLACES, POSITIONS = sg.tensor([2, 0, 1, 2]), sg.tensor([[0, 2, 1], [1, 1, 0]])
MASK = sg.tensor([[True, False, True], [False, False, True]])


def numbers(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return sg.tensor(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), requires_grad=True)


def without_phase(vectors):
    return (vectors * vectors.conj()).real


def of_eigenvectors(function):
    def values(a):
        found, vectors = function(a)
        return found, without_phase(vectors)

    return values


def of_svd(a):
    u, s, vh = linalg.svd(a, full_matrices=False)
    return without_phase(u), s, u @ vh


# A function, and the shapes of its complex operands.
CASES = {
    "sum": (lambda a: a.sum(0), (2, 3)),
    "mean": (lambda a: a.mean(1), (2, 3)),
    "prod": (lambda a: a.prod(1), (2, 3)),
    "cumsum": (lambda a: a.cumsum(1), (2, 3)),
    "cumprod": (lambda a: a.cumprod(1), (2, 3)),
    "var": (lambda a: a.var(1), (2, 3)),
    "std": (lambda a: a.std(), (2, 3)),
    "norm": (lambda a: a.norm(dim=1), (2, 3)),
    "norm of order 3": (lambda a: a.norm(3), (2, 3)),
    "logsumexp": (lambda a: a.logsumexp(1), (2, 3)),
    "mm": (lambda a, b: a @ b, (2, 3), (3, 2)),
    "batches by one matrix": (lambda a, b: a @ b, (2, 2, 3), (3, 2)),
    "mv": (lambda a, b: a @ b, (2, 3), (3,)),
    "dot": (lambda a, b: a @ b, (3,), (3,)),
    "vdot": (sg.vdot, (3,), (3,)),
    "linear": (functional.linear, (2, 3), (4, 3), (4,)),
    "einsum": (lambda a, b: sg.einsum("ij,ij->i", a, b), (2, 3), (2, 3)),
    "inv": (linalg.inv, (2, 2)),
    "det": (linalg.det, (2, 2)),
    "slogdet": (lambda a: tuple(linalg.slogdet(a)), (2, 2)),
    "solve": (linalg.solve, (2, 2), (2, 1)),
    "cholesky": (lambda a: linalg.cholesky(a @ a.mH + 2 * sg.eye(2, dtype=a.dtype)), (2, 2)),
    "qr": (lambda a: tuple(linalg.qr(a)), (3, 2)),
    "eigh": (lambda a: of_eigenvectors(linalg.eigh)(a + a.mH), (2, 2)),
    "eig": (of_eigenvectors(linalg.eig), (2, 2)),
    "svd": (of_svd, (3, 2)),
    "pinv": (linalg.pinv, (3, 2)),
    "matrix_exp": (linalg.matrix_exp, (2, 2)),
    "vecdot": (linalg.vecdot, (2, 3), (2, 3)),
    "cov": (sg.cov, (2, 3)),
    "fft": (sg.fft.fft, (4,)),
    "irfft": (sg.fft.irfft, (3,)),
    "an index of tensors": (lambda a: a[sg.tensor([0, 0, 1])], (2, 3)),
    "a mask": (lambda a: a[MASK], (2, 3)),
    "gather": (lambda a: a.gather(1, POSITIONS), (2, 3)),
    "scatter_add": (lambda a, b: a.scatter_add(1, POSITIONS, b), (2, 3), (2, 3)),
    "index_add": (lambda a, b: a.index_add(1, PLACES, b), (2, 3), (2, 4)),
    "masked_fill": (lambda a: a.masked_fill(MASK, 2j), (2, 3)),
    "embedding": (lambda a: functional.embedding(PLACES, a), (3, 2)),
    "pad": (lambda a: functional.pad(a, (1, 1), mode="reflect"), (2, 3)),
    "unfold": (lambda a: a.unfold(1, 2, 1), (2, 3)),
    "as_strided": (lambda a: a.as_strided((2, 2), (1, 1)), (4,)),
    "repeat_interleave": (lambda a: a.repeat_interleave(2, 1), (2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_right(name):
    function, *shapes = CASES[name]
    inputs = [numbers(*shape, seed=number) for number, shape in enumerate(shapes)]
    assert sg.autograd.gradcheck(function, inputs)
    assert sg.autograd.gradgradcheck(function, inputs)


def test_eigenvalues_of_real_matrices_are_complex_with_real_gradients():
    turn = sg.tensor([[0.0, -2.0], [2.0, 0.0]], dtype="float64", requires_grad=True)
    np.testing.assert_allclose(sorted(linalg.eigvals(turn).tolist(), key=lambda z: z.imag), [-2j, 2j])
    assert sg.autograd.gradcheck(linalg.eigvals, turn)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_gradcheck_finds_a_gradient_that_is_not_conjugated(fast_mode):
    wrong = operation("wrong", lambda self: self * 2j, self=lambda g: g * 2j)
    with pytest.raises(GradcheckError, match=r"the (real|imaginary) part of output 0"):
        sg.autograd.gradcheck(wrong, numbers(2), fast_mode=fast_mode)


def test_draws_have_a_variance_of_one_in_all():
    sg.manual_seed(0)
    drawn = sg.randn(20000, dtype="complex64")
    assert abs(drawn.real.var().item() - 0.5) < 0.02
    assert abs(drawn.imag.var().item() - 0.5) < 0.02
    filled = sg.nn.init.normal_(sg.empty(20000, dtype="complex64"), 3.0, 2.0)
    assert abs(filled.var().item() - 4) < 0.15
    assert abs(filled.mean().item() - 3) < 0.05


@pytest.mark.parametrize("name", ["sort", "argmax", "amin", "median", "max", "msort", "argsort", "nanmedian"])
def test_what_needs_an_order_is_refused(name):
    with pytest.raises(ComplexDtypeError, match="does not support complex input"):
        getattr(sg, name)(numbers(3))


@pytest.mark.parametrize(
    "call",
    [
        lambda: numbers(4, 3).index_reduce(0, PLACES, numbers(4, 3), "amax"),
        lambda: numbers(2, 3).scatter_reduce(0, POSITIONS, numbers(2, 3), "amin"),
        lambda: functional.embedding_bag(POSITIONS, numbers(4, 3), mode="max"),
        lambda: functional.grid_sample(sg.randn(1, 1, 2, 2), numbers(1, 2, 2, 2), align_corners=False),
    ],
    ids=["index_reduce", "scatter_reduce", "embedding_bag", "grid_sample"],
)
def test_positions_and_extremes_of_slices_are_real(call):
    with pytest.raises(ComplexDtypeError, match="complex"):
        call()


def test_means_of_slices_are_complex():
    total, part = numbers(4, 3), numbers(4, 3, seed=1)
    means = total.index_reduce(0, PLACES, part, "mean", include_self=False)
    np.testing.assert_allclose(means.detach().numpy()[2], part.detach().numpy()[[0, 3]].mean(0))


DECOMPOSED = {
    "eigenvectors of Hermitian matrices": (lambda a: linalg.eigh(a + a.mH).eigenvectors, (4, 4)),
    "eigenvectors": (lambda a: linalg.eig(a).eigenvectors, (4, 4)),
    "singular vectors": (lambda a: linalg.svd(a, full_matrices=False).U, (4, 3)),
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e8])
@pytest.mark.parametrize("case", DECOMPOSED)
def test_a_gradient_that_depends_on_the_phase_of_vectors_is_refused_whatever_its_size(case, size, dtype):
    function, shape = DECOMPOSED[case]
    with pytest.raises(GraphError, match="phi"):
        (function(numbers(*shape).to(dtype)).real.sum() * size).backward()
    vectors = function(numbers(*shape).to(dtype))
    weights = sg.arange(12.0).reshape(4, 3).to(vectors.real.dtype)
    parts = without_phase(vectors)[:, :3]
    # A sum that grows in no vector's own direction: the diagonal is zero but for rounding, beside large elements.
    weights = weights - (weights * parts.detach()).sum(0)
    ((parts * weights).sum() * size).backward()
    (without_phase(function(numbers(*shape).to(dtype))).sum() * size / 1e8).backward()
