"""What the `save_on_disk` contexts of PyTorch and Paddle share: options, and the choice of the bytes to store."""

import os
import weakref
from collections.abc import Hashable
from typing import Any, ClassVar

from spillgrad.autograd.core import hooks
from spillgrad.errors import OperandError
from spillgrad.interop.arrays import part_to_store
from spillgrad.spill.context import SpillContext
from spillgrad.spill.saved_memory import Layout
from spillgrad.storage.store import Handle
from spillgrad.storage.store_owner import MIN_BYTES, StoreOwner

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class FrameworkContext(SpillContext):
    """The base of `save_on_disk` for PyTorch and Paddle, whose docstrings say what is special to them."""

    # The name of the function whose result may stand in place of a directory, and the class of that result.
    _shared: ClassVar[tuple[str, type[StoreOwner]] | None] = None
    # The number of stack frames between the one that warns and the caller's.
    _stacklevel: ClassVar[int] = 4

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
        self._open(
            directory,
            ram_budget,
            min_bytes,
            only,
            shared=self._shared,
            stacklevel=self._stacklevel,
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            codec=codec,
            encrypt=encrypt,
            keep_journal=keep_journal,
        )
        self._begin()

    def _begin(self) -> None:
        """Forget which memory is stored."""
        self._stored: weakref.WeakValueDictionary[Hashable, Handle] = weakref.WeakValueDictionary()

    def _altered_by(self, layout: Layout) -> Hashable | None:
        """Return a key that names the codec if it is lossy, and the tensor's dtype; None for a lossless codec.

        The bytes that a lossy codec gives back depend on the dtype under which it took them.
        """
        return None if self._codec_mark is None else (self._codec_mark, layout.dtype)

    def _part(self, key: Hashable, layout: Layout, nbytes: int) -> tuple[Hashable, int, int]:
        """Return the part of a memory that is stored for a tensor: the part's key, first byte and end.

        `key` is that of the whole memory, which has `nbytes`.
        """
        begin, end = part_to_store(layout, nbytes, is_stored=key in self._stored)
        return (key if end - begin == nbytes else (key, begin, end)), begin, end

    def __reduce__(self) -> Any:
        raise OperandError(
            "save_on_disk: cannot be copied or pickled, as its files are those of this process; make another one"
        )
