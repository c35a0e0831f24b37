"""Reductions and running totals, by the array API standard."""

from collections.abc import Callable
from typing import Any

from spillgrad.array_api.wrapping import AXES, KEEPDIMS, REDUCED, X, called
from spillgrad.dtypes import uint64
from spillgrad.ops import array_api_names, comparison, convert, reduce, scan, shape, truth
from spillgrad.ops.declaration import declare, named
from spillgrad.tensor import Tensor

__all__ = [
    "all", "any", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std",
    "sum", "var",
]  # fmt: skip


def _over(function: Callable[..., Tensor], x: Tensor, axis: Any, *further: Any) -> Tensor:
    """Return a reduction over the dimensions `axis`. As in the standard, `()` means none; in PyTorch, all."""
    if axis == ():
        return shape.squeeze(function(shape.unsqueeze(x, 0), 0, *further[:-1], True), 0)
    return function(x, axis, *further)


def _reduction(function: Callable[..., Tensor], name: str | None = None) -> Callable[..., Tensor]:
    def reduced(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _over(function, x, axis, keepdims)

    return called(reduced, function, X, AXES, KEEPDIMS, returns=REDUCED, name=name)


max = declare(numpy="max amax")(_reduction(reduce.amax, "max"))
min = declare(numpy="min amin")(_reduction(reduce.amin, "min"))
all, any = map(declare(numpy=True), map(_reduction, (truth.all, truth.any)))
mean = _reduction(reduce.mean)


@declare(numpy=True)
def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the number of nonzero elements over dimensions.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axis : int or tuple of int, optional
        Dimension, or dimensions, to reduce; all, by default.
    keepdims : bool, default False
        Whether reduced dimensions stay, with size 1.

    Returns
    -------
    Tensor
        Of int64, of the shape of `x` without the reduced dimensions.
    """
    return sum(comparison.ne(x, 0), axis=axis, keepdims=keepdims)


def _as_total(x: Tensor, dtype: Any, total: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum or product `total(x)` in `dtype`; if `dtype` is None, unsigned integers give uint64."""
    if dtype is None:
        return convert.to_dtype(total(x), uint64) if x.dtype.kind == "u" else total(x)
    return convert.to_dtype(total(convert.to_dtype(x, dtype)), dtype)


def _total(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def total(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        return _as_total(x, dtype, lambda x: _over(function, x, axis, keepdims))

    dtype = "dtype : dtype, optional\n    Data type of the result; by default, that of `x`, of integers 64 bits wide."
    return declare(numpy=True)(called(total, function, X, AXES, dtype, KEEPDIMS, returns=REDUCED))


sum, prod = _total(reduce.sum), _total(reduce.prod)


def _spread(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def spread(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        def over(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
            return function(x, dim, None, keepdim, correction=correction)

        return _over(over, x, axis, keepdims)

    correction = "correction : float, default 0.0\n    What is subtracted from the number of elements in the divisor."
    return declare(numpy=True)(called(spread, function, X, AXES, correction, KEEPDIMS, returns=REDUCED))


std, var = _spread(reduce.std), _spread(reduce.var)


def _running(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def running(x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
        return _as_total(x, dtype, lambda x: function(x, axis=axis, include_initial=include_initial))

    return declare(numpy=True)(named(running, function.__name__, function.__doc__))


cumulative_sum, cumulative_prod = _running(array_api_names.cumulative_sum), _running(array_api_names.cumulative_prod)


@declare(numpy=True)
def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return the n-th differences of neighbours along a dimension.

    Parameters
    ----------
    x : Tensor
        Of at least one dimension.
    axis : int, default -1
        Dimension of the neighbours.
    n : int, default 1
        How often differences are taken.
    prepend, append : Tensor, optional
        Elements to join in front and behind before.

    Returns
    -------
    Tensor
        Of the shape of what is joined, shorter by `n` in the dimension.
    """
    return scan.diff(x, n, axis, prepend, append)
