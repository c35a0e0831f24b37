"""The base of every framework's `save_on_disk`: a store, and one way to give it saved tensors."""

from typing import Any

from spillgrad.autograd.core import hooks
from spillgrad.spill.saved_memory import SavedMemory, note_view
from spillgrad.spill.small_tensors import SmallTensors
from spillgrad.storage.codecs import is_lossy
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.store import Handle, Label
from spillgrad.storage.store_owner import StoreOwner

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class SpillContext(StoreOwner):
    """A store for saved tensors. The frameworks' contexts derive from it, and add their hooks."""

    def _open(
        self,
        directory: Any,
        ram_budget: int | str | None,
        min_bytes: int | str,
        only: hooks.Predicate | None,
        *,
        codec: str | None,
        stacklevel: int = 4,
        **options: Any,
    ) -> None:
        """Open the store; see `StoreOwner._open_store`. Raises what the constructors of the contexts raise."""
        self.only = hooks.checked_predicate("save_on_disk", only)
        self._min_bytes = parse_bytes(min_bytes)
        # The name of a lossy codec in the keys of tensors that the codec may alter.
        self._codec_mark = object() if is_lossy(codec) else None
        self._open_store("save_on_disk", directory, ram_budget, codec=codec, stacklevel=stacklevel, **options)
        self._small = SmallTensors(self._store)

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
