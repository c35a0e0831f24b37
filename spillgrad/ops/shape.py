"""Operations that rearrange elements: views where memory allows, copies where not."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DimensionError, OperandError, ShapeError
from spillgrad.ops import array_casts
from spillgrad.ops.broadcast import expand_to, sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.getitem_setitem import getitem
from spillgrad.ops.operation import Derivative, Operation, operation
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import arange_beside, beside, empty_beside

__all__ = [
    "broadcast_tensors", "broadcast_to", "cat", "chunk", "concat", "concatenate", "expand", "flatten", "flip",
    "hstack", "meshgrid", "moveaxis", "movedim", "narrow", "permute", "ravel", "repeat_interleave", "reshape", "roll",
    "row_stack", "select", "split", "split_with_sizes", "squeeze", "stack", "swapaxes", "swapdims", "t", "tile",
    "transpose", "tril", "triu", "unbind", "unflatten", "unsqueeze", "vstack",
]  # fmt: skip

Shape = tuple[int, ...]


def normalize_dim(name: str, dim: int, ndim: int) -> int:
    """Return `dim` counted from the front. Raises DimensionError out of range, OperandError for what is no integer."""
    try:
        index = operator.index(dim)
    except TypeError as error:
        raise OperandError(f"{name}: got dim {dim!r}; wanted an integer") from error
    span = max(ndim, 1)
    if not -span <= index < span:
        raise DimensionError(f"{name}: got dim {index}; a tensor of {ndim} dimensions takes {-span} to {span - 1}")
    return index % span


def as_tuple(values: Any) -> tuple[Any, ...]:
    """Return one value, or a sequence of them, as a tuple."""
    return tuple(values) if hasattr(values, "__iter__") else (values,)


def normalize_dims(name: str, dims: Any, ndim: int) -> Shape:
    """Return several dimensions counted from the front.

    Raises DimensionError when one is out of range or named twice.
    """
    normalized = tuple(normalize_dim(name, d, ndim) for d in as_tuple(dims))
    if len(set(normalized)) != len(normalized):
        raise DimensionError(f"{name}: got dims {tuple(dims)}; a dimension appears twice")
    return normalized


def shape_arguments(values: tuple[Any, ...], named: Any = None) -> Shape:
    """Return sizes given separately, as one sequence, or by keyword. Raises OperandError for what is no integer."""
    if named is not None:
        values = (named,)
    sizes = values[0] if len(values) == 1 and not isinstance(values[0], int | np.integer | Tensor) else values
    try:
        return tuple(operator.index(s) for s in sizes)
    except TypeError as error:
        raise OperandError(f"shape: got {sizes!r}; sizes are integers") from error


def one_dim(name: str, dim: int | None, axis: int | None, ndim: int) -> int:
    """Return the dimension given under either name, counted from the front."""
    chosen = axis if dim is None else dim
    if chosen is None:
        raise ArgumentError(f"{name}: got no dim; give one, such as -1 for the last")
    return normalize_dim(name, chosen, ndim)


def _complete(name: str, shape: Shape, count: int) -> Shape:
    """Return the shape with its -1 worked out. Raises ShapeError when the number of elements does not fit."""
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
    """Return the same elements in another shape: a view where memory allows, else a copy; one size may be -1."""
    wanted = _complete("reshape", shape_arguments(sizes, shape), input.numel())
    try:
        return _view(input, wanted)
    except ValueError:  # NumPy's answer when no strides give that view
        return _reshape(input, wanted)


@declare(method=True)
def view(input: Tensor, *sizes: Any) -> Tensor:
    """Return a view in another shape (one size may be -1), or, given a dtype, of the same bytes as that dtype.

    Raises ShapeError when the memory does not allow a view; `reshape` copies then.
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
    """Return a view in the shape of `other`."""
    return view(input, other.shape)


@declare(method=True)
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """Return the same elements in the shape of `other`."""
    return reshape(input, other.shape)


@declare(method=True, numpy=True)
def ravel(input: Tensor) -> Tensor:
    """Return the elements in one dimension."""
    return reshape(input, -1)


@declare(method=True)
def flatten(
    input: Tensor, start_dim: int = 0, end_dim: int = -1, *, start_axis: int | None = None, stop_axis: int | None = None
) -> Tensor:
    """Return the dimensions from `start_dim` to `end_dim` (Paddle: `start_axis`, `stop_axis`) as one."""
    start_dim = start_dim if start_axis is None else start_axis
    end_dim = end_dim if stop_axis is None else stop_axis
    start, end = normalize_dim("flatten", start_dim, input.ndim), normalize_dim("flatten", end_dim, input.ndim)
    if start > end:
        raise ArgumentError(f"flatten: got start_dim {start_dim} behind end_dim {end_dim}")
    shape = input.shape or (1,)
    return reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


