"""The base of transforms, and transforms of transforms: inverses, compositions and joint dimensions."""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.utils import lazy_property, sum_rightmost
from spillgrad.errors import ArgumentError, UnsupportedError
from spillgrad.ops.creation import zeros_like
from spillgrad.tensor import Tensor

__all__ = ["ComposeTransform", "IndependentTransform", "Transform", "identity_transform"]

Shape = tuple[int, ...]


class Transform:
    """The base class of transforms from `domain` to `codomain`.

    A subclass defines ``_call(x)`` and ``_inverse(y)``, and, if it is `bijective`, ``log_abs_det_jacobian(x, y)``.
    `sign` is 1 for an increasing function of one variable and -1 for a decreasing one.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.

    Raises
    ------
    ArgumentError
        For another `cache_size`.
    """

    bijective: Any = False
    domain: Any = constraints.real
    codomain: Any = constraints.real

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ArgumentError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._cached: tuple[Any, Any] = (None, None)
        self._inv: Transform | None = None

    @property
    def event_dim(self) -> int:
        """The dimensions of one input, which are those of one output. Raises ArgumentError if they differ."""
        if self.domain.event_dim == self.codomain.event_dim:
            return self.domain.event_dim
        raise ArgumentError("Please use either .domain.event_dim or .codomain.event_dim")

    @property
    def inv(self) -> "Transform":
        """The inverse transform, whose inverse is this one."""
        if self._inv is None:
            self._inv = _InverseTransform(self)
        return self._inv

    @property
    def sign(self) -> Any:
        """The sign of the derivative of a function of one variable."""
        raise UnsupportedError(f"{type(self).__name__} does not implement sign")

    def with_cache(self, cache_size: int = 1) -> "Transform":
        """Return the same transform with a cache of another size.

        Parameters
        ----------
        cache_size : {0, 1}, default 1
            1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.

        Returns
        -------
        Transform
            This one, if its cache has this size.

        Raises
        ------
        UnsupportedError
            For a subclass that defines an ``__init__`` and no `with_cache` of its own.
        """
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        raise UnsupportedError(f"{type(self)}.with_cache is not implemented")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __call__(self, x: Tensor) -> Tensor:
        if self._cache_size and x is self._cached[0]:
            return self._cached[1]
        y = self._call(x)
        if self._cache_size:
            self._cached = x, y
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._cache_size and y is self._cached[1]:
            return self._cached[0]
        x = self._inverse(y)
        if self._cache_size:
            self._cached = x, y
        return x

    def _call(self, x: Tensor) -> Tensor:
        raise UnsupportedError(f"{type(self).__name__} does not implement _call")

    def _inverse(self, y: Tensor) -> Tensor:
        raise UnsupportedError(f"{type(self).__name__} does not implement _inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``log(abs(dy/dx))`` for an input and its output.

        Parameters
        ----------
        x : Tensor
            The input.
        y : Tensor
            The output.

        Returns
        -------
        Tensor
            Of the shape of `x`, without the dimensions of one value.

        Raises
        ------
        UnsupportedError
            If the transform does not define it.
        """
        raise UnsupportedError(f"{type(self).__name__} does not implement log_abs_det_jacobian")

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape of the output for an input of this shape.

        Parameters
        ----------
        shape : tuple of int
            Shape of the input.

        Returns
        -------
        tuple of int
            Shape of the output.
        """
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape of the input for an output of this shape.

        Parameters
        ----------
        shape : tuple of int
            Shape of the output.

        Returns
        -------
        tuple of int
            Shape of the input.
        """
        return shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _InverseTransform(Transform):
    """The inverse of another transform, which keeps the cache for both."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform._cache_size)
        self._of = self._inv = transform

    domain = property(lambda self: self._of.codomain)
    codomain = property(lambda self: self._of.domain)
    bijective = property(lambda self: self._of.bijective)
    sign = property(lambda self: self._of.sign)

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._of.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self._of == other._of

    __hash__ = Transform.__hash__

    def __call__(self, x: Tensor) -> Tensor:
        return self._of._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._of(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._of.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Shape) -> Shape:
        return self._of.inverse_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._of.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._of!r})"


def within(constraint: constraints.Constraint, event_dim: int) -> constraints.Constraint:
    """Return a constraint of values with at least `event_dim` dimensions."""
    missing = event_dim - constraint.event_dim
    return constraints.independent(constraint, missing) if missing > 0 else constraint


class ComposeTransform(Transform):
    """Transforms applied one after the other; each keeps its own cache.

    Parameters
    ----------
    parts : sequence of Transform
        The transforms, the first one first.
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)
        super().__init__(cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = Transform.__hash__

    @property
    def domain(self) -> Any:
        """The domain of the first part, with the dimensions that later parts need."""
        if not self.parts:
            return constraints.real
        event_dim = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            event_dim = max(event_dim + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        return within(self.parts[0].domain, event_dim)

    @property
    def codomain(self) -> Any:
        """The codomain of the last part, with the dimensions that earlier parts give."""
        if not self.parts:
            return constraints.real
        event_dim = self.parts[0].domain.event_dim
        for part in self.parts:
            event_dim = max(event_dim + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return within(self.parts[-1].codomain, event_dim)

    @lazy_property
    def bijective(self) -> bool:
        return all(part.bijective for part in self.parts)

    @property
    def sign(self) -> Any:
        return math.prod(part.sign for part in self.parts)

    @property
    def inv(self) -> Transform:
        if self._inv is None:
            self._inv = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv._inv = self
        return self._inv

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: Tensor) -> Tensor:
        return self.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return zeros_like(x)
        values = [x]
        for part in self.parts[:-1]:
            values.append(part(values[-1]))
        values.append(y)
        terms, event_dim = [], self.domain.event_dim
        for part, before, after in zip(self.parts, values[:-1], values[1:], strict=True):
            terms.append(sum_rightmost(part.log_abs_det_jacobian(before, after), event_dim - part.domain.event_dim))
            event_dim += part.codomain.event_dim - part.domain.event_dim
        return functools.reduce(operator.add, terms)

    def forward_shape(self, shape: Shape) -> Shape:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}(\n    " + ",\n    ".join(map(repr, self.parts)) + "\n)"


identity_transform = ComposeTransform([])
identity_transform.__doc__ = """Return the argument: the transform that changes nothing.

Parameters
----------
x : Tensor
    Of any shape.

Returns
-------
Tensor
    The argument itself.
"""


class IndependentTransform(Transform):
    """A transform whose last further dimensions count as one value: their log-determinants are added.

    Parameters
    ----------
    base_transform : Transform
        The transform of each value.
    reinterpreted_batch_ndims : int
        How many further dimensions.
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    domain = property(lambda self: constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims))
    codomain = property(
        lambda self: constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)
    )
    bijective = property(lambda self: self.base_transform.bijective)
    sign = property(lambda self: self.base_transform.sign)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return IndependentTransform(self.base_transform, self.reinterpreted_batch_ndims, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        if x.dim() < self.domain.event_dim:
            raise ArgumentError("Too few dimensions on input")
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        if y.dim() < self.codomain.event_dim:
            raise ArgumentError("Too few dimensions on input")
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Shape) -> Shape:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"
