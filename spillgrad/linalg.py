"""Linear algebra under PyTorch's names; batches of matrices lie in the last two dimensions.

Inverses and systems: `inv solve solve_triangular tensorinv tensorsolve lstsq pinv`; determinants: `det slogdet`;
factorizations: `cholesky qr eigh eigvalsh svd svdvals`; norms: `norm vector_norm matrix_norm cond matrix_rank`;
products: `matmul cross multi_dot matrix_power matrix_exp vecdot vander diagonal`. All are differentiable, twice too,
except `matrix_rank`; complex results, such as the eigenvalues of a matrix that is not symmetric, are not given.
"""

from spillgrad.errors import LinAlgError
from spillgrad.ops.decompositions import cholesky, eigh, eigvalsh, qr, svd, svdvals
from spillgrad.ops.einsum import cross as _cross
from spillgrad.ops.indexing import diagonal as _diagonal
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.norms import cond, matrix_norm, multi_dot, norm, vander, vecdot, vector_norm
from spillgrad.ops.solving import (
    det,
    inv,
    lstsq,
    matrix_exp,
    matrix_power,
    matrix_rank,
    pinv,
    slogdet,
    solve,
    solve_triangular,
    tensorinv,
    tensorsolve,
)
from spillgrad.tensor import Tensor


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return a view of the diagonals of matrices."""
    return _diagonal(A, offset, dim1, dim2)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return the cross products of vectors of three along a dimension. Raises ShapeError for another length."""
    return _cross(input, other, dim)


__all__ = [
    "LinAlgError",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]
