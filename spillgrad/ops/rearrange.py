"""Rearrange elements: flip, rotate, roll, repeat, pad and crop; shuffle pixels and channels."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.convert import clone
from spillgrad.ops.declaration import declare
from spillgrad.ops.getitem_setitem import getitem
from spillgrad.ops.operation import operation
from spillgrad.ops.shape import (
    Shape,
    as_tuple,
    flatten,
    normalize_dim,
    normalize_dims,
    permute,
    reshape,
    shape_arguments,
    transpose,
)
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import arange_beside, beside, empty_beside

__all__ = [
    "channel_shuffle", "combinations", "flip", "fliplr", "flipud", "pixel_shuffle", "pixel_unshuffle",
    "repeat_interleave", "roll", "rot90", "tile",
]  # fmt: skip


def _flipped(self: np.ndarray, dims: Shape) -> np.ndarray:
    out = empty_beside(self, self.shape, self.dtype)
    np.copyto(out, np.flip(self, dims))
    return out


_flip: Callable[..., Tensor] = operation("flip", _flipped, self=lambda g, dims: _flip(g, dims))


@declare(method=True)
def flip(input: Tensor, *reversed_dims: Any, dims: Any = None, axis: Any = None) -> Tensor:
    """Return a copy with the order of elements reversed along some dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *reversed_dims : int or sequence of int
        The dimensions, as several integers or one list.
    dims : int or sequence of int, optional
        The dimensions by name.
    axis : int or sequence of int, optional
        Another name of `dims`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DimensionError
        If a dimension is out of range or named twice.
    """
    named = axis if dims is None else dims
    named = None if named is None else as_tuple(named)
    return _flip(input, normalize_dims("flip", shape_arguments(reversed_dims, named), input.ndim))


def _rolled(self: np.ndarray, shifts: Shape, dims: Shape | None) -> np.ndarray:
    out = empty_beside(self, self.shape, self.dtype)
    np.copyto(out, np.roll(self, shifts, dims))
    return out


_roll: Callable[..., Tensor] = operation(
    "roll", _rolled, self=lambda g, shifts, dims: _roll(g, tuple(-s for s in shifts), dims)
)


@declare(method=True)
def roll(
    input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None, *, axis: Any = None
) -> Tensor:
    """Return a copy with the elements moved along some dimensions, or in the flattened tensor.

    Elements that are moved beyond an end continue at the other end.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    shifts : int or sequence of int
        Number of indices to move by, one for each dimension.
    dims : int or sequence of int, optional
        Dimensions to move along; by default, elements move in the flattened tensor.
    axis : int or sequence of int, optional
        Another name of `dims`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If there are not as many shifts as dimensions.
    DimensionError
        If a dimension is out of range.
    """
    steps = as_tuple(shifts)
    dims = axis if dims is None else dims
    along = None if dims is None else tuple(normalize_dim("roll", d, input.ndim) for d in as_tuple(dims))
    if len(steps) != (1 if along is None else len(along)):
        raise ArgumentError(f"roll: got shifts {shifts} and dims {dims}; give one shift for each dimension")
    return _roll(input, steps, along)


def _padded(self: np.ndarray, widths: tuple[tuple[int, int], ...], value: float) -> np.ndarray:
    shape = tuple(s + before + after for s, (before, after) in zip(self.shape, widths, strict=True))
    out = empty_beside(self, shape, self.dtype)
    out.fill(value)
    out[_interior(self.shape, widths)] = self
    return out


def _interior(shape: Shape, widths: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(before, before + s) for s, (before, _) in zip(shape, widths, strict=True))


crop: Callable[..., Tensor] = operation(
    "crop",
    lambda self, widths: self[tuple(slice(b, s - a) for s, (b, a) in zip(self.shape, widths, strict=True))],
    view=True,
    self=lambda g, widths: constant_pad(g, widths, 0.0),
)
constant_pad: Callable[..., Tensor] = operation("constant_pad_nd", _padded, self=lambda g, widths: crop(g, widths))


def _with_counts(counts: Shape, shape: Shape) -> tuple[Shape, Shape]:
    """Return the shapes (count, size, count, size, …) for the repeated tensor, (1, size, 1, size, …) for the input."""
    shape = (1,) * (len(counts) - len(shape)) + shape
    spread = tuple(size for pair in zip(counts, shape, strict=True) for size in pair)
    return spread, tuple(size for s in shape for size in (1, s))


def _repeated(self: np.ndarray, repeats: Shape) -> np.ndarray:
    spread, single = _with_counts(repeats, self.shape)
    shape = tuple(count * size for count, size in zip(spread[::2], spread[1::2], strict=True))
    out = empty_beside(self, shape, self.dtype)
    np.copyto(out.reshape(spread), self.reshape(single))
    return out


def _repeat_gradient(g: Tensor, repeats: Shape, self_shape: Shape) -> Tensor:
    spread, single = _with_counts(repeats, self_shape)
    return reshape(sum_to(reshape(g, spread), single), self_shape)


_repeat: Callable[..., Tensor] = operation("repeat", _repeated, self=_repeat_gradient)


@declare(method=True)
def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """Return the tensor repeated along each dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *repeats : int or sequence of int
        A count for each dimension, new dimensions first, as several integers or one list.

    Returns
    -------
    Tensor
        A copy, each size multiplied by its count.

    Raises
    ------
    ShapeError
        If there are fewer counts than dimensions.
    """
    counts = shape_arguments(repeats)
    if len(counts) < input.ndim:
        raise ShapeError(f"repeat: got {counts} for {input.ndim} dimensions; give a count for each")
    return _repeat(input, counts)


@declare(method=True)
def tile(input: Tensor, *dims: Any) -> Tensor:
    """Return the tensor repeated along its last dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *dims : int or sequence of int
        A count for each of the last dimensions, as several integers or one list; further counts make new dimensions in
        front.

    Returns
    -------
    Tensor
        A copy, each size multiplied by its count.
    """
    counts = shape_arguments(dims)
    return repeat(input, (1,) * (input.ndim - len(counts)) + counts)


@declare(method=True)
def repeat_interleave(
    input: Tensor, repeats: int | Tensor | None = None, dim: int | None = None, *, axis: int | None = None
) -> Tensor:
    """Return each element, or each slice along a dimension, repeated next to itself.

    Parameters
    ----------
    input : Tensor
        Of any shape; if `repeats` is None, the counts themselves.
    repeats : int or Tensor, optional
        One count for all, or a count for each. By default, `input` holds counts, and the result is each index, repeated
        as often as the count at that index says.
    dim : int, optional
        Dimension of the slices; by default, elements of the flattened input are repeated.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        A vector, or with `dim`, slices of the input.

    Raises
    ------
    ArgumentError
        If the counts are negative, not integers, or not as many as needed.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.repeat_interleave(sg.tensor([5, 7]), 2).tolist()
    [5, 5, 7, 7]
    """
    dim = axis if dim is None else dim
    if repeats is None:
        return repeat_interleave(Tensor.wrap(arange_beside(input.array, input.numel())), input, 0)
    if dim is None:
        return repeat_interleave(flatten(input), repeats, 0)
    dim = normalize_dim("repeat_interleave", dim, input.ndim)
    size = input.shape[dim]
    counts = repeats.host_array() if isinstance(repeats, Tensor) else np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.size not in (1, size) or counts.ndim > 1 or counts.min(initial=0) < 0:
        raise ArgumentError(
            f"repeat_interleave: got repeats {repeats!r}; wanted one count, or {size} of them, none negative"
        )
    positions = Tensor.wrap(beside(input.array, np.repeat(np.arange(size), counts)))
    return getitem(input, (slice(None),) * dim + (positions,))


@declare(method=True, numpy=True)
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Return a copy rotated by multiples of 90 degrees.

    Parameters
    ----------
    input : Tensor
        Of at least two dimensions.
    k : int, default 1
        How often to rotate, from the first of two dimensions towards the second.
    dims : sequence of int, default (0, 1)
        The two dimensions.

    Returns
    -------
    Tensor
        Of the shape of `input`, with the two sizes swapped if `k` is odd.

    Raises
    ------
    ArgumentError
        If there are not two dimensions.
    """
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


