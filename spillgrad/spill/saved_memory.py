"""The base classes for saved tensors of every framework: memory for a store, and the objects that graphs keep.

A framework adds three things: how to find the memory of a tensor, how to count the memory's in-place changes, and how
to make a tensor over memory that a store gave back.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad import labels
from spillgrad.errors import SavedTensorError
from spillgrad.spill.small_tensors import Place
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label, Remote, View
from spillgrad.storage.store_owner import MAX_VIEWS
from spillgrad_kernels.memory.holder import Holder

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class Layout(NamedTuple):
    """The layout of a tensor in its memory. Strides and offset are in bytes.

    `dtype` is the framework's dtype, or its name. `is_conjugate` and `is_negative` are of PyTorch only: a tensor's
    values are the conjugates, or the negatives, of the numbers in memory.
    """

    dtype: Any
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    is_conjugate: bool = False
    is_negative: bool = False

    @property
    def span_bytes(self) -> int:
        """The number of bytes from the first element to the last one, both included."""
        if 0 in self.shape:
            return 0
        return sum([(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]) + self.itemsize

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, without the name of the framework."""
        return _name_of(self.dtype)


# Layouts repeat from node to node, so equal layouts share one object.
shared_layout = functools.lru_cache(maxsize=4096)(Layout)


@functools.cache
def _name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


class SavedMemory(NamedTuple):
    """The memory of a saved tensor, and what a store must know about this memory.

    Within one store, and so with one codec, equal keys mean equal bytes. `layout` is the tensor's layout in `array`.
    `is_unchanged` tells whether the memory still has the bytes that were saved. `watcher` counts changes: while it
    lives, a tensor that comes back over the same memory uses it as its counter.
    """

    key: Hashable
    array: np.ndarray | Remote
    layout: Layout
    is_unchanged: Callable[[], bool]
    watcher: Any = None


class Version:
    """A memory's counter of in-place changes, and `number`, the count when this object was made.

    Each framework has a subclass. The object refers to the counter, and does not keep the memory alive.
    """

    __slots__ = ("number",)
    number: int

    def now(self) -> int:
        """Return the number of in-place changes of the memory until now."""
        raise NotImplementedError

    def is_unchanged(self) -> bool:
        """Return whether the memory is unchanged since this object was made."""
        return self.now() == self.number

    def require(self, layout: Layout) -> None:
        """Raise SavedTensorError if the memory was changed; the message describes the tensor that has `layout`."""
        now = self.now()
        if now != self.number:
            raise changed_error(layout.dtype, layout.shape, now, self.number)


def changed_error(dtype: Any, shape: Sequence[int], version: int, expected: int) -> SavedTensorError:
    """Return the error for a saved tensor that was modified in place before it was used."""
    return SavedTensorError(
        "save_on_disk: one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{dtype} {list(shape)}] is at version {version}; expected version {expected} instead; clone() a saved tensor "
        "before changing it"
    )


class Packed:
    """The object that a graph keeps for a saved tensor."""

    __slots__ = ()

    def tensor(self) -> Any:
        """Return the saved tensor."""
        raise NotImplementedError


class Kept(Packed):
    """A saved tensor that stays in RAM, as the graph keeps it.

    `count` returns the number of in-place changes of a tensor. If it is given, a later change makes `tensor` raise.
    """

    __slots__ = ("__weakref__", "_count", "_number", "_tensor")

    def __init__(self, tensor: Any, count: Callable[[Any], int] | None = None) -> None:
        self._tensor, self._count = tensor, count
        self._number = None if count is None else count(tensor)

    def tensor(self) -> Any:
        """Return the tensor. Raises SavedTensorError if `count` was given and the tensor was changed."""
        tensor = self._tensor
        if self._count is not None and self._number is not None:
            now = self._count(tensor)
            if now != self._number:
                raise changed_error(tensor.dtype, tensor.shape, now, self._number)
        return tensor


class Spilled(Packed, Holder):
    """The object that a graph keeps for a spilled tensor: the handle of the stored memory, and the tensor's layout.

    The store frees the bytes when the last object with this handle dies.
    """

    __slots__ = ("__weakref__", "_key", "_layout", "_source")

    def __init__(self, store: DiskStore, source: Any, stored: Any, key: Hashable, layout: Layout) -> None:
        """Take over one reference of the handle `stored`, as `held`. The stored memory has the key `key`.

        Subclasses read the memory from `source` to make the tensor.
        """
        super().__init__(store.drops.append, stored)
        self._source, self._key, self._layout = source, key, layout

    def __repr__(self) -> str:
        return f"<Spilled {self.held!r}>"


class SpilledSmall(Packed):
    """The object that a graph keeps for a small saved tensor, whose memory was copied to an array that many share."""

    __slots__ = ("__weakref__", "_layout", "_place")

    def __init__(self, place: Place, layout: Layout) -> None:
        self._place, self._layout = place, layout


def note_view(
    views: list[View], layout: Layout, operation: str | None = None, slot: str | None = None, start: int = 0
) -> None:
    """Append a tensor with `layout` to `views`, the views of an array that files list, unless the list is full.

    The tensor's memory begins at byte `start` of the array.
    """
    if len(views) < MAX_VIEWS:
        offset = start + layout.offset
        views.append(View(operation or None, slot or None, layout.dtype_name, layout.shape, layout.strides, offset))


def present_label(operation: str | None = None, slot: str | None = None, module: str | None = None) -> Label:
    """Return the label for a tensor that this thread saves now, in `module`, by default this thread's current one."""
    running = labels.current.module if module is None else module
    return Label(operation or None, slot or None, running, labels.current.step)
