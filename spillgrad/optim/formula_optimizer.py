"""The base of optimizers that update every element by a formula."""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypedDict, Unpack

from spillgrad.errors import ArgumentError
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.ops import creation
from spillgrad.optim import state_formats
from spillgrad.optim.arrays import Pending
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State
from spillgrad.optim.state_formats import EXACT, EncodedState
from spillgrad.tensor import Tensor
from spillgrad_kernels.tables.optim import Update


class Accepted(TypedDict, total=False):
    """Options that choose among PyTorch's implementations of an optimizer. spillgrad has one, which is fused."""

    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class FormulaOptions(Accepted, total=False):
    """The options of every `FormulaOptimizer`: PyTorch's, and those of state in fewer bits."""

    state: str
    keep_exact: bool


class FormulaOptimizer(Optimizer):
    """An optimizer whose updates are made by a function of `spillgrad_kernels.tables.optim`.

    Subclasses define `function`, `state_names`, and `numbers`, which the function gets behind the arrays.
    """

    state_has_shape_of_parameter = True
    state_has_dtype_of_parameter = True
    numbers_in_state = ("step", "eta", "mu", "mu_product")
    # The tensors of state that may be in fewer bits, and whether each may be negative.
    encodable: ClassVar[Mapping[str, bool]] = {}
    own_options = frozenset({"state", "keep_exact"})

    def __init__(self, params: ParameterList, defaults: dict[str, Any], **accepted: Unpack[FormulaOptions]) -> None:
        name = type(self).__name__
        unknown = sorted(accepted.keys() - FormulaOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"{name}.__init__() got an unexpected keyword argument '{unknown[0]}'")
        if accepted.get("differentiable"):
            raise ArgumentError(
                f"{name}: got differentiable=True; updates are not recorded; leave it out, and compute new parameters "
                "that shall have a graph by operations of your own"
            )
        state, keep_exact = accepted.get("state", EXACT), accepted.get("keep_exact", True)
        state_formats.require_format(name, state)
        if state != EXACT and not self.encodable:
            Optimizer.set_state_format(self, state)  # raises
        # Groups without the option can be told from those that were given it.
        of_state = {} if state == EXACT and keep_exact else {"state": state, "keep_exact": keep_exact}
        super().__init__(params, {**defaults, **of_state})

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own.

        Parameters
        ----------
        param_group : dict
            Has "params", a tensor or an iterable of tensors, and options; the optimizer's defaults fill in the rest.

        Raises
        ------
        OperandError
            If it is no dict, or the parameters are a set or no tensors.
        ArgumentError
            If a parameter is the result of an operation or was given before, or an option is missing or unknown.
        """
        if isinstance(param_group, dict) and "state" in param_group:
            name, state = type(self).__name__, param_group["state"]
            state_formats.require_format(name, state)
            if state != EXACT and not self.encodable:
                Optimizer.set_state_format(self, state)  # raises
        super().add_param_group(param_group)

    def state_format(self, param: Tensor, group: Group) -> str:
        """Return the format of a parameter's state.

        Parameters
        ----------
        param : Tensor
            A parameter.
        group : dict
            Options of its group.

        Returns
        -------
        str
            "float32" for state of the parameter's dtype, "bf16" or "int8".

        Raises
        ------
        UnsupportedError
            For fewer bits on a CUDA device.
        """
        wanted = group.get("state", EXACT)
        return state_formats.format_for(type(self).__name__, param, wanted, group.get("keep_exact", True))

    def set_state_format(self, state: str) -> None:
        """Keep state in a format from now on; state that exists is converted.

        Groups that were given a format of their own keep it.

        Parameters
        ----------
        state : {"float32", "bf16", "int8"}
            The format.

        Raises
        ------
        ArgumentError
            For another one, or if the optimizer has no state in fewer bits.
        UnsupportedError
            For fewer bits on a CUDA device.
        """
        state_formats.require_format(type(self).__name__, state)
        if not self.encodable:
            super().set_state_format(state)
            return
        common = self.defaults.get("state")
        changed = [group for group in self.param_groups if group.get("state") in (None, common)]
        for group in changed:
            for param in group["params"]:
                self.state_format(param, {**group, "state": state})  # raises before anything changes
        self.defaults["state"] = state
        for group in changed:
            group["state"] = state
            for param in group["params"]:
                for entries in self._parts_of(self.state.get(param, {})):
                    with self.step_context.around_update(param):
                        self._replace(param, entries, group)

    def _replace(self, param: Tensor, entries: State, group: Group) -> None:
        """Replace entries of a parameter's state by those in the format of its group."""
        made = self._in_format(entries, param, group)
        for key in entries.keys() - made.keys():
            del self.state[param][key]
        self.state[param] |= made

    def state_bytes(self, param: Tensor, group: Group) -> int:
        """Return the bytes of the state of a parameter, also of one that was not updated yet.

        Parameters
        ----------
        param : Tensor
            A parameter.
        group : dict
            Options of its group.

        Returns
        -------
        int
            The bytes.
        """
        names, state_format = self.state_names(group), self.state_format(param, group)
        formats = [state_format if name in self.encodable else EXACT for name in names]
        return sum(state_formats.nbytes_of(param, each) for each in formats)

    def elements_each(self, key: str) -> int:
        """Return how many elements of a parameter an element of an entry of its state stands for.

        Parameters
        ----------
        key : str
            Name of the entry.

        Returns
        -------
        int
            1; of scales of state in 8 bits, the elements of a block.
        """
        return state_formats.elements_each(key, self.encodable)

    def _resolved(self, param: Tensor, group: Group) -> Group:
        if group.get("state", EXACT) == EXACT:
            return group
        return {**group, "state": self.state_format(param, group)}

    def _first(self, name: str, param: Tensor, group: Group) -> dict[str, Tensor]:
        """Return the entries of a tensor of state before the first update; `group` says the format."""
        state_format = group.get("state", EXACT)
        if state_format != EXACT and name in self.encodable:
            return state_formats.zeros(name, param, state_format, self.encodable[name])
        first = self.first_value(name, group)
        return {name: creation.full_like(param, complex(first, first) if param.is_complex() else first)}

    def _taken(self, name: str, state: State, param: Tensor, group: Group) -> Tensor | EncodedState:
        """Return a tensor of state as an update takes it."""
        if "state" in group and name in self.encodable:
            return state_formats.taken(name, state, param, self.encodable[name])
        return state[name]  # type: ignore[no-any-return]

    def _parts_of(self, state: State) -> Iterator[State]:
        scales = {state_formats.scale_name(name): name for name in self.encodable}
        for key, value in [*state.items()]:
            scale = state_formats.scale_name(key)
            if key not in scales or scales[key] not in state:
                yield {key: value, scale: state[scale]} if scale in scales and scale in state else {key: value}

    def _loaded(self, entries: State, param: Tensor) -> State:
        if not self.encodable.keys() & entries.keys():
            return super()._loaded(entries, param)
        (group,) = [group for group in self.param_groups if any(param is each for each in group["params"])]
        if self.state_format(param, group) == EXACT and len(entries) == 1:
            return super()._loaded(entries, param)
        copies = {
            key: value.tensor() if isinstance(value, StoredTensor) else value.detach().clone()
            for key, value in entries.items() if value is not None
        }  # fmt: skip
        return self._in_format(copies, param, group) if copies else entries

    def _in_format(self, entries: State, param: Tensor, group: Group) -> State:
        """Return entries of a parameter's state in the format of its group."""
        name = next((name for name in self.encodable if name in entries), None)
        if name is None or entries[name] is None:
            return entries
        return state_formats.converted(
            name, entries, param, self.state_format(param, group), self.encodable[name]
        )  # fmt: skip

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise an error when groups, options or shapes in a state dict are not this optimizer's.

        Parameters
        ----------
        state_dict : mapping
            State of an optimizer.

        Raises
        ------
        StateDictError
            If something does not fit.
        """
        super().check_state_dict(state_dict)
        for number, state in state_dict["state"].items():
            if isinstance(state, dict):
                state_formats.require_fits(f"{type(self).__name__}.load_state_dict", number, state, self.encodable)

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
        return [self._taken(name, state, param, group) for name in self.state_names(group)]

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
            state |= self._first(name, param, group)

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
        return Pending(self.function(group), param, grad, self.arrays(param, state, group), self.numbers(state, group))
