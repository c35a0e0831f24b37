"""A stored array as the disk store sees it."""

import weakref
from collections.abc import Callable, Hashable

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.codecs import Encoded
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.origin_counters import OriginCounters
from spillgrad.storage.residency.residence import (
    CALLERS,
    CALLERS_WRITING,
    DISK,
    LOADING,
    NEW,
    RAM,
    UNREADABLE,
    WRITING,
    Residence,
)
from spillgrad.storage.store import Handle, Label

_NOT_ON_DISK = (NEW, RAM, WRITING, CALLERS, CALLERS_WRITING)
_IN_USE = (WRITING, CALLERS, CALLERS_WRITING, LOADING)


class Entry(Handle):
    """A stored array: where it is (`residence`), and what belongs to it there.

    Only `BudgetedTier` changes `residence`.
    """

    __slots__ = (
        "array",
        "arrival",
        "beside_bytes",
        "counters",
        "encoded",
        "error",
        "extent",
        "key",
        "lease",
        "must_spill",
        "persistent",
        "prefetched",
        "rank",
        "readers",
        "references",
        "residence",
        "retried",
        "staged_bytes",
        "stored_as",
        "unchanged",
    )

    def __init__(self, array: np.ndarray, sequence: int, label: Label | None) -> None:
        super().__init__(array, sequence, label)
        self.residence: Residence = NEW
        self.references = 1
        self.array: np.ndarray | None = None  # the store's own reference
        self.arrival: Callable[[], None] | None = None  # waits for bytes that are still being copied into the array
        self.lease: Lease | None = None  # set while an array that the store made is alive, here or with callers
        self.extent: Extent | None = None  # its place on disk
        self.readers = 0  # how many reads of the extent are under way; until they end it must not be freed
        self.key: Hashable | None = None
        self.unchanged: Callable[[], bool] | None = None
        self.error: SpillError | None = None  # why the values are lost
        self.rank = sequence  # the higher, the sooner it is needed
        self.must_spill = False  # the step's plan says that it cannot stay in RAM until it is needed
        self.prefetched = False  # it was read before it was asked for, and stays until it is
        self.beside_bytes = 0  # further bytes that callers hold for this array, counted too
        self.counters: OriginCounters  # those of the arrays with the same origin
        self.stored_as = sequence  # the number by which files know its present values
        self.persistent = False  # used in every step, until it is dropped
        self.retried = False  # its first write failed
        self.encoded: Encoded | None = None  # its encoded form, while that is on its way to disk
        self.staged_bytes = 0  # reserved for the encoded form

    def await_arrival(self) -> None:
        """Return once the array's bytes are there. Called without the store's lock."""
        arrival = self.arrival  # another thread may wait too, and clear it first
        if arrival is not None:
            arrival()
            self.arrival = None

    @property
    def on_disk_only(self) -> bool:
        """Whether it must be read to be had."""
        return self.residence is DISK or self.residence is UNREADABLE

    @property
    def is_writing(self) -> bool:
        """Whether a thread is writing it."""
        return self.residence is WRITING or self.residence is CALLERS_WRITING

    @property
    def in_callers_memory(self) -> bool:
        """Whether its bytes are in memory that a caller owns, and are not counted."""
        return self.residence is CALLERS or self.residence is CALLERS_WRITING

    @property
    def is_in_use(self) -> bool:
        """Whether a thread reads or writes its array or its extent."""
        return self.readers > 0 or self.residence in _IN_USE

    @property
    def is_unwritten(self) -> bool:
        """Whether it is still to be written."""
        return self.references > 0 and self.error is None and self.residence in _NOT_ON_DISK

    @property
    def staging_bytes(self) -> int:
        """How many bytes beside its own a read takes."""
        return 0 if self.extent is None else self.extent.staging_bytes

    @property
    def loading_bytes(self) -> int:
        """How many bytes of RAM a read takes."""
        return self.nbytes + self.staging_bytes

    @property
    def went_through_page_cache(self) -> bool:
        """Whether it was written through the page cache though its file allows direct I/O."""
        return self.extent is not None and self.extent.cached


class Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an array that the store made; its bytes count until its last alias dies."""

    __slots__ = ("entry", "pinned", "unchanged")
    entry: Entry
    pinned: bool  # only callers hold it
    unchanged: "weakref.WeakMethod[Callable[[], bool]] | None"  # tells whether callers changed the array
