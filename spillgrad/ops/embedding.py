"""Rows of a table, looked up by index one by one or in bags (sums, means, maxima); one-hot rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.autograd.core.grad_mode import is_recording, no_grad
from spillgrad.device.device import CPU, moved
from spillgrad.dtypes import is_differentiable
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops.arithmetic import div, mul
from spillgrad.ops.array_casts import by_parts, moved_by, refuse_complex, require_one_dtype
from spillgrad.ops.clamp_where import where
from spillgrad.ops.getitem_setitem import getitem, setitem
from spillgrad.ops.indexing import check_index, gather, summed_at
from spillgrad.ops.operation import operation
from spillgrad.ops.reduce import norm
from spillgrad.ops.shape import reshape, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import indexing as kernels
from spillgrad_kernels.device_array import arange_beside, beside, is_on_device

__all__ = ["embedding", "embedding_bag", "one_hot"]


def _looked_up(weight: np.ndarray, indices: np.ndarray, padding_idx: int | None) -> np.ndarray:
    return moved_by(lambda table: kernels.embedding(table, indices), weight)


def _table_gradient(grad_output: np.ndarray, indices: np.ndarray, rows: int, padding_idx: int | None) -> np.ndarray:
    sums: np.ndarray = by_parts(lambda g: kernels.embedding_backward(g, indices, rows), grad_output)
    if padding_idx is not None:
        sums[padding_idx] = 0
    return sums


def _looked_up_without_padding(g: Tensor, indices: Tensor, padding_idx: int | None) -> Tensor:
    rows: Tensor = _embedding(g, indices, padding_idx)
    if padding_idx is None:
        return rows
    return where(Tensor.wrap(indices.array[..., None] != padding_idx), rows, 0.0)  # type: ignore[no-any-return]


_embedding: Callable[..., Tensor] = operation(
    "embedding", _looked_up,
    weight=lambda g, indices, padding_idx, weight_shape: _embedding_backward(g, indices, weight_shape[0], padding_idx),
)  # fmt: skip
_embedding_backward: Callable[..., Tensor] = operation(
    "embedding_dense_backward", _table_gradient, grad_output=_looked_up_without_padding
)
_weigh_gradient: Callable[..., Tensor] = operation(
    "weigh_gradient", lambda self, weights: self.view(), view=True, self=lambda g, weights: mul(g, weights)
)


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Return the rows of a table at indices.

    Parameters
    ----------
    input : Tensor
        Indices of rows, 0 to V - 1, of any shape.
    weight : Tensor
        The table, of shape (V, D).
    padding_idx : int, optional
        Row that receives no gradient.
    max_norm : float, optional
        Looked-up rows whose p-norm exceeds it are first scaled down in place.
    norm_type : float, default 2.0
        The p of the norm.
    scale_grad_by_freq : bool, default False
        Whether a row's gradient is divided by how often the row was looked up.
    sparse : bool, default False
        Has no effect: gradients are dense.

    Returns
    -------
    Tensor
        Of shape ``input.shape + (D,)``.

    Raises
    ------
    DimensionError
        If an index is outside [0, V).
    ArgumentError
        If `padding_idx` is not a row of the table.
    ShapeError
        If `weight` is not a matrix of floating-point numbers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> table = sg.tensor([[0.0, 1.0], [2.0, 3.0]])
    >>> sg.nn.functional.embedding(sg.tensor([1, 0]), table).tolist()
    [[2.0, 3.0], [0.0, 1.0]]
    """
    _check_table("embedding", input, weight)
    padding_idx = _padding_row("embedding", padding_idx, weight)
    if max_norm is not None:
        _shorten_rows(weight, input.array, float(max_norm), float(norm_type))
    rows = _rows(weight, input, padding_idx)
    return _by_frequency(rows, input.array) if scale_grad_by_freq else rows


def _rows(weight: Tensor, input: Tensor, padding_idx: int | None) -> Tensor:
    """Return rows, and record that; of an offloaded table, no others are read."""
    found = None if is_on_device(input._array) else weight._rows_at(input._array)
    if found is None:
        return _embedding(weight, input, padding_idx)
    table = Tensor.wrap(np.broadcast_to(np.empty((), weight.numpy_dtype), weight.shape))  # a shape without memory
    if is_recording():
        table.connect(weight.gradient_edge())
    return _embedding.computed((table, input, padding_idx), found)  # type: ignore[attr-defined,no-any-return]


