"""Offloaded tensors: their memory is in a store, and in RAM while it is used. `Residents` decides how long."""

import collections
import itertools
import operator
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xxhash

from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.node import NO_EDGE, Edge
from spillgrad.data_type import BY_NUMPY
from spillgrad.device.device import CPU, Device, device_of
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.spill.saved_memory import Layout
from spillgrad.spill.tensor_memory import layout_of, over
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.memory.holder import finalizer, later

if TYPE_CHECKING:
    from spillgrad.spill.device_store import DeviceStore

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class Frame:
    """Keeps the arrays that a running module or update has used, and may use again.

    In the frame outside of all modules and updates, `number` is None; that frame keeps no arrays.
    """

    def __init__(self, number: int | None, owner: int | None = None) -> None:
        self.number = number
        self.owner = owner
        self.arrays: dict[Device, collections.deque[np.ndarray | Tensor]] = collections.defaultdict(collections.deque)

    def hold(self, used: np.ndarray | Tensor) -> None:
        """Keep an array, or a tensor that was made from an array."""
        self.arrays[used.device if isinstance(used, Tensor) else device_of(used)].append(used)


class ThreadFrames(threading.local):
    """The stack of frames that this thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.frames = [Frame(None)]
        # The array that a caller is about to change; the caller may not have a reference to it yet.
        self.last_changed: np.ndarray | None = None


class Residents:
    """Decides which offloaded tensors are in RAM."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self._device_budget_bytes = 0
        self._device_store: DeviceStore | None = None  # made when a tensor of a device is offloaded
        # Guards the list of changing arrays.
        self.lock = ForkSafeLock()
        # Weak references, because storages hold this object.
        self.changing: collections.deque[weakref.ref[OffloadedStorage]] = collections.deque()
        self.thread = ThreadFrames()
        self._numbers = itertools.count()

    def store_of(self, device: Device) -> "DiskStore | DeviceStore":
        """Return the store for tensors on `device`; the store for a CUDA device is made at the first call."""
        if device is CPU:
            return self.store
        if self._device_store is None:
            from spillgrad.spill.device_store import DeviceStore  # it needs a driver

            with self.lock:
                if self._device_store is None:
                    self._device_store = DeviceStore(self.store, self._device_budget_bytes)
        return self._device_store

    def allow_on_device(self, nbytes: int) -> None:
        """Allow `nbytes` of arrays to stay on a device; the initial allowance is 0."""
        with self.lock:
            self._device_budget_bytes = nbytes
            if self._device_store is not None:
                self._device_store.allow(nbytes)

    def device_stats(self) -> dict[str, int]:
        """Return the bytes of offloaded tensors on a device: now, and the most so far."""
        return {} if self._device_store is None else self._device_store.stats()

    def flush(self) -> None:
        """Copy the arrays that are only on the device to the host store. Raises SpillError if a copy fails."""
        if self._device_store is not None:
            self._device_store.flush()

    @property
    def frame(self) -> Frame:
        """The innermost frame of this thread, which keeps the arrays that are used now."""
        return self.thread.frames[-1]

    def enter(self, owner: int, begins_step: bool = False) -> None:
        """Enter a new frame of `owner`, the id of a module or parameter; the frame keeps the arrays used until `leave`.

        If an operation saves an offloaded tensor, backward reads it again. With `begins_step`, a training step begins,
        unless this thread is in a frame already.
        """
        if len(self.thread.frames) == 1:
            if begins_step:
                self.store.begin_step()
                if self._device_store is not None:
                    self._device_store.begin_step()
            hooks.watch(1)
        self.thread.frames.append(Frame(next(self._numbers), owner))

    def leave(self, owner: int) -> None:
        """Leave the innermost frame, and release its arrays. Do nothing if that frame is not of `owner`."""
        frames = self.thread.frames
        if frames[-1].owner != owner:
            return
        frames.pop()
        if len(frames) == 1:
            hooks.watch(-1)
        self.return_changed(with_last=True)

    def make_room(self, nbytes: int, device: Device) -> None:
        """Release arrays that this thread's frames keep on a device, first used first, until `nbytes` more fit."""
        used = [frame.arrays[device] for frame in self.thread.frames]
        excess = nbytes - self.store_of(device).budget_bytes + sum(array.nbytes for arrays in used for array in arrays)
        for arrays in used:
            while excess > 0 and arrays:
                excess -= arrays.popleft().nbytes

    def return_changed(self, with_last: bool = False) -> None:
        """Give the store the new values of all changed arrays that nothing else refers to.

        `with_last` says that this thread is done with the change that it began last.
        """
        if with_last:
            self.thread.last_changed = None
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
        """Move the memory of a leaf tensor to the store; the tensor's class becomes the matching one of `KINDS`.

        Do nothing if the tensor is a view of its storage's memory, or of a class that is not in `KINDS`.
        """
        kind, storage = KINDS.get(type(tensor)), tensor._storage
        if kind is None or tensor._array is not storage.array:
            return
        if not isinstance(storage, OffloadedStorage):
            self._offload(storage, tensor._array, label)
        vars(tensor).pop("_array")
        tensor.__class__ = kind

    def _offload(self, storage: Storage, array: np.ndarray, label: Label) -> None:
        store = self.store_of(device_of(array))
        array = store.own(array)
        handle = store.put(array, label=label, persistent=True)  # first, because it may fail
        # The objects must stay, as users hold the tensor, and views share the storage. The classes must change, as only
        # a class can make `array` and `_array` properties, which load the memory. Of tensors in RAM they are plain
        # attributes, which operations read without the cost of a call.
        storage.__class__ = OffloadedStorage
        cast(OffloadedStorage, storage).place(self, store, handle, array)


