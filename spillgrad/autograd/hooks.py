"""The stack of saved-tensor hooks: per thread; the innermost pair applies to what is saved."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from spillgrad.errors import GraphError


class HookPair(NamedTuple):
    """A pack hook, tensor → anything, and the unpack hook that turns its result back into an equal tensor."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


class _HookStack(threading.local):
    def __init__(self) -> None:
        self.pairs: list[HookPair] = []
        self.disabled: list[str] = []
        self.packing: tuple[str, str] = ("", "")


stack = _HookStack()


def current() -> HookPair | None:
    """Return the pair that applies to what this thread saves now, or None."""
    return stack.pairs[-1] if stack.pairs else None


def depth() -> int:
    """Return how many pairs this thread has entered and not left."""
    return len(stack.pairs)


def packing() -> tuple[str, str]:
    """Return operation and slot of the value being packed in this thread; empty strings where unknown."""
    return stack.packing


def set_packing(operation: str, slot: str) -> None:
    """Say which value the pack hook called next is about."""
    stack.packing = (operation, slot)


class saved_tensors_hooks:
    """Call a pair of hooks for every tensor that operations inside save for backward.

    `pack_hook(tensor)` runs when an operation has finished and sees a detached tensor; what it returns is kept instead.
    It must not change its input. `unpack_hook(packed)` runs when backward needs the value and must return a tensor
    equal to the packed one in shape, dtype and device. Contexts nest: the innermost pair applies. Re-enterable.

    Raises GraphError inside `disable_saved_tensors_hooks`.
    Source: torch.autograd.graph.saved_tensors_hooks, paddle.autograd.saved_tensors_hooks.
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> Any:
        if stack.disabled:
            raise GraphError(stack.disabled[-1])
        stack.pairs.append(HookPair(self.pack_hook, self.unpack_hook))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack.pairs.pop()


class disable_saved_tensors_hooks:
    """Make entering `saved_tensors_hooks` inside an error that says `message`.

    Raises GraphError with that message when hooks are already active here.
    """

    def __init__(self, error_message: str) -> None:
        self._message = error_message

    def __enter__(self) -> None:
        if stack.pairs:
            raise GraphError(self._message)
        stack.disabled.append(self._message)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack.disabled.pop()
