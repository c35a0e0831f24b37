"""Derivatives of a function that is known at points, by differences of neighbouring values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError
from spillgrad.ops.arithmetic import add, mul
from spillgrad.ops.join_split import cat, narrow
from spillgrad.ops.shape import normalize_dims, reshape
from spillgrad.tensor import Tensor

__all__ = ["gradient"]

Spacing = Any  # a number, or the coordinates of all points: a tensor of one dimension


def gradient(
    input: Tensor, *, spacing: Spacing | Sequence[Spacing] | None = None, dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the derivatives of a function along dimensions, given its values at points.

    Within, a derivative is exact for polynomials of degree 2.

    Parameters
    ----------
    input : Tensor
        Values of the function, of any shape.
    spacing : number, Tensor or list, optional
        Distance of neighbours, by default 1, or a list with a distance or the coordinates of the points (a tensor) for
        each dimension.
    dim : int or sequence of int, optional
        Dimensions of the derivatives; by default, all.
    edge_order : {1, 2}, default 1
        Degree of the polynomials for which the derivatives at the two ends are exact.

    Returns
    -------
    tuple of Tensor
        A derivative for each dimension, of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `edge_order` or `spacing` does not fit, or a dimension has too few points.
    DimensionError
        If there is no such dimension.
    DtypeError
        If the dtype is uint8 or bool.

    Notes
    -----
    Source: Fornberg 1988, "Generation of finite difference formulas on arbitrarily spaced grids".
    """
    if edge_order not in (1, 2):
        raise ArgumentError("torch.gradient only supports edge_order=1 and edge_order=2.")
    if input.dtype in (dtypes.uint8, dtypes.bool_):
        raise DtypeError(f"torch.gradient does not support {input.dtype} input: convert it with .to(float32)")
    dims = normalize_dims("gradient", tuple(range(input.ndim)) if dim is None else dim, input.ndim)
    if isinstance(spacing, list | tuple):
        if len(spacing) != len(dims):
            raise ArgumentError(
                "torch.gradient expected spacing to be unspecified, a scalar, or a list with one element for each of "
                f"the {len(dims)} dimensions, but got a list of length {len(spacing)}"
            )
        spacings = list(spacing)
    else:
        spacings = [1.0 if spacing is None else spacing] * len(dims)
    return tuple([_along(input, d, step, edge_order) for d, step in zip(dims, spacings, strict=True)])


def _along(values: Tensor, dim: int, spacing: Spacing, edge_order: int) -> Tensor:
    size = values.shape[dim]
    if size < edge_order + 1:
        raise ArgumentError(
            f"torch.gradient expected each dimension size to be at least edge_order+1, but dimension {dim} has {size}"
        )
    steps = _steps(values, dim, spacing)
    ends = []
    for first, order in ((0, (0, 1)), (size - edge_order - 1, (-1, -2))):
        if edge_order == 1:
            step = _part(steps, dim, order[0])
            weights = [-1 / step, 1 / step]
        else:
            near, far = (_part(steps, dim, i) for i in order)
            weights = [-(2 * near + far) / (near * (near + far)), (near + far) / (near * far)]
            weights.append(-near / (far * (near + far)))
            if order[0]:
                weights = [-w for w in reversed(weights)]
        ends.append(_weighted(values, dim, first, 1, weights))
    before, after = narrow(steps, dim, 0, size - 2), narrow(steps, dim, 1, size - 2)
    both = before + after
    weights = [-after / (before * both), (after - before) / (before * after), before / (after * both)]
    return cat([ends[0], _weighted(values, dim, 0, size - 2, weights), ends[1]], dim)


def _part(steps: Tensor, dim: int, index: int) -> Tensor:
    return narrow(steps, dim, index % steps.shape[dim], 1)


def _weighted(values: Tensor, dim: int, first: int, count: int, weights: Sequence[Tensor]) -> Tensor:
    """Return the sums of neighbours, from index `first` on, times their weights."""
    terms = [mul(narrow(values, dim, first + i, count), weight) for i, weight in enumerate(weights)]
    found = terms[0]
    for term in terms[1:]:
        found = add(found, term)
    return found


def _steps(values: Tensor, dim: int, spacing: Spacing) -> Tensor:
    """Return the distances of neighbours along a dimension, with a shape that broadcasts to that of the values."""
    size = values.shape[dim]
    shape = [1] * values.ndim
    shape[dim] = size - 1
    if isinstance(spacing, Tensor) and spacing.ndim:
        if spacing.shape != (size,):
            raise ArgumentError(
                f"torch.gradient expected each element of spacing to have one dimension, of size {size} for dimension "
                f"{dim}, but got shape {tuple(spacing.shape)}"
            )
        return reshape(narrow(spacing, 0, 1, size - 1) - narrow(spacing, 0, 0, size - 1), shape)
    of = values.dtype if dtypes.is_floating_point(values.dtype) or values.is_complex() else dtypes.get_default_dtype()
    one = Tensor.wrap(np.ones(shape, dtypes.as_dtype(of)))
    return mul(one.to(values.device), spacing)
