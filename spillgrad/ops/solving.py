"""Inverses, determinants, linear systems and least squares; every derivative is made of products and solves."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spillgrad.device.device import CPU, moved
from spillgrad.errors import ArgumentError, LinAlgError, ShapeError
from spillgrad.ops.arithmetic import add, div, log, mul, neg, sub
from spillgrad.ops.array_casts import compute_dtype, require_inexact, require_one_dtype
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.clamp_where import where
from spillgrad.ops.complex_views import conjugate, from_part, imag, real
from spillgrad.ops.convert import clone
from spillgrad.ops.declaration import declare
from spillgrad.ops.diagonals import tril, triu
from spillgrad.ops.elementwise import by_numpy
from spillgrad.ops.indexing import diagonal
from spillgrad.ops.lapack import identity_like, lapack, mH, mT, require_matrices, require_square
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import broadcast_to, reshape, squeeze, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import zeros_beside

__all__ = [
    "det", "inv", "lstsq", "matrix_exp", "matrix_power", "matrix_rank", "pinv", "slogdet", "solve",
    "solve_triangular", "tensorinv", "tensorsolve",
]  # fmt: skip

Shape = tuple[int, ...]
Bound = float | Tensor | None


# --- Inverse and linear systems --------------------------------------------------------------------------------------

_inv: Callable[..., Tensor] = operation(
    "linalg_inv_ex", lambda A: lapack("linalg.inv", np.linalg.inv, A),
    A=lambda g, result: neg(matmul(matmul(mH(result), g), mH(result))),
)  # fmt: skip


@declare(method="inverse")
@float32_in_autocast
def inv(A: Tensor) -> Tensor:
    """Return the inverse of square matrices.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n), of floating-point or complex numbers.

    Returns
    -------
    Tensor
        Of the shape of `A`.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        For integers and bool.
    LinAlgError
        For a singular matrix.
    """
    require_square("linalg.inv", A)
    return _inv(A)


def _solve_gradients(
    g: Tensor, A: Tensor, result: Tensor, A_shape: Shape, B_shape: Shape, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    by_right = _solve(mH(A), g)
    by_matrix = sum_to(neg(matmul(by_right, mH(result))), A_shape) if needs[0] else None
    return by_matrix, sum_to(by_right, B_shape) if needs[1] else None


_solve: Callable[..., Tensor] = operation(
    "linalg_solve_ex", lambda A, B: lapack("linalg.solve", np.linalg.solve, A, B), joint=(("A", "B"), _solve_gradients)
)


def _is_vector(A: Tensor, B: Tensor) -> bool:
    """Return whether the right-hand sides B are vectors: one vector, or one for each matrix of A."""
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])


def _require_rows(name: str, A: Tensor, B: Tensor) -> None:
    try:
        fits = A.shape[-2] == B.shape[-2] and np.broadcast_shapes(A.shape[:-2], B.shape[:-2]) is not None
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name}: Incompatible shapes of A and B: got {A.shape} and {B.shape}; wanted (..., n, n) and (..., n, k) "
            "with one n and batches that broadcast"
        )


@float32_in_autocast
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Return X with ``A X = B``.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n), of floating-point or complex numbers.
    B : Tensor
        Of shape (..., n, k), one vector (n,), or (..., n), which is a vector for each matrix of `A`. Batches broadcast.
    left : bool, default True
        Whether to solve ``A X = B`` instead of ``X A = B``.

    Returns
    -------
    Tensor
        Of the shape of `B`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        For integers and bool, or if dtypes differ.
    LinAlgError
        For a singular matrix.
    ArgumentError
        For a vector `B` if `left` is False.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.linalg.solve(sg.tensor([[2.0, 0.0], [0.0, 4.0]]), sg.tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    name = "linalg.solve"
    require_square(name, A)
    require_inexact(name, B.dtype)
    require_one_dtype(name, A=A, B=B)
    if not B.ndim:
        raise ShapeError(f"{name}: got B {B.shape}; wanted a vector or matrices")
    if _is_vector(A, B):
        if not left:
            raise ArgumentError(
                f"{name}: Vector broadcasting of the left hand side is not supported for left=False; "
                "give B as a matrix of one row"
            )
        _require_rows(name, A, unsqueeze(B, -1))
        return squeeze(_solve(A, unsqueeze(B, -1)), -1)
    if not left:
        return mT(solve(mT(A), mT(B)))
    _require_rows(name, A, B)
    return _solve(A, B)


@float32_in_autocast
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Return X with ``A X = B``, where A is a triangle of a matrix.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n); its other triangle is ignored.
    B : Tensor
        Of shape (..., n, k); of shape (..., k, n) if `left` is False. Batches broadcast.
    upper : bool
        Whether the upper triangle counts instead of the lower one.
    left : bool, default True
        Whether to solve ``A X = B`` instead of ``X A = B``.
    unitriangular : bool, default False
        Whether the diagonal counts as ones.

    Returns
    -------
    Tensor
        Of the shape of `B`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        For integers and bool.
    LinAlgError
        For a singular triangle.
    """
    name = "linalg.solve_triangular"
    require_square(name, A)
    require_matrices(name, A, B)
    triangle = triu if upper else tril
    A = triangle(A, 1 if upper else -1) + identity_like(A) if unitriangular else triangle(A)
    if not left:
        A, B = mT(A), mT(B)
    _require_rows(name, A, B)
    result = _solve(A, B)
    return result if left else mT(result)


