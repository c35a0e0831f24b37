"""What a saved tensor is to a store, whatever framework it belongs to, and what stands for it in a graph.

A framework says three things for itself: which memory a tensor has, how often that was changed, and how a tensor is
made over memory that came back.
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
    """Where in its memory a tensor lies. Strides and offset are in bytes.

    `dtype` is the framework's own. Only PyTorch reads memory as the conjugate, or the negative, of what it holds.
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
        """The bytes from the first to the last element."""
        if 0 in self.shape:
            return 0
        return sum([(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]) + self.itemsize

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, without the framework's."""
        return _name_of(self.dtype)


# Layouts repeat from node to node: equal ones are one object.
shared_layout = functools.lru_cache(maxsize=4096)(Layout)


@functools.cache
def _name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


class SavedMemory(NamedTuple):
    """The memory of a saved tensor, as a store takes it.

    Within one store, and so with its codec, equal keys mean equal bytes. `layout` says where in `array` the tensor
    lies. `is_unchanged` tells whether the memory still has the bytes that were saved. While `watcher` lives, a tensor
    that comes back over the same memory counts its changes there.
    """

    key: Hashable
    array: np.ndarray | Remote
    layout: Layout
    is_unchanged: Callable[[], bool]
    watcher: Any = None


class Version:
    """How often a memory had been changed in place when this was made.

    Frameworks derive from it. Their object refers to the counter, and does not hold the memory.
    """

    __slots__ = ("number",)
    number: int

    def now(self) -> int:
        """Return how often the memory was changed until now."""
        raise NotImplementedError

    def is_unchanged(self) -> bool:
        """Return whether the memory was not changed since."""
        return self.now() == self.number

    def require(self, layout: Layout) -> None:
        """Raise SavedTensorError for the tensor with a layout when its memory was changed."""
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
    """What stands for a saved tensor in a graph."""

    __slots__ = ()

    def tensor(self) -> Any:
        """Return the tensor."""
        raise NotImplementedError


class Kept(Packed):
    """Stands for a tensor that stays in RAM: it holds the tensor.

    Where `count` is given, it returns how often a tensor was changed in place, and a tensor that was changed since is
    an error.
    """

    __slots__ = ("__weakref__", "_count", "_number", "_tensor")

    def __init__(self, tensor: Any, count: Callable[[Any], int] | None = None) -> None:
        self._tensor, self._count = tensor, count
        self._number = None if count is None else count(tensor)

    def tensor(self) -> Any:
        """Return the tensor. Raises SavedTensorError when it was changed."""
        tensor = self._tensor
        if self._count is not None and self._number is not None:
            now = self._count(tensor)
            if now != self._number:
                raise changed_error(tensor.dtype, tensor.shape, now, self._number)
        return tensor


class Spilled(Packed, Holder):
    """Stands for a tensor whose memory a store has: it holds what the store calls it, and the tensor's layout there.

    The store frees the bytes when the last such object over them dies.
    """

    __slots__ = ("__weakref__", "_key", "_layout", "_source")

    def __init__(self, store: DiskStore, source: Any, stored: Any, key: Hashable, layout: Layout) -> None:
        """Take over a reference to what a store has under a key; `tensor()` gets it from `source`."""
        super().__init__(store.drops.append, stored)
        self._source, self._key, self._layout = source, key, layout

    @property
    def stored(self) -> Any:
        """What the memory is stored as."""
        return self.held

    def __repr__(self) -> str:
        return f"<Spilled {self.held!r}>"


class SpilledSmall(Packed):
    """Stands for a small tensor, whose memory was copied to an array that many share."""

    __slots__ = ("__weakref__", "_layout", "_place")

    def __init__(self, place: Place, layout: Layout) -> None:
        self._place, self._layout = place, layout


def note_view(
    views: list[View], layout: Layout, operation: str | None = None, slot: str | None = None, start: int = 0
) -> None:
    """Add a tensor to the list that files have of an array's views, while there is room.

    Its offset counts from byte `start` of the array on.
    """
    if len(views) < MAX_VIEWS:
        offset = start + layout.offset
        views.append(View(operation or None, slot or None, layout.dtype_name, layout.shape, layout.strides, offset))


def present_label(operation: str | None = None, slot: str | None = None) -> Label:
    """Return the label of what an operation saves now, in this thread."""
    return Label(operation or None, slot or None, labels.current.module, labels.current.step)
