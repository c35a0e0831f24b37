"""The nodes of the recorded graph, which backward visits.

A node refers to the nodes of its inputs (its edges) and never to its outputs. The graph therefore has no reference
cycles, and Python frees it as soon as the last tensor that needs it dies.
"""

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from spillgrad.autograd.core import anomaly_mode
from spillgrad.autograd.core.grad_mode import keeping_graph, state
from spillgrad.autograd.core.gradient_references import is_unshared
from spillgrad.autograd.core.hooks import stack as hook_stack
from spillgrad.errors import GraphError, HookTypeError
from spillgrad.fork_safe_lock import ForkSafeLock

# Registered once by `spillgrad.ops`, so that the core does not import tensors.
_tensor_type: Any = None
_add: Callable[[Any, Any], Any] = NotImplemented
_add_in_place: Callable[[Any, Any], Any] = NotImplemented


def register_tensor(tensor_type: Any, add: Callable[[Any, Any], Any], add_in_place: Callable[[Any, Any], Any]) -> None:
    """Register the Tensor class, and the functions that add two gradients; called once at import."""
    global _tensor_type, _add, _add_in_place
    _tensor_type, _add, _add_in_place = tensor_type, add, add_in_place


def tensor_type() -> Any:
    """Return the registered Tensor class."""
    return _tensor_type


def add_gradients(first: Any, second: Any) -> Any:
    """Return the sum of two gradients. The addition is recorded if grad mode is on."""
    return _add(first, second)


def accumulate_gradients(total: Any, gradient: Any) -> None:
    """Add `gradient` to `total` in place. Grad mode must be off."""
    _add_in_place(total, gradient)


# The place a gradient flows to: a node and the number of one of its outputs. The node is None if no gradient is wanted.
# A plain tuple, because recording makes so many edges that a class would cost measurable time.
Edge: TypeAlias = "tuple[Node | None, int]"
NO_EDGE: Edge = (None, 0)


class GradientEdge(NamedTuple):
    """An edge with named fields, as `get_gradient_edge` returns it.

    Parameters
    ----------
    node : Node or None
        Node that the gradient flows to; None where no gradient flows.
    output_nr : int
        Number of the node's output.
    """

    node: "Node | None"
    output_nr: int


class OutputMeta(NamedTuple):
    """The shape, dtype and device of an output, which a gradient of the output must have."""

    shape: tuple[int, ...]
    dtype: Any
    device: Any


new_output: Callable[[tuple[Any, Any, Any]], OutputMeta] = functools.partial(tuple.__new__, OutputMeta)

_sequence = itertools.count()
next_sequence = _sequence.__next__


class HookDict(dict[int, Any]):
    """Hooks in the order they were added. Handles refer weakly to this dict, so that they keep no node alive."""

    __slots__ = ("__weakref__",)

    def add(self, hook: Callable[..., Any], first: bool = False) -> "RemovableHandle":
        """Add `hook` after all others, or before them if `first`; return the handle that removes it."""
        handle = RemovableHandle(self)
        while handle.id in self:  # hooks that were unpickled keep the numbers of the process that pickled them
            handle.id = next(_sequence)
        others = list(self.items()) if first else []
        if first:
            self.clear()
        self[handle.id] = hook
        self.update(others)
        return handle

    def __reduce__(self) -> Any:
        return HookDict, (), None, None, ((key, hook) for key, hook in self.items() if not isinstance(hook, OwnHook))


class OwnHook:
    """A hook that belongs to one object alone: copies and pickles of the object do not have it."""

    __slots__ = ("_hook",)

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:
        """Call the hook."""
        return self._hook(*args)