@declare(method=True)
@float32_in_autocast
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """Return X with ``L Lᴴ X = B``.

    Parameters
    ----------
    B : Tensor
        Of shape (..., n, k).
    L : Tensor
        Of shape (..., n, n): the lower Cholesky factor.
    upper : bool, default False
        Whether the argument is Lᴴ instead.

    Returns
    -------
    Tensor
        Of the shape of `B`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    LinAlgError
        If a diagonal element of the factor is zero.
    """
    factor = mH(L) if upper else L
    below = solve_triangular(factor, B, upper=False)
    return solve_triangular(mH(factor), below, upper=True)


@declare(method=True)
@float32_in_autocast
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """Return the inverse of ``L Lᴴ``.

    Parameters
    ----------
    L : Tensor
        Of shape (..., n, n): the lower Cholesky factor.
    upper : bool, default False
        Whether the argument is Lᴴ instead.

    Returns
    -------
    Tensor
        Of the shape of `L`.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        For integers and bool.
    """
    require_square("cholesky_inverse", L)
    return cholesky_solve(broadcast_to(identity_like(L), L.shape), L, upper)


@declare(numpy="linalg.tensorsolve")
@float32_in_autocast
def tensorsolve(A: Tensor, B: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """Return X with ``tensordot(A, X, X.ndim) = B``.

    Parameters
    ----------
    A : Tensor
        Of shape ``(*B.shape, *X.shape)``, where B and X have equally many elements.
    B : Tensor
        Of any shape.
    dims : tuple of int, optional
        Dimensions of `A` that are first moved to its end.

    Returns
    -------
    Tensor
        X, of the shape that is left of that of `A`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    LinAlgError
        If there is no single X.
    """
    if dims is not None:
        last = [d % A.ndim for d in dims]
        A = A.permute([d for d in range(A.ndim) if d not in last] + last)
    unknown = A.shape[B.ndim :]
    if A.shape[: B.ndim] != B.shape or math.prod(unknown) != B.numel():
        raise ShapeError(
            f"linalg.tensorsolve: got A {A.shape} and B {B.shape}; wanted A of B's dimensions and then as many elements"
        )
    return reshape(solve(reshape(A, (B.numel(), -1)), reshape(B, -1)), unknown)


@declare(numpy="linalg.tensorinv")
@float32_in_autocast
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """Return the inverse of A as a linear map from its last dimensions to its first ones.

    Parameters
    ----------
    A : Tensor
        Its first `ind` dimensions hold as many elements as the others.
    ind : int, default 2
        Number of first dimensions.

    Returns
    -------
    Tensor
        Of the shape of `A` with the last dimensions in front.

    Raises
    ------
    ShapeError
        If the two parts do not hold equally many elements.
    LinAlgError
        If the map has no inverse.
    """
    if ind < 1 or math.prod(A.shape[:ind]) != math.prod(A.shape[ind:]):
        raise ShapeError(
            f"linalg.tensorinv: got A {A.shape} and ind {ind}; the dimensions before and behind it must hold equally "
            "many elements"
        )
    square = reshape(A, (math.prod(A.shape[:ind]), -1))
    return reshape(inv(square), (*A.shape[ind:], *A.shape[:ind]))


# --- Determinants ----------------------------------------------------------------------------------------------------


def _conjugate_cofactors(A: np.ndarray) -> Any:
    """Return the conjugate of det(A) A⁻ᵀ, also of singular matrices, from the singular value decomposition."""
    u, s, vh = np.linalg.svd(A)
    others = np.ones_like(s)
    for i in range(s.shape[-1]):
        others[..., i] = np.delete(s, i, -1).prod(-1)
    sign = np.conj(np.linalg.det(u) * np.linalg.det(vh))
    return sign[..., None, None] * ((u * others[..., None, :]) @ vh)


def _det_gradient(g: Tensor, A: Tensor) -> Tensor:
    return mul(reshape(g, (*g.shape, 1, 1)), Tensor.wrap(lapack("linalg.det", _conjugate_cofactors, A.array)))


def _det_gradient_composed(g: Tensor, A: Tensor) -> Tensor:
    computed = A.array if A.is_complex() else A.array.astype(compute_dtype(A.numpy_dtype), copy=False)
    condition = np.linalg.cond(computed) if computed.size else np.zeros(1)
    if np.all(condition < np.finfo(computed.dtype).eps ** -0.5):
        cofactors = mul(reshape(conjugate(det(A)), (*A.shape[:-2], 1, 1)), mH(inv(A)))
    else:
        cofactors = mH(_adjugate(A))
    return mul(reshape(g, (*g.shape, 1, 1)), cofactors)


def _adjugate(A: Tensor) -> Tensor:
    """Return the adjugate of A, computed as a polynomial in A; it exists for singular matrices, too.

    Source: Faddeev & LeVerrier's recursion; accurate for the small matrices that are likely to be singular.
    """
    n = A.shape[-1]
    one = identity_like(A)
    found = broadcast_to(one, A.shape)
    for k in range(1, n):
        product = matmul(A, found)
        coefficient = div(sum(diagonal(product, 0, -2, -1), -1), -k)
        found = add(product, mul(reshape(coefficient, (*coefficient.shape, 1, 1)), one))
    return found if n % 2 else neg(found)


_det: Callable[..., Tensor] = operation(
    "linalg_det", lambda A: lapack("linalg.det", np.linalg.det, A),
    A=Composed(fused=_det_gradient, composed=_det_gradient_composed),
)  # fmt: skip


@declare(method=True)
@float32_in_autocast
def det(A: Tensor) -> Tensor:
    """Return the determinant of square matrices.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n), of floating-point or complex numbers.

    Returns
    -------
    Tensor
        Of shape (...); its gradient is right for singular matrices, too.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        For integers and bool.

    Examples
    --------
    >>> import spillgrad as sg
    >>> round(sg.det(sg.tensor([[2.0, 1.0], [1.0, 3.0]])).item(), 4)
    5.0
    """
    require_square("linalg.det", A)
    return _det(A)


class SignAndLogarithm(NamedTuple):
    """The sign of a determinant, for complex matrices its direction, and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


def _slogdet_gradient(grads: tuple[Tensor, Tensor], A: Tensor, sign: Tensor) -> Tensor:
    by_sign, by_logarithm = grads
    if A.is_complex():  # the direction of a complex determinant turns
        by_logarithm = sub(by_logarithm, from_part(imag(mul(conjugate(by_sign), sign)), 1))
    return mul(reshape(by_logarithm, (*by_logarithm.shape, 1, 1)), mH(inv(A)))


_slogdet: Callable[..., Any] = operation(
    "linalg_slogdet", lambda A: lapack("linalg.slogdet", np.linalg.slogdet, A), outputs=("sign", "logabsdet"),
    A=_slogdet_gradient,
)  # fmt: skip


@declare(method=True)
@float32_in_autocast
def slogdet(A: Tensor) -> SignAndLogarithm:
    """Return the sign of the determinant and the logarithm of its absolute value, without overflow.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n), of floating-point or complex numbers.

    Returns
    -------
    named tuple of Tensor
        (sign, logabsdet), both of shape (...). The sign is the direction of a complex determinant. For a singular
        matrix, they are 0 and -inf.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        For integers and bool.
    LinAlgError
        In backward, for a singular matrix.
    """
    require_square("linalg.slogdet", A)
    return SignAndLogarithm(*_slogdet(A))


@declare(method=True)
@float32_in_autocast
def logdet(input: Tensor) -> Tensor:
    """Return the logarithm of the determinant.

    Parameters
    ----------
    input : Tensor
        Of shape (..., n, n), of floating-point or complex numbers.

    Returns
    -------
    Tensor
        Of shape (...); NaN for a negative real determinant.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        For integers and bool.
    """
    require_square("logdet", input)
    sign, logarithm = slogdet(input)
    if input.is_complex():
        return add(log(sign), logarithm)
    return where(sign < 0, math.nan, logarithm)  # type: ignore[no-any-return]


# --- Pseudoinverse and least squares ---------------------------------------------------------------------------------


def _pinv_forward(A: np.ndarray, atol: Any, rtol: Any, hermitian: bool) -> np.ndarray:
    return lapack("linalg.pinv", lambda a: _pseudoinverse(a, atol, rtol, hermitian), A)  # type: ignore[no-any-return]


def _on_host(bound: Bound) -> Any:
    return bound.host_array() if isinstance(bound, Tensor) else bound


def _cutoff(a: np.ndarray, largest: np.ndarray, atol: Any, rtol: Any) -> np.ndarray:
    """Return the bound below which a singular value counts as zero, by PyTorch's rule."""
    # An array has a bound for each matrix; `largest` has a dimension more, that of the singular values.
    absolute, relative = (x[..., None] if isinstance(x, np.ndarray) else x for x in (atol, rtol))
    if relative is None:
        default = max(a.shape[-2:]) * np.finfo(a.dtype).eps
        relative = default if absolute is None else np.where(absolute > 0, 0, default).astype(largest.dtype)
    return np.maximum(0.0 if absolute is None else absolute, relative * largest)  # type: ignore[no-any-return]


