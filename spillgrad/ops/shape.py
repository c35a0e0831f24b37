"""Change shapes and the order of dimensions: as a view if the strides allow one, else as a copy."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DimensionError, OperandError, ShapeError
from spillgrad.ops import array_casts
from spillgrad.ops.broadcast import common_shape, expand_to
from spillgrad.ops.declaration import declare
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "broadcast_to", "expand", "flatten", "moveaxis",
    "movedim", "permute", "ravel", "reshape", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unflatten",
    "unsqueeze",
]  # fmt: skip

Shape = tuple[int, ...]


def normalize_dim(name: str, dim: int, ndim: int) -> int:
    """Return `dim` counted from the front. Raises DimensionError if out of range, OperandError for a non-integer."""
    try:
        index = operator.index(dim)
    except TypeError as error:
        raise OperandError(f"{name}: got dim {dim!r}; wanted an integer") from error
    span = max(ndim, 1)
    if not -span <= index < span:
        raise DimensionError(f"{name}: got dim {index}; a tensor of {ndim} dimensions takes {-span} to {span - 1}")
    return index % span


def as_tuple(values: Any) -> tuple[Any, ...]:
    """Return an iterable as a tuple, and any other value as a tuple of one element."""
    return tuple(values) if hasattr(values, "__iter__") else (values,)


def normalize_dims(name: str, dims: Any, ndim: int) -> Shape:
    """Return several dimensions counted from the front.

    Raises DimensionError if a dimension is out of range or named twice.
    """
    normalized = tuple(normalize_dim(name, d, ndim) for d in as_tuple(dims))
    if len(set(normalized)) != len(normalized):
        raise DimensionError(f"{name}: got dims {tuple(dims)}; a dimension appears twice")
    return normalized


def shape_arguments(values: tuple[Any, ...], named: Any = None) -> Shape:
    """Return the sizes in `named`, by default in `values` (sizes or one list). Raises OperandError for non-integers."""
    if named is not None:
        values = (named,)
    sizes = values[0] if len(values) == 1 and not isinstance(values[0], int | np.integer | Tensor) else values
    try:
        return tuple(map(operator.index, sizes))
    except TypeError as error:
        raise OperandError(f"shape: got {sizes!r}; sizes are integers") from error


def one_dim(name: str, dim: int | None, axis: int | None, ndim: int) -> int:
    """Return the dimension given as `dim` or `axis`, counted from the front. Raises ArgumentError if both are None."""
    chosen = axis if dim is None else dim
    if chosen is None:
        raise ArgumentError(f"{name}: got no dim; give one, such as -1 for the last")
    return normalize_dim(name, chosen, ndim)


def _complete(name: str, shape: Shape, count: int) -> Shape:
    """Return the shape with -1 replaced by the size that gives `count` elements. Raises ShapeError if no size does."""
    if math.prod(shape) == count and min(shape, default=0) >= 0:
        return shape
    known = math.prod(s for s in shape if s != -1)
    unknown = shape.count(-1)
    fits = (
        unknown <= 1
        and all(s >= -1 for s in shape)
        and (known == count if not unknown else known and count % known == 0)
    )
    if not fits:
        raise ShapeError(f"{name}: got shape {shape} for {count} elements; sizes must multiply to that, one may be -1")
    return tuple(count // known if s == -1 else s for s in shape)


def _viewed(self: np.ndarray, shape: Shape) -> np.ndarray:
    return self.reshape(shape, copy=False)


def _copied(self: np.ndarray, shape: Shape) -> np.ndarray:
    return array_casts.cast(self, self.dtype).reshape(shape)


def _back_to_shape(g: Tensor, self_shape: Shape) -> Tensor:
    return reshape(g, self_shape)


_view: Callable[..., Tensor] = operation("view", _viewed, view=True, self=_back_to_shape)
_reshape: Callable[..., Tensor] = operation("reshape", _copied, self=_back_to_shape)
_squeeze: Callable[..., Tensor] = operation("squeeze", _viewed, view=True, self=_back_to_shape)
_unsqueeze: Callable[..., Tensor] = operation("unsqueeze", _viewed, view=True, self=_back_to_shape)
_permute: Callable[..., Tensor] = operation(
    "permute",
    lambda self, dims: self.transpose(dims),
    view=True,
    self=lambda g, dims: _permute(g, tuple(np.argsort(dims).tolist())),
)
_transpose: Callable[..., Tensor] = operation(
    "transpose",
    lambda self, dim0, dim1: self.swapaxes(dim0, dim1),
    view=True,
    self=lambda g, dim0, dim1: _transpose(g, dim0, dim1),
)
_t: Callable[..., Tensor] = operation("t", lambda self: self.T, view=True, self=lambda g: _t(g))


@declare(method=True)
def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """Return the same elements in another shape.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *sizes : int or sequence of int
        Size of each dimension, as several integers or one list; one size may be -1, and is then computed.
    shape : sequence of int, optional
        The sizes by name.

    Returns
    -------
    Tensor
        A view if the strides allow one, else a copy.

    Raises
    ------
    ShapeError
        If no such shape has as many elements.
    OperandError
        If a size is not an integer.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.arange(6)
    >>> x.reshape(2, 3).tolist()
    [[0, 1, 2], [3, 4, 5]]
    >>> sg.reshape(x, (3, -1)).shape
    (3, 2)
    """
    wanted = _complete("reshape", shape_arguments(sizes, shape), input.numel())
    try:
        return _view(input, wanted)
    except ValueError:  # NumPy's answer when no strides give that view
        return _reshape(input, wanted)


@declare(method=True)
def view(input: Tensor, *sizes: Any) -> Tensor:
    """Return a view in another shape, or of the bytes in another dtype.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *sizes : int, sequence of int or dtype
        Size of each dimension, as several integers or one list; one size may be -1, and is then computed. With a dtype
        instead, the memory is read as elements of that dtype.

    Returns
    -------
    Tensor
        A view of the same memory.

    Raises
    ------
    ShapeError
        If the strides allow no view (`reshape` then copies), if the sizes do not multiply to the number of elements, or
        if the bytes of the last dimension do not divide into elements of the dtype.
    """
    if len(sizes) == 1 and isinstance(sizes[0], np.dtype | type | str):
        return _reinterpreted(input, dtypes.as_dtype(sizes[0]))
    wanted = _complete("view", shape_arguments(sizes), input.numel())
    try:
        return _view(input, wanted)
    except ValueError as error:
        raise ShapeError(
            f"view: size {wanted} is not compatible with a tensor of shape {input.shape} and strides "
            f"{input.stride()}; use reshape"
        ) from error


def _reinterpreted(input: Tensor, dtype: dtypes.DType) -> Tensor:
    try:
        return Tensor.wrap(input.array.view(dtype), input.storage)
    except ValueError as error:
        raise ShapeError(
            f"view: got {dtype} for a tensor of {input.dtype} and shape {input.shape}; the last dimension must be "
            "contiguous and its bytes a multiple of the new element's"
        ) from error


@declare(method=True)
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """Return a view in the shape of another tensor.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    other : Tensor
        Has the wanted shape, and as many elements.

    Returns
    -------
    Tensor
        A view of `input`.

    Raises
    ------
    ShapeError
        If the strides allow no view, or the numbers of elements differ.
    """
    return view(input, other.shape)


@declare(method=True)
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """Return the same elements in the shape of another tensor.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    other : Tensor
        Has the wanted shape, and as many elements.

    Returns
    -------
    Tensor
        A view of `input` if the strides allow one, else a copy.

    Raises
    ------
    ShapeError
        If the numbers of elements differ.
    """
    return reshape(input, other.shape)


@declare(method=True, numpy=True)
def ravel(input: Tensor) -> Tensor:
    """Return the elements in one dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        A vector; a view if the strides allow one, else a copy.
    """
    return reshape(input, -1)


@declare(method=True)
def flatten(
    input: Tensor, start_dim: int = 0, end_dim: int = -1, *, start_axis: int | None = None, stop_axis: int | None = None
) -> Tensor:
    """Return the tensor with several neighbouring dimensions joined to one.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    start_dim : int, default 0
        First of the dimensions.
    end_dim : int, default -1
        Last of the dimensions.
    start_axis : int, optional
        Paddle's name of `start_dim`.
    stop_axis : int, optional
        Paddle's name of `end_dim`.

    Returns
    -------
    Tensor
        A view if the strides allow one, else a copy; a tensor of no dimensions becomes a vector.

    Raises
    ------
    ArgumentError
        If the first dimension lies behind the last.
    DimensionError
        If a dimension is out of range.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.flatten(sg.zeros(2, 3, 4), start_dim=1).shape
    (2, 12)
    """
    start_dim = start_dim if start_axis is None else start_axis
    end_dim = end_dim if stop_axis is None else stop_axis
    start, end = normalize_dim("flatten", start_dim, input.ndim), normalize_dim("flatten", end_dim, input.ndim)
    if start > end:
        raise ArgumentError(f"flatten: got start_dim {start_dim} behind end_dim {end_dim}")
    shape = input.shape or (1,)
    return reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


@declare(method=True)
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Return the tensor with one dimension split into several.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension to split.
    sizes : sequence of int
        Sizes of the new dimensions; one may be -1, and is then computed.

    Returns
    -------
    Tensor
        A view if the strides allow one, else a copy.

    Raises
    ------
    ShapeError
        If the sizes do not multiply to that of the dimension.
    """
    dim = normalize_dim("unflatten", dim, input.ndim)
    inner = _complete("unflatten", tuple(sizes), input.shape[dim])
    return reshape(input, (*input.shape[:dim], *inner, *input.shape[dim + 1 :]))


