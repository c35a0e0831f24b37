"""Join tensors along an existing or a new dimension, and split them into views."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DimensionError, OperandError, ShapeError
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.getitem_setitem import getitem
from spillgrad.ops.operation import Derivative, Operation, operation
from spillgrad.ops.shape import (
    Shape,
    atleast_3d,
    broadcast_tensors,
    flatten,
    normalize_dim,
    reshape,
    shape_arguments,
    squeeze,
    transpose,
)
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import empty_beside

__all__ = [
    "cartesian_prod", "cat", "chunk", "column_stack", "concat", "concatenate", "dsplit", "dstack", "hsplit", "hstack",
    "meshgrid", "narrow", "row_stack", "select", "split", "split_with_sizes", "stack", "tensor_split", "unbind",
    "vsplit", "vstack",
]  # fmt: skip


def _joined(*arrays_and_sizes: Any) -> np.ndarray:
    *arrays, sizes, dim = arrays_and_sizes
    shape = arrays[0].shape
    out = empty_beside(arrays[0], (*shape[:dim], sum(sizes), *shape[dim + 1 :]), arrays[0].dtype)
    np.concatenate(arrays, dim, out=out)
    return out


def _stacked(*arrays_and_dim: Any) -> np.ndarray:
    *arrays, dim = arrays_and_dim
    shape = arrays[0].shape
    out = empty_beside(arrays[0], (*shape[:dim], len(arrays), *shape[dim:]), arrays[0].dtype)
    np.stack(arrays, dim, out=out)
    return out


# Keeps the operations for 64 numbers of inputs or outputs: an operation of thousands of inputs takes a megabyte.
_few = functools.lru_cache(maxsize=64)


@_few
def _cat(count: int) -> Operation:
    """Return the operation that concatenates `count` tensors; each tensor is an input with its own name."""
    names = tuple(f"tensor{i}" for i in range(count))

    def backward(g: Tensor, sizes: Shape, dim: int) -> Any:
        return g if count == 1 else _split(count)(g, sizes, dim)

    derivative = Derivative(names, ("g", "sizes", "dim"), backward)
    return Operation("cat", _joined, (derivative,), (*names, "sizes", "dim"))


@_few
def _stack(count: int) -> Operation:
    """Return the operation that stacks `count` tensors; each tensor is an input with its own name."""
    names = tuple(f"tensor{i}" for i in range(count))

    def backward(g: Tensor, dim: int) -> Any:
        return squeeze(g, dim) if count == 1 else unbind(g, dim)

    return Operation("stack", _stacked, (Derivative(names, ("g", "dim"), backward),), (*names, "dim"))


def _of_one_dtype(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors in their common dtype. Raises ArgumentError for an empty list, OperandError for other objects."""
    if not isinstance(tensors, list | tuple) or not all([isinstance(x, Tensor) for x in tensors]):
        raise OperandError(f"{name}: got {type(tensors).__name__}; wanted a list or tuple of tensors")
    if not tensors:
        raise ArgumentError(f"{name}: got no tensors; give at least one")
    found = {x.numpy_dtype for x in tensors}
    if len(found) == 1:
        return list(tensors)
    dtype = functools.reduce(dtypes.promote, found)
    return [to_dtype(x, dtype) for x in tensors]


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Return tensors joined along an existing dimension.

    Empty tensors of one dimension are left out, whatever the other shapes.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of one shape, except along `dim`.
    dim : int, default 0
        Dimension along which they are joined.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Its size along `dim` is the sum of the tensors' sizes.

    Raises
    ------
    ArgumentError
        For an empty list.
    ShapeError
        If other dimensions than `dim` differ, or a tensor has no dimensions.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.cat([sg.tensor([1, 2]), sg.tensor([3])]).tolist()
    [1, 2, 3]
    """
    parts = _of_one_dtype("cat", tensors)
    parts = [x for x in parts if x.shape != (0,)] or parts[:1]
    first = parts[0]
    if not first.ndim:
        raise ShapeError("cat: got a 0-d tensor; it has no dimension to join along: use stack")
    dim = normalize_dim("cat", dim if axis is None else axis, first.ndim)
    shape = first.shape
    before, behind = shape[:dim], shape[dim + 1 :]
    for other in parts[1:]:
        found = other.shape
        if found != shape and (len(found) != len(shape) or found[:dim] != before or found[dim + 1 :] != behind):
            raise ShapeError(f"cat: got {shape} and {found}; all but dimension {dim} must match")
    sizes = tuple([x.shape[dim] for x in parts])
    return _cat(len(parts))(*parts, sizes, dim)  # type: ignore[no-any-return]


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Return tensors of one shape joined along a new dimension.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of one shape.
    dim : int, default 0
        Position of the new dimension in the result.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        With one dimension more, of as many indices as there are tensors.

    Raises
    ------
    ArgumentError
        For an empty list.
    ShapeError
        If shapes differ.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.stack([sg.tensor([1, 2]), sg.tensor([3, 4])], dim=1).tolist()
    [[1, 3], [2, 4]]
    """
    parts = _of_one_dtype("stack", tensors)
    dim = normalize_dim("stack", dim if axis is None else axis, parts[0].ndim + 1)
    for number, other in enumerate(parts):
        if other.shape != parts[0].shape:
            raise ShapeError(
                f"stack: stack expects each tensor to be equal size, but got {list(parts[0].shape)} at entry 0 and "
                f"{list(other.shape)} at entry {number}; all shapes must be equal"
            )
    return _stack(len(parts))(*parts, dim)  # type: ignore[no-any-return]


