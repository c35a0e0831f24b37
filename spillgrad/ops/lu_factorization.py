"""The LU factorization with row exchanges, A = P L U, and the systems that it solves.

PyTorch packs the factors into one matrix LU, which has U in its upper triangle and L, without its diagonal of ones,
below; `pivots` lists, for each row from the first, the number (from 1) of the row that it was exchanged with.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spillgrad.device.device import moved
from spillgrad.errors import LinAlgError, ShapeError, UnsupportedError
from spillgrad.ops.arithmetic import add, sub
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.diagonals import tril, triu
from spillgrad.ops.indexing import gather
from spillgrad.ops.join_split import cat, narrow
from spillgrad.ops.lapack import lapack, mH, require_matrices
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.operation import operation
from spillgrad.ops.shape import broadcast_to, unsqueeze
from spillgrad.ops.solving import solve_triangular
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import zeros_beside

__all__ = ["lu", "lu_factor", "lu_factor_ex", "lu_solve"]

_PANEL = 32  # columns that are eliminated one by one; all later columns follow by products of matrices


# --- Elimination -----------------------------------------------------------------------------------------------------


def _factorized(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (LU, pivots, for each row of A its place in L U).

    Source: Golub & Van Loan 2013, "Matrix computations", algorithm 3.4.1, by blocks as in section 3.2.11. A pivot is
    the largest element of its column; complex ones by LAPACK's measure, |real part| + |imaginary part|.
    """
    *lead, rows, columns = a.shape
    count, rank = int(np.prod(lead)), min(rows, columns)
    lu = a.reshape(count, rows, columns).copy()
    pivots = np.empty((count, rank), np.int32)
    each = np.arange(count)
    for start in range(0, rank, _PANEL):
        stop = min(start + _PANEL, rank)
        for j in range(start, stop):
            column = lu[:, j:, j]
            size = abs(column.real) + abs(column.imag) if np.iscomplexobj(lu) else abs(column)
            pivot = j + size.argmax(1)
            pivots[:, j] = pivot + 1
            lu[each, j], lu[each, pivot] = lu[each, pivot], lu[each, j]
            top = lu[:, j, j]
            below = lu[:, j + 1 :, j]
            below /= np.where(top == 0, 1, top)[:, None]  # where the pivot is zero, all below are
            lu[:, j + 1 :, j + 1 : stop] -= below[:, :, None] * lu[:, j, None, j + 1 : stop]
        if stop < columns:
            triangle = np.tril(lu[:, start:stop, start:stop], -1) + np.eye(stop - start, dtype=lu.dtype)
            lu[:, start:stop, stop:] = np.linalg.solve(triangle, lu[:, start:stop, stop:])
            lu[:, stop:, stop:] -= lu[:, stop:, start:stop] @ lu[:, start:stop, stop:]
    places = np.argsort(_order(pivots, rows), -1)
    return lu.reshape(a.shape), pivots.reshape(*lead, rank), places.reshape(*lead, rows)


def _order(pivots: np.ndarray, rows: int) -> np.ndarray:
    """Return, for each row of L U, the row of A that it is. Shapes: pivots (..., k), result (..., m)."""
    flat = pivots.reshape(int(np.prod(pivots.shape[:-1])), -1 if pivots.size else 0)
    order = np.tile(np.arange(rows), (flat.shape[0], 1))
    each = np.arange(flat.shape[0])
    for j, pivot in enumerate(flat.T - 1):
        order[each, j], order[each, pivot] = order[each, pivot], order[each, j]
    return order.reshape(*pivots.shape[:-1], rows)


def _lower(LU: Tensor) -> Tensor:
    """Return L (..., m, k)."""
    below = tril(narrow(LU, -1, 0, min(LU.shape[-2:])), -1)
    ones = np.eye(*below.shape[-2:], dtype=np.float64).astype(LU.numpy_dtype)
    return add(below, Tensor.wrap(moved(ones, LU.device)))


def _upper(LU: Tensor) -> Tensor:
    """Return U (..., k, n)."""
    return triu(narrow(LU, -2, 0, min(LU.shape[-2:])))


def _rows(matrix: Tensor, numbers: Tensor) -> Tensor:
    """Return the rows with the given numbers of each matrix. Shapes: matrix (..., m, n), numbers (..., m)."""
    lead = np.broadcast_shapes(matrix.shape[:-2], numbers.shape[:-1])
    shape = (*lead, *matrix.shape[-2:])
    return gather(broadcast_to(matrix, shape), -2, broadcast_to(unsqueeze(numbers, -1), shape))


