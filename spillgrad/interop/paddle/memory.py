"""Paddle's memory as a store takes it and gives it back: whose it is, how often it changed, and what lies in it."""

import itertools
import mmap
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
import paddle
import xxhash

from spillgrad.interop.arrays import changed_error, span_bytes
from spillgrad.storage.store import View


class Layout(NamedTuple):
    """Where in its memory a tensor lies, and how; offset in bytes, strides in elements."""

    dtype: str
    itemsize: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Any) -> "Layout":
        """Return the layout of a tensor."""
        dtype = str(tensor.dtype).removeprefix("paddle.")
        return cls(dtype, tensor.element_size(), tuple(tensor.shape), tuple(tensor.strides), tensor.offset)

    @property
    def span_bytes(self) -> int:
        """The bytes from the first to the last element."""
        return span_bytes(self.itemsize, self.size, self.stride)

    def view(self, begin: int) -> View:
        """Return what files say of the tensor, where its memory begins at byte `begin`."""
        strides = tuple(stride * self.itemsize for stride in self.stride)
        return View(None, None, self.dtype, self.size, strides, begin + self.offset)

    def over(self, tensor: Any) -> Any:
        """Return the tensor that lies so in the memory of another of its dtype, and counts changes with it."""
        return tensor.as_strided(list(self.size), list(self.stride), self.offset)


class Version:
    """How often memory was changed in place when this was made; it holds the counter, and not the memory."""

    __slots__ = ("_by_layer", "_counter", "_layout", "number")

    def __init__(self, tensor: Any, layout: Layout, by_layer: bool) -> None:
        self.number = tensor.inplace_version
        self._layout, self._by_layer = layout, by_layer
        self._counter = alias(tensor, by_layer)
        self._counter._clear_to_zero_allocation()

    def holds(self) -> bool:
        """Return whether nobody has changed the memory since."""
        return bool(self._counter.inplace_version == self.number)

    def require(self) -> None:
        """Raise SavedTensorError when somebody has."""
        if not self.holds():
            layout = self._layout
            raise changed_error(layout.dtype, layout.size, self._counter.inplace_version, self.number)

    def over(self, memory: "Seen") -> Any:
        """Return the tensor in other memory with the same bytes; changes of it count as changes of this memory."""
        layout, array = self._layout, memory.array
        array = array[: array.nbytes // layout.itemsize * layout.itemsize]
        # Not by DLPack: where Paddle has taken the same memory twice, it frees the one when the other dies.
        whole = paddle.Tensor(value=array, place=paddle.CPUPlace(), zero_copy=True)
        tensor = alias(self._counter, self._by_layer)
        layout.over(whole.view(layout.dtype))._unsafe_share_buffer_to(tensor)
        return tensor


class Seen:
    """Memory as NumPy sees it, which stays while an array over it does."""

    __slots__ = ("__array_interface__", "__weakref__", "_holds", "nbytes", "packed")

    def __init__(self, address: int, nbytes: int, holds: Any) -> None:
        self._holds = holds
        self.nbytes = nbytes
        self.packed: Any = None  # where a copy of it is among others of small memory; see `small_tensors`
        self.__array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.__array_interface__["data"][0])

    @property
    def array(self) -> np.ndarray:
        """Its bytes."""
        return np.asarray(self)


class Origin(Seen):
    """Memory of Paddle's, which gives it to nobody else while this lives, and a number for it, never used again."""

    __slots__ = ("number",)

    def __init__(self, first: Any, address: int) -> None:
        super().__init__(address, first._holder_size(), first)
        self.number = next(_numbers)

    def is_of(self, tensor: Any) -> bool:
        """Return whether a tensor is over this memory."""
        return bool(self._holds._is_shared_buffer_with(tensor))


class Lent(Seen):
    """Memory that Paddle got back, with what is stored under `key` in its bytes from `begin` to `end`.

    Where a lossy codec may have altered it, `altered_by` says whose, and as which dtype: to all else it is other bytes,
    which have a number. It holds a reference to what is stored: the last one, unless backward may want it again.
    """

    __slots__ = ("_stored", "_version", "altered_by", "begin", "end", "key", "number")

    def __init__(
        self,
        array: np.ndarray,
        begin: int,
        end: int,
        key: Hashable,
        altered_by: Hashable | None,
        version: Version,
        stored: Any,
    ) -> None:
        super().__init__(address_of(array), array.nbytes, array)
        self.begin, self.end, self.key, self.altered_by = begin, end, key, altered_by
        self.number = next(_numbers)
        self._version, self._stored = version, stored

    def holds(self, tensor: Any) -> bool:
        """Return whether a tensor over it has the bytes that are stored."""
        # Paddle's own tensors over what it got back count changes anew.
        return self._version.holds() and tensor.inplace_version == 0


_numbers = itertools.count()
_origins: weakref.WeakValueDictionary[int, Origin] = weakref.WeakValueDictionary()
_lent: weakref.WeakValueDictionary[int, Lent] = weakref.WeakValueDictionary()
_memories_lock = threading.RLock()


def lend(memory: Lent) -> Lent:
    """Have memory known by its address."""
    with _memories_lock:
        _lent[memory.address] = memory
    return memory


def memory_of(tensor: Any) -> Origin | Lent:
    """Return the memory of a tensor: known by its address while somebody holds it."""
    first = tensor.as_strided([1], [1], 0)
    address = first.data_ptr()
    with _memories_lock:
        origin, lent = _origins.get(address), _lent.get(address)
        if origin is not None and origin.is_of(tensor):
            return origin
        if lent is not None and lent.holds(tensor):
            return lent
        origin = _origins[address] = Origin(first, address)
        return origin


def alias(tensor: Any, by_layer: bool) -> Any:
    """Return another tensor over the same memory, which counts changes with it; `contiguous()` moves only the one.

    It leaves out the tensor's node, which would hold what holds the node; but what a PyLayer saved must be part of the
    graph, to which a node of the graph sees itself.
    """
    if not tensor.is_dense() or 0 in tensor.shape:
        return tensor.detach()
    with paddle.set_grad_enabled(by_layer):
        return tensor.transpose(list(range(tensor.ndim)))  # of whose derivative nothing is saved


def placed(memory: np.ndarray, begin: int) -> np.ndarray:
    """Return a copy of bytes that begins so many bytes into memory, of which those before take none."""
    array = np.frombuffer(mmap.mmap(-1, begin + memory.nbytes), np.uint8)
    array[begin:] = memory
    return array


def same_bytes(memory: np.ndarray, version: Version) -> Callable[[], bool]:
    """Return what says whether memory is as it is now: a PyLayer that returns what it changed counts another change."""
    digest = xxhash.xxh3_128_digest(memory.data)
    return lambda: version.holds() or xxhash.xxh3_128_digest(memory.data) == digest


def address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
