"""Factorizations of matrices. A gradient that would depend on an arbitrary choice of vectors is infinite."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import ArgumentError, GraphError
from spillgrad.ops.arithmetic import add, mul, sub
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.complex_views import COMPLEX_OF, conjugate, real
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.diagonals import tril, triu
from spillgrad.ops.indexing import diagonal
from spillgrad.ops.join_split import cat, narrow
from spillgrad.ops.lapack import identity_like, lapack, mH, quotient, require_matrices, require_square
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.operation import operation
from spillgrad.ops.shape import unsqueeze
from spillgrad.ops.solving import solve, solve_triangular
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import zeros_beside

__all__ = ["cholesky", "eig", "eigh", "eigvals", "eigvalsh", "qr", "svd", "svdvals"]

# --- Cholesky --------------------------------------------------------------------------------------------------------


def _cholesky_gradient(g: Tensor, result: Tensor) -> Tensor:
    """Return the gradient by A. Source: Murray 2016, "Differentiation of the Cholesky decomposition", equation 9."""
    product = matmul(mH(result), g)
    half = sub(tril(product), mul(_diagonal_matrix(diagonal(product, 0, -2, -1)), 0.5))
    left = solve_triangular(mH(result), half, upper=True)
    by_input = solve_triangular(result, left, upper=False, left=False)
    return mul(add(by_input, mH(by_input)), 0.5)


def _diagonal_matrix(values: Tensor) -> Tensor:
    return mul(unsqueeze(values, -1), identity_like(unsqueeze(values, -1)))


_cholesky: Callable[..., Tensor] = operation(
    "linalg_cholesky_ex", lambda A: lapack("linalg.cholesky", np.linalg.cholesky, A), A=_cholesky_gradient
)


@declare(method=True)
@float32_in_autocast
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Return the lower triangular L with L Lᴴ = A.

    Only one triangle of A is read; the gradient by A is symmetric, for complex matrices Hermitian.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n), symmetric (complex: Hermitian) and positive definite.
    upper : bool, default False
        Whether to return the conjugate transpose of L, from the upper triangle.

    Returns
    -------
    Tensor
        Of the shape of `A`.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        If the numbers are integers.
    LinAlgError
        If a matrix is not positive definite.
    """
    require_square("linalg.cholesky", A)
    return mH(_cholesky(mH(A))) if upper else _cholesky(A)


# --- QR --------------------------------------------------------------------------------------------------------------


class QR(NamedTuple):
    """A QR decomposition: A = Q R, with orthonormal columns in Q and upper triangular R."""

    Q: Tensor
    R: Tensor


def _qr_gradient(grads: tuple[Tensor, Tensor], Q: Tensor, R: Tensor) -> Tensor:
    """Return the gradient by A.

    Source: Walter & Lehmann 2012, "Algorithmic differentiation of linear algebra functions", section 3.2.
    """
    by_q, by_r = grads
    upper = triu(sub(matmul(by_r, mH(R)), matmul(mH(Q), by_q)))
    # The diagonal of R is real.
    symmetric = sub(add(upper, mH(upper)), _diagonal_matrix(real(diagonal(upper, 0, -2, -1))))
    return solve_triangular(mH(R), add(by_q, matmul(Q, symmetric)), upper=False, left=False)


_qr: Any = operation(
    "linalg_qr", lambda A: lapack("linalg.qr", lambda a: tuple(np.linalg.qr(a)), A), outputs=("Q", "R"), A=_qr_gradient
)


def _no_gradient(grads: Any) -> Tensor:
    raise GraphError(
        'linalg.qr: The QR decomposition is not differentiable when mode="complete" and nrows > ncols: the columns '
        'that complete Q are arbitrary; use mode="reduced"'
    )


_complete_qr: Any = operation(
    "linalg_qr", lambda A: lapack("linalg.qr", lambda a: tuple(np.linalg.qr(a, mode="complete")), A),
    outputs=("Q", "R"), A=_no_gradient,
)  # fmt: skip