def _gradient(g: Tensor, LU: Tensor, places: Tensor) -> Tensor:
    """Return the gradient by A.

    With B = Pᵀ A in blocks, B11 = L1 U1, B21 = L2 U1 and B12 = L1 U2: the last two give L2 and U2, the first L1 and
    U1.
    Source: de Hoog, Anderssen & Lukas 2011, "Differentiation of matrix functionals using triangular factorization".
    """
    rows, columns = LU.shape[-2:]
    rank = min(rows, columns)
    by_lower, by_upper = narrow(g, -1, 0, rank), narrow(g, -2, 0, rank)
    L, U = _lower(LU), _upper(LU)
    L1, U1 = narrow(L, -2, 0, rank), narrow(U, -1, 0, rank)
    by_l1, by_u1 = narrow(by_lower, -2, 0, rank), narrow(by_upper, -1, 0, rank)
    rest = None
    if rows > rank:
        L2, by_l2 = (narrow(x, -2, rank, rows - rank) for x in (L, by_lower))
        rest = solve_triangular(mH(U1), by_l2, upper=False, left=False)
        by_u1 = sub(by_u1, matmul(mH(L2), rest))
    elif columns > rank:
        U2, by_u2 = (narrow(x, -1, rank, columns - rank) for x in (U, by_upper))
        rest = solve_triangular(mH(L1), by_u2, upper=True, unitriangular=True)
        by_l1 = sub(by_l1, matmul(rest, mH(U2)))
    inner = add(tril(matmul(mH(L1), tril(by_l1, -1)), -1), triu(matmul(triu(by_u1), mH(U1))))
    inner = solve_triangular(mH(L1), inner, upper=True, unitriangular=True)
    result = solve_triangular(mH(U1), inner, upper=False, left=False)
    if rest is not None:
        result = cat([result, rest], -2 if rows > rank else -1)
    return _rows(result, places)


_factor: Callable[..., Any] = operation(
    "linalg_lu_factor_ex", lambda A: lapack("linalg.lu_factor", _factorized, A), outputs=("LU", "pivots"),
    aux=("places",), A=_gradient,
)  # fmt: skip


# --- Functions -------------------------------------------------------------------------------------------------------


class Factors(NamedTuple):
    """A packed LU factorization, and the exchanges of rows."""

    LU: Tensor
    pivots: Tensor


