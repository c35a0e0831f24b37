"""Norms of vectors and matrices, condition numbers, renormalization; chains of products and Vandermonde matrices."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import reduce
from spillgrad.ops.arithmetic import abs, add, div, mul
from spillgrad.ops.array_casts import require_inexact
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.clamp_where import where
from spillgrad.ops.complex_views import REALS, conjugate
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.decompositions import svdvals
from spillgrad.ops.lapack import require_matrices, require_square
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.placement import by_host
from spillgrad.ops.reduce import amax, amin, sum
from spillgrad.ops.shape import as_tuple, movedim, normalize_dim, normalize_dims, reshape, unsqueeze
from spillgrad.ops.solving import inv
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import beside

__all__ = ["cond", "matrix_norm", "multi_dot", "norm", "vander", "vecdot", "vector_norm"]

Order = int | float | str | None


def vector_norm(
    x: Tensor, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return (sum |x|**ord)**(1/ord) over dimensions, by default over all.

    `ord` may also be inf, -inf, or 0, which counts the nonzero elements. Raises DtypeError, ArgumentError.
    """
    if isinstance(ord, str):
        raise ArgumentError(f"linalg.vector_norm: got ord {ord!r}; wanted a number: matrix_norm takes names")
    return reduce.norm(x, ord, dim, keepdim, dtype=dtype)


