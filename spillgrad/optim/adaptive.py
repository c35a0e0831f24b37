"""Optimizers that scale each element's step by the gradients that it had; and averaged gradient descent."""

from collections.abc import Callable
from typing import Unpack

from spillgrad.errors import ArgumentError
from spillgrad.optim.formula_optimizer import Accepted, FormulaOptimizer
from spillgrad.optim.optimizer import Group, ParameterList, State, checked_options
from spillgrad.optim.state_formats import EncodedState
from spillgrad.tensor import Tensor
from spillgrad_kernels.tables import optim as updates
from spillgrad_kernels.tables.optim import Update

__all__ = ["ASGD", "Adadelta", "Adagrad", "RMSprop", "Rprop"]


class Adagrad(FormulaOptimizer):
    """Divide each element's step by the root of the sum of its squared gradients.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-2
        Learning rate.
    lr_decay : float, default 0.0
        Rate at which the learning rate falls with the steps.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    initial_accumulator_value : float, default 0.0
        First value of the sums.
    eps : float, default 1e-10
        Added to the divisor.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.
    **accepted : object
        PyTorch's options `foreach`, `fused` and `capturable`, which change nothing.

    Raises
    ------
    ArgumentError
        If an option is out of its range, there are no parameters, or one is given twice.

    Notes
    -----
    Source: Duchi et al. 2011, "Adaptive subgradient methods for online learning and stochastic optimization".
    """

    def __init__(
        self, params: ParameterList, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False,
        **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options(
            "Adagrad", lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
        )  # fmt: skip
        super().__init__(params, {**options, "maximize": maximize}, **accepted)

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
        return updates.adagrad

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "sum".

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return ("sum",)

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
        return float(group["initial_accumulator_value"])

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
        return group["lr"], group["lr_decay"], group["weight_decay"], group["eps"], state["step"]


class Adadelta(FormulaOptimizer):
    """Scale each element's step by the ratio of its former changes and gradients, each a root mean square.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1.0
        Factor of the steps.
    rho : float, default 0.9
        Share that the running means keep at each step, from 0 to 1.
    eps : float, default 1e-6
        Added to the mean squares.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.
    **accepted : object
        PyTorch's options `foreach`, `fused` and `capturable`, which change nothing.

    Raises
    ------
    ArgumentError
        If an option is out of its range, there are no parameters, or one is given twice.

    Notes
    -----
    Source: Zeiler 2012, "ADADELTA: an adaptive learning rate method", algorithm 1.
    """

    def __init__(
        self, params: ParameterList, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, *,
        maximize: bool = False, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options("Adadelta", lr=lr, eps=eps, weight_decay=weight_decay)
        if not 0 <= rho <= 1:
            raise ArgumentError(f"Adadelta: got rho {rho}; it must be between 0 and 1")
        super().__init__(params, {**options, "rho": rho, "maximize": maximize}, **accepted)

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
        return updates.adadelta

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "square_avg" and "acc_delta".

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return "square_avg", "acc_delta"

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
        return group["lr"], group["rho"], group["eps"], group["weight_decay"]


class RMSprop(FormulaOptimizer):
    """Divide each gradient by its running root mean square, or by its running standard deviation.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-2
        Learning rate.
    alpha : float, default 0.99
        Share that the running means keep at each step.
    eps : float, default 1e-8
        Added to the divisor.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    momentum : float, default 0.0
        Share of the last step that the next one repeats.
    centered : bool, default False
        Whether to divide by the standard deviation.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.
    **accepted : object
        PyTorch's options `foreach`, `fused` and `capturable`, which change nothing.

    Raises
    ------
    ArgumentError
        If an option is out of its range, there are no parameters, or one is given twice.

    Notes
    -----
    Source: Hinton 2012, "Neural networks for machine learning", lecture 6e; centered: Graves 2013, "Generating
    sequences with recurrent neural networks", eqs. 38 to 45.
    """

    def __init__(
        self, params: ParameterList, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False, *, maximize: bool = False,
        **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options(
            "RMSprop", lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum
        )  # fmt: skip
        super().__init__(params, {**options, "centered": centered, "maximize": maximize}, **accepted)

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
        return updates.rmsprop

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state.

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            "square_avg", "momentum_buffer" with a momentum, and "grad_avg" if centered.
        """
        momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return "square_avg", *momentum, *(("grad_avg",) if group["centered"] else ())

    def arrays(self, param: Tensor, state: State, group: Group) -> list[Tensor | EncodedState | None]:
        """Return the tensors of state that an update takes.

        Parameters
        ----------
        param : Tensor
            The parameter.
        state : dict
            State of the parameter.
        group : dict
            Options of the group.

        Returns
        -------
        list of Tensor
            The tensors, in the order of the formula; None for one that is not used.
        """
        used = self.state_names(group)
        return [state[name] if name in used else None for name in ("square_avg", "momentum_buffer", "grad_avg")]

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
        return tuple([group[name] for name in ("lr", "alpha", "eps", "weight_decay", "momentum")])


class Rprop(FormulaOptimizer):
    """Move each element by a step of its own, which grows while the gradient's sign stays, and shrinks when it changes.

    It is for gradients of the whole data, not of batches.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-2
        First size of the steps.
    etas : tuple of float, default (0.5, 1.2)
        Factors by which a step shrinks and grows: one between 0 and 1, and one above 1.
    step_sizes : tuple of float, default (1e-6, 50.0)
        Least and largest size of a step.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.
    **accepted : object
        PyTorch's options `foreach`, `fused` and `capturable`, which change nothing.

    Raises
    ------
    ArgumentError
        If an option is out of its range, there are no parameters, or one is given twice.

    Notes
    -----
    Source: Riedmiller, Braun 1993, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm".
    """

    def __init__(
        self, params: ParameterList, lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0), *, maximize: bool = False, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options("Rprop", lr=lr)
        if not 0 < etas[0] < 1 < etas[1]:
            raise ArgumentError(f"Rprop: got etas {etas}; wanted one between 0 and 1, and one above 1")
        options |= {"etas": tuple(etas), "step_sizes": tuple(step_sizes), "maximize": maximize}
        super().__init__(params, options, **accepted)

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
        return updates.rprop

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "prev" and "step_size".

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return "prev", "step_size"

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
        return float(group["lr"]) if name == "step_size" else 0.0

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
        return *group["etas"], *group["step_sizes"]


class ASGD(FormulaOptimizer):
    """Descend by gradients at a falling learning rate, and average the parameters.

    The average of a parameter is in its state as "ax".

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-2
        First learning rate.
    lambd : float, default 1e-4
        Rate at which the parameters and the learning rate fall.
    alpha : float, default 0.75
        Exponent of the fall of the learning rate.
    t0 : float, default 1e6
        Step from which the parameters are averaged.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.
    **accepted : object
        PyTorch's options `foreach`, `fused` and `capturable`, which change nothing.

    Raises
    ------
    ArgumentError
        If an option is out of its range, there are no parameters, or one is given twice.

    Notes
    -----
    Source: Polyak, Juditsky 1992, "Acceleration of stochastic approximation by averaging".
    """

    def __init__(
        self, params: ParameterList, lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0.0, *, maximize: bool = False, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options("ASGD", lr=lr, weight_decay=weight_decay)
        options |= {"lambd": lambd, "alpha": alpha, "t0": t0, "maximize": maximize}
        super().__init__(params, options, **accepted)

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
        return updates.asgd

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "ax".

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return ("ax",)

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
        super().begin(param, state, group)
        state.update(eta=group["lr"], mu=1.0)

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
        found = group["weight_decay"], group["lambd"], state["eta"], state["mu"]
        step, lr = state["step"], group["lr"]  # for the next update
        state["eta"] = lr / (1 + group["lambd"] * lr * step) ** group["alpha"]
        state["mu"] = 1 / max(1, step - group["t0"])
        return found
