"""Linear algebra of the array API standard, 2024.12; gradients are those of `spillgrad.linalg`.

Source: https://data-apis.org/array-api/2024.12/extensions/linear_algebra_functions.html
"""

from typing import Any

from spillgrad.array_api.wrapping import binary, promoted, unary
from spillgrad.errors import ShapeError
from spillgrad.ops import convert, decompositions, einsum, indexing, norms, reduce, shape, solving
from spillgrad.ops import matrix_products as products
from spillgrad.ops.array_api_names import matrix_transpose
from spillgrad.ops.declaration import declare
from spillgrad.ops.decompositions import QR, SVD, Eigh
from spillgrad.ops.solving import SignAndLogarithm
from spillgrad.tensor import Tensor

matmul = binary(
    products.matmul,
    operands="x1 : Tensor\n    Of shape (..., m, k) or (k,).\nx2 : Tensor\n    Of shape (..., k, n) or (k,).",
)
outer = binary(products.outer, operands="x1 : Tensor\n    Of shape (m,).\nx2 : Tensor\n    Of shape (n,).")
_SQUARE = "x : Tensor\n    Of shape (..., n, n)."
det, inv, eigvalsh = (unary(f, operand=_SQUARE) for f in (solving.det, solving.inv, decompositions.eigvalsh))
svdvals = unary(decompositions.svdvals, operand="x : Tensor\n    Of shape (..., m, n).")


@declare(numpy=True)
def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Return the sums of products over the last dimensions of `x1` and the first of `x2`.

    Parameters
    ----------
    x1, x2 : Tensor
        They are promoted to one dtype.
    axes : int or pair of sequences, default 2
        How many dimensions, or a pair of sequences: dimensions of `x1`, and those of `x2`.

    Returns
    -------
    Tensor
        With the other dimensions of `x1`, then those of `x2`.
    """
    first, second = promoted("tensordot", x1, x2)
    return einsum.tensordot(first, second, axes)


@declare(numpy=True)
def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the dot products of vectors along a dimension, those of `x1` conjugated.

    Parameters
    ----------
    x1, x2 : Tensor
        They are promoted to one dtype; other dimensions broadcast.
    axis : int, default -1
        Dimension of the vectors.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to, without the dimension.

    Raises
    ------
    ShapeError
        If the lengths of the vectors differ: their dimension does not broadcast.
    """
    first, second = promoted("vecdot", x1, x2)
    lengths = [x.shape[shape.normalize_dim("vecdot", axis, x.ndim)] for x in (first, second)]
    if lengths[0] != lengths[1]:
        raise ShapeError(f"vecdot: got vectors of {lengths[0]} and {lengths[1]} elements; wanted equal lengths")
    return convert.to_dtype(norms.vecdot(first, second, dim=axis), first.dtype)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the cross products of vectors of length 3 along a dimension.

    Parameters
    ----------
    x1, x2 : Tensor
        They are promoted to one dtype; other dimensions broadcast.
    axis : int, default -1
        Dimension of the vectors.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ShapeError
        If the vectors have another length.
    """
    first, second = promoted("cross", x1, x2)
    return einsum.cross(first, second, axis)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Return a view of the diagonals of matrices.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    offset : int, default 0
        Diagonal: 0 is the main one, 1 the next above it.

    Returns
    -------
    Tensor
        With the diagonals along the last dimension.
    """
    return indexing.diagonal(x, offset, -2, -1)


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Return the sums of the diagonals of matrices.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    offset : int, default 0
        Diagonal: 0 is the main one, 1 the next above it.
    dtype : dtype, optional
        Data type of the result; by default, the one that this namespace's `sum` returns.

    Returns
    -------
    Tensor
        Of shape (...).
    """
    chosen = diagonal(x, offset=offset)
    wanted = "uint64" if dtype is None and x.dtype.kind == "u" else dtype
    if wanted is None:
        return reduce.sum(chosen, -1)
    return convert.to_dtype(reduce.sum(convert.to_dtype(chosen, wanted), -1), wanted)


def slogdet(x: Tensor, /) -> SignAndLogarithm:
    """Return the signs of determinants and the logarithms of their absolute values.

    Parameters
    ----------
    x : Tensor
        Of shape (..., n, n).

    Returns
    -------
    SignAndLogarithm
        Two tensors of shape (...).
    """
    return solving.slogdet(x)


def eigh(x: Tensor, /) -> Eigh:
    """Return the eigenvalues of symmetric matrices in ascending order, and their eigenvectors as columns.

    Parameters
    ----------
    x : Tensor
        Of shape (..., n, n).

    Returns
    -------
    Eigh
        Of shapes (..., n) and (..., n, n).
    """
    return decompositions.eigh(x)


def pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """Return the pseudo-inverses of matrices.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    rtol : float or Tensor, optional
        Share of the largest singular value below which one counts as zero.

    Returns
    -------
    Tensor
        Of shape (..., n, m).
    """
    return solving.pinv(x, rtol=rtol)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return the X with ``x1 X = x2``.

    Parameters
    ----------
    x1 : Tensor
        Of shape (..., n, n).
    x2 : Tensor
        A vector of shape (n,), or matrices of shape (..., n, k) whose columns are right-hand sides.

    Returns
    -------
    Tensor
        Of shape (..., n) or (..., n, k).
    """
    matrices, right = promoted("solve", x1, x2)
    if right.ndim > 1:
        return solving.solve(matrices, right)
    return shape.squeeze(solving.solve(matrices, shape.unsqueeze(right, -1)), -1)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Return triangular factors of symmetric positive-definite matrices.

    Parameters
    ----------
    x : Tensor
        Of shape (..., n, n).
    upper : bool, default False
        Whether the factors are upper instead of lower triangular.

    Returns
    -------
    Tensor
        Of the shape of `x`.

    Raises
    ------
    LinAlgError
        If a matrix is not positive definite.
    """
    return decompositions.cholesky(x, upper=upper)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QR:
    """Return the orthogonal and the upper triangular factors of matrices.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    mode : {"reduced", "complete"}, default "reduced"
        Whether the first factor has min(m, n) columns, or m.

    Returns
    -------
    QR
        The two factors.
    """
    return decompositions.qr(x, mode)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD:
    """Return singular value decompositions: x = U diag(S) Vh.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    full_matrices : bool, default True
        Whether U and Vh are square.

    Returns
    -------
    SVD
        U, S and Vh.
    """
    return decompositions.svd(x, full_matrices)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Return the n-th powers of matrices.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, m).
    n : int
        Exponent.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return solving.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """Return the ranks of matrices: the numbers of singular values that do not count as zero.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    rtol : float or Tensor, optional
        Share of the largest singular value below which one counts as zero.

    Returns
    -------
    Tensor
        Of int64, of shape (...).
    """
    return solving.matrix_rank(x, rtol=rtol)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Return the norms of matrices.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    keepdims : bool, default False
        Whether reduced dimensions stay, with size 1.
    ord : number or str, default "fro"
        Order of the norm.

    Returns
    -------
    Tensor
        Of shape (...).
    """
    return norms.matrix_norm(x, ord, keepdim=keepdims)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    """Return the norms of vectors along dimensions.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axis : int or tuple of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdims : bool, default False
        Whether reduced dimensions stay, with size 1.
    ord : number, default 2
        Order of the norm.

    Returns
    -------
    Tensor
        Of the shape of `x` without the reduced dimensions.
    """
    return norms.vector_norm(x, ord, axis, keepdims)


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip
