"""Train a model whose parameters, gradients and optimizer state do not fit in RAM: they live in a spill store."""

import collections
import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from spillgrad.autograd import hooks
from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.optim.optimizer import Optimizer
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label, Store, StoreStats
from spillgrad.tensor import Storage, Tensor
from spillgrad_kernels import memory


class OffloadedStorage(Storage):
    """Memory in a store, which is in RAM while somebody holds the array: `array` reads it where it is not.

    From an in-place change on the array stays in RAM until nobody uses it any more; then the store has its new values.
    """

    offloaded = True

    def view_of(self, tensor: Tensor) -> "OffloadedView":
        """Return what stands for `tensor`, over this storage, in a graph."""
        return OffloadedView(tensor)

    def put_away(self, gradient: Tensor) -> None:
        """Move a gradient of the leaf over this storage to the store."""
        self._residents.offload(gradient, Label("gradient", None, self._handle.label.module))
        self._residents.settle()

    def hold(self, made: object) -> None:
        """Keep what was made of the memory as long as the module that runs keeps the memory itself."""
        frame = self._residents.frame
        if frame.number is not None:
            frame.arrays.append(made)

    def place(self, residents: "Residents", handle: Handle, array: np.ndarray) -> None:
        """Be the storage of `array`, which the store has under `handle`: a plain storage was given this class."""
        del vars(self)["array"]
        self._residents, self._handle = residents, handle
        self._shape, self._dtype = array.shape, array.dtype
        self._alive: weakref.ref[np.ndarray] = weakref.ref(array)
        self._changing = False
        self._used_in: int | None = -1

    def __del__(self) -> None:
        self._residents.store.drop(self._handle)

    @property
    def array(self) -> np.ndarray:  # type: ignore[override]
        """The dense memory: the same array as long as anybody holds it."""
        array = self._alive()
        frame = self._residents.frame
        if array is not None and frame.number is not None and self._used_in == frame.number:
            return array
        with self._residents.lock:
            array = self._alive()
            if array is None:
                array = self._residents.store.get(self._handle)
                self._alive = weakref.ref(array)
            elif not self._changing:
                self._residents.store.use(self._handle)
        if frame.number is not None:
            self._used_in = frame.number
            frame.arrays.append(array)
        return array

    def begin_change(self) -> None:
        residents = self._residents
        with residents.lock:
            array = residents.thread.last_changed = self.array
            residents.settle()
            if not self._changing:
                residents.store.begin_change(self._handle, array)
                self._changing = True
                residents.changing.append(weakref.ref(self))
        super().begin_change()

    def end_change(self) -> bool:
        """Give the new values to the store unless the array is still used; return whether that was done.

        Called with the lock held.
        """
        if _holders(self._alive) > _STORE_ONLY:
            return False
        self._residents.store.end_change(self._handle)
        self._changing = False
        return True


def _holders(alive: Callable[[], np.ndarray | None]) -> int:
    array = alive()
    return 0 if array is None else sys.getrefcount(array)


def _holders_of_a_kept_array() -> int:
    kept = [np.empty(0)]
    return _holders(weakref.ref(kept[0]))


# What Python counts for an array that only the store refers to.
_STORE_ONLY = _holders_of_a_kept_array()


class _Offloaded(Tensor):
    """A tensor over an offloaded storage: shape and dtype are known without reading it."""

    _storage: OffloadedStorage

    @property
    def _array(self) -> np.ndarray:
        return self._storage.array

    @_array.setter
    def _array(self, array: np.ndarray) -> None:
        self.__class__ = _PLAIN[type(self)]  # type: ignore[assignment]  # other memory is plain memory
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._storage._shape

    @property
    def dtype(self) -> Any:
        return self._storage._dtype

    @property
    def ndim(self) -> int:
        return len(self._storage._shape)

    @property
    def nbytes(self) -> int:
        return self._storage._handle.nbytes

    @property
    def itemsize(self) -> int:
        return self._storage._dtype.itemsize


