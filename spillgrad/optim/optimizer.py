"""The base of optimizers: groups of parameters, and a state for each parameter."""

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Any

from spillgrad.autograd.core.grad_mode import enable_grad, no_grad
from spillgrad.autograd.core.node import HookDict, RemovableHandle
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.errors import ArgumentError, GraphError, OperandError, StateDictError
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.ops.convert import to_device, to_dtype
from spillgrad.optim.arrays import Pending, Rounding, run
from spillgrad.tensor import Tensor

if TYPE_CHECKING:
    from spillgrad.distributed.process_group import ProcessGroup

Group = dict[str, Any]
State = dict[str, Any]
ParameterList = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Group]


class _Required:
    """PyTorch's default of an option that each group must have."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


def checked_options(name: str, *, betas: Sequence[float] | None = None, **options: float) -> dict[str, Any]:
    """Return an optimizer's options. Raises ArgumentError for a negative one, and for betas outside [0, 1)."""
    for option, value in options.items():
        if not value >= 0:
            raise ArgumentError(f"{name}: got {option} {value}; it must not be negative")
    if betas is None:
        return options
    if not all(0 <= beta < 1 for beta in betas):
        raise ArgumentError(f"{name}: got betas {betas}; both must be at least 0 and below 1")
    return {**options, "betas": tuple(betas)}


class StepContext:
    """What surrounds the updates of an optimizer. `disk_offload` gives an optimizer another one."""

    group: "ProcessGroup | None" = None  # the processes that share the optimizer's state

    def around_step(self) -> AbstractContextManager[None]:
        """Return the context in which a step updates the parameters."""
        return nullcontext()

    def around_update(self, param: Tensor) -> AbstractContextManager[None]:
        """Return the context in which a parameter is updated, or skipped if it has no gradient."""
        return nullcontext()

    def gradient(self, param: Tensor) -> Tensor | None:
        """Return the gradient for the update of a parameter."""
        return param.grad

    def updated(self, param: Tensor) -> Tensor:
        """Return what is updated: the parameter, or the part of it that has the shape of the gradient."""
        return param

    def pieces(self, param: Tensor, grad: Tensor, state: State) -> Iterator[tuple[Tensor, Tensor, State]]:
        """Yield a parameter, its gradient and its state; or pieces of them, which are updated one after the other."""
        yield self.updated(param), grad, state


Step = Callable[..., Any]

# Options that a state dict may lack: that of an optimizer which did not have them yet. Their values then stay.
_FLAGS = {"amsgrad", "decoupled_weight_decay", "keep_exact", "maximize", "rounding_seed", "state"}
_HOOKS = ("before step", "after step", "before state_dict", "after state_dict", "before loading", "after loading")
_of_all = {when: HookDict() for when in _HOOKS[:2]}


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook(optimizer, args, kwargs)`` before each step of every optimizer; it may return other arguments.

    Parameters
    ----------
    hook : callable
        The hook.

    Returns
    -------
    RemovableHandle
        Its `remove()` removes the hook.
    """
    return _of_all["before step"].add(hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook(optimizer, args, kwargs)`` after each step of every optimizer.

    Parameters
    ----------
    hook : callable
        The hook.

    Returns
    -------
    RemovableHandle
        Its `remove()` removes the hook.
    """
    return _of_all["after step"].add(hook)


def _with_hooks(step: Step) -> Step:
    """Return a method `step` that calls the hooks around a step."""

    @functools.wraps(step)
    def with_hooks(*args: Any, **kwargs: Any) -> Any:
        optimizer: Optimizer = args[0]
        optimizer._opt_called = True
        for hook in (*_of_all["before step"].values(), *optimizer._hooks["before step"].values()):
            others = hook(optimizer, args, kwargs)
            if others is not None:
                if not (isinstance(others, tuple) and len(others) == 2):
                    raise GraphError(
                        f"step: got {others!r} from a hook; {hook} must return None or a tuple of (new_args, "
                        "new_kwargs)"
                    )
                args, kwargs = others
        result = step(*args, **kwargs)
        for hook in (*optimizer._hooks["after step"].values(), *_of_all["after step"].values()):
            hook(optimizer, args, kwargs)
        return result

    return with_hooks


