"""Write a stored array to a file of NumPy."""

import contextlib
import math
import os
import secrets
from pathlib import Path

import numpy as np

from spillgrad.errors import ArgumentError, SpillError
from spillgrad.inspection.slices import Selection, read_selection
from spillgrad.inspection.unflushed import require_there
from spillgrad.inspection.values import StoredValues
from spillgrad.storage.sizes import format_bytes


def export_npy(values: StoredValues, selection: Selection, path: Path, overwrite: bool = False) -> int:
    """Write a selection of an array to a .npy file, piece by piece, and return its bytes.

    It is there whole or not at all. A dtype that NumPy has from ml_dtypes is written as bytes of its size, as `np.save`
    does it: `np.load(path).view(ml_dtypes.bfloat16)` reads it.
    Raises ArgumentError for a file that exists, unless `overwrite`; SpillError when the disk refuses, and for an array
    that its run freed or changed meanwhile; and as `StoredValues.elements`.
    """
    dtype = values.dtype
    if os.path.lexists(path) and not overwrite:
        raise ArgumentError(f"export: {path} exists; name another file, or overwrite it with --force")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise ArgumentError(f"export: {path} is no regular file; name another one")
    nbytes = math.prod(selection.shape) * dtype.itemsize
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    try:
        with open(partial, "xb") as file:
            head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": selection.shape}
            np.lib.format.write_array_header_1_0(file, head)
            for piece in read_selection(values, selection):
                file.write(piece.view(np.uint8).data)
        require_there(values.path, values.array)
        os.replace(partial, path)
    except SpillError:  # of the segment
        raise
    except OSError as error:
        raise SpillError(
            f"export: could not write {format_bytes(nbytes)} to {path}: {error.strerror}; "
            "free space, or name another place"
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
    return nbytes
