"""The memory of Paddle's tensors: the identity of each piece of memory, its counter of changes, and tensors over it."""

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

_CPU = paddle.CPUPlace()


def layout_of(tensor: Any) -> Layout:
    """Return the layout of a tensor in its memory."""
    itemsize = tensor.element_size()
    strides = tuple([stride * itemsize for stride in tensor.strides])
    return shared_layout(
        str(tensor.dtype).removeprefix("paddle."), itemsize, tuple(tensor.shape), strides, tensor.offset
    )


class Version(saved_memory.Version):
    """A memory's counter of in-place changes, and `number`, the count when this object was made."""

    __slots__ = ("_by_layer", "_counter")

    def __init__(self, tensor: Any, by_layer: bool) -> None:
        self.number = tensor.inplace_version
        self._by_layer = by_layer
        self._counter = alias(tensor, by_layer)
        self._counter._clear_to_zero_allocation()

    def now(self) -> int:
        """Return the number of in-place changes of the memory until now."""
        return int(self._counter.inplace_version)

    def over(self, array: np.ndarray, layout: Layout) -> Any:
        """Return a tensor with `layout` over `array`, which has the original bytes; the tensor shares this counter."""
        whole = paddle.empty([0])
        set_memory(whole, array[: array.nbytes // layout.itemsize * layout.itemsize])
        strides = [stride // layout.itemsize for stride in layout.strides]
        tensor = alias(self._counter, self._by_layer)
        whole.view(layout.dtype).as_strided(list(layout.shape), strides, layout.offset)._unsafe_share_buffer_to(tensor)
        return tensor


def set_memory(tensor: Any, array: np.ndarray) -> None:
    """Give a tensor the memory, the shape and the dtype of an array; the tensor keeps the array alive."""
    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)  # Paddle takes these for bfloat16
    # Not by DLPack: if Paddle takes the same memory twice, it frees it for both tensors when one of them dies. And a
    # new tensor over an array, or over a capsule of DLPack, leaks 80 bytes and more, in Paddle 3.3.
    paddle.Tensor.get_tensor(tensor).set(array, _CPU, True)


def changes_of(tensor: Any) -> int:
    """Return the number of in-place changes of a tensor's memory."""
    return int(tensor.inplace_version)


class Memory:
    """A piece of memory, owned by `holds`. It lives as long as this object, or a NumPy array over it."""

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
        """The address of the memory's first byte."""
        return int(self.__array_interface__["data"][0])

    @property
    def array(self) -> np.ndarray:
        """The bytes, as a NumPy array over the memory."""
        return np.asarray(self)


class OwnMemory(Memory):
    """Memory that Paddle allocated, with a number that no other memory ever has.

    Paddle cannot reuse the memory while this object lives.
    """

    __slots__ = ("number",)

    def __init__(self, first: Any, address: int) -> None:
        super().__init__(address, first._holder_size(), first)
        self.number = next(_numbers)

    def is_of(self, tensor: Any) -> bool:
        """Return whether this is the memory of a tensor."""
        return bool(self._holds._is_shared_buffer_with(tensor))


class ReturnedMemory(Memory):
    """Memory that Paddle got back from a store. The store has the bytes `begin:end` of the memory under `key`.

    `altered_by` is a key for the lossy codec that may have altered the bytes, and for the dtype under which it did. For
    another codec or dtype, the memory counts as new memory, with the number `number`. The object keeps `spilled` alive,
    and so the stored array; unless backward may run again, nothing else does.
    """

    __slots__ = ("_spilled", "_version", "altered_by", "begin", "end", "key", "number")

    def __init__(
        self, array: np.ndarray, begin: int, end: int, key: Hashable, altered_by: Hashable | None, version: Version,
        spilled: Any,
    ) -> None:  # fmt: skip
        super().__init__(address_of(array), array.nbytes, array)
        self.begin, self.end, self.key, self.altered_by = begin, end, key, altered_by
        self.number = next(_numbers)
        self._version, self._spilled = version, spilled

    def is_unchanged_in(self, tensor: Any) -> bool:
        """Return whether this memory still has the stored bytes; `tensor` is a tensor over the memory."""
        # Tensors that Paddle itself makes over this memory start a counter of changes at 0.
        return self._version.is_unchanged() and tensor.inplace_version == 0


_numbers = itertools.count()
_own: weakref.WeakValueDictionary[int, OwnMemory] = weakref.WeakValueDictionary()
_returned: weakref.WeakValueDictionary[int, ReturnedMemory] = weakref.WeakValueDictionary()
_memories_lock = ForkSafeLock()


def register(memory: ReturnedMemory) -> ReturnedMemory:
    """Register a memory, so that `memory_of` finds it, and return the memory."""
    with _memories_lock:
        _returned[memory.address] = memory
    return memory


def memory_of(tensor: Any) -> OwnMemory | ReturnedMemory:
    """Return the memory of a tensor: the same object for all tensors over it, as long as anything refers to it."""
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
    """Return another tensor over the same memory, with the same counter of changes.

    If Paddle's `contiguous()`, which works in place, moves one of the two tensors, the other one stays. The result is
    outside of the graph, because its node would hold the object that holds the result. But if a PyLayer saved the
    tensor (`by_layer`), the result must be part of the graph.
    """
    if not tensor.is_dense() or 0 in tensor.shape:
        return tensor.detach()
    with paddle.set_grad_enabled(by_layer):
        return tensor.transpose(list(range(tensor.ndim)))  # its derivative saves nothing


def placed(memory: np.ndarray, begin: int) -> np.ndarray:
    """Return new memory that has a copy of `memory` at offset `begin`. The bytes before the copy take no RAM."""
    array = np.frombuffer(mmap.mmap(-1, begin + memory.nbytes), np.uint8)
    array[begin:] = memory
    return array


def same_bytes(memory: np.ndarray, version: Version) -> Callable[[], bool]:
    """Return a function that tells whether `memory` still has its present bytes.

    If `version` has changed, the function compares digests, because Paddle counts one change too many if a PyLayer
    returns a tensor that it changed.
    """
    digest = xxhash.xxh3_128_digest(memory.data)
    return lambda: version.is_unchanged() or xxhash.xxh3_128_digest(memory.data) == digest