@declare(method=True)
@float32_in_autocast
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Return Q with orthonormal columns and the upper triangular R with Q R = A.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    mode : {"reduced", "complete", "r"}, default "reduced"
        With "reduced", Q has k = min(m, n) columns. With "complete", it has k = m, and there is no gradient if m > n.
        With "r", Q is empty, and R has a gradient (PyTorch's has none).

    Returns
    -------
    QR
        Q of shape (..., m, k), and R of shape (..., k, n).

    Raises
    ------
    ShapeError
        If there are fewer than two dimensions.
    DtypeError
        If the numbers are integers.
    ArgumentError
        If `mode` is another word.
    """
    require_matrices("linalg.qr", A)
    rows, columns = A.shape[-2:]
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f'linalg.qr: got mode {mode!r}; expected one of "reduced", "complete" and "r"')
    if mode == "complete" and rows > columns:
        return QR(*_complete_qr(A))
    if rows < columns:  # the first columns make Q, and Q makes the other columns of R
        Q, triangle = _qr(narrow(A, -1, 0, rows))
        R = cat([triangle, matmul(mH(Q), narrow(A, -1, rows, columns - rows))], -1)
    else:
        Q, R = _qr(A)
    return QR(Tensor.wrap(zeros_beside(A.array, (0,), A.dtype)) if mode == "r" else Q, R)


def _require_free_phase(name: str, vectors: str, *pairs: tuple[Tensor, Tensor]) -> None:
    """Raise GraphError if a gradient changes as complex vectors are multiplied by a number of absolute value 1.

    Each pair is a gradient by vectors in columns, and the conjugate vectors times it. The imaginary parts of the
    products' diagonals add up to that change, which must be below a hundredth of the matrix's largest gradient.
    """
    if not pairs[0][0].is_complex():
        return
    change: Any = 0.0
    size: Any = 0.0
    for gradient, product in pairs:
        change = change + np.diagonal(product.host_array(), 0, -2, -1).imag
        columns = np.linalg.norm(gradient.host_array(), axis=-2)
        size = np.maximum(size, columns.max(-1, keepdims=True, initial=0.0))
    # A gradient that is zero but for rounding has any phase.
    least = math.sqrt(np.finfo(gradient.numpy_dtype).eps)
    if not np.all(np.abs(change) <= 1e-2 * np.maximum(size, least)):
        raise GraphError(
            f"{name}: The {vectors} in the complex case are specified up to multiplication by e^{{i phi}}. The "
            "specified loss function depends on this quantity, so it is ill-defined; use abs() of them"
        )


# --- Eigenvalues -----------------------------------------------------------------------------------------------------


class Eigh(NamedTuple):
    """The eigenvalues of a symmetric or Hermitian matrix in ascending order, and its eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _distances(values: Tensor) -> Tensor:
    """Return the matrix with values[j] - values[i] at (i, j) off the diagonal, and 1 on the diagonal."""
    return add(sub(unsqueeze(values, -2), unsqueeze(values, -1)), identity_like(unsqueeze(values, -1)))


def _eigh_gradient(grads: tuple[Tensor, Tensor], eigenvalues: Tensor, eigenvectors: Tensor) -> Tensor:
    """Return the gradient by A.

    Source: Giles 2008, "An extended collection of matrix derivative results", section 3.1.
    """
    by_values, by_vectors = grads
    turned = matmul(mH(eigenvectors), by_vectors)
    _require_free_phase("linalg.eigh", "eigenvectors", (by_vectors, turned))
    turned = sub(turned, _diagonal_matrix(diagonal(turned, 0, -2, -1)))
    inner = add(quotient(turned, _distances(eigenvalues)), _diagonal_matrix(by_values))
    result = matmul(matmul(eigenvectors, inner), mH(eigenvectors))
    return mul(add(result, mH(result)), 0.5)


_eigh: Any = operation(
    "linalg_eigh", lambda A, UPLO: lapack("linalg.eigh", lambda a: tuple(np.linalg.eigh(a, UPLO)), A),
    outputs=("eigenvalues", "eigenvectors"), A=_eigh_gradient,
)  # fmt: skip


@declare(numpy="linalg.eigh")
@float32_in_autocast
def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Return the real eigenvalues and the eigenvectors of symmetric matrices, or of complex Hermitian ones.

    The gradient holds for symmetric changes of A. It is infinite if equal eigenvalues leave the eigenvectors arbitrary
    and the result depends on these eigenvectors.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n).
    UPLO : {"L", "U"}, default "L"
        Whether the lower or the upper triangle is read.

    Returns
    -------
    Eigh
        Eigenvalues in ascending order, of shape (..., n), and eigenvectors as columns, of shape (..., n, n).

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        If the numbers are integers.
    ArgumentError
        If `UPLO` is another word.
    LinAlgError
        If the algorithm does not converge.
    GraphError
        In backward, if the result depends on the phase of complex eigenvectors.
    """
    require_square("linalg.eigh", A)
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f'linalg.eigh: Expected UPLO argument to be "L" or "U", got {UPLO!r}')
    return Eigh(*_eigh(A, UPLO.upper()))


@declare(numpy="linalg.eigvalsh")
@float32_in_autocast
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Return the eigenvalues of symmetric matrices in ascending order (see `eigh`).

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n).
    UPLO : {"L", "U"}, default "L"
        Whether the lower or the upper triangle is read.

    Returns
    -------
    Tensor
        Of shape (..., n).
    """
    return eigh(A, UPLO).eigenvalues