def matrix_norm(
    A: Tensor, ord: Order = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return the norm `ord` of matrices: "fro", "nuc", 1, 2, inf, -1, -2 or -inf.

    Norm 1 is the largest column sum of absolute values, inf is the largest row sum, 2 is the largest singular value;
    norms -1, -inf and -2 are the smallest of these. "nuc" is the sum of the singular values.
    Shapes: the matrices' rows and columns are in the dimensions `dim` of A. Raises ShapeError, DtypeError,
    ArgumentError.
    """
    name = "linalg.matrix_norm"
    A = A if dtype is None else to_dtype(A, dtype)
    require_matrices(name, A)
    dims = normalize_dims(name, dim, A.ndim)
    if len(dims) != 2:
        raise ArgumentError(f"{name}: dim must be a 2-tuple, got {tuple(dim)}")
    if ord == "fro":
        return reduce.norm(A, 2.0, dims, keepdim)
    if ord in (1, -1, math.inf, -math.inf):
        summed, extreme = dims if math.isfinite(float(ord)) else reversed(dims)
        totals = sum(abs(A), summed, True)
        result = (amax if float(ord) > 0 else amin)(totals, extreme, True)
    elif ord in ("nuc", 2, -2):
        values = svdvals(movedim(A, dims, (-2, -1)))
        result = sum(values, -1) if ord == "nuc" else (amax if float(ord) > 0 else amin)(values, -1)
        for d in sorted(dims):
            result = unsqueeze(result, d)
    else:
        raise ArgumentError(f'{name}: got ord {ord!r}; accepted are "fro", "nuc", 1, 2, inf and their negatives')
    return result if keepdim else reshape(result, [size for i, size in enumerate(A.shape) if i not in dims])


@declare(numpy="linalg.norm")
def norm(
    A: Tensor, ord: Order = None, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return a matrix norm if `ord` is given and there are two dimensions, else a vector norm.

    Without `ord`, the norm is the square root of the sum of squares. Raises as `vector_norm` and `matrix_norm` do.
    """
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    dims = tuple(range(A.ndim)) if dim is None else as_tuple(dim)
    if len(dims) == 2:
        return matrix_norm(A, ord, dims, keepdim, dtype=dtype)
    if isinstance(ord, str) or (dim is None and len(dims) != 1):
        raise ArgumentError(
            f"linalg.norm: got ord {ord!r} for {len(dims)} dimensions; the input must be 1D or 2D, or dim must be given"
        )
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


@declare(numpy="linalg.cond")
@float32_in_autocast
@by_host
def cond(A: Tensor, p: Order = None) -> Tensor:
    """Return the condition number of matrices: by default the largest singular value over the smallest.

    If `p` is -2, it is the smallest over the largest. With any other norm `p`, it is the norm of A times the norm of
    the inverse of A, infinite for a singular matrix.
    Shapes: A (..., m, n), square if `p` is not None, 2 or -2. Raises ShapeError, DtypeError, ArgumentError.
    """
    require_matrices("linalg.cond", A)
    if p in (None, 2, -2):
        values = svdvals(A)
        largest, smallest = amax(values, -1), amin(values, -1)
        return div(smallest, largest) if p == -2 else div(largest, smallest)
    require_square("linalg.cond", A)
    singular = np.linalg.det(A.array.astype(np.complex128 if A.is_complex() else np.float64)) == 0
    if singular.any():
        if singular.ndim:
            raise ArgumentError(f"linalg.cond: got p {p!r} and singular matrices in a batch; the default p takes them")
        return Tensor.wrap(np.array(math.inf, REALS.get(A.dtype, A.dtype)))
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


@declare(numpy="linalg.multi_dot")
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Return the product of several matrices, multiplied in the order that takes the fewest operations.

    The first and the last tensor may be vectors. Raises ShapeError, ArgumentError.
    """
    matrices = list(tensors)
    if len(matrices) < 2:
        raise ArgumentError(f"linalg.multi_dot: got {len(matrices)} tensors; expected at least 2 tensors")
    is_row, is_column = matrices[0].ndim == 1, matrices[-1].ndim == 1
    if is_row:
        matrices[0] = unsqueeze(matrices[0], 0)
    if is_column:
        matrices[-1] = unsqueeze(matrices[-1], 1)
    for i, matrix in enumerate(matrices):
        if matrix.ndim != 2:
            raise ShapeError(
                f"linalg.multi_dot: got {tensors[i].shape} as tensor {i}; wanted matrices, vectors at the ends"
            )
        if i and matrices[i - 1].shape[1] != matrix.shape[0]:
            raise ShapeError(
                f"linalg.multi_dot: tensors {i - 1} and {i} with shapes {matrices[i - 1].shape} and {matrix.shape} "
                "cannot be multiplied"
            )
    product = _in_best_order(matrices)
    shape = product.shape[1:] if is_row else product.shape
    return reshape(product, shape[:-1] if is_column else shape)


def _in_best_order(matrices: list[Tensor]) -> Tensor:
    """Return the product of matrices in the order that takes the fewest operations.

    Source: Cormen et al., "Introduction to algorithms", section 14.2.
    """
    sizes = [matrices[0].shape[0], *(matrix.shape[1] for matrix in matrices)]
    count = len(matrices)
    costs = {(i, i): 0 for i in range(count)}
    best: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            options = [
                (costs[first, k] + costs[k + 1, last] + sizes[first] * sizes[k + 1] * sizes[last + 1], k)
                for k in range(first, last)
            ]
            costs[first, last], best[first, last] = min(options)

    def product(first: int, last: int) -> Tensor:
        if first == last:
            return matrices[first]
        k = best[first, last]
        return matmul(product(first, k), product(k + 1, last))

    return product(0, count - 1)


@declare(in_place=True)
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Return the tensor, but scale each slice along `dim` whose p-norm exceeds `maxnorm` to just below `maxnorm`."""
    dim = normalize_dim("renorm", dim, input.ndim)
    if input.ndim < 2:
        raise ShapeError(f"renorm: got a tensor of shape {input.shape}; input needs at least 2 dimensions")
    if p <= 0 or maxnorm < 0:
        raise ArgumentError(f"renorm: got p={p} and maxnorm={maxnorm}; wanted a positive p, and maxnorm from 0 on")
    lengths = vector_norm(input, p, [d for d in range(input.ndim) if d != dim], True)
    too_long = lengths.detach() > maxnorm
    return mul(input, where(too_long, div(maxnorm, add(lengths, 1e-7)), 1.0))


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the dot products of vectors along a dimension, those of x conjugated.

    Raises ShapeError if shapes do not broadcast.
    """
    return sum(conjugate(x) * y, dim)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Return the powers 0 to N - 1 of each element; N is by default n. Shapes: x (..., n), result (..., n, N)."""
    require_inexact("linalg.vander", x.dtype)
    count = x.shape[-1] if N is None else int(N)
    if count < 2:
        raise ArgumentError(f"linalg.vander: got N {N}; N must be greater than 1")
    exponents = Tensor.wrap(beside(x.array, np.arange(count).astype(x.dtype)))
    return unsqueeze(x, -1) ** exponents
