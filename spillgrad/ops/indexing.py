"""Elements and slices chosen by integer index or mask, and sums back into them: each is the other's derivative."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import filled
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, OperandError, ShapeError
from spillgrad.ops.arithmetic import mul
from spillgrad.ops.array_casts import as_own, cast, contiguous, moved_by, of_number, on_floats, require_one_dtype
from spillgrad.ops.broadcast import expand_to, sum_to
from spillgrad.ops.clamp_where import where
from spillgrad.ops.convert import clone, to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import LOOPS, OPERATIONS
from spillgrad.ops.fuse_symbols import Symbol
from spillgrad.ops.getitem_setitem import getitem
from spillgrad.ops.operation import Operation, operation
from spillgrad.ops.placement import or_by_host
from spillgrad.ops.promotion import Number
from spillgrad.ops.shape import flatten, normalize_dim, reshape, shape_arguments
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import indexing as kernels
from spillgrad_kernels.device_array import is_on_device, on_device, zeros_beside

__all__ = [
    "argwhere", "diag", "diagonal", "gather", "index_add", "index_select", "masked_fill", "masked_select", "nonzero",
    "scatter", "scatter_add", "take", "take_along_dim", "unravel_index",
]  # fmt: skip

Shape = tuple[int, ...]


def check_index(name: str, index: Any, size: int, dim: int, shape: Shape) -> None:
    """Raise OperandError, DtypeError or DimensionError unless `index` holds integers from 0 to size - 1."""
    if not isinstance(index, Tensor):
        raise OperandError(f"{name}: got an index of type {type(index).__name__}; wanted a tensor of integers")
    values = index.array
    if values.dtype.kind not in "iu":
        raise DtypeError(f"{name}: got an index of {values.dtype}; wanted integers: convert it with .to(int64)")
    if is_on_device(values):  # a check would wait for the device: its kernels skip indices out of range
        return
    if values.size and (values.min() < 0 or values.max() >= size):
        wrong = values[(values < 0) | (values >= size)][0]
        raise DimensionError(
            f"{name}: got index {wrong}; dimension {dim} of a tensor of shape {shape} takes 0 to {size - 1}"
        )


# --- Whole slices: index_select and index_add ------------------------------------------------------------------------


def _selected(self: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    slices = np.moveaxis(self, dim, 0)
    if not dtypes.is_floating_point(self.dtype) and not is_on_device(self):
        return np.take(self, index, dim)

    def rows(a: np.ndarray) -> np.ndarray:
        return kernels.embedding(a, index)

    picked: np.ndarray = moved_by(rows, slices.reshape(slices.shape[0], math.prod(slices.shape[1:])))
    return contiguous(np.moveaxis(picked.reshape(index.shape + slices.shape[1:]), 0, dim))


def _summed_slices(self: np.ndarray, dim: int, index: np.ndarray, size: int) -> np.ndarray:
    """Return zeros of size `size` along `dim`, with the slices of `self` added at the positions `index`."""
    slices = np.moveaxis(self, dim, 0)
    if dtypes.is_floating_point(self.dtype):

        def rows(a: np.ndarray) -> np.ndarray:
            return kernels.embedding_backward(a, index, size)

        sums: np.ndarray = on_floats(rows, slices.reshape(slices.shape[0], math.prod(slices.shape[1:])))
        sums = sums.reshape(size, *slices.shape[1:])
    else:
        sums = zeros_beside(self, (size, *slices.shape[1:]), self.dtype)
        np.add.at(sums, index, slices)
    return contiguous(np.moveaxis(sums, 0, dim))


def _added_slices(self: np.ndarray, dim: int, index: np.ndarray, source: np.ndarray) -> np.ndarray:
    slices, added = np.moveaxis(self, dim, 0), np.moveaxis(source, dim, 0)
    if not dtypes.is_floating_point(self.dtype):
        out = self.copy()
        np.add.at(np.moveaxis(out, dim, 0), index, added)
        return out
    shape = slices.shape[0], math.prod(slices.shape[1:])
    sums: np.ndarray = on_floats(
        lambda a, b: kernels.index_add(a, index, b), slices.reshape(shape), added.reshape(len(index), shape[1])
    )
    return contiguous(np.moveaxis(sums.reshape(slices.shape), 0, dim))


_index_select: Callable[..., Tensor] = operation(
    "index_select", _selected,
    self=lambda g, dim, index, self_shape: _index_sum(g, dim, index, self_shape[dim]),
)  # fmt: skip
_index_sum: Callable[..., Tensor] = operation(
    "index_sum", _summed_slices, self=lambda g, dim, index: _index_select(g, dim, index)
)


def summed_at(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Return `size` rows of zeros with `rows` added at `index`: the derivative of picking the rows at `index`."""
    return _index_sum(rows, 0, index, size)


