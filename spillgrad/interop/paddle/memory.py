"""Paddle's memory, as a store takes it and gives it back: which it is, how often it changed, and tensors in it."""

import itertools
import mmap
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import paddle
import xxhash

from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.spill import saved_memory
from spillgrad.spill.saved_memory import Layout, shared_layout
from spillgrad_kernels.device_array import address_of


def layout_of(tensor: Any) -> Layout:
    """Return where in its memory a tensor lies."""
    itemsize = tensor.element_size()
    strides = tuple([stride * itemsize for stride in tensor.strides])
    return shared_layout(
        str(tensor.dtype).removeprefix("paddle."), itemsize, tuple(tensor.shape), strides, tensor.offset
    )


class Version(saved_memory.Version):
    """How often a memory had been changed in place when this was made."""

    __slots__ = ("_by_layer", "_counter")

    def __init__(self, tensor: Any, by_layer: bool) -> None:
        self.number = tensor.inplace_version
        self._by_layer = by_layer
        self._counter = alias(tensor, by_layer)
        self._counter._clear_to_zero_allocation()

    def now(self) -> int:
        """Return how often the memory was changed until now."""
        return int(self._counter.inplace_version)

    def over(self, memory: "Memory", layout: Layout) -> Any:
        """Return the tensor with a layout in other memory with the same bytes. It counts changes with this memory."""
        array = memory.array
        array = array[: array.nbytes // layout.itemsize * layout.itemsize]
        # Not by DLPack: if Paddle has taken the same memory twice, it frees the one when the other dies.
        whole = paddle.Tensor(value=array, place=paddle.CPUPlace(), zero_copy=True)
        strides = [stride // layout.itemsize for stride in layout.strides]
        tensor = alias(self._counter, self._by_layer)
        whole.view(layout.dtype).as_strided(list(layout.shape), strides, layout.offset)._unsafe_share_buffer_to(tensor)
        return tensor


def changes_of(tensor: Any) -> int:
    """Return how often the memory of a tensor was changed in place."""
    return int(tensor.inplace_version)


class Memory:
    """Memory as NumPy sees it. It lives as long as this object, or an array over it."""

    __slots__ = ("__array_interface__", "__weakref__", "_holds", "nbytes", "packed")

    def __init__(self, address: int, nbytes: int, holds: Any) -> None:
        self._holds = holds
        self.nbytes = nbytes
        self.packed: Any = None  # the place of its last copy among small memory; see `small_tensors`
        self.__array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    @property
    def address(self) -> int:
        """The address of its first byte."""
        return int(self.__array_interface__["data"][0])

    @property
    def array(self) -> np.ndarray:
        """Its bytes."""
        return np.asarray(self)


class OwnMemory(Memory):
    """Memory of Paddle's, with a number that no other memory ever has.

    Paddle gives the memory to nobody else while this object lives.
    """

    __slots__ = ("number",)

    def __init__(self, first: Any, address: int) -> None:
        super().__init__(address, first._holder_size(), first)
        self.number = next(_numbers)

    def is_of(self, tensor: Any) -> bool:
        """Return whether a tensor is over this memory."""
        return bool(self._holds._is_shared_buffer_with(tensor))


class ReturnedMemory(Memory):
    """Memory that Paddle got back from a store. Its bytes from `begin` to `end` are what was stored under `key`.

    `altered_by` tells which lossy codec may have altered them, as which dtype. For other codecs and dtypes they are
    other bytes, which have a number of their own. The object holds `spilled`, and so what is stored: unless backward
    may run again, it is the last one that does.
    """

    __slots__ = ("_spilled", "_version", "altered_by", "begin", "end", "key", "number")

    def __init__(
        self,
        array: np.ndarray,
        begin: int,
        end: int,
        key: Hashable,
        altered_by: Hashable | None,
        version: Version,
        spilled: Any,
    ) -> None:
        super().__init__(address_of(array), array.nbytes, array)
        self.begin, self.end, self.key, self.altered_by = begin, end, key, altered_by
        self.number = next(_numbers)
        self._version, self._spilled = version, spilled

    def is_unchanged_in(self, tensor: Any) -> bool:
        """Return whether a tensor over this memory has the bytes that are stored."""
        # Tensors that Paddle itself makes over this memory count changes from 0 on.
        return self._version.is_unchanged() and tensor.inplace_version == 0


_numbers = itertools.count()
_own: weakref.WeakValueDictionary[int, OwnMemory] = weakref.WeakValueDictionary()
_returned: weakref.WeakValueDictionary[int, ReturnedMemory] = weakref.WeakValueDictionary()
_memories_lock = ForkSafeLock()


def register(memory: ReturnedMemory) -> ReturnedMemory:
    """Let `memory_of` find a memory, and return it."""
    with _memories_lock:
        _returned[memory.address] = memory
    return memory


def memory_of(tensor: Any) -> OwnMemory | ReturnedMemory:
    """Return the memory of a tensor. While somebody holds the result, it is the same for all tensors over it."""
    first = tensor.as_strided([1], [1], 0)
    address = first.data_ptr()
    with _memories_lock:
        own, returned = _own.get(address), _returned.get(address)
        if own is not None and own.is_of(tensor):
            return own
        if returned is not None and returned.is_unchanged_in(tensor):
            return returned
        own = _own[address] = OwnMemory(first, address)
        return own


def alias(tensor: Any, by_layer: bool) -> Any:
    """Return another tensor over the same memory, which counts changes with it; `contiguous()` moves only the one.

    The result has no node, since that would hold an object that holds it. But a tensor that a PyLayer saved must be
    part of the graph.
    """
    if not tensor.is_dense() or 0 in tensor.shape:
        return tensor.detach()
    with paddle.set_grad_enabled(by_layer):
        return tensor.transpose(list(range(tensor.ndim)))  # its derivative saves nothing


def placed(memory: np.ndarray, begin: int) -> np.ndarray:
    """Return a copy of bytes that begins `begin` bytes into new memory. The bytes before it take no RAM."""
    array = np.frombuffer(mmap.mmap(-1, begin + memory.nbytes), np.uint8)
    array[begin:] = memory
    return array


def same_bytes(memory: np.ndarray, version: Version) -> Callable[[], bool]:
    """Return a function that tells whether memory has the bytes that it has now.

    It compares digests where the version differs: a PyLayer that returns what it changed counts one change too many.
    """
    digest = xxhash.xxh3_128_digest(memory.data)
    return lambda: version.is_unchanged() or xxhash.xxh3_128_digest(memory.data) == digest
