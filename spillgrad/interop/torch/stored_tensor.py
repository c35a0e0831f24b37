"""Tensors of PyTorch whose memory is in a store, and in RAM while it is used."""

from typing import Any

import numpy as np

from spillgrad.interop.arrays import ALIGNMENT_BYTES, dtype_and_shape
from spillgrad.interop.torch.memory import Version, bytes_of, layout_of, over, view_of_bytes
from spillgrad.spill.offload.residents import Resident, Residents
from spillgrad.storage.store import Label
from spillgrad_kernels.device_array import address_of
from spillgrad_kernels.memory import buffers


class StoredTensor(Resident):
    """A tensor in a store; `lent` is the tensor that `lend_tensor` returned until `take_back`, else None."""

    def __init__(self, residents: Residents, tensor: Any, label: Label) -> None:
        """Copy a tensor to the store of `residents`. Raises the errors of `Store.put`."""
        layout = layout_of(tensor)
        source = bytes_of(tensor.untyped_storage(), layout.offset, layout.span_bytes)
        self._device, self._layout = tensor.device, layout._replace(offset=0)
        self.lent: Any = None
        self._changing_array: np.ndarray | None = None  # not None while the tensor is lent
        dtype, shape = dtype_and_shape(self._layout, layout.span_bytes)
        array = buffers.empty(shape, dtype)
        view_of_bytes(array).copy_(source)
        handle = residents.store.put(array, label=label, persistent=True)
        self.place(residents, residents.store, handle, array)

    @property
    def label(self) -> Label:
        """Where the tensor comes from."""
        return self._handle.label

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
