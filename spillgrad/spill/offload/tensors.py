"""Offloaded tensors: their memory is in a store, and in RAM or on a device while it is used."""

import itertools
import math
import operator
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.node import NO_EDGE, Edge
from spillgrad.data_type import BY_NUMPY
from spillgrad.device.device import CPU, Device, device_of
from spillgrad.dtypes import DType
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.spill.offload.residents import Resident, Residents, is_held
from spillgrad.spill.offload.rows import ROWS_BYTES, looked_up
from spillgrad.spill.saved_memory import Layout
from spillgrad.spill.tensor_memory import layout_of, over
from spillgrad.storage.disk.file_part import FilePart
from spillgrad.storage.disk.source_file import can_read
from spillgrad.storage.disk.spans import copy_spans
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Size, Storage

if TYPE_CHECKING:
    from spillgrad.spill.device_store import DeviceStore

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class TensorResidents(Residents):
    """Decides which offloaded tensors are in RAM, and which of a CUDA device's are on the device."""

    def __init__(self, store: DiskStore) -> None:
        super().__init__(store)
        self._device_budget_bytes = 0
        self._device_store: DeviceStore | None = None  # made when a tensor of a device is offloaded

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
        """Give the stores the new values of changed arrays, and copy what is only on the device to the host store.

        Raises SpillError if a copy fails.
        """
        super().flush()
        if self._device_store is not None:
            self._device_store.flush()

    def begin(self, begins_step: bool) -> None:
        """Begin a step in the device's store, too; watch operations, so that a saved offloaded tensor is read again."""
        super().begin(begins_step)
        if begins_step and self._device_store is not None:
            self._device_store.begin_step()
        hooks.watch(1)

    def end(self) -> None:
        hooks.watch(-1)

    def cut(self, tensor: Tensor, label: Label) -> None:
        """Keep only this process's part of a tensor: a no-op where processes share no parameters."""

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

    def offload_unset(self, tensor: Tensor, label: Label) -> None:
        """Do what `offload` does; of a parameter on the host, whose values are loaded later, store none before."""
        storage = tensor._storage
        if type(tensor) is Parameter and type(storage) is Storage and device_of(storage.array) is CPU:
            array = tensor._array
            if array is storage.array:
                handle = self.store.put_unset(array.shape, array.dtype, label)
                storage.__class__ = OffloadedStorage
                cast(OffloadedStorage, storage).place(self, self.store, handle, array)
            del array
        self.offload(tensor, label)

    def split(self, tensor: Tensor, label: Label) -> None:
        """Store a parameter that was offloaded whole in two planes: a no-op where all are stored whole."""

    def offload_in_pieces(self, tensor: Tensor, count: int, label: Label) -> None:
        """Move the memory of a leaf tensor to the store, where that can be in pieces of `count` elements, if not 0."""
        self.offload(tensor, label)

    def _offload(self, storage: Storage, array: np.ndarray, label: Label) -> None:
        store = self.store_of(device_of(array))
        array = store.own(array)
        handle = store.put(array, label=label, persistent=True)  # first, because it may fail
        # The objects must stay, as users hold the tensor, and views share the storage. The classes must change, as only
        # a class can make `array` and `_array` properties, which load the memory. Of tensors in RAM they are plain
        # attributes, which operations read without the cost of a call.
        storage.__class__ = OffloadedStorage
        cast(OffloadedStorage, storage).place(self, store, handle, array)


