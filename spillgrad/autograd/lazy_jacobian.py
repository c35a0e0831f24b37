"""Jacobians and Hessians of tensors that are already computed. Their rows are computed when they are read.

Source: paddle.autograd.jacobian, paddle.autograd.hessian.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.autograd.core.grad_mode import enable_grad
from spillgrad.autograd.differentiate import grad
from spillgrad.device.device import filled, moved
from spillgrad.errors import ArgumentError, DimensionError, OperandError
from spillgrad.ops.creation import zeros_like
from spillgrad.ops.join_split import stack
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape
from spillgrad.tensor import Tensor


class Jacobian:
    """The derivatives of `ys` by `xs`: a matrix with a row for each element of `ys`. Indexing computes only its rows.

    Each row is computed once, and can itself be differentiated. Methods and arithmetic apply to the whole matrix as a
    tensor, `J[:]`.
    Shapes: ys (M,) and xs (N,) give (M, N); with a batch, (B, M) and (B, N) give (B, M, N). If `ys` has no dimension M,
    or `xs` no N (0-d tensors, or (B,) with a batch), the result has no such dimension either.
    Raises ArgumentError for more dimensions.
    """

    def __init__(self, ys: Callable[[], Tensor], ys_shape: tuple[int, ...], xs: Tensor, is_batched: bool) -> None:
        least = 1 if is_batched else 0
        for name, shape in (("xs", xs.shape), ("ys", ys_shape)):
            if not least <= len(shape) <= least + 1:
                raise ArgumentError(
                    f"jacobian: got {name} of {shape}; wanted {least} or {least + 1} dimensions "
                    f"{'with' if is_batched else 'without'} batch_axis: reshape it"
                )
        if is_batched and xs.shape[0] != ys_shape[0]:
            raise ArgumentError(f"jacobian: got ys of {ys_shape} and xs of {xs.shape}; batches must be equally long")
        self._ys, self._ys_shape, self._xs, self._is_batched = ys, ys_shape, xs, is_batched
        self._axis = least if len(ys_shape) > least else None  # along which the rows lie
        self._rows: dict[int, Tensor] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole matrix."""
        lead = 1 if self._is_batched else 0
        return (*self._ys_shape, *self._xs.shape[lead:])

    def __len__(self) -> int:
        return len(self.evaluate())

    def evaluate(self) -> Tensor:
        """Return the whole matrix as a tensor."""
        return self._row(0) if self._axis is None else self._stacked(range(self._ys_shape[self._axis]))

    def __getitem__(self, index: Any) -> Tensor:
        places = _completed(index, len(self.shape))
        if self._axis is None or places is None:
            return self.evaluate()[index]
        before, chosen, after = places[: self._axis], places[self._axis], places[self._axis + 1 :]
        count = self._ys_shape[self._axis]
        if isinstance(chosen, slice):
            return self._stacked(range(count)[chosen])[(*before, slice(None), *after)]
        if not -count <= chosen < count:
            raise DimensionError(f"jacobian: got row {chosen}; wanted one of {count}")
        return self._row(chosen % count)[(*before, *after)]

    def _stacked(self, numbers: range) -> Tensor:
        axis = self._axis or 0
        if not numbers:
            shape = list(self.shape)
            shape[axis] = 0
            return Tensor.wrap(filled(self._xs.device, tuple(shape), self._xs.dtype, 0))
        return stack([self._row(number) for number in numbers], axis)

    def _row(self, number: int) -> Tensor:
        """Return the derivatives of element `number` of `ys` (of each batch member) by `xs`, in the shape of `xs`."""
        if number not in self._rows:
            with enable_grad():
                ys = self._ys()
                unit = np.zeros(ys.shape, ys.numpy_dtype)
                unit[(..., number) if self._axis is not None else ...] = 1
                self._rows[number] = _gradient(ys, self._xs, Tensor.wrap(moved(unit, ys.device)))
        return self._rows[number]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling look for such names, which a tensor must not answer
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.evaluate(), name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of shape {self.shape}, {len(self._rows)} rows computed>"


class Hessian(Jacobian):
    """The second derivatives of a value y by tensors a and b: the `Jacobian`, by b, of the gradient of y by a."""


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Jacobian, other: Any) -> Any:
        return getattr(self.evaluate(), name)(other.evaluate() if isinstance(other, Jacobian) else other)

    apply.__name__ = name
    return apply


for _name in ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv", "matmul", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Jacobian, f"__{_name}__", _operator(f"__{_name}__"))
Jacobian.__hash__ = object.__hash__  # type: ignore[method-assign]


