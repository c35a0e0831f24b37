"""Hooks on the backward pass of a whole module."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.autograd.core.node import OutputMeta
from spillgrad.autograd.function import Function
from spillgrad.device.device import filled
from spillgrad.errors import GraphError
from spillgrad.tensor import Tensor


class BackwardHookFunction(Function):
    """An identity: a single node in the graph through which all arguments, or all results, of a module pass."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors; those that require no gradient still require none."""
        ctx.mark_non_differentiable(*[tensor for tensor in tensors if not tensor.requires_grad])
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients unchanged."""
        return grads


Gradients = tuple[Tensor | None, ...]


class ModuleBackward:
    """One call of a module with backward hooks; the hooks get gradients, or None for values that are not tensors.

    The pre-hooks are called when the gradients of all results are computed. They get these gradients, with None for
    unused results. The hooks are called when the gradients of the positional arguments are computed. They get the
    gradients of arguments and results, with zeros for arguments without a gradient.
    If no argument requires a gradient, the hooks are called right after the pre-hooks, with None for each argument.
    """

    def __init__(
        self, module: Any, hooks: Sequence[Callable[..., Any]], pre_hooks: Sequence[Callable[..., Any]]
    ) -> None:  # fmt: skip
        self._module = module
        self._hooks = hooks
        self._pre_hooks = pre_hooks
        self._inputs = 0
        self._has_input_node = False
        self._grad_outputs: Gradients | None = None

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Pass the positional arguments through a node that receives their gradients; return the new arguments."""
        self._inputs = len(args)
        args, node, places = _passed(args)
        if node is not None:
            self._has_input_node = True
            metas = node.outputs
            node.register_hook(lambda grads, _: self._arrived(grads, places, metas))
        return args

    def output(self, result: Any) -> Any:
        """Pass the module's result through a node that receives the result's gradients; return the new result."""
        values = (result,) if isinstance(result, Tensor) else result
        if not isinstance(values, tuple | list):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(result)}",
                stacklevel=5,  # the caller of the module
            )
            return result
        passed, node, places = _passed(tuple(values))
        if node is None:
            return result
        node.register_prehook(lambda grads: self._begins(grads, places, len(values)))
        if isinstance(result, Tensor):
            return passed[0]
        # A named tuple, for example, cannot be made from an iterable.
        return tuple.__new__(type(result), passed) if isinstance(result, tuple) else type(result)(passed)

    def _begins(self, grads: Gradients, places: list[int], count: int) -> Gradients | None:
        spread = _spread(grads, places, count)
        for hook in self._pre_hooks:
            replaced = hook(self._module, spread)
            if replaced is not None:
                spread = _as_gradients("pre hook", "grad_output", replaced, count)
        self._grad_outputs = spread
        if not self._has_input_node:
            for hook in self._hooks:
                replaced = hook(self._module, (None,) * self._inputs, spread)
                if replaced is not None and any(gradient is not None for gradient in _as_tuple(replaced)):
                    raise GraphError(
                        "Backward hook for Modules where no input requires gradient should always return None or None "
                        "for all gradients"
                    )
        return tuple([spread[place] for place in places])

    def _arrived(self, grads: Gradients, places: list[int], metas: Sequence[OutputMeta]) -> Gradients | None:
        if self._grad_outputs is None:  # a gradient that did not come through the module's results
            return None
        grads = tuple([_zeros(meta) if grad is None else grad for grad, meta in zip(grads, metas, strict=True)])
        spread = _spread(grads, places, self._inputs)
        for hook in self._hooks:
            replaced = hook(self._module, spread, self._grad_outputs)
            if replaced is not None:
                spread = _as_gradients("hook", "grad_input", replaced, self._inputs)
        self._grad_outputs = None
        return tuple([spread[place] for place in places])


def _passed(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any, list[int]]:
    """Pass the tensors among `values` through a node; return the new values, the node, and the tensors' indices.

    If no tensor requires a gradient, the values are unchanged, the node is None, and there are no indices.
    """
    places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
    if not is_recording() or not any(values[place].requires_grad for place in places):
        return values, None, []
    passed = list(values)
    node = None
    for place, tensor in zip(places, BackwardHookFunction.apply(*(values[p] for p in places)), strict=True):
        passed[place] = tensor
        node = tensor.grad_fn if node is None else node
    return tuple(passed), node, places


def _zeros(like: OutputMeta) -> Tensor:
    return Tensor.wrap(filled(like.device, like.shape, like.dtype, 0))


def _spread(grads: Gradients, places: list[int], count: int) -> Gradients:
    """Return a tuple of `count` entries: the gradients at the indices `places`, None at all others."""
    spread: list[Tensor | None] = [None] * count
    for place, grad in zip(places, grads, strict=True):
        spread[place] = grad
    return tuple(spread)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _as_gradients(hook: str, what: str, replaced: Any, count: int) -> Gradients:
    gradients = _as_tuple(replaced)
    if len(gradients) != count:
        raise GraphError(
            f"Backward {hook} returned an invalid number of {what}, got {len(gradients)}, but expected {count}"
        )
    return gradients
