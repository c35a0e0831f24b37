"""float32 parameters in two planes: their bfloat16 roundings, which products under `autocast` take, and the other bits.

A plane has half the bytes. Forward and backward under `autocast` read the first one alone. Whatever else reads the
parameter gets the float32 numbers, which count in the RAM budget until their last alias dies. The second plane of a
large parameter is in pieces, so that an update makes float32 numbers of one piece at a time.
"""

from typing import Any, cast

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import CPU
from spillgrad.nn.parameter import Parameter
from spillgrad.spill.offload.pieces import PiecingResidents, elements_of_pieces, piece_elements
from spillgrad.spill.offload.residents import is_held
from spillgrad.spill.offload.store_over import StoreOver
from spillgrad.spill.offload.tensors import KINDS, OffloadedStorage, become
from spillgrad.spill.offload.training import FRAMEWORK, is_in_place
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import planes as kernels
from spillgrad_kernels.memory import buffers

ROUNDED, LOW = "rounded", "low half"
# Smaller parameters, such as biases and weights of normalizations, cost more time in two arrays than they save.
LEAST_ELEMENTS = 4096


def is_split(tensor: Tensor) -> bool:
    """Return whether a tensor, if it is offloaded, is stored in two planes; frozen weights in files stay there."""
    is_parameter = isinstance(tensor, Parameter) and type(tensor) in (*KINDS, *KINDS.values())
    return (
        is_parameter
        and tensor.numpy_dtype == dtypes.float32
        and tensor.numel() >= LEAST_ELEMENTS
        and tensor.device is CPU
        and (tensor.requires_grad or not is_in_place(tensor))
    )


class Split(Handle):
    """The name of a float32 array in two planes: a part of `rounded`, an offloaded tensor, and all of `low`.

    `places` are those of the numbers whose planes alone do not say what they are.
    """

    __slots__ = ("changing", "low", "part", "places", "rounded", "targets")

    def __init__(
        self, array: np.ndarray, sequence: int, label: Label, rounded: Tensor, part: slice, low: Tensor,
        places: np.ndarray,
    ) -> None:  # fmt: skip
        super().__init__(array, sequence, label)
        self.rounded, self.part, self.low, self.places = rounded, part, low, places
        self.changing: np.ndarray | None = None  # the float32 array, while it is changed
        self.targets: tuple[np.ndarray, np.ndarray] | None = None  # the planes in RAM, once they will be overwritten

    @property
    def planes(self) -> tuple[OffloadedStorage, OffloadedStorage]:
        """The memory of `rounded` and of `low`."""
        return cast(OffloadedStorage, self.rounded._storage), cast(OffloadedStorage, self.low._storage)


class Planes(StoreOver):
    """The store of float32 arrays that are in two planes."""

    _made = 0

    def new_handle(
        self, array: np.ndarray, label: Label, rounded: Tensor, part: slice, low: Tensor, places: np.ndarray
    ) -> Split:
        """Return the name of a float32 array, of which only the shape matters."""
        self._made += 1
        return Split(array, self._made, label, rounded, part, low, places)

    def get(self, handle: Split) -> np.ndarray:
        """Return the float32 array."""
        array = self.empty(handle.shape, handle.dtype)
        self.join(handle, array)
        return array

    def join(self, handle: Split, array: np.ndarray) -> None:
        """Fill an array with the float32 numbers."""
        # Not by the planes' own residents: these would keep them for the running module, which uses what they make.
        rounded, low = (plane._store.get(plane._handle) for plane in handle.planes)
        kernels.join(rounded.reshape(-1)[handle.part], low, handle.places, array.reshape(-1))

    def read_spans(self, handle: Split, spans: np.ndarray, into: np.ndarray) -> None:
        """Fill an array with spans of the float32 numbers."""
        rounded, low = (self.empty(into.shape, dtype) for dtype in (dtypes.bfloat16, dtypes.uint16))
        first, second = handle.planes
        first.read_spans(spans + handle.part.start, rounded)
        second.read_spans(spans, low)
        kernels.join(rounded, low, _among(handle.places, spans), into)

    def relabel(self, handle: Split, label: Label) -> None:
        """Replace the label of an array."""
        handle.label = label
        for plane, name in zip(handle.planes, (ROUNDED, LOW), strict=True):
            plane.relabel(_label_of_plane(label, name))

    def prepare(self, handle: Split) -> None:
        """Have the planes in RAM until the next change has ended, so that it can end whatever the disk does."""
        if handle.targets is None:
            held = []
            for plane in handle.planes:
                # Held first: to begin a change ends others, and would end that of a plane which nothing holds.
                held.append(plane.array)
                if not plane._changing:
                    plane.begin_change()
            rounded, low = held
            handle.targets = rounded.reshape(-1)[handle.part], low

    def end_change(self, handle: Split, changed: bool) -> None:
        """Store the new values in the planes."""
        array, handle.changing = handle.changing, None
        targets, handle.targets = handle.targets, None
        if changed and array is not None and targets is not None:
            handle.places = kernels.split(array.reshape(-1), *targets)


