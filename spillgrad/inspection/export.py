"""Write a stored array to a .npy file; write a file whole or not at all."""

import contextlib
import math
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from spillgrad.errors import ArgumentError, SpillError
from spillgrad.inspection.slices import Selection, read_selection
from spillgrad.inspection.unflushed import require_there
from spillgrad.inspection.values import StoredValues
from spillgrad.storage.sizes import format_bytes


def export_npy(values: StoredValues, selection: Selection, path: Path, overwrite: bool = False) -> int:
    """Write a selection of an array to a .npy file, piece by piece, and return the number of bytes of the selection.

    The file is written whole or not at all. Values of a dtype of ml_dtypes are written as raw bytes, as by `np.save`:
    `np.load(path).view(ml_dtypes.bfloat16)` reads such a file.
    Raises ArgumentError if the file exists, unless `overwrite` is set. Raises SpillError if the file cannot be written,
    or if the run freed or changed the array meanwhile. Raises the errors of `StoredValues.elements`.
    """
    dtype = values.dtype
    nbytes = math.prod(selection.shape) * dtype.itemsize
    with whole_file(path, format_bytes(nbytes), overwrite) as file:
        head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": selection.shape}
        np.lib.format.write_array_header_1_0(file, head)
        for piece in read_selection(values, selection):
            file.write(piece.view(np.uint8).data)
        require_there(values.path, values.array)
    return nbytes


@contextlib.contextmanager
def whole_file(path: Path, what: str, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing, which gets the name `path` at the end of the block; after an error, no file is left.

    Raises ArgumentError if the file exists, unless `overwrite` is set, or is no regular file. Raises SpillError, which
    says that `what` could not be written, if the file cannot be.
    """
    if os.path.lexists(path) and not overwrite:
        raise ArgumentError(f"export: {path} exists; name another file, or overwrite it with --force")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise ArgumentError(f"export: {path} is no regular file; name another one")
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, path)
    except SpillError:  # from reading
        raise
    except OSError as error:
        raise SpillError(
            f"export: could not write {what} to {path}: {error.strerror}; free space, or name another place"
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
