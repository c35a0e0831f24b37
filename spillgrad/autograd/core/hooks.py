"""The stack of saved-tensor hooks, one for each thread. The innermost pair that takes a value packs the value."""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from spillgrad import labels
from spillgrad.errors import GraphError, HookTypeError


class SavedValue(NamedTuple):
    """The argument of an `only` function: a tensor that is saved for backward, and the operation that saves it.

    Parameters
    ----------
    tensor : Tensor
        The saved value.
    op : str
        The operation's name, such as "mul"; for a custom function it is the node's name, "ScaleBackward".
    slot : str
        The operation's name for the value ("self", "result"); for a custom function it is a number.
    module : str
        Path of the running module, such as "blocks.3.mlp"; empty outside of modules.
    """

    tensor: Any
    op: str
    slot: str
    module: str

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor's elements."""
        return self.tensor.nbytes  # type: ignore[no-any-return]


Predicate = Callable[[SavedValue], Any]


class HookPair(NamedTuple):
    """A pack hook, tensor → anything, and the unpack hook that turns the packed object back into an equal tensor.

    `only` chooses the values that the pair takes; None takes all. `owner` is the context that entered the pair.
    """

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    only: Predicate | None = None
    owner: Any = None


class _HookStack(threading.local):
    # Whether each recorded operation must be examined: for active pairs of this thread, for `watch`, or for anomaly
    # detection or a profile, which set it on the class. Every recorded operation reads this flag.
    watched = False

    def __init__(self) -> None:
        self.pairs: list[HookPair] = []
        self.watchers = 0
        self.disabled: list[str] = []
        self.packing: tuple[str, str] = ("", "")


stack = _HookStack()


_everywhere: set[str] = set()


def watch_every_thread(who: str, watch: bool) -> None:
    """Set whether `who` needs recorded operations examined in every thread, even without active hooks."""
    (_everywhere.add if watch else _everywhere.discard)(who)
    _HookStack.watched = bool(_everywhere)


def watch(by: int) -> None:
    """Add `by` to the number of users that need this thread's saved values examined even without active hooks."""
    stack.watchers += by
    restore(stack.pairs)


def depth() -> int:
    """Return how many pairs this thread has entered and not left."""
    return len(stack.pairs)


def see_gradients() -> bool:
    """Return whether an active hook packs gradients that an operation computes in advance, in its forward."""
    return any(pair.owner is None or pair.owner.sees_gradients for pair in stack.pairs)


def restore(pairs: list[HookPair]) -> None:
    """Replace all active pairs of hooks of this thread by `pairs`."""
    stack.pairs = pairs
    if pairs or stack.watchers:
        stack.watched = True
    else:
        stack.__dict__.pop("watched", None)


def chosen(alias: Callable[[], Any], operation: str, slot: str, pairs: list[HookPair] | None = None) -> HookPair | None:
    """Return the innermost pair that takes the value that this thread is saving, or None.

    `alias` returns the value; `pairs` defaults to the active pairs.
    """
    pair: HookPair
    for pair in reversed(stack.pairs if pairs is None else pairs):
        if pair.only is None or pair.only(SavedValue(alias(), operation, slot, labels.current.module or "")):
            return pair
    return None


def packing() -> tuple[str, str]:
    """Return the operation and slot of the value that this thread is packing; empty strings if they are unknown."""
    return stack.packing


def set_packing(operation: str, slot: str) -> None:
    """Set the operation and slot of the value that the next pack hook gets."""
    stack.packing = (operation, slot)


class saved_tensors_hooks:
    """Context manager: call a pair of hooks for every tensor that operations save for backward.

    Contexts nest: the innermost pair that takes a value packs it. A value that no pair takes is saved as if there were
    no hooks. The context can be entered again. Leaving it also leaves any context that was entered within it and is
    still active.

    Parameters
    ----------
    pack_hook : callable
        ``pack_hook(tensor)`` runs when an operation has finished, and gets a detached tensor, which it must not change.
        Its result is kept instead of the tensor.
    unpack_hook : callable
        ``unpack_hook(packed)`` runs when backward needs the value, and must return a tensor of the same shape, dtype
        and device.
    only : callable, optional
        ``only(saved)`` gets a `SavedValue` and returns whether the pair takes it. It may use ``saved.op``,
        ``saved.slot``, ``saved.module``, ``saved.nbytes`` and ``saved.tensor``. By default, the pair takes every value.

    Raises
    ------
    GraphError
        On entering it within `disable_saved_tensors_hooks`.
    HookTypeError
        For an `only` that cannot be called.

    Notes
    -----
    Source: torch.autograd.graph.saved_tensors_hooks, paddle.autograd.saved_tensors_hooks; neither has `only`.

    Examples
    --------
    >>> import spillgrad as sg
    >>> def pack(x):
    ...     print("saved", tuple(x.shape))
    ...     return x
    >>> x = sg.ones(3, requires_grad=True)
    >>> with sg.autograd.graph.saved_tensors_hooks(pack, lambda x: x, only=lambda saved: saved.op == "exp"):
    ...     y = (x.exp() * 2).sum()
    saved (3,)
    """

    only: Predicate | None = None
    # Whether a gradient that an operation computed in advance is packed like any saved tensor.
    sees_gradients = True

    def __init__(
        self,
        pack_hook: Callable[[Any], Any],
        unpack_hook: Callable[[Any], Any],
        *,
        only: Predicate | None = None,
    ) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook
        self.only = checked_predicate(type(self).__name__, only)

    def __enter__(self) -> Any:
        if stack.disabled:
            raise GraphError(stack.disabled[-1])
        restore([*stack.pairs, HookPair(self.pack_hook, self.unpack_hook, self.only, self)])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        entered = [place for place, pair in enumerate(stack.pairs) if pair.owner is self]
        if entered:  # a hook may have left the context already
            restore(stack.pairs[: entered[-1]])


def checked_predicate(who: str, only: Any) -> Predicate | None:
    """Check and return the argument `only` of `who`. Raises HookTypeError if it is neither None nor callable."""
    if only is not None and not callable(only):
        raise HookTypeError(
            f"{who}: got only={only!r}; wanted a function of one argument that returns whether to pack it, such as "
            "lambda saved: saved.nbytes > 1 << 20"
        )
    return only  # type: ignore[no-any-return]


class disable_saved_tensors_hooks(contextlib.ContextDecorator):
    """Context manager and decorator: entering `saved_tensors_hooks` raises GraphError.

    If hooks are already active in this thread, entering this context raises that error too.

    Parameters
    ----------
    error_message : str
        Text of the error.
    """

    def __init__(self, error_message: str) -> None:
        self._message = error_message

    def __enter__(self) -> None:
        if stack.pairs:
            raise GraphError(self._message)
        stack.disabled.append(self._message)

    def __exit__(self, *exception: object) -> None:
        stack.disabled.pop()