class SplitStorage(OffloadedStorage):
    """The memory of an offloaded float32 tensor in two planes, and of its views."""

    _store: Planes
    _handle: Split

    @property
    def rounded(self) -> Tensor:  # type: ignore[override]
        """The first plane."""
        return self._handle.rounded

    @property
    def reads_rows(self) -> bool:
        return True

    def hold_planes(self) -> None:
        for plane in (self._handle.rounded, self._handle.low):
            plane._array  # noqa: B018  # the frame holds what is used

    def copy_to(self, target: np.ndarray) -> None:
        if self._alive() is None:
            self._store.join(self._handle, target)
        else:
            super().copy_to(target)

    def begin_change(self) -> None:
        self._store.prepare(self._handle)  # first, because it may fail
        super().begin_change()

    def end_change(self) -> bool:
        if not is_held(self._alive) and (self._mark is None or self._mark != self.mark()):
            self._store.prepare(self._handle)  # first, because it may fail
        has_ended = super().end_change()
        if has_ended:
            self._residents.return_changed(with_last=True)
        return has_ended


def _among(places: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return where the elements at `places` are among those of spans, of those that are in one."""
    within = np.searchsorted(spans[:, 0], places, side="right") - 1
    is_in = (within >= 0) & (places < spans[within, 1])
    before = np.append(0, np.cumsum(spans[:, 1] - spans[:, 0]))[within]
    found: np.ndarray = (before + places - spans[within, 0])[is_in]
    return found


def _label_of_plane(label: Label, name: str) -> Label:
    return Label(label.op, name, label.module)


class SplittingResidents(PiecingResidents):
    """Decides which offloaded tensors are in RAM; large float32 parameters are in two planes."""

    def __init__(self, store: DiskStore) -> None:
        super().__init__(store)
        self._planes = Planes(store)

    def offload(self, tensor: Tensor, label: Label) -> None:
        storage = tensor._storage
        if not is_split(tensor) or isinstance(storage, OffloadedStorage) or tensor._array is not storage.array:
            super().offload(tensor, label)
            return
        flat = np.ascontiguousarray(tensor._array).reshape(-1)
        self._split(tensor, flat, label)
        del flat
        self.return_changed()

    def split(self, tensor: Tensor, label: Label) -> None:
        storage = tensor._storage
        if type(storage) is OffloadedStorage and is_split(tensor):
            former = storage._handle  # of values that were loaded as the model was built
            flat = tensor._array.reshape(-1)
            self._split(tensor, flat, label)
            del flat
            self.store.drop(former)
            self.return_changed()

    def _split(self, tensor: Tensor, flat: np.ndarray, label: Label) -> None:
        """Move float32 numbers of a tensor, its own in row-major order, to two planes in the store."""
        rounded = Tensor.wrap(buffers.empty(tensor.shape, dtypes.bfloat16))
        count = elements_of_pieces(tensor) or flat.size
        parts = [slice(start, min(start + count, flat.size)) for start in range(0, flat.size, count)]
        planes = []
        for part in parts:
            low = Tensor.wrap(buffers.empty((part.stop - part.start,), dtypes.uint16))
            planes.append((low, kernels.split(flat[part], rounded._array.reshape(-1)[part], low._array)))
            self.offload(low, _label_of_plane(label, LOW))
        self.offload(rounded, _label_of_plane(label, ROUNDED))
        if len(parts) == 1:
            self._place(tensor, label, rounded, parts[0], *planes[0])
        else:
            pieces = [Tensor.wrap(flat[part]) for part in parts]
            for piece, part, plane in zip(pieces, parts, planes, strict=True):
                self._place(piece, label, rounded, part, *plane)
            self._join(tensor, pieces, label).rounded = rounded

    def _place(
        self, tensor: Tensor, label: Label, rounded: Tensor, part: slice, low: Tensor, places: np.ndarray
    ) -> None:  # fmt: skip
        handle = self._planes.new_handle(tensor._array, label, rounded, part, low, places)
        become(tensor, SplitStorage, self, self._planes, handle)


def planes_bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's planes that are in RAM while the float32 numbers are made from them."""
    if not is_split(tensor):
        return 0
    rounded_bytes = tensor.nbytes // 2
    return rounded_bytes + (elements_of_pieces(tensor) * dtypes.uint16.itemsize or rounded_bytes)


def updated_parameter_bytes_of(optimizer: Any, param: Tensor, nbytes: int) -> int:
    """Return the bytes of a parameter and its planes that an update needs at once."""
    piece_bytes = piece_elements(optimizer, param) * param.itemsize
    return planes_bytes_of(param) + (piece_bytes if piece_bytes and is_split(param) else nbytes)


SPLIT_FRAMEWORK = FRAMEWORK._replace(
    updated_parameter_bytes_of=updated_parameter_bytes_of, planes_bytes_of=planes_bytes_of
)  # fmt: skip