class OffloadedTensor(_Offloaded):
    """A tensor in a store."""


class OffloadedParameter(_Offloaded, Parameter):
    """A parameter in a store."""


class OffloadedBuffer(_Offloaded, Buffer):
    """A buffer in a store."""


_KINDS: dict[type[Tensor], type[Tensor]] = {
    Tensor: OffloadedTensor,
    Parameter: OffloadedParameter,
    Buffer: OffloadedBuffer,
}
_PLAIN: dict[type[Tensor], type[Tensor]] = {offloaded: plain for plain, offloaded in _KINDS.items()}


class _Frame:
    """What a module, or an update, has used so far: it may look at it again. Outside of all, nothing is kept."""

    def __init__(self, number: int | None, owner: int | None = None) -> None:
        self.number = number
        self.owner = owner
        self.arrays: list[object] = []


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames = [_Frame(None)]
        self.last_changed: np.ndarray | None = None  # who is about to modify it may not hold it yet


class Residents:
    """What of the offloaded tensors is in RAM, and why."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = threading.RLock()  # guards which arrays change
        # Weak, as storages hold this object.
        self.changing: collections.deque[weakref.ref[OffloadedStorage]] = collections.deque()
        self.thread = _Thread()
        self._numbers = itertools.count()

    @property
    def frame(self) -> _Frame:
        """What keeps arrays in RAM now."""
        return self.thread.frames[-1]

    def enter(self, owner: int, begins_step: bool = False) -> None:
        """Begin to keep what is used from here on; what operations save of it for backward is read again there."""
        if len(self.thread.frames) == 1:
            if begins_step:
                self.store.begin_step()
            hooks.watch(1)
        self.thread.frames.append(_Frame(next(self._numbers), owner))

    def leave(self, owner: int) -> None:
        """Let go of what was used since `owner` entered; if it never came to that, do nothing."""
        frames = self.thread.frames
        if frames[-1].owner != owner:
            return
        frames.pop()
        if len(frames) == 1:
            hooks.watch(-1)
        self.thread.last_changed = None
        self.settle()

    def settle(self) -> None:
        """Give what nobody modifies any more to the store."""
        with self.lock:
            for _ in range(len(self.changing)):
                known = self.changing.popleft()
                storage = known()
                ended = False
                try:
                    ended = storage is None or storage.end_change()
                finally:
                    if not ended:
                        self.changing.append(known)

    def offload(self, tensor: Tensor, label: Label) -> None:
        """Move the memory of a leaf, which must be all of its storage, to the store."""
        storage = tensor._storage
        kind = _KINDS.get(type(tensor))
        if kind is None or isinstance(storage, OffloadedStorage):
            return
        array = tensor._array
        if isinstance(array.base, np.ndarray):  # such memory may live on after its array
            array = memory.copy(array)
        handle = self.store.put(array, label=label, lasting=True)  # first: it may fail
        storage.__class__ = OffloadedStorage
        cast(OffloadedStorage, storage).place(self, handle, array)
        vars(tensor).pop("_array")
        tensor.__class__ = kind


class OffloadedView:
    """What a saved tensor over an offloaded storage leaves in the graph: where in that it lies."""

    __slots__ = ("_dtype", "_offset", "_shape", "_storage", "_strides")

    def __init__(self, tensor: Tensor) -> None:
        array = tensor._array
        self._storage = tensor._storage
        self._offset = _address(array) - _address(tensor._storage.array) if array.size else 0
        self._shape, self._dtype, self._strides = array.shape, array.dtype, array.strides

    def tensor(self) -> Tensor:
        """Return the tensor, over the storage's array."""
        dense = self._storage.array
        array: np.ndarray = np.ndarray(self._shape, self._dtype, dense, self._offset, self._strides)
        return Tensor.wrap(array, self._storage)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class disk_offload:
    """Keep a model's parameters and buffers, their gradients and the optimizer's state on disk, but for `ram_budget`.

    From here on they are read when something looks at them, ahead of time once a step has shown in which order, and
    written back after they changed; the model, the optimizer and the training loop stay as they are. What a module
    looked at stays in RAM until its call ends, beyond the budget if need be. Values are bit for bit those of training
    in RAM.

    With `step_in_backward` the optimizer updates each parameter as soon as backward has its gradient, and frees that:
    `optimizer.step()` then finds nothing to do, and several backward passes are several steps. Otherwise gradients go
    to disk too.

    Units: `ram_budget` is bytes, or a size such as "512MiB".
    Raises BudgetError for a size that does not parse, ArgumentError for a parameter that shares memory with another
    tensor, SpillError for a directory that cannot be used.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | None = None,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str,
        step_in_backward: bool = False,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
    ) -> None:
        if step_in_backward and optimizer is None:
            raise ArgumentError("disk_offload: got step_in_backward=True without an optimizer; give one")
        self._store = DiskStore(
            directory, ram_budget=ram_budget, direct_io=direct_io, checksums=checksums, on_full=on_full
        )
        self._residents = Residents(self._store)
        # Hooks of parameters and of the optimizer hold this object: it must not hold those.
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._group_of: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._step_in_backward = step_in_backward
        self._take_model(model)
        memory.pool.keep_to_peak()
        if optimizer is not None:
            optimizer.around_update = self._update  # type: ignore[method-assign]
            for number, group in enumerate(optimizer.param_groups):
                for param in group["params"]:
                    self._group_of[id(param)] = number
                    self._put_state_away(optimizer, param)

    def _take_model(self, model: Module) -> None:
        tensors = [*model.named_parameters(), *model.named_buffers()]
        owners: dict[Storage, str] = {}
        for name, tensor in tensors:
            other = owners.setdefault(tensor.storage, name)
            if other != name:
                raise ArgumentError(
                    f"disk_offload: {name} and {other} share memory; clone() one, or register one tensor"
                )
        for name, tensor in tensors:
            self._names[id(tensor)] = name
            if tensor.array is not tensor.storage.array:  # a view of more than is needed
                tensor.data = tensor.detach().clone()
            self._residents.offload(tensor, Label("parameter", None, name))
            if tensor.requires_grad:
                tensor.register_post_accumulate_grad_hook(self._finished)
        residents = self._residents
        for module in model.modules():
            begins_step = module is model
            module.register_forward_pre_hook(lambda module, args, first=begins_step: residents.enter(id(module), first))
            module.register_forward_hook(lambda module, args, result: residents.leave(id(module)), always_call=True)

    @property
    def directory(self) -> Path:
        """Where this object's files are."""
        return self._store.directory

    def flush(self) -> None:
        """Return when all that nobody is changing is in the files. Raises SpillError when it could not be written."""
        self._store.flush()

    def stats(self) -> StoreStats:
        """Return the store's counters."""
        return self._store.stats()

    def _finished(self, param: Tensor) -> None:
        """Use, or put away, a gradient that is complete."""
        optimizer = None if self._optimizer is None else self._optimizer()
        number = self._group_of.get(id(param))
        if self._step_in_backward and optimizer is not None and number is not None:
            optimizer.step_parameter(param, optimizer.param_groups[number])
            param.grad = None
        grad = param.grad
        if grad is not None:
            if grad.array is not grad.storage.array:
                param.grad = grad = grad.detach().clone()
            self._residents.offload(grad, Label("gradient", None, self._names[id(param)]))
        self._residents.settle()

    @contextlib.contextmanager
    def _update(self, param: Tensor) -> Iterator[None]:
        self._residents.enter(id(param))
        try:
            yield
        finally:
            self._residents.leave(id(param))
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is not None:
            self._put_state_away(optimizer, param)

    def _put_state_away(self, optimizer: Optimizer, param: Tensor) -> None:
        for key, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor):
                self._residents.offload(value, Label("state", key, self._names.get(id(param))))
        self._residents.settle()
