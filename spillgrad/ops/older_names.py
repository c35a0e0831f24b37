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
    """Return the named tuple (U, S, V) with input = U diag(S) Vᴴ; `linalg.svd` returns Vᴴ.

    Without `some`, U and V are square. Without `compute_uv`, they are zeros, and only S has a gradient.
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
        raise UnsupportedError(
            f"{name}: This function was deprecated since version 1.9 and is now removed; use {newer}"
        )

    function.__module__ = __name__
    return declare(method=True)(named(function, name, f"Raise UnsupportedError: use {newer}."))


eig, lstsq, matrix_rank, solve, symeig = (_removed(name, newer) for name, newer in _REMOVED.items())


@declare(method=True)
def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """Return (LU, pivots), as `linalg.lu_factor_ex` does, and with `get_infos` its info, too."""
    found = lu_factorization.lu_factor_ex(A, pivot=pivot)
    return tuple(found) if get_infos else tuple(found[:2])


@declare(method=True)
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return x with A x = b, given what `lu` returns for A; `linalg.lu_solve` takes b last."""
    found = lu_factorization.lu_solve(LU_data, LU_pivots, b)
    return found if out is None else out.copy_(found)


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> lu_factorization.PLU:
    """Return P, L and U of what `lu` or `linalg.lu_factor` returned; those not asked for are empty."""
    return lu_factorization.unpacked(LU_data, LU_pivots, unpack_data, unpack_pivots)


class TriangularSolution(NamedTuple):
    """The solution of `triangular_solve`, and a copy of the matrix."""

    solution: Tensor
    cloned_coefficient: Tensor


@declare(method=True)
def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """Return x with A x = b, where A is the upper or lower triangle of `A`; it warns, as PyTorch does.

    With `transpose`, the transposed triangle takes the place of A.
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
    """Return the product of matrices, as `linalg.multi_dot` does; it warns, as PyTorch does."""
    warnings.warn(
        "torch.chain_matmul is deprecated and will be removed in a future PyTorch release. Use torch.linalg.multi_dot "
        "instead, which accepts a list of two or more tensors rather than multiple parameters.",
        stacklevel=2,
    )
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


def range(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, **options: Any) -> Tensor:
    """Return floats from `start` up to and including `end`, `step` apart; it warns, as PyTorch does: use `arange`."""
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
    """Return the powers N - 1 down to 0 of each element, or 0 up to N - 1 if `increasing`; N is by default n.

    `linalg.vander` has them increasing. Shapes: x (n,), result (n, N).
    Raises ShapeError for other than one dimension, and ArgumentError for a negative N.
    """
    if x.ndim != 1:
        raise ShapeError(f"vander: got shape {x.shape}; x must be a one-dimensional tensor: use linalg.vander")
    count = x.shape[0] if N is None else int(N)
    if count < 0:
        raise ArgumentError(f"vander: got N={N}; N must be non-negative")
    base = x.long() if x.dtype == dtypes.bool_ else x
    powers = unsqueeze(base, -1) ** arange(count, dtype=base.dtype, device=x.device)
    return powers if increasing else flip(powers, -1)