def _pseudoinverse(a: np.ndarray, atol: Any, rtol: Any, hermitian: bool) -> np.ndarray:
    if not a.size:
        return np.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
    u, s, vh = np.linalg.svd(a, full_matrices=False, hermitian=hermitian)
    kept = s > _cutoff(a, s.max(-1, keepdims=True), atol, rtol)
    inverted = np.where(kept, 1 / np.where(kept, s, 1), 0).astype(s.dtype)
    return (vh.conj().swapaxes(-2, -1) * inverted[..., None, :]) @ u.conj().swapaxes(-2, -1)  # type: ignore[no-any-return]


def _pinv_gradient(g: Tensor, A: Tensor, result: Tensor) -> Tensor:
    """Return the gradient by A. Source: Golub & Pereyra 1973, equation 4.12."""
    P, PH, gH = result, mH(result), mH(g)
    return (
        neg(matmul(matmul(PH, g), PH))
        + matmul(sub(gH, matmul(A, matmul(P, gH))), matmul(P, PH))
        + matmul(matmul(PH, P), sub(gH, matmul(matmul(gH, P), A)))
    )


_pinv: Callable[..., Tensor] = operation("linalg_pinv", _pinv_forward, A=_pinv_gradient)


@declare(method="pinverse", numpy="linalg.pinv")
@float32_in_autocast
def pinv(A: Tensor, *, atol: Bound = None, rtol: Bound = None, hermitian: bool = False) -> Tensor:
    """Return the pseudoinverse of matrices.

    Singular values up to max(atol, rtol · the largest) count as zero.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n), of floating-point or complex numbers.
    atol : float or Tensor, optional
        Absolute bound: one number for all matrices, or a tensor with one for each; by default, 0.
    rtol : float or Tensor, optional
        Relative bound, as `atol`; by default, max(m, n) times the machine epsilon, or 0 if `atol` is given.
    hermitian : bool, default False
        Whether `A` is Hermitian, which saves time.

    Returns
    -------
    Tensor
        Of shape (..., n, m); its gradient is right as long as the rank does not change.

    Raises
    ------
    ShapeError
        For fewer than two dimensions, or if `hermitian` matrices are not square.
    DtypeError
        For integers and bool.
    """
    (require_square if hermitian else require_matrices)("linalg.pinv", A)
    return _pinv(A, _on_host(atol), _on_host(rtol), hermitian)


