"""The memory of an offloaded parameter: given to the parameter while it is used, and known by name to the graph."""

import weakref
from typing import Any

import numpy as np
import paddle

from spillgrad.errors import OperandError, SavedTensorError
from spillgrad.interop.paddle.memory import Version, layout_of
from spillgrad.interop.paddle.stored_tensor import StoredTensor, clear_memory, has_memory, is_storable
from spillgrad.spill.offload.residents import Residents
from spillgrad.spill.saved_memory import Packed, changed_error
from spillgrad.storage.store import Label

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class SavedParameter(Packed):
    """The object that a graph keeps for a saved tensor over a parameter's memory."""

    __slots__ = ("_changes", "_layout", "_stored", "_version")

    def __init__(self, stored: "StoredParameter", tensor: Any, by_layer: bool) -> None:
        self._stored: StoredParameter | None = stored
        self._changes = stored.changes
        self._layout, self._version = layout_of(tensor), Version(tensor, by_layer)

    def tensor(self) -> Any:
        """Return the saved tensor, over memory that is read if needed. Raises SavedTensorError if it was changed."""
        stored, layout = self._stored, self._layout
        if stored is None:
            raise SavedTensorError("disk_offload: what was saved is freed, as backward failed; run forward again")
        if stored.changes != self._changes or stored.is_overwritten():
            raise changed_error(layout.dtype, layout.shape, stored.changes + 1, self._changes)
        self._version.require(layout)
        return self._version.over(stored.array.reshape(-1).view(np.uint8), layout)

    def free(self) -> None:
        """Drop the parameter's memory: after an error Paddle keeps this object for ever."""
        self._stored = None


class StoredParameter(StoredTensor):
    """The memory of an offloaded parameter, and its gradient.

    The parameter has the memory from the first `open` to the last `close`. `changes` counts changes that Paddle's own
    counter does not show. The gradient is in `gradient`, or it is zero if `gradient_is_zero`, or the parameter has it
    or none; `updating_gradient` is the gradient in RAM while the optimizer uses it.
    """

    def __init__(self, residents: Residents, parameter: Any, label: Label) -> None:
        super().__init__(residents, parameter, label)
        self.changes = 0
        self.gradient: StoredTensor | None = None
        self.gradient_is_zero = False
        self.updating_gradient: Any = None
        self._parameter = weakref.ref(parameter)
        self._uses = self._address = self._counted = 0

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient is in the store, or is zero."""
        return self.gradient is not None or self.gradient_is_zero

    def is_of(self, tensor: Any) -> bool:
        """Return whether a tensor is the parameter under another name: what one has or loses, so does the other."""
        return bool(paddle.Tensor._is_shared_underline_tensor_with(tensor, self._parameter()))

    def is_overwritten(self) -> bool:
        """Return whether a function gave the parameter other memory while the parameter had none."""
        with self._residents.lock:
            parameter = self._parameter()
            return parameter is not None and not self._uses and has_memory(parameter)

    def __deepcopy__(self, memo: Any) -> "StoredParameter":
        return self  # Paddle copies a parameter's attributes when it copies the parameter's memory

    @property
    def is_open_elsewhere(self) -> bool:
        """Whether more than one layer or method uses the parameter now."""
        return self._uses > 1

    def begin_change(self) -> None:
        self.changes += 1
        super().begin_change()

    def open(self, is_changing: bool) -> None:
        """Give the parameter its memory, until `close`; with `is_changing`, for a change."""
        with self._residents.lock:
            if is_changing:
                self.begin_change()
            if not self._uses:
                parameter: Any = self._parameter()
                self.give_to(parameter)
                self._address, self._counted = paddle.Tensor.data_ptr(parameter), parameter.inplace_version
                _open_memories[self._address] = self
            self._uses += 1

    def close(self) -> None:
        """End a use of the parameter; after the last one, take the memory from it."""
        with self._residents.lock:
            self._uses -= 1
            if self._uses:
                return
            del _open_memories[self._address]
            parameter = self._parameter()
            if parameter is None:
                return
            if paddle.Tensor.data_ptr(parameter) != self._address:
                replace(parameter)
                return
            if parameter.inplace_version != self._counted:
                self.begin_change()
            clear_memory(parameter)


# By its address: the parameter's memory that is open.
_open_memories: dict[int, StoredParameter] = {}


def open_memory(tensor: Any) -> StoredParameter | None:
    """Return the open parameter whose memory a tensor has; None if there is none."""
    if not _open_memories or not tensor.is_dense() or tensor.is_dist():
        return None
    return _open_memories.get(paddle.Tensor.data_ptr(tensor) - tensor.offset)


def opened(parameter: Any, is_changing: bool = False) -> StoredParameter:
    """Give a parameter its memory, and return the object that can take it away."""
    with parameter._stored._residents.lock:
        if parameter._stored.is_overwritten():
            replace(parameter)
        stored: StoredParameter = parameter._stored
        stored.open(is_changing)
    return stored


def replace(parameter: Any) -> None:
    """Offload the memory that a function has given to an offloaded parameter, in place of the former memory.

    Raises OperandError for memory that cannot be in a store.
    """
    former: StoredParameter = parameter._stored
    if not is_storable(parameter):
        raise OperandError(
            f"{former.label}: got new memory, of {parameter.dtype} {list(parameter.shape)}, which cannot be in a "
            "store; give an offloaded parameter memory of its own dtype and shape, in host memory"
        )
    stored = StoredParameter(former._residents, parameter, former.label)
    former.changes += 1  # graphs have saved the former memory
    stored.changes = former.changes
    stored.gradient, stored.gradient_is_zero = former.gradient, former.gradient_is_zero
    parameter._stored = stored
    clear_memory(parameter)
