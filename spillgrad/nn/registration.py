"""Hooks on the registration of parameters, buffers and sub-modules in any module.

Source: torch.nn.modules.module.register_module_parameter_registration_hook and its siblings.
"""

from collections.abc import Callable
from typing import Any

from spillgrad.autograd.core.node import HookDict, RemovableHandle
from spillgrad.errors import HookTypeError

Hook = Callable[[Any, str, Any], Any]

_hooks = {"parameter": HookDict(), "buffer": HookDict(), "module": HookDict()}


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, parameter)` before any module, in any thread, registers a parameter other than None.

    A result of the hook other than None is registered instead.
    """
    return _hooks["parameter"].add(hook)


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, buffer)` before any module, in any thread, registers a buffer, which may be None.

    A result of the hook other than None is registered instead.
    """
    return _hooks["buffer"].add(hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, submodule)` before any module, in any thread, registers a sub-module or None.

    A result of the hook other than None is registered instead.
    """
    return _hooks["module"].add(hook)


def to_register(kind: str, wanted: type, module: Any, name: str, value: Any) -> Any:
    """Call the registration hooks of a kind; return the object to register: `value`, or its replacement by the hooks.

    Raises HookTypeError for a replacement of another type than `wanted`.
    """
    for hook in list(_hooks[kind].values()):
        replaced = hook(module, name, value)
        if replaced is not None and not isinstance(replaced, wanted):
            raise HookTypeError(
                f"{type(module).__name__}.{name}: a registration hook returned a {type(replaced).__name__}, wanted a "
                f"{wanted.__name__}, or None to register what it was given"
            )
        value = value if replaced is None else replaced
    return value
