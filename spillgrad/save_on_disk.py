"""Ready-made hooks that spill saved tensors to HDF5 files under a RAM budget: `save_on_cpu`'s sibling for disks."""

import os
import warnings
import weakref
from typing import Any

import numpy as np

from spillgrad import labels
from spillgrad.autograd import hooks
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.file_system import is_ram_disk
from spillgrad.storage.store import Handle, Label, StoreStats
from spillgrad.tensor import Storage, Tensor

# A smaller tensor costs more in bookkeeping than it frees.
MIN_BYTES = 4096


class Spilled:
    """What a spilled tensor leaves in the graph: its storage's handle and where in that storage it lies.

    The storage's bytes are freed when the last such object dies.
    """

    __slots__ = ("__weakref__", "_handle", "_offset", "_shape", "_storage", "_store", "_strides")

    def __init__(self, store: DiskStore, handle: Handle, tensor: Tensor, root: np.ndarray) -> None:
        self._store = store
        self._handle = handle
        self._storage = weakref.ref(tensor.storage)
        self._shape = tensor.shape
        self._strides = tensor.array.strides
        self._offset = _address(tensor.array) - _address(root)

    def __del__(self) -> None:
        self._store.drop(self._handle)

    def tensor(self, storages: "weakref.WeakValueDictionary[int, Storage]") -> Tensor:
        """Return the tensor, over the storage it was packed from where that is still in memory, else over one reloaded
        copy.
        """
        root = self._store.get(self._handle)
        storage = self._storage()
        if storage is None or storage.array is not root:
            storage = storages.get(self._handle.sequence)
            if storage is None or storage.array is not root:
                storage = storages[self._handle.sequence] = Storage(root)
        array: np.ndarray = np.ndarray(self._shape, root.dtype, root, self._offset, self._strides)
        return Tensor.wrap(array, storage)

    def __repr__(self) -> str:
        return f"<Spilled {self._handle!r}>"


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class save_on_disk:
    """Keep what operations inside save for backward in files below `directory`, at most `ram_budget` bytes of it in
    RAM.

    Leaving the context only stops packing: backward may run later. Files are removed when the last graph that uses them
    dies, or at process exit. Re-enterable, and cheap to make anew for each step. `pack_hook` and `unpack_hook` are the
    ready-made pair, usable in `saved_tensors_hooks(...)` and `register_hooks(...)` too.

    One storage is stored once, however many nodes and views save it. Tensors that stay in RAM anyway (views of leaves
    that require a gradient) or are smaller than `min_bytes` are not spilled. A saved tensor modified in place later
    comes back as it was, or raises: never as something else.

    Units: `ram_budget` is bytes, or a size such as "64MiB". Without `directory`, a temporary one is used.
    Raises BudgetError for a budget that does not parse, SpillError for a directory that cannot be used.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, ram_budget: int | str, min_bytes: int = MIN_BYTES
    ) -> None:
        self._store = DiskStore(directory, ram_budget=ram_budget)
        self._min_bytes = min_bytes
        self._storages: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
        self._entered: list[hooks.saved_tensors_hooks] = []
        weakref.finalize(self, self._store.retire).atexit = False
        if directory is None and is_ram_disk(self._store.directory):
            warnings.warn(
                f"save_on_disk: the temporary directory {self._store.directory} is a RAM disk, so spilling "
                f"frees no memory; "
                "pass a directory on a real disk",
                stacklevel=2,
            )

    def __enter__(self) -> "save_on_disk":
        context = hooks.saved_tensors_hooks(self.pack_hook, self.unpack_hook)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.pop().__exit__(*exception)

    def pack_hook(self, tensor: Tensor) -> Any:
        """Hand a tensor's storage to the store; return what `unpack_hook` takes."""
        storage = tensor.storage
        if storage.trainable or tensor.nbytes < self._min_bytes:
            return tensor
        root = storage.array
        key: Any = (storage.uid, storage.version)
        if not root.flags.c_contiguous:
            root, key = np.ascontiguousarray(tensor.array), None
            tensor = Tensor.wrap(root)
        operation, slot = hooks.packing()
        label = Label(operation or None, slot or None, labels.current.module, labels.current.step)
        handle = self._store.put(root, key=key, label=label, unchanged=_Unchanged(storage))
        return Spilled(self._store, handle, tensor, root)

    def unpack_hook(self, packed: Any) -> Tensor:
        """Return the tensor that `pack_hook` packed."""
        return packed.tensor(self._storages) if isinstance(packed, Spilled) else packed

    def stats(self) -> StoreStats:
        """Return the store's counters: bytes packed, deduplicated, written, read, live and in RAM; seconds waited."""
        return self._store.stats()

    def flush(self) -> None:
        """Return when every live spilled tensor is in the files. Raises SpillError when one could not be written."""
        self._store.flush()

    @property
    def directory(self) -> Any:
        """Where this object's files are."""
        return self._store.directory


class _Unchanged:
    """Whether a storage is still at the version at which it was packed; a storage that died can no longer change."""

    __slots__ = ("_storage", "_version")

    def __init__(self, storage: Storage) -> None:
        self._storage = weakref.ref(storage)
        self._version = storage.version

    def __call__(self) -> bool:
        storage = self._storage()
        return storage is None or storage.version == self._version
