"""Elements in a file that is no store's, such as weights in a safetensors file. This opens no store."""

import os
from typing import Any, NamedTuple

import numpy as np


class FileState(NamedTuple):
    """What the file system says of a file: which one it is, and whether it has changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, descriptor: int) -> "FileState":
        """Return the state of an open file. Raises OSError."""
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class FilePart(NamedTuple):
    """The elements of an array in a file, in C order.

    Parameters
    ----------
    path : str
        The file.
    state : FileState
        The state that the file had when its header was read.
    offset : int
        The first byte of the elements.
    dtype : dtype
        The type of the elements in the file.
    shape : tuple of int
        The shape of the array.
    """

    path: str
    state: FileState
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
