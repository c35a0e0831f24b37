"""Own a store, or share the store of another owner: the base of `save_on_disk` and `disk_offload`."""

import functools
import inspect
import os
from pathlib import Path
from typing import Any, ClassVar

from spillgrad import user_line
from spillgrad.errors import ArgumentError
from spillgrad.storage.disk.file_system import is_ram_disk
from spillgrad.storage.disk.preflight import Preflight, preflight
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import StoreStats

# A smaller tensor costs more in bookkeeping than it frees.
MIN_BYTES = 4096
# The most views of an array that files list: HDF5 keeps an attribute below 64 KiB with the structure.
MAX_VIEWS = 32
# The default options of a store; an owner that shares a store may give no other values.
_OPTIONS_OF_STORE = {
    **{name: option.default for name, option in inspect.signature(DiskStore).parameters.items()},
    "ram_budget": None,
}


class StoreOwner:
    """Puts arrays into a store that it made, or that another owner made."""

    _store: DiskStore
    _kind_of_store: ClassVar[type[DiskStore]] = DiskStore  # a subclass may have another one

    def _open_store(
        self, who: str, directory: Any, ram_budget: int | str | None, *,
        shared: "tuple[str, tuple[type[StoreOwner], ...]] | None" = None, **options: Any,
    ) -> None:  # fmt: skip
        """Make a store in `directory`; or, if `directory` is another owner, share that owner's store.

        A store made here closes when this object and all handles of the store are gone. `shared` is a pair: the
        name of the function that makes owners whose stores can be shared, and the classes of these owners. Messages
        begin with `who`. Raises ArgumentError if a shared store is given options, or if a new store is given no
        `ram_budget`.
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
        self._store = self._made_store(who, directory, ram_budget=ram_budget, **options)
        self._store.retire_with(self)

    def _made_store(self, who: str, directory: str | os.PathLike[str] | None, **options: Any) -> DiskStore:
        """Return a new store in `directory`. Warns if that is by default, and a RAM disk."""
        store = self._kind_of_store(directory, **options)
        if directory is None and _is_ram_disk(store.directory.parent):
            user_line.warn(
                f"{who}: the temporary directory {store.directory.parent} is a RAM disk, so spilling frees no memory; "
                "pass a directory on a real disk"
            )
        return store

    @property
    def directory(self) -> Path:
        """The directory of this object's files."""
        return self._store.directory

    def stats(self) -> StoreStats:
        """Return the store's counters.

        Returns
        -------
        StoreStats
            Bytes and seconds, so far and now.
        """
        return self._store.stats()

    def flush(self) -> None:
        """Wait until all arrays that were put are in the files, and all events are in the journal.

        Raises
        ------
        SpillError
            If something could not be written.
        """
        self._store.flush()

    def preflight(self) -> Preflight:
        """Return the disk's free space, file system and measured speed.

        Returns
        -------
        Preflight
            What `sg.storage.preflight` returns for the directory of the files.
        """
        return preflight(self._store.directory)


_is_ram_disk = functools.cache(is_ram_disk)