@declare(method=True)
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Return one dimension split into `sizes`."""
    dim = normalize_dim("unflatten", dim, input.ndim)
    inner = _complete("unflatten", tuple(sizes), input.shape[dim])
    return reshape(input, (*input.shape[:dim], *inner, *input.shape[dim + 1 :]))


@declare(method=True)
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None, *, axis: Any = None) -> Tensor:
    """Return a view without dimensions of size 1: all, or those of `dim` that have it."""
    dim = axis if dim is None else dim
    dims = range(input.ndim) if dim is None else normalize_dims("squeeze", dim, input.ndim)
    return _squeeze(input, tuple(s for i, s in enumerate(input.shape) if not (i in dims and s == 1)))


@declare(method=True)
def unsqueeze(input: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Return a view with a new dimension of size 1 at `dim`."""
    dim = one_dim("unsqueeze", dim, axis, input.ndim + 1)
    return _unsqueeze(input, (*input.shape[:dim], 1, *input.shape[dim:]))


@declare(method=True)
def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """Return a view with the dimensions in another order (Paddle: `transpose(x, perm)`)."""
    order = normalize_dims("permute", shape_arguments(order, dims), input.ndim)
    if len(order) != input.ndim:
        raise ArgumentError(f"permute: got dims {order} for a tensor of {input.ndim} dimensions; name each once")
    return _permute(input, order)


@declare(method=True)
def transpose(input: Tensor, dim0: Any = None, dim1: int | None = None, *, perm: Sequence[int] | None = None) -> Tensor:
    """Return a view with two dimensions swapped; given a list (Paddle's `perm`), with all of them reordered."""
    if perm is not None or dim1 is None:
        return permute(input, dim0 if perm is None else perm)
    return _transpose(input, normalize_dim("transpose", dim0, input.ndim), normalize_dim("transpose", dim1, input.ndim))


swapaxes = swapdims = transpose


@declare(method=True)
def t(input: Tensor) -> Tensor:
    """Return the transpose of a matrix; vectors and 0-d tensors as they are. Raises ShapeError above two dimensions."""
    if input.ndim > 2:
        raise ShapeError(
            f"t: got a tensor of {input.ndim} dimensions; at most 2 are transposed: use transpose or permute"
        )
    return _t(input) if input.ndim == 2 else input


@declare(method=True)
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Return a view with some dimensions moved to other places, the others in their order."""
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
    """Return a view in which dimensions of size 1 repeat; -1 keeps a size."""
    wanted = shape_arguments(sizes, shape)
    lead = len(wanted) - input.ndim
    if lead < 0 or any(size == -1 and i < lead for i, size in enumerate(wanted)):
        raise ShapeError(
            f"expand: got {wanted} for a tensor of shape {input.shape}; give a size for each dimension, new ones first"
        )
    return expand_to(input, tuple(input.shape[i - lead] if size == -1 else size for i, size in enumerate(wanted)))


@declare(method=True)
def broadcast_to(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """Return a view of `shape` in which dimensions of size 1 repeat."""
    return expand(input, *sizes, shape=shape)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return views of the tensors in the shape that they broadcast to. Raises ShapeError when they do not."""
    shapes = [x.shape for x in tensors]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ShapeError(
            f"broadcast_tensors: got shapes {', '.join(map(str, shapes))}; sizes must match from the last dimension "
            "on, or be 1"
        ) from error
    return tuple(expand_to(x, shape) for x in tensors)


