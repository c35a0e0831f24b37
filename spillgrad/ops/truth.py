"""Whether elements are nonzero, and how many of them."""

import numpy as np

from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import by_numpy
from spillgrad.ops.reduce import Dims, reduced_dims
from spillgrad.tensor import Tensor

__all__ = ["all", "any", "count_nonzero"]


@declare(method=True)
def all(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Return whether all elements over dimensions are nonzero.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of bool, without the reduced dimensions unless `keepdim`.
    """
    dims = reduced_dims("all", dim, axis, input.ndim)
    return by_numpy("all", lambda a: np.all(a, dims, keepdims=keepdim), input)


@declare(method=True)
def any(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Return whether any element over dimensions is nonzero.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of bool, without the reduced dimensions unless `keepdim`.
    """
    dims = reduced_dims("any", dim, axis, input.ndim)
    return by_numpy("any", lambda a: np.any(a, dims, keepdims=keepdim), input)


@declare(method=True)
def count_nonzero(input: Tensor, dim: Dims = None, *, axis: Dims = None) -> Tensor:
    """Return the number of nonzero elements over dimensions.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int or sequence of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of int64, without the reduced dimensions.
    """
    dims = reduced_dims("count_nonzero", dim, axis, input.ndim)
    return by_numpy("count_nonzero", lambda a: np.count_nonzero(a, dims), input)
