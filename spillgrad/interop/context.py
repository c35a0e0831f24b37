"""The base class of the `save_on_disk` contexts of PyTorch and Paddle: it chooses the bytes to store for a tensor."""

import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np

from spillgrad.interop.arrays import ALIGNMENT_BYTES
from spillgrad.spill.context import SpillContext
from spillgrad.spill.saved_memory import Layout, SavedMemory
from spillgrad.storage import trim_memory
from spillgrad.storage.store import Handle, Label
from spillgrad_kernels.memory import buffers

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# If a tensor spans a smaller share of its memory, as a batch sliced from all data does, only its part is stored.
_SHARE_STORED_WHOLE = 1 / 4
# If less memory than this is left for each byte in the store, the framework's dead arrays must go back at once.
_LEFT_PER_STORED = 4


class FrameworkContext(SpillContext):
    """The base class of `save_on_disk` for PyTorch and for Paddle; their own docstrings describe the differences."""

    def _begin(self) -> None:
        self._stored: weakref.WeakValueDictionary[Hashable, Handle] = weakref.WeakValueDictionary()

    def _put(self, memory: SavedMemory, label: Label, store: Any = None) -> Handle:
        handle = super()._put(memory, label, store)
        # The framework allocated this memory. The pool must not keep as much besides, for arrays that are in RAM later.
        buffers.pool.keep_idle_within(max(0, self._store.ram_budget - self._store.ram_bytes))
        trim_memory.trim_if_due(_LEFT_PER_STORED * self._store.live_bytes)
        return handle

    def _get(self, handle: Handle) -> np.ndarray:
        """Return the array of a handle, before a function that may need much memory."""
        trim_memory.release_if_due()
        array: np.ndarray = self._store.get(handle)
        return array

    def _altered_by(self, layout: Layout) -> Hashable | None:
        """Return a key for the lossy codec and the tensor's dtype; None if no codec is lossy.

        The bytes that a lossy codec gives back depend on the dtype under which it encoded them.
        """
        return None if self._codec_mark is None else (self._codec_mark, layout.dtype)

    def _part(self, key: Hashable, layout: Layout, nbytes: int) -> tuple[Hashable, int, int]:
        """Choose the part of a memory to store for a tensor; return the part's key, first byte and end.

        `key` is the key of the whole memory, and `nbytes` its size. The part is the whole memory if that is stored
        already, or if the tensor spans a large share of it.
        """
        if key in self._stored or layout.span_bytes >= _SHARE_STORED_WHOLE * nbytes:
            return key, 0, nbytes
        begin, end = layout.offset // ALIGNMENT_BYTES * ALIGNMENT_BYTES, layout.offset + layout.span_bytes
        return (key if end - begin == nbytes else (key, begin, end)), begin, end
