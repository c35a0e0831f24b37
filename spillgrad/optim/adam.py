"""Adam and its variants."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Unpack

from spillgrad.optim.formula_optimizer import Accepted, FormulaOptimizer, FormulaOptions
from spillgrad.optim.optimizer import Group, ParameterList, State, checked_options
from spillgrad_kernels.tables import optim as updates
from spillgrad_kernels.tables.optim import Update

__all__ = ["Adam", "AdamW", "Adamax", "NAdam", "RAdam"]

Betas = tuple[float, float]


class _Moments(FormulaOptimizer):
    """An optimizer that keeps the running mean of each gradient, and that of its square."""

    def __init__(
        self, params: ParameterList, lr: float, betas: Betas, eps: float, weight_decay: float, maximize: bool,
        accepted: Accepted, **options: Any,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        defaults = checked_options(name, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, {**defaults, **options, "maximize": maximize}, **accepted)

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "exp_avg" and "exp_avg_sq".

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return "exp_avg", "exp_avg_sq"

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
        decoupled = (group["decoupled_weight_decay"],) if "decoupled_weight_decay" in group else ()
        return group["lr"], *group["betas"], group["eps"], group["weight_decay"], *decoupled, state["step"]


class Adam(_Moments):
    """Scale each element's step by running moments of its gradient.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-3
        Learning rate.
    betas : tuple of float, default (0.9, 0.999)
        Shares that the running means of gradients and of their squares keep at each step, from 0 to below 1.
    eps : float, default 1e-8
        Added to the divisor.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    amsgrad : bool, default False
        Whether the largest second moment so far counts.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.
    decoupled_weight_decay : bool, default False
        Whether weight decay shrinks the parameters directly, apart from the gradient, as in `AdamW`.
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
    Source: Kingma, Ba 2014, "Adam: a method for stochastic optimization", algorithm 1; `amsgrad`: Reddi et al. 2018,
    "On the convergence of Adam and beyond", algorithm 2.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.Linear(3, 1)
    >>> optimizer = sg.optim.Adam(model.parameters(), lr=1e-3)
    >>> model(sg.ones(4, 3)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    """

    encodable: ClassVar[Mapping[str, bool]] = {"exp_avg": True, "exp_avg_sq": False, "max_exp_avg_sq": False}

    def __init__(
        self, params: ParameterList, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False,
        decoupled_weight_decay: bool = False, state: str = "float32", keep_exact: bool = True,
        **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = {"amsgrad": amsgrad, "decoupled_weight_decay": decoupled_weight_decay}
        taken: FormulaOptions = {**accepted, "state": state, "keep_exact": keep_exact}
        super().__init__(params, lr, betas, eps, weight_decay, maximize, taken, **options)

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
        if group["amsgrad"]:
            return updates.amsgrad
        return updates.adamw if group["decoupled_weight_decay"] else updates.adam

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state; with `amsgrad`, "max_exp_avg_sq" is one of them.

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ())

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
        *options, decoupled, step = super().numbers(state, group)
        return (*options, decoupled, step) if group["amsgrad"] else (*options, step)


class AdamW(Adam):
    """Scale steps as `Adam` does; weight decay shrinks the parameters directly, apart from the gradient.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-3
        Learning rate.
    betas : tuple of float, default (0.9, 0.999)
        Shares that the running means of gradients and of their squares keep at each step, from 0 to below 1.
    eps : float, default 1e-8
        Added to the divisor.
    weight_decay : float, default 1e-2
        Share of a parameter that a step takes away, as a multiple of the learning rate.
    amsgrad : bool, default False
        Whether the largest second moment so far counts.
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
    Source: Loshchilov, Hutter 2017, "Decoupled weight decay regularization", algorithm 2.

    Examples
    --------
    >>> import spillgrad as sg
    >>> weight = sg.nn.Parameter(sg.ones(2))
    >>> optimizer = sg.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.tolist()
    [0.8500000238418579, 0.8500000238418579]

    With its state in 8 bits, a quarter of the memory is enough:

    >>> layer = sg.nn.Linear(256, 256)
    >>> optimizer = sg.optim.AdamW(layer.parameters(), state="int8")
    >>> layer(sg.ones(1, 256)).sum().backward()
    >>> optimizer.step()
    >>> {name: format for name, format in zip(["weight", "bias"], optimizer.state_formats().values())}
    {'weight': 'int8', 'bias': 'float32'}
    >>> {key: value.shape for key, value in optimizer.state[layer.weight].items() if key != "step"}
    {'exp_avg': (256, 256), 'exp_avg_scale': (256,), 'exp_avg_sq': (256, 256), 'exp_avg_sq_scale': (256,)}
    """

    def __init__(
        self, params: ParameterList, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, state: str = "float32",
        keep_exact: bool = True, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True, state=state,
            keep_exact=keep_exact, **accepted,
        )  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set what a copy or a state dict has; that of `Adam`, too, goes on with decoupled weight decay."""
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


class NAdam(_Moments):
    """Scale steps as `Adam` does, with Nesterov's momentum, which grows over the first steps.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 2e-3
        Learning rate.
    betas : tuple of float, default (0.9, 0.999)
        Shares that the running means of gradients and of their squares keep at each step, from 0 to below 1.
    eps : float, default 1e-8
        Added to the divisor.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    momentum_decay : float, default 4e-3
        Rate at which the momentum grows.
    decoupled_weight_decay : bool, default False
        Whether weight decay shrinks the parameters directly, apart from the gradient.
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
    Source: Dozat 2016, "Incorporating Nesterov momentum into Adam", algorithm 2.
    """

    def __init__(
        self, params: ParameterList, lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *,
        maximize: bool = False, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        options = checked_options("NAdam", momentum_decay=momentum_decay)
        options["decoupled_weight_decay"] = decoupled_weight_decay
        super().__init__(params, lr, betas, eps, weight_decay, maximize, accepted, **options)

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
        return updates.nadam

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
        steps = (state["step"], state["step"] + 1)
        mu, mu_next = (group["betas"][0] * (1 - 0.5 * 0.96 ** (step * group["momentum_decay"])) for step in steps)
        state["mu_product"] = state.get("mu_product", 1.0) * mu
        return *super().numbers(state, group), mu, mu_next, state["mu_product"]


class RAdam(_Moments):
    """Scale steps as `Adam` does, but only once the variance of the second moment is known.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-3
        Learning rate.
    betas : tuple of float, default (0.9, 0.999)
        Shares that the running means of gradients and of their squares keep at each step, from 0 to below 1.
    eps : float, default 1e-8
        Added to the divisor.
    weight_decay : float, default 0.0
        Multiple of the parameter that is added to its gradient.
    decoupled_weight_decay : bool, default False
        Whether weight decay shrinks the parameters directly, apart from the gradient.
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
    Source: Liu et al. 2020, "On the variance of the adaptive learning rate and beyond", algorithm 2.
    """

    def __init__(
        self, params: ParameterList, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, decoupled_weight_decay: bool = False, *, maximize: bool = False,
        **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, maximize, accepted, decoupled_weight_decay=decoupled_weight_decay
        )

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
        return updates.radam


class Adamax(_Moments):
    """Scale steps as `Adam` does, with the largest gradient, which decays, in place of the second moment.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 2e-3
        Learning rate.
    betas : tuple of float, default (0.9, 0.999)
        Shares that the running mean of gradients and the largest gradient keep at each step, from 0 to below 1.
    eps : float, default 1e-8
        Added to the divisor.
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
    Source: Kingma, Ba 2014, "Adam: a method for stochastic optimization", algorithm 2.
    """

    def __init__(
        self, params: ParameterList, lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, *, maximize: bool = False, **accepted: Unpack[Accepted],
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, maximize, accepted)

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
        return updates.adamax

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of a parameter's tensors of state: "exp_avg" and "exp_inf".

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        tuple of str
            The names, in the order of the formula.
        """
        return "exp_avg", "exp_inf"
