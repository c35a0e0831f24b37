"""Whether elements are nonzero, and how many of them."""

import numpy as np

from spillgrad.ops.array_casts import as_own
from spillgrad.ops.declaration import declare
from spillgrad.ops.reduce import Dims, reduced_dims
from spillgrad.tensor import Tensor

__all__ = ["all", "any", "count_nonzero"]


@declare(method=True)
def all(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Return whether all elements over dimensions are nonzero."""
    return Tensor.wrap(as_own(np.all(input.array, reduced_dims("all", dim, axis, input.ndim), keepdims=keepdim)))


@declare(method=True)
def any(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Return whether any element over dimensions is nonzero."""
    return Tensor.wrap(as_own(np.any(input.array, reduced_dims("any", dim, axis, input.ndim), keepdims=keepdim)))


@declare(method=True)
def count_nonzero(input: Tensor, dim: Dims = None, *, axis: Dims = None) -> Tensor:
    """Return the number of nonzero elements over dimensions, as int64."""
    return Tensor.wrap(as_own(np.count_nonzero(input.array, reduced_dims("count_nonzero", dim, axis, input.ndim))))
