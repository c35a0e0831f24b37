"""Covariances and correlations of variables, and histograms."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError, OperandError, ShapeError
from spillgrad.ops.arithmetic import div, mul, sqrt, sub
from spillgrad.ops.array_casts import require_floats
from spillgrad.ops.clamp_where import clamp
from spillgrad.ops.complex_numbers import complex
from spillgrad.ops.complex_views import REALS, conjugate, imag, real
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.indexing import diag
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.placement import by_host
from spillgrad.ops.promotion import RealNumber
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape, squeeze, transpose, unsqueeze
from spillgrad.tensor import Tensor

__all__ = ["corrcoef", "cov", "histogram"]


class Histogram(NamedTuple):
    """The results of `histogram`."""

    hist: Tensor
    bin_edges: Tensor


def _weights(name: str, weights: Tensor | None, observations: int, whole: bool) -> Tensor | None:
    if weights is None:
        return None
    if weights.ndim > 1 or weights.numel() != observations:
        raise ShapeError(f"cov: expected {name} to have one value for each of {observations} observations, but got "
                         f"{weights.shape}")  # fmt: skip
    if whole != (weights.dtype.kind in "iu"):
        raise DtypeError(f"cov: expected {name} to have {'integral' if whole else 'floating point'} dtype but got "
                         f"{weights.dtype}")  # fmt: skip
    if bool((weights.array < 0).any()):
        raise ArgumentError(f"cov: {name} cannot be negative")
    return reshape(weights, (observations,))


@declare(method=True, numpy=True)
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return the covariances of variables.

    In the covariance of two complex variables, the second is conjugated.

    Parameters
    ----------
    input : Tensor
        Of shape (variables, observations), or (observations,) or () for one variable.
    correction : int, default 1
        What is subtracted from the weighted number of observations, by which sums are divided. If the difference is
        negative, they are divided by 0: the result is then inf or NaN.
    fweights : Tensor, optional
        Of shape (observations,), of integers: how often each observation was made.
    aweights : Tensor, optional
        Of shape (observations,): how much each observation counts.

    Returns
    -------
    Tensor
        Of shape (variables, variables); for one variable, of no dimensions.

    Raises
    ------
    ShapeError
        For more than two dimensions, or weights of another shape.
    DtypeError
        For bool, or weights of another kind.
    ArgumentError
        For negative weights.
    """
    if input.ndim > 2:
        raise ShapeError(f"cov: expected input to have two or fewer dimensions but got an input of {input.shape}")
    if input.dtype == dtypes.bool_:
        raise DtypeError("cov: bool dtype is not supported for input; convert it with .to(float32)")
    rows = input if input.ndim == 2 else reshape(input, (1, -1))
    if not dtypes.is_differentiable(rows.dtype):
        rows = to_dtype(rows, dtypes.get_default_dtype())
    count = rows.shape[1]
    often, much = _weights("fweights", fweights, count, True), _weights("aweights", aweights, count, False)
    real_dtype = REALS.get(rows.dtype, rows.dtype)
    weights = to_dtype(often, real_dtype) if often is not None else None
    if much is not None:
        much = to_dtype(much, real_dtype)
        weights = much if weights is None else mul(weights, much)
    total: Any = count if weights is None else sum(weights)
    weighted = rows if weights is None else mul(rows, weights)
    centred = sub(rows, unsqueeze(div(sum(weighted, 1), total), 1))
    if much is not None and correction:
        freedom = total - correction * div(sum(mul(weights, much)), total)
    else:
        freedom = total - correction
    freedom = clamp(freedom, 0) if isinstance(freedom, Tensor) else max(freedom, 0)
    others = conjugate(centred if weights is None else mul(centred, weights))
    products = matmul(centred, transpose(others, 0, 1))
    return squeeze(div(products, freedom))


@declare(method=True, numpy=True)
def corrcoef(input: Tensor) -> Tensor:
    """Return the correlation coefficients of variables.

    Parameters
    ----------
    input : Tensor
        Of shape (variables, observations), or (observations,) or () for one variable.

    Returns
    -------
    Tensor
        Of shape (variables, variables); for one variable, of no dimensions: it is 1.
    """
    covariances = cov(input)
    if not covariances.ndim:
        return div(covariances, covariances)
    deviations = sqrt(real(diag(covariances)))
    found = div(div(covariances, unsqueeze(deviations, 1)), deviations)
    return complex(clamp(real(found), -1, 1), clamp(imag(found), -1, 1)) if found.is_complex() else clamp(found, -1, 1)


@declare(method=True)
@by_host
def histogram(
    input: Tensor, bins: int | Tensor, *, range: Sequence[RealNumber] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:  # fmt: skip
    """Return the number of elements in each of several bins, and the edges of the bins.

    Elements outside all bins are not counted; the last bin includes its right edge.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point numbers.
    bins : int or Tensor
        Number of bins of equal width, or a vector of sorted bin edges.
    range : sequence of float, optional
        First and last edge of bins of equal width; by default, the range of the data.
    weight : Tensor, optional
        Of the shape of `input`: how much each element counts.
    density : bool, default False
        Whether each count is divided by the width of its bin and by the sum of all counts.

    Returns
    -------
    named tuple of Tensor
        (hist, bin_edges); they have no gradient.

    Raises
    ------
    ArgumentError
        If edges come with a range, or bins or range make no sense.
    ShapeError
        If the shape of the weights or edges does not fit.
    DtypeError
        For integers and complex numbers.
    """
    require_floats("histogram", input.dtype)
    values = input.array.astype(np.float64).reshape(-1)
    if weight is not None and weight.shape != input.shape:
        raise ShapeError(f"histogram: got {input.shape} and a weight of {weight.shape}; they must be equal")
    if isinstance(bins, Tensor):
        if bins.ndim != 1 or bins.numel() < 2:
            raise ShapeError(f"histogram: got edges of {bins.shape}; wanted a vector of at least two")
        if range is not None:
            raise ArgumentError("histogram: got edges and a range; the edges say where bins begin and end")
        edges = bins.array.astype(np.float64)
    else:
        edges = _equal_edges(bins, range, values)
    counts, _ = np.histogram(
        values, edges, weights=None if weight is None else weight.array.astype(np.float64).reshape(-1)
    )
    heights = counts.astype(np.float64)
    if density:
        with np.errstate(all="ignore"):
            heights = heights / (heights.sum() * np.diff(edges))
    return Histogram(*(Tensor.wrap(part.astype(input.dtype)) for part in (heights, edges)))


def _equal_edges(bins: int, range: Sequence[RealNumber] | None, values: np.ndarray) -> np.ndarray:
    if not isinstance(bins, int | np.integer):
        raise OperandError(f"histogram: got bins of {type(bins).__name__}; wanted a number or a tensor of edges")
    if bins < 1:
        raise ArgumentError(f"histogram: got bins={bins}; wanted at least 1")
    low, high = (0.0, 0.0) if range is None else map(float, range)
    if range is None and values.size:
        low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)) or low > high:
        raise ArgumentError(f"histogram: got the range {low} to {high}; wanted finite numbers, the lower one first")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, int(bins) + 1)