_index_add: Callable[..., Tensor] = operation(
    "index_add", _added_slices, self=lambda g: g, source=lambda g, dim, index: _index_select(g, dim, index)
)


@declare(method=True)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the slices at some positions of one dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension of the slices.
    index : Tensor
        Of shape (n,), of integers from 0 on: the positions.

    Returns
    -------
    Tensor
        A copy, as `input`, with n in place of the size of `dim`.

    Raises
    ------
    DimensionError
        If a position or the dimension is out of range, or the index has more than one dimension.
    DtypeError
        If the index does not hold integers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.index_select(sg.tensor([[1, 2, 3], [4, 5, 6]]), 1, sg.tensor([2, 0])).tolist()
    [[3, 1], [6, 4]]
    """
    dim = normalize_dim("index_select", dim, input.ndim)
    if not input.ndim:
        return reshape(index_select(reshape(input, 1), 0, index), ())
    check_index("index_select", index, input.shape[dim], dim, input.shape)
    if index.ndim > 1:
        raise DimensionError(
            f"index_select: got an index of shape {index.shape}; Index is supposed to be a vector: flatten it"
        )
    return _index_select(input, dim, flatten(index))


@declare(in_place=True)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    """Return `input` with multiples of slices added at some positions of one dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension of the slices.
    index : Tensor
        Of shape (n,), or () for n = 1, of integers from 0 on: the positions; repeated ones add up.
    source : Tensor
        As `input`, with n in place of the size of `dim`.
    alpha : float, default 1
        Factor of `source`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        If a position or the dimension is out of range.
    DtypeError
        If the index does not hold integers, or the dtypes of `input` and `source` differ.
    """
    dim = normalize_dim("index_add", dim, input.ndim)
    if not input.ndim and not source.ndim:
        return reshape(index_add(reshape(input, 1), 0, index, reshape(source, 1), alpha=alpha), ())
    check_index("index_add", index, input.shape[dim] if input.ndim else 1, dim, input.shape)
    index = index if index.ndim else reshape(index, 1)
    wanted = (*input.shape[:dim], *index.shape, *input.shape[dim + 1 :]) if input.ndim else ()
    if index.ndim != 1 or source.shape != wanted:
        raise ShapeError(
            f"index_add: got an index of shape {index.shape} and a source of shape {source.shape} for an input of "
            f"{input.shape}; wanted (n,) and the input's shape with n in dimension {dim}"
        )
    require_one_dtype("index_add", input=input, source=source)
    return _index_add(input, dim, index, source if alpha == 1 else mul(source, alpha))


# --- Single elements: gather, scatter and scatter_add ----------------------------------------------------------------


def corner(a: np.ndarray, dim: int, shape: Shape) -> np.ndarray:
    """Return the part of `a` that an index of `shape` along `dim` can reach."""
    return a[tuple(slice(None) if i == dim else slice(size) for i, size in enumerate(shape))]


def _gathered(self: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    if not dtypes.is_floating_point(self.dtype) and not is_on_device(self):
        return np.take_along_axis(corner(self, dim, index.shape), index, dim)
    return moved_by(lambda a: kernels.gather(a, dim, index), self)


def _added(self: np.ndarray, dim: int, index: np.ndarray, src: np.ndarray) -> np.ndarray:
    if dtypes.is_floating_point(self.dtype):
        return on_floats(lambda a, b: kernels.scatter_add(a, dim, index, b), self, src)
    out = self.copy()
    positions = list(np.ogrid[tuple(slice(size) for size in index.shape)])
    positions[dim] = index
    np.add.at(out, tuple(positions), src)
    return out


def _overwritten(self: np.ndarray, dim: int, index: np.ndarray, src: Any) -> np.ndarray:
    out = cast(self, self.dtype)
    np.put_along_axis(corner(out, dim, index.shape), index, src, dim)
    return out


def _gather_gradient(g: Tensor, dim: int, index: Tensor, self_shape: Shape) -> Tensor:
    return scattered_into_zeros(g, dim, index, self_shape)


_gather: Callable[..., Tensor] = operation("gather", _gathered, self=_gather_gradient)
_scatter_add: Callable[..., Tensor] = operation(
    "scatter_add", _added, self=lambda g: g, src=lambda g, dim, index: _gather(g, dim, index)
)
_scatter: Callable[..., Tensor] = operation(
    "scatter", _overwritten,
    self=lambda g, dim, index: _scatter(g, dim, index, 0), src=lambda g, dim, index: _gather(g, dim, index),
)  # fmt: skip


def scattered_into_zeros(values: Tensor, dim: int, index: Tensor, shape: Shape) -> Tensor:
    """Return zeros of `shape` with values added at `index` along `dim`: the derivative of `gather`."""
    zero = filled(values.device, (), values.dtype, 0)
    return _scatter_add(Tensor.wrap(np.broadcast_to(zero, shape)), dim, index, values)


@on_device("indexing")
def spread(self: np.ndarray, dim: int, index: np.ndarray, size: int) -> np.ndarray:
    """Return zeros of size `size` along `dim`, with the elements at `index`, which must not hold a position twice."""
    shape = (*index.shape[:dim], size, *index.shape[dim + 1 :])
    return _added(np.broadcast_to(np.zeros((), self.dtype), shape), dim, index, self)


_spread: Callable[..., Tensor] = operation("spread", spread, self=lambda g, dim, index: _gather(g, dim, index))


def spread_into_zeros(values: Tensor, dim: int, index: Tensor, size: int) -> Tensor:
    """Return zeros of size `size` along `dim`, with `values` at `index`, which must not hold a position twice."""
    return _spread(values, dim, index, size)


def check_places(name: str, input: Tensor, dim: int, index: Any) -> int:
    """Check that range and shape of `index` fit `input`; return `dim` counted from the front."""
    dim = normalize_dim(name, dim, input.ndim)
    check_index(name, index, input.shape[dim] if input.ndim else 1, dim, input.shape)
    fits = index.ndim == input.ndim and all(i == dim or size <= input.shape[i] for i, size in enumerate(index.shape))
    if not fits:
        raise ShapeError(
            f"{name}: got an index of shape {index.shape} for an input of {input.shape}; wanted as many dimensions, "
            f"and apart from dimension {dim} none larger: slice or expand the index"
        )
    return dim


def used_part(name: str, input: Tensor, index: Tensor, src: Tensor) -> Tensor:
    """Return the leading part of `src` in the shape of `index`. Raises ShapeError if `src` is smaller."""
    require_one_dtype(name, input=input, src=src)
    if src.ndim != index.ndim or any(have < need for have, need in zip(src.shape, index.shape, strict=True)):
        raise ShapeError(
            f"{name}: got an index of shape {index.shape} and a src of shape {src.shape}; "
            "src needs a value for every index"
        )
    return src if src.shape == index.shape else getitem(src, tuple(slice(size) for size in index.shape))


@declare(method=True)
def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the elements at indices along one dimension.

    In the other dimensions, each element has the position of its index.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension that the indices count along.
    index : Tensor
        Of integers from 0 on, with as many dimensions as `input`; no larger than it, except along `dim`.

    Returns
    -------
    Tensor
        Of the shape of `index`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        If an index or the dimension is out of range.
    DtypeError
        If the index does not hold integers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([[1, 2], [3, 4]])
    >>> sg.gather(x, 1, sg.tensor([[1], [0]])).tolist()
    [[2], [3]]
    """
    if not input.ndim and isinstance(index, Tensor) and index.ndim <= 1:
        normalize_dim("gather", dim, 0)
        return reshape(gather(reshape(input, 1), 0, reshape(index, -1)), index.shape)
    return _gather(input, check_places("gather", input, dim, index), index)


