"""Stochastic gradient descent."""

from collections.abc import Mapping
from typing import ClassVar, Unpack

from spillgrad.errors import ArgumentError
from spillgrad.optim.arrays import Pending
from spillgrad.optim.formula_optimizer import Accepted, FormulaOptimizer, FormulaOptions
from spillgrad.optim.optimizer import Group, ParameterList, State, checked_options
from spillgrad.tensor import Tensor
from spillgrad_kernels.tables import optim as updates


class SGD(FormulaOptimizer):
    """Step against the gradient; with `momentum`, against its running sum.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-3
        Learning rate.
    momentum : float, default 0.0
        Share of the running sum that the next one keeps.
    dampening : float, default 0.0
        Share of a gradient that the running sum leaves out.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    nesterov : bool, default False
        Whether to add the gradient once more, as Nesterov does; it needs a momentum and no dampening.
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
    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", in PyTorch's
    form: the velocity is a sum of gradients, scaled by the learning rate when it is used.

    Examples
    --------
    >>> import spillgrad as sg
    >>> weight = sg.nn.Parameter(sg.tensor([1.0, 2.0]))
    >>> optimizer = sg.optim.SGD([weight], lr=0.5)
    >>> (weight * weight).sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.0, 0.0]
    """

    encodable: ClassVar[Mapping[str, bool]] = {"momentum_buffer": True}

    def __init__(
        self, params: ParameterList, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False, *, maximize: bool = False, state: str = "float32",
        keep_exact: bool = True, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ArgumentError(
                f"SGD: got momentum {momentum} and dampening {dampening}; Nesterov momentum requires a momentum and "
                "zero dampening"
            )
        options |= {"dampening": dampening, "nesterov": nesterov, "maximize": maximize}
        taken: FormulaOptions = {**accepted, "state": state, "keep_exact": keep_exact}
        super().__init__(params, options, **taken)

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "momentum_buffer", with a momentum.

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return ("momentum_buffer",) if group["momentum"] else ()

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
        is_first, buffer = not state, None
        if group["momentum"]:
            if state.get("momentum_buffer") is None:  # None is PyTorch's state of a parameter that was not updated yet
                is_first = True
                state |= self._first("momentum_buffer", param, group)
            buffer = self._taken("momentum_buffer", state, param, group)
        options = [group[name] for name in ("lr", "momentum", "dampening", "weight_decay", "nesterov")]
        return Pending(updates.sgd, param, grad, [buffer], (*options, is_first))