@declare(method=True)
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Return a view of `input` in the shape of `other`."""
    return expand_to(input, other.shape)


def _joined(*arrays_and_sizes: Any) -> np.ndarray:
    *arrays, sizes, dim = arrays_and_sizes
    shape = list(arrays[0].shape)
    shape[dim] = sum(sizes)
    out = empty_beside(arrays[0], tuple(shape), arrays[0].dtype)
    np.concatenate(arrays, dim, out=out)
    return out


def _stacked(*arrays_and_dim: Any) -> np.ndarray:
    *arrays, dim = arrays_and_dim
    shape = arrays[0].shape
    out = empty_beside(arrays[0], (*shape[:dim], len(arrays), *shape[dim:]), arrays[0].dtype)
    np.stack(arrays, dim, out=out)
    return out


# Numbers of inputs or outputs for which an operation is remembered: that of thousands takes a megabyte.
_few = functools.lru_cache(maxsize=64)


@_few
def _cat(count: int) -> Operation:
    """The concatenation of `count` tensors: one input slot each."""
    names = tuple(f"tensor{i}" for i in range(count))

    def backward(g: Tensor, sizes: Shape, dim: int) -> Any:
        return g if count == 1 else split(g, sizes, dim)

    derivative = Derivative(names, ("g", "sizes", "dim"), backward)
    return Operation("cat", _joined, (derivative,), (*names, "sizes", "dim"))


@_few
def _stack(count: int) -> Operation:
    """The stack of `count` tensors: one input slot each."""
    names = tuple(f"tensor{i}" for i in range(count))

    def backward(g: Tensor, dim: int) -> Any:
        return squeeze(g, dim) if count == 1 else unbind(g, dim)

    return Operation("stack", _stacked, (Derivative(names, ("g", "dim"), backward),), (*names, "dim"))


def _of_one_dtype(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors in their common dtype. Raises ArgumentError for none, OperandError for other things."""
    if not isinstance(tensors, list | tuple) or not all(isinstance(x, Tensor) for x in tensors):
        raise OperandError(f"{name}: got {type(tensors).__name__}; wanted a list or tuple of tensors")
    if not tensors:
        raise ArgumentError(f"{name}: got no tensors; give at least one")
    dtype = functools.reduce(dtypes.promote, {x.dtype for x in tensors})
    return [to_dtype(x, dtype) for x in tensors]


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Return tensors joined along an existing dimension. Empty 1-D tensors join anything.

    Raises ArgumentError for none, ShapeError when other dimensions differ.
    """
    parts = _of_one_dtype("cat", tensors)
    parts = [x for x in parts if x.shape != (0,)] or parts[:1]
    first = parts[0]
    if not first.ndim:
        raise ShapeError("cat: got a 0-d tensor; it has no dimension to join along: use stack")
    dim = normalize_dim("cat", dim if axis is None else axis, first.ndim)
    for other in parts[1:]:
        if (
            other.ndim != first.ndim
            or other.shape[:dim] + other.shape[dim + 1 :] != first.shape[:dim] + first.shape[dim + 1 :]
        ):
            raise ShapeError(f"cat: got {first.shape} and {other.shape}; all but dimension {dim} must match")
    sizes = tuple([x.shape[dim] for x in parts])
    return _cat(len(parts))(*parts, sizes, dim)  # type: ignore[no-any-return]


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Return tensors of one shape joined along a new dimension.

    Raises ArgumentError for none, ShapeError when shapes differ.
    """
    parts = _of_one_dtype("stack", tensors)
    dim = normalize_dim("stack", dim if axis is None else axis, parts[0].ndim + 1)
    for other in parts[1:]:
        if other.shape != parts[0].shape:
            raise ShapeError(f"stack: got {parts[0].shape} and {other.shape}; all shapes must be equal")
    return _stack(len(parts))(*parts, dim)  # type: ignore[no-any-return]


@declare(numpy=True)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the second dimension, 1-D ones along the first."""
    parts = [x if x.ndim else reshape(x, 1) for x in tensors]
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


@declare(numpy="vstack")
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors joined along the first dimension, 1-D ones as rows."""
    return cat([x if x.ndim > 1 else reshape(x, (1, -1)) for x in tensors])


