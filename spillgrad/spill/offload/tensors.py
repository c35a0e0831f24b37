"""Tensors whose memory is in a store, and in RAM while somebody uses it."""

import collections
import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import xxhash

from spillgrad.autograd.core.node import NO_EDGE, Edge
from spillgrad.device.device import CPU, Device, device_of
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.spill.offload.frames import Frame, ThreadFrames
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


class Keeper(Protocol):
    """The methods of `Residents` that an offloaded storage calls."""

    lock: contextlib.AbstractContextManager[Any]
    thread: ThreadFrames
    changing: "collections.deque[weakref.ref[OffloadedStorage]]"

    @property
    def frame(self) -> Frame: ...

    def make_room(self, nbytes: int, device: Device) -> None: ...

    def settle(self) -> None: ...

    def offload(self, tensor: Tensor, label: Label) -> None: ...


class OffloadedStorage(Storage):
    """Memory in a store. It is in RAM, or on the device, while somebody holds `array`, which reads it if needed.

    After an in-place change the array stays there until nobody uses it any more. The store gets its new values then.
    """

    offloaded = True
    __del__ = finalizer
    # The norm of a gradient, while it is known.
    norm: float | None = None

    def view_of(self, tensor: Tensor) -> "OffloadedView":
        """Return the object that a graph keeps for a tensor over this storage."""
        return OffloadedView(tensor)

    def put_away(self, gradient: Tensor) -> None:
        """Move a gradient of the leaf over this storage to the store."""
        self._residents.offload(gradient, Label("gradient", None, self._handle.label.module))
        self._residents.settle()

    def hold(self, made: Tensor) -> None:
        """Keep a tensor that was made from the memory for as long as the running module keeps the memory."""
        frame = self._residents.frame
        if frame.number is not None:
            frame.hold(made)

    def place(self, residents: Keeper, store: "DiskStore | DeviceStore", handle: Handle, array: np.ndarray) -> None:
        """Complete a plain storage that got this class: `array`, its memory, is in `store` under `handle`."""
        self.device = device_of(array)
        del vars(self)["array"]
        self._residents, self._store, self._handle = residents, store, handle
        self._drop = later(store.drops.append, handle)
        self._shape, self._dtype = array.shape, array.dtype
        self._alive: weakref.ref[np.ndarray] = weakref.ref(array)
        self._changing = False
        self._lent: bytes | None = None  # the digest of its values, when others may change it without saying so
        self._used_in: int | None = -1

    @property
    def array(self) -> np.ndarray:  # type: ignore[override]
        """The dense memory: the same array for as long as anybody holds it."""
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
        """Return the memory if somebody holds it, else new memory, which becomes the storage's when a change begins."""
        with self._residents.lock:
            array = self._alive()
            if array is None:
                self._residents.settle()
                array = self._store.empty(self._shape, self._dtype)
                self._alive = weakref.ref(array)
        return array

    def begin_change(self) -> None:
        self._begin_change()
        self._lent = None
        super().begin_change()

    def lend(self) -> None:
        """Prepare for a caller that gets the memory, and may change it for as long as the caller holds the array."""
        with self._residents.lock:
            was_changing = self._changing
            self._begin_change()
            if not was_changing:
                self._lent = self._digest()
        super().lend()

    def _begin_change(self) -> None:
        residents = self._residents
        with residents.lock:
            if not self._changing:  # arrays that were changed before make room
                residents.thread.last_changed = None
                residents.settle()
            array = residents.thread.last_changed = self.array
            self.norm = None
            if not self._changing:
                self._store.begin_change(self._handle, array)
                self._changing = True
                residents.changing.append(weakref.ref(self))

    def end_change(self) -> bool:
        """Give the new values to the store, and return True; return False if the array is still used.

        Called with the lock held.
        """
        if is_held(self._alive):
            return False
        is_changed = self._lent is None or self._lent != self._digest()
        # First: the store may take the values and then raise. It must be told when the next change begins.
        self._changing, self._lent = False, None
        self._store.end_change(self._handle, is_changed)
        return True

    def _digest(self) -> bytes | None:
        """Return a digest by which a change of the array is found later; None if the array is to count as changed.

        Memory of a device always counts as changed: reading it would take longer than storing it again.
        """
        array = cast(np.ndarray, self._alive())
        if self.device is not CPU:
            return None
        return xxhash.xxh3_128_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def is_held(alive: Callable[[], np.ndarray | None]) -> bool:
    """Return whether anybody but its store refers to an array."""
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
        """Return the tensor, over the storage's array."""
        return over(self._storage.array, self._layout, self._storage)


class Offloaded(Tensor):
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
        """Return another tensor over the same storage, without graph or at `edge` in it; nothing is read."""
        tensor: Tensor = object.__new__(OffloadedTensor)
        self._storage.aliased = True
        tensor._storage = self._storage
        tensor.connect(edge)
        return tensor

    @property
    def data(self) -> Tensor:
        """The values without graph. Memory assigned to `data` goes to the store too."""
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
    def device(self) -> Device:
        return self._storage.device

    @property
    def nbytes(self) -> int:
        return self._storage._handle.nbytes

    @property
    def itemsize(self) -> int:
        return self._storage._dtype.itemsize

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