class OffloadedStorage(Storage):
    """Memory in a store. `array` loads it to RAM or a device, where it stays while anything refers to that array.

    After an in-place change the array stays there until nothing else refers to it. Then the store gets its new values.
    """

    offloaded = True
    __del__ = finalizer
    # The norm of a gradient; None if it is not known.
    norm: float | None = None

    def view_of(self, tensor: Tensor) -> "OffloadedView":
        """Return the object that a graph keeps for a saved tensor over this storage."""
        return OffloadedView(tensor)

    def put_away(self, gradient: Tensor) -> None:
        """Move the memory of `gradient`, of the leaf over this storage, to the store."""
        self._residents.offload(gradient, Label("gradient", None, self._handle.label.module))
        self._residents.return_changed()

    def hold(self, made: Tensor) -> None:
        """Let the frame of the running module or update keep `made`, a tensor made from the memory."""
        frame = self._residents.frame
        if frame.number is not None:
            frame.hold(made)

    def place(self, residents: Residents, store: "DiskStore | DeviceStore", handle: Handle, array: np.ndarray) -> None:
        """Initialize a plain storage whose class was changed to this one; `handle` names its memory in `store`."""
        self.device = device_of(array)
        del vars(self)["array"]
        self._residents, self._store, self._handle = residents, store, handle
        self._drop = later(store.drops.append, handle)
        self._shape, self._dtype = array.shape, array.dtype
        self._alive: weakref.ref[np.ndarray] = weakref.ref(array)
        self._changing = False
        self._lent: bytes | None = None  # a digest of the array, while a caller may change it unnoticed
        self._used_in: int | None = -1

    @property
    def array(self) -> np.ndarray:  # type: ignore[override]
        """The dense memory, read if needed; the same array as long as anything refers to it."""
        array = self._alive()
        frame = self._residents.frame
        if array is not None and frame.number is not None and self._used_in == frame.number:
            return array
        if frame.number is not None:
            self._residents.make_room(self._handle.nbytes, self.device)
        with self._residents.lock:
            array = self._alive()
            if array is None:
                array = self._store.get(self._handle)
                self._alive = weakref.ref(array)
            elif not self._changing:
                self._store.use(self._handle)
        if frame.number is not None:
            self._used_in = frame.number
            frame.hold(array)
        return array

    def array_to_overwrite(self) -> np.ndarray:
        """Return the array if it is in memory, else a new one without the old values, for the caller to overwrite.

        A new array becomes the storage's memory when a change begins.
        """
        with self._residents.lock:
            array = self._alive()
            if array is None:
                self._residents.return_changed()
                array = self._store.empty(self._shape, self._dtype)
                self._alive = weakref.ref(array)
        return array

    def begin_change(self) -> None:
        self._begin_change()
        self._lent = None
        super().begin_change()

    def lend(self) -> None:
        """Prepare to hand out the array to a caller, who may change it as long as the caller refers to it."""
        with self._residents.lock:
            was_changing = self._changing
            self._begin_change()
            if not was_changing:
                self._lent = self._digest()
        super().lend()

    def _begin_change(self) -> None:
        residents = self._residents
        with residents.lock:
            if not self._changing:  # to make room, return the arrays that were changed before
                residents.return_changed(with_last=True)
            array = residents.thread.last_changed = self.array
            self.norm = None
            if not self._changing:
                self._store.begin_change(self._handle, array)
                self._changing = True
                residents.changing.append(weakref.ref(self))

    def end_change(self) -> bool:
        """Give the new values to the store, and return True; if anything still refers to the array, return False.

        Called with the lock of `Residents` held.
        """
        if is_held(self._alive):
            return False
        is_changed = self._lent is None or self._lent != self._digest()
        # Before the call, because the store may take the values and then raise: a next change must begin anew.
        self._changing, self._lent = False, None
        self._store.end_change(self._handle, is_changed)
        return True

    def _digest(self) -> bytes | None:
        """Return a digest of the array, to detect a change later; None if the array is to count as changed.

        An array on a device always counts as changed: reading it would take longer than storing it again.
        """
        array = cast(np.ndarray, self._alive())
        if self.device is not CPU:
            return None
        return xxhash.xxh3_128_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def is_held(alive: Callable[[], np.ndarray | None]) -> bool:
    """Return whether anything but the store refers to the array of the weak reference `alive`."""
    return _holders(alive) > _KEPT_ONLY