class Eig(NamedTuple):
    """The complex eigenvalues of a square matrix, and its eigenvectors of length 1 as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _eig_gradient(grads: tuple[Tensor, Tensor], eigenvalues: Tensor, eigenvectors: Tensor) -> Tensor:
    """Return the gradient by A.

    Source: Boeddeker et al. 2017, "On the computation of complex-valued gradients", section 4.7; the vectors have
    length 1.
    """
    by_values, by_vectors = grads
    V, VH = eigenvectors, mH(eigenvectors)
    turned = matmul(VH, by_vectors)
    _require_free_phase("linalg.eig", "eigenvectors", (by_vectors, turned))
    turned = sub(turned, mul(matmul(VH, V), unsqueeze(real(diagonal(turned, 0, -2, -1)), -2)))
    off_diagonal = sub(turned, _diagonal_matrix(diagonal(turned, 0, -2, -1)))
    inner = add(quotient(off_diagonal, conjugate(_distances(eigenvalues))), _diagonal_matrix(by_values))
    return solve(VH, matmul(inner, VH))


def _eig_forward(A: np.ndarray) -> Any:
    return lapack("linalg.eig", lambda a: tuple(np.linalg.eig(a)), A)


_eig: Any = operation("linalg_eig", _eig_forward, outputs=("eigenvalues", "eigenvectors"), A=_eig_gradient)


@declare(numpy="linalg.eig")
@float32_in_autocast
def eig(A: Tensor) -> Eig:
    """Return the eigenvalues and eigenvectors of square matrices, as complex numbers in any order.

    The gradient is infinite if equal eigenvalues leave the eigenvectors arbitrary and the result depends on them.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n).

    Returns
    -------
    Eig
        Eigenvalues of shape (..., n), and eigenvectors as columns, of shape (..., n, n).

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        If the numbers are integers.
    LinAlgError
        If the algorithm does not converge.
    GraphError
        In backward, if the result depends on the phase of eigenvectors.
    """
    require_square("linalg.eig", A)
    return Eig(*_eig(to_dtype(A, COMPLEX_OF.get(A.dtype, A.dtype))))


@declare(numpy="linalg.eigvals")
@float32_in_autocast
def eigvals(A: Tensor) -> Tensor:
    """Return the complex eigenvalues of square matrices, in any order (see `eig`).

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n).

    Returns
    -------
    Tensor
        Of shape (..., n).
    """
    return eig(A).eigenvalues


# --- Singular values -------------------------------------------------------------------------------------------------


class SVD(NamedTuple):
    """A singular value decomposition: A = U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _skew(matrix: Tensor) -> Tensor:
    return sub(matrix, mH(matrix))


