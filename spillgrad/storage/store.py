"""The contract of a store: the protocol that every implementation follows, and the small values it hands out.

A store takes bytes and gives the same bytes back. It knows no tensor, no autograd and no arithmetic.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from spillgrad.errors import SpillCorruptionError, SpillError
from spillgrad_kernels.memory import buffers


@dataclasses.dataclass(frozen=True)
class Label:
    """Where an array comes from; shown in error messages and stored in files."""

    op: str | None = None
    slot: str | None = None
    module: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        name = ".".join(part for part in (self.op, self.slot) if part) or "array"
        module = f" in {self.module}" if self.module else ""
        step = f" at step {self.step}" if self.step is not None else ""
        return name + module + step


NO_LABEL = Label()


class View(NamedTuple):
    """A tensor that an operation saved as a view of a stored array. Units: offset and strides in bytes."""

    op: str | None
    slot: str | None
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Remote(Protocol):
    """An array outside the host's memory; a store copies it once the store has room for it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        """Begin to copy the array; return the copy, and a function that waits until the copy is complete."""
        ...


class Watcher(Protocol):
    """Counts the changes of an array that a store handed out."""

    def is_unchanged(self) -> bool:
        """Return whether the array is as it was when it was handed out. Must be quick and take no lock."""
        ...


def nobody() -> None:
    """Return None, as a weak reference to a dead object does."""


class Handle:
    """Names one stored array; only the store that made the handle can use it.

    The caller of `put` may append to `views`; the file stores the views in this list when the array is described.
    `watcher()` returns the object that counts the changes of the array in memory, or None.
    """

    __slots__ = ("__weakref__", "dtype", "label", "nbytes", "sequence", "shape", "views", "watcher")

    def __init__(self, array: np.ndarray | Remote, sequence: int, label: Label | None) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.nbytes = array.nbytes
        self.sequence = sequence
        self.label = label or NO_LABEL
        self.views: list[View] = []
        self.watcher: Callable[[], Any] = nobody

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence}: {self.label}, {self.dtype.name} {self.shape}>"


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """What a store did so far, and what it holds now.

    Units: bytes and seconds. `packed_bytes` were given to `put`; the store had `deduplicated_bytes` of them already.
    `written_bytes` of arrays were written to disk, as `stored_bytes` after encoding. `live_bytes` counts each live
    array once, wherever it is. The budget bounds `ram_bytes`; the files occupy `disk_bytes`. A hit is a use whose array
    was in RAM, or on its way there; a miss had to read the disk itself. `writing_s` and `reading_s` are how long at
    least one array was being written or read, checksums included: bytes divided by these seconds are the speed of the
    disk.
    """

    packed_bytes: int = 0
    deduplicated_bytes: int = 0
    written_bytes: int = 0
    stored_bytes: int = 0
    read_bytes: int = 0
    live_bytes: int = 0
    ram_bytes: int = 0
    peak_ram_bytes: int = 0
    disk_bytes: int = 0
    peak_disk_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    wait_write_s: float = 0.0
    wait_read_s: float = 0.0
    writing_s: float = 0.0
    reading_s: float = 0.0