@declare(numpy=True)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the second dimension; vectors are joined along the first.

    Parameters
    ----------
    tensors : sequence of Tensor
        Those of no dimensions count as vectors of one element.

    Returns
    -------
    Tensor
        Of at least one dimension.

    Raises
    ------
    ShapeError
        If other dimensions differ.
    """
    parts = [x if x.ndim else reshape(x, 1) for x in tensors]
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


@declare(numpy="vstack")
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the first dimension.

    Parameters
    ----------
    tensors : sequence of Tensor
        Those of fewer than two dimensions count as rows.

    Returns
    -------
    Tensor
        Of at least two dimensions.

    Raises
    ------
    ShapeError
        If other dimensions than the first differ.
    """
    return cat([x if x.ndim > 1 else reshape(x, (1, -1)) for x in tensors])


row_stack = vstack


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Return views of vectors in the shape of a grid; vector i lies along dimension i.

    Parameters
    ----------
    *tensors : Tensor
        Vectors, or one list of vectors; a tensor of no dimensions counts as a vector of one element.
    indexing : {"ij", "xy"}, default "ij"
        With "xy", the first two dimensions of the grid are swapped.

    Returns
    -------
    tuple of Tensor
        For each vector a view in the shape of the grid.

    Raises
    ------
    ArgumentError
        For another `indexing`.
    """
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f'meshgrid: got indexing={indexing!r}; accepted are "ij" and "xy"')
    vectors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    columns = [reshape(x, (-1, *(1,) * (len(vectors) - 1 - i))) for i, x in enumerate(vectors)]
    grids = broadcast_tensors(*columns)
    return grids if indexing == "ij" or len(grids) < 2 else tuple(transpose(x, 0, 1) for x in grids)


@declare(method=True)
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a view of consecutive slices along one dimension.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    dim : int
        Dimension of the slices.
    start : int
        Index of the first slice; negative numbers count from the end.
    length : int
        Number of slices.

    Returns
    -------
    Tensor
        A view with size `length` along `dim`.

    Raises
    ------
    ArgumentError
        If the dimension does not have all these indices.
    DimensionError
        If the dimension is out of range.
    """
    dim = normalize_dim("narrow", dim, input.ndim)
    size = input.shape[dim]
    start = start + size if start < 0 else start
    if not (start >= 0 and length >= 0 and start + length <= size):
        raise ArgumentError(f"narrow: got start {start} and length {length}; dimension {dim} has {size} indices")
    return _narrow(input, dim, start, length)


def _narrowed(self: np.ndarray, dim: int, start: int, length: int) -> np.ndarray:
    return self[(slice(None),) * dim + (slice(start, start + length),)]


def _widened(self: np.ndarray, dim: int, start: int, size: int) -> np.ndarray:
    """Return zeros of size `size` along a dimension, with the array copied into them from index `start` on."""
    shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
    out = empty_beside(self, shape, self.dtype)
    out[(slice(None),) * dim + (slice(0, start),)] = 0
    out[(slice(None),) * dim + (slice(start, start + self.shape[dim]),)] = self
    out[(slice(None),) * dim + (slice(start + self.shape[dim], None),)] = 0
    return out


_widen: Callable[..., Tensor] = operation(
    "widen", _widened, self=lambda g, dim, start, self_shape: narrow(g, dim, start, self_shape[dim])
)
_narrow: Callable[..., Tensor] = operation(
    "slice", _narrowed, view=True, part_of=lambda total, g, dim, start: _narrowed(total, dim, start, g.shape[dim]),
    self=lambda g, dim, start, self_shape: _widen(g, dim, start, self_shape[dim]),
)  # fmt: skip


