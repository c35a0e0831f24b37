"""Linear algebra under PyTorch's names; the last two dimensions of a tensor hold matrices, the others a batch.

Inverses and systems: `inv solve solve_triangular tensorinv tensorsolve lstsq pinv`; determinants: `det slogdet`;
factorizations: `cholesky lu qr eig eigh eigvals eigvalsh svd svdvals`; norms: `norm vector_norm matrix_norm cond
matrix_rank`; products: `matmul cross multi_dot matrix_power matrix_exp vecdot vander diagonal`. All have first and
second derivatives, except `matrix_rank`. `cholesky_ex inv_ex solve_ex lu_factor_ex` say which matrices failed. Matrices
may be complex; `eig` and `eigvals` give complex numbers.
"""

from spillgrad.errors import LinAlgError as LinAlgError
from spillgrad.ops.decompositions import *
from spillgrad.ops.einsum import cross as _cross
from spillgrad.ops.factorization_info import *
from spillgrad.ops.indexing import diagonal as _diagonal
from spillgrad.ops.lu_factorization import *
from spillgrad.ops.matrix_products import matmul as matmul
from spillgrad.ops.norms import *
from spillgrad.ops.solving import *
from spillgrad.tensor import Tensor


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return a view of the diagonals of matrices, as the last dimension.

    Parameters
    ----------
    A : Tensor
        Of at least two dimensions.
    offset : int, default 0
        Which diagonal: 0 is the main one, 1 the next above it; negative numbers are below.
    dim1 : int, default -2
        Dimension of the rows.
    dim2 : int, default -1
        Dimension of the columns.

    Returns
    -------
    Tensor
        A view with one dimension less.

    Raises
    ------
    DimensionError
        If the two dimensions are equal or out of range.
    """
    return _diagonal(A, offset, dim1, dim2)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return the cross products of 3-vectors along a dimension.

    Parameters
    ----------
    input, other : Tensor
        Of size 3 in the dimension; other dimensions broadcast.
    dim : int, default -1
        Dimension of the vectors.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ShapeError
        If the size of the dimension is not 3.
    """
    return _cross(input, other, dim)


__all__ = [name for name in dir() if not name.startswith("_") and name != "Tensor"]