def _check_table(name: str, input: Tensor, weight: Any) -> None:
    if (
        isinstance(weight, Tensor)
        and isinstance(input, Tensor)
        and input.is_floating_point()
        and not weight.is_floating_point()
    ):
        raise DtypeError(
            f"{name}: got indices of {input.dtype} and a table of {weight.dtype}; indices come first, then the table"
        )
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not is_differentiable(weight.dtype):
        got = f"{weight.dtype} of shape {weight.shape}" if isinstance(weight, Tensor) else type(weight).__name__
        raise ShapeError(f"{name}: got a table {got}; wanted floating-point numbers of shape (rows, width)")
    check_index(name, input, weight.shape[0], 0, weight.shape)


def _padding_row(name: str, padding_idx: int | None, weight: Tensor) -> int | None:
    """Return `padding_idx` counted from the front, or None. Raises ArgumentError for a row outside the table."""
    if padding_idx is None:
        return None
    rows = weight.shape[0]
    if not -rows <= padding_idx < rows:
        raise ArgumentError(f"{name}: got padding_idx {padding_idx}; the table has {rows} rows")
    return padding_idx % rows


def _shorten_rows(weight: Tensor, indices: np.ndarray, max_norm: float, norm_type: float) -> None:
    """Scale the rows at `indices` whose norm exceeds `max_norm`, in place."""
    with no_grad():
        used = Tensor.wrap(np.unique(indices))
        rows = getitem(weight, used)
        lengths = norm(rows, norm_type, 1, True)
        too_long = lengths.array > max_norm
        if too_long.any():  # as in PyTorch: a little below the largest norm
            factors = where(Tensor.wrap(too_long), div(max_norm, lengths + 1e-7), 1.0)
            setitem(weight, used, mul(rows, factors))