@declare(in_place=True)
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Tensor | Number | None = None, *, value: Number | None = None
) -> Tensor:
    """Return `input` with the elements at indices along one dimension replaced.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension that the indices count along.
    index : Tensor
        Of integers from 0 on, with as many dimensions as `input`; no larger than it, except along `dim`.
    src : Tensor or float, optional
        New elements, at least as large as `index`; or one number for all.
    value : float, optional
        One number for all elements, instead of `src`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        If an index or the dimension is out of range.
    DtypeError
        If the index does not hold integers, or the dtypes of `input` and `src` differ.
    ArgumentError
        If neither `src` nor `value` is given.

    Notes
    -----
    If an index appears twice, one of its values is kept, and all of these values receive the gradient, as in PyTorch.
    """
    dim = check_places("scatter", input, dim, index)
    source = value if src is None else src
    if source is None:
        raise ArgumentError("scatter: got neither src nor value; give the tensor or number to write")
    if isinstance(source, Tensor):
        source = used_part("scatter", input, index, source)
    return _scatter(input, dim, index, source)


@declare(in_place=True)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return `input` with elements added at indices along one dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension that the indices count along.
    index : Tensor
        Of integers from 0 on, with as many dimensions as `input`; no larger than it, except along `dim`. Elements of
        repeated indices add up.
    src : Tensor
        What is added, at least as large as `index`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        If an index or the dimension is out of range.
    DtypeError
        If the index does not hold integers, or the dtypes of `input` and `src` differ.
    """
    dim = check_places("scatter_add", input, dim, index)
    return _scatter_add(input, dim, index, used_part("scatter_add", input, index, src))


@declare(method=True)
def take(input: Tensor, index: Tensor) -> Tensor:
    """Return the elements at positions of the flattened input.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    index : Tensor
        Of any shape, of integers: the positions; -1 is the last element.

    Returns
    -------
    Tensor
        Of the shape of `index`.

    Raises
    ------
    DimensionError
        If a position is out of range.
    DtypeError
        If the index does not hold integers.
    """
    count = input.numel()
    if isinstance(index, Tensor) and index.dtype.kind == "i":
        index = Tensor.wrap(np.where(index.array < 0, index.array + count, index.array))
    check_index("take", index, count, 0, (count,))
    return reshape(_gather(flatten(input), 0, flatten(index)), index.shape)


@declare(method=True)
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Return the elements at indices along one dimension; the other dimensions broadcast.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    indices : Tensor
        Of integers from 0 on, with as many dimensions as `input` unless `dim` is None.
    dim : int, optional
        Dimension that the indices count along; by default, they count in the flattened input.

    Returns
    -------
    Tensor
        Of the size of `indices` along `dim`, and of the broadcast sizes elsewhere; of the flattened input, a vector.

    Raises
    ------
    ShapeError
        If the other dimensions do not broadcast.
    DimensionError
        If an index or the dimension is out of range.
    """
    if dim is None:
        return gather(flatten(input), 0, flatten(indices))
    dim = normalize_dim("take_along_dim", dim, input.ndim)
    if indices.ndim != input.ndim:
        raise ShapeError(
            f"take_along_dim: got indices of shape {indices.shape} for an input of {input.shape}; "
            "wanted as many dimensions"
        )
    others = [
        (1 if i == dim else size, 1 if i == dim else other)
        for i, (size, other) in enumerate(zip(input.shape, indices.shape, strict=True))
    ]
    try:
        common = list(np.broadcast_shapes(*zip(*others, strict=True)))
    except ValueError as error:
        raise ShapeError(
            f"take_along_dim: got indices of shape {indices.shape} for an input of {input.shape}; "
            f"apart from dimension {dim} they must broadcast"
        ) from error
    sizes = [(*common[:dim], shape[dim], *common[dim + 1 :]) for shape in (input.shape, indices.shape)]
    return gather(expand_to(input, sizes[0]), dim, expand_to(indices, sizes[1]))