@declare(numpy="linalg.matrix_rank")
@float32_in_autocast
def matrix_rank(A: Tensor, *, atol: Bound = None, rtol: Bound = None, hermitian: bool = False) -> Tensor:
    """Return how many singular values of matrices do not count as zero.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n), of floating-point or complex numbers.
    atol : float or Tensor, optional
        Absolute bound up to which they count as zero, as in `linalg.pinv`.
    rtol : float or Tensor, optional
        Bound relative to the largest one, as in `linalg.pinv`.
    hermitian : bool, default False
        Whether `A` is Hermitian, which saves time.

    Returns
    -------
    Tensor
        Of shape (...), of int64.

    Raises
    ------
    ShapeError
        For fewer than two dimensions, or if `hermitian` matrices are not square.
    DtypeError
        For integers and bool.
    """
    name = "linalg.matrix_rank"
    (require_square if hermitian else require_matrices)(name, A)

    absolute, relative = _on_host(atol), _on_host(rtol)

    def rank(a: np.ndarray) -> np.ndarray:
        if not a.size:
            return np.zeros(a.shape[:-2], np.int64)
        s = np.linalg.svd(a, compute_uv=False, hermitian=hermitian)
        return np.asarray((s > _cutoff(a, s.max(-1, keepdims=True), absolute, relative)).sum(-1))

    return by_numpy(name, lambda a: lapack(name, rank, a), A)


