"""PyTorch's storages: the identity of each storage, its counter of changes, and tensors over it."""

import itertools
import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.interop.arrays import ALIGNMENT_BYTES
from spillgrad.spill import saved_memory
from spillgrad.spill.saved_memory import Layout, shared_layout


class Identity:
    """The identity of a storage: a number that no other storage ever has. The storage may die before this object.

    While this object lives, no other storage gets the address of the storage. If `copy_of` is given, the storage is a
    copy of the bytes that a store has under the key `copy_of`, until it is changed. `altered_by` is the key of the
    lossy codec that altered these bytes, or None.
    """

    __slots__ = ("__weakref__", "_altered_by", "_copy_of", "_number", "_reference", "packed")

    def __init__(self, storage: Any, copy_of: Hashable | None = None, altered_by: Hashable | None = None) -> None:
        self._reference = StorageWeakRef(storage)
        self._number = next(_numbers)
        self._copy_of, self._altered_by = copy_of, altered_by
        self.packed: Any = None  # the place of its last copy among small memory; see `small_tensors`

    def key(self, version: int, altered_by: Hashable | None) -> Hashable:
        """Return the key of the bytes after `version` changes; `altered_by` is the key of a lossy codec, or None."""
        if self._copy_of is not None and not version and self._altered_by == altered_by:
            return self._copy_of
        return self._number, version, altered_by

    def storage(self) -> Any:
        """Return the storage while it lives, else None."""
        return torch.UntypedStorage._new_with_weak_ptr(self._reference.cdata)


_identities: weakref.WeakValueDictionary[int, Identity] = weakref.WeakValueDictionary()
_identities_lock = ForkSafeLock()
_numbers = itertools.count()


def identity_of(storage: Any, copy_of: Hashable | None = None, altered_by: Hashable | None = None) -> Identity:
    """Return the identity of a storage: the same object as long as anything refers to it.

    With `copy_of`, the storage is a new copy of stored bytes, and gets a new identity; see `Identity`.
    """
    with _identities_lock:
        identity = _identities.get(storage._cdata) if copy_of is None else None
        if identity is None:
            identity = _identities[storage._cdata] = Identity(storage, copy_of, altered_by)
        return identity


class Version(saved_memory.Version):
    """A storage's counter of in-place changes, and `number`, the count when this object was made."""

    __slots__ = ("__weakref__", "counter")

    def __init__(self, tensor: Any) -> None:
        # All tensors over a memory share its counter. A detached tensor keeps the counter when it gets other memory.
        self.counter = tensor.detach()
        self.counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.number = self.counter._version

    def now(self) -> int:
        """Return the number of in-place changes of the storage until now."""
        return int(self.counter._version)


def changes_of(tensor: Any) -> int:
    """Return the number of in-place changes of a tensor's memory."""
    return int(tensor._version)


def layout_of(tensor: Any) -> Layout:
    """Return the layout of a tensor in its storage."""
    itemsize = tensor.itemsize
    return shared_layout(
        tensor.dtype,
        itemsize,
        tuple(tensor.shape),
        tuple([stride * itemsize for stride in tensor.stride()]),
        tensor.storage_offset() * itemsize,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def over(storage: Any, layout: Layout, version: Version, begin: int = 0) -> Any:
    """Return a tensor with `layout` over the bytes of `storage` from byte `begin` on.

    The tensor shares the counter of changes of `version`.
    """
    itemsize = layout.itemsize
    strides = [stride // itemsize for stride in layout.strides]
    tensor = version.counter.detach()
    # Assigning `data` leaves the counter as it is.
    tensor.data = torch.empty(0, dtype=layout.dtype, device=storage.device).set_(
        storage, (begin + layout.offset) // itemsize, layout.shape, strides
    )
    if layout.is_conjugate:
        tensor = tensor.conj()
    return torch._neg_view(tensor) if layout.is_negative else tensor


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is plain strided memory on the host or a CUDA device."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not (
            tensor.is_quantized
            or tensor.is_nested
            or tensor.is_inference()
            or tensor._is_zerotensor()
            or torch._is_functional_tensor(tensor)
            or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        )
    )


def is_of_leaf(tensor: Any) -> bool:
    """Return whether a tensor is a leaf that requires a gradient, such as a parameter, or a view of one."""
    base = tensor if tensor._base is None else tensor._base
    return isinstance(base, torch.nn.Parameter) or any(each.requires_grad and each.is_leaf for each in (base, tensor))


def bytes_of(storage: Any, start: int, nbytes: int) -> Any:
    """Return a uint8 tensor over `nbytes` bytes of a storage, from byte `start` on."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (nbytes,), (1,))


def view_of_bytes(array: np.ndarray) -> Any:
    """Return a uint8 tensor over the memory of a C-contiguous array."""
    return torch.from_numpy(array.reshape(-1).view(np.uint8))


def tensor_of_bytes(array: np.ndarray) -> Any:
    """Return a uint8 tensor over the memory of a C-contiguous array, or over a copy if the memory is not aligned."""
    tensor = view_of_bytes(array)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT_BYTES else tensor