@declare(method=True)
def split(
    input: Tensor, split_size_or_sections: int | Sequence[int] | None = None, dim: int = 0, *,
    axis: int | None = None, split_size: int | Sequence[int] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return views of consecutive pieces along a dimension.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    split_size_or_sections : int or sequence of int
        Size of all pieces, of which the last may be smaller, or a list of their sizes.
    dim : int, default 0
        Dimension to split.
    axis : int, optional
        Another name of `dim`.
    split_size : int or sequence of int, optional
        What PyTorch's method calls the size or sizes.

    Returns
    -------
    tuple of Tensor
        Views of the pieces.

    Raises
    ------
    ArgumentError
        If sizes do not sum to that of the dimension, or the size of pieces is not positive.
    DimensionError
        For a tensor of no dimensions, or a dimension out of range.
    OperandError
        If no size is given.

    Notes
    -----
    All pieces are outputs of one operation, so that backward joins their gradients instead of padding and adding them.

    Examples
    --------
    >>> import spillgrad as sg
    >>> [piece.tolist() for piece in sg.split(sg.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    if split_size_or_sections is None:
        split_size_or_sections = split_size
    if split_size_or_sections is None:
        raise OperandError("split: got no size of the pieces; give split_size")
    dim = normalize_dim("split", dim if axis is None else axis, input.ndim)
    if not input.ndim:
        raise DimensionError("split: split expects at least a 1-dimensional tensor, got one without dimensions")
    size = input.shape[dim]
    if isinstance(split_size_or_sections, int | np.integer):
        length = int(split_size_or_sections)
        if length < 0 or (size and not length):
            raise ArgumentError(f"split: got a size of {length}; pieces have at least one index")
        sizes = [min(length, size - i) for i in range(0, size, max(length, 1))] or [0]
    else:
        sizes = list(shape_arguments((split_size_or_sections,)))
        if sum(sizes) != size or min(sizes, default=0) < 0:
            raise ArgumentError(
                f"split: got sizes {sizes}; dimension {dim} has {size} indices, so they must sum to that"
            )
    return _in_tuple(_split(len(sizes))(input, tuple(sizes), dim)) if sizes else ()


@declare(method=True)
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of consecutive pieces of given sizes.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    split_sizes : sequence of int
        Sizes of the pieces, which sum to that of the dimension.
    dim : int, default 0
        Dimension to split.

    Returns
    -------
    tuple of Tensor
        Views of the pieces.

    Raises
    ------
    ArgumentError
        If sizes do not sum to that of the dimension.
    """
    return split(input, list(split_sizes), dim)


def _in_tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@_few
def _split(count: int) -> Operation:
    outputs = tuple(f"piece{i}" for i in range(count))
    forward = _pieces if count > 1 else _whole
    return operation("split", forward, outputs=outputs, view=True, self=lambda grads, dim: cat(grads, dim))


def _pieces(self: np.ndarray, sizes: Shape, dim: int) -> tuple[np.ndarray, ...]:
    before = (slice(None),) * dim
    ends = itertools.accumulate(sizes)
    return tuple([self[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)])


def _whole(self: np.ndarray, sizes: Shape, dim: int) -> np.ndarray:
    return self.view()


@declare(method=True)
def chunk(input: Tensor, chunks: int, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Return views of a number of pieces along a dimension.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    chunks : int
        Number of pieces; there may be fewer.
    dim : int, default 0
        Dimension to split.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    tuple of Tensor
        Views of equal size; the last may be smaller.

    Raises
    ------
    ArgumentError
        For less than one piece.
    DimensionError
        For a tensor of no dimensions, or a dimension out of range.
    """
    dim = normalize_dim("chunk", dim if axis is None else axis, input.ndim)
    if not input.ndim:
        raise DimensionError("chunk: chunk expects at least a 1-dimensional tensor, got one without dimensions")
    if chunks < 1:
        raise ArgumentError(f"chunk: got {chunks} chunks; give at least 1")
    size = input.shape[dim]
    return split(input, -(-size // chunks), dim) if size else split(input, [0] * chunks, dim)


@declare(method=True)
def unbind(input: Tensor, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Return views of the slices along a dimension, without that dimension.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    dim : int, default 0
        Dimension to take apart.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    tuple of Tensor
        A view for each index; all are outputs of one operation.

    Raises
    ------
    DimensionError
        For a tensor of no dimensions, or a dimension out of range.
    """
    dim = normalize_dim("unbind", dim if axis is None else axis, input.ndim)
    if not input.ndim:
        raise DimensionError("unbind: got a 0-d tensor; it has no dimension to take apart")
    count = input.shape[dim]
    return _in_tuple(_unbind(count)(input, dim)) if count else ()


@_few
def _unbind(count: int) -> Operation:
    def backward(grads: tuple[Tensor, ...], dim: int) -> Tensor:
        return stack(grads, dim)

    def slices(self: np.ndarray, dim: int) -> Any:
        taken = tuple(np.moveaxis(self, dim, 0)[i, ...] for i in range(count))
        return taken if count > 1 else taken[0]

    return operation("unbind", slices, outputs=tuple(f"slice{i}" for i in range(count)), view=True, self=backward)


@declare(method=True)
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """Return a view of the slice at an index along a dimension, without that dimension.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    dim : int
        Dimension to take the slice from.
    index : int
        Index of the slice; negative numbers count from the end.

    Returns
    -------
    Tensor
        A view with one dimension less.

    Raises
    ------
    DimensionError
        If the dimension or the index is out of range.
    """
    dim = normalize_dim("select", dim, input.ndim)
    return getitem(input, (slice(None),) * dim + (index,))


@declare(method=True)
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of consecutive pieces: of nearly equal size, or between given indices.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    indices_or_sections : int, sequence of int or Tensor
        Number of pieces, whose sizes differ by at most 1, or the indices where all pieces but the first begin.
    dim : int, default 0
        Dimension to split.

    Returns
    -------
    tuple of Tensor
        Views of the pieces.

    Raises
    ------
    ArgumentError
        For less than one piece.
    DimensionError
        If the dimension is out of range.
    """
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


@declare(method=True, numpy=True)
def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return views of pieces along the second dimension, or along the only dimension of a vector.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    indices_or_sections : int or sequence of int
        Number of equal pieces, or the indices where all pieces but the first begin.

    Returns
    -------
    tuple of Tensor
        Views of the pieces.

    Raises
    ------
    ShapeError
        For a tensor of no dimensions.
    ArgumentError
        If the dimension does not divide into this number of pieces; `tensor_split` takes any number.
    """
    return _pieces_along("hsplit", input, indices_or_sections, min(1, input.ndim - 1), 1)


@declare(method=True, numpy=True)
def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return views of pieces along the first dimension.

    Parameters
    ----------
    input : Tensor
        Of at least two dimensions.
    indices_or_sections : int or sequence of int
        Number of equal pieces, or the indices where all pieces but the first begin.

    Returns
    -------
    tuple of Tensor
        Views of the pieces.

    Raises
    ------
    ShapeError
        For a tensor of fewer dimensions.
    ArgumentError
        If the dimension does not divide into this number of pieces; `tensor_split` takes any number.
    """
    return _pieces_along("vsplit", input, indices_or_sections, 0, 2)


@declare(method=True, numpy=True)
def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return views of pieces along the third dimension.

    Parameters
    ----------
    input : Tensor
        Of at least three dimensions.
    indices_or_sections : int or sequence of int
        Number of equal pieces, or the indices where all pieces but the first begin.

    Returns
    -------
    tuple of Tensor
        Views of the pieces.

    Raises
    ------
    ShapeError
        For a tensor of fewer dimensions.
    ArgumentError
        If the dimension does not divide into this number of pieces; `tensor_split` takes any number.
    """
    return _pieces_along("dsplit", input, indices_or_sections, 2, 3)


@declare(numpy=True)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the third dimension.

    Parameters
    ----------
    tensors : sequence of Tensor
        Dimensions that are missing are added as by `atleast_3d`.

    Returns
    -------
    Tensor
        Of at least three dimensions.

    Raises
    ------
    ShapeError
        If other dimensions than the third differ.
    """
    return cat([atleast_3d(x) for x in tensors], 2)


@declare(numpy=True)
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the second dimension.

    Parameters
    ----------
    tensors : sequence of Tensor
        Those of fewer than two dimensions count as columns.

    Returns
    -------
    Tensor
        Of at least two dimensions.

    Raises
    ------
    ShapeError
        If other dimensions than the second differ.
    """
    return cat([x if x.ndim > 1 else reshape(x, (-1, 1)) for x in tensors], 1)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Return all combinations of one element from each vector.

    Parameters
    ----------
    *tensors : Tensor
        Of shapes (n1,), (n2,), and so on.

    Returns
    -------
    Tensor
        Of shape (n1 n2 ..., vectors): each row is a combination. One vector alone is returned as it is.
    """
    if len(tensors) == 1:
        return tensors[0]
    return stack([flatten(grid) for grid in meshgrid(*tensors)], 1)
