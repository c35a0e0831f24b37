"""Rearrangements made of simpler ones: turns, pieces, blocks, pixels, triangles' places."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import as_device, moved
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.broadcast import expand_to, sum_to
from spillgrad.ops.convert import clone
from spillgrad.ops.define import operation
from spillgrad.ops.indexing import diag, place_diagonal
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import (
    cat,
    constant_pad,
    flatten,
    flip,
    meshgrid,
    narrow,
    normalize_dim,
    normalize_dims,
    permute,
    reshape,
    shape_arguments,
    split,
    stack,
    transpose,
    unsqueeze,
)
from spillgrad.ops.subscript import getitem
from spillgrad.tensor import Tensor

# --- Turns and mirrors -----------------------------------------------------------------------------------------------


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Return a copy turned `k` times by 90 degrees, from the first of two dimensions towards the second."""
    turned = normalize_dims("rot90", dims, input.ndim)
    if len(turned) != 2:
        raise ArgumentError(f"rot90: got dims {tuple(dims)}; wanted two")
    first, second = turned
    if k % 4 == 0:
        return clone(input)
    if k % 4 == 2:
        return flip(input, first, second)
    return (
        transpose(flip(input, second), first, second) if k % 4 == 1 else flip(transpose(input, first, second), second)
    )


def fliplr(input: Tensor) -> Tensor:
    """Return a copy with the order along the second dimension reversed."""
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """Return a copy with the order along the first dimension reversed."""
    return flip(input, 0)


