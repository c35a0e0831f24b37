"""A module's state dict: collecting it, loading it, and the hooks around both."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.core.node import HookDict, RemovableHandle
from spillgrad.errors import OperandError, StateDictError
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.nn.parameter import Parameter, is_lazy
from spillgrad.ops import creation
from spillgrad.tensor import Tensor

# The key of the result of `get_extra_state` in a state dict.
_EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """`missing_keys`, which the state dict lacks, and `unexpected_keys`, which the module lacks."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class ModuleState:
    """The part of `Module` that collects and loads a module's state."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: "dict[str, Any]"
    _transient_buffers: set[str]
    _state_dict_pre_hooks: HookDict
    _state_dict_hooks: HookDict
    _load_pre_hooks: HookDict
    _load_post_hooks: HookDict
    # What `Module` defines.
    named_modules: Callable[..., Iterator[tuple[str, Any]]]
    register_parameter: Callable[[str, Parameter | None], None]
    register_buffer: Callable[..., None]
    _optional: ClassVar[frozenset[str]] = frozenset()  # names that a state dict may lack
    _exact: ClassVar[frozenset[str]] = frozenset()  # names of buffers that keep their dtype

    def get_extra_state(self) -> Any:
        """Return further state of this module; `state_dict` includes it if a subclass defines this method.

        Returns
        -------
        object
            The state.
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no get_extra_state; define it with set_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Load what `get_extra_state` returned; a subclass defines both methods or neither.

        Parameters
        ----------
        state : object
            The state.
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no set_extra_state; define it with get_extra_state")

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return the parameters and persistent buffers by path; a shared tensor is under each of its paths.

        Parameters
        ----------
        destination : dict, optional
            Where the tensors are added; by default, a new dictionary.
        prefix : str, default ""
            Beginning of the paths.
        keep_vars : bool, default False
            Whether the tensors are the parameters themselves; otherwise, they are detached from the graph.

        Returns
        -------
        dict
            Tensors that share the module's memory.
        """
        found = {} if destination is None else destination
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(found, prefix, keep_vars)
        if type(self).get_extra_state is not ModuleState.get_extra_state:
            found[prefix + _EXTRA] = self.get_extra_state()
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in list(self._state_dict_hooks.values()):
            replaced = hook(self, found, prefix, {})
            found = found if replaced is None else replaced
        return found

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Put this module's own parameters and buffers into `destination`; an override may put further entries."""
        for key, tensor in self._own_state():
            destination[prefix + key] = tensor if keep_vars or is_lazy(tensor) else tensor.detach()

    def _own_state(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if tensor is not None and name not in self._transient_buffers:
                yield name, tensor

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy tensors or arrays into the parameters and buffers of the same paths.

        Parameters
        ----------
        state_dict : mapping
            Tensors or arrays by path.
        strict : bool, default True
            Whether missing and unexpected keys are an error.
        assign : bool, default False
            Whether the tensors replace the parameters and buffers instead.

        Returns
        -------
        IncompatibleKeys
            The `missing_keys`, which the state dict lacks, and the `unexpected_keys`, which the module lacks.

        Raises
        ------
        StateDictError
            If there are keys with a wrong shape or, if `strict`, missing or unexpected keys; the error lists them all,
            and nothing was copied. With hooks after loading, which may change the lists of missing and unexpected keys,
            these keys are checked after the copying.
        OperandError
            If `state_dict` is no dictionary.
        """
        if not isinstance(state_dict, Mapping):
            raise OperandError(f"load_state_dict: Expected state_dict to be dict-like, got {type(state_dict)}")
        state = dict(state_dict)
        modules = list(self.named_modules(remove_duplicate=False))
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        known: dict[str, tuple[ModuleState, str]] = {}
        for path, module in modules:
            prefix = f"{path}." if path else ""
            for hook in list(module._load_pre_hooks.values()):
                hook(module, state, prefix, {}, strict, missing, unexpected, errors)
            known |= {prefix + name: (module, name) for name, _ in module._own_state()}
            if type(module).set_extra_state is not ModuleState.set_extra_state:
                known[prefix + _EXTRA] = module, _EXTRA
        missing += [key for key, (module, name) in known.items() if key not in state and name not in module._optional]
        unexpected += [key for key in state if key not in known]
        found = {key: place for key, place in known.items() if key in state}
        for key, (module, name) in found.items():
            own = None if name == _EXTRA else getattr(module, name)
            if own is None or (is_lazy(own) and is_lazy(state[key])):
                continue
            if tuple(state[key].shape) != own.shape:
                errors.append(
                    f"size mismatch for {key}: copying a param with shape {tuple(state[key].shape)} from checkpoint, "
                    f"the shape in current model is {own.shape}."
                )
        hooks = [(module, hook) for _, module in reversed(modules) for hook in list(module._load_post_hooks.values())]
        result = IncompatibleKeys(missing, unexpected)
        remedy = "give the state of the same model (strict=False skips missing and unexpected keys)"
        if errors or not hooks:
            self._require_loadable(errors, result, strict, f"Nothing was loaded; {remedy}")
        loaded = set()  # (tensor, value) pairs already copied, so that shared tensors are read from a file once
        for key, (module, name) in found.items():
            pair = (None if name == _EXTRA else id(getattr(module, name)), id(state[key]))
            if assign or pair not in loaded:
                module._load(name, state[key], assign)
                loaded.add(pair)
        for module, hook in hooks:
            if hook(module, result) is not None:
                raise StateDictError(
                    f"load_state_dict: {hook!r} returned something; hooks after loading change the keys in place"
                )
        self._require_loadable([], result, strict, f"All other keys were loaded, and hooks left these; {remedy}")
        return result

    def _require_loadable(self, errors: list[str], keys: IncompatibleKeys, strict: bool, then: str) -> None:
        """If there are `errors` or, with `strict`, wrong `keys`, raise StateDictError with both, then `then`."""
        listed = list(errors)
        if strict and keys.unexpected_keys:
            listed.insert(0, f"Unexpected key(s) in state_dict: {_quoted(keys.unexpected_keys)}.")
        if strict and keys.missing_keys:
            listed.insert(0, f"Missing key(s) in state_dict: {_quoted(keys.missing_keys)}.")
        if listed:
            lines = "".join(f"\n\t{error}" for error in listed)
            raise StateDictError(f"Error(s) in loading state_dict for {type(self).__name__}:{lines}\n{then}")

    def _load(self, name: str, value: Any, assign: bool) -> None:
        if name == _EXTRA:
            self.set_extra_state(value)
            return
        own = getattr(self, name)
        if is_lazy(own):  # so is the value: a lazy module has materialized its other tensors before
            return
        if not assign:
            if isinstance(value, StoredTensor):
                value.copy_to(own)
                return
            with no_grad():
                own.copy_(value)
            return
        value = value if isinstance(value, Tensor) else creation.tensor(np.asarray(value))
        if name in self._parameters:
            same = isinstance(value, Parameter)
            value = value if same else Parameter(value.detach(), requires_grad=own.requires_grad)
            self.register_parameter(name, value)
        else:
            self.register_buffer(name, value, persistent=name not in self._transient_buffers)

    def register_state_dict_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before `state_dict` collects this module's state.

        Parameters
        ----------
        hook : callable
            The hook.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._state_dict_pre_hooks.add(hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, metadata)`` after `state_dict` collected this module's state.

        Parameters
        ----------
        hook : callable
            The hook. It may change the dictionary in place, or return another dictionary; the metadata are empty.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._state_dict_hooks.add(hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)`` before loading.

        Parameters
        ----------
        hook : callable
            The hook. It may change in place the three lists and `state_dict`, a copy of the given dictionary, for
            example to rename keys; the metadata are empty.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._load_pre_hooks.add(hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` after loading; the hook may change the lists of keys in place.

        Strict loading raises StateDictError for the keys that are in the lists when all hooks have run.

        Parameters
        ----------
        hook : callable
            The hook.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._load_post_hooks.add(hook)


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)