class Optimizer:
    """Updates parameters from their gradients.

    Subclasses define `update`, which updates one parameter, and `state_tensors`, the number of tensors of its size that
    they keep; or, as in PyTorch, `step` alone, which then works in RAM only.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    defaults : mapping
        Options of groups that do not have them.

    Attributes
    ----------
    param_groups : list of dict
        Groups: "params" and options; of parameters given with names, also "param_names".
    state : dict
        For each parameter, a dict that its updates use.

    Raises
    ------
    OperandError
        For parameters that are no collection of tensors or groups.
    ArgumentError
        For no parameters, for results of operations, and for a parameter given twice.
    """

    step_context = StepContext()
    state_has_shape_of_parameter = False  # of each tensor in it that has dimensions
    # Whether the tensors in it have the dtype of a real parameter. If so, `load_state_dict` converts them, as PyTorch
    # does for any optimizer. The state of other optimizers keeps its dtype, so that training resumes bit for bit.
    state_has_dtype_of_parameter = False
    numbers_in_state: tuple[str, ...] = ()  # entries that PyTorch's state dicts have as tensors without dimensions
    own_options: frozenset[str] = frozenset()  # options of groups that loading a state dict leaves as they are
    _opt_called = False  # whether parameters were ever updated: schedules warn if theirs is the first step

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in vars(cls):
            cls.step = _with_hooks(cls.step)  # type: ignore[method-assign]

    def __init__(self, params: ParameterList, defaults: Mapping[str, Any]) -> None:
        self._hooks = {when: HookDict() for when in _HOOKS}
        self.defaults = dict(defaults)
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        self.param_groups: list[Group] = []
        if isinstance(params, Tensor):
            raise OperandError(
                f"{type(self).__name__}: params argument given to the optimizer should be an iterable of Tensors or "
                f"dicts, but got {type(params).__name__}; put it in a list"
            )
        given: list[Any] = list(params)
        if not given:
            raise ArgumentError(
                f"{type(self).__name__}: optimizer got an empty parameter list; give model.parameters(), or groups"
            )
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)

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
            If a parameter is the result of an operation or was given before, or an option is missing.
        """
        name = type(self).__name__
        if not isinstance(param_group, dict):
            raise OperandError(f"{name}: param_group must be a dict, but got {type(param_group)}; give its 'params'")
        params, names = _named(name, param_group["params"])
        known = {id(param) for group in self.param_groups for param in group["params"]}
        in_this: set[int] = set()
        for param in params:
            if not isinstance(param, Tensor):
                raise OperandError(
                    f"{name}: optimizer can only optimize Tensors, but one of the params is {type(param).__name__}"
                )
            if not (param.is_leaf or param.retains_grad):
                raise ArgumentError(
                    f"{name}: can't optimize a non-leaf Tensor: got the result of {param.grad_fn}; give leaves"
                )
            if id(param) in known:
                raise ArgumentError(
                    f"{name}: some parameters appear in more than one parameter group: one of shape "
                    f"{tuple(param.shape)} is given twice; give each once"
                )
            if id(param) in in_this:
                raise ArgumentError(f"{name}: a parameter of shape {tuple(param.shape)} is given twice; give each once")
            in_this.add(id(param))
            self.check_parameter(param)
        missing = [key for key, value in self.defaults.items() if value is required and key not in param_group]
        if missing:
            raise ArgumentError(
                f"{name}: parameter group didn't specify a value of required optimization parameter {missing[0]}"
            )
        if any((names is not None) != ("param_names" in group) for group in self.param_groups):
            raise ArgumentError(
                f"{name}: all optimizer param groups should be with/without names; cannot add param group "
                f"{'without' if names is None else 'with'} names to the optimizer"
            )
        param_group |= {"params": params, **({} if names is None else {"param_names": names})}
        for key, value in self.defaults.items():
            param_group.setdefault(key, value)
        self.param_groups.append(param_group)
        taking = {param._take_optimizer for param in params}  # weak methods are equal if their methods are
        for take in [None if known is None else known() for known in taking]:
            if take is not None:
                take(self)

    def check_parameter(self, param: Tensor) -> None:
        """Raise an error for a parameter that the optimizer cannot update; a subclass may define it.

        Parameters
        ----------
        param : Tensor
            A parameter that is being added.
        """

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> Pending | None:
        """Update one parameter in place, or return a pending update that runs together with others.

        Parameters
        ----------
        param : Tensor
            The parameter.
        grad : Tensor
            Its gradient.
        state : dict
            Its state; empty at its first update.
        group : dict
            Options of its group.

        Returns
        -------
        Pending or None
            The pending update; None if the parameter was updated.
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no update")

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
        return 0

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
        """
        return "float32"

    def state_formats(self) -> dict[Tensor, str]:
        """Return the format of the state of each parameter.

        Returns
        -------
        dict
            By parameter: "float32" for state of the parameter's dtype, "bf16" or "int8".
        """
        return {param: self.state_format(param, group) for group in self.param_groups for param in group["params"]}

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
        """
        if state != "float32":
            raise ArgumentError(
                f"{type(self).__name__}: got state={state!r}; its state is exact; Adam, AdamW, Lion and SGD have state "
                "in fewer bits"
            )

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
        return int(param.nbytes * self.state_tensors(group))

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
        return 1

    def state_shape(self, key: str, param: Tensor) -> tuple[int, ...]:
        """Return the shape of an entry of a parameter's state that is not a number.

        Parameters
        ----------
        key : str
            Name of the entry.
        param : Tensor
            The parameter, or the part of it that the entry is for.

        Returns
        -------
        tuple of int
            The parameter's shape; of scales of state in 8 bits, one dimension.
        """
        each = self.elements_each(key)
        return tuple(param.shape) if each == 1 else (-(-param.numel() // each),)

    @_with_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Parameters
        ----------
        closure : callable, optional
            Called first, to compute the loss and its gradients.

        Returns
        -------
        object
            The closure's result; None without one.
        """
        result = None
        if closure is not None:
            with enable_grad():
                result = closure()
        with no_grad(), self.step_context.around_step(), closing(self._updates()) as updates:
            run(updates)
        return result

    def _updates(self) -> Generator[Pending | None, None, None]:
        for group in self.param_groups:
            for param in group["params"]:
                with self.step_context.around_update(param):
                    yield from self._updates_of(param, group)

    def step_parameter(self, param: Tensor, group: Group) -> None:
        """Update one parameter of a group, if it has a gradient.

        Parameters
        ----------
        param : Tensor
            The parameter.
        group : dict
            Its group.
        """
        self._opt_called = True
        with no_grad(), self.step_context.around_update(param), closing(self._updates_of(param, group)) as updates:
            run(updates)

    def _updates_of(self, param: Tensor, group: Group) -> Generator[Pending | None, None, None]:
        grad = self.step_context.gradient(param)
        if grad is not None:
            group = self._resolved(param, group)
            first, seed = 0, group.get("rounding_seed")
            for piece in self.step_context.pieces(param, grad, self.state[param]):
                pending, (own, _, state) = self._update(*piece, group), piece
                if pending is not None and seed is not None:
                    pending = pending._replace(rounding=Rounding(seed, self._number_of(param), _step_of(state), first))
                first += own.numel()
                yield pending
                del pending, own, piece  # nothing may keep a piece in RAM

    def _number_of(self, param: Tensor) -> int:
        params = (each for group in self.param_groups for each in group["params"])
        return next(number for number, each in enumerate(params) if each is param)

    def _resolved(self, param: Tensor, group: Group) -> Group:
        """Return the options for a parameter, of which `update` may get only a piece."""
        return group

    def _update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> Pending | None:
        pending = self.update(param, grad, state, group)
        return pending._replace(maximize=True) if pending is not None and group.get("maximize") else pending

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step; it may return the arguments to use instead.

        Parameters
        ----------
        hook : callable
            The hook.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._hooks["before step"].add(hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step.

        Parameters
        ----------
        hook : callable
            The hook.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._hooks["after step"].add(hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` before `state_dict`.

        Parameters
        ----------
        hook : callable
            The hook.
        prepend : bool, default False
            Whether it is called before the other hooks.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._hooks["before state_dict"].add(hook, first=prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` after `state_dict`; it may return another one.

        Parameters
        ----------
        hook : callable
            The hook.
        prepend : bool, default False
            Whether it is called before the other hooks.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._hooks["after state_dict"].add(hook, first=prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` before `load_state_dict`; it may return another one to load.

        Parameters
        ----------
        hook : callable
            The hook.
        prepend : bool, default False
            Whether it is called before the other hooks.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._hooks["before loading"].add(hook, first=prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` after `load_state_dict`.

        Parameters
        ----------
        hook : callable
            The hook.
        prepend : bool, default False
            Whether it is called before the other hooks.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._hooks["after loading"].add(hook, first=prepend)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, or fill them with zeros.

        Parameters
        ----------
        set_to_none : bool, default True
            Whether to set them to None.
        """
        for group in self.param_groups:
            for param in group["params"]:
                param.clear_grad(set_to_zero=not set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return state and options; parameters are numbered in order.

        Returns
        -------
        dict
            Has "state", by the numbers of parameters, and "param_groups"; tensors share memory with the optimizer's.
        """
        for hook in list(self._hooks["before state_dict"].values()):
            hook(self)
        params = [param for group in self.param_groups for param in group["params"]]
        number = {id(param): index for index, param in enumerate(params)}
        others = {key: value for key, value in self.state.items() if not isinstance(key, Tensor)}
        state_dict = {
            "state": {number[id(param)]: dict(self.state[param]) for param in params if self.state.get(param)} | others,
            "param_groups": [
                {**group, "params": [number[id(param)] for param in group["params"]]} for group in self.param_groups
            ],
        }
        for hook in list(self._hooks["after state_dict"].values()):
            state_dict = hook(self, state_dict) or state_dict
        return state_dict

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
        sizes = [len(group["params"]) for group in self.param_groups]
        saved_sizes = [len(group["params"]) for group in state_dict["param_groups"]]
        name = f"{type(self).__name__}.load_state_dict"
        if sizes != saved_sizes:
            raise StateDictError(
                f"{name}: got groups of {saved_sizes} parameters, wanted {sizes}; give the state of the same model"
            )
        needed = self.defaults.keys() - _FLAGS
        missing = sorted({key for group in state_dict["param_groups"] for key in needed - group.keys()})
        if missing:  # the state would lack entries that updates read
            raise StateDictError(
                f"{name}: got groups without {', '.join(missing)}, as of another kind of optimizer; give the state of "
                "the same kind"
            )
        by_number = self._by_number(state_dict)
        unknown = [str(n) for n in state_dict["state"] if n not in by_number and isinstance(n, int)]
        misshapen = [
            f"{number}.{key} (got {tuple(value.shape)}, wanted {wanted})"
            for number, state in state_dict["state"].items()
            if number in by_number and self.state_has_shape_of_parameter
            for key, value in state.items()
            if isinstance(value, Tensor | StoredTensor) and value.ndim
            if tuple(value.shape) != (wanted := self.state_shape(key, by_number[number]))
        ]
        if unknown or misshapen:
            listed = ", ".join([f"{number} (no such parameter)" for number in unknown] + misshapen)
            raise StateDictError(f"{name}: got state that does not fit: {listed}; give the state of the same model")

    def _by_number(self, state_dict: Mapping[str, Any]) -> dict[int, Tensor]:
        params = [param for group in self.param_groups for param in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        return dict(zip(numbers, params, strict=True))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state and options that `state_dict` returned, by the order of parameters.

        Parameters
        ----------
        state_dict : mapping
            State of an optimizer of this kind; tensors are copied. The state of spillgrad's own optimizers takes the
            dtypes of the parameters, or the format in which this optimizer keeps it.

        Raises
        ------
        StateDictError
            If groups, options or shapes are not this optimizer's; nothing has changed then.
        """
        for hook in list(self._hooks["before loading"].values()):
            state_dict = hook(self, state_dict) or state_dict
        self.check_state_dict(state_dict)
        by_number = self._by_number(state_dict)
        self.state.clear()
        for number, state in state_dict["state"].items():
            if number not in by_number:  # of the optimizer, not of a parameter
                self.state[number] = copy.deepcopy(state)
                continue
            param = by_number[number]
            for entries in self._parts_of(state):
                # Where the state is on disk, leaving the context puts it away before the next is loaded.
                with self.step_context.around_update(param):
                    self.state[param] |= self._loaded(entries, param)
        for group, new in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for key, value in new.items():
                if key != "params" and key not in self.own_options:  # JSON has no tuples
                    group[key] = tuple(value) if isinstance(group.get(key), tuple) else copy.deepcopy(value)
        self.__setstate__({"state": self.state, "param_groups": self.param_groups})
        for hook in list(self._hooks["after loading"].values()):
            hook(self)

    def _parts_of(self, state: State) -> Iterator[State]:
        """Yield the entries of a saved state that are loaded together."""
        return ({key: value} for key, value in state.items())

    def _loaded(self, entries: State, param: Tensor) -> State:
        """Return copies of entries of a parameter's saved state, as this optimizer keeps them."""
        return {key: self._copied(value, param, key) for key, value in entries.items()}

    def _copied(self, value: Any, param: Tensor, key: str) -> Any:
        """Return a copy of an entry of a parameter's state, for the parameter's device and dtype."""
        if isinstance(value, ShardedTensor):
            return value.clone()
        if isinstance(value, StoredTensor):
            value = value.tensor()
        elif isinstance(value, Tensor):
            value = value.detach().clone()
        elif isinstance(value, list | tuple):
            parts = [self._copied(part, param, key) for part in value]
            return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
        elif isinstance(value, dict):
            return {name: self._copied(part, param, name) for name, part in value.items()}
        else:
            return copy.deepcopy(value)
        if key in self.numbers_in_state and not value.ndim:  # as float32 it would lose digits
            return int(value.item()) if key == "step" else value.item()
        if self.state_has_dtype_of_parameter and param.is_floating_point() and value.is_floating_point():
            value = to_dtype(value, param.numpy_dtype)
        return to_device(value, param.device)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copies and pickles, which are offloaded no more."""
        return {key: value for key, value in vars(self).items() if key not in ("step_context", "_hooks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the attributes that `__getstate__` returned; hooks belong to the original.

        As in PyTorch, loading a state dict calls it, too; so subclasses may fill in here the options of groups.
        """
        vars(self).update(state)
        if "_hooks" not in vars(self):
            self._hooks = {when: HookDict() for when in _HOOKS}

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for index, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {index}")
            lines += [f"    {key}: {value}" for key, value in sorted(group.items()) if key != "params"]
        return "\n".join([*lines, ")"])


def _step_of(state: State) -> int:
    """Return the number of a parameter's update, which is counted here where the optimizer does not count."""
    if "step" not in state:
        state["rounding_step"] = state.get("rounding_step", 0) + 1
    return int(state["step" if "step" in state else "rounding_step"])


def _named(who: str, params: Any) -> tuple[list[Any], list[str] | None]:
    """Return parameters and, where they are pairs as of `named_parameters()`, their names."""
    if isinstance(params, Tensor):
        return [params], None
    if isinstance(params, set | frozenset):
        raise OperandError(
            f"{who}: got a set; optimizer parameters need to be organized in ordered collections, but the ordering of "
            "tensors in sets will change between runs. Please use a list instead."
        )
    given = list(params)
    names = [each[0] for each in given if isinstance(each, tuple)]
    if not names:
        return given, None
    if len(names) != len(given):
        raise ArgumentError(
            f"{who}: all optimizer params should be with/without names. Some param names are missing: got "
            f"{len(names)} for {len(given)}"
        )
    return [tensor for _, tensor in given], names