# --- Pieces and joints -----------------------------------------------------------------------------------------------


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of pieces: so many of nearly equal size, or those between the given indices."""
    dim = normalize_dim("tensor_split", dim, input.ndim)
    given = indices_or_sections.tolist() if isinstance(indices_or_sections, Tensor) else indices_or_sections
    size = input.shape[dim] if input.ndim else 0
    if isinstance(given, int):
        if given < 1:
            raise ArgumentError(f"tensor_split: got {given} sections; give at least 1")
        sizes = [size // given + (i < size % given) for i in range(given)]
        return split(input, sizes, dim)
    ends = [*(min(max(i + size if i < 0 else i, 0), size) for i in given), size]
    return tuple(narrow(input, dim, min(a, b), max(b - a, 0)) for a, b in itertools.pairwise([0, *ends]))


def _pieces_along(name: str, input: Tensor, indices_or_sections: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    if input.ndim < least:
        raise ShapeError(f"{name}: got a tensor of shape {input.shape}; wanted at least {least} dimensions")
    if isinstance(indices_or_sections, int) and input.shape[dim] % indices_or_sections:
        raise ArgumentError(
            f"{name}: got {indices_or_sections} sections; dimension {dim} of a tensor of shape {input.shape} must be "
            "a multiple of that: tensor_split takes any"
        )
    return tensor_split(input, indices_or_sections, dim)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return views of pieces along the second dimension, of vectors along the first."""
    return _pieces_along("hsplit", input, indices_or_sections, min(1, input.ndim - 1), 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return views of pieces along the first dimension."""
    return _pieces_along("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return views of pieces along the third dimension."""
    return _pieces_along("dsplit", input, indices_or_sections, 2, 3)


def _of_each(function: Any, tensors: tuple[Any, ...]) -> Any:
    several = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    results = tuple(function(x) for x in several)
    return results[0] if several is tensors and len(tensors) == 1 else results


def atleast_1d(*tensors: Any) -> Any:
    """Return a view of each tensor with at least one dimension."""
    return _of_each(lambda x: x if x.ndim else reshape(x, 1), tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Return a view of each tensor with at least two dimensions, new ones first."""
    return _of_each(lambda x: x if x.ndim > 1 else reshape(x, (1, -1)), tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Return a view of each tensor with at least three dimensions: (n,) becomes (1, n, 1), (m, n) (m, n, 1)."""
    return _of_each(lambda x: x if x.ndim > 2 else unsqueeze(x, -1) if x.ndim == 2 else reshape(x, (1, -1, 1)), tensors)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the third dimension."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the second dimension, 0-d and 1-D ones as columns."""
    return cat([x if x.ndim > 1 else reshape(x, (-1, 1)) for x in tensors], 1)


def block_diag(*tensors: Tensor) -> Tensor:
    """Return the matrix with the given ones along its diagonal and zeros elsewhere; vectors count as rows."""
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


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Return all combinations of one element of each vector, a row each."""
    if len(tensors) == 1:
        return tensors[0]
    return stack([flatten(grid) for grid in meshgrid(*tensors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return all ways to take `r` elements of a vector in their order, a row each."""
    if input.ndim != 1:
        raise ShapeError(f"combinations: got a tensor of shape {input.shape}; wanted a vector")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    return getitem(input, Tensor.wrap(places))


# --- Diagonals and triangles -----------------------------------------------------------------------------------------


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return zeros with the last dimension of `input` as the diagonal of two new ones."""
    ndim = input.ndim + 1
    first, second = normalize_dims("diag_embed", (dim1, dim2), ndim)
    size = input.shape[-1] + abs(offset) if input.ndim else 0
    if not input.ndim:
        raise ShapeError("diag_embed: got a 0-d tensor; wanted at least a vector")
    rest = iter(input.shape[:-1])
    shape = tuple(size if i in (first, second) else next(rest) for i in range(ndim))
    return place_diagonal(input, offset, first, second, shape)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """Return the matrix with the elements of a tensor on its diagonal and zeros elsewhere."""
    return diag(reshape(input, -1), offset)


_trace: Callable[..., Tensor] = operation(
    "trace", lambda self: sum(Tensor.wrap(np.diagonal(self))).array,
    self=lambda g, self_shape: place_diagonal(expand_to(g, (min(self_shape),)), 0, 0, 1, self_shape),
)  # fmt: skip


@float32_in_autocast
def trace(input: Tensor) -> Tensor:
    """Return the sum of a matrix's diagonal. Raises ShapeError for anything else."""
    if input.ndim != 2:
        raise ShapeError(f"trace: got a tensor of shape {input.shape}; wanted a matrix")
    return _trace(input)


def _triangle_places(name: str, function: Any, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise ArgumentError(f"{name}: got {row} rows and {col} columns; wanted numbers from 0 on")
    places = np.stack(function(row, offset, col)).astype(dtypes.as_dtype("int64" if dtype is None else dtype))
    return Tensor.wrap(moved(places, as_device(device)))


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the places in the lower triangle of a matrix: their rows, then their columns."""
    return _triangle_places("tril_indices", np.tril_indices, row, col, offset, dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the places in the upper triangle of a matrix: their rows, then their columns."""
    return _triangle_places("triu_indices", np.triu_indices, row, col, offset, dtype, device)


# --- Pixels and channels ---------------------------------------------------------------------------------------------


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Return images with `upscale_factor` squared channels each spread over an image that much larger.

    Shapes: (..., C r², H, W) gives (..., C, H r, W r). Source: Shi et al. 2016.
    """
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle: got a tensor of shape {input.shape} and a factor of {r}; wanted (..., C * {r}², H, W)"
        )
    *lead, channels, height, width = input.shape
    n = len(lead)
    apart = reshape(input, (*lead, channels // (r * r), r, r, height, width))
    moved = permute(apart, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape(moved, (*lead, channels // (r * r), height * r, width * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Return the reverse of `pixel_shuffle`. Shapes: (..., C, H r, W r) gives (..., C r², H, W)."""
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-2] % r or input.shape[-1] % r:
        raise ShapeError(
            f"pixel_unshuffle: got a tensor of shape {input.shape} and a factor of {r}; wanted "
            f"(..., C, H * {r}, W * {r})"
        )
    *lead, channels, height, width = input.shape
    n = len(lead)
    apart = reshape(input, (*lead, channels, height // r, r, width // r, r))
    moved = permute(apart, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape(moved, (*lead, channels * r * r, height // r, width // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Return images whose channels, in groups, are interleaved. Shapes: (N, C, ...). Source: Zhang et al. 2017."""
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError(
            f"channel_shuffle: got a tensor of shape {input.shape} and {groups} groups; wanted (N, C, ...) with C a "
            "multiple of them"
        )
    n, channels, *rest = input.shape
    return reshape(transpose(reshape(input, (n, groups, channels // groups, *rest)), 1, 2), input.shape)


# --- Sums down to a shape --------------------------------------------------------------------------------------------


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Return the sum over the dimensions along which `size` would broadcast to the tensor's shape.

    Raises ShapeError for a size that does not.
    """
    shape = shape_arguments(size)
    lead = input.ndim - len(shape)
    if lead < 0 or any(s not in (1, have) for s, have in zip(shape, input.shape[lead:], strict=True)):
        raise ShapeError(f"sum_to_size: got {shape} for a tensor of shape {input.shape}; it must broadcast to that")
    return sum_to(input, shape)