def _by_frequency(rows: Tensor, indices: np.ndarray) -> Tensor:
    """Return `rows`; backward divides the gradient of each row by how often the index of the row occurs."""
    _, inverse, counts = np.unique(indices, return_inverse=True, return_counts=True)
    weights = (1 / counts[inverse.reshape(indices.shape)])[..., None].astype(rows.dtype)
    return _weigh_gradient(rows, weights)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Return a row for each index, 1 at the index and 0 elsewhere.

    Parameters
    ----------
    tensor : Tensor
        Indices, of any shape.
    num_classes : int, default -1
        Length of a row; -1 is the largest index + 1.

    Returns
    -------
    Tensor
        Of int64, of shape ``tensor.shape + (num_classes,)``.

    Raises
    ------
    DimensionError
        If an index is outside the row.
    """
    largest = -1
    if isinstance(tensor, Tensor) and tensor.dtype.kind in "iu" and tensor.numel():
        largest = int(np.max(tensor.array))
    classes = largest + 1 if num_classes == -1 else num_classes
    check_index("one_hot", tensor, classes, tensor.ndim, (*tensor.shape, classes))
    return Tensor.wrap((tensor.array[..., None] == arange_beside(tensor.array, classes)).astype(np.int64))


# --- In bags ---------------------------------------------------------------------------------------------------------


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum, mean or elementwise maximum of the rows of a table in each bag; zeros for an empty bag.

    Each row of a matrix `input` is a bag. Of equal maxima, the first gets the gradient.

    Parameters
    ----------
    input : Tensor
        Indices of rows, 0 to V - 1, of shape (B, n), or (n,) with `offsets`.
    weight : Tensor
        The table, of shape (V, D).
    offsets : Tensor, optional
        For a vector `input`, where each bag begins, of shape (B,): a bag ends before the next.
    max_norm : float, optional
        Looked-up rows whose p-norm exceeds it are first scaled down in place.
    norm_type : float, default 2.0
        The p of the norm.
    scale_grad_by_freq : bool, default False
        Whether a row's gradient is divided by how often the row was looked up; not with "max".
    mode : {"mean", "sum", "max"}, default "mean"
        What becomes of the rows of a bag.
    sparse : bool, default False
        Has no effect: gradients are dense.
    per_sample_weights : Tensor, optional
        Factor of each row of a sum, of the shape of `input`.
    include_last_offset : bool, default False
        Whether the last offset only ends the last bag.
    padding_idx : int, optional
        Row that is left out.

    Returns
    -------
    Tensor
        Of shape (B, D).

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the dtypes do not fit together.
    ArgumentError
        If options or offsets do not fit together.
    DimensionError
        If an index is outside [0, V).
    """
    name = "embedding_bag"
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"{name}: mode has to be one of sum, mean or max, but got {mode!r}")
    if mode == "max" and scale_grad_by_freq:
        raise ArgumentError(f"{name}: max mode does not support scaling the gradient by the frequency")
    _check_table(name, input, weight)
    if mode == "max":
        refuse_complex(f"{name} with mode 'max'", weight.dtype)
    padding_idx = _padding_row(name, padding_idx, weight)
    bags, count = _bags(name, input, offsets, include_last_offset)
    indices = input.array.reshape(-1)
    kept = arange_beside(indices, indices.size) if padding_idx is None else np.flatnonzero(indices != padding_idx)
    indices, bags = indices[kept], beside(indices, bags)[kept]
    rows = embedding(Tensor.wrap(indices), weight, None, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = mul(rows, unsqueeze(_sample_weights(name, per_sample_weights, input, weight, mode, kept), 1))
    if mode == "max":
        return _largest_of_bags(rows, bags, count)
    sums = summed_at(rows, Tensor.wrap(bags), count)
    if mode == "sum":
        return sums
    sizes = np.maximum(np.bincount(bags, minlength=count), 1).astype(weight.dtype)
    return div(sums, Tensor.wrap(sizes[:, None]))


def _bags(name: str, input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> tuple[np.ndarray, int]:
    """Return the bag of each index in `input`, in order, and the number of bags."""
    if input.ndim == 2:
        if offsets is not None:
            raise ArgumentError(
                f"{name}: if input is 2D, then offsets has to be None, as input is treated as a mini-batch of fixed "
                "length sequences"
            )
        return np.repeat(np.arange(input.shape[0]), input.shape[1]), input.shape[0]
    if input.ndim != 1:
        raise ShapeError(f"{name}: input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}")
    if offsets is None:
        raise ArgumentError(f"{name}: offsets has to be a 1D Tensor but got None")
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise ShapeError(
            f"{name}: offsets has to be a 1D Tensor of integers, but got {offsets.dtype} of shape {offsets.shape}"
        )
    starts, size = offsets.host_array().astype(np.int64), input.shape[0]
    if include_last_offset:
        if not starts.size:
            raise ArgumentError(f"{name}: include_last_offset: number of offsets should be at least 1")
        starts, size_of_all = starts[:-1], int(starts[-1])
    else:
        size_of_all = size
    if starts.size and starts[0] != 0:
        raise ArgumentError(
            f"{name}: offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0; "
            f"got {starts[0]}"
        )
    ends = np.append(starts[1:], size_of_all)
    if (ends < starts).any() or (starts.size and ends[-1] > size):
        raise ArgumentError(
            f"{name}: got offsets {offsets.tolist()} for an input of {size}; they must not fall, nor exceed its length"
        )
    bags = np.repeat(np.arange(starts.size), ends - starts)
    if bags.size != size:
        raise ArgumentError(f"{name}: got offsets {offsets.tolist()}; they leave out a part of the input's {size}")
    return bags, starts.size


def _sample_weights(
    name: str, per_sample_weights: Tensor, input: Tensor, weight: Tensor, mode: str, kept: np.ndarray
) -> Tensor:
    if mode != "sum":
        raise ArgumentError(
            f"{name}: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' (got "
            f"mode={mode!r})"
        )
    if per_sample_weights.shape != input.shape:
        raise ShapeError(
            f"{name}: if per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the same shape "
            f"as the input ({input.shape})"
        )
    require_one_dtype(name, weight=weight, per_sample_weights=per_sample_weights)
    return getitem(reshape(per_sample_weights, -1), Tensor.wrap(kept))


def _largest_of_bags(rows: Tensor, bags: np.ndarray, count: int) -> Tensor:
    width = rows.shape[1]
    if not bags.size:
        return mul(summed_at(rows, Tensor.wrap(bags), count), 0.0)
    places = np.zeros((count, width), np.int64)
    values, bags = rows.host_array(), moved(bags, CPU)
    filled, starts = np.unique(bags, return_index=True)
    for bag, start, stop in zip(filled, starts, [*starts[1:], bags.size], strict=True):
        places[bag] = start + np.argmax(values[start:stop], 0)
    there = np.zeros((count, 1), np.bool_)
    there[filled] = True
    is_there, first = (Tensor.wrap(moved(part, rows.device)) for part in (there, places))
    return where(is_there, gather(rows, 0, first), 0.0)  # type: ignore[no-any-return]