# --- Masks -----------------------------------------------------------------------------------------------------------


def check_mask(name: str, mask: Any) -> None:
    """Raise DtypeError unless `mask` is a bool tensor."""
    if not isinstance(mask, Tensor) or mask.numpy_dtype != dtypes.bool_:
        got = f"a mask of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise DtypeError(f"{name}: got {got}; wanted a bool tensor, such as x > 0")


def masked_shape(name: str, input: Tensor, mask: Any) -> Shape:
    """Return the shape that a tensor and its bool mask broadcast to. Raises DtypeError or ShapeError."""
    check_mask(name, mask)
    try:
        return np.broadcast_shapes(input.shape, mask.shape)
    except ValueError as error:
        raise ShapeError(f"{name}: got {input.shape} and a mask of {mask.shape}; they must broadcast") from error


_masked_fill: Operation = operation(
    "masked_fill", lambda self, mask, value: LOOPS["where"].result(mask, value, self),
    self=lambda g, mask, self_shape: sum_to(OPERATIONS["where"].run(mask, 0.0, g), self_shape),
    value=lambda g, mask: sum_to(OPERATIONS["where"].run(mask, g, 0.0), ()),
)  # fmt: skip


@declare(in_place=True)
def masked_fill(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """Return `input` with the elements where a mask holds replaced by one value.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    mask : Tensor
        Of bool, of a shape that broadcasts with that of `input`.
    value : Tensor or float
        The value; a tensor of no dimensions gets a gradient.

    Returns
    -------
    Tensor
        Of the broadcast shape.

    Raises
    ------
    ShapeError
        If the value is a tensor with dimensions, or the mask does not broadcast.
    DtypeError
        If the mask is not of bool.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([1.0, -2.0, 3.0])
    >>> sg.masked_fill(x, x < 0, 0.0).tolist()
    [1.0, 0.0, 3.0]
    """
    check_mask("masked_fill", mask)
    if isinstance(value, Tensor):
        if value.ndim:
            raise ShapeError(
                f"masked_fill: got a value of shape {value.shape}; wanted one number or a 0-d tensor: use where"
            )
        value = to_dtype(value, input.dtype)
    elif not input.is_floating_point() or isinstance(value, complex):
        value = Tensor.wrap(of_number("masked_fill", value, input.dtype))
    if isinstance(input, Symbol) or isinstance(mask, Symbol):
        return where(mask, value, input)  # type: ignore[no-any-return]
    return _masked_fill.run(input, mask, value)  # type: ignore[no-any-return]


@declare(method=True)
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Return the elements where a mask holds, as a vector.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    mask : Tensor
        Of bool, of a shape that broadcasts with that of `input`.

    Returns
    -------
    Tensor
        Of one dimension: a copy of the elements, in row-major order.

    Raises
    ------
    ShapeError
        If the mask does not broadcast.
    DtypeError
        If the mask is not of bool.
    """
    shape = masked_shape("masked_select", input, mask)
    return getitem(expand_to(input, shape), expand_to(mask, shape))


@declare(method=True)
@or_by_host
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Return the indices of the nonzero elements.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    as_tuple : bool, default False
        Whether to return a vector of indices for each dimension.

    Returns
    -------
    Tensor or tuple of Tensor
        Of int64: a row of indices for each nonzero element, or with `as_tuple` a vector for each dimension.
    """
    if as_tuple:
        return tuple(Tensor.wrap(index) for index in np.nonzero(np.atleast_1d(input.array)))
    return Tensor.wrap(np.argwhere(input.array))


@declare(method=True, numpy=True)
@or_by_host
def argwhere(input: Tensor) -> Tensor:
    """Return the indices of the nonzero elements.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of int64, with a row of indices for each nonzero element.
    """
    return Tensor.wrap(np.argwhere(input.array))


@declare(numpy=True)
@or_by_host
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Convert indices in a flattened tensor to indices in its dimensions.

    Parameters
    ----------
    indices : Tensor
        Of any shape, of integers from 0 on.
    shape : int or sequence of int
        Shape of the tensor.

    Returns
    -------
    tuple of Tensor
        For each dimension a tensor of the shape of `indices`.

    Raises
    ------
    DimensionError
        If an index is out of range.
    DtypeError
        If `indices` does not hold integers.
    """
    sizes = shape_arguments((shape,))
    check_index("unravel_index", indices, math.prod(sizes), 0, sizes)
    return tuple(Tensor.wrap(as_own(part)) for part in np.unravel_index(indices.array, sizes))


# --- Diagonals -------------------------------------------------------------------------------------------------------


def _diagonal_view(self: np.ndarray, offset: int, dim1: int, dim2: int) -> np.ndarray:
    view = np.diagonal(self, offset, dim1, dim2)
    view.flags.writeable = self.flags.writeable
    return view


def _diagonal_placed(self: np.ndarray, offset: int, dim1: int, dim2: int, shape: Shape) -> np.ndarray:
    out = zeros_beside(self, shape, self.dtype)
    _diagonal_view(out, offset, dim1, dim2)[...] = self
    return out


_diagonal: Callable[..., Tensor] = operation(
    "diagonal", _diagonal_view, view=True,
    self=lambda g, offset, dim1, dim2, self_shape: place_diagonal(g, offset, dim1, dim2, self_shape),
)  # fmt: skip
place_diagonal: Callable[..., Tensor] = operation(
    "place_diagonal", _diagonal_placed, self=lambda g, offset, dim1, dim2: _diagonal(g, offset, dim1, dim2)
)


@declare(method=True)
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a view of the diagonals of two dimensions, as the last dimension.

    Parameters
    ----------
    input : Tensor
        Of at least two dimensions.
    offset : int, default 0
        Which diagonal; positive numbers are above the main one, negative numbers below.
    dim1 : int, default 0
        Dimension of the rows.
    dim2 : int, default 1
        Dimension of the columns.

    Returns
    -------
    Tensor
        A view with one dimension less.

    Raises
    ------
    DimensionError
        If the two dimensions are equal or out of range.
    """
    first, second = (normalize_dim("diagonal", dim, input.ndim) for dim in (dim1, dim2))
    if input.ndim < 2 or first == second:
        raise DimensionError(
            f"diagonal: got dims {dim1} and {dim2} for a tensor of shape {input.shape}; wanted two different ones"
        )
    return _diagonal(input, offset, first, second)


@declare(method=True, numpy=True)
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """Return the matrix with a vector on its diagonal, or the diagonal of a matrix.

    Parameters
    ----------
    input : Tensor
        Of one or two dimensions.
    diagonal : int, default 0
        Which diagonal; positive numbers are above the main one, negative numbers below.

    Returns
    -------
    Tensor
        Of a vector, the square matrix with zeros elsewhere; of a matrix, a copy of its diagonal.

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    """
    if input.ndim == 2:
        return clone(_diagonal(input, diagonal, 0, 1))
    if input.ndim != 1:
        raise ShapeError(f"diag: got a tensor of {input.ndim} dimensions; wanted a vector or a matrix")
    size = input.shape[0] + abs(diagonal)
    return place_diagonal(input, diagonal, 0, 1, (size, size))
