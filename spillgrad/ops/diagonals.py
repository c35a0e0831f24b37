"""Diagonals and triangles of matrices: functions that extract them, build them, sum them or return their indices."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import as_device, moved
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import docstrings
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.indexing import diag, place_diagonal
from spillgrad.ops.join_split import cat
from spillgrad.ops.operation import operation
from spillgrad.ops.rearrange import constant_pad
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import atleast_2d, normalize_dims, reshape
from spillgrad.tensor import Tensor

__all__ = ["block_diag", "diag_embed", "diagflat", "trace", "tril", "tril_indices", "triu", "triu_indices"]


def _triangle(name: str, function: Callable[..., np.ndarray], part: str) -> Callable[..., Tensor]:
    kept: Callable[..., Tensor] = operation(
        name, lambda self, diagonal: function(self, diagonal), self=lambda g, diagonal: kept(g, diagonal)
    )

    def triangle(input: Tensor, diagonal: int = 0) -> Tensor:
        if input.ndim < 2:
            raise ShapeError(f"{name}: got a tensor of shape {input.shape}; wanted at least two dimensions")
        return kept(input, diagonal)

    doc = docstrings.composed(
        f"Return the {part} triangle of matrices, with zeros elsewhere.",
        "input : Tensor\n    Of shape (..., m, n).",
        "diagonal : int, default 0\n    Outermost diagonal that stays: 0 is the main one, 1 the next above it.",
        returns="Tensor\n    Of the shape of `input`.",
        raises="ShapeError\n    If `input` has fewer than two dimensions.",
    )
    return declare(in_place=True)(named(triangle, name, doc))


tril = _triangle("tril", np.tril, "lower")
triu = _triangle("triu", np.triu, "upper")


def block_diag(*tensors: Tensor) -> Tensor:
    """Return the matrix with the given matrices along its diagonal and zeros elsewhere.

    Parameters
    ----------
    *tensors : Tensor
        Matrices; a vector or a number counts as a row.

    Returns
    -------
    Tensor
        Matrix; of no tensors, of shape (1, 0).

    Raises
    ------
    ShapeError
        If a tensor has more than two dimensions.
    """
    blocks = [atleast_2d(x) for x in tensors]
    if any(block.ndim > 2 for block in blocks):
        raise ShapeError("block_diag: got a tensor of more than two dimensions; wanted matrices")
    if not blocks:
        return Tensor.wrap(np.zeros((1, 0), dtypes.get_default_dtype()))
    width = np.sum([block.shape[1] for block in blocks])
    rows, start = [], 0
    for block in blocks:
        end = start + block.shape[1]
        rows.append(constant_pad(block, ((0, 0), (start, int(width) - end)), 0.0))
        start = end
    return cat(rows)


@declare(method=True)
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return matrices with the last dimension of a tensor on a diagonal and zeros elsewhere.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    offset : int, default 0
        Diagonal: 0 is the main one, 1 the next above it.
    dim1 : int, default -2
        Dimension of the rows in the result.
    dim2 : int, default -1
        Dimension of the columns in the result.

    Returns
    -------
    Tensor
        Of one dimension more than `input`.

    Raises
    ------
    ShapeError
        If `input` has no dimension.
    """
    ndim = input.ndim + 1
    first, second = normalize_dims("diag_embed", (dim1, dim2), ndim)
    size = input.shape[-1] + abs(offset) if input.ndim else 0
    if not input.ndim:
        raise ShapeError("diag_embed: got a 0-d tensor; wanted at least a vector")
    rest = iter(input.shape[:-1])
    shape = tuple(size if i in (first, second) else next(rest) for i in range(ndim))
    return place_diagonal(input, offset, first, second, shape)


@declare(method=True, numpy=True)
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """Return the matrix with the elements of a tensor on a diagonal and zeros elsewhere.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    offset : int, default 0
        Diagonal: 0 is the main one, 1 the next above it.

    Returns
    -------
    Tensor
        Square matrix.
    """
    return diag(reshape(input, -1), offset)


_trace: Callable[..., Tensor] = operation(
    "trace", lambda self: sum(Tensor.wrap(np.diagonal(self))).array,
    self=lambda g, self_shape: place_diagonal(expand_to(g, (min(self_shape),)), 0, 0, 1, self_shape),
)  # fmt: skip


@declare(method=True)
@float32_in_autocast
def trace(input: Tensor) -> Tensor:
    """Return the sum of a matrix's diagonal.

    Parameters
    ----------
    input : Tensor
        Of shape (m, n).

    Returns
    -------
    Tensor
        Of shape ().

    Raises
    ------
    ShapeError
        If `input` has not two dimensions.
    """
    if input.ndim != 2:
        raise ShapeError(f"trace: got a tensor of shape {input.shape}; wanted a matrix")
    return _trace(input)


def _triangle_places(name: str, function: Any, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise ArgumentError(f"{name}: got {row} rows and {col} columns; wanted numbers from 0 on")
    places = np.stack(function(row, offset, col)).astype(dtypes.as_dtype("int64" if dtype is None else dtype))
    return Tensor.wrap(moved(places, as_device(device)))


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the indices of the lower triangle of a matrix.

    Parameters
    ----------
    row, col : int
        Numbers of rows and columns of the matrix.
    offset : int, default 0
        Outermost diagonal of the triangle: 0 is the main one, 1 the next above it.
    dtype : dtype, optional
        Data type of the result; by default, int64.
    device : Device or str, optional
        Where the result is; by default, the default device.

    Returns
    -------
    Tensor
        Of shape (2, n): row and column indices.

    Raises
    ------
    ArgumentError
        If a number is negative.
    """
    return _triangle_places("tril_indices", np.tril_indices, row, col, offset, dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the indices of the upper triangle of a matrix.

    Parameters
    ----------
    row, col : int
        Numbers of rows and columns of the matrix.
    offset : int, default 0
        Outermost diagonal of the triangle: 0 is the main one, 1 the next above it.
    dtype : dtype, optional
        Data type of the result; by default, int64.
    device : Device or str, optional
        Where the result is; by default, the default device.

    Returns
    -------
    Tensor
        Of shape (2, n): row and column indices.

    Raises
    ------
    ArgumentError
        If a number is negative.
    """
    return _triangle_places("triu_indices", np.triu_indices, row, col, offset, dtype, device)
