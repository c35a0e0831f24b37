"""Train a model whose parameters, gradients and optimizer state do not fit in RAM: they live in a spill store."""

import collections
import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash

from spillgrad.autograd import hooks
from spillgrad.autograd.engine import Run, outermost_run
from spillgrad.autograd.grad_mode import no_grad
from spillgrad.autograd.node import NO_EDGE, Edge, HookDict
from spillgrad.errors import ArgumentError, BudgetError, GraphError, SpillError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.nn.registration import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from spillgrad.nn.utils import clip_grad
from spillgrad.offload_needs import disk_need, largest_need, state_bytes_of
from spillgrad.optim.optimizer import Group, Optimizer
from spillgrad.storage.budget import format_bytes, parse_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.file_system import free_bytes
from spillgrad.storage.store import Handle, Label, StoreStats
from spillgrad.tensor import Storage, Tensor
from spillgrad_kernels import memory


class OffloadedStorage(Storage):
    """Memory in a store, which is in RAM while somebody holds the array: `array` reads it where it is not.

    From an in-place change on the array stays in RAM until nobody uses it any more; then the store has its new values.
    """

    offloaded = True
    # Of a gradient: its norm as it is now, where somebody noted it.
    norm: float | None = None

    def view_of(self, tensor: Tensor) -> "OffloadedView":
        """Return what stands for `tensor`, over this storage, in a graph."""
        return OffloadedView(tensor)

    def put_away(self, gradient: Tensor) -> None:
        """Move a gradient of the leaf over this storage to the store."""
        self._residents.offload(gradient, Label("gradient", None, self._handle.label.module))
        self._residents.settle()

    def hold(self, made: Tensor) -> None:
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
        self._lent: bytes | None = None  # the digest of what it was, where others may or may not change it
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
        if frame.number is not None:
            self._residents.make_room(self._handle.nbytes)
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

    def array_to_overwrite(self) -> np.ndarray:
        """Return the memory as it is in RAM, else other memory, which is taken over when a change begins."""
        with self._residents.lock:
            array = self._alive()
            if array is None:
                self._residents.settle()
                array = memory.empty(self._shape, self._dtype)
                self._alive = weakref.ref(array)
        return array

    def begin_change(self) -> None:
        self._begin_change()
        self._lent = None
        super().begin_change()

    def lend(self) -> None:
        """Take it that who gets the memory may change it, for as long as he has it."""
        with self._residents.lock:
            was_changing = self._changing
            self._begin_change()
            if not was_changing:
                self._lent = _digest(self.array)
        super().lend()

    def _begin_change(self) -> None:
        residents = self._residents
        with residents.lock:
            if not self._changing:  # what was changed before makes room
                residents.thread.last_changed = None
                residents.settle()
            array = residents.thread.last_changed = self.array
            self.norm = None
            if not self._changing:
                residents.store.begin_change(self._handle, array)
                self._changing = True
                residents.changing.append(weakref.ref(self))

    def end_change(self) -> bool:
        """Give the new values to the store unless the array is still used; return whether that was done.

        Called with the lock held.
        """
        if _holders(self._alive) > _STORE_ONLY:
            return False
        changed = self._lent is None or self._lent != _digest(cast(np.ndarray, self._alive()))
        self._residents.store.end_change(self._handle, changed)
        self._changing, self._lent = False, None
        return True