def _holders(alive: Callable[[], np.ndarray | None]) -> int:
    array = alive()
    return 0 if array is None else sys.getrefcount(array)


def _holders_of_a_kept_array() -> int:
    kept = [np.empty(0)]
    return _holders(weakref.ref(kept[0]))


# The reference count of an array that only its store refers to.
_KEPT_ONLY = _holders_of_a_kept_array()


class OffloadedView:
    """The object that a graph keeps for a saved tensor over an offloaded storage."""

    __slots__ = ("_layout", "_storage")

    def __init__(self, tensor: Tensor) -> None:
        self._layout: Layout = layout_of(tensor)
        self._storage = tensor._storage

    def tensor(self) -> Tensor:
        """Return the saved tensor, over the storage's array, which is read if needed."""
        return over(self._storage.array, self._layout, self._storage)


class Offloaded(Tensor):
    """A tensor over an offloaded storage. Its shape and dtype are known without reading its memory."""

    _storage: OffloadedStorage
    shape = property(operator.attrgetter("_storage._shape"))
    dtype = property(lambda self: BY_NUMPY[self._storage._dtype])
    numpy_dtype = property(operator.attrgetter("_storage._dtype"))
    device = property(operator.attrgetter("_storage.device"))
    nbytes = property(operator.attrgetter("_storage._handle.nbytes"))
    itemsize = property(operator.attrgetter("_storage._dtype.itemsize"))
    ndim = property(lambda self: len(self.shape))

    @property
    def _array(self) -> np.ndarray:
        return self._storage.array

    @_array.setter
    def _array(self, array: np.ndarray) -> None:
        self.__class__ = _PLAIN[type(self)]  # type: ignore[assignment]  # the new memory is not in a store
        self._array = array

    def array_to_overwrite(self) -> np.ndarray:
        return self._storage.array_to_overwrite()

    def alias(self, edge: Edge = NO_EDGE) -> Tensor:
        """Return another tensor over the same storage, at `edge` of a graph, or without graph; read nothing."""
        tensor: Tensor = object.__new__(OffloadedTensor)
        self._storage.aliased = True
        tensor._storage = self._storage
        tensor.connect(edge)
        return tensor

    @property
    def data(self) -> Tensor:
        """The tensor, detached from the graph. Memory that is assigned to `data` goes to the store too."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        residents, label = self._storage._residents, self._storage._handle.label
        cast(property, Tensor.data).__set__(self, value)  # now `self` is a plain tensor
        residents.offload(self, label)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise AttributeError(
            "__cuda_array_interface__: the tensor is in a store, and does not hold its memory for others who hold it; "
            "pass it by DLPack"
        )


class OffloadedTensor(Offloaded):
    """A tensor in a store."""


class OffloadedParameter(Offloaded, Parameter):
    """A parameter in a store."""


class OffloadedBuffer(Offloaded, Buffer):
    """A buffer in a store."""


KINDS: dict[type[Tensor], type[Tensor]] = {
    Tensor: OffloadedTensor,
    Parameter: OffloadedParameter,
    Buffer: OffloadedBuffer,
}

_PLAIN: dict[type[Tensor], type[Tensor]] = {offloaded: plain for plain, offloaded in KINDS.items()}
