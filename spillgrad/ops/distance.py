"""Norms and distances of vectors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.arithmetic import add, div, mul, sub
from spillgrad.ops.array_casts import on_floats, require_floats, require_one_dtype
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.clamp_where import clamp_min, where
from spillgrad.ops.declaration import declare
from spillgrad.ops.getitem_setitem import getitem
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.operation import operation
from spillgrad.ops.reduce import norm, sum
from spillgrad.ops.shape import broadcast_tensors, reshape, transpose, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import empty_beside, is_on_device

__all__ = ["cdist", "cosine_similarity", "dist", "pairwise_distance", "pdist"]

# The most differences computed at once, so that the differences of many pairs never fill memory.
_BLOCK_ELEMENTS = 1 << 18


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, *, axis: int | None = None,
    epsilon: float | None = None,
) -> Tensor:  # fmt: skip
    """Return the tensor divided by its p-norm along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    p : float, default 2.0
        Order of the norm.
    dim : int, default 1
        Dimension along which vectors lie.
    eps : float, default 1e-12
        Divisor if the norm is less.
    axis : int, optional
        Another name of `dim`.
    epsilon : float, optional
        Paddle's name of `eps`.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    length = norm(input, p, dim if axis is None else axis, True)
    return div(input, clamp_min(length, eps if epsilon is None else epsilon))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8, *, axis: int | None = None) -> Tensor:
    """Return the cosine of the angle between vectors along a dimension.

    Parameters
    ----------
    x1, x2 : Tensor
        Vectors; the shapes broadcast.
    dim : int, default 1
        Dimension along which vectors lie.
    eps : float, default 1e-8
        A length below it counts as it.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to, without the dimension.
    """
    first, second = broadcast_tensors(x1, x2)
    dim = dim if axis is None else axis
    directions = [div(x, clamp_min(norm(x, 2, dim, True), eps)) for x in (first, second)]
    return sum(mul(*directions), dim)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Return the p-norm of ``x1 - x2 + eps`` along the last dimension.

    Parameters
    ----------
    x1, x2 : Tensor
        Vectors; the shapes broadcast.
    p : float, default 2.0
        Order of the norm.
    eps : float, default 1e-6
        Number that is added to each difference.
    keepdim : bool, default False
        Whether the last dimension stays, with size 1.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to, without the last dimension.
    """
    return norm(add(sub(x1, x2), eps), p, -1, keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norm of the difference of each pair of rows, in the order (0, 1), (0, 2), …, (1, 2), ….

    Parameters
    ----------
    input : Tensor
        Of shape (n, m).
    p : float, default 2.0
        Order of the norm.

    Returns
    -------
    Tensor
        Of shape (n (n - 1) / 2,).

    Raises
    ------
    ShapeError
        If `input` has not two dimensions.
    """
    if input.ndim != 2:
        raise ShapeError(f"pdist: only supports 2D tensors, got: {input.ndim}D")
    rows, columns = np.triu_indices(input.shape[0], 1)
    return getitem(cdist(input, input, p), (Tensor.wrap(rows), Tensor.wrap(columns)))


@declare(method=True)
def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norm of all elements of ``input - other``.

    Parameters
    ----------
    input, other : Tensor
        Their shapes broadcast.
    p : float, default 2.0
        Order of the norm.

    Returns
    -------
    Tensor
        Of shape ().
    """
    return norm(sub(input, other), p)


def _squares(vectors: np.ndarray) -> Any:
    """Return the sums of squares along the last dimension."""
    if is_on_device(vectors):
        return np.sum(vectors * vectors, -1)
    return np.einsum("ijk,ijk->ij", vectors, vectors)


def _euclidean(x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
    def measured(x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        batches, rows, width = x1.shape
        out = empty_beside(x1, (batches, rows, x2.shape[1]), x1.dtype)
        block = max(1, _BLOCK_ELEMENTS // max(1, x2.shape[1] * width))
        for b in range(batches):
            for start in range(0, rows, block):
                differences = x1[b, start : start + block, None, :] - x2[b]
                out[b, start : start + block] = np.sqrt(_squares(differences))
        return out

    return on_floats(measured, x1, x2)


def _directions(g: Any, result: Any) -> Any:
    return where(result == 0, 0.0, div(g, where(result == 0, 1.0, result)))


def _first_gradient(g: Any, x1: Any, x2: Any, result: Any) -> Tensor:
    weights = _directions(g, result)
    return sub(mul(x1, sum(weights, 2, True)), matmul(weights, x2))


def _second_gradient(g: Any, x1: Any, x2: Any, result: Any) -> Tensor:
    weights = transpose(_directions(g, result), 1, 2)
    return sub(mul(x2, sum(weights, 2, True)), matmul(weights, x1))


_cdist: Callable[..., Tensor] = operation("cdist", _euclidean, x1=_first_gradient, x2=_second_gradient)


@declare(method=True)
@float32_in_autocast
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """Return the p-norm of the difference of every row of `x1` and every row of `x2`.

    The gradient of a distance 0 is 0.

    Parameters
    ----------
    x1 : Tensor
        Of shape (..., P, M); leading dimensions broadcast.
    x2 : Tensor
        Of shape (..., R, M).
    p : float, default 2.0
        Order of the norm, 0 or more.
    compute_mode : str
        Has no effect: differences are exact (in PyTorch, it is for speed).

    Returns
    -------
    Tensor
        Of shape (..., P, R).

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the dtypes differ, or are not of floating-point numbers.
    ArgumentError
        If `p` is negative.
    """
    for x in (x1, x2):
        require_floats("cdist", x.dtype)
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: got {x1.shape} and {x2.shape}; wanted (..., P, M) and (..., R, M) with one M")
    require_one_dtype("cdist", x1=x1, x2=x2)
    if p < 0:
        raise ArgumentError(f"cdist: got p={p}; wanted a number from 0 on")
    if p != 2:
        return norm(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), p, -1)
    try:
        lead = np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    except ValueError as error:
        raise ShapeError(f"cdist: got {x1.shape} and {x2.shape}; leading dimensions must broadcast") from error
    batches = math.prod(lead)
    first, second = (reshape(x.expand(*lead, *x.shape[-2:]), (batches, *x.shape[-2:])) for x in (x1, x2))
    return reshape(_cdist(first, second), (*lead, x1.shape[-2], x2.shape[-2]))
