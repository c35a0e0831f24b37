"""Factorizations and inverses that say which matrices failed, where the others raise an error."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spillgrad.device.device import moved
from spillgrad.errors import LinAlgError
from spillgrad.ops import decompositions, solving
from spillgrad.ops.clamp_where import where
from spillgrad.ops.lapack import identity_like, require_square
from spillgrad.ops.lu_factorization import first_zero_pivot, lu_factor_ex
from spillgrad.ops.shape import broadcast_to
from spillgrad.tensor import Tensor

__all__ = ["cholesky_ex", "inv_ex", "solve_ex"]


class CholeskyAndInfo(NamedTuple):
    """The lower triangular factors, and for each matrix 0 or the order of the minor that is not positive."""

    L: Tensor
    info: Tensor


class InverseAndInfo(NamedTuple):
    """The inverses, and for each matrix 0 or the number of the pivot that is zero."""

    inverse: Tensor
    info: Tensor


class SolutionAndInfo(NamedTuple):
    """The solutions, and for each matrix 0 or the number of the pivot that is zero."""

    result: Tensor
    info: Tensor


def _by_parts(A: Tensor, info: np.ndarray, function: Callable[[Tensor], Tensor], vectors: bool = False) -> Any:
    """Return a function of those matrices whose info is 0; the others give NaN."""
    places = Tensor.wrap(moved(info, A.device))
    if not info.any():
        return function(A), places
    failed = Tensor.wrap(moved((info != 0)[..., None, None], A.device))
    found = function(where(failed, broadcast_to(identity_like(A), A.shape), A))
    return where(failed[..., 0] if vectors else failed, np.nan, found), places


def _first_minor(matrix: np.ndarray) -> int:
    """Return the order of the first leading minor that is not positive; 0 if all are."""
    for order in range(1, len(matrix) + 1):
        try:
            np.linalg.cholesky(matrix[:order, :order])
        except np.linalg.LinAlgError:
            return order
    return 0


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyAndInfo:
    """Return what `cholesky` does, and for each matrix 0 or the order of the leading minor that is not positive.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n).
    upper : bool, default False
        Whether to return upper triangular factors.
    check_errors : bool, default False
        Whether to raise LinAlgError for a matrix that is not positive definite.

    Returns
    -------
    CholeskyAndInfo
        L of the shape of `A`, NaN where it fails, and info of int32, of shape (...).

    Raises
    ------
    ShapeError
        If the matrices are not square.
    LinAlgError
        With `check_errors`, if a matrix is not positive definite.
    """
    require_square("linalg.cholesky_ex", A)
    info = np.zeros(A.shape[:-2], np.int32)
    try:
        return CholeskyAndInfo(decompositions.cholesky(A, upper=upper), Tensor.wrap(moved(info, A.device)))
    except LinAlgError:
        if check_errors:
            raise
    host = A.detach().host_array()
    if host.dtype.kind != "c":
        host = host.astype(np.float64 if host.dtype == np.float64 else np.float32)
    for place in np.ndindex(info.shape):
        info[place] = _first_minor(np.triu(host[place]).conj().T if upper else host[place])
    return CholeskyAndInfo(*_by_parts(A, info, lambda A: decompositions.cholesky(A, upper=upper)))


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InverseAndInfo:
    """Return what `inv` does, and for each matrix 0 or the number of the first pivot that is zero.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n).
    check_errors : bool, default False
        Whether to raise LinAlgError for a singular matrix.

    Returns
    -------
    InverseAndInfo
        The inverse, NaN of a singular matrix, and info of int32, of shape (...).

    Raises
    ------
    ShapeError
        If the matrices are not square.
    LinAlgError
        With `check_errors`, if a matrix is singular.
    """
    require_square("linalg.inv_ex", A)
    if check_errors:
        return InverseAndInfo(*_by_parts(A, np.zeros(A.shape[:-2], np.int32), solving.inv))
    return InverseAndInfo(*_by_parts(A, first_zero_pivot(lu_factor_ex(A.detach()).LU), solving.inv))


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> SolutionAndInfo:
    """Return what `solve` does, and for each matrix 0 or the number of the first pivot that is zero.

    Parameters
    ----------
    A : Tensor
        Of shape (..., n, n).
    B : Tensor
        Right-hand sides, as for `solve`.
    left : bool, default True
        Whether to solve A X = B, not X A = B.
    check_errors : bool, default False
        Whether to raise LinAlgError for a singular matrix.

    Returns
    -------
    SolutionAndInfo
        The solution, NaN for a singular matrix, and info of int32, of shape (...).

    Raises
    ------
    ShapeError
        If the matrices are not square.
    LinAlgError
        With `check_errors`, if a matrix is singular.
    """
    require_square("linalg.solve_ex", A)
    info = np.zeros(A.shape[:-2], np.int32)
    if not check_errors:
        info = first_zero_pivot(lu_factor_ex(A.detach()).LU)
    of_vectors = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    return SolutionAndInfo(*_by_parts(A, info, lambda A: solving.solve(A, B, left=left), of_vectors))