class FactorsAndInfo(NamedTuple):
    """A packed LU factorization, the exchanges of rows, and the number of the first pivot that is zero (0: none)."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class PLU(NamedTuple):
    """An LU factorization: A = P L U, with a permutation matrix P."""

    P: Tensor
    L: Tensor
    U: Tensor


def _factors(name: str, A: Tensor, pivot: bool) -> Factors:
    require_matrices(name, A)
    if not pivot:
        raise UnsupportedError(f"{name}: LU without pivoting is not implemented on the CPU; leave out pivot=False")
    return Factors(*_factor(A))


def first_zero_pivot(LU: Tensor) -> np.ndarray:
    """Return, for each matrix, the number (from 1) of the first pivot that is zero, or 0 if none is."""
    zero = np.diagonal(LU.host_array(), 0, -2, -1) == 0
    return np.where(zero.any(-1), zero.argmax(-1) + 1 if zero.shape[-1] else 0, 0).astype(np.int32)


def _require_regular(name: str, first_zero: np.ndarray) -> None:
    if first_zero.any():
        i = int(first_zero[first_zero != 0][0])
        raise LinAlgError(
            f"{name}: U[{i},{i}] is zero and using it on lu_solve would result in a division by zero. If you still "
            "want to perform the factorization, consider calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)"
        )


@float32_in_autocast
def lu_factor(A: Tensor, *, pivot: bool = True) -> Factors:
    """Return the packed LU factorization of matrices, and the exchanges of rows.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    pivot : bool, default True
        Whether rows are exchanged; must be True.

    Returns
    -------
    named tuple of Tensor
        LU of shape (..., m, n), and pivots of shape (..., min(m, n)), of int32, for `linalg.lu_solve`.

    Raises
    ------
    ShapeError
        For fewer than two dimensions.
    DtypeError
        For integers and bool.
    LinAlgError
        If a pivot is zero.
    UnsupportedError
        If `pivot` is False.
    """
    found = _factors("linalg.lu_factor", A, pivot)
    _require_regular("linalg.lu_factor", first_zero_pivot(found.LU))
    return found


@float32_in_autocast
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> FactorsAndInfo:
    """Return the packed LU factorization of matrices, the exchanges of rows, and where a pivot is zero.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    pivot : bool, default True
        Whether rows are exchanged; must be True.
    check_errors : bool, default False
        Whether to raise an error for a pivot that is zero.

    Returns
    -------
    named tuple of Tensor
        LU and pivots as from `linalg.lu_factor`, and info of shape (...): the number of the first pivot that is zero,
        counted from 1, else 0.

    Raises
    ------
    ShapeError
        For fewer than two dimensions.
    DtypeError
        For integers and bool.
    LinAlgError
        If a pivot is zero and `check_errors` is True.
    UnsupportedError
        If `pivot` is False.
    """
    found = _factors("linalg.lu_factor_ex", A, pivot)
    first_zero = first_zero_pivot(found.LU)
    if check_errors:
        _require_regular("linalg.lu_factor_ex", first_zero)
    return FactorsAndInfo(*found, Tensor.wrap(moved(first_zero, A.device)))


@float32_in_autocast
def lu(A: Tensor, *, pivot: bool = True) -> PLU:
    """Return P, L and U with ``P L U = A``.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    pivot : bool, default True
        Whether rows are exchanged; must be True.

    Returns
    -------
    named tuple of Tensor
        P of shape (..., m, m), L of shape (..., m, k) and U of shape (..., k, n), where k is the smaller of m and n.

    Raises
    ------
    ShapeError
        For fewer than two dimensions.
    DtypeError
        For integers and bool.
    UnsupportedError
        If `pivot` is False.
    """
    return unpacked(*_factors("linalg.lu", A, pivot))


def unpacked(LU: Tensor, pivots: Tensor, data: bool = True, exchanges: bool = True) -> PLU:
    """Return P, L and U of a packed factorization; without `data`, L and U are empty, without `exchanges` P is."""
    empty = Tensor.wrap(zeros_beside(LU.array, (0,), LU.array.dtype))
    P = empty
    if exchanges:
        rows = LU.shape[-2]
        order = _order(pivots.host_array(), rows)
        matrices = (order[..., None, :] == np.arange(rows)[:, None]).astype(LU.numpy_dtype)
        P = Tensor.wrap(moved(matrices, LU.device))
    return PLU(P, _lower(LU), _upper(LU)) if data else PLU(P, empty, empty)


@float32_in_autocast
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """Return X with ``A X = B``, given the factorization of A.

    Parameters
    ----------
    LU : Tensor
        Of shape (..., n, n), from `linalg.lu_factor`.
    pivots : Tensor
        Of shape (..., n), from `linalg.lu_factor`.
    B : Tensor
        Of shape (..., n, k); of shape (..., k, n) if `left` is False.
    left : bool, default True
        Whether to solve ``A X = B`` instead of ``X A = B``.
    adjoint : bool, default False
        Whether Aᴴ takes the place of A.

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
        For a singular matrix.
    """
    name = "linalg.lu_solve"
    require_matrices(name, LU, B)
    n = LU.shape[-1]
    if LU.shape[-2] != n or pivots.shape != LU.shape[:-1]:
        raise ShapeError(
            f"{name}: got LU {tuple(LU.shape)} and pivots {tuple(pivots.shape)}; wanted the results of lu_factor of "
            "square matrices"
        )
    if B.shape[-2 if left else -1] != n:
        raise ShapeError(
            f"{name}: Incompatible shapes of A and B for the equation {'AX = B' if left else 'XA = B'}: got "
            f"{tuple(LU.shape[-2:])} and {tuple(B.shape[-2:])}"
        )
    if not left:
        return mH(lu_solve(LU, pivots, mH(B), adjoint=not adjoint))
    order = _order(pivots.host_array(), n)
    if adjoint:
        above = solve_triangular(mH(_upper(LU)), B, upper=False)
        found = solve_triangular(mH(_lower(LU)), above, upper=True, unitriangular=True)
        return _rows(found, Tensor.wrap(moved(np.argsort(order, -1), LU.device)))
    exchanged = _rows(B, Tensor.wrap(moved(order, LU.device)))
    return solve_triangular(_upper(LU), solve_triangular(_lower(LU), exchanged, upper=False), upper=True)