class RemovableHandle:
    """A handle that removes a registered hook. As a context manager, it removes the hook on exit.

    Parameters
    ----------
    hooks : HookDict
        Hooks that the hook is one of.
    """

    def __init__(self, hooks: HookDict) -> None:
        self._hooks = weakref.ref(hooks)
        self.id = next(_sequence)

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __getstate__(self) -> tuple[HookDict | None, int]:
        return self._hooks(), self.id

    def __setstate__(self, state: tuple[HookDict | None, int]) -> None:
        hooks, self.id = state
        self._hooks = weakref.ref(HookDict() if hooks is None else hooks)

    def __enter__(self) -> "RemovableHandle":
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class Node:
    """One recorded operation, or the place where a leaf's gradient accumulates.

    Subclasses implement `apply(grads)`: it takes a gradient or None for each output, and returns one for each edge.
    """

    edges: tuple[Edge, ...] = ()
    outputs: tuple[OutputMeta, ...] = ()
    sequence: int
    rank = 1  # of the nodes that are ready, the nodes of the lowest rank run first
    # For a node whose input's gradient is zero outside a part: adds the gradient of its output to that part of another
    # gradient of the input, in place.
    add_part: Callable[[Any, Any], None] | None = None
    starts_from_ones = False  # whether backward from an output of many elements needs no gradient to start from
    # Numbers of outputs of a custom function that are views of an input. An in-place change of one side cannot be
    # recorded for the other, because only the user's backward knows their gradient.
    custom_views: frozenset[int] = frozenset()
    # Few nodes set any of these; defaults on the class make recording cheaper.
    _tensor_hooks: dict[int, HookDict] | None = None
    _retain_hooks: dict[int, Callable[[Any], None]] | None = None
    _prehooks: HookDict | None = None
    _posthooks: HookDict | None = None
    _metadata: dict[Any, Any] | None = None

    def __init__(self) -> None:
        self.sequence = next(_sequence)
        if hook_stack.watched:
            anomaly_mode.note(self)

    def name(self) -> str:
        """Return the node's name, as PyTorch spells it.

        Returns
        -------
        str
            Such as "MulBackward0".
        """
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple["Node | None", int], ...]:
        """Return (node, output number) for each input; (None, 0) for an input to which no gradient flows."""
        return self.edges

    @property
    def metadata(self) -> dict[Any, Any]:
        """Return a dict for the user's own notes on this node."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    def apply(self, grads: list[Any]) -> list[Any]:
        """Return the gradient of each edge, given the gradient of each output.

        Parameters
        ----------
        grads : list of Tensor or None
            Gradient of each output; None means that there is no gradient.

        Returns
        -------
        list of Tensor or None
            Gradient of each edge; None means that there is no gradient.
        """
        raise NotImplementedError

    def __call__(self, *grads: Any) -> Any:
        """Apply this node alone to its outputs' gradients; return the gradient of its input, or a tuple for several."""
        if len(grads) != self.output_count:
            raise GraphError(
                f"{self.name()}: got {len(grads)} gradients; it has {self.output_count} outputs, give one for each"
            )
        with keeping_graph():
            results = self.apply(list(grads))
        return results[0] if len(results) == 1 else tuple(results)

    def release(self) -> None:
        """Free the values saved for backward; the node cannot be applied afterwards."""

    def register_prehook(self, hook: Callable[[tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs.

        Parameters
        ----------
        hook : callable
            Takes the tuple of the outputs' gradients. A tuple that it returns replaces them.

        Returns
        -------
        RemovableHandle
            Removes the hook.
        """
        if self._prehooks is None:
            self._prehooks = HookDict()
        return self._prehooks.add(hook)

    def register_hook(self, hook: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node ran.

        Parameters
        ----------
        hook : callable
            Takes the tuples of the inputs' and of the outputs' gradients. A tuple that it returns replaces
            `grad_inputs`.

        Returns
        -------
        RemovableHandle
            Removes the hook.
        """
        if self._posthooks is None:
            self._posthooks = HookDict()
        return self._posthooks.add(hook)

    def register_tensor_hook(self, output_nr: int, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call ``hook(grad)`` with the gradient of an output, before anything else uses the gradient.

        Parameters
        ----------
        output_nr : int
            Number of the output.
        hook : callable
            Takes the gradient. A tensor that it returns replaces the gradient.

        Returns
        -------
        RemovableHandle
            Removes the hook.
        """
        if self._tensor_hooks is None:
            self._tensor_hooks = {}
        return self._tensor_hooks.setdefault(output_nr, HookDict()).add(hook)

    def retain_gradient(self, output_nr: int, store: Callable[[Any], None]) -> None:
        """Call ``store(grad)`` with the gradient of an output, after the hooks on this gradient.

        Parameters
        ----------
        output_nr : int
            Number of the output.
        store : callable
            Takes the gradient; its result is ignored.
        """
        if self._retain_hooks is None:
            self._retain_hooks = {}
        self._retain_hooks[output_nr] = store

    def hand_over_retained(self, output_nr: int, edge: Edge) -> None:
        """Retain the gradient of `edge`, not of output `output_nr`: an in-place change moved the tensor to `edge`.

        Parameters
        ----------
        output_nr : int
            Number of the output that the tensor was.
        edge : tuple of Node or None, int
            Where the tensor's gradient now flows.
        """
        store = (self._retain_hooks or {}).pop(output_nr, None)
        node, number = edge
        if store is not None and node is not None:
            node.retain_gradient(number, store)

    def output(self, output_nr: int) -> OutputMeta:
        """Return the shape, dtype and device that a gradient of the output must have.

        Parameters
        ----------
        output_nr : int
            Number of the output.

        Returns
        -------
        OutputMeta
            Tuple with the fields ``shape``, ``dtype`` and ``device``.
        """
        return self.outputs[output_nr]

    def _accepts(self, output_nr: int, grad: Any) -> bool:
        """Return whether `grad` has the shape and dtype of the output."""
        shape, dtype, _ = self.outputs[output_nr]
        return grad.numpy_dtype is dtype and grad.shape == shape

    def tensor_hooks(self) -> dict[int, HookDict] | None:
        """Return the hooks of the output tensors, by output number.

        Returns
        -------
        dict or None
            None if there are none.
        """
        return self._tensor_hooks

    @property
    def output_count(self) -> int:
        """The number of outputs."""
        return len(self.outputs)

    def run(self, grads: list[Any]) -> list[Any]:
        """Apply the node between its pre- and post-hooks.

        Parameters
        ----------
        grads : list of Tensor or None
            Gradient of each output.

        Returns
        -------
        list of Tensor or None
            Gradient of each edge.
        """
        if self._prehooks:
            mode = state.enabled
            grads = _replaced(self._prehooks, grads, lambda hook, values: hook(values))
            state.enabled = mode  # a hook may have switched it
        results = self.apply(grads)
        if self._posthooks:
            outputs = tuple(grads)
            results = _replaced(self._posthooks, results, lambda hook, values: hook(values, outputs))
        return results

    def run_tensor_hooks(self, tensor_hooks: dict[int, HookDict] | None, grads: list[Any]) -> None:
        """Call the hooks of the output tensors with their gradients. A hook's result replaces the gradient.

        Parameters
        ----------
        tensor_hooks : dict or None
            What `tensor_hooks` returned.
        grads : list of Tensor or None
            Gradient of each output; changed in place.
        """
        for output_nr, hooks in list((tensor_hooks or {}).items()):
            for hook in list(hooks.values()):
                grad = grads[output_nr]
                if grad is None:
                    break
                replacement = hook(grad.mark_shared())
                if replacement is not None:
                    grads[output_nr] = _like(hook, replacement, grad)
        for output_nr, store in list((self._retain_hooks or {}).items()):
            if grads[output_nr] is not None:
                store(grads[output_nr].mark_shared())

    def __repr__(self) -> str:
        return f"<{self.name()}>"


def _replaced(hooks: HookDict, values: list[Any], call: Callable[[Any, tuple[Any, ...]], Any]) -> list[Any]:
    for hook in list(hooks.values()):
        for value in values:
            if value is not None:
                value.mark_shared()
        result = call(hook, tuple(values))
        if result is not None:
            if not isinstance(result, tuple):
                raise HookTypeError(
                    f"hook {_hook_name(hook)}: expected tuple, but hook returned {type(result).__name__!r}; return one "
                    "gradient (or None) for each passed, or None to keep them"
                )
            if len(result) != len(values):
                raise GraphError(
                    f"hook {_hook_name(hook)} has returned an incorrect number of values: got {len(result)}, "
                    f"wanted {len(values)}; return one (or None) for each gradient passed"
                )
            values = [None if new is None else _like(hook, new, old) for new, old in zip(result, values, strict=True)]
    return values


def _like(hook: Any, new: Any, old: Any) -> Any:
    """Check the gradient `new`, which a hook returned to replace `old`, and return it.

    Raises HookTypeError unless `new` is a tensor. Raises GraphError if `new` and `old` differ in shape or dtype.
    """
    if not isinstance(new, _tensor_type):
        raise HookTypeError(
            f"hook {_hook_name(hook)}: got {type(new).__name__}; expected a Tensor, or None to keep the gradient"
        )
    if old is not None and (new.shape, new.dtype) != (old.shape, old.dtype):
        raise GraphError(
            f"hook {_hook_name(hook)} has changed the gradient's shape or dtype: got {new.shape} {new.dtype}, wanted "
            f"{old.shape} {old.dtype}; return a gradient like the one passed"
        )
    return new.mark_shared()


def _hook_name(hook: Any) -> str:
    return f"'{getattr(hook, '__name__', type(hook).__name__)}'"


def _lock_of(leaf: Any) -> Any:
    """Return a leaf gradient's lock. It is reentrant: finalizers and signal handlers may run in the thread that has it.

    Two threads may add a gradient to the same leaf at once, so each leaf has a lock. With one lock for all leaves,
    threads would wait while the gradient of another leaf is read from disk.
    """
    lock = leaf.__dict__.get("_accumulating")
    return leaf.__dict__.setdefault("_accumulating", ForkSafeLock()) if lock is None else lock


# Two threads may use a leaf for the first time at once, and must find the same accumulator: `grad` would know only one
# of two. Nothing waits while it holds this lock, which takes 0.15 us. A lock for each leaf would take twice as long.
accumulator_lock = ForkSafeLock()


class AccumulateGrad(Node):
    """The node of a leaf: it adds the gradient that arrives to the leaf's `.grad`.

    The leaf refers to its accumulator weakly and the graph refers to it strongly. Hooks are therefore stored in the
    leaf.
    """

    variable: Any  # the leaf, which makes its accumulator
    rank = 0
    output_count = 1

    def output(self, output_nr: int) -> OutputMeta:
        """Return the leaf's shape, dtype and device, which its gradient must have; rarely needed, so not stored."""
        variable = self.variable
        return new_output((variable.shape, variable.numpy_dtype, variable.device))

    def _accepts(self, output_nr: int, grad: Any) -> bool:
        variable = self.variable
        return grad.numpy_dtype is variable.numpy_dtype and grad.shape == variable.shape

    def tensor_hooks(self) -> dict[int, HookDict] | None:
        hooks = self.variable._leaf_hooks
        return None if hooks is None else {0: hooks}

    def put_away(self, grads: list[Any]) -> None:
        """Move a gradient that waits for further gradients out of RAM, if the leaf's memory is offloaded too."""
        storage = self.variable._storage
        if storage.offloaded and is_unshared(grads, 0):
            storage.put_away(grads[0])

    def apply(self, grads: list[Any]) -> list[Any]:
        (grad,) = grads
        if grad is not None and self.variable.requires_grad:  # it may have been frozen since
            before: HookDict | None = self.variable._pre_accumulate_hooks
            for hook in list((before or {}).values()):
                hook(self.variable)
            with _lock_of(self.variable):
                self.variable.accumulate_grad(grad)
            hooks: HookDict | None = self.variable._post_accumulate_hooks
            for hook in list((hooks or {}).values()):
                result = hook(self.variable)
                if result is not None:
                    kind = GraphError if isinstance(result, _tensor_type) else HookTypeError  # as in PyTorch
                    raise kind(
                        f"hook {_hook_name(hook)}: got {type(result).__name__}; Tensor post accumulate grad hooks "
                        "should return None: change the leaf, or its .grad, instead"
                    )
        return []
