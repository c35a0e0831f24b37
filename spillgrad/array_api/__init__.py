"""The array API standard, 2024.12: the namespace that `Tensor.__array_namespace__` returns.

Every function has the standard's name, parameters and meaning. If PyTorch gives a function another meaning, `sg`
follows PyTorch, and this module follows the standard: its functions promote dtypes whatever the number of dimensions
(the operators of tensors promote as in PyTorch), `max` and `sort` return values alone, `std` divides by n, `squeeze`
refuses dimensions whose size is not 1. Functions that have gradients in `sg` have gradients in this module, too.

One part of the standard is missing: the attribute `Tensor.size`, which is PyTorch's method.

Source: https://data-apis.org/array-api/2024.12/
"""

from math import e, inf, nan, pi

from spillgrad.array_api import fft, linalg
from spillgrad.array_api.creation import *
from spillgrad.array_api.data_types import *
from spillgrad.array_api.elementwise import *
from spillgrad.array_api.information import __array_namespace_info__
from spillgrad.array_api.linalg import matmul, matrix_transpose, tensordot, vecdot
from spillgrad.array_api.manipulation import *
from spillgrad.array_api.reductions import *
from spillgrad.array_api.searching import *
from spillgrad.dtypes import bool_ as bool
from spillgrad.dtypes import (
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from spillgrad.ops.array_api_names import (
    broadcast_arrays,
    broadcast_shapes,
    expand_dims,
    isdtype,
    permute_dims,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    unstack,
)

__array_api_version__ = "2024.12"
newaxis = None

_FILES = ("creation", "data_types", "elementwise", "information", "manipulation", "reductions", "searching", "wrapping")
__all__ = ["__array_api_version__", "__array_namespace_info__"]
__all__ += [name for name in dir() if name[0] != "_" and name not in _FILES]
