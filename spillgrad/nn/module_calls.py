"""Calling a module: its forward between its hooks, and functions that run the forwards of sub-modules."""

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

from spillgrad import labels
from spillgrad.autograd.core.node import HookDict, RemovableHandle
from spillgrad.errors import GraphError
from spillgrad.nn.module_backward import ModuleBackward
from spillgrad.nn.module_hooks import always_called, call_after, call_before, of_all_modules, of_kind

# A function that runs a sub-module's forward, given its path, the forward and its arguments.
Around = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Running(threading.local):
    """In a thread that runs a model: the path of each sub-module, and the function that runs their forwards."""

    paths: "dict[ModuleCalls, str] | None" = None
    around: Around | None = None

    def __init__(self) -> None:
        self.entered: list[tuple[Any, Around | None]] = []


_running = _Running()


class around_forward:
    """Context manager: let `around` run the forwards of sub-modules in this thread, inside their hooks.

    With `around` None, forwards run directly. The innermost context applies. `__exit__` leaves the last context that
    the same `owner` entered, and all contexts entered after that.
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


class ModuleCalls:
    """The part of a module that runs its `forward` and the hooks around it."""

    _forward_pre_hooks: HookDict
    _forward_hooks: HookDict
    _always_called: set[int]
    _backward_hooks: HookDict
    _backward_pre_hooks: HookDict
    _submodule_paths: "Callable[[], dict[ModuleCalls, str]]"  # which `Module` defines

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result; every subclass defines it.

        Parameters
        ----------
        *args : object
            Arguments of the call.
        **kwargs : object
            Keyword arguments of the call.

        Returns
        -------
        object
            The result.
        """
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function; define it, or call its '
            "sub-modules"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` between its hooks; label the values it saves with the module's path in the outermost module."""
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
        if (
            of_all_modules
            or self._forward_pre_hooks
            or self._forward_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        ):
            return self._call_watched(args, kwargs)
        return self.forward(*args, **kwargs) if _running.around is None else self._run_within(args, kwargs)

    def _run_within(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run forward; if this is a sub-module, let the function of the innermost `around_forward` run it."""
        path = None if _running.paths is None else _running.paths.get(self)
        if _running.around is None or path is None:
            return self.forward(*args, **kwargs)
        return _running.around(path, self.forward, args, kwargs)

    def _call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called = set()
        try:
            for _, hook in (*of_kind("before"), *self._forward_pre_hooks.items()):
                replaced = hook(self, args, kwargs)
                if replaced is not None:
                    if not isinstance(replaced, tuple) or len(replaced) != 2:
                        raise GraphError(
                            "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                            f"{replaced}."
                        )
                    args, kwargs = replaced
            backward = self._with_those_of_all("backward", self._backward_hooks)
            before_backward = self._with_those_of_all("before backward", self._backward_pre_hooks)
            watch = ModuleBackward(self, backward, before_backward) if backward or before_backward else None
            result = self._run_within(args if watch is None else tuple(watch.inputs(args)), kwargs)
            for key, hook in (*of_kind("after"), *self._forward_hooks.items()):
                called.add(key)
                replaced = hook(self, args, kwargs, result)
                result = result if replaced is None else replaced
        except BaseException:
            silenced = []  # as text, because exceptions would refer to this frame
            always = self._always_called | always_called()
            for key, hook in (*of_kind("after"), *self._forward_hooks.items()):
                if key in always and key not in called:
                    try:
                        hook(self, args, kwargs, None)
                    except Exception as error:
                        silenced.append(f"{type(error).__name__}: {error}")
            for what in silenced:
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as another "
                    f"error was raised in forward: {what}",
                    stacklevel=4,  # the caller of the module
                )
            raise
        return result if watch is None else watch.output(result)

    @staticmethod
    def _with_those_of_all(kind: str, hooks: HookDict) -> list[Callable[..., Any]]:
        return [*(hook for _, hook in of_kind(kind)), *hooks.values()]

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before forward; a result other than None replaces the arguments.

        Parameters
        ----------
        hook : callable
            The hook.
        prepend : bool, default False
            Whether it is called before the module's other hooks.
        with_kwargs : bool, default False
            Whether the call is ``hook(module, args, kwargs)``, and the result None or (args, kwargs).

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        called = hook if with_kwargs else functools.partial(call_before, hook)
        return self._forward_pre_hooks.add(called, first=prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False,
    ) -> RemovableHandle:  # fmt: skip
        """Call ``hook(module, args, output)`` after forward; a result other than None replaces the output.

        Parameters
        ----------
        hook : callable
            The hook.
        prepend : bool, default False
            Whether it is called before the module's other hooks.
        with_kwargs : bool, default False
            Whether the call is ``hook(module, args, kwargs, output)``.
        always_call : bool, default False
            Whether the hook is also called if forward or an earlier hook raises, with None for the output; its
            exceptions then become warnings.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        called = hook if with_kwargs else functools.partial(call_after, hook)
        handle = self._forward_hooks.add(called, first=prepend)
        if always_call:
            self._always_called.add(handle.id)
        return handle

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the module's arguments are computed.

        A result other than None replaces `grad_input`. The hook is called only if the module's result is a tensor, or a
        tuple or list with tensors.

        Parameters
        ----------
        hook : callable
            The hook. Its argument `grad_input` has an entry for each positional argument: a gradient, zeros for a
            tensor without a gradient, as in PyTorch, or None for other arguments.
        prepend : bool, default False
            Whether it is called before the module's other hooks.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._backward_hooks.add(hook, first=prepend)

    register_backward_hook = register_full_backward_hook

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` when the gradients of the module's results are computed.

        A result other than None replaces `grad_output`.

        Parameters
        ----------
        hook : callable
            The hook.
        prepend : bool, default False
            Whether it is called before the module's other hooks.

        Returns
        -------
        RemovableHandle
            Its `remove()` removes the hook.
        """
        return self._backward_pre_hooks.add(hook, first=prepend)
