"""The base class of probability distributions.

A distribution holds a batch of distributions of one family: `batch_shape` is the shape of the batch, `event_shape` that
of one draw. A sample has the shape sample_shape + batch_shape + event_shape. All draws follow `sg.manual_seed`.
"""

import warnings
from collections.abc import Iterable
from typing import Any, NoReturn, Self

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributions import constraints
from spillgrad.distributions.utils import lazy_property
from spillgrad.errors import ArgumentError, UnsupportedError
from spillgrad.ops.arithmetic import exp
from spillgrad.tensor import Tensor

__all__ = ["Distribution"]

Shape = Iterable[int]


class Distribution:
    """The base class of distributions. A subclass defines what it has of the methods below; the others raise.

    A class of one's own sets `arg_constraints` and `support`, calls ``super().__init__`` when its parameters are
    attributes, and defines `expand` if it has an ``__init__``.

    Parameters
    ----------
    batch_shape : sequence of int, default ()
        Shape of the batch of distributions.
    event_shape : sequence of int, default ()
        Shape of one draw from one distribution.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If a parameter is outside its constraint, and arguments are checked.
    """

    has_rsample = False
    has_enumerate_support = False
    _validate_args = __debug__
    # Attributes that `expand` leaves as they are: tensors without the batch's dimensions.
    _unexpanded: tuple[str, ...] = ()

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Set whether distributions check parameters and values if they are made without `validate_args`.

        Parameters
        ----------
        value : bool
            True at first, unless Python runs with ``-O``.

        Raises
        ------
        ArgumentError
            For anything but a bool.
        """
        if value not in (True, False):
            raise ArgumentError(f"set_default_validate_args: got {value!r}; wanted True or False")
        Distribution._validate_args = value

    def __init__(self, batch_shape: Shape = (), event_shape: Shape = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = tuple(batch_shape), tuple(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._validate_parameters()

    def _validate_parameters(self) -> None:
        try:
            wanted = self.arg_constraints
        except NotImplementedError:
            warnings.warn(
                f"{self.__class__} does not define `arg_constraints`. Please set `arg_constraints = {{}}` or "
                "initialize the distribution with `validate_args=False` to turn off validation.",
                stacklevel=4,
            )
            return
        for name, constraint in wanted.items():
            lazy = name not in vars(self) and isinstance(getattr(type(self), name, None), lazy_property)
            if lazy or constraints.is_dependent(constraint):
                continue
            value = getattr(self, name)
            if not bool(constraint.check(value).all()):
                raise ArgumentError(
                    f"Expected parameter {name} ({type(value).__name__} of shape {value.shape}) of distribution "
                    f"{self!r} to satisfy the constraint {constraint!r}, but found invalid values:\n{value}"
                )

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Self:
        """Return the distribution with its parameters expanded to another batch shape; no memory is copied.

        Parameters
        ----------
        batch_shape : sequence of int
            The other batch shape.
        _instance : Distribution, optional
            Object that becomes the result; a new one, by default.

        Returns
        -------
        Distribution
            Of the same class.

        Raises
        ------
        UnsupportedError
            For a subclass that defines an ``__init__`` and no `expand` of its own.
        """
        if not type(self).__init__.__module__.startswith(__name__.rpartition(".")[0] + "."):
            raise UnsupportedError(
                f"Subclass {type(self).__name__} that defines a custom __init__ method must also define a custom "
                ".expand() method."
            )
        batch = tuple(batch_shape)
        new: Self = type(self).__new__(type(self)) if _instance is None else _instance
        for name, value in vars(self).items():
            vars(new)[name] = value if name in self._unexpanded else self._expanded(value, batch)
        new._batch_shape = batch
        return new

    def _expanded(self, value: Any, batch: tuple[int, ...]) -> Any:
        if isinstance(value, Tensor):
            return value.expand(batch + value.shape[len(self._batch_shape) :])
        return value.expand(batch) if isinstance(value, Distribution) else value

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the batch of distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one draw from one distribution."""
        return self._event_shape

    def _missing(self, name: str) -> NoReturn:
        raise UnsupportedError(f"{self.__class__} does not implement {name}")

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """The constraint of each parameter, by name."""
        self._missing("arg_constraints")

    @property
    def support(self) -> Any:
        """The constraint that all values of the distribution satisfy."""
        self._missing("support")

    @property
    def mean(self) -> Tensor:
        """The mean of each distribution."""
        self._missing("mean")

    @property
    def mode(self) -> Tensor:
        """The most probable value of each distribution."""
        self._missing("mode")

    @property
    def variance(self) -> Tensor:
        """The variance of each distribution."""
        self._missing("variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each distribution."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Return draws without a graph.

        Parameters
        ----------
        sample_shape : sequence of int, default ()
            Shape of the draws from each distribution.

        Returns
        -------
        Tensor
            Of shape sample_shape + batch_shape + event_shape.
        """
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Return draws whose gradients by the parameters are those of a reparametrisation.

        Parameters
        ----------
        sample_shape : sequence of int, default ()
            Shape of the draws from each distribution.

        Returns
        -------
        Tensor
            Of shape sample_shape + batch_shape + event_shape.

        Raises
        ------
        UnsupportedError
            Unless `has_rsample` is True.
        """
        self._missing("rsample")

    def sample_n(self, n: int) -> Tensor:
        """Return several draws. Deprecated in PyTorch: use ``sample((n,))``.

        Parameters
        ----------
        n : int
            Number of draws.

        Returns
        -------
        Tensor
            Of shape (n,) + batch_shape + event_shape.

        Warns
        -----
        FutureWarning
            Always.
        """
        warnings.warn("`sample_n(n)` will be deprecated. Use `sample((n,))` instead.", FutureWarning, stacklevel=2)
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density, or of the probability, at `value`.

        Parameters
        ----------
        value : Tensor
            Values, of the shape batch_shape + event_shape or one that broadcasts with it.

        Returns
        -------
        Tensor
            Of the broadcast shape, without event_shape.

        Raises
        ------
        ArgumentError
            For values of another shape or outside the support, if arguments are checked.
        UnsupportedError
            If the distribution does not define it.
        """
        self._missing("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of a draw up to `value`.

        Parameters
        ----------
        value : Tensor
            Values, of the shape batch_shape + event_shape or one that broadcasts with it.

        Returns
        -------
        Tensor
            Of the broadcast shape, without event_shape.

        Raises
        ------
        ArgumentError
            For values of another shape or outside the support, if arguments are checked.
        UnsupportedError
            If the distribution does not define it.
        """
        self._missing("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantile of the probability `value`: the inverse of `cdf`.

        Parameters
        ----------
        value : Tensor
            Probabilities, of a shape that broadcasts with batch_shape.

        Returns
        -------
        Tensor
            Of the broadcast shape.

        Raises
        ------
        UnsupportedError
            If the distribution does not define it.
        """
        self._missing("icdf")

    def entropy(self) -> Tensor:
        """Return the entropy of each distribution, in nats.

        Returns
        -------
        Tensor
            Of shape batch_shape.

        Raises
        ------
        UnsupportedError
            If the distribution does not define it.
        """
        self._missing("entropy")

    def perplexity(self) -> Tensor:
        """Return the exponential of the entropy.

        Returns
        -------
        Tensor
            Of shape batch_shape.

        Raises
        ------
        UnsupportedError
            If the distribution does not define it.
        """
        return exp(self.entropy())

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values of a discrete distribution along a new first dimension.

        Parameters
        ----------
        expand : bool, default True
            Whether the batch's dimensions have their full size; else 1.

        Returns
        -------
        Tensor
            Of shape (count,) + batch_shape + event_shape.

        Raises
        ------
        UnsupportedError
            Unless `has_enumerate_support` is True.
        """
        self._missing("enumerate_support")

    def _extended_shape(self, sample_shape: Shape = ()) -> tuple[int, ...]:
        return (*sample_shape, *self._batch_shape, *self._event_shape)

    def _check(self, value: Any) -> None:
        """Raise ArgumentError for a value of another shape or outside the support, if arguments are validated."""
        if self._validate_args:
            self._validate_sample(value)

    def _validate_sample(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise ArgumentError("The value argument to log_prob must be a Tensor")
        shape, wanted = value.shape, self._batch_shape + self._event_shape
        if shape[len(shape) - len(self._event_shape) :] != self._event_shape:
            raise ArgumentError(f"The right-most size of value must match event_shape: {shape} vs {self._event_shape}.")
        if any(1 not in (i, j) and i != j for i, j in zip(reversed(shape), reversed(wanted), strict=False)):
            raise ArgumentError(f"Value is not broadcastable with batch_shape+event_shape: {shape} vs {wanted}.")
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(
                f"{self.__class__} does not define `support` to enable sample validation. Please initialize the "
                "distribution with `validate_args=False` to turn off validation.",
                stacklevel=4,
            )
            return
        if not bool(support.check(value).all()):
            raise ArgumentError(
                f"Expected value argument ({type(value).__name__} of shape {shape}) to be within the support "
                f"({support!r}) of the distribution {self!r}, but found invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        found = {name: vars(self)[name] for name in self.arg_constraints if name in vars(self)}
        shown = (f"{n}: {v if not isinstance(v, Tensor) or v.numel() == 1 else v.shape}" for n, v in found.items())
        return f"{type(self).__name__}({', '.join(shown)})"
