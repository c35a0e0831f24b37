"""The base of every framework's `save_on_disk`: a store, and one way to give it saved tensors."""

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


class SpillContext(StoreOwner):
    """A store for saved tensors. The frameworks' contexts derive from it, and add their hooks."""

    # The name of the function whose result may stand in place of a directory, and the class of that result.
    _shared: ClassVar[tuple[str, type[StoreOwner]] | None] = None
    # The number of stack frames between the one that warns and the caller's.
    _stacklevel: ClassVar[int] = 3

    def __init__(
        self,
        directory: str | os.PathLike[str] | StoreOwner | None = None,
        *,
        ram_budget: int | str | None = None,
        min_bytes: int | str = MIN_BYTES,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
        codec: str | None = None,
        encrypt: bool = False,
        keep_journal: str | os.PathLike[str] | None = None,
        only: hooks.Predicate | None = None,
    ) -> None:
        """Take the options that `spillgrad.save_on_disk` explains."""
        # `saved_tensors_hooks.__init__` is not called: it would store the bound hooks, and with them a reference cycle.
        self.only = hooks.checked_predicate("save_on_disk", only)
        self._min_bytes = parse_bytes(min_bytes)
        # The name of a lossy codec in the keys of tensors that the codec may alter.
        self._codec_mark = object() if is_lossy(codec) else None
        self._open_store(
            "save_on_disk",
            directory,
            ram_budget,
            shared=self._shared,
            stacklevel=self._stacklevel,
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
        """Prepare what the hooks of the framework remember. By default that is nothing."""

    def _put(self, memory: SavedMemory, label: Label, store: Any = None) -> Handle:
        """Give memory to `store`, by default this context's, and add the tensor to the views that files list of it.

        Raises the errors of `DiskStore.put`.
        """
        handle: Handle = (store or self._store).put(
            memory.array, key=memory.key, label=label, unchanged=memory.is_unchanged, watcher=memory.watcher
        )
        note_view(handle.views, memory.layout, label.op, label.slot)
        return handle

    def flush(self) -> None:
        """Wait until every live spilled tensor is in the files, and every event in the journal.

        Raises SpillError when a tensor could not be written.
        """
        self._small.end_batch()
        super().flush()

    def __reduce__(self) -> Any:
        raise OperandError(
            "save_on_disk: cannot be copied or pickled, as its files are those of this process; make another one"
        )
