"""Custom differentiable functions in PyTorch's dialect.

`Function.backward` returns one gradient per argument, and its errors are RuntimeErrors. An input that forward returns
is a new tensor, unless forward marked it as dirty.

Source: torch.autograd.Function.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from spillgrad.autograd.core.grad_mode import is_recording, no_grad
from spillgrad.autograd.core.node import Edge, Node, OutputMeta
from spillgrad.autograd.custom_function import OF_THE_NODE, Context, CustomFunction, is_among, require_tensors
from spillgrad.errors import GraphError, SavedTensorError
from spillgrad.tensor import Tensor

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


class FunctionCtx(Context):
    """The context of a `Function`."""

    # Set from the attribute of the `Function`.
    _clear_on_access = False
    _cleared = False

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to `save_for_backward`, unpacked.

        Raises SavedTensorError if the tensors have been freed: by backward, or by an earlier access in backward if the
        function sets `clear_saved_tensors_on_access`.
        """
        if not self._clear_on_access or self._saved is None:
            return self._unpacked()
        if self._cleared:
            raise SavedTensorError(
                "saved_tensors can only be accessed once when clear_saved_tensors_on_access=True is set on the "
                "autograd.Function; keep what the first look returned, or leave that attribute out"
            )
        tensors = self._unpacked()
        self._cleared = True
        for saved in self._saved:
            if saved is not None:
                saved.release()
        return tensors

    def __getattr__(self, name: str) -> Any:
        # In PyTorch the context is the node.
        node = self.__dict__.get("_node", lambda: None)()
        if node is not None and name in OF_THE_NODE:
            return getattr(node, name)
        raise AttributeError(f"ctx has no attribute {name!r}; set it in forward")

    def save_for_forward(self, *tensors: Tensor) -> None:
        """Do nothing: only forward-mode differentiation, which spillgrad does not have, would use these tensors.

        Parameters
        ----------
        *tensors : Tensor
            Ignored.
        """

    def mark_dirty(self, *inputs: Tensor) -> None:
        """Mark inputs that forward changed in place and must return.

        Parameters
        ----------
        *inputs : Tensor
            Arguments of forward.

        Raises
        ------
        OperandError
            For anything but tensors.
        """
        require_tensors("mark_dirty can only accept variables", inputs, "name inputs of forward")
        self._dirty = inputs


class Function(CustomFunction):
    """A custom function in PyTorch's dialect, called by ``apply``.

    Subclasses define static methods ``forward(ctx, ...)`` and ``backward(ctx, *grad_outputs)``. If they also define a
    static ``setup_context(ctx, inputs, output)``, forward takes no ctx, and `inputs` holds all arguments of forward,
    with defaults filled in. ``vjp`` is another name for backward; ``jvp`` and ``vmap`` are never called.

    Attributes
    ----------
    clear_saved_tensors_on_access : bool, default False
        Whether saved tensors are freed when backward first reads them.
    boxed_grads_call : bool, default False
        Whether backward gets its gradients as one list, and can free them one by one.

    Raises
    ------
    RuntimeError
        If backward returns wrong gradients.

    Examples
    --------
    >>> import spillgrad as sg
    >>> class Cube(sg.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return grad * 3 * x**2
    >>> x = sg.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    clear_saved_tensors_on_access = False
    generate_vmap_rule = False

    _context = FunctionCtx
    _in_place_hint = "forward marks an input as dirty"
    _error = _forward_error = GraphError
    _into_lists = False
    _returns_a_tensor = False
    _none_for_non_tensors = True
    _several = tuple
    _repeats_are_one = True

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Raise GraphError: a function is called by `apply`."""
        name = type(self).__name__
        raise GraphError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd "
            f"function with static forward method: make {name}'s methods static and call {name}.apply(...)"
        )

    @classmethod
    def _bound(cls, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not hasattr(cls, "setup_context"):
            return arguments, keywords
        bound = inspect.signature(cls.forward).bind(*arguments, **keywords)  # type: ignore[attr-defined]
        bound.apply_defaults()
        return bound.args, bound.kwargs

    @classmethod
    def _run_forward(cls, ctx: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        ctx._clear_on_access = cls.clear_saved_tensors_on_access
        if hasattr(cls, "setup_context"):
            output = cls.forward(*arguments, **keywords)  # type: ignore[attr-defined]
            cls.setup_context(ctx, (*arguments, *keywords.values()), output)
            return output
        return super()._run_forward(ctx, arguments, keywords)

    @classmethod
    def _run_backward(cls, ctx: Any, grads: list[Any]) -> Any:
        vjp = getattr(cls, "vjp", None)
        if vjp is not None and hasattr(cls, "backward"):
            raise GraphError(
                f"{cls.__name__}: Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You "
                "should only implement one of them."
            )
        if vjp is None and not hasattr(cls, "backward"):
            raise NotImplementedError(
                "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
                f"backward mode AD. {cls.__name__}: define a static method backward(ctx, ...)"
            )
        function = cls.backward if vjp is None else vjp  # type: ignore[attr-defined]
        if not cls.boxed_grads_call:
            return function(ctx, *grads)
        boxed, grads[:] = list(grads), []
        return function(ctx, boxed)

    @staticmethod
    def _gradients_per_tensor(name: str, values: list[Any], layout: list[Any], count: int) -> list[Any]:
        while len(values) > len(layout) and values[-1] is None:
            values = values[:-1]
        if len(values) != len(layout):
            raise GraphError(
                f"function {name} returned an incorrect number of gradients (expected {len(layout)}, got {len(values)})"
            )
        for i, (entry, value) in enumerate(zip(layout, values, strict=True)):
            if entry == 0 and value is not None:
                raise GraphError(
                    f"function {name} returned a gradient different from None at position {i + 1}, but the "
                    f"corresponding forward "
                    "input was not a Variable"
                )
        return [value for entry, value in zip(layout, values, strict=True) if entry]

    @staticmethod
    def _changes_in_place(ctx: Context, returned_input: Tensor) -> bool:
        return is_among(returned_input, ctx._dirty)


class OnceOnly(Node):
    """The node of a gradient that a once-differentiable backward returned: differentiating it raises GraphError."""

    def __init__(self, name: str, edges: Iterable[Edge], output: Tensor) -> None:
        super().__init__()
        self._name = name
        self.edges = tuple(edges)
        self.outputs = (OutputMeta(output.shape, output.numpy_dtype, output.device),)

    def apply(self, grads: list[Any]) -> list[Any]:
        if grads[0] is None:
            return [None] * len(self.edges)
        raise GraphError(
            f"{self._name}: trying to differentiate twice a function that was marked with @once_differentiable"
        )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a custom backward: run it without recording it. Differentiating its results raises GraphError.

    Parameters
    ----------
    backward : callable
        Static method ``backward(ctx, *grads)`` of a `Function`.

    Returns
    -------
    callable
        Function with the same arguments and results.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            returned = backward(ctx, *grads)
        edges = [g.gradient_edge() for g in grads if isinstance(g, Tensor) and g.requires_grad]
        if not is_recording() or not edges:
            return returned

        def guarded(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.alias((OnceOnly(backward.__qualname__, edges, value), 0))

        return tuple(map(guarded, returned)) if isinstance(returned, tuple | list) else guarded(returned)

    return wrapper
