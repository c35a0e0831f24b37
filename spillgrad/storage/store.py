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
    """Where an array comes from; shown in error messages and stored in files.

    Parameters
    ----------
    op : str, optional
        Name of the operation that saved the array.
    slot : str, optional
        The operation's name for the array, such as "self" or "result".
    module : str, optional
        Path of the module that the operation ran in.
    step : int, optional
        Number of the training step.
    """

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
    """A tensor that an operation saved as a view of a stored array.

    Parameters
    ----------
    op : str or None
        Name of the operation.
    slot : str or None
        The operation's name for the tensor.
    dtype : str
        Name of the tensor's dtype.
    shape : tuple of int
        The tensor's shape.
    strides : tuple of int
        The tensor's strides in bytes.
    offset : int
        Where the tensor begins in the array, in bytes.
    """

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
    """The name of one stored array; only the store that made the handle can use it.

    Parameters
    ----------
    array : ndarray
        The array, whose `shape`, `dtype` and `nbytes` become attributes.
    sequence : int
        Number of the array in its store.
    label : Label or None
        Where the array comes from.

    Attributes
    ----------
    views : list of View
        The tensors that were saved as views of the array. The caller of `put` may append to it; the file stores the
        views in this list when the array is described.
    watcher : callable
        Returns the object that counts the changes of the array in memory, or None.
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
    """What a store did so far, and what it holds now, in bytes and seconds.

    Parameters
    ----------
    packed_bytes : int
        Bytes given to `put`.
    deduplicated_bytes : int
        Those of the packed bytes that the store had already.
    written_bytes : int
        Bytes of arrays that were written to disk.
    stored_bytes : int
        Bytes that the written arrays took on disk, after encoding.
    read_bytes : int
        Bytes of arrays that were read from disk; of parts of an array, those on disk.
    fetched_bytes : int
        Bytes that the arrays that were read take on disk, encoded.
    live_bytes : int
        Bytes of live arrays, each counted once, wherever it is.
    ram_bytes : int
        Bytes in RAM, which the budget bounds.
    peak_ram_bytes : int
        The most bytes in RAM so far.
    disk_bytes : int
        Bytes that the files occupy.
    peak_disk_bytes : int
        The most bytes that the files occupied so far.
    cache_hits : int
        Number of uses whose array was in RAM, or on its way there.
    cache_misses : int
        Number of uses that had to read the disk themselves.
    wait_write_s : float
        Seconds that callers waited for room.
    wait_read_s : float
        Seconds that callers waited for reads.
    writing_s, reading_s : float
        Seconds in which at least one array was being written or read, checksums included: bytes divided by these
        seconds are the speed of the disk.
    """

    packed_bytes: int = 0
    deduplicated_bytes: int = 0
    written_bytes: int = 0
    stored_bytes: int = 0
    read_bytes: int = 0
    fetched_bytes: int = 0
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
    """Protocol of stores, which keep arrays until they are needed again.

    Every method may be called from any thread.
    """

    def put(
        self, array: np.ndarray | Remote, *, key: Hashable | None = None, label: Label | None = None,
        unchanged: Callable[[], bool] | None = None, persistent: bool = False,
    ) -> Handle:  # fmt: skip
        """Keep `array` and return its handle, which holds one reference.

        The array itself is kept, not a copy, unless it is read-only, unaligned or not C-contiguous.

        Parameters
        ----------
        array : ndarray or Remote
            The array. A remote array, which is outside of the host's memory, is copied as soon as there is room, and
            must not change before it is copied.
        key : hashable, optional
            Identity of the array. With the key of a live handle, that handle is returned again, with one more
            reference.
        label : Label, optional
            Where the array comes from.
        unchanged : callable, optional
            Must be given if the caller may modify the array afterwards. It must return False once the array was
            modified.
        persistent : bool, default False
            Whether the array lives longer than a training step, as parameters do, and is used in each step.

        Returns
        -------
        Handle
            For the other methods.

        Raises
        ------
        SpillError
            If this write or an earlier one failed.
        """
        ...

    def get(self, handle: Handle) -> np.ndarray:
        """Return an array with the shape, dtype and bytes that were put; all callers that hold it share one array.

        Parameters
        ----------
        handle : Handle
            What `put` returned.

        Returns
        -------
        ndarray
            The array that was put, or one that was read back.

        Raises
        ------
        SpillError
            If the array was changed before it was stored, or if its handle was dropped.
        SpillCorruptionError
            If the bytes read are not the bytes written.
        """
        ...

    def use(self, handle: Handle) -> None:
        """Record that a caller who already holds an array uses it again.

        Parameters
        ----------
        handle : Handle
            The handle of the array.

        Raises
        ------
        SpillError
            As by `get`.
        """
        ...

    def begin_change(self, handle: Handle, array: np.ndarray) -> None:
        """Announce that an array is about to be modified; it stays in RAM until `end_change`.

        Until then, the store does not check whether the array is unchanged. Afterwards, it does so only if `end_change`
        got ``changed=False``.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        array : ndarray
            The array that `get` returned. A caller that will overwrite the whole array may give another array of the
            same shape and dtype, which becomes the array of `handle`.

        Raises
        ------
        SpillError
            As by `get`.
        """
        ...

    def end_change(self, handle: Handle, changed: bool = True) -> None:
        """Announce that an array that is being changed has its values; do nothing for another array.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        changed : bool, default True
            Whether the array has new values; with False, it still has its old ones.
        """
        ...

    def replace(self, handle: Handle, array: Remote) -> None:
        """Replace the values of an array by those of a remote array.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        array : Remote
            Array outside of the host's memory, of the same shape and dtype. It is copied as soon as there is room, and
            must not change before it is copied.

        Raises
        ------
        SpillError
            As by `get`.
        """
        ...

    def begin_step(self) -> None:
        """Announce a training step, in which persistent arrays are expected to be used as in the last step.

        A store without persistent arrays begins a step by itself once all its arrays have been dropped.
        """
        ...

    def drop(self, handle: Handle) -> None:
        """Release one reference of a handle; the last one frees the array.

        Never blocks, so finalizers may call it.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        """
        ...

    def prefetch(self, handles: Iterable[Handle]) -> None:
        """Load arrays, as far as the budget allows without evicting arrays needed sooner.

        Parameters
        ----------
        handles : iterable of Handle
            The handles of the arrays, in the order in which to load them.
        """
        ...

    def flush(self) -> None:
        """Wait until every live array is in the store's files.

        Raises
        ------
        SpillError
            If an array could not be written.
        """
        ...

    def stats(self) -> StoreStats:
        """Return the present counters.

        Returns
        -------
        StoreStats
            Bytes and seconds, so far and now.
        """
        ...

    def check(self) -> list[SpillCorruptionError]:
        """Read back all arrays on disk, and compare their checksums.

        Returns
        -------
        list of SpillCorruptionError
            An error for each array whose bytes are not those written.
        """
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
