"""The base of layers and models: named parameters, buffers and sub-modules."""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from spillgrad import labels
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.core.node import HookDict, RemovableHandle
from spillgrad.errors import ArgumentError, OperandError, StateDictError
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.nn.module_backward import ModuleBackward
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.nn.registration import to_register
from spillgrad.ops import creation
from spillgrad.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """Keys that a module has and a state dict has not, and the other way round."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


# Runs a sub-module's forward: given its path, the forward and its arguments.
Around = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Running(threading.local):
    """In a thread that runs a model: the path of each of its sub-modules, and what stands around their forwards."""

    paths: "dict[Module, str] | None" = None
    around: Around | None = None

    def __init__(self) -> None:
        self.entered: list[tuple[Any, Around | None]] = []


_running = _Running()


class around_forward:
    """Let `around` run the forwards of sub-modules in this thread, inside their hooks; None lets them run as ever.

    The innermost context applies. `owner` tells contexts apart: what it has entered last is left.
    """

    def __init__(self, owner: Any, around: Around | None) -> None:
        self._owner = owner
        self._around = around

    def __enter__(self) -> None:
        _running.entered.append((self._owner, self._around))
        _running.around = self._around

    def __exit__(self, *_: object) -> None:
        entered = _running.entered
        places = [place for place, (owner, _) in enumerate(entered) if owner is self._owner]
        if places:
            del entered[places[-1] :]
        _running.around = entered[-1][1] if entered else None


class Module:
    """Something that computes, with parameters, buffers and sub-modules registered by assigning them to attributes.

    Subclasses call `super().__init__()` first and define `forward`.
    """

    # Counts changes to any module's children: while it stands still, the paths a model knows of its sub-modules hold.
    _structure_version: ClassVar[int] = 0

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: "dict[str, Module | None]"
    _state_dict_pre_hooks: HookDict
    _state_dict_hooks: HookDict
    _load_pre_hooks: HookDict
    _load_post_hooks: HookDict
    _known_paths: "tuple[int, dict[Module, str]]"
    _optional: ClassVar[frozenset[str]] = frozenset()  # names that a state dict may lack

    def __init__(self) -> None:
        vars(self).update(
            training=True,
            _parameters={},
            _buffers={},
            _modules={},
            _transient_buffers=set(),
            _forward_pre_hooks=HookDict(),
            _forward_hooks=HookDict(),
            _always_called=set(),
            _backward_hooks=HookDict(),
            _backward_pre_hooks=HookDict(),
            _state_dict_pre_hooks=HookDict(),
            _state_dict_hooks=HookDict(),
            _load_pre_hooks=HookDict(),
            _load_post_hooks=HookDict(),
            _known_paths=(-1, {}),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result; every subclass defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function; define it, or call its '
            "sub-modules"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` between its hooks; what it saves is labelled with the module's path in the outermost one."""
        paths = _running.paths
        if paths is not None:
            with labels.module_scope(paths.get(self, labels.current.module)):
                return self._call_with_hooks(args, kwargs)
        _running.paths = self._submodule_paths()
        try:
            with labels.module_scope(labels.current.module or ""):
                return self._call_with_hooks(args, kwargs)
        finally:
            _running.paths = None

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._forward_pre_hooks or self._forward_hooks or self._backward_hooks or self._backward_pre_hooks:
            return self._call_watched(args, kwargs)
        return self.forward(*args, **kwargs) if _running.around is None else self._run_within(args, kwargs)

    def _run_within(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run forward, as a sub-module within what stands around it."""
        path = None if _running.paths is None else _running.paths.get(self)
        if _running.around is None or path is None:
            return self.forward(*args, **kwargs)
        return _running.around(path, self.forward, args, kwargs)

    def _call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called = set()
        try:
            for hook in list(self._forward_pre_hooks.values()):
                replaced = hook(self, args, kwargs)
                args, kwargs = (args, kwargs) if replaced is None else replaced
            backward = list(self._backward_hooks.values()), list(self._backward_pre_hooks.values())
            watch = ModuleBackward(self, *backward) if any(backward) else None
            result = self._run_within(args if watch is None else tuple(watch.inputs(args)), kwargs)
            for key, hook in list(self._forward_hooks.items()):
                called.add(key)
                replaced = hook(self, args, kwargs, result)
                result = result if replaced is None else replaced
        except BaseException:
            silenced = []  # as text: exceptions would refer to this frame
            for key, hook in list(self._forward_hooks.items()):
                if key in self._always_called and key not in called:
                    try:
                        hook(self, args, kwargs, None)
                    except Exception as error:
                        silenced.append(f"{type(error).__name__}: {error}")
            for what in silenced:
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as another "
                    f"error was raised in forward: {what}",
                    stacklevel=4,  # who called the module
                )
            raise
        return result if watch is None else watch.output(result)

    def _submodule_paths(self) -> "dict[Module, str]":
        """Return the path of each sub-module; without this module itself, which must not refer to itself."""
        version, paths = self._known_paths
        if version != Module._structure_version:
            paths = {module: name for name, module in self.named_modules() if module is not self}
            vars(self)["_known_paths"] = (Module._structure_version, paths)
        return paths

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; what it returns, unless None, replaces the arguments.

        With `with_kwargs` it is `hook(module, args, kwargs)` and returns None or (args, kwargs).
        """
        called = hook if with_kwargs else functools.partial(_call_before, hook)
        return _add_hook(self._forward_pre_hooks, called, prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns, unless None, replaces the output.

        With `with_kwargs` it is `hook(module, args, kwargs, output)`; with `always_call` it is called with None for the
        output where forward, or a hook before it, raises; what it raises itself is then a warning.
        """
        called = hook if with_kwargs else functools.partial(_call_after, hook)
        handle = _add_hook(self._forward_hooks, called, prepend)
        if always_call:
            self._always_called.add(handle.id)
        return handle

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the module's arguments are computed.

        What it returns, unless None, replaces `grad_input`: a gradient, or None, for each positional argument. Tensors
        among these that get no gradient have zeros there, as in PyTorch. Results that are neither tensors nor tuples or
        lists of them are not seen.
        """
        return _add_hook(self._backward_hooks, hook, prepend)

    register_backward_hook = register_full_backward_hook

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` when the gradients of the module's results are computed.

        What it returns, unless None, replaces them.
        """
        return _add_hook(self._backward_pre_hooks, hook, prepend)

    # -- attributes

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter under a name; None keeps the name for a parameter the module does not have."""
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(self._misfit(name, "a Parameter or None", param))
        self._require_free(name, "_parameters")
        if param is not None:
            param = to_register("parameter", Parameter, self, name, param)
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but not learned; one that is not persistent stays out of `state_dict`."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(self._misfit(name, "a Tensor or None", tensor))
        self._require_free(name, "_buffers")
        self._buffers[name] = to_register("buffer", Tensor, self, name, tensor)
        if persistent:
            self._transient_buffers.discard(name)
        else:
            self._transient_buffers.add(name)

    def register_module(self, name: str, module: "Module | None") -> None:
        """Register a sub-module under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(self._misfit(name, "a Module or None", module))
        self._require_free(name, "_modules")
        self._modules[name] = to_register("module", Module, self, name, module)
        Module._structure_version += 1

    add_module = register_module

    def _require_free(self, name: str, registry: str) -> None:
        """Raise AttributeError before the constructor, KeyError for a name that paths or attributes cannot have."""
        owner = type(self).__name__
        if registry not in vars(self):
            raise AttributeError(f"{owner}: assigned {name!r} too early; call super().__init__() first")
        if not isinstance(name, str):
            raise TypeError(f"{owner}: got {type(name).__name__} as a name; it should be a string")
        if not name or "." in name:
            raise KeyError(f"{owner}: got the name {name!r}; a name must not be empty or contain a dot")
        if name not in vars(self)[registry] and hasattr(self, name):
            raise KeyError(f"{owner}: attribute {name!r} already exists; take another name, or delete it before")

    def _make_free(self, name: str, registry: str) -> None:
        """Forget what else an attribute is, so that it never means two things."""
        for other in ("_parameters", "_buffers", "_modules"):
            if other != registry and name in vars(self).get(other, ()):
                delattr(self, name)
        vars(self).pop(name, None)

    def _misfit(self, name: str, wanted: str, got: object) -> str:
        return f"{type(self).__name__}.{name}: got {type(got).__name__}, wanted {wanted}"

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._make_free(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._make_free(name, "_modules")
            self.register_module(name, value)
        elif isinstance(value, Buffer):
            self._make_free(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        elif name in vars(self).get("_parameters", ()):
            self.register_parameter(name, value)
        elif name in vars(self).get("_modules", ()):
            self.register_module(name, value)
        elif name in vars(self).get("_buffers", ()):
            self.register_buffer(name, value, persistent=name not in self._transient_buffers)
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for registry in ("_parameters", "_buffers", "_modules"):
            entries = vars(self).get(registry, {})
            if name in entries:
                return entries[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for registry in ("_parameters", "_buffers", "_modules"):
            if name in vars(self).get(registry, {}):
                del vars(self)[registry][name]
                Module._structure_version += 1
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    # -- walking

    def named_modules(
        self, memo: "set[Module] | None" = None, prefix: str = "", remove_duplicate: bool = True
    ) -> "Iterator[tuple[str, Module]]":
        """Yield this module and all below it with their paths; a shared one once, unless told otherwise.

        Those in `memo` are left out; it takes up what was yielded.
        """
        return self._walk(set() if memo is None else memo, prefix, remove_duplicate)

    def _walk(self, seen: "set[Module]", path: str, remove_duplicate: bool) -> "Iterator[tuple[str, Module]]":
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield path, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child._walk(seen, f"{path}.{name}" if path else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> "Iterator[Module]":
        """Yield this module and all below it; a shared one once, unless told otherwise."""
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def named_children(self) -> "Iterator[tuple[str, Module]]":
        """Yield the modules directly below with their names; a shared one once."""
        unique = {module: name for name, module in reversed(self._modules.items()) if module is not None}
        return ((name, module) for module, name in reversed(unique.items()))

    def children(self) -> "Iterator[Module]":
        """Yield the modules directly below."""
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with their paths; a shared one once, under its first path, unless told otherwise."""
        return self._named_tensors("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters; a shared one once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers with their paths; a shared one once, under its first path, unless told otherwise."""
        return self._named_tensors("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers; a shared one once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def _named_tensors(
        self, registry: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(None, prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for path, module in modules:
            for name, tensor in vars(module)[registry].items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

    def get_submodule(self, target: str) -> "Module":
        """Return the module below at a path such as "layers.0"; this one for "". Raises AttributeError."""
        module: Any = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module  # type: ignore[no-any-return]

    def set_submodule(self, target: str, module: "Module") -> None:
        """Put another module at a path below. Raises ArgumentError for the path "", AttributeError, TypeError."""
        if not target:
            raise ArgumentError("set_submodule: got the path ''; a module cannot replace itself")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if name not in parent._modules:
            raise AttributeError(f"{type(parent).__name__} has no sub-module `{name}`")
        parent.register_module(name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a path such as "layers.0.weight". Raises AttributeError."""
        return self._registered(target, "_parameters", "an nn.Parameter")  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer at a path such as "norm.running_mean". Raises AttributeError."""
        return self._registered(target, "_buffers", "a buffer")  # type: ignore[no-any-return]

    def _registered(self, target: str, registry: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if name not in vars(module)[registry]:
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            raise AttributeError(f"`{name}` is not {kind}")
        return vars(module)[registry][name]

    # -- state

    def get_extra_state(self) -> Any:
        """Return what else belongs to this module's state; `state_dict` holds it where a subclass defines this."""
        raise NotImplementedError(f"{type(self).__name__}: defines no get_extra_state; define it with set_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` returned; subclasses that define one define both."""
        raise NotImplementedError(f"{type(self).__name__}: defines no set_extra_state; define it with get_extra_state")

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return parameters and persistent buffers by path, shared ones under each of their paths.

        The tensors share memory with the module's; they carry no graph unless `keep_vars`. They go into `destination`,
        if that is given, under names that begin with `prefix`.
        """
        found = {} if destination is None else destination
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(found, prefix, keep_vars)
        if type(self).get_extra_state is not Module.get_extra_state:
            found[prefix + _EXTRA] = self.get_extra_state()
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in list(self._state_dict_hooks.values()):
            replaced = hook(self, found, prefix, {})
            found = found if replaced is None else replaced
        return found

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Put this module's own parameters and buffers into a dictionary; subclasses may add to it."""
        for key, tensor in self._own_state():
            destination[prefix + key] = tensor if keep_vars else tensor.detach()

    def _own_state(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if tensor is not None and name not in self._transient_buffers:
                yield name, tensor

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy tensors or arrays into the parameters and buffers of the same paths; or `assign` them in their place.

        Raises StateDictError, before anything is copied, that lists all wrongly shaped keys and, if `strict`, all
        missing and unexpected ones; OperandError for what is no dictionary. Hooks after loading may change which keys
        are missing or unexpected: where there are any, these are looked at when all is copied and the hooks have run.
        """
        if not isinstance(state_dict, Mapping):
            raise OperandError(f"load_state_dict: Expected state_dict to be dict-like, got {type(state_dict)}")
        state = dict(state_dict)
        modules = list(self.named_modules(remove_duplicate=False))
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        known: dict[str, tuple[Module, str]] = {}
        for path, module in modules:
            prefix = f"{path}." if path else ""
            for hook in list(module._load_pre_hooks.values()):
                hook(module, state, prefix, {}, strict, missing, unexpected, errors)
            known |= {prefix + name: (module, name) for name, _ in module._own_state()}
            if type(module).set_extra_state is not Module.set_extra_state:
                known[prefix + _EXTRA] = module, _EXTRA
        missing += [key for key, (module, name) in known.items() if key not in state and name not in module._optional]
        unexpected += [key for key in state if key not in known]
        found = {key: place for key, place in known.items() if key in state}
        for key, (module, name) in found.items():
            if name != _EXTRA and tuple(state[key].shape) != getattr(module, name).shape:
                errors.append(
                    f"size mismatch for {key}: copying a param with shape {tuple(state[key].shape)} from checkpoint, "
                    f"the shape in current model is {getattr(module, name).shape}."
                )
        hooks = [(module, hook) for _, module in reversed(modules) for hook in list(module._load_post_hooks.values())]
        result = IncompatibleKeys(missing, unexpected)
        remedy = "give the state of the same model (strict=False skips missing and unexpected keys)"
        if errors or not hooks:
            self._require_loadable(errors, result, strict, f"Nothing was loaded; {remedy}")
        loaded = set()  # what one value was copied into: shared tensors are not read twice from a file
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
        """Raise StateDictError for errors and, if `strict`, for keys that are missing or unexpected."""
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
        """Call `hook(module, prefix, keep_vars)` before `state_dict` collects this module's state."""
        return self._state_dict_pre_hooks.add(hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, metadata)` after `state_dict` collected this module's state.

        It may change the dictionary in place; the metadata are empty.
        """
        return self._state_dict_hooks.add(hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)` before loading.

        It may change a copy of the dictionary, to rename keys say, and the lists, in place; the metadata are empty.
        """
        return self._load_pre_hooks.add(hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading; it may change the lists of keys in place.

        Strict loading raises for the keys that are in the lists when all hooks have run.
        """
        return self._load_post_hooks.add(hook)

    # -- modes and conversions

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below: dropout drops."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters require gradients."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the parameters' gradients, or fill them with zeros."""
        for parameter in self.parameters():
            parameter.clear_grad(set_to_zero=not set_to_none)

    def apply(self, fn: "Callable[[Module], None]") -> Self:
        """Call `fn` on every module below, then on this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move parameters and buffers to a device, a dtype (floating-point ones only), or both, in place."""
        return self._convert(lambda tensor: tensor.to(*args, **kwargs))

    def float(self) -> Self:
        """Convert floating-point parameters and buffers to float32."""
        return self.to("float32")

    def double(self) -> Self:
        """Convert floating-point parameters and buffers to float64."""
        return self.to("float64")

    def half(self) -> Self:
        """Convert floating-point parameters and buffers to float16."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """Convert floating-point parameters and buffers to bfloat16."""
        return self.to("bfloat16")

    def cuda(self, device: Any = None) -> Self:
        """Move parameters and buffers to a CUDA device. Raises DeviceError where there is none."""
        return self.to("cuda" if device is None else device)

    def share_memory(self) -> Self:
        """Return the module, whose memory is shared with threads and, until it is written to, with forked processes."""
        return self

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Give parameters and buffers new memory, whose values are not set."""
        for tensor in (*self.parameters(recurse), *self.buffers(recurse)):
            tensor.data = creation.empty(tensor.shape, dtype=tensor.dtype, device=device)
        return self

    def cpu(self) -> Self:
        """Move parameters and buffers to the host's memory."""
        return self.to("cpu")

    def type(self, dst_type: Any) -> Self:
        """Convert floating-point parameters and buffers to a dtype."""
        return self.to(dst_type)

    def _convert(self, convert: Callable[[Tensor], Tensor]) -> Self:
        with no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                if tensor.is_floating_point():
                    # Both before either takes its place: the device may have no room for the second.
                    data, grad = convert(tensor.data), None if tensor.grad is None else convert(tensor.grad)
                    tensor.grad = None
                    tensor.data = data
                    tensor.grad = grad
                else:  # it keeps its dtype
                    tensor.data = tensor.data.to(convert(tensor.new_empty(0)).device)
        return self

    # -- display

    def extra_repr(self) -> str:
        """Return what the representation says of the module itself."""
        return ""

    def __repr__(self) -> str:
        return self._represent([f"({name}): {module!r}" for name, module in self._modules.items()])

    def _get_name(self) -> str:
        """Return what the representation calls the module."""
        return type(self).__name__

    def _represent(self, children: list[str]) -> str:
        extra = self.extra_repr().splitlines()
        name = self._get_name()
        if not children and len(extra) <= 1:
            return f"{name}({''.join(extra)})"
        lines = [line.replace("\n", "\n  ") for line in [*extra, *children]]
        return f"{name}(\n  " + "\n  ".join(lines) + "\n)"


# The name of what `get_extra_state` returns in a state dict.
_EXTRA = "_extra_state"


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)


# Hooks that take no kwargs; functions of their own, so that modules with hooks can be pickled.
def _call_before(hook: Callable[..., Any], module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    replaced = hook(module, args)
    return None if replaced is None else (replaced if isinstance(replaced, tuple) else (replaced,), kwargs)


def _call_after(
    hook: Callable[..., Any], module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    return hook(module, args, output)


def _add_hook(hooks: HookDict, hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
    former = dict(hooks)
    handle = hooks.add(hook)
    if prepend:
        for key, other in former.items():
            del hooks[key]
            hooks[key] = other
    return handle
