"""What the `save_on_disk` contexts of PyTorch and Paddle share: the choice of the bytes to store."""

import weakref
from collections.abc import Hashable

from spillgrad.interop.arrays import ALIGNMENT_BYTES
from spillgrad.spill.context import SpillContext
from spillgrad.spill.saved_memory import Layout
from spillgrad.storage.store import Handle

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# Of a tensor that is a smaller share of its memory, such as a batch sliced from all data, only its part is stored.
_SHARE_STORED_WHOLE = 1 / 4


class FrameworkContext(SpillContext):
    """The base of `save_on_disk` for PyTorch and Paddle, whose docstrings say what is special to them."""

    def _begin(self) -> None:
        self._stored: weakref.WeakValueDictionary[Hashable, Handle] = weakref.WeakValueDictionary()

    def _altered_by(self, layout: Layout) -> Hashable | None:
        """Return a key that names the codec if it is lossy, and the tensor's dtype; None for a lossless codec.

        The bytes that a lossy codec gives back depend on the dtype under which it took them.
        """
        return None if self._codec_mark is None else (self._codec_mark, layout.dtype)

    def _part(self, key: Hashable, layout: Layout, nbytes: int) -> tuple[Hashable, int, int]:
        """Return the part of a memory that is stored for a tensor: the part's key, first byte and end.

        `key` is that of the whole memory, which has `nbytes`. It is the part if it is stored already, or if the tensor
        is a large share of it.
        """
        if key in self._stored or layout.span_bytes >= _SHARE_STORED_WHOLE * nbytes:
            return key, 0, nbytes
        begin, end = layout.offset // ALIGNMENT_BYTES * ALIGNMENT_BYTES, layout.offset + layout.span_bytes
        return (key if end - begin == nbytes else (key, begin, end)), begin, end
