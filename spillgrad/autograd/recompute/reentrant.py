"""The reentrant form of recomputation: backward calls the function again, recorded, and runs backward through it.

The forward pass records nothing inside of the function, so that only tensors among the arguments get gradients through
it, and parameters that the function uses.
Source: torch.utils.checkpoint (use_reentrant=True).
"""

import contextlib
from collections.abc import Callable
from typing import Any

from spillgrad import user_line
from spillgrad.autograd.core.engine import reaches_every_leaf
from spillgrad.autograd.core.grad_mode import enable_grad, is_recording
from spillgrad.autograd.core.node import Edge
from spillgrad.autograd.differentiate import backward
from spillgrad.autograd.function import Function, OnceOnly
from spillgrad.autograd.recompute.state import recomputing
from spillgrad.errors import GraphError
from spillgrad.generator import GeneratorState, default_generator
from spillgrad.ops import autocast
from spillgrad.tensor import Tensor


class CheckpointFunction(Function):
    """One call of a recomputed function: a node that saves the tensors among the arguments."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], preserve_rng_state: bool, *arguments: Any) -> Any:
        """Run the function without recording it, and save the arguments.

        Parameters
        ----------
        ctx : FunctionCtx
            Context of this call.
        function : callable
            Function to recompute in backward.
        preserve_rng_state : bool
            Whether the recomputation draws the same random numbers.
        *arguments : object
            Arguments of the function.

        Returns
        -------
        object
            What the function returns.
        """
        ctx.function = function
        ctx.state = default_generator.get_state() if preserve_rng_state else None
        ctx.autocast = autocast.present()
        ctx.arguments = [None if isinstance(argument, Tensor) else argument for argument in arguments]
        ctx.places = [place for place, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        ctx.save_for_backward(*[arguments[place] for place in ctx.places])
        return function(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Run the function again, recorded, and go backward through it.

        Parameters
        ----------
        ctx : FunctionCtx
            Context of this call.
        *grads : Tensor
            Gradients of the outputs.

        Returns
        -------
        tuple
            Gradients of the arguments, after two None.

        Raises
        ------
        GraphError
            Within `grad` or a backward with `inputs`, or if no output requires a gradient.
        """
        if not reaches_every_leaf():
            raise GraphError(
                "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` "
                "parameter to .backward(). To resolve this error, you can either set use_reentrant=False, or call "
                ".backward() without passing the `inputs` argument."
            )
        arguments = list(ctx.arguments)
        for place, saved in zip(ctx.places, ctx.saved_tensors, strict=True):
            arguments[place] = saved.detach().requires_grad_(saved.requires_grad)
        with enable_grad(), _replayed(ctx.state), recomputing(), ctx.autocast:
            outputs = ctx.function(*arguments)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        recorded = [
            (output, grad)
            for output, grad in zip(outputs, grads, strict=True)
            if isinstance(output, Tensor) and output.requires_grad
        ]
        if not recorded:
            raise GraphError(
                "checkpoint: none of output has requires_grad=True, this checkpoint() is not necessary; leave it out"
            )
        backward([output for output, _ in recorded], [grad.detach() for _, grad in recorded])
        found = [arg.grad if isinstance(arg, Tensor) and arg.requires_grad else None for arg in arguments]
        if is_recording():  # the gradients depend on the arguments, too, by a graph that is gone
            edges = [edge for value in (*grads, ctx) for edge in _edges_of(value)]
            found = [None if x is None else x.alias((OnceOnly("checkpoint", edges, x), 0)) for x in found]
        return None, None, *found


def _edges_of(value: Any) -> list[Edge]:
    """Return the edge of a gradient that requires one itself, or those of the node of a context."""
    if isinstance(value, Tensor):
        return [value.gradient_edge()] if value.requires_grad else []
    return [] if value is None else list(value._node().edges)


def _replayed(state: GeneratorState | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if state is None else default_generator.replay(state)


def checkpoint_reentrant(function: Callable[..., Any], preserve_rng_state: bool, arguments: tuple[Any, ...]) -> Any:
    """Call the function and keep only its arguments for backward. Warns if no argument requires a gradient."""
    if not any(argument.requires_grad for argument in arguments if isinstance(argument, Tensor)):
        user_line.warn("None of the inputs have requires_grad=True. Gradients will be None")
    return CheckpointFunction.apply(function, preserve_rng_state, *arguments)