def _svd_gradient(grads: tuple[Tensor, Tensor, Tensor], U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
    """Return the gradient by A. Source: Townsend 2016, "Differentiating the singular value decomposition"."""
    by_u, by_s, by_vh = grads
    squares = _distances(mul(S, S))
    row, column = unsqueeze(S, -2), unsqueeze(S, -1)
    turned, turned_v = matmul(mH(U), by_u), matmul(Vh, mH(by_vh))
    _require_free_phase("linalg.svd", "singular vectors", (by_u, turned), (mH(by_vh), turned_v))
    # The diagonals are zero, of complex matrices imaginary.
    left, right = quotient(_skew(turned), squares), quotient(_skew(turned_v), squares)
    inner = add(add(mul(left, row), mul(column, right)), _diagonal_matrix(by_s))
    if U.is_complex():
        inner = add(inner, _diagonal_matrix(quotient(diagonal(_skew(turned), 0, -2, -1), mul(S, 2))))
    result = matmul(matmul(U, inner), Vh)
    rank, rows, columns = S.shape[-1], U.shape[-2], Vh.shape[-1]
    if rows > rank:
        beside = sub(by_u, matmul(U, matmul(mH(U), by_u)))
        result = add(result, matmul(quotient(beside, row), Vh))
    if columns > rank:
        beside = sub(by_vh, matmul(matmul(by_vh, mH(Vh)), Vh))
        result = add(result, matmul(U, quotient(beside, column)))
    return result


_svd: Any = operation(
    "linalg_svd", lambda A: lapack("linalg.svd", lambda a: tuple(np.linalg.svd(a, full_matrices=False)), A),
    outputs=("U", "S", "Vh"), A=_svd_gradient,
)  # fmt: skip


def _full_svd_gradient(grads: tuple[Tensor, Tensor, Tensor], U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
    rank = S.shape[-1]
    by_u, by_s, by_vh = grads
    if by_u.array[..., rank:].any() or by_vh.array[..., rank:, :].any():
        raise GraphError(
            "linalg.svd: got a gradient for vectors that only complete U or Vh, which are arbitrary; use "
            "full_matrices=False"
        )
    few = narrow(by_u, -1, 0, rank), by_s, narrow(by_vh, -2, 0, rank)
    return _svd_gradient(few, narrow(U, -1, 0, rank), S, narrow(Vh, -2, 0, rank))


_full_svd: Any = operation(
    "linalg_svd", lambda A: lapack("linalg.svd", lambda a: tuple(np.linalg.svd(a)), A),
    outputs=("U", "S", "Vh"), A=_full_svd_gradient,
)  # fmt: skip


@float32_in_autocast
def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """Return U with orthonormal columns, the singular values S in descending order, and Vh with orthonormal rows.

    The gradient is infinite if equal singular values leave the vectors arbitrary and the result depends on the vectors.
    With `full_matrices`, backward raises GraphError for a gradient of vectors that have no singular value (PyTorch
    drops this gradient).

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n); k is min(m, n).
    full_matrices : bool, default True
        Whether U and Vh are square.
    driver : str, optional
        Has no effect.

    Returns
    -------
    SVD
        U of shape (..., m, k), S of shape (..., k), and Vh of shape (..., k, n); with `full_matrices`, U of shape (...,
        m, m) and Vh of shape (..., n, n).

    Raises
    ------
    ShapeError
        If there are fewer than two dimensions.
    DtypeError
        If the numbers are integers.
    LinAlgError
        If the algorithm does not converge.
    """
    require_matrices("linalg.svd", A)
    rows, columns = A.shape[-2:]
    return SVD(*(_full_svd if full_matrices and rows != columns else _svd)(A))


@float32_in_autocast
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """Return the singular values of matrices in descending order.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    driver : str, optional
        Has no effect.

    Returns
    -------
    Tensor
        Of shape (..., min(m, n)).
    """
    return svd(A, full_matrices=False).S