def _digest(array: np.ndarray) -> bytes:
    return xxhash.xxh3_128_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


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

    def array_to_overwrite(self) -> np.ndarray:
        return self._storage.array_to_overwrite()

    def alias(self, edge: Edge = NO_EDGE) -> Tensor:
        """Return another such tensor, without graph or with the given place in it; it is not read for that."""
        tensor: Tensor = object.__new__(OffloadedTensor)
        self._storage.aliased = True
        tensor._storage = self._storage
        tensor.connect(edge)
        return tensor

    @property
    def data(self) -> Tensor:
        """The values without graph; other memory, once assigned, goes to the store too."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        residents, label = self._storage._residents, self._storage._handle.label
        cast(property, Tensor.data).__set__(self, value)  # which makes a plain tensor of it
        residents.offload(self, label)

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
        self.arrays: collections.deque[np.ndarray | Tensor] = collections.deque()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames = [_Frame(None)]
        self.last_changed: np.ndarray | None = None  # who is about to modify it may not hold it yet


class Residents:
    """What of the offloaded tensors is in RAM, and why."""

    def __init__(self, store: DiskStore) -> None:
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

    def make_room(self, nbytes: int) -> None:
        """Let go of what this thread used first, as far as it and so much more exceed the budget."""
        frames = self.thread.frames
        excess = nbytes - self.store.ram_budget + sum(array.nbytes for frame in frames for array in frame.arrays)
        for frame in frames:
            while excess > 0 and frame.arrays:
                excess -= frame.arrays.popleft().nbytes

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
        """Move the memory of a leaf to the store, unless the tensor is only part of it, or of a class of its own."""
        kind, storage = _KINDS.get(type(tensor)), tensor._storage
        if kind is None or tensor._array is not storage.array:
            return
        if not isinstance(storage, OffloadedStorage):
            array = tensor._array
            # Memory of another array may live on after this one; and it comes back from the disk in order.
            if isinstance(array.base, np.ndarray) or not array.flags.c_contiguous:
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


# Idle memory of the buffer pool that building a model may leave.
_IDLE_BYTES = 64 << 20


@contextlib.contextmanager
def _offloading_what_is_registered(residents: Residents) -> Iterator[None]:
    """Have what modules register in this thread go to the store at once."""
    thread = threading.get_ident()

    def offload(module: Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None and threading.get_ident() == thread:
            residents.thread.last_changed = None
            residents.settle()  # what was registered before has its first values
            residents.offload(tensor, Label("parameter", None, f"{type(module).__name__}.{name}"))
            if memory.memory_stats().idle_bytes > _IDLE_BYTES:
                memory.empty_cache()

    with register_module_parameter_registration_hook(offload), register_module_buffer_registration_hook(offload):
        yield


class _Training:
    """What the hooks of a model, its parameters and the optimizer do. They hold this; it holds none of them."""

    def __init__(self, residents: Residents, step_in_backward: bool, max_grad_norm: float | None) -> None:
        self.residents = residents
        self.grad_norm: float | None = None
        self._step_in_backward = step_in_backward
        self._max_grad_norm = max_grad_norm
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._names: dict[int, str] = {}
        self._groups: dict[int, int] = {}
        self._factor: float | None = None  # what gradients are scaled by, during the updates of one step
        # Parameters that got their gradient in a backward that goes on, by the outermost one.
        self._finished: weakref.WeakKeyDictionary[Run, dict[int, Tensor]] = weakref.WeakKeyDictionary()

    def take_model(self, model: Module) -> None:
        """Offload parameters and buffers, and watch modules and gradients."""
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
            label = Label("parameter", None, name)
            if isinstance(tensor, _Offloaded):  # while the model was built
                tensor._storage._handle.label = label
            else:
                if tensor.array is not tensor.storage.array:  # a view of more than is needed
                    tensor.data = tensor.detach().clone()
                self.residents.offload(tensor, label)
            if isinstance(tensor, Parameter):  # also one that is frozen now
                tensor.__dict__.setdefault("_post_accumulate_hooks", HookDict()).add(self._accumulated)
        residents = self.residents
        for module in model.modules():
            begins_step = module is model
            module.register_forward_pre_hook(lambda module, args, first=begins_step: residents.enter(id(module), first))
            module.register_forward_hook(lambda module, args, result: residents.leave(id(module)), always_call=True)

    def take_optimizer(self, optimizer: Optimizer) -> None:
        """Offload the state, and watch updates."""
        self._optimizer = weakref.ref(optimizer)
        optimizer.around_step = self._around_step  # type: ignore[method-assign]
        optimizer.around_update = self._around_update  # type: ignore[method-assign]
        optimizer.gradient = self._gradient  # type: ignore[method-assign]
        for param in _parameters(optimizer):
            self._put_state_away(optimizer, param)
            if self._step_in_backward and (self._max_grad_norm is not None or id(param) in self._names):
                param._updated_in_backward = True

    def _accumulated(self, param: Tensor) -> None:
        """Use, or put away, a gradient that backward has added to a parameter's."""
        optimizer = self._optimizer() if self._step_in_backward else None
        group = None if optimizer is None else self._group_of(optimizer, param)
        if optimizer is None or group is None:
            self._put_gradient_away(param)
            return
        run = outermost_run()
        finished = {} if run is None else self._finished.setdefault(run, {})
        if self._max_grad_norm is None:
            if id(param) in finished:
                raise GraphError(
                    f"disk_offload: {self._names[id(param)]} got another gradient after backward had updated it: a "
                    "backward runs inside this one, as in a reentrant checkpoint; use checkpoint(use_reentrant=False), "
                    "or give max_grad_norm=math.inf, which puts updates off to the end of backward"
                )
            optimizer.step_parameter(param, group)
            param.grad = None
            self.residents.settle()
        else:
            self._put_gradient_away(param)
            if run is None:
                self._update_all()
            elif not finished:
                run.at_end.append(self._update_all)
        finished[id(param)] = param

    def _update_all(self) -> None:
        """Update, and free the gradients of, all parameters that have one."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        with no_grad(), self._around_step():
            for group in optimizer.param_groups:
                for param in group["params"]:
                    optimizer.step_parameter(param, group)
                    param.grad = None

    def _group_of(self, optimizer: Optimizer, param: Tensor) -> Group | None:
        if id(param) not in self._groups:
            groups = enumerate(optimizer.param_groups)
            self._groups = {id(member): number for number, group in groups for member in group["params"]}
        number = self._groups.get(id(param))
        return None if number is None else optimizer.param_groups[number]

    def _put_gradient_away(self, param: Tensor) -> None:
        grad = param.grad
        if grad is not None:
            if grad.array is not grad.storage.array:
                param.grad = grad = grad.detach().clone()
            norm = None if self._max_grad_norm is None else clip_grad.norm(grad)
            self.residents.offload(grad, Label("gradient", None, self._names[id(param)]))
            if isinstance(grad, OffloadedTensor):
                grad._storage.norm = norm
        self.residents.settle()

    @contextlib.contextmanager
    def _around_step(self) -> Iterator[None]:
        optimizer = self._optimizer()
        if optimizer is not None and self._max_grad_norm is not None:
            norms = [_norm(param.grad) for param in _parameters(optimizer) if param.grad is not None]
            if norms:
                self.grad_norm = clip_grad.total_norm(norms)
                self._factor = clip_grad.factor(self.grad_norm, self._max_grad_norm)
        try:
            yield
        finally:
            self._factor = None

    def _gradient(self, param: Tensor) -> Tensor | None:
        grad = param.grad
        if grad is None or self._factor is None:
            return grad
        scaled: Tensor = grad.detach().clone()  # which costs no write
        clip_grad.scale([scaled], self._factor)
        return scaled

    @contextlib.contextmanager
    def _around_update(self, param: Tensor) -> Iterator[None]:
        optimizer = self._optimizer()
        self.residents.enter(id(param))
        try:
            with self._room_for_state(optimizer, param):
                yield
        finally:
            self.residents.leave(id(param))
        if optimizer is not None:
            self._put_state_away(optimizer, param)

    def _room_for_state(self, optimizer: Optimizer | None, param: Tensor) -> AbstractContextManager[None]:
        """Return the context of a parameter's update: a first one makes state that the store does not have yet."""
        group = None if optimizer is None or optimizer.state.get(param) else self._group_of(optimizer, param)
        if optimizer is None or group is None or param.grad is None:
            return contextlib.nullcontext()
        return self.residents.store.room(state_bytes_of(optimizer, param, group))

    def _put_state_away(self, optimizer: Optimizer, param: Tensor) -> None:
        for key, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor):
                self.residents.offload(value, Label("state", key, self._names.get(id(param))))
        self.residents.settle()


