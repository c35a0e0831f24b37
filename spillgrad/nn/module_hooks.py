"""Hooks on the calls and backward passes of all modules, which run before a module's own hooks.

Source: torch.nn.modules.module.register_module_forward_hook and its siblings.
"""

import functools
from collections.abc import Callable
from typing import Any

from spillgrad.autograd.core.node import HookDict, RemovableHandle

Hook = Callable[..., Any]


class _Entry:
    """A hook on all modules: what it is called around, and whether also if forward raises."""

    def __init__(self, kind: str, hook: Hook, always: bool = False) -> None:
        self.kind, self.hook, self.always = kind, hook, always

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args)


# One dictionary for all kinds, so that a call of a module looks once whether there are any.
of_all_modules = HookDict()


def of_kind(kind: str) -> list[tuple[int, Hook]]:
    """Return (number, hook) for the hooks of a kind: "before", "after", "backward" or "before backward"."""
    return [(number, entry.hook) for number, entry in _entries() if entry.kind == kind]


def always_called() -> set[int]:
    """Return the numbers of the hooks after forward that are also called if forward raises."""
    return {number for number, entry in _entries() if entry.always}


def _entries() -> list[tuple[int, Any]]:
    """Return a copy of the entries, as another thread may add or remove some."""
    return list(of_all_modules.items())


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, args)` before the forward of any module, in any thread, and before the module's own hooks.

    A result other than None replaces the arguments.
    """
    return of_all_modules.add(_Entry("before", functools.partial(call_before, hook)))


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:  # fmt: skip
    """Call `hook(module, args, output)` after the forward of any module, in any thread, before the module's own hooks.

    A result other than None replaces the output. With `with_kwargs`, the call is `hook(module, args, kwargs, output)`.
    With `always_call`, the hook is also called if forward or an earlier hook raises, with None for the output; its
    exceptions then become warnings.
    """
    called = hook if with_kwargs else functools.partial(call_after, hook)
    return of_all_modules.add(_Entry("after", called, always_call))


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` for any module as `Module.register_full_backward_hook` does."""
    return of_all_modules.add(_Entry("backward", hook))


register_module_backward_hook = register_module_full_backward_hook


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_output)` for any module as `Module.register_full_backward_pre_hook` does."""
    return of_all_modules.add(_Entry("before backward", hook))


# Wrappers of hooks that take no kwargs; module-level functions, so that modules with hooks can be pickled.
def call_before(hook: Hook, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a hook before forward that knows no keyword arguments; return None or (args, kwargs)."""
    replaced = hook(module, args)
    return None if replaced is None else (replaced if isinstance(replaced, tuple) else (replaced,), kwargs)


def call_after(hook: Hook, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Call a hook after forward that knows no keyword arguments."""
    return hook(module, args, output)