@declare(method=True)
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None, *, axis: Any = None) -> Tensor:
    """Return a view without dimensions of size 1.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int or sequence of int, optional
        Dimensions to remove, of those of size 1; all, by default. Those of another size stay.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        A view with the same elements.

    Raises
    ------
    DimensionError
        If a dimension is out of range or named twice.
    """
    dim = axis if dim is None else dim
    dims = range(input.ndim) if dim is None else normalize_dims("squeeze", dim, input.ndim)
    return _squeeze(input, tuple(s for i, s in enumerate(input.shape) if not (i in dims and s == 1)))


@declare(method=True)
def unsqueeze(input: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Return a view with a new dimension of size 1.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Position of the new dimension in the result; negative numbers count from the end of the result.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        A view with one dimension more.

    Raises
    ------
    DimensionError
        If the position is out of range.
    ArgumentError
        If neither `dim` nor `axis` is given.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.unsqueeze(sg.zeros(3), 0).shape
    (1, 3)
    """
    dim = one_dim("unsqueeze", dim, axis, input.ndim + 1)
    return _unsqueeze(input, (*input.shape[:dim], 1, *input.shape[dim:]))


@declare(method=True)
def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """Return a view with the dimensions in another order.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *order : int or sequence of int
        Dimensions of the input in their new order, as several integers or one list; each once.
    dims : sequence of int, optional
        The order by name.

    Returns
    -------
    Tensor
        A view; its dimension i is dimension ``order[i]`` of the input.

    Raises
    ------
    ArgumentError
        If a dimension is missing.
    DimensionError
        If a dimension is out of range or named twice.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.permute(sg.zeros(2, 3, 4), (2, 0, 1)).shape
    (4, 2, 3)
    """
    order = normalize_dims("permute", shape_arguments(order, dims), input.ndim)
    if len(order) != input.ndim:
        raise ArgumentError(f"permute: got dims {order} for a tensor of {input.ndim} dimensions; name each once")
    return _permute(input, order)


@declare(method=True)
def transpose(input: Tensor, dim0: Any = None, dim1: int | None = None, *, perm: Sequence[int] | None = None) -> Tensor:
    """Return a view with two dimensions swapped, or with all dimensions in another order.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim0 : int or sequence of int
        First dimension to swap; a list without `dim1` is Paddle's `perm`.
    dim1 : int, optional
        Second dimension to swap.
    perm : sequence of int, optional
        Paddle's order of all dimensions, as for `permute`.

    Returns
    -------
    Tensor
        A view of the same memory.

    Raises
    ------
    DimensionError
        If a dimension is out of range, or named twice in `perm`.
    ArgumentError
        If `perm` does not name every dimension.
    """
    if perm is not None or dim1 is None:
        return permute(input, dim0 if perm is None else perm)
    return _transpose(input, normalize_dim("transpose", dim0, input.ndim), normalize_dim("transpose", dim1, input.ndim))


swapaxes = swapdims = transpose


@declare(method=True)
def t(input: Tensor) -> Tensor:
    """Return the transpose of a matrix.

    Parameters
    ----------
    input : Tensor
        Of at most two dimensions.

    Returns
    -------
    Tensor
        A view with both dimensions swapped; the input itself if it has fewer than two.

    Raises
    ------
    ShapeError
        For more than two dimensions.
    """
    if input.ndim > 2:
        raise ShapeError(
            f"t: got a tensor of {input.ndim} dimensions; at most 2 are transposed: use transpose or permute"
        )
    return _t(input) if input.ndim == 2 else input


@declare(method=True)
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Return a view with some dimensions at other positions; the others keep their order.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    source : int or sequence of int
        Dimensions to move.
    destination : int or sequence of int
        The position of each in the result.

    Returns
    -------
    Tensor
        A view of the same memory.

    Raises
    ------
    ArgumentError
        If there are not as many positions as dimensions.
    DimensionError
        If a dimension is out of range or named twice.
    """
    sources = normalize_dims("movedim", source, input.ndim)
    destinations = normalize_dims("movedim", destination, input.ndim)
    if len(sources) != len(destinations):
        raise ArgumentError(f"movedim: got source {source} and destination {destination}; give as many of each")
    order = [d for d in range(input.ndim) if d not in sources]
    for place, d in sorted(zip(destinations, sources, strict=True)):
        order.insert(place, d)
    return permute(input, order)


moveaxis = movedim


@declare(method=True)
def expand(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """Return a view of a larger shape in which dimensions of size 1 repeat.

    Parameters
    ----------
    input : Tensor
        Each size is 1 or the wanted size; dimensions that are missing in front are added.
    *sizes : int or sequence of int
        Size of each dimension, as several integers or one list; -1 keeps the size of the input.
    shape : sequence of int, optional
        The sizes by name.

    Returns
    -------
    Tensor
        A view; several of its elements may share memory.

    Raises
    ------
    ShapeError
        If the input does not broadcast to this shape, or a new dimension has size -1.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.tensor([[1], [2]]).expand(-1, 3).tolist()
    [[1, 1, 1], [2, 2, 2]]
    """
    wanted = shape_arguments(sizes, shape)
    lead = len(wanted) - input.ndim
    if lead < 0 or any(size == -1 and i < lead for i, size in enumerate(wanted)):
        raise ShapeError(
            f"expand: got {wanted} for a tensor of shape {input.shape}; give a size for each dimension, new ones first"
        )
    return expand_to(input, tuple(input.shape[i - lead] if size == -1 else size for i, size in enumerate(wanted)))


@declare(method=True)
def broadcast_to(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """Return a view of a shape in which dimensions of size 1 repeat.

    Parameters
    ----------
    input : Tensor
        Each size is 1 or the wanted size; dimensions that are missing in front are added.
    *sizes : int or sequence of int
        Size of each dimension, as several integers or one list.
    shape : sequence of int, optional
        The sizes by name.

    Returns
    -------
    Tensor
        A view; several of its elements may share memory.

    Raises
    ------
    ShapeError
        If the input does not broadcast to this shape.
    """
    return expand(input, *sizes, shape=shape)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return views of tensors in the shape that they broadcast to.

    Parameters
    ----------
    *tensors : Tensor
        Tensors whose shapes broadcast.

    Returns
    -------
    tuple of Tensor
        A view of each, all of one shape.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """
    shape = common_shape("broadcast_tensors", [x.shape for x in tensors])
    return tuple(expand_to(x, shape) for x in tensors)


@declare(method=True)
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Return a view in the shape of another tensor, in which dimensions of size 1 repeat.

    Parameters
    ----------
    input : Tensor
        Broadcasts to the shape of `other`.
    other : Tensor
        Has the wanted shape.

    Returns
    -------
    Tensor
        A view of `input`.

    Raises
    ------
    ShapeError
        If the input does not broadcast to this shape.
    """
    return expand_to(input, other.shape)


def _of_each(function: Any, tensors: tuple[Any, ...]) -> Any:
    several = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    results = tuple(function(x) for x in several)
    return results[0] if several is tensors and len(tensors) == 1 else results


@declare(numpy=True)
def atleast_1d(*tensors: Any) -> Any:
    """Return a view of each tensor with at least one dimension.

    Parameters
    ----------
    *tensors : Tensor
        Of any shapes; or one list of tensors.

    Returns
    -------
    Tensor or tuple of Tensor
        The view of a single tensor; for several, or a list, a tuple.
    """
    return _of_each(lambda x: x if x.ndim else reshape(x, 1), tensors)


@declare(numpy=True)
def atleast_2d(*tensors: Any) -> Any:
    """Return a view of each tensor with at least two dimensions, new ones first.

    Parameters
    ----------
    *tensors : Tensor
        Of any shapes; or one list of tensors.

    Returns
    -------
    Tensor or tuple of Tensor
        The view of a single tensor; for several, or a list, a tuple.
    """
    return _of_each(lambda x: x if x.ndim > 1 else reshape(x, (1, -1)), tensors)


@declare(numpy=True)
def atleast_3d(*tensors: Any) -> Any:
    """Return a view of each tensor with at least three dimensions.

    Parameters
    ----------
    *tensors : Tensor
        Of any shapes, or one list of tensors; (n,) becomes (1, n, 1), and (m, n) becomes (m, n, 1).

    Returns
    -------
    Tensor or tuple of Tensor
        The view of a single tensor; for several, or a list, a tuple.
    """
    return _of_each(lambda x: x if x.ndim > 2 else unsqueeze(x, -1) if x.ndim == 2 else reshape(x, (1, -1, 1)), tensors)