@declare(method=True, numpy=True)
def fliplr(input: Tensor) -> Tensor:
    """Return a copy with the order along the second dimension reversed.

    Parameters
    ----------
    input : Tensor
        Of at least two dimensions.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DimensionError
        For fewer dimensions.
    """
    return flip(input, 1)


@declare(method=True, numpy=True)
def flipud(input: Tensor) -> Tensor:
    """Return a copy with the order along the first dimension reversed.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return flip(input, 0)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return all combinations of a number of elements of a vector, in their order.

    Parameters
    ----------
    input : Tensor
        Of shape (n,).
    r : int, default 2
        Number of elements in a combination.
    with_replacement : bool, default False
        Whether a combination may have an element several times.

    Returns
    -------
    Tensor
        Of shape (combinations, r): each row is a combination.

    Raises
    ------
    ShapeError
        For other than one dimension.
    """
    if input.ndim != 1:
        raise ShapeError(f"combinations: got a tensor of shape {input.shape}; wanted a vector")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    return getitem(input, Tensor.wrap(places))


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Return images in which r² channels become one channel of r times the height and width.

    Parameters
    ----------
    input : Tensor
        Of shape (..., C r², H, W).
    upscale_factor : int
        The factor r.

    Returns
    -------
    Tensor
        Of shape (..., C, H r, W r).

    Raises
    ------
    ShapeError
        For fewer than three dimensions, or if r² does not divide the channels.

    Notes
    -----
    Source: Shi et al. 2016.
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
    """Return images in which each channel becomes r² channels: the reverse of `pixel_shuffle`.

    Parameters
    ----------
    input : Tensor
        Of shape (..., C, H r, W r).
    downscale_factor : int
        The factor r.

    Returns
    -------
    Tensor
        Of shape (..., C r², H, W).

    Raises
    ------
    ShapeError
        For fewer than three dimensions, or if r does not divide height and width.
    """
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
    """Return images with the channels of all groups interleaved.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, ...).
    groups : int
        Number of groups; a divisor of C.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        For fewer than three dimensions, or if the groups do not divide C.

    Notes
    -----
    Source: Zhang et al. 2017.
    """
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError(
            f"channel_shuffle: got a tensor of shape {input.shape} and {groups} groups; wanted (N, C, ...) with C a "
            "multiple of them"
        )
    n, channels, *rest = input.shape
    return reshape(transpose(reshape(input, (n, groups, channels // groups, *rest)), 1, 2), input.shape)


@declare(method=True)
def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Return the tensor summed to a shape that broadcasts to its own.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *size : int or sequence of int
        The shape, as several integers or one list.

    Returns
    -------
    Tensor
        Of this shape: summed over the dimensions along which it would broadcast.

    Raises
    ------
    ShapeError
        If the shape does not broadcast to that of the tensor.
    """
    shape = shape_arguments(size)
    lead = input.ndim - len(shape)
    if lead < 0 or any(s not in (1, have) for s, have in zip(shape, input.shape[lead:], strict=True)):
        raise ShapeError(f"sum_to_size: got {shape} for a tensor of shape {input.shape}; it must broadcast to that")
    return sum_to(input, shape)