def _gradient(ys: Tensor, xs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the gradient of `ys` by `xs`, which can be differentiated again; zeros if `ys` does not depend on `xs`."""
    found = None
    if ys.requires_grad:
        found = grad(ys, xs, weights, retain_graph=True, create_graph=True, allow_unused=True)[0]
    return zeros_like(xs) if found is None else found


def _completed(index: Any, ndim: int) -> tuple[Any, ...] | None:
    """Return an index of integers and slices, completed to `ndim` entries; return None for any other index."""
    places = index if isinstance(index, tuple) else (index,)
    rest = ndim - len(places)
    at = next((i for i, place in enumerate(places) if place is Ellipsis), None)
    if at is not None:
        places = (*places[:at], *[slice(None)] * (rest + 1), *places[at + 1 :])
        rest = 0
    if rest < 0 or not all(type(place) is int or isinstance(place, slice) for place in places):
        return None
    return (*places, *[slice(None)] * rest)


def _each(values: Any, function: Callable[[Any], Any]) -> Any:
    """Return function(values); for a list or tuple, a tuple of the results for its elements."""
    return tuple(map(function, values)) if isinstance(values, list | tuple) else function(values)


def _require(who: str, tensors: Any, batch_axis: int | None) -> None:
    for tensor in tensors if isinstance(tensors, list | tuple) else [tensors]:
        if not isinstance(tensor, Tensor):
            raise OperandError(f"{who}: got {type(tensor).__name__}; wanted a tensor or a sequence of tensors")
    if batch_axis not in (None, 0) or isinstance(batch_axis, bool):
        raise ArgumentError(f"{who}: got batch_axis={batch_axis!r}; wanted None or 0: move the batch to the front")


def jacobian(ys: Any, xs: Any, batch_axis: int | None = None) -> Any:
    """Return the `Jacobian` of `ys` by `xs`, each a tensor or a sequence of tensors.

    Parameters
    ----------
    ys : Tensor or sequence of Tensor
        Results, of shape (M,), or (B, M) with a batch.
    xs : Tensor or sequence of Tensor
        What the results were computed from, of shape (N,), or (B, N) with a batch.
    batch_axis : {0, None}, default None
        Dimension of the batch. With 0, member b of `ys` must depend only on member b of `xs`.

    Returns
    -------
    Jacobian or tuple
        Matrix of shape (M, N), or (B, M, N), whose rows are computed when they are read. For a sequence `ys`,
        ``result[i]`` belongs to ``ys[i]``. For a sequence `xs`, ``result[j]`` belongs to ``xs[j]``. If both are
        sequences, ``result[i][j]`` is the `Jacobian` of ``ys[i]`` by ``xs[j]``.

    Raises
    ------
    ArgumentError
        For tensors of more dimensions, batches of different lengths, and another `batch_axis`.
    OperandError
        For anything but tensors.
    """
    _require("jacobian", ys, batch_axis)
    _require("jacobian", xs, batch_axis)
    is_batched = batch_axis is not None

    def of(y: Tensor) -> Any:
        return _each(xs, lambda x: Jacobian(lambda: y, y.shape, x, is_batched))

    return _each(ys, of)


def hessian(ys: Tensor, xs: Any, batch_axis: int | None = None) -> Any:
    """Return the `Hessian` of `ys` by `xs`.

    Parameters
    ----------
    ys : Tensor
        Of one element; with a batch, of one element for each member: (B,) or (B, 1).
    xs : Tensor or sequence of Tensor
        What `ys` was computed from, of shape (N,), or (B, N) with a batch.
    batch_axis : {0, None}, default None
        Dimension of the batch.

    Returns
    -------
    Hessian or tuple
        Matrix of shape (N, N), or (B, N, N), whose rows are computed when they are read. For a sequence `xs`,
        ``result[i][j]`` is the `Hessian` by ``xs[i]`` and ``xs[j]``.

    Raises
    ------
    ArgumentError
        For any other shape of `ys`, and another `batch_axis`.
    OperandError
        For anything but tensors.
    """
    _require("hessian", [ys], batch_axis)
    _require("hessian", xs, batch_axis)
    is_batched = batch_axis is not None
    if (is_batched and not ys.ndim) or ys.numel() != (ys.shape[0] if is_batched else 1):
        wanted = "(B,) or (B, 1)" if is_batched else "one element"
        raise ArgumentError(f"hessian: got ys of {ys.shape}; wanted {wanted}: call it for each value")
    with enable_grad():
        total = sum(ys) if is_batched else reshape(ys, ())

    def of(x: Tensor) -> Any:
        @functools.cache
        def gradient() -> Tensor:
            return _gradient(total, x)

        return _each(xs, lambda other: Hessian(gradient, x.shape, other, is_batched))

    return _each(xs, of)
