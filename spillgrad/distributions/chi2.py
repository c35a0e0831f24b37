"""The chi-squared distribution."""

from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.gamma import Gamma
from spillgrad.tensor import Tensor

__all__ = ["Chi2"]


class Chi2(Gamma):
    """The chi-squared distribution: the gamma distribution of df / 2 at rate 1 / 2.

    Parameters
    ----------
    df : Tensor or float
        Degrees of freedom, more than 0.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If a parameter is outside its constraint, and arguments are checked.
    """

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self.concentration * 2
