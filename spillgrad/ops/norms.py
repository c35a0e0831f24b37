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
    """Return ``(sum |x|**ord)**(1/ord)`` over dimensions.

    Parameters
    ----------
    x : Tensor
        Of any shape, of floating-point or complex numbers, unless `dtype` is given.
    ord : float, default 2
        Order of the norm; inf and -inf give the largest and the smallest absolute value, 0 counts the nonzero elements.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type to which the input is converted first; by default, that of the input.

    Returns
    -------
    Tensor
        Of real numbers, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    DtypeError
        For integers and bool.
    ArgumentError
        If `ord` is a name.
    """
    if isinstance(ord, str):
        raise ArgumentError(f"linalg.vector_norm: got ord {ord!r}; wanted a number: matrix_norm takes names")
    return reduce.norm(x, ord, dim, keepdim, dtype=dtype)


def matrix_norm(
    A: Tensor, ord: Order = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return a norm of matrices.

    Parameters
    ----------
    A : Tensor
        Of at least two dimensions.
    ord : {"fro", "nuc", 1, 2, inf, -1, -2, -inf}, default "fro"
        "fro" is the root of the sum of squares, "nuc" the sum of the singular values, 1 the largest column sum of
        absolute values, inf the largest row sum, 2 the largest singular value; -1, -inf and -2 are the smallest of
        these.
    dim : sequence of int, default (-2, -1)
        Dimensions of the matrices' rows and columns.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type to which the input is converted first; by default, that of the input.

    Returns
    -------
    Tensor
        Of real numbers, without the two dimensions unless `keepdim`.

    Raises
    ------
    ShapeError
        For fewer than two dimensions.
    DtypeError
        For integers and bool.
    ArgumentError
        For another norm, or other than two dimensions.
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

    Parameters
    ----------
    A : Tensor
        Of any shape.
    ord : float or str, optional
        A norm of `linalg.vector_norm` or `linalg.matrix_norm`; by default, the root of the sum of squares.
    dim : int or sequence of int, optional
        One dimension for a vector norm, two for a matrix norm; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    dtype : dtype, optional
        Data type to which the input is converted first; by default, that of the input.

    Returns
    -------
    Tensor
        Of real numbers, without the reduced dimensions unless `keepdim`.

    Raises
    ------
    ArgumentError
        For another norm, or if `ord` is given and there are neither one nor two dimensions.
    DtypeError
        For integers and bool.
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
    """Return the condition number of matrices.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n); square unless `p` is None, 2 or -2.
    p : {2, -2, 1, -1, inf, -inf, "fro", "nuc"}, optional
        By default, and with 2, the result is the largest singular value over the smallest; with -2, the smallest over
        the largest. With any other norm of `linalg.matrix_norm`, it is the norm of A times the norm of its inverse.

    Returns
    -------
    Tensor
        Of shape (...), of real numbers; infinite for a singular matrix.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        For integers and bool.
    ArgumentError
        For another norm, or singular matrices in a batch with a `p` other than None, 2 and -2.
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

    Parameters
    ----------
    tensors : sequence of Tensor
        At least two matrices, whose inner sizes agree; the first and the last may be vectors.

    Returns
    -------
    Tensor
        A matrix, without the rows or columns of a vector at that end.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    ArgumentError
        For fewer than two tensors.
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
    """Return the tensor with slices whose norm is too large scaled to just below the largest norm.

    Parameters
    ----------
    input : Tensor
        Of at least two dimensions.
    p : float
        Order of the norm; positive.
    dim : int
        Dimension whose indices count the slices.
    maxnorm : float
        Largest norm, from 0 on.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        For fewer than two dimensions.
    ArgumentError
        If `p` is not positive, or `maxnorm` is negative.
    """
    dim = normalize_dim("renorm", dim, input.ndim)
    if input.ndim < 2:
        raise ShapeError(f"renorm: got a tensor of shape {input.shape}; input needs at least 2 dimensions")
    if p <= 0 or maxnorm < 0:
        raise ArgumentError(f"renorm: got p={p} and maxnorm={maxnorm}; wanted a positive p, and maxnorm from 0 on")
    lengths = vector_norm(input, p, [d for d in range(input.ndim) if d != dim], True)
    too_long = lengths.detach() > maxnorm
    return mul(input, where(too_long, div(maxnorm, add(lengths, 1e-7)), 1.0))


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the dot products of vectors along a dimension, those of `x` conjugated.

    Parameters
    ----------
    x, y : Tensor
        Of shapes that broadcast.
    dim : int, default -1
        Dimension of the vectors.

    Returns
    -------
    Tensor
        Of the broadcast shape without `dim`.

    Raises
    ------
    ShapeError
        If shapes do not broadcast.
    """
    return sum(conjugate(x) * y, dim)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Return the powers 0 to N - 1 of each element.

    Parameters
    ----------
    x : Tensor
        Of shape (..., n), of floating-point or complex numbers.
    N : int, optional
        Number of powers, at least 2; by default, n.

    Returns
    -------
    Tensor
        Of shape (..., n, N).

    Raises
    ------
    ArgumentError
        For fewer than two powers.
    DtypeError
        For integers and bool.
    """
    require_inexact("linalg.vander", x.dtype)
    count = x.shape[-1] if N is None else int(N)
    if count < 2:
        raise ArgumentError(f"linalg.vander: got N {N}; N must be greater than 1")
    exponents = Tensor.wrap(beside(x.array, np.arange(count).astype(x.dtype)))
    return unsqueeze(x, -1) ** exponents
