"""Transforms of matrices, and of the shape of values."""

import math
from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.transform import Shape, Transform
from spillgrad.errors import ArgumentError
from spillgrad.ops.decompositions import cholesky
from spillgrad.ops.diagonals import diag_embed, tril
from spillgrad.ops.indexing import diagonal
from spillgrad.tensor import Tensor

__all__ = ["LowerCholeskyTransform", "PositiveDefiniteTransform", "ReshapeTransform"]


class _OfMatrices(Transform):
    """A transform without settings, equal to all others of its class."""

    domain = constraints.independent(constraints.real, 2)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = Transform.__hash__


class LowerCholeskyTransform(_OfMatrices):
    """From any matrix to a lower triangular one: the diagonal is exponentiated, what is above it is dropped.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return tril(x, -1) + diag_embed(diagonal(x, 0, -2, -1).exp())

    def _inverse(self, y: Tensor) -> Tensor:
        return tril(y, -1) + diag_embed(diagonal(y, 0, -2, -1).log())


class PositiveDefiniteTransform(_OfMatrices):
    """From any matrix to a positive definite one, L Lᵀ, where L is the `LowerCholeskyTransform` of the matrix.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        lower = LowerCholeskyTransform()(x)
        return lower @ lower.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(cholesky(y))


class ReshapeTransform(Transform):
    """From values of one shape to values of another, with as many elements.

    Parameters
    ----------
    in_shape, out_shape : sequence of int
        Last sizes of the input and of the output.
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.

    Raises
    ------
    ArgumentError
        If the shapes have different numbers of elements.
    """

    bijective = True

    def __init__(self, in_shape: Shape, out_shape: Shape, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ArgumentError("in_shape, out_shape have different numbers of elements")
        super().__init__(cache_size)

    domain = property(lambda self: constraints.independent(constraints.real, len(self.in_shape)))
    codomain = property(lambda self: constraints.independent(constraints.real, len(self.out_shape)))

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return ReshapeTransform(self.in_shape, self.out_shape, cache_size)

    def _batch(self, shape: Shape, event: Shape) -> Shape:
        if len(shape) < len(event):
            raise ArgumentError("Too few dimensions on input")
        kept = len(shape) - len(event)
        if tuple(shape[kept:]) != event:
            raise ArgumentError(f"Shape mismatch: expected {event} but got {tuple(shape[kept:])}")
        return shape[:kept]

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return x.new_zeros(self._batch(x.shape, self.in_shape))

    def forward_shape(self, shape: Shape) -> Shape:
        return (*self._batch(shape, self.in_shape), *self.out_shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*self._batch(shape, self.out_shape), *self.in_shape)