def _norm(grad: Tensor) -> float:
    known = grad._storage.norm if isinstance(grad, OffloadedTensor) else None
    return clip_grad.norm(grad) if known is None else known


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (param for group in optimizer.param_groups for param in group["params"])


class disk_offload:
    """Keep a model's parameters and buffers, their gradients and the optimizer's state on disk, but for `ram_budget`.

    From here on they are read when something looks at them, ahead of time once a step has shown in which order, and
    written back after they changed; the model, the optimizer and the training loop stay as they are. Values are bit for
    bit those of training in RAM. `model` and `optimizer` are the attributes of the same names.

    Where the model itself is too large for RAM, give functions: `model` without arguments, whose parameters and buffers
    go to disk one by one as modules register them, in this thread; `optimizer` from the list of parameters that require
    gradients.

        offload = sg.disk_offload(
            lambda: sg.models.build("gpt2-xl"), lambda params: sg.optim.AdamW(params), "spill/", ram_budget="2GiB"
        )

    With `step_in_backward` the optimizer updates each parameter as soon as backward has its gradient, and frees that:
    `optimizer.step()` then finds nothing to do, and several backward passes are several steps. Otherwise gradients go
    to disk too.

    `max_grad_norm` clips gradients as `clip_grad_norm_` over all that the optimizer updates does, just before their
    update: in `optimizer.step()`, which leaves them on disk as they were; with `step_in_backward` in a second phase,
    when backward ends: gradients then go to disk first. `grad_norm` is the norm they had in the last step. Norms are
    taken when gradients are finished, so that each is read once.

    `with sg.save_on_disk(offload)` puts what operations save for backward into the same store, under the same budget.

    What `numpy()` returns of such a tensor may be written to; if it was, it is stored again once nobody holds it.

    Units: `ram_budget` is bytes, or a size such as "512MiB"; `least_budget`, the least that holds all that one layer or
    one update needs at once, is bytes.
    Raises BudgetError for a size that does not parse or is less than the least, ArgumentError for a parameter that
    shares memory with another tensor, or is offloaded already, SpillError for a directory that cannot be used, or,
    unless `on_full` is "ram", where all that comes to be stored has no room.
    """

    def __init__(
        self,
        model: Module | Callable[[], Module],
        optimizer: Optimizer | Callable[[list[Parameter]], Optimizer] | None = None,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str,
        step_in_backward: bool = False,
        max_grad_norm: float | None = None,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
    ) -> None:
        if optimizer is None and (step_in_backward or max_grad_norm is not None):
            given = "step_in_backward=True" if step_in_backward else f"max_grad_norm={max_grad_norm}"
            raise ArgumentError(f"disk_offload: got {given} without an optimizer; give one")
        if max_grad_norm is not None and not max_grad_norm >= 0:
            raise ArgumentError(f"disk_offload: got max_grad_norm {max_grad_norm}; it must not be negative")
        budget_bytes = parse_bytes(ram_budget)

        def residents() -> Residents:
            store = DiskStore(
                directory, ram_budget=budget_bytes, direct_io=direct_io, checksums=checksums, on_full=on_full
            )
            return Residents(store)

        found = None if isinstance(model, Module) else residents()
        with contextlib.ExitStack() as undo:
            if found is not None:
                undo.callback(found.store.close)  # nobody else has what was built there
            self.model = _model(model, found)
            self.optimizer = _optimizer(optimizer, self.model)
            need = largest_need(self.model, self.optimizer)
            self.least_budget = need.nbytes
            if budget_bytes < need.nbytes:
                raise BudgetError(
                    f"disk_offload: got a ram_budget of {budget_bytes} bytes, but {need.why}; give at least "
                    f"{need.nbytes} bytes ({format_bytes(need.nbytes)})"
                )
            self._residents = found or residents()
            self._store = self._residents.store
            if on_full != "ram":
                self._require_disk(gradients=not step_in_backward or max_grad_norm is not None)
            self._training = _Training(self._residents, step_in_backward, max_grad_norm)
            self._training.take_model(self.model)
            if self.optimizer is not None:
                self._training.take_optimizer(self.optimizer)
            undo.pop_all()
        memory.pool.keep_to_peak()

    def _require_disk(self, gradients: bool) -> None:
        need = disk_need(self.model, self.optimizer, gradients)
        left_bytes = sum(need) - self._store.stats().disk_bytes
        place = self._store.directory.parent
        free = free_bytes(place)
        if sum(need) > self._store.ram_budget and left_bytes > free:
            raise SpillError(
                f"disk_offload: {format_bytes(sum(need))} will be stored ({need}), {format_bytes(left_bytes)} of it "
                f"yet to be written, but {place} has {format_bytes(free)} free; free space there, give "
                "another directory, or keep in RAM what the disk refuses with on_full='ram'"
            )

    @property
    def grad_norm(self) -> float | None:
        """The norm that gradients had in the last step, before they were clipped; None before the first."""
        return self._training.grad_norm

    @property
    def directory(self) -> Path:
        """Where this object's files are."""
        return self._store.directory

    def flush(self) -> None:
        """Return when all that nobody is changing is in the files. Raises SpillError when it could not be written."""
        self._residents.thread.last_changed = None
        self._residents.settle()
        self._store.flush()

    def stats(self) -> StoreStats:
        """Return the store's counters."""
        return self._store.stats()


