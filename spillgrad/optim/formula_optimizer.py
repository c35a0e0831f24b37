"""The base of optimizers that update every element by a formula."""

import operator
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from spillgrad.errors import ArgumentError
from spillgrad.ops import creation
from spillgrad.optim.arrays import Pending
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State
from spillgrad.tensor import Tensor
from spillgrad_kernels.tables.optim import Update


class Accepted(TypedDict, total=False):
    """Options that choose among PyTorch's implementations of an optimizer. spillgrad has one, which is fused."""

    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class FormulaOptimizer(Optimizer):
    """An optimizer whose updates are made by a function of `spillgrad_kernels.tables.optim`.

    Subclasses define `function`, `state_names`, and `numbers`, which the function gets behind the arrays.
    """

    state_has_shape_of_parameter = True
    state_has_dtype_of_parameter = True
    numbers_in_state = ("step", "eta", "mu", "mu_product")

    def __init__(self, params: ParameterList, defaults: dict[str, Any], **accepted: Unpack[Accepted]) -> None:
        name = type(self).__name__
        unknown = sorted(accepted.keys() - Accepted.__annotations__.keys())
        if unknown:
            raise TypeError(f"{name}.__init__() got an unexpected keyword argument '{unknown[0]}'")
        if accepted.get("differentiable"):
            raise ArgumentError(
                f"{name}: got differentiable=True; updates are not recorded; leave it out, and compute new parameters "
                "that shall have a graph by operations of your own"
            )
        super().__init__(params, defaults)

    def function(self, group: Group) -> Callable[..., Update]:
        """Return the function that makes the updates of a group's parameters.

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        callable
            The function.
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no function")

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state.

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return ()

    def first_value(self, name: str, group: Group) -> float:
        """Return the number that a tensor of state is filled with before the first update.

        Parameters
        ----------
        name : str
            Name of the tensor.
        group : dict
            Options of the group.

        Returns
        -------
        float
            The number.
        """
        return 0.0

    def arrays(self, state: State, group: Group) -> list[Tensor | None]:
        """Return the tensors of state that an update takes.

        Parameters
        ----------
        state : dict
            State of the parameter.
        group : dict
            Options of the group.

        Returns
        -------
        list of Tensor
            The tensors, in the order of the formula; None for one that is not used.
        """
        return [state[name] for name in self.state_names(group)]

    def numbers(self, state: State, group: Group) -> tuple[float, ...]:
        """Return the numbers that an update takes.

        Parameters
        ----------
        state : dict
            State of the parameter; it may be changed.
        group : dict
            Options of the group.

        Returns
        -------
        tuple of float
            The numbers, in the order of the formula.
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no numbers")

    def state_tensors(self, group: Group) -> int:
        """Return how many tensors of a parameter's size the state of each parameter of a group will hold.

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        int
            The number.
        """
        return len(self.state_names(group))

    def round_stochastically(self, seed: int) -> None:
        """Round updated bfloat16 parameters, and their bfloat16 state, up or down at random, not to nearest.

        A change of less than half a unit in the last place is then lost in most updates, but not in the mean of many.
        Updates are computed in float32. Other dtypes are not affected. Each number depends on the seed, the parameter's
        number, the update's and the element's alone.

        Parameters
        ----------
        seed : int
            Seed of the random numbers, which becomes the option "rounding_seed" of all groups.

        Examples
        --------
        >>> import spillgrad as sg
        >>> weight = sg.nn.Parameter(sg.ones(4096, dtype=sg.bfloat16))
        >>> optimizer = sg.optim.SGD([weight], lr=0.001)  # to nearest, 1 - 0.001 is 1 again
        >>> optimizer.round_stochastically(seed=0)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> round(weight.to(sg.float32).mean().item(), 3)
        0.999
        """
        for options in (self.defaults, *self.param_groups):
            options["rounding_seed"] = operator.index(seed)

    def begin(self, param: Tensor, state: State, group: Group) -> None:
        """Make the state of a parameter.

        Parameters
        ----------
        param : Tensor
            The parameter.
        state : dict
            Its state, which is filled.
        group : dict
            Options of the group.
        """
        state["step"] = 0
        for name in self.state_names(group):
            first = self.first_value(name, group)
            state[name] = creation.full_like(param, complex(first, first) if param.is_complex() else first)

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> Pending:
        """Return a pending update of one parameter, which runs together with others.

        Parameters
        ----------
        param : Tensor
            The parameter.
        grad : Tensor
            Its gradient.
        state : dict
            Its state; empty at its first update.
        group : dict
            Options of the group.

        Returns
        -------
        Pending
            The update.
        """
        if not state:
            self.begin(param, state, group)
        state["step"] = state.get("step", 0) + 1
        return Pending(self.function(group), param, grad, self.arrays(state, group), self.numbers(state, group))
