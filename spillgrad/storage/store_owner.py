"""What has a store, or shares that of another: one way to open it, and to ask for what it did."""

import functools
import warnings
from pathlib import Path
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.storage.disk.file_system import is_ram_disk
from spillgrad.storage.disk.preflight import Preflight, preflight
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import StoreStats

# A smaller tensor costs more in bookkeeping than it frees.
MIN_BYTES = 4096
# Views of an array that the files tell of: HDF5 keeps an attribute below 64 KiB with the structure.
MAX_VIEWS = 32
# What says nothing of a store, as the one of another owner is what it is.
_OPTIONS_OF_STORE = {
    "ram_budget": None,
    "direct_io": None,
    "checksums": True,
    "on_full": "raise",
    "codec": None,
    "encrypt": False,
    "keep_journal": None,
}


class StoreOwner:
    """What puts something into a store that it made, or that another made."""

    _store: DiskStore

    def _open_store(
        self,
        who: str,
        directory: Any,
        ram_budget: int | str | None,
        *,
        shared: "tuple[str, type[StoreOwner]] | None" = None,
        stacklevel: int = 3,
        **options: Any,
    ) -> None:
        """Make a store, which closes when this object and all it put are gone, or take that of another owner.

        `shared` is what users call to make such an owner, and its class. Warnings are for whom `stacklevel` says: the
        caller of the caller. Raises ArgumentError for what does not go with either.
        """
        offload, owners = shared or (None, ())
        if isinstance(directory, owners):
            given = {"ram_budget": ram_budget, **options}
            refused = [name for name, value in given.items() if value != _OPTIONS_OF_STORE[name]]
            if refused:
                raise ArgumentError(
                    f"{who}: got {', '.join(refused)} with an offload, whose store, budget and options it shares; give "
                    f"a directory for a store of its own, or give {offload} what it takes"
                )
            self._store = directory._store
            return
        if ram_budget is None:
            instead = f"; or give what {offload} returned in place of the directory, to share its budget"
            raise ArgumentError(
                f'{who}: got no ram_budget; give bytes, or a size such as "512MiB"{instead if offload else ""}'
            )
        self._store = DiskStore(directory, ram_budget=ram_budget, **options)
        self._store.retire_with(self)
        if directory is None and _is_ram_disk(self._store.directory.parent):
            warnings.warn(
                f"{who}: the temporary directory {self._store.directory.parent} is a RAM disk, so spilling "
                f"frees no memory; pass a directory on a real disk",
                stacklevel=stacklevel,
            )

    @property
    def directory(self) -> Path:
        """Where this object's files are."""
        return self._store.directory

    def stats(self) -> StoreStats:
        """Return the store's counters."""
        return self._store.stats()

    def flush(self) -> None:
        """Return when all that was put is in the files, and all that happened in the journal.

        Raises SpillError when something could not be written.
        """
        self._store.flush()

    def preflight(self) -> Preflight:
        """Return what the disk offers: free space, file system, measured speed; see `sg.storage.preflight`."""
        return preflight(self._store.directory)


_is_ram_disk = functools.cache(is_ram_disk)