row_stack = vstack


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Return views of vectors as coordinate grids: "ij" gives matrix order, "xy" swaps the first two dimensions."""
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f'meshgrid: got indexing={indexing!r}; accepted are "ij" and "xy"')
    vectors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    columns = [reshape(x, (-1, *(1,) * (len(vectors) - 1 - i))) for i, x in enumerate(vectors)]
    grids = broadcast_tensors(*columns)
    return grids if indexing == "ij" or len(grids) < 2 else tuple(transpose(x, 0, 1) for x in grids)


@declare(method=True)
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a view of `length` indices of one dimension from `start` on.

    Raises ArgumentError when they are not all there.
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
    """Put an array at `start` of a dimension of `size`, zeros around it."""
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
    "slice", _narrowed, view=True, self=lambda g, dim, start, self_shape: _widen(g, dim, start, self_shape[dim])
)


@declare(method=True)
def split(
    input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0, *, axis: int | None = None
) -> tuple[Tensor, ...]:
    """Return views of consecutive pieces: each of the given size (the last may be smaller), or of the sizes in a list.

    All pieces are outputs of one operation, so that their gradients come together without zeros in between.
    """
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
    """Return views of consecutive pieces of the given sizes."""
    return split(input, list(split_sizes), dim)


def _in_tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@_few
def _split(count: int) -> Operation:
    outputs = tuple(f"piece{i}" for i in range(count))
    forward = _pieces if count > 1 else _whole
    return operation("split", forward, outputs=outputs, view=True, self=lambda grads, dim: cat(grads, dim))


def _pieces(self: np.ndarray, sizes: Shape, dim: int) -> tuple[np.ndarray, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(self[(slice(None),) * dim + (slice(end - size, end),)] for size, end in zip(sizes, ends, strict=True))


def _whole(self: np.ndarray, sizes: Shape, dim: int) -> np.ndarray:
    return self.view()


@declare(method=True)
def chunk(input: Tensor, chunks: int, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Return views of at most `chunks` pieces of equal size (the last may be smaller)."""
    dim = normalize_dim("chunk", dim if axis is None else axis, input.ndim)
    if not input.ndim:
        raise DimensionError("chunk: chunk expects at least a 1-dimensional tensor, got one without dimensions")
    if chunks < 1:
        raise ArgumentError(f"chunk: got {chunks} chunks; give at least 1")
    size = input.shape[dim]
    return split(input, -(-size // chunks), dim) if size else split(input, [0] * chunks, dim)


@declare(method=True)
def unbind(input: Tensor, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Return views of the slices along a dimension, without it; all are outputs of one operation, as with `split`."""
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
    """Return a view of one slice along a dimension, without it."""
    dim = normalize_dim("select", dim, input.ndim)
    return getitem(input, (slice(None),) * dim + (index,))


def _flipped(self: np.ndarray, dims: Shape) -> np.ndarray:
    out = empty_beside(self, self.shape, self.dtype)
    np.copyto(out, np.flip(self, dims))
    return out


_flip: Callable[..., Tensor] = operation("flip", _flipped, self=lambda g, dims: _flip(g, dims))


@declare(method=True)
def flip(input: Tensor, *reversed_dims: Any, dims: Any = None, axis: Any = None) -> Tensor:
    """Return a copy with the order along some dimensions reversed."""
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
    """Return a copy whose elements moved along some dimensions, or along the flattened tensor.

    Those pushed out come in again at the other end.
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
    """Return the shape of a repeated tensor with each count before its size, and the same with counts of 1."""
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
    """Return the tensor tiled `repeats` times along each dimension, new ones first."""
    counts = shape_arguments(repeats)
    if len(counts) < input.ndim:
        raise ShapeError(f"repeat: got {counts} for {input.ndim} dimensions; give a count for each")
    return _repeat(input, counts)


@declare(method=True)
def tile(input: Tensor, *dims: Any) -> Tensor:
    """Return the tensor tiled `dims` times along its last dimensions."""
    counts = shape_arguments(dims)
    return repeat(input, (1,) * (input.ndim - len(counts)) + counts)


@declare(method=True)
def repeat_interleave(
    input: Tensor, repeats: int | Tensor | None = None, dim: int | None = None, *, axis: int | None = None
) -> Tensor:
    """Return each element (or slice along `dim`) repeated in place: all as often, or each by its entry of `repeats`.

    With `repeats` alone, return the places 0, 1, … each so often.
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


def _triangle(keep_lower: bool) -> Any:
    def forward(self: np.ndarray, diagonal: int) -> np.ndarray:
        return np.tril(self, diagonal) if keep_lower else np.triu(self, diagonal)

    name = "tril" if keep_lower else "triu"
    defined: Callable[..., Tensor] = operation(name, forward, self=lambda g, diagonal: defined(g, diagonal))
    return defined


_tril, _triu = _triangle(True), _triangle(False)


def _require_matrix(name: str, input: Tensor) -> None:
    if input.ndim < 2:
        raise ShapeError(f"{name}: got a tensor of shape {input.shape}; wanted at least two dimensions")


@declare(in_place=True)
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Return the lower triangle of matrices, zeros above the given diagonal."""
    _require_matrix("tril", input)
    return _tril(input, diagonal)  # type: ignore[no-any-return]


@declare(in_place=True)
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Return the upper triangle of matrices, zeros below the given diagonal."""
    _require_matrix("triu", input)
    return _triu(input, diagonal)  # type: ignore[no-any-return]
