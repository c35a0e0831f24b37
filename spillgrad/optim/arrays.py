"""Running update kernels on the memory of tensors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import GraphError, ShapeError, UnsupportedError
from spillgrad.ops.complex_views import as_pairs
from spillgrad.ops.placement import require_one_device
from spillgrad.optim.state_formats import EncodedState
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import optim as kernels
from spillgrad_kernels.cpu.stochastic_rounding import round_stochastically
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.tables.optim import Update, maximizing
from spillgrad_kernels.tables.state_codes import Encoded

# The most tensors that an update changes: of a parameter and its state.
_SLOTS = 8
# Updates that need copies are collected until the copies take this much memory.
_COPIES_BYTES = 16 << 20


class Rounding(NamedTuple):
    """How bfloat16 results of an update are rounded at random.

    `parameter` is the parameter's number in the optimizer, `step` that of its update, and `first` the number of the
    first element, where a piece of a parameter is updated.
    """

    seed: int
    parameter: int
    step: int
    first: int

    def round(self, values: np.ndarray, target: np.ndarray, slot: int) -> None:
        """Overwrite `target`, the parameter (of slot 0) or a tensor of its state, with rounded float32 values."""
        if not isinstance(target, np.ndarray):
            raise UnsupportedError(
                "step: got a bfloat16 parameter on a CUDA device; updates are rounded at random on the CPU alone"
            )
        rounded = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)
        stream = (self.parameter * _SLOTS + slot) % (1 << 32)
        round_stochastically(values, rounded, self.first, self.seed, stream, self.step % (1 << 32))
        if rounded is not target:
            np.copyto(target, rounded)


class Pending(NamedTuple):
    """A pending update `kernel(param, grad, *state, *options)` of tensors; a state may be None, or encoded.

    Half precision and non-contiguous memory are updated in a copy (of at least float32) and rounded back. Of complex
    tensors, the real and the imaginary parts are updated as if each was a parameter.
    """

    kernel: Callable[..., Update]
    param: Tensor
    grad: Tensor
    state: Sequence[Tensor | EncodedState | None]
    options: tuple[float, ...]
    maximize: bool = False  # step along the gradient, not against it
    rounding: Rounding | None = None  # of bfloat16 tensors; by default, to nearest


class _Batch:
    """Pending updates that run in one launch."""

    def __init__(self) -> None:
        self._updates: list[tuple[Update, list[Tensor], Rounding | None]] = []
        self._changed: set[Any] = set()
        self._copied_bytes = 0

    def add(self, update: Pending) -> None:
        """Add an update; first run the others if they change the same memory or if the copies would be too large."""
        kernel, param, grad, state, options, maximize, rounding = update
        if param.is_complex():
            param, grad = _parts(param), _parts(grad)
            state = [_parts(tensor) if isinstance(tensor, Tensor) else tensor for tensor in state]
        tensors = _unpacked(param, state)
        storages = [tensor._storage for tensor in tensors]
        if not self._changed.isdisjoint(storages) or self._copied_bytes > _COPIES_BYTES:
            self.run()
        for tensor in tensors:
            if not tensor._array.flags.writeable:
                raise GraphError("step: a parameter's or its state's memory is read-only; clone() it first")
        given: list[Any] = [
            Encoded(each.kind, each.codes._array, None if each.scales is None else each.scales._array)
            if isinstance(each, EncodedState) else None if each is None else each._array
            for each in (param, grad, *state)
        ]  # fmt: skip
        dtype = given[0].dtype if given[0].dtype in FLOATS else np.dtype(np.float32)
        arrays = [None if array is None else _as_computed(array, dtype) for array in given]
        try:
            made = kernel(*arrays, *options)
        except ValueError as error:
            require_one_device("step", [*tensors, grad])
            raise ShapeError(str(error)) from error
        if maximize:
            made = made._replace(formula=maximizing(made.formula))
        self._updates.append((made, tensors, rounding))
        self._changed.update(storages)
        for original, array in zip(given, arrays, strict=True):
            if array is not None and array is not original:
                self._copied_bytes += array.nbytes
        if any([storage.offloaded for storage in storages]):  # it is in RAM only during this update
            self.run()

    def run(self) -> None:
        """Run the pending updates, and count a change of each tensor."""
        updates, self._updates, self._changed, self._copied_bytes = self._updates, [], set(), 0
        # The memory of an offloaded tensor is stored again as soon as nothing refers to it.
        held = [tensor._array for _, tensors, _ in updates for tensor in tensors]
        for _, tensors, _ in updates:
            for tensor in tensors:
                tensor._storage.begin_change()
        kernels.run([update for update, _, _ in updates])
        for update, tensors, rounding in updates:
            for slot, (tensor, array) in enumerate(zip(tensors, _unpacked(update.param, update.state), strict=True)):
                if array is not tensor._array and rounding is not None and tensor.numpy_dtype == dtypes.bfloat16:
                    rounding.round(array, tensor._array, slot)
                elif array is not tensor._array:
                    tensor._array[...] = array
        del held


def run(updates: Iterable[Pending | None]) -> None:
    """Run updates, in groups that do not change the same memory; if one fails, those before it have run."""
    batch = _Batch()
    try:
        for update in updates:
            if update is not None:
                batch.add(update)
            del update  # its results must be freed before the next update is made
    finally:
        batch.run()


def _parts(tensor: Tensor) -> Tensor:
    return Tensor.wrap(as_pairs(tensor._array), tensor._storage)


def _unpacked(param: Any, state: Sequence[Any]) -> list[Any]:
    """Return what an update changes: a parameter, its state, and the codes and scales of state that is encoded."""
    changed = [param]
    for each in state:
        changed += each[1:] if isinstance(each, EncodedState | Encoded) else (each,)
    return [each for each in changed if each is not None]


def _as_computed(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return the array if a kernel for `dtype` accepts it, else a copy. Encoded state is not converted."""
    if type(array) is Encoded:
        return array
    fits = (array.dtype is dtype or array.dtype == dtype) and array.flags.c_contiguous
    return array if fits else array.astype(dtype, order="C")
