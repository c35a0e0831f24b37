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
    """Return data as a tensor, copied or not.

    Parameters
    ----------
    obj : Any
        Tensor, array, number or nested list.
    dtype : dtype, optional
        Data type of the result; by default, that of the data.
    device : Device or str, optional
        Where the result is; by default, where the data is.
    copy : bool, optional
        True always copies the data, False never; None copies if necessary.

    Returns
    -------
    Tensor
        With the values of `obj`.

    Raises
    ------
    ArgumentError
        If `copy` is False, and the data must be copied.
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
    """Return a copy of a tensor with a dtype and a device.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    dtype : dtype
        Data type of the result.
    copy : bool, default True
        False copies only if the dtype or the device changes.
    device : Device or str, optional
        Where the result is; by default, where `x` is.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return to(x, dtype=dtypes.as_dtype(dtype), device=device, copy=copy)


def can_cast(from_: Any, to: Any) -> bool:
    """Return whether a dtype can be cast: to its own kind or a later one of bool, integer, real, complex.

    Parameters
    ----------
    from_ : dtype or Tensor
        Dtype to cast, or a tensor that has it.
    to : dtype
        Dtype to cast to.

    Returns
    -------
    bool
        Whether it can.
    """
    source = from_.dtype if isinstance(from_, Tensor) else dtypes.as_dtype(from_)
    return dtypes.category(source) <= dtypes.category(dtypes.as_dtype(to))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind.

    Parameters
    ----------
    dtype : dtype
        Dtype in question.
    kind : dtype, str or tuple
        A dtype; "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating" or
        "numeric"; or a tuple of kinds.

    Returns
    -------
    bool
        Whether the dtype is of the kind, or of one of the kinds.

    Raises
    ------
    DtypeError
        If the name of a kind is unknown.
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
    """Return a view with the dimensions in another order.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axes : sequence of int
        Dimensions in the wanted order.

    Returns
    -------
    Tensor
        View of the memory of `x`.
    """
    return permute(x, tuple(axes))


@declare(numpy=True)
def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return a view with the last two dimensions swapped.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).

    Returns
    -------
    Tensor
        Of shape (..., n, m).

    Raises
    ------
    ShapeError
        If `x` has fewer than two dimensions.
    """
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose: got a tensor of shape {x.shape}; wanted at least two dimensions")
    return transpose(x, -2, -1)


@declare(numpy=True)
def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """Return a view with a new dimension of size 1.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axis : int, default 0
        Place of the new dimension.

    Returns
    -------
    Tensor
        Of one dimension more.
    """
    return unsqueeze(x, axis)


@declare(numpy=True)
def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Return views of the tensors in the shape that they broadcast to.

    Parameters
    ----------
    *arrays : Tensor
        Tensors whose shapes broadcast.

    Returns
    -------
    tuple of Tensor
        A view of each.
    """
    return broadcast_tensors(*arrays)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to.

    Parameters
    ----------
    *shapes : tuple of int or int
        An int is a 1-d shape.

    Returns
    -------
    tuple of int
        The common shape.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """
    return common_shape("broadcast_shapes", shapes)


@declare(numpy=True)
def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Return the elements, or the slices along a dimension, each repeated in a row.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    repeats : int or Tensor
        How often: one number for all, or one for each.
    axis : int, optional
        Dimension of the slices; by default, the elements of the flattened tensor.

    Returns
    -------
    Tensor
        With the repeated elements or slices.
    """
    return repeat_interleave(x, repeats, axis)


@declare(numpy=True)
def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return views of the slices along a dimension, each without that dimension.

    Parameters
    ----------
    x : Tensor
        Of at least one dimension.
    axis : int, default 0
        Dimension of the slices.

    Returns
    -------
    tuple of Tensor
        As many as the size of the dimension.
    """
    return unbind(x, axis)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the elements at indices along one dimension; the other dimensions broadcast.

    Parameters
    ----------
    x : Tensor
        Of at least one dimension.
    indices : Tensor
        Of integers, with as many dimensions as `x`.
    axis : int, default -1
        Dimension of the indices.

    Returns
    -------
    Tensor
        Of the shape of `indices`, broadcast.
    """
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
    """Return the distinct elements in ascending order; every NaN counts as distinct.

    Parameters
    ----------
    x : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Vector of the distinct elements.
    """
    return unique_all(x).values


@declare(numpy=True)
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the distinct elements and how often each occurs.

    Parameters
    ----------
    x : Tensor
        Of any shape.

    Returns
    -------
    UniqueCounts
        Vectors of values and counts.
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


@declare(numpy=True)
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the distinct elements, and for each element of `x` the index of its value in the distinct elements.

    Parameters
    ----------
    x : Tensor
        Of any shape.

    Returns
    -------
    UniqueInverse
        Vector of values, and indices of the shape of `x`.
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


@declare(numpy=True)
def unique_all(x: Tensor, /) -> UniqueAll:
    """Return the distinct elements, the index of the first occurrence of each, the inverse indices and the counts.

    The gradient of a distinct element goes to the first occurrence of the value in `x`.

    Parameters
    ----------
    x : Tensor
        Of any shape.

    Returns
    -------
    UniqueAll
        Vectors of values, indices and counts, and inverse indices of the shape of `x`: the index of each element's
        value in the distinct elements.
    """
    values, inverse, counts = unique(x, return_inverse=True, return_counts=True)
    first = filled(x.device, values.shape, np.int64, inverse.numel())
    np.minimum.at(first, inverse.array.reshape(-1), arange_beside(x.array, inverse.numel()))
    indices = Tensor.wrap(first)
    return UniqueAll(take(x, indices) if x.requires_grad else values, indices, inverse, counts)
