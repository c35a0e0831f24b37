"""Functions of the array API standard that PyTorch lacks or has under another name.

For a name that both define, `sg` keeps PyTorch's meaning.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import filled
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import docstrings
from spillgrad.ops.broadcast import common_shape
from spillgrad.ops.convert import clone, to
from spillgrad.ops.counting import unique
from spillgrad.ops.creation import as_tensor, tensor
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.indexing import take, take_along_dim
from spillgrad.ops.join_split import cat, unbind
from spillgrad.ops.logic import bitwise_not
from spillgrad.ops.rearrange import repeat_interleave
from spillgrad.ops.scan import cumprod, cumsum
from spillgrad.ops.shape import broadcast_tensors, normalize_dim, permute, transpose, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import arange_beside

__all__ = [
    "asarray", "astype", "bitwise_invert", "broadcast_arrays", "broadcast_shapes", "can_cast", "cumulative_prod",
    "cumulative_sum", "expand_dims", "isdtype", "matrix_transpose", "permute_dims", "repeat", "take_along_axis",
    "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack",
]  # fmt: skip


class UniqueAll(NamedTuple):
    """The results of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The results of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The results of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


bitwise_invert = bitwise_not


def asarray(obj: Any, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return `obj` as a tensor. copy=True always copies the data, copy=False never copies, None copies if necessary.

    Raises ArgumentError for copy=False if the data must be copied.
    """
    if isinstance(obj, Tensor):
        result = as_tensor(obj, dtype, device)
        shared = result is obj
        if copy and shared:
            return clone(result)
    else:
        result = (tensor if copy else as_tensor)(obj, dtype, device)
        shared = isinstance(obj, np.ndarray) and np.may_share_memory(result.array, obj)
    if copy is False and not shared and result.numel():
        raise ArgumentError(f"asarray: got copy=False for {type(obj).__name__} data, which must be copied")
    return result


@declare(numpy=True)
def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Return a copy of `x` with the given dtype and device; copy=False copies only if one of these changes."""
    return to(x, dtype=dtypes.as_dtype(dtype), device=device, copy=copy)


def can_cast(from_: Any, to: Any) -> bool:
    """Return whether a dtype or tensor can be cast: to its own kind or a later one of bool, integer, real, complex."""
    source = from_.dtype if isinstance(from_, Tensor) else dtypes.as_dtype(from_)
    return dtypes.category(source) <= dtypes.category(dtypes.as_dtype(to))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of `kind`, which is a dtype, a name such as "real floating", or a tuple of kinds.

    Raises DtypeError for an unknown name.
    """
    found = dtypes.as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, part) for part in kind)
    signed, unsigned = found.kind == "i", found.kind == "u"
    real, whole = dtypes.is_floating_point(found), dtypes.is_complex(found)
    kinds = {
        "bool": found == dtypes.bool_, "signed integer": signed, "unsigned integer": unsigned,
        "integral": signed or unsigned, "real floating": real, "complex floating": whole,
        "numeric": signed or unsigned or real or whole,
    }  # fmt: skip
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind]
    return found == dtypes.as_dtype(kind)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Return a view with the dimensions in the order `axes`."""
    return permute(x, tuple(axes))


@declare(numpy=True)
def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return a view with the last two dimensions swapped. Raises ShapeError for fewer than two dimensions."""
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose: got a tensor of shape {x.shape}; wanted at least two dimensions")
    return transpose(x, -2, -1)


@declare(numpy=True)
def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """Return a view with a new dimension of size 1 at `axis`."""
    return unsqueeze(x, axis)


@declare(numpy=True)
def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Return views of the tensors in the shape that they broadcast to."""
    return broadcast_tensors(*arrays)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape that `shapes` broadcast to; an int is a 1-d shape. Raises ShapeError if there is none."""
    return common_shape("broadcast_shapes", shapes)


@declare(numpy=True)
def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Return the elements, or the slices along `axis`, each repeated `repeats` times in a row."""
    return repeat_interleave(x, repeats, axis)


@declare(numpy=True)
def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return views of the slices along `axis`, each without that dimension."""
    return unbind(x, axis)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the elements at `indices` along one dimension; the other dimensions broadcast."""
    return take_along_dim(x, indices, axis)


def _cumulative(name: str, function: Callable[..., Tensor], what: str, initial: int) -> Callable[..., Tensor]:
    def cumulative(
        x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Tensor:
        if axis is None:
            if x.ndim != 1:
                raise ArgumentError(f"{name}: got a tensor of {x.ndim} dimensions and no axis; give one")
            axis = 0
        axis = normalize_dim(name, axis, x.ndim)
        running = function(x, axis, dtype=dtype)
        if not include_initial:
            return running
        first = filled(x.device, (*x.shape[:axis], 1, *x.shape[axis + 1 :]), running.dtype, initial)
        return cat([Tensor.wrap(first), running], axis)

    doc = docstrings.composed(
        f"Return the running {what} along a dimension.",
        "x : Tensor\n    Of any shape.",
        "axis : int, optional\n    Dimension; a vector needs none.",
        "dtype : dtype, optional\n    Data type of the result; by default, that of `x`, or int64 for smaller integers.",
        f"include_initial : bool, default False\n    Whether a {initial} is in front, so that the result has one more.",
        returns="Tensor\n    Of the shape of `x`, one longer along `axis` with `include_initial`.",
        raises="ArgumentError\n    If there is no `axis`, and `x` is not a vector.",
    )
    return named(cumulative, name, doc)


cumulative_sum = _cumulative("cumulative_sum", cumsum, "sums", 0)
cumulative_prod = _cumulative("cumulative_prod", cumprod, "products", 1)


@declare(numpy=True)
def unique_values(x: Tensor, /) -> Tensor:
    """Return the distinct elements in ascending order; every NaN counts as distinct."""
    return unique_all(x).values


@declare(numpy=True)
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the distinct elements and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


@declare(numpy=True)
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the distinct elements, and for each element of `x` the index of its value in the distinct elements."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


@declare(numpy=True)
def unique_all(x: Tensor, /) -> UniqueAll:
    """Return the distinct elements, the index of the first occurrence of each, the inverse indices and the counts.

    The inverse index of an element of `x` is the index of its value in the distinct elements. The gradient of a
    distinct element goes to the first occurrence of the value in `x`.
    """
    values, inverse, counts = unique(x, return_inverse=True, return_counts=True)
    first = filled(x.device, values.shape, np.int64, inverse.numel())
    np.minimum.at(first, inverse.array.reshape(-1), arange_beside(x.array, inverse.numel()))
    indices = Tensor.wrap(first)
    return UniqueAll(take(x, indices) if x.requires_grad else values, indices, inverse, counts)
