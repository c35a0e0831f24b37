"""Functions that PyTorch keeps for older programs, each in terms of the newer one."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, ShapeError, UnsupportedError
from spillgrad.ops import decompositions, lu_factorization
from spillgrad.ops.creation import arange, zeros
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.norms import multi_dot
from spillgrad.ops.rearrange import flip
from spillgrad.ops.shape import unsqueeze
from spillgrad.ops.solving import solve_triangular
from spillgrad.tensor import Tensor

__all__ = [
    "chain_matmul", "eig", "lstsq", "lu", "lu_solve", "lu_unpack", "matrix_rank", "range", "solve", "svd", "symeig",
    "triangular_solve", "vander",
]  # fmt: skip


class SVDWithV(NamedTuple):
    """A singular value decomposition: A = U diag(S) Vᴴ."""

    U: Tensor
    S: Tensor
    V: Tensor


@declare(method=True)
def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition of matrices: ``input = U diag(S) Vᴴ``.

    Parameters
    ----------
    input : Tensor
        Of shape (..., m, n).
    some : bool, default True
        Whether U and V have only the columns that S needs; else they are square.
    compute_uv : bool, default True
        Whether to compute U and V; else they are zeros, and only S has a gradient.

    Returns
    -------
    named tuple of Tensor
        (U, S, V); `linalg.svd` returns Vᴴ instead.
    """
    if compute_uv:
        u, s, vh = decompositions.svd(input, full_matrices=not some)
        return SVDWithV(u, s, vh.mH)
    rows, columns = input.shape[-2:]
    s = decompositions.svdvals(input)
    lead = input.shape[:-2]
    u, v = (zeros(*lead, n, n, dtype=input.dtype, device=input.device) for n in (rows, columns))
    return SVDWithV(u, s, v)


# What PyTorch has removed, and what takes its place; it keeps the names to say so.
_REMOVED = {
    "eig": "linalg.eig(A), which returns complex numbers",
    "lstsq": "linalg.lstsq(A, B).solution: the arguments are in the other order",
    "matrix_rank": "linalg.matrix_rank(A), whose hermitian was symmetric",
    "solve": "linalg.solve(A, B): the arguments are in the other order, and it returns the solution alone",
    "symeig": "linalg.eigh(A), or linalg.eigvalsh(A) without eigenvectors; they read the lower triangle by default",
}


def _removed(name: str, newer: str) -> Callable[..., Any]:
    def function(*arguments: Any, **options: Any) -> Any:
        """Raise UnsupportedError: use {0}.

        Parameters
        ----------
        *arguments
            Not used.
        **options
            Not used.
        """
        raise UnsupportedError(
            f"{name}: This function was deprecated since version 1.9 and is now removed; use {newer}"
        )

    function.__module__ = __name__
    return declare(method=True)(named(function, name, (function.__doc__ or "").format(newer)))


eig, lstsq, matrix_rank, solve, symeig = (_removed(name, newer) for name, newer in _REMOVED.items())


@declare(method=True)
def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """Return the packed LU factorization of matrices, and the exchanges of rows.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    pivot : bool, default True
        Whether rows are exchanged; must be True.
    get_infos : bool, default False
        Whether to return the info of `linalg.lu_factor_ex`, too.

    Returns
    -------
    tuple of Tensor
        (LU, pivots), or (LU, pivots, info).

    Raises
    ------
    UnsupportedError
        If `pivot` is False.
    """
    found = lu_factorization.lu_factor_ex(A, pivot=pivot)
    return tuple(found) if get_infos else tuple(found[:2])