def _model(given: Any, residents: Residents | None) -> Module:
    """Return a module, or what a function builds, which goes to the store meanwhile."""
    model = given
    if residents is not None:
        if not callable(given):
            raise ArgumentError(
                f"disk_offload: got {type(given).__name__}; wanted a Module, or a function that returns one"
            )
        with _offloading_what_is_registered(residents):
            model = given()
        if not isinstance(model, Module):
            raise ArgumentError(f"disk_offload: the function returned {type(model).__name__}; it must return a Module")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        storage = tensor.storage
        if isinstance(storage, OffloadedStorage) and storage._residents is not residents:
            raise ArgumentError(f"disk_offload: {name} is offloaded already; offload a model once")
    return model  # type: ignore[no-any-return]


def _optimizer(given: Any, model: Module) -> Optimizer | None:
    """Return an optimizer, or what a function makes of the parameters that require gradients."""
    optimizer = given
    if given is not None and not isinstance(given, Optimizer):
        if not callable(given):
            raise ArgumentError(
                f"disk_offload: got {type(given).__name__}; wanted an Optimizer, or a function from parameters to one"
            )
        optimizer = given([parameter for parameter in model.parameters() if parameter.requires_grad])
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                f"disk_offload: the function returned {type(optimizer).__name__}; it must return an Optimizer"
            )
    return optimizer  # type: ignore[no-any-return]
