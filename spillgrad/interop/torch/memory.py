"""PyTorch's memory as a store takes it and gives it back: whose it is, how often it changed, and what lies in it."""

import functools
import itertools
import threading
import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from spillgrad.interop import arrays
from spillgrad.interop.arrays import ALIGNMENT_BYTES
from spillgrad.storage.store import View


class Origin:
    """A storage, which may die, and a number for its memory that no other memory ever has.

    While this object lives no other storage gets the address of this one. Where the storage was made to hold what a
    store has under `copy_of`, it has those bytes until somebody changes it: as they were put where `altered_by` is
    None, else as a lossy codec altered them.
    """

    __slots__ = ("__weakref__", "_altered_by", "_copy_of", "_number", "_reference", "packed")

    def __init__(self, storage: Any, copy_of: Hashable | None = None, altered_by: Hashable | None = None) -> None:
        self._reference = StorageWeakRef(storage)
        self._number = next(_numbers)
        self._copy_of, self._altered_by = copy_of, altered_by
        self.packed: Any = None  # where a copy of it is among others of small memory; see `small_tensors`

    def key(self, version: int, altered_by: Hashable | None) -> Hashable:
        """Return what identifies the storage's bytes, changed so often, as `altered_by` alters them: equal keys, equal
        bytes.
        """
        if self._copy_of is not None and not version and self._altered_by == altered_by:
            return self._copy_of
        return self._number, version, altered_by

    def storage(self) -> Any:
        """Return the storage while it lives, else None."""
        return torch.UntypedStorage._new_with_weak_ptr(self._reference.cdata)


_origins: weakref.WeakValueDictionary[int, Origin] = weakref.WeakValueDictionary()
_origins_lock = threading.RLock()
_numbers = itertools.count()


def origin_of(storage: Any) -> Origin:
    """Return the one origin that a storage has for as long as somebody holds it."""
    with _origins_lock:
        origin = _origins.get(storage._cdata)
        if origin is None:
            origin = _origins[storage._cdata] = Origin(storage)
        return origin


def origin_of_copy(storage: Any, key: Hashable, altered_by: Hashable | None) -> Origin:
    """Return the origin of a storage that was made to hold what a store has under `key`, as `altered_by` altered it."""
    with _origins_lock:
        origin = _origins[storage._cdata] = Origin(storage, key, altered_by)
        return origin


class Layout(NamedTuple):
    """Where in a storage a tensor lies, and how; offset in bytes."""

    dtype: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conjugate: bool
    is_negative: bool

    @classmethod
    def of(cls, tensor: Any) -> "Layout":
        """Return the layout of a tensor."""
        return cls(
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            tensor.storage_offset() * tensor.itemsize,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    @property
    def span_bytes(self) -> int:
        """The bytes from the first to the last element."""
        return arrays.span_bytes(self.dtype.itemsize, self.size, self.stride)

    def view(self, begin: int = 0) -> View:
        """Return what files say of the tensor, where offsets count from byte `begin` on."""
        strides = tuple(stride * self.dtype.itemsize for stride in self.stride)
        return View(None, None, name_of(self.dtype), self.size, strides, begin + self.offset)

    def over(self, storage: Any, begin: int, version: "Version") -> Any:
        """Return the tensor over a storage, where offsets count from byte `begin` on, that shares a counter."""
        place = (begin + self.offset) // self.dtype.itemsize
        tensor = version.counter.detach()
        # Which leaves the counter as it is.
        tensor.data = torch.empty(0, dtype=self.dtype, device=storage.device).set_(
            storage, place, self.size, self.stride
        )
        if self.is_conjugate:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.is_negative else tensor


# Of each layout, one that all tensors which lie so can share.
shared_layout = functools.lru_cache(maxsize=4096)(Layout._make)


class Version:
    """How often memory was changed in place when this was made; it holds the counter, and not the memory."""

    __slots__ = ("__weakref__", "counter", "number")

    def __init__(self, tensor: Any) -> None:
        # A counter is what all tensors over a memory share, and assigning other memory leaves it as it is.
        self.counter = tensor.detach()
        self.counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.number = self.counter._version

    def is_unchanged(self) -> bool:
        """Return whether nobody has changed the memory since."""
        return bool(self.counter._version == self.number)


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is memory with strides, on the host or a CUDA device, and nothing more."""
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


def bytes_of(storage: Any, start: int, nbytes: int) -> Any:
    """Return a part of a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (nbytes,), (1,))


def dtype_and_shape(layout: Layout, nbytes: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return as what array memory of so many bytes is stored, of which a tensor with this layout is a view."""
    return arrays.dtype_and_shape(name_of(layout.dtype), layout.dtype.itemsize, layout.size, layout.stride, nbytes)


def name_of(dtype: Any) -> str:
    """Return the name of a dtype of PyTorch, without its module."""
    return str(dtype).removeprefix("torch.")


def tensor_of_bytes(array: np.ndarray) -> Any:
    """Return a tensor of the bytes of a C-contiguous array, over its memory unless that is not aligned."""
    tensor = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT_BYTES else tensor