@declare(method=True)
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return x with ``A x = b``, given the factorization of A.

    Parameters
    ----------
    b : Tensor
        Of shape (..., n, k); `linalg.lu_solve` takes it last.
    LU_data : Tensor
        Of shape (..., n, n), from `lu`.
    LU_pivots : Tensor
        Of shape (..., n), from `lu`.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `b`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    """
    found = lu_factorization.lu_solve(LU_data, LU_pivots, b)
    return found if out is None else out.copy_(found)


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> lu_factorization.PLU:
    """Return P, L and U of a packed factorization.

    Parameters
    ----------
    LU_data : Tensor
        Of shape (..., m, n), from `lu` or `linalg.lu_factor`.
    LU_pivots : Tensor
        Of shape (..., min(m, n)), from `lu` or `linalg.lu_factor`.
    unpack_data : bool, default True
        Whether to return L and U; else they are empty.
    unpack_pivots : bool, default True
        Whether to return P; else it is empty.

    Returns
    -------
    named tuple of Tensor
        (P, L, U), as from `linalg.lu`.
    """
    return lu_factorization.unpacked(LU_data, LU_pivots, unpack_data, unpack_pivots)


class TriangularSolution(NamedTuple):
    """The solution of `triangular_solve`, and a copy of the matrix."""

    solution: Tensor
    cloned_coefficient: Tensor


@declare(method=True)
def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """Return x with ``A x = b``, where A is a triangle of a matrix.

    Parameters
    ----------
    b : Tensor
        Of shape (..., n, k).
    A : Tensor
        Of shape (..., n, n).
    upper : bool, default True
        Whether the upper triangle counts instead of the lower one.
    transpose : bool, default False
        Whether the transposed triangle takes the place of A.
    unitriangular : bool, default False
        Whether the diagonal counts as ones.

    Returns
    -------
    named tuple of Tensor
        The solution, of the shape of `b`, and a copy of `A`.

    Warns
    -----
    UserWarning
        Always, as PyTorch does: `linalg.solve_triangular` replaces this function.
    """
    warnings.warn(
        "torch.triangular_solve is deprecated in favor of torch.linalg.solve_triangular and will be removed in a "
        "future PyTorch release. X = torch.triangular_solve(B, A).solution should be replaced with X = "
        "torch.linalg.solve_triangular(A, B).",
        stacklevel=2,
    )
    matrix = A.mT if transpose else A
    found = solve_triangular(matrix, b, upper=upper != transpose, unitriangular=unitriangular)
    return TriangularSolution(found, A.clone())


def chain_matmul(*matrices: Tensor) -> Tensor:
    """Return the product of matrices, as `linalg.multi_dot` does.

    Parameters
    ----------
    *matrices : Tensor
        Matrices whose inner sizes agree; one alone is returned as it is.

    Returns
    -------
    Tensor
        The product.

    Warns
    -----
    UserWarning
        Always, as PyTorch does: `linalg.multi_dot` replaces this function.
    """
    warnings.warn(
        "torch.chain_matmul is deprecated and will be removed in a future PyTorch release. Use torch.linalg.multi_dot "
        "instead, which accepts a list of two or more tensors rather than multiple parameters.",
        stacklevel=2,
    )
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


def range(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, **options: Any) -> Tensor:
    """Return numbers from `start` up to and including `end`.

    Parameters
    ----------
    start : float, default 0
        First number; the end if it is given alone.
    end : float, optional
        Bound, which the result includes if a step reaches it.
    step : float, default 1
        Distance of the numbers.
    dtype : dtype, optional
        Data type of the result; by default, float32.
    **options
        Further arguments of `arange`.

    Returns
    -------
    Tensor
        A vector.

    Raises
    ------
    ArgumentError
        If the step is 0 or leads away from the end.

    Warns
    -----
    UserWarning
        Always, as PyTorch does: `arange`, which leaves out the end, replaces this function.
    """
    warnings.warn(
        "torch.range is deprecated and will be removed in a future release because its behavior is inconsistent with "
        "Python's range builtin. Instead, use torch.arange, which produces values in [start, end).",
        stacklevel=2,
    )
    if end is None:
        start, end = 0, start
    if step == 0 or (end - start) / step < 0:
        raise ArgumentError(f"range: got {start} to {end} in steps of {step}; the step must lead to the end")
    count = int((end - start) / step) + 1
    return arange(count, dtype="float32" if dtype is None else dtype, **options) * step + start  # type: ignore[no-any-return]


@declare(numpy=True)
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Return the powers N - 1 down to 0 of each element.

    Parameters
    ----------
    x : Tensor
        Of shape (n,).
    N : int, optional
        Number of powers, from 0 on; by default, n.
    increasing : bool, default False
        Whether the powers go from 0 up to N - 1, as those of `linalg.vander`.

    Returns
    -------
    Tensor
        Of shape (n, N).

    Raises
    ------
    ShapeError
        For other than one dimension.
    ArgumentError
        For a negative `N`.
    """
    if x.ndim != 1:
        raise ShapeError(f"vander: got shape {x.shape}; x must be a one-dimensional tensor: use linalg.vander")
    count = x.shape[0] if N is None else int(N)
    if count < 0:
        raise ArgumentError(f"vander: got N={N}; N must be non-negative")
    base = x.long() if x.dtype == dtypes.bool_ else x
    powers = unsqueeze(base, -1) ** arange(count, dtype=base.dtype, device=x.device)
    return powers if increasing else flip(powers, -1)