class Store(Protocol):
    """Keeps arrays until they are needed again. Every method may be called from any thread."""

    def put(
        self, array: np.ndarray | Remote, *, key: Hashable | None = None, label: Label | None = None,
        unchanged: Callable[[], bool] | None = None, persistent: bool = False,
    ) -> Handle:  # fmt: skip
        """Keep `array` and return its handle, which holds one reference.

        With the `key` of a live handle, that handle is returned again, with one more reference. The array itself is
        kept, not a copy, unless it is read-only, unaligned or not C-contiguous. If the caller may modify the array
        afterwards, `unchanged` must return False once the array was modified. A remote array is copied as soon as there
        is room, and must not change before it is copied. A `persistent` array lives longer than a training step, as
        parameters do, and is used in each step.

        Raises SpillError if this write or an earlier one failed.
        """
        ...

    def get(self, handle: Handle) -> np.ndarray:
        """Return an array with the shape, dtype and bytes that were put; all callers that hold it share one array.

        Raises SpillError if the array was changed before it was stored, or if its handle was dropped. Raises
        SpillCorruptionError if the bytes read are not the bytes written.
        """
        ...

    def use(self, handle: Handle) -> None:
        """Record that a caller who already holds the array of `handle` uses it again. Raises what `get` raises."""
        ...

    def begin_change(self, handle: Handle, array: np.ndarray) -> None:
        """Announce that `array`, the array of `handle`, is about to be modified; it stays in RAM until `end_change`.

        Until then, the store does not check whether the array is unchanged. Afterwards, it does so only if `end_change`
        got `changed=False`. A caller that will overwrite the whole array may give another array of the same shape and
        dtype, which becomes the array of `handle`.

        Raises what `get` raises.
        """
        ...

    def end_change(self, handle: Handle, changed: bool = True) -> None:
        """Announce that the array has its new values, or, with `changed=False`, still its old values.

        Does nothing for an array that is not being changed.
        """
        ...

    def replace(self, handle: Handle, array: Remote) -> None:
        """Replace the values of the array of `handle` by those of a remote array of the same shape and dtype.

        The remote array is copied as soon as there is room, and must not change before it is copied. Raises what `get`
        raises.
        """
        ...

    def begin_step(self) -> None:
        """Announce a training step, in which persistent arrays are expected to be used as in the last step.

        A store without persistent arrays begins a step by itself once all its arrays have been dropped.
        """
        ...

    def drop(self, handle: Handle) -> None:
        """Release one reference of `handle`; the last one frees the array. Never blocks, so finalizers may call it."""
        ...

    def prefetch(self, handles: Iterable[Handle]) -> None:
        """Load `handles` in this order, as far as the budget allows without evicting arrays needed sooner."""
        ...

    def flush(self) -> None:
        """Wait until every live array is in the store's files.

        Raises SpillError if an array could not be written.
        """
        ...

    def stats(self) -> StoreStats:
        """Return the present counters."""
        ...

    def check(self) -> list[SpillCorruptionError]:
        """Read back all arrays on disk; return an error for each array whose bytes are not those written."""
        ...

    def retire(self) -> None:
        """Close as soon as no handle is live. Finalizers may call it."""
        ...

    def close(self) -> None:
        """Free everything and remove the files; arrays handed out stay valid. Closing twice is allowed."""
        ...


def storable(array: np.ndarray | Remote) -> np.ndarray | Remote:
    """Return `array` as a NumPy array; return a remote array as it is.

    Raises SpillError if the array does not consist of plain bytes, or has more dimensions than HDF5 allows.
    """
    if not hasattr(array, "fetch"):
        array = np.asarray(array)
    if array.dtype.hasobject:
        raise SpillError(
            f"put: got dtype {array.dtype}; Python objects have no bytes to store; convert them to numbers"
        )
    if len(array.shape) > 32:
        raise SpillError(f"put: got {len(array.shape)} dimensions; HDF5 holds at most 32; reshape the array")
    return array


def may_be_kept(array: np.ndarray | Remote) -> bool:
    """Return whether a store may keep `array` itself: it is C-contiguous, aligned and writeable."""
    return isinstance(array, np.ndarray) and array.flags.carray


def dense_copy(array: np.ndarray | Remote) -> tuple[np.ndarray, Callable[[], None] | None]:
    """Return a copy that a store may keep; for a remote array, also a function that waits until it is complete."""
    return (buffers.copy(array), None) if isinstance(array, np.ndarray) else array.fetch()


def changed_error(handle: Handle) -> SpillError:
    """Return the error for an array that was modified while it waited to be written."""
    return SpillError(
        f"get: {handle.label} was modified in place before it was stored, its old values are lost; "
        "modify a copy, or modify it after backward"
    )


def gone_error(who: str, handle: Handle) -> SpillError:
    """Return the error for a handle that was dropped, or that belongs to another store."""
    return SpillError(
        f"{who}: {handle.label} is not in this store; its handle was dropped, or belongs to another store"
    )


def closed_error(who: str) -> SpillError:
    """Return the error for a store that was closed."""
    return SpillError(f"{who}: the store is closed; make a new one")
