"""Operations that rearrange elements: views where memory allows, copies where not."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, DimensionError, ShapeError
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.convert import clone, to_dtype
from spillgrad.ops.define import Derivative, Operation, operation
from spillgrad.tensor import Tensor
from spillgrad_kernels.memory import empty

Shape = tuple[int, ...]


def normalize_dim(name: str, dim: int, ndim: int) -> int:
    """Return `dim` counted from the front. Raises DimensionError when it is out of range."""
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise DimensionError(f"{name}: got dim {dim}; a tensor of {ndim} dimensions takes {-span} to {span - 1}")
    return dim % span


def normalize_dims(name: str, dims: Any, ndim: int) -> Shape:
    """Return several dimensions counted from the front. Raises DimensionError when one is out of range or named
    twice.
    """
    normalized = tuple(normalize_dim(name, d, ndim) for d in ((dims,) if isinstance(dims, int) else dims))
    if len(set(normalized)) != len(normalized):
        raise DimensionError(f"{name}: got dims {tuple(dims)}; a dimension appears twice")
    return normalized


def shape_arguments(values: tuple[Any, ...]) -> Shape:
    """Return the shape given either as separate sizes or as one sequence."""
    sizes = values[0] if len(values) == 1 and not isinstance(values[0], int | np.integer | Tensor) else values
    return tuple(int(s) for s in sizes)


def _complete(name: str, shape: Shape, count: int) -> Shape:
    """Return the shape with its -1 worked out. Raises ShapeError when the number of elements does not fit."""
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


def _reshaped(self: np.ndarray, shape: Shape) -> np.ndarray:
    return self.reshape(shape)


def _back_to_shape(g: Tensor, self_shape: Shape) -> Tensor:
    return reshape(g, self_shape)


_view = operation("view", _reshaped, view=True, self=_back_to_shape)
_reshape = operation("reshape", _reshaped, view=True, self=_back_to_shape)
_squeeze = operation("squeeze", _reshaped, view=True, self=_back_to_shape)
_unsqueeze = operation("unsqueeze", _reshaped, view=True, self=_back_to_shape)
_permute = operation(
    "permute",
    lambda self, dims: self.transpose(dims),
    view=True,
    self=lambda g, dims: _permute(g, tuple(np.argsort(dims).tolist())),
)
_transpose = operation(
    "transpose",
    lambda self, dim0, dim1: self.swapaxes(dim0, dim1),
    view=True,
    self=lambda g, dim0, dim1: _transpose(g, dim0, dim1),
)


def reshape(input: Tensor, *shape: Any) -> Tensor:
    """Return the same elements in another shape: a view where memory allows, else a copy; one size may be -1."""
    wanted = _complete("reshape", shape_arguments(shape), input.numel())
    return _reshape(input, wanted)  # type: ignore[no-any-return]


def view(input: Tensor, *shape: Any) -> Tensor:
    """Return a view in another shape; one size may be -1.

    Raises ShapeError when the memory does not allow a view; `reshape` copies then.
    """
    wanted = _complete("view", shape_arguments(shape), input.numel())
    result: Tensor = _view(input, wanted)
    if result.storage is not input.storage and input.numel():
        raise ShapeError(
            f"view: size {wanted} is not compatible with a tensor of shape {input.shape} and strides "
            f"{input.stride()}; use reshape"
        )
    return result


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return the dimensions from `start_dim` to `end_dim` as one."""
    start, end = normalize_dim("flatten", start_dim, input.ndim), normalize_dim("flatten", end_dim, input.ndim)
    if start > end:
        raise DimensionError(f"flatten: got start_dim {start_dim} behind end_dim {end_dim}")
    shape = input.shape or (1,)
    return reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Return one dimension split into `sizes`."""
    dim = normalize_dim("unflatten", dim, input.ndim)
    inner = _complete("unflatten", tuple(sizes), input.shape[dim])
    return reshape(input, (*input.shape[:dim], *inner, *input.shape[dim + 1 :]))


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Return a view without dimensions of size 1: all, or those of `dim` that have it."""
    dims = range(input.ndim) if dim is None else normalize_dims("squeeze", dim, input.ndim)
    return _squeeze(input, tuple(s for i, s in enumerate(input.shape) if not (i in dims and s == 1)))  # type: ignore[no-any-return]


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Return a view with a new dimension of size 1 at `dim`."""
    dim = normalize_dim("unsqueeze", dim, input.ndim + 1)
    return _unsqueeze(input, (*input.shape[:dim], 1, *input.shape[dim:]))  # type: ignore[no-any-return]


def permute(input: Tensor, *dims: Any) -> Tensor:
    """Return a view with the dimensions in another order (Paddle: `transpose(x, perm)`)."""
    order = normalize_dims("permute", shape_arguments(dims), input.ndim)
    if len(order) != input.ndim:
        raise DimensionError(f"permute: got dims {order} for a tensor of {input.ndim} dimensions; name each once")
    return _permute(input, order)  # type: ignore[no-any-return]


def transpose(input: Tensor, dim0: Any = None, dim1: int | None = None, *, perm: Sequence[int] | None = None) -> Tensor:
    """Return a view with two dimensions swapped; given a list (Paddle's `perm`), with all of them reordered."""
    if perm is not None or dim1 is None:
        return permute(input, dim0 if perm is None else perm)
    return _transpose(  # type: ignore[no-any-return]
        input, normalize_dim("transpose", dim0, input.ndim), normalize_dim("transpose", dim1, input.ndim)
    )


swapaxes = transpose


def t(input: Tensor) -> Tensor:
    """Return the transpose of a matrix; vectors and 0-d tensors as they are. Raises ShapeError above two dimensions."""
    if input.ndim > 2:
        raise ShapeError(
            f"t: got a tensor of {input.ndim} dimensions; at most 2 are transposed: use transpose or permute"
        )
    return transpose(input, 0, 1) if input.ndim == 2 else input


def movedim(input: Tensor, source: int, destination: int) -> Tensor:
    """Return a view with one dimension moved to another place."""
    source = normalize_dim("movedim", source, input.ndim)
    order = [d for d in range(input.ndim) if d != source]
    order.insert(normalize_dim("movedim", destination, input.ndim), source)
    return permute(input, order)


def expand(input: Tensor, *sizes: Any) -> Tensor:
    """Return a view in which dimensions of size 1 repeat; -1 keeps a size."""
    wanted = shape_arguments(sizes)
    lead = len(wanted) - input.ndim
    if lead < 0 or any(size == -1 and i < lead for i, size in enumerate(wanted)):
        raise ShapeError(
            f"expand: got {wanted} for a tensor of shape {input.shape}; give a size for each dimension, new ones first"
        )
    return expand_to(input, tuple(input.shape[i - lead] if size == -1 else size for i, size in enumerate(wanted)))


def broadcast_to(input: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a view of `shape` in which dimensions of size 1 repeat."""
    return expand_to(input, tuple(shape))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Return a view of `input` in the shape of `other`."""
    return expand_to(input, other.shape)


def _concatenated(*arrays_and_dim: Any) -> np.ndarray:
    *arrays, dim = arrays_and_dim
    shape = list(arrays[0].shape)
    shape[dim] = sum(a.shape[dim] for a in arrays)
    out = empty(tuple(shape), arrays[0].dtype)
    np.concatenate(arrays, dim, out=out)
    return out


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Return tensors joined along an existing dimension.

    Raises ArgumentError for none, ShapeError when other dimensions differ.
    """
    if not len(tensors):
        raise ArgumentError("cat: got no tensors; give at least one")
    dim = normalize_dim("cat", dim if axis is None else axis, tensors[0].ndim)
    first = tensors[0]
    for other in tensors[1:]:
        if (
            other.ndim != first.ndim
            or other.shape[:dim] + other.shape[dim + 1 :] != first.shape[:dim] + first.shape[dim + 1 :]
        ):
            raise ShapeError(f"cat: got {first.shape} and {other.shape}; all but dimension {dim} must match")
    dtype = np.result_type(*(x.dtype for x in tensors)) if len({x.dtype for x in tensors}) > 1 else first.dtype
    return _cat_operation(len(tensors))(*(to_dtype(x, dtype) for x in tensors), dim)  # type: ignore[no-any-return]


concat = concatenate = cat


def _cat_operation(count: int) -> Any:
    """The concatenation of `count` tensors: one input slot each."""
    operation_of_count = _cat_operations.get(count)
    if operation_of_count is None:
        names = tuple(f"tensor{i}" for i in range(count))
        operation_of_count = _cat_operations[count] = _define_cat(names)
    return operation_of_count


def _define_cat(names: tuple[str, ...]) -> Any:
    shapes = tuple(f"{name}_shape" for name in names)

    def backward(g: Tensor, dim: int, *input_shapes: Shape) -> tuple[Tensor, ...]:
        return tuple(split(g, [shape[dim] for shape in input_shapes], dim))

    derivative = Derivative(names, ("g", "dim", *shapes), backward)
    return Operation("cat", _concatenated, (derivative,), (*names, "dim"))


_cat_operations: dict[int, Any] = {}


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Return tensors of one shape joined along a new dimension."""
    if not len(tensors):
        raise ArgumentError("stack: got no tensors; give at least one")
    dim = normalize_dim("stack", dim if axis is None else axis, tensors[0].ndim + 1)
    return cat([unsqueeze(x, dim) for x in tensors], dim)


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a view of `length` indices of one dimension from `start` on. Raises DimensionError when they are not all
    there.
    """
    dim = normalize_dim("narrow", dim, input.ndim)
    size = input.shape[dim]
    start = start + size if start < 0 else start
    if not (start >= 0 and length >= 0 and start + length <= size):
        raise DimensionError(f"narrow: got start {start} and length {length}; dimension {dim} has {size} indices")
    return _narrow(input, dim, start, length)  # type: ignore[no-any-return]


def _narrowed(self: np.ndarray, dim: int, start: int, length: int) -> np.ndarray:
    return self[(slice(None),) * dim + (slice(start, start + length),)]


def _widened(self: np.ndarray, dim: int, start: int, size: int) -> np.ndarray:
    """Put an array at `start` of a dimension of `size`, zeros around it."""
    shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
    out = empty(shape, self.dtype)
    out[(slice(None),) * dim + (slice(0, start),)] = 0
    out[(slice(None),) * dim + (slice(start, start + self.shape[dim]),)] = self
    out[(slice(None),) * dim + (slice(start + self.shape[dim], None),)] = 0
    return out


_widen: Any = operation(
    "widen", _widened, self=lambda g, dim, start, self_shape: narrow(g, dim, start, self_shape[dim])
)
_narrow: Any = operation(
    "narrow", _narrowed, view=True, self=lambda g, dim, start, self_shape: _widen(g, dim, start, self_shape[dim])
)


def split(
    input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0, *, axis: int | None = None
) -> tuple[Tensor, ...]:
    """Return views of consecutive pieces: each of the given size (the last may be smaller), or of the sizes in a list.

    All pieces are outputs of one operation, so that their gradients come together without zeros in between.
    """
    dim = normalize_dim("split", dim if axis is None else axis, input.ndim)
    size = input.shape[dim]
    if isinstance(split_size_or_sections, int):
        if split_size_or_sections <= 0:
            raise ArgumentError(f"split: got a size of {split_size_or_sections}; pieces have at least one index")
        sizes = [min(split_size_or_sections, size - i) for i in range(0, size, split_size_or_sections)] or [0]
    else:
        sizes = [int(s) for s in split_size_or_sections]
        if sum(sizes) != size:
            raise ArgumentError(
                f"split: got sizes {sizes}; dimension {dim} has {size} indices, so they must sum to that"
            )
    return _split_operation(len(sizes))(input, tuple(sizes), dim) if len(sizes) > 1 else (_whole(input),)


def _whole(input: Tensor) -> Tensor:
    return _reshape(input, input.shape)  # type: ignore[no-any-return]


def _split_operation(count: int) -> Any:
    found = _split_operations.get(count)
    if found is None:
        found = _split_operations[count] = operation(
            "split",
            _pieces,
            outputs=tuple(f"piece{i}" for i in range(count)),
            view=True,
            self=lambda grads, dim: cat(grads, dim),
        )
    return found


def _pieces(self: np.ndarray, sizes: Shape, dim: int) -> tuple[np.ndarray, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(self[(slice(None),) * dim + (slice(end - size, end),)] for size, end in zip(sizes, ends, strict=True))


_split_operations: dict[int, Any] = {}


def chunk(input: Tensor, chunks: int, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Return views of at most `chunks` pieces of equal size (the last may be smaller)."""
    dim = normalize_dim("chunk", dim if axis is None else axis, input.ndim)
    return split(input, max(1, -(-input.shape[dim] // chunks)), dim)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of the slices along a dimension, without it."""
    dim = normalize_dim("unbind", dim, input.ndim)
    return tuple(squeeze(narrow(input, dim, i, 1), dim) for i in range(input.shape[dim]))


def _flipped(self: np.ndarray, dims: Shape) -> np.ndarray:
    out = empty(self.shape, self.dtype)
    np.copyto(out, np.flip(self, dims))
    return out


_flip: Any = operation("flip", _flipped, self=lambda g, dims: _flip(g, dims))


def flip(input: Tensor, *dims: Any) -> Tensor:
    """Return a copy with the order along some dimensions reversed."""
    return _flip(input, normalize_dims("flip", shape_arguments(dims), input.ndim))  # type: ignore[no-any-return]


def _rolled(self: np.ndarray, shifts: Shape, dims: Shape) -> np.ndarray:
    out = empty(self.shape, self.dtype)
    np.copyto(out, np.roll(self, shifts, dims))
    return out


_roll: Any = operation("roll", _rolled, self=lambda g, shifts, dims: _roll(g, tuple(-s for s in shifts), dims))


def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Return a copy whose elements moved along some dimensions; those pushed out come in again at the other end."""
    steps = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    if dims is None:
        return reshape(roll(flatten(input), steps, 0), input.shape)
    return _roll(input, steps, normalize_dims("roll", dims, input.ndim))  # type: ignore[no-any-return]


def _padded(self: np.ndarray, widths: tuple[tuple[int, int], ...], value: float) -> np.ndarray:
    out = empty(tuple(s + before + after for s, (before, after) in zip(self.shape, widths, strict=True)), self.dtype)
    out.fill(value)
    out[_interior(self.shape, widths)] = self
    return out


def _interior(shape: Shape, widths: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(before, before + s) for s, (before, _) in zip(shape, widths, strict=True))


_crop: Any = operation(
    "crop",
    lambda self, widths: self[tuple(slice(b, s - a) for s, (b, a) in zip(self.shape, widths, strict=True))],
    view=True,
    self=lambda g, widths: _constant_pad(g, widths, 0.0),
)
_constant_pad: Any = operation("constant_pad", _padded, self=lambda g, widths: _crop(g, widths))


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Return the tensor with `value` around it; `pad` lists (before, after) from the last dimension on; negative widths
    crop.

    Raises ArgumentError for an odd or too long list, or another mode.
    """
    if mode != "constant":
        raise ArgumentError(f'pad: got mode={mode!r}; accepted is "constant"')
    if len(pad) % 2 or len(pad) // 2 > input.ndim:
        raise ArgumentError(
            f"pad: got {len(pad)} widths for {input.ndim} dimensions; give (before, after) pairs, at most one each"
        )
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    widths = ((0, 0),) * (input.ndim - len(pairs)) + tuple(reversed(pairs))
    cropped = tuple((max(-before, 0), max(-after, 0)) for before, after in widths)
    added = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    result = _crop(input, cropped) if any(map(any, cropped)) else input
    return _constant_pad(result, added, 0.0 if value is None else value)  # type: ignore[no-any-return]


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """Return the tensor tiled `repeats` times along each dimension, new ones first (PyTorch's `repeat`, NumPy's
    `tile`).
    """
    counts = shape_arguments(repeats)
    if len(counts) < input.ndim:
        raise ShapeError(f"repeat: got {counts} for {input.ndim} dimensions; give a count for each")
    shape = (1,) * (len(counts) - input.ndim) + input.shape
    spread = tuple(size for pair in zip(counts, shape, strict=True) for size in pair)
    source = reshape(input, tuple(size for s in shape for size in (1, s)))
    return reshape(expand_to(source, spread), tuple(c * s for c, s in zip(counts, shape, strict=True)))


def tile(input: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the tensor tiled `dims` times along its last dimensions."""
    return repeat(input, (1,) * (input.ndim - len(dims)) + tuple(dims))


def repeat_interleave(input: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    """Return each element (or slice along `dim`) repeated in place `repeats` times."""
    if dim is None:
        return repeat_interleave(flatten(input), repeats, 0)
    dim = normalize_dim("repeat_interleave", dim, input.ndim)
    shape = input.shape
    spread = expand_to(unsqueeze(input, dim + 1), (*shape[: dim + 1], repeats, *shape[dim + 1 :]))
    return clone(reshape(spread, (*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :])))


def _triangle(keep_lower: bool) -> Any:
    def forward(self: np.ndarray, diagonal: int) -> np.ndarray:
        return np.tril(self, diagonal) if keep_lower else np.triu(self, diagonal)

    name = "tril" if keep_lower else "triu"
    defined: Any = operation(name, forward, self=lambda g, diagonal: defined(g, diagonal))
    return defined


_tril, _triu = _triangle(True), _triangle(False)


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Return the lower triangle of matrices, zeros above the given diagonal."""
    return _tril(input, diagonal)  # type: ignore[no-any-return]


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Return the upper triangle of matrices, zeros below the given diagonal."""
    return _triu(input, diagonal)  # type: ignore[no-any-return]
