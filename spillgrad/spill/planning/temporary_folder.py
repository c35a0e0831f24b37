"""A temporary folder that is removed also where a signal ends the block, even while it is being made or removed."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from spillgrad.storage.threads.interrupts import keep_whole

# Signal handlers run before or after this code: `storage/threads/interrupts.py`. They run within the block.
SIGNALS_WAIT = True


@contextlib.contextmanager
def temporary_folder(directory: str | os.PathLike[str], prefix: str) -> Iterator[str]:
    """Context manager: a new folder in `directory`, whose name begins with `prefix`."""
    keep_whole()
    place = tempfile.mkdtemp(dir=directory, prefix=prefix)
    try:
        yield place
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(place)
