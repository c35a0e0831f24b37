"""The base class of every framework's `save_on_disk`: it owns a store, and gives saved tensors to the store."""

import os
from typing import Any, ClassVar

from spillgrad.autograd.core import hooks
from spillgrad.errors import OperandError
from spillgrad.spill.saved_memory import SavedMemory, note_view
from spillgrad.spill.small_tensors import SmallTensors
from spillgrad.storage.codecs import is_lossy
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.store import Handle, Label
from spillgrad.storage.store_owner import MIN_BYTES, StoreOwner

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# The most bytes of saved tensors that stay on a CUDA device. Two of the largest tensors that a layer of GPT-2 saves at
# 4 × 512 tokens: enough to copy one while another is used.
DEVICE_BUDGET = "64MiB"


class SpillContext(StoreOwner):
    """Owns a store for saved tensors. Each framework's `save_on_disk` derives from it, and adds the hooks."""

    # The name of the function whose result may be passed in place of a directory, and the classes of these results.
    _shared: ClassVar[tuple[str, tuple[type[StoreOwner], ...]] | None] = None

    def __init__(
        self, directory: str | os.PathLike[str] | StoreOwner | None = None, *, ram_budget: int | str | None = None,
        min_bytes: int | str = MIN_BYTES, direct_io: bool | None = None, checksums: bool = True, on_full: str = "raise",
        codec: str | None = None, encrypt: bool = False, keep_journal: str | os.PathLike[str] | None = None,
        only: hooks.Predicate | None = None,
    ) -> None:  # fmt: skip
        """Open the store with these options; `spillgrad.save_on_disk` explains the options."""
        # `saved_tensors_hooks.__init__` is not called: it would store the bound hooks, and with them a reference cycle.
        self.only = hooks.checked_predicate("save_on_disk", only)
        self._min_bytes = parse_bytes(min_bytes)
        # Stands for the store's lossy codec in the keys of tensors that the codec may alter; None without such a codec.
        self._codec_mark = object() if is_lossy(codec) else None
        self._open_store(
            "save_on_disk",
            directory,
            ram_budget,
            shared=self._shared,
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            codec=codec,
            encrypt=encrypt,
            keep_journal=keep_journal,
        )
        self._small = SmallTensors(self._store)
        self._begin()

    def _begin(self) -> None:
        """Initialize the state that the hooks of the framework need. By default there is none."""

    def _put(self, memory: SavedMemory, label: Label, store: Any = None) -> Handle:
        """Put a saved tensor's memory into `store`, by default this context's, and return the handle.

        The tensor is added to the handle's views, which the files list. Raises the errors of `DiskStore.put`.
        """
        handle: Handle = (store or self._store).put(
            memory.array, key=memory.key, label=label, unchanged=memory.is_unchanged, watcher=memory.watcher
        )
        note_view(handle.views, memory.layout, label.op, label.slot)
        return handle

    def flush(self) -> None:
        """Wait until all live spilled tensors are in the files, and all events are in the journal.

        Raises
        ------
        SpillError
            If a tensor could not be written.
        """
        self._small.end_batch()
        super().flush()

    def __reduce__(self) -> Any:
        raise OperandError(
            "save_on_disk: cannot be copied or pickled, as its files are those of this process; make another one"
        )
