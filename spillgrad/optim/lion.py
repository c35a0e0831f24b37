"""Lion: steps by the sign of a momentum."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Unpack

from spillgrad.optim.formula_optimizer import Accepted, FormulaOptimizer, FormulaOptions
from spillgrad.optim.optimizer import Group, ParameterList, State, checked_options
from spillgrad_kernels.tables import optim as updates
from spillgrad_kernels.tables.optim import Update


class Lion(FormulaOptimizer):
    """Move each element by the learning rate, in the direction of its momentum; weights decay apart from the gradient.

    Its state is half of Adam's. It needs about a tenth of Adam's learning rate and ten times its weight decay.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-4
        Learning rate.
    betas : tuple of float, default (0.9, 0.99)
        Shares of the momentum in the direction of a step, and in the next momentum; from 0 to below 1.
    weight_decay : float, default 0.0
        Share of a parameter that a step takes away, as a multiple of the learning rate.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.
    state : {"float32", "bf16", "int8"}, default "float32"
        Format of the state: the parameter's dtype, bfloat16, or 8 bits with a scale for each 256 elements.
    keep_exact : bool, default True
        Whether parameters that are small or sensitive keep exact state: those with fewer than 4096 elements or with one
        dimension, and embeddings.
    **accepted : object
        PyTorch's options `foreach`, `fused` and `capturable`, which change nothing.

    Raises
    ------
    ArgumentError
        If an option is out of its range, there are no parameters, or one is given twice.

    Notes
    -----
    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
    """

    encodable: ClassVar[Mapping[str, bool]] = {"exp_avg": True}

    def __init__(
        self, params: ParameterList, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, *, maximize: bool = False, state: str = "float32",
        keep_exact: bool = True, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options("Lion", lr=lr, betas=betas, weight_decay=weight_decay)
        taken: FormulaOptions = {**accepted, "state": state, "keep_exact": keep_exact}
        super().__init__(params, {**options, "maximize": maximize}, **taken)

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
        return updates.lion

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "exp_avg".

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return ("exp_avg",)

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
        return group["lr"], *group["betas"], group["weight_decay"]