class LeastSquares(NamedTuple):
    """The results of `lstsq`."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


@float32_in_autocast
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """Return the X that minimizes the sum of squares of ``A X - B``.

    Of several such X, it is that of the smallest norm.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n), of floating-point or complex numbers.
    B : Tensor
        Of shape (..., m, k); for vectors, of shape (m,) or (..., m).
    rcond : float, optional
        Singular values of `A` up to this part of the largest count as zero; by default, as in `linalg.pinv`.
    driver : {"gels", "gelsy", "gelsd", "gelss"}, optional
        All use one method: the singular value decomposition. The last two also return the singular values.

    Returns
    -------
    named tuple of Tensor
        The solution, of shape (..., n, k), the residuals, the rank, and the singular values. The residuals are the
        minimal sums of squares if `A` has more rows than columns and full rank, else empty.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        For integers and bool, or if dtypes differ.
    ArgumentError
        For another `driver`.
    """
    name = "linalg.lstsq"
    require_matrices(name, A)
    require_inexact(name, B.dtype)
    require_one_dtype(name, A=A, B=B)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError(
            f"{name}: got driver {driver!r}; parameter `driver` should be one of gels, gelsy, gelsd, gelss"
        )
    is_vector = _is_vector(A, B)
    right = unsqueeze(B, -1) if is_vector else B
    if right.ndim < 2 or right.shape[-2] != A.shape[-2]:
        raise ShapeError(f"{name}: got A {A.shape} and B {B.shape}; wanted (..., m, n) and (..., m, k) with one m")
    solution = matmul(pinv(A, rtol=rcond), right)
    rank = matrix_rank(A, rtol=rcond)
    rows, columns = A.shape[-2:]
    nothing = Tensor.wrap(zeros_beside(A.array, (0,), A.dtype))
    residuals = nothing
    if rows > columns and bool(np.all(rank.array == columns)):
        beside = matmul(A, solution) - right
        residuals = sum(real(conjugate(beside) * beside), -2)
    solution = squeeze(solution, -1) if is_vector else solution
    values = nothing
    if driver in ("gelsd", "gelss"):
        values = by_numpy(name, lambda a: lapack(name, lambda x: np.linalg.svd(x, compute_uv=False), a), A)
    return LeastSquares(solution, residuals, rank, values)


@declare(method=True)
def matrix_power(A: Tensor, n: int) -> Tensor:
    """Return the n-th power of square matrices.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, m), of floating-point or complex numbers.
    n : int
        The power; if it is negative, the result is the power -n of the inverse.

    Returns
    -------
    Tensor
        Of the shape of `A`.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        For integers and bool.
    LinAlgError
        For a negative power of a singular matrix.
    """
    require_square("linalg.matrix_power", A)
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        return clone(broadcast_to(identity_like(A), A.shape))
    if n == 1:
        return clone(A)
    half = matrix_power(A, n // 2) if n > 3 else A
    square = matmul(half, half)
    return matmul(square, A) if n % 2 else square


@declare(method=True)
@float32_in_autocast
def matrix_exp(A: Tensor) -> Tensor:
    """Return the exponential of square matrices.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n), of floating-point or complex numbers.

    Returns
    -------
    Tensor
        Of the shape of `A`.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DtypeError
        For integers and bool.
    LinAlgError
        For a matrix with NaN or infinite elements.

    Notes
    -----
    The result is a Taylor series of A / 2ˢ, then squared s times.

    Source: Moler & Van Loan 2003, method 3.
    """
    require_square("linalg.matrix_exp", A)
    # The largest column sum bounds the norm; at 1/2 the terms beyond the 16th vanish in float64.
    sums = np.abs(moved(A.array, CPU).astype(np.complex128 if A.is_complex() else np.float64)).sum(-2)
    largest = float(sums.max(initial=0.0))
    if not math.isfinite(largest):
        raise LinAlgError("linalg.matrix_exp: got a matrix with NaN or infinite elements; its exponential has no value")
    squarings = max(0, math.ceil(math.log2(largest)) + 1) if largest > 0 else 0
    scaled = mul(A, 0.5**squarings)
    one = broadcast_to(identity_like(A), A.shape)
    result = one
    for k in range(16, 0, -1):  # Horner's scheme
        result = add(one, div(matmul(scaled, result), k))
    for _ in range(squarings):
        result = matmul(result, result)
    return result
