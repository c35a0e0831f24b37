"""Tensors of PyTorch whose memory is in a store, and in RAM while it is used."""

import mmap
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spillgrad.errors import SpillError
from spillgrad.interop.arrays import ALIGNMENT_BYTES, dtype_and_shape
from spillgrad.interop.torch.memory import Version, bytes_of, layout_of, over, view_of_bytes
from spillgrad.spill.offload.residents import Resident, Residents
from spillgrad.storage.sizes import format_bytes
from spillgrad.storage.store import Label
from spillgrad_kernels.device_array import address_of
from spillgrad_kernels.memory import buffers


class StoredTensor(Resident):
    """A tensor in a store; `lent` is the tensor that `lend_tensor` returned until `take_back`, else None."""

    def __init__(self, residents: Residents, tensor: Any, label: Label, store: Any = None) -> None:
        """Copy a tensor to the store of `residents`, or to `store`, a `StoreOver` of that one.

        Raises the errors of `Store.put`.
        """
        layout = layout_of(tensor)
        source = bytes_of(tensor.untyped_storage(), layout.offset, layout.span_bytes)
        self._device, self._layout = tensor.device, layout._replace(offset=0)
        self.lent: Any = None
        self._changing_array: np.ndarray | None = None  # not None while the tensor is lent
        dtype, shape = dtype_and_shape(self._layout, layout.span_bytes)
        if store is None or not source.is_cpu:
            array = buffers.empty(shape, dtype)
            view_of_bytes(array).copy_(source)
        else:  # what such a store keeps is not the array
            array = source.numpy().view(dtype).reshape(shape)
        place = residents.store if store is None else store
        self.place(residents, place, place.put(array, label=label, persistent=True), array)

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
        return self._handle.nbytes

    @property
    def dtype(self) -> Any:
        """The tensor's dtype."""
        return self._layout.dtype

    @property
    def directory(self) -> Path:
        """The directory of the store."""
        return self._residents.store.directory

    def return_changed(self) -> None:
        """Give the store the new values of what was changed, as far as nothing else refers to it."""
        self._residents.return_changed(with_last=True)

    def tensor(self) -> Any:
        """Return the tensor over the memory in RAM, which stays there while anything refers to it."""
        content = view_of_bytes(self.array).to(self._device)
        return self._over(content.clone() if content.data_ptr() % ALIGNMENT_BYTES else content)

    def copy(self) -> Any:
        """Return a copy of the tensor in memory of its own."""
        return self._over(view_of_bytes(self.array).to(self._device, copy=True))

    def copy_on_disk(self) -> Any:
        """Return a copy of the tensor in a file without a name; see `on_disk`."""
        return self._over(on_disk([self.array], self.nbytes, self))

    def lend_tensor(self) -> Any:
        """Return the tensor, for a caller that changes it; the store keeps its memory in RAM until `take_back`."""
        self.begin_change()
        array = self._changing_array = self.array  # the tensor may be a copy, which does not hold the array
        own = view_of_bytes(array).to(self._device)
        self.lent = self._over(own.clone() if own.data_ptr() % ALIGNMENT_BYTES else own)
        return self.lent

    def take_back(self) -> None:
        """End the caller's change. The store gets the values once nothing refers to the tensor: see `Residents`."""
        storage, array = self.lent.untyped_storage(), self._changing_array
        assert array is not None, "the tensor is not lent"
        self.lent = self._changing_array = None
        if storage.data_ptr() != address_of(array):
            view_of_bytes(array).copy_(bytes_of(storage, 0, storage.nbytes()))

    def _over(self, content: Any) -> Any:
        return over(content.untyped_storage(), self._layout, Version(content))


def on_disk(arrays: Iterable[np.ndarray], nbytes: int, named: StoredTensor) -> Any:
    """Return a uint8 tensor over the bytes of arrays, one after another, in a file without a name.

    The system writes such memory to disk and reads it again as it needs RAM. It can be changed; changed pages are in
    RAM. Raises SpillError, with the label of `named`, if the file cannot be written to the directory of its store.
    """
    try:
        with tempfile.TemporaryFile(dir=named.directory) as file:
            for array in arrays:
                file.write(view_of_bytes(array).numpy().data)
            file.flush()
            memory = mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise SpillError(
            f"{named.label}: {format_bytes(nbytes)} could not be copied to a file in {named.directory}: "
            f"{error.strerror}; free space there"
        ) from error
    return torch.frombuffer(memory, dtype=torch.uint8)
