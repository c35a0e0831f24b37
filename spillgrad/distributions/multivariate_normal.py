"""The multivariate normal distribution."""

import math
from typing import Any

import numpy as np

from spillgrad.distributions import constraints
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.distributions.utils import lazy_property, standard_normal
from spillgrad.errors import ArgumentError
from spillgrad.ops.creation import eye
from spillgrad.ops.decompositions import cholesky
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.rearrange import flip
from spillgrad.ops.solving import cholesky_inverse, solve_triangular
from spillgrad.tensor import Tensor

__all__ = ["MultivariateNormal"]


def mahalanobis(scale_tril: Tensor, x: Tensor) -> Tensor:
    """Return the squared norms of L⁻¹ x. Shapes: L (…, n, n) and x (…, n), broadcast; the result is the batch's."""
    n = x.shape[-1]
    if scale_tril.ndim == 2:  # one system with many right-hand sides
        solved = solve_triangular(scale_tril, x.reshape((-1, n)).T, upper=False)
        return solved.square().sum(0).reshape(x.shape[:-1])
    batch = np.broadcast_shapes(scale_tril.shape[:-2], x.shape[:-1])
    sides = x.expand((*batch, n)).unsqueeze(-1)
    return solve_triangular(scale_tril.expand((*batch, n, n)), sides, upper=False).square().sum((-2, -1))


def half_log_determinant(scale_tril: Tensor) -> Tensor:
    """Return the logarithm of the determinant of L, half of that of L Lᵀ."""
    return scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _precision_to_scale_tril(precision: Tensor) -> Tensor:
    """Return the lower factor of the precision's inverse: the inverse, transposed, of the upper factor's flip."""
    upper = flip(cholesky(flip(precision, (-2, -1))), (-2, -1)).mT
    unit = eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return solve_triangular(upper, unit.expand(upper.shape), upper=False)


def _factor(name: str, matrix: Tensor) -> Tensor:
    if name == "scale_tril":
        return matrix
    return cholesky(matrix) if name == "covariance_matrix" else _precision_to_scale_tril(matrix)


class MultivariateNormal(Distribution):
    """The normal distribution of vectors, by exactly one of covariance, precision and the covariance's lower factor.

    Parameters
    ----------
    loc : Tensor
        Mean, of shape (…, n).
    covariance_matrix : Tensor, optional
        Positive definite, of shape (…, n, n).
    precision_matrix : Tensor, optional
        Inverse of the covariance, positive definite, of shape (…, n, n).
    scale_tril : Tensor, optional
        Lower triangular L, where the covariance is L Lᵀ, of shape (…, n, n). With it nothing is factorized.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        Unless exactly one matrix is given; for too few dimensions; if a parameter is outside its constraint, and
        arguments are checked.
    """

    arg_constraints = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite, "scale_tril": constraints.lower_cholesky,
    }  # fmt: skip
    support = constraints.real_vector
    has_rsample = True
    _unexpanded = ("_unbroadcasted_scale_tril",)

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if loc.dim() < 1:
            raise ArgumentError("loc must be at least one-dimensional.")
        matrices = {
            "covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril
        }  # fmt: skip
        given = [(name, matrix) for name, matrix in matrices.items() if matrix is not None]
        if len(given) != 1:
            raise ArgumentError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        ((name, matrix),) = given
        if matrix.dim() < 2:
            raise ArgumentError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
        batch = np.broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        self.loc = loc.expand((*batch, -1))
        setattr(self, name, matrix.expand((*batch, -1, -1)))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = _factor(name, matrix)

    def _matrix(self, matrix: Tensor) -> Tensor:
        return matrix.expand(self._batch_shape + self._event_shape * 2)

    @lazy_property
    def scale_tril(self) -> Any:
        """The lower triangular factor of the covariance."""
        return self._matrix(self._unbroadcasted_scale_tril)

    @lazy_property
    def covariance_matrix(self) -> Any:
        """The covariance."""
        return self._matrix(matmul(self._unbroadcasted_scale_tril, self._unbroadcasted_scale_tril.mT))

    @lazy_property
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return self._matrix(cholesky_inverse(self._unbroadcasted_scale_tril))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        found = self._unbroadcasted_scale_tril.square().sum(-1)
        return found.expand(self._batch_shape + self._event_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        draws = standard_normal(self._extended_shape(sample_shape), self.loc)
        return self.loc + matmul(self._unbroadcasted_scale_tril, draws.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        distance = mahalanobis(self._unbroadcasted_scale_tril, value - self.loc)
        norm = half_log_determinant(self._unbroadcasted_scale_tril)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + distance) - norm

    def entropy(self) -> Tensor:
        norm = half_log_determinant(self._unbroadcasted_scale_tril)
        found = 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi)) + norm
        return found.expand(self._batch_shape)
