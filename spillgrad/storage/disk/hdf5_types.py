"""The HDF5 type in which a NumPy dtype is stored."""

import functools
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad.storage.disk import hdf5


@functools.cache
def hdf5_type(dtype: np.dtype[Any]) -> Any:
    """Return the HDF5 type for `dtype`; if HDF5 has none, an opaque type whose tag is NumPy's name of `dtype`."""
    if dtype == ml_dtypes.bfloat16:
        return _bfloat16()
    try:
        found = hdf5.h5t.py_create(dtype)
    except TypeError:  # dates and Unicode text
        found = None
    if found is None or found.get_class() == hdf5.h5t.OPAQUE or found.get_size() != dtype.itemsize:
        found = hdf5.h5t.create(hdf5.h5t.OPAQUE, dtype.itemsize)
        name = dtype.str if dtype.kind in "mM" else dtype.name  # h5py converts only from a tag that it would have set
        found.set_tag(f"NUMPY:{name}".encode())
    return found


def _bfloat16() -> Any:
    """Return an HDF5 type for bfloat16, the upper half of a float32: 1 sign, 8 exponent (bias 127), 7 mantissa bits."""
    found = hdf5.h5t.IEEE_F32LE.copy()
    found.set_fields(15, 7, 8, 0, 7)
    found.set_size(2)
    found.set_ebias(127)
    return found
