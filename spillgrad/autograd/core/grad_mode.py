"""Whether this thread records operations, and the context managers and decorators that switch recording."""

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any, TypeVar

__all__ = [
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_grad_enabled",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Mode = Callable[[], Any]  # makes a context manager

# It has an entry for each thread in inference mode. While it is empty, nothing need look up the mode of its thread.
inferring: list[None] = []


class _Mark:
    """An entry of `inferring`, which goes when the thread leaves inference mode, or ends within it."""

    def __init__(self) -> None:
        inferring.append(None)

    def __del__(self, remove: Callable[[], None] = inferring.pop) -> None:
        remove()


class _GradMode(threading.local):
    enabled = True  # whether operations are recorded
    unrecorded = False  # whether grad mode is on, and only inference mode keeps operations from being recorded
    inference = False
    mark: _Mark | None = None
    autocast: Any = None  # the mixed-precision mode; see `spillgrad.ops.autocast`
    frees_graph = False  # whether a backward runs that frees what the graph saved as soon as a derivative has used it


state = _GradMode()


@contextlib.contextmanager
def keeping_graph() -> Iterator[None]:
    """Context manager: a derivative keeps what the graph saved, because it may run again."""
    frees_graph, state.frees_graph = state.frees_graph, False
    try:
        yield
    finally:
        state.frees_graph = frees_graph


def is_recording() -> bool:
    """Return whether this thread records operations."""
    return state.enabled


def is_grad_enabled() -> bool:
    """Return whether this thread is in grad mode.

    Returns
    -------
    bool
        True if this thread records operations, unless it is in inference mode.
    """
    return state.enabled or state.unrecorded


def is_inference_mode_enabled() -> bool:
    """Return whether this thread is in inference mode.

    Returns
    -------
    bool
        True within `inference_mode`.
    """
    return state.inference


def _switch(in_grad_mode: bool, inference: bool) -> None:
    """Set this thread's modes."""
    state.enabled, state.unrecorded = in_grad_mode and not inference, in_grad_mode and inference
    if inference != state.inference:
        state.inference = inference
        state.mark = _Mark() if inference else None


class _Context:
    """A context manager and decorator that changes the mode; it can be entered again while it is active.

    A decorated generator or coroutine runs in the mode each time it resumes; its caller keeps its own mode.
    """

    def __init__(self) -> None:
        self._before: list[tuple[bool, bool]] = []

    def _again(self) -> Any:
        """Return a new context of this kind, because a decorated function may run in several threads at once."""
        return type(self)()

    def _change(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        self._before.append((is_grad_enabled(), state.inference))
        self._change()

    def __exit__(self, *exception: object) -> None:
        _switch(*self._before.pop())

    def __call__(self, function: _Function) -> _Function:
        return decorated(function, self._again)  # type: ignore[return-value]


class set_grad_enabled(_Context):
    """Switch recording on or off from now on; as a context manager or decorator, only in the block or function.

    Parameters
    ----------
    mode : bool
        Whether to record operations.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = bool(mode)
        self._at_once = is_grad_enabled(), state.inference
        _switch(self._mode, state.inference)

    def _again(self) -> Any:
        return enable_grad() if self._mode else no_grad()

    def _change(self) -> None:
        self._before[-1] = self._at_once
        _switch(self._mode, state.inference)

    def __call__(self, function: _Function) -> _Function:
        _switch(*self._at_once)
        return super().__call__(function)


class _Parameterless(_Context):
    """A context whose decorator works with and without parentheses."""

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)


class no_grad(_Parameterless):
    """Context manager and decorator: do not record operations.

    Parameters
    ----------
    function : callable, optional
        Function to decorate, where `no_grad` is a decorator without parentheses.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.ones(2, requires_grad=True)
    >>> with sg.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def _change(self) -> None:
        state.enabled = state.unrecorded = False


class enable_grad(_Parameterless):
    """Context manager and decorator: record operations, even within `no_grad`, but not within `inference_mode`.

    Within `inference_mode`, `is_grad_enabled` returns True nevertheless, as in PyTorch.

    Parameters
    ----------
    function : callable, optional
        Function to decorate, where `enable_grad` is a decorator without parentheses.
    """

    def _change(self) -> None:
        state.enabled, state.unrecorded = not state.inference, state.inference


class inference_mode(_Context):
    """Context manager and decorator: do not record operations, and make inference tensors.

    An inference tensor, or a view of one, has no version: outside of the mode it cannot be changed in place or saved
    for backward, and cannot be set to require a gradient. Its ``clone()`` is an ordinary tensor. Views of ordinary
    tensors stay ordinary ones.

    Parameters
    ----------
    mode : bool or callable, default True
        Whether inference mode is on; False records operations, even within another `inference_mode`, and makes ordinary
        tensors. A function is decorated, where `inference_mode` is a decorator without parentheses.

    Notes
    -----
    Source: torch.inference_mode.
    """

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        return super().__new__(cls) if isinstance(mode, bool) else cls()(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._mode = mode

    def _again(self) -> "inference_mode":
        return inference_mode(self._mode)

    def _change(self) -> None:
        _switch(not self._mode, self._mode)


def decorated(function: Callable[..., Any], mode: _Mode) -> Callable[..., Any]:
    """Wrap a function to run in a context `mode()`. A generator or coroutine enters a new one each time it resumes."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*arguments: Any, **options: Any) -> Any:
            return _steps(function(*arguments, **options), mode)

        return generate
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        def generate_async(*arguments: Any, **options: Any) -> Any:
            return _async_steps(function(*arguments, **options), mode)

        return generate_async
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*arguments: Any, **options: Any) -> Any:
            return await _awaited(function(*arguments, **options), mode)

        return wait

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with mode():
            return function(*arguments, **options)

    return run


def _steps(generator: Any, mode: _Mode) -> Generator[Any, Any, Any]:
    """Run a generator, or a coroutine's awaitable, in the mode; leave the mode while it is suspended."""
    try:
        with mode():
            value = next(generator)
        while True:
            try:
                sent = yield value
            except GeneratorExit:
                with mode():
                    generator.close()
                raise
            except BaseException as error:
                with mode():
                    value = generator.throw(error)
            else:
                with mode():
                    value = generator.send(sent)
    except StopIteration as end:
        return end.value


@types.coroutine
def _awaited(awaitable: Any, mode: _Mode) -> Generator[Any, Any, Any]:
    return (yield from _steps(awaitable.__await__(), mode))


async def _async_steps(generator: Any, mode: _Mode) -> AsyncGenerator[Any, Any]:
    try:
        value = await _awaited(anext(generator), mode)
        while True:
            try:
                sent = yield value
            except GeneratorExit:
                await _awaited(generator.aclose(), mode)
                raise
            except BaseException as error:
                value = await _awaited(generator.athrow(error), mode)
            else:
                value = await _awaited(generator.asend(sent), mode)
    except StopAsyncIteration:
        return
