"""Transforms from all real numbers to the sets that parameters and values of distributions lie in.

Source: torch.distributions.constraint_registry.
"""

import functools
from collections.abc import Callable
from typing import Any

from spillgrad.distributions import constraints, transforms
from spillgrad.distributions.matrix_transforms import LowerCholeskyTransform, PositiveDefiniteTransform
from spillgrad.distributions.transform import ComposeTransform, IndependentTransform, Transform, identity_transform
from spillgrad.errors import OperandError, UnsupportedError

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """A function from constraints to transforms, by the class of the constraint; `register` adds one.

    `biject_to` and `transform_to` are such functions.
    """

    def __init__(self) -> None:
        self._factories: dict[type[constraints.Constraint], Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Make ``factory(constraint)`` the transform for a class of constraints; a decorator, too.

        Parameters
        ----------
        constraint : Constraint or type
            The class of constraints, or one of it.
        factory : callable, optional
            Takes a constraint, and returns a `Transform`; None returns a decorator of such a function.

        Returns
        -------
        callable
            The `factory`, or the decorator.

        Raises
        ------
        OperandError
            For what is no constraint; the error is a TypeError.
        """
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        kind = type(constraint) if isinstance(constraint, constraints.Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, constraints.Constraint)):
            raise OperandError(
                f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}"
            )
        self._factories[kind] = factory
        return factory

    def __call__(self, constraint: constraints.Constraint) -> Transform:
        """Return the transform to a constraint. Raises UnsupportedError for a class that was not registered."""
        factory = self._factories.get(type(constraint))
        if factory is None:
            raise UnsupportedError(
                f"Cannot transform {type(constraint).__name__} constraints; register adds a transform"
            )
        return factory(constraint)


biject_to = ConstraintRegistry()
biject_to.__doc__ = """Return a bijection to the set of a constraint: what a sampler needs that moves among all numbers.

Parameters
----------
constraint : Constraint
    The constraint, such as ``constraints.positive``.

Returns
-------
Transform
    From all real numbers to the set.

Raises
------
UnsupportedError
    For a class of constraints that was not registered; ``biject_to.register`` adds one.

Examples
--------
>>> import spillgrad as sg
>>> from spillgrad.distributions import biject_to, constraints
>>> biject_to(constraints.positive)(sg.tensor(0.0))
tensor(1.)
"""
transform_to = ConstraintRegistry()
transform_to.__doc__ = """Return a transform to the set of a constraint: what an optimizer of parameters needs.

It need not be a bijection, unlike that of `biject_to`.

Parameters
----------
constraint : Constraint
    The constraint, such as ``constraints.positive``.

Returns
-------
Transform
    From all real numbers to the set.

Raises
------
UnsupportedError
    For a class of constraints that was not registered; ``transform_to.register`` adds one.
"""


def _both(*kinds: Any) -> Callable[[Factory], Factory]:
    def register(factory: Factory) -> Factory:
        for kind in kinds:
            for registry in (biject_to, transform_to):
                registry.register(kind, factory)
        return factory

    return register


@_both(constraints.real)
def _real(constraint: Any) -> Transform:
    return identity_transform


def _of_independent(registry: Any, constraint: Any) -> Transform:
    return IndependentTransform(registry(constraint.base_constraint), constraint.reinterpreted_batch_ndims)


for _registry in (biject_to, transform_to):
    _registry.register(constraints.independent, functools.partial(_of_independent, _registry))


@_both(constraints.greater_than, constraints.greater_than_eq)
def _greater_than(constraint: Any) -> Transform:
    if constraint is constraints.positive or constraint is constraints.nonnegative:
        return transforms.ExpTransform()
    return ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(constraint.lower_bound, 1)])


@_both(constraints.less_than)
def _less_than(constraint: Any) -> Transform:
    return ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(constraint.upper_bound, -1)])


@_both(constraints.interval, constraints.half_open_interval)
def _interval(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if isinstance(low, int | float) and isinstance(high, int | float) and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    return ComposeTransform([transforms.SigmoidTransform(), transforms.AffineTransform(low, high - low)])


biject_to.register(constraints.simplex, lambda constraint: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda constraint: transforms.SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda constraint: LowerCholeskyTransform())
for _kind in (constraints.positive_definite, constraints.positive_semidefinite):
    transform_to.register(_kind, lambda constraint: PositiveDefiniteTransform())
