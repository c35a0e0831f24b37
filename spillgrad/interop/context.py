"""What `save_on_disk` is for other frameworks: its options, and which part of a memory is stored for a tensor."""

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

    # The function whose result may be given in place of a directory, by name, and the class of that result.
    _shared: ClassVar[tuple[str, type[StoreOwner]] | None] = None
    # How many frames there are from the one that warns to the caller's.
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
        """Have nothing stored."""
        self._stored: weakref.WeakValueDictionary[Hashable, Handle] = weakref.WeakValueDictionary()

    def _altered_by(self, layout: Layout) -> Hashable | None:
        """Return what stands for the way in which the codec alters the bytes of a tensor; None if it alters none.

        What a lossy codec makes of bytes depends on their dtype.
        """
        return None if self._codec_mark is None else (self._codec_mark, layout.dtype)

    def _part(self, key: Hashable, layout: Layout, nbytes: int) -> tuple[Hashable, int, int]:
        """Return the part of a memory of `nbytes` that is stored for a tensor: its key, where it begins and ends.

        `key` is that of the whole memory.
        """
        begin, end = part_to_store(layout, nbytes, is_stored=key in self._stored)
        return (key if end - begin == nbytes else (key, begin, end)), begin, end

    def __reduce__(self) -> Any:
        raise OperandError(
            "save_on_disk: cannot be copied or pickled, as its files are those of this process; make another one"
        )
