"""The entry of a stored array: where the array is, and what its store knows about it."""

import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.residency.residence import (
    ABOVE,
    BELOW,
    CALLERS,
    CALLERS_WRITING,
    LOADING,
    NEW,
    UNREADABLE,
    WRITING,
    Residence,
)
from spillgrad.storage.store import Handle, Label

_NOT_BELOW = (NEW, ABOVE, WRITING, CALLERS, CALLERS_WRITING)
_IN_USE = (WRITING, CALLERS, CALLERS_WRITING, LOADING)


class Entry(Handle):
    """A stored array: where it is (`residence`), and what its store needs to move it.

    Only `BudgetedTier` changes `residence`. Stores derive from this class, and add the place of the array in the tier
    below.
    """

    __slots__ = (
        "array",
        "arrival",
        "beside_bytes",
        "error",
        "key",
        "lease",
        "moving_thread",
        "must_spill",
        "persistent",
        "prefetched",
        "rank",
        "readers",
        "references",
        "residence",
        "unchanged",
    )

    def __init__(self, array: np.ndarray, sequence: int, label: Label | None) -> None:
        super().__init__(array, sequence, label)
        self.residence: Residence = NEW
        self.references = 1
        self.array: np.ndarray | None = None  # the store's own reference
        self.arrival: Callable[[], None] | None = None  # waits for bytes that are still being copied into the array
        self.lease: Lease | None = None  # set while an array that the store made is alive, here or with callers
        self.moving_thread: int | None = None  # the caller's thread that reads or writes it, if one does
        self.readers = 0  # how many reads of its place below are under way; the place must stay meanwhile
        self.key: Hashable | None = None
        self.unchanged: Callable[[], bool] | None = None
        self.error: SpillError | None = None  # why the values are lost
        self.rank = sequence  # the higher, the sooner it is needed
        self.must_spill = False  # the step's plan says that it cannot stay in the tier until it is needed
        self.prefetched = False  # it was read before it was asked for, and stays until it is asked for
        self.beside_bytes = 0  # further bytes that callers hold for this array, counted too
        self.persistent = False  # used in every step, until it is dropped

    def await_arrival(self) -> None:
        """Wait until all bytes have been copied into the array. Called without the store's lock."""
        arrival = self.arrival  # another thread may wait too, and clear it first
        if arrival is not None:
            arrival()
            if self.arrival is arrival:  # else other bytes are on their way since
                self.arrival = None

    @property
    def has_copy_below(self) -> bool:
        """Whether the tier below holds an up-to-date copy of the array."""
        raise NotImplementedError

    @property
    def loading_bytes(self) -> int:
        """How many bytes of this tier a read of the array takes."""
        return self.nbytes

    @property
    def is_below_only(self) -> bool:
        """Whether the array is in the tier below only, so that `get` must read it."""
        return self.residence is BELOW or self.residence is UNREADABLE

    @property
    def is_absent(self) -> bool:
        """Whether the array is in the tier below only, or is being read from there."""
        return self.is_below_only or self.residence is LOADING

    @property
    def is_writing(self) -> bool:
        """Whether a thread is writing the array to the tier below."""
        return self.residence is WRITING or self.residence is CALLERS_WRITING

    @property
    def in_callers_memory(self) -> bool:
        """Whether the array is in memory that a caller owns, which does not count."""
        return self.residence is CALLERS or self.residence is CALLERS_WRITING

    @property
    def is_in_use(self) -> bool:
        """Whether a thread reads or writes the array, or its place below."""
        return self.readers > 0 or self.residence in _IN_USE

    @property
    def is_unwritten(self) -> bool:
        """Whether the array is still to be written to the tier below."""
        return self.references > 0 and self.error is None and self.residence in _NOT_BELOW


# The type of the entries of a store.
E = TypeVar("E", bound=Entry)


class Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an array that the store made; its bytes count until its last alias dies."""

    __slots__ = ("entry", "pinned", "unchanged")
    entry: Entry
    pinned: bool  # only callers hold the array
    unchanged: "weakref.WeakMethod[Callable[[], bool]] | None"  # tells whether callers changed the array
