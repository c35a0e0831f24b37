"""A hook on the gradients of several tensors at once."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from spillgrad.autograd.core import engine
from spillgrad.autograd.core.node import Node, RemovableHandle
from spillgrad.errors import ArgumentError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.tensor import Tensor


class _MultiHook:
    """A function, and the tensors whose gradients it waits for. It does not keep the tensors' graphs alive.

    Gradients that have arrived are stored for each backward: several backwards may run at once, in threads or nested.
    """

    def __init__(self, function: Callable[[Any], None], tensors: Sequence[Tensor], first_only: bool) -> None:
        self.removed = False
        self._function = function
        self._first_only = first_only
        self._sources = [weakref.ref(tensor.grad_fn or tensor) for tensor in tensors]
        self._arrived: weakref.WeakKeyDictionary[engine.Run, dict[int, Tensor]] = weakref.WeakKeyDictionary()
        self._awaited: weakref.WeakKeyDictionary[engine.Run, set[int]] = weakref.WeakKeyDictionary()
        self._lock = ForkSafeLock()

    def at(self, place: int) -> Callable[[Tensor], None]:
        """Return the hook for the tensor at index `place`."""

        def hook(grad: Tensor) -> None:
            run = engine.current_run()
            with self._lock:
                first = run not in self._arrived
                arrived = self._arrived.setdefault(run, {})
                arrived[place] = grad
                if first and not self._first_only:
                    self._awaited[run] = {p for p, source in enumerate(self._sources) if run.visits(_node(source()))}
                    run.at_end.append(lambda: self._finish(run))
            if self._first_only:
                if first:
                    self._function(grad)
            elif arrived.keys() >= self._awaited[run]:
                self._finish(run)

        return hook

    def _finish(self, run: "engine.Run") -> None:
        """Call the function, unless this backward has called it already or the hook was removed."""
        with self._lock:
            arrived = self._arrived[run]
            if self.removed or self._awaited.pop(run, None) is None:
                return
        self._function([arrived.get(place) for place in range(len(self._sources))])


def _node(source: Any) -> Node | None:
    return source.gradient_edge()[0] if isinstance(source, Tensor) else source


class _Handle(RemovableHandle):
    """The handle that removes the hook from every tensor."""

    def __init__(self, hook: _MultiHook, handles: Sequence[RemovableHandle]) -> None:
        self._hook = hook
        self._handles = handles

    def remove(self) -> None:
        self._hook.removed = True
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[[Any], None], *, mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in every backward that computes gradients of `tensors`.

    Parameters
    ----------
    tensors : sequence of Tensor
        Tensors whose gradients `fn` gets. With "any", those that require no gradient are ignored.
    fn : callable
        ``fn(grads)`` with "all", ``fn(grad)`` with "any". It must not change gradients, and its result is ignored.
    mode : {"all", "any"}, default "all"
        With "all", `fn` runs when the last of these gradients has arrived, or at the end of backward if an expected
        gradient never arrives; the entry of a tensor without gradient is None. With "any", `fn` runs with the first
        gradient.

    Returns
    -------
    RemovableHandle
        Removes the hook.

    Raises
    ------
    ArgumentError
        For another mode.
    GraphError
        With "all", for a tensor that requires no gradient.

    Notes
    -----
    Source: torch.autograd.graph.register_multi_grad_hook.
    """
    if mode not in ("all", "any"):
        raise ArgumentError(f"register_multi_grad_hook: got mode={mode!r}; accepted are 'all' and 'any'")
    if mode == "any":
        tensors = [tensor for tensor in tensors if tensor.requires_grad]
    hook = _MultiHook(fn, tensors, mode == "any")
    return _Handle(hook, [tensor.register_hook(hook.at(place)) for place, tensor in enumerate(tensors)])
