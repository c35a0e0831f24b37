"""What every framework shares about saved tensors: their memory as a store takes it, and the objects in the graph.

A framework adds three things of its own: which memory a tensor has, how often that memory was changed, and how a tensor
is made over memory that came back.
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
    """The place of a tensor in its memory. Strides and offset are in bytes.

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
        """The name of the dtype, without the name of the framework."""
        return _name_of(self.dtype)


# Layouts repeat from node to node, so equal layouts share one object.
shared_layout = functools.lru_cache(maxsize=4096)(Layout)


@functools.cache
def _name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


class SavedMemory(NamedTuple):
    """The memory of a saved tensor, with what a store must know of it.

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
    """The number of in-place changes of a memory when this object was made.

    Frameworks derive from it. The object refers to the counter of changes, and does not hold the memory.
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
        """Raise SavedTensorError, which describes the tensor by `layout`, if the memory was changed."""
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
        """Return the tensor."""
        raise NotImplementedError


class Kept(Packed):
    """A saved tensor that stays in RAM, as the graph keeps it.

    `count`, if given, returns the number of in-place changes of a tensor; then a change since is an error.
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
    """A saved tensor whose memory a store has, as the graph keeps it: the store's handle, and the tensor's layout.

    The store frees the bytes when the last such object over them dies.
    """

    __slots__ = ("__weakref__", "_key", "_layout", "_source")

    def __init__(self, store: DiskStore, source: Any, stored: Any, key: Hashable, layout: Layout) -> None:
        """Take over a reference to `stored`, the handle of the memory `key`, as `held`; `source` gives the memory."""
        super().__init__(store.drops.append, stored)
        self._source, self._key, self._layout = source, key, layout

    def __repr__(self) -> str:
        return f"<Spilled {self.held!r}>"


class SpilledSmall(Packed):
    """A small saved tensor, as the graph keeps it; its memory was copied to an array that many share."""

    __slots__ = ("__weakref__", "_layout", "_place")

    def __init__(self, place: Place, layout: Layout) -> None:
        self._place, self._layout = place, layout


def note_view(
    views: list[View], layout: Layout, operation: str | None = None, slot: str | None = None, start: int = 0
) -> None:
    """Add a tensor to the views that files list of an array, unless the list is full.

    The tensor's memory begins at byte `start` of the array.
    """
    if len(views) < MAX_VIEWS:
        offset = start + layout.offset
        views.append(View(operation or None, slot or None, layout.dtype_name, layout.shape, layout.strides, offset))


def present_label(operation: str | None = None, slot: str | None = None) -> Label:
    """Return the label of the tensor that an operation saves now, in this thread."""
    return Label(operation or None, slot or None, labels.current.module, labels.current.step)
