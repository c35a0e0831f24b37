"""The base of layers and models: named parameters, buffers and sub-modules."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from spillgrad import labels
from spillgrad.autograd.grad_mode import no_grad
from spillgrad.autograd.node import HookDict, RemovableHandle
from spillgrad.errors import StateDictError
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import creation
from spillgrad.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """Keys that a module has and a state dict has not, and the other way round."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class _Running(threading.local):
    """In a thread that runs a model: the path of each of its sub-modules."""

    paths: "dict[Module, str] | None" = None


_running = _Running()


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
    _known_paths: "tuple[int, dict[Module, str]]"

    def __init__(self) -> None:
        vars(self).update(
            training=True,
            _parameters={},
            _buffers={},
            _modules={},
            _transient_buffers=set(),
            _forward_pre_hooks=HookDict(),
            _forward_hooks=HookDict(),
            _known_paths=(-1, {}),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result; every subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__}: defines no forward; define it, or call its sub-modules")

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
        if self._forward_pre_hooks:
            for hook in list(self._forward_pre_hooks.values()):
                replaced = hook(self, args, kwargs)
                args, kwargs = (args, kwargs) if replaced is None else replaced
        result = self.forward(*args, **kwargs)
        if self._forward_hooks:
            for hook in list(self._forward_hooks.values()):
                replaced = hook(self, args, kwargs, result)
                result = result if replaced is None else replaced
        return result

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

        def without_kwargs(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            replaced = hook(module, args)
            return None if replaced is None else (replaced if isinstance(replaced, tuple) else (replaced,), kwargs)

        return _add_hook(self._forward_pre_hooks, hook if with_kwargs else without_kwargs, prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns, unless None, replaces the output.

        With `with_kwargs` it is `hook(module, args, kwargs, output)`.
        """

        def without_kwargs(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            return hook(module, args, output)

        return _add_hook(self._forward_hooks, hook if with_kwargs else without_kwargs, prepend)

    # -- attributes

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter under a name; None keeps the name for a parameter the module does not have."""
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(self._misfit(name, "a Parameter or None", param))
        self._claim(name, "_parameters")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but not learned; one that is not persistent stays out of `state_dict`."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(self._misfit(name, "a Tensor or None", tensor))
        self._claim(name, "_buffers")
        self._buffers[name] = tensor
        if persistent:
            self._transient_buffers.discard(name)
        else:
            self._transient_buffers.add(name)

    def register_module(self, name: str, module: "Module | None") -> None:
        """Register a sub-module under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(self._misfit(name, "a Module or None", module))
        self._claim(name, "_modules")
        self._modules[name] = module
        Module._structure_version += 1

    add_module = register_module

    def _claim(self, name: str, registry: str) -> None:
        """Make `name` free for an entry of one registry, so that it never means two things."""
        if registry not in vars(self):
            raise AttributeError(f"{type(self).__name__}: assigned {name!r} too early; call super().__init__() first")
        if not name or "." in name:
            raise KeyError(f"{type(self).__name__}: got the name {name!r}; a name must not be empty or contain a dot")
        for other in ("_parameters", "_buffers", "_modules"):
            if other != registry:
                vars(self)[other].pop(name, None)
        vars(self).pop(name, None)

    def _misfit(self, name: str, wanted: str, got: object) -> str:
        return f"{type(self).__name__}.{name}: got {type(got).__name__}, wanted {wanted}"

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self.register_module(name, value)
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

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> "Iterator[tuple[str, Module]]":
        """Yield this module and all below it with their paths; a shared one once, unless told otherwise."""
        seen: set[Module] = set()

        def walk(path: str, module: Module) -> "Iterator[tuple[str, Module]]":
            if module in seen:
                return
            if remove_duplicate:
                seen.add(module)
            yield path, module
            for name, child in module._modules.items():
                if child is not None:
                    yield from walk(f"{path}.{name}" if path else name, child)

        return walk(prefix, self)

    def modules(self) -> "Iterator[Module]":
        """Yield this module and all below it."""
        return (module for _, module in self.named_modules())

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
        modules = self.named_modules(prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for path, module in modules:
            for name, tensor in vars(module)[registry].items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

    # -- state

    def state_dict(self, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """Return parameters and persistent buffers by path, shared ones under each of their paths.

        The tensors share memory with the module's; they carry no graph unless `keep_vars`.
        """
        return {
            key: tensor if keep_vars else tensor.detach()
            for path, module in self.named_modules(prefix, remove_duplicate=False)
            for key, tensor in module._own_state(path)
        }

    def _own_state(self, path: str) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if tensor is not None and name not in self._transient_buffers:
                yield f"{path}.{name}" if path else name, tensor

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Copy tensors or arrays into the parameters and buffers of the same paths.

        Raises StateDictError, before anything is copied, that lists all wrongly shaped keys and, if `strict`, all
        missing and unexpected ones.
        """
        own = self.state_dict(keep_vars=True)
        missing = [key for key in own if key not in state_dict]
        unexpected = [key for key in state_dict if key not in own]
        misshapen = [
            f"{key} (got {tuple(state_dict[key].shape)}, wanted {tuple(tensor.shape)})"
            for key, tensor in own.items()
            if key in state_dict and tuple(state_dict[key].shape) != tuple(tensor.shape)
        ]
        wrong = {"wrongly shaped": misshapen}
        if strict:
            wrong = {"missing": missing, "unexpected": unexpected} | wrong
        if any(wrong.values()):
            listed = "; ".join(f"{kind}: {', '.join(keys)}" for kind, keys in wrong.items() if keys)
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: {listed}; give the state of the same model"
                " (strict=False skips missing and unexpected keys)"
            )
        with no_grad():
            for key, tensor in own.items():
                if key in state_dict:
                    value = state_dict[key]
                    tensor.copy_(value if isinstance(value, Tensor) else creation.tensor(np.asarray(value)))
        return IncompatibleKeys(missing, unexpected)

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

    def _convert(self, convert: Callable[[Tensor], Tensor]) -> Self:
        with no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                if tensor.is_floating_point():
                    tensor.data = convert(tensor.data)
                    if tensor.grad is not None:
                        tensor.grad = convert(tensor.grad)
        return self

    # -- display

    def extra_repr(self) -> str:
        """Return what the representation says of the module itself."""
        return ""

    def __repr__(self) -> str:
        return self._represent([f"({name}): {module!r}" for name, module in self._modules.items()])

    def _represent(self, children: list[str]) -> str:
        extra = self.extra_repr().splitlines()
        name = type(self).__name__
        if not children and len(extra) <= 1:
            return f"{name}({''.join(extra)})"
        lines = [line.replace("\n", "\n  ") for line in [*extra, *children]]
        return f"{name}(\n  " + "\n  ".join(lines) + "\n)"


def _add_hook(hooks: HookDict, hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
    former = dict(hooks)
    handle = hooks.add(hook)
    if prepend:
        for key, other in former.items():
            del hooks[key]
            hooks[key] = other
    return handle