class OffloadedStorage(Resident, Storage):  # type: ignore[override]  # `array` is a property
    """The memory of an offloaded tensor and its views."""

    offloaded = True
    _residents: TensorResidents
    # The norm of a gradient; None if it is not known.
    norm: float | None = None
    # The sums of squares of a gradient's part; None if they are not known.
    squares: np.ndarray | None = None
    # How many elements of a parameter are updated at once; 0 for all.
    updated_elements = 0
    # Whether lookups read rows of this table alone.
    is_table = False
    # The bfloat16 roundings of a parameter, if they are stored apart: an offloaded tensor.
    rounded: Tensor | None = None

    def rounded_to(self, dtype: DType) -> Tensor | None:
        """Return `rounded` if it has the wanted dtype, and no change is on its way to it; else None."""
        rounded = self.rounded
        if rounded is None or rounded.numpy_dtype != dtype:
            return None
        of_rounded = cast(OffloadedStorage, rounded._storage)
        if self._changing or of_rounded._changing:
            self._residents.return_changed(with_last=True)
        return None if self._changing or of_rounded._changing else rounded

    def hold_planes(self) -> None:
        """Keep what the array is made from, and will be stored in, for the running module or update."""

    def copy_to(self, target: np.ndarray) -> None:
        """Fill another array with the values."""
        np.copyto(target, self.array)

    @property
    def reads_rows(self) -> bool:
        """Whether a lookup of rows reads these alone."""
        store = self._store
        return isinstance(store, DiskStore) and not store.keeps_all

    def read_spans(self, spans: np.ndarray, into: np.ndarray) -> None:
        """Fill an array with spans of the elements, as `DiskStore.read_spans` does."""
        with self._residents.lock:
            array = self._alive()
        if array is None:
            self._store.read_spans(self._handle, spans, into)
        else:
            copy_spans(array.reshape(-1), spans, into)

    def rows_at(self, indices: np.ndarray) -> np.ndarray | None:
        """Return the rows of a table at indices; None if it is to be read whole, or is in RAM while it is used."""
        if not self.is_table or not self.reads_rows:
            return None
        with self._residents.lock:
            is_used = self._alive() is not None
        if is_used:
            return None
        self._residents.make_room(max(ROWS_BYTES, self._shape[1] * self._dtype.itemsize), self._store)
        empty = self._residents.store.counted_empty
        return looked_up(self._shape, self._dtype, indices, empty, self.read_spans)

    def view_of(self, tensor: Tensor) -> "OffloadedView":
        """Return the object that a graph keeps for a saved tensor over this storage."""
        return OffloadedView(tensor)

    def put_away(self, gradient: Tensor) -> None:
        """Move the memory of `gradient`, of the leaf over this storage, to the store."""
        label = Label("gradient", None, self.label.module)
        self._residents.offload_in_pieces(gradient, self.updated_elements, label)
        self._residents.return_changed()

    def place(self, residents: Residents, store: Any, handle: Handle, array: np.ndarray) -> None:
        """Initialize a plain storage whose class was changed to this one; `handle` names its memory in `store`."""
        self.device = device_of(array)
        del vars(self)["array"]
        super().place(residents, store, handle, array)

    def read_in_place(self, part: FilePart) -> bool:
        """Take the values of a file, and read them there; False if that is impossible, or anything uses the array."""
        store, residents = self._store, self._residents
        if not isinstance(store, DiskStore) or not can_read(part, tuple(self._shape), self._dtype):
            return False
        residents.return_changed(with_last=True)
        with residents.lock:
            if self._changing or is_held(self._alive):
                return False
            store.read_from(self._handle, part)
        self.norm = self.squares = None
        Storage.begin_change(self)
        return True

    @property
    def is_read_in_place(self) -> bool:
        """Whether the values are in a file that is not of the store."""
        return isinstance(self._store, DiskStore) and self._store.is_read_in_place(self._handle)

    def begin_change(self) -> None:
        self.norm = self.squares = None
        super().begin_change()
        Storage.begin_change(self)

    def lend(self) -> None:
        self.norm = self.squares = None
        super().lend()
        Storage.lend(self)

    def mark(self) -> Any:
        """Return a digest of the array; None on a device: reading it would take longer than storing it again."""
        return super().mark() if self.device is CPU else None


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

    def numel(self) -> int:
        return math.prod(self.shape)

    nelement = numel

    def stride(self, dim: int | None = None) -> Any:
        behind = itertools.accumulate(reversed(self.shape[1:]), lambda count, size: count * max(1, size), initial=1)
        strides = tuple(behind)[::-1][: self.ndim]
        return strides if dim is None else strides[dim]

    def storage_offset(self) -> int:
        return 0

    def is_contiguous(self, memory_format: Any = None) -> bool:
        return memory_format is None or super().is_contiguous(memory_format)

    @property
    def _array(self) -> np.ndarray:
        return self._storage.array

    @_array.setter
    def _array(self, array: np.ndarray) -> None:
        self.__class__ = _PLAIN[type(self)]  # type: ignore[assignment]  # the new memory is not in a store
        self._array = array

    def array_to_overwrite(self) -> np.ndarray:
        return self._storage.array_to_overwrite()

    def _rounded_to(self, dtype: DType) -> Tensor | None:
        rounded = self._storage.rounded_to(dtype)
        return rounded if rounded is not None and rounded.shape == self.shape else None

    def _rows_at(self, indices: np.ndarray) -> np.ndarray | None:
        return self._storage.rows_at(indices) if self.shape == self._storage._shape else None

    def _read_in_place(self, part: FilePart) -> bool:
        return type(self) in _PLAIN and self._storage.read_in_place(part)

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
        residents, label, in_parts = self._storage._residents, self._storage.label, self._storage.in_parts
        cast(property, Tensor.data).__set__(self, value)  # now `self` is a plain tensor
        residents.offload(self, label)
        if in_parts is not None:
            residents.cut(self, label)

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


class OffloadedPart(Offloaded):
    """Some elements of an offloaded tensor, in one dimension. It holds no memory while it is not used."""

    _part: slice
    _known: Callable[[], np.ndarray | None]
    shape = property(lambda self: Size((self._part.stop - self._part.start,)))
    nbytes = property(lambda self: self.numel() * self.itemsize)

    @staticmethod
    def of(whole: Tensor, part: slice) -> "OffloadedPart":
        """Return the elements of a contiguous offloaded tensor that `part` says."""
        tensor: OffloadedPart = object.__new__(OffloadedPart)
        tensor._storage = cast(OffloadedStorage, whole._storage)
        tensor._part, tensor._known = slice(part.start, min(part.stop, whole.numel())), lambda: None
        return tensor

    @property  # type: ignore[misc]  # what is updated is not given other memory
    def _array(self) -> np.ndarray:  # type: ignore[override]
        array = self._known()
        if array is None:
            array = self._storage.array.reshape(-1)[self._part]
            self._known = weakref.ref(array)
        return array

    def storage_offset(self) -> int:
        return int(self._part.start)


KINDS: dict[type[Tensor], type[Tensor]] = {
    Tensor: OffloadedTensor,
    Parameter: OffloadedParameter,
    Buffer: OffloadedBuffer,
}


def become(
    tensor: Tensor, kind: type[OffloadedStorage], residents: TensorResidents, store: Any, handle: Handle
) -> None:  # fmt: skip
    """Make a tensor's storage, in RAM or offloaded, one of another kind, whose array `handle` names in `store`."""
    storage, array = tensor._storage, tensor._array
    is_offloaded = isinstance(storage, OffloadedStorage)
    storage.__class__ = kind
    if is_offloaded:
        Resident.place(cast(OffloadedStorage, storage), residents, store, handle, array)
        return
    cast(OffloadedStorage, storage).place(residents, store, handle, array)
    vars(tensor).pop("_array")
    tensor.__class__ = KINDS[type(tensor)]


_PLAIN: dict[type[Tensor], type[Tensor]] = {offloaded: plain for plain, offloaded in KINDS.items()}
