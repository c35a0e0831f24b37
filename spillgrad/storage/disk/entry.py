"""The entry of a stored array in a disk store, with its place on disk."""

import numpy as np

from spillgrad.storage.codecs import Encoded
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.disk.source_file import NoValues, SourceExtent
from spillgrad.storage.origin_counters import OriginCounters
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.store import Label


class DiskEntry(Entry):
    """The entry of a stored array, in a store whose lower tier is the disk."""

    __slots__ = ("counters", "digest_bytes", "encoded", "extent", "retried", "staged_bytes", "stored_as")

    def __init__(self, array: np.ndarray, sequence: int, label: Label | None) -> None:
        super().__init__(array, sequence, label)
        self.extent: Extent | SourceExtent | NoValues | None = None  # its place on disk
        self.counters: OriginCounters  # shared by all arrays of the same origin
        self.stored_as = sequence  # the number under which files have its present values
        self.retried = False  # its first write failed
        self.encoded: Encoded | None = None  # its encoded form, while that is on its way to disk
        self.staged_bytes = 0  # reserved for the encoded form
        self.digest_bytes = 0  # counted for the checksums of its pages, once parts of it are read

    @property
    def has_copy_below(self) -> bool:
        return self.extent is not None

    @property
    def staging_bytes(self) -> int:
        """How many bytes of RAM a read takes in addition to the array."""
        return 0 if self.extent is None else self.extent.staging_bytes

    @property
    def loading_bytes(self) -> int:
        return self.nbytes + self.staging_bytes

    @property
    def fetched_bytes(self) -> int:
        """How many bytes of the disk a read of the whole array takes."""
        return 0 if self.extent is None else self.extent.stored_bytes

    @property
    def went_through_page_cache(self) -> bool:
        """Whether the array was written through the page cache although its file allows direct I/O."""
        return self.extent is not None and self.extent.cached
