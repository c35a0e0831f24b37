"""Recording and running custom differentiable functions: the part that `Function` and `PyLayer` share.

`Function` and `PyLayer` are subclasses of `CustomFunction`; class attributes and a few methods hold their differences.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from spillgrad.autograd.core import profiling
from spillgrad.autograd.core.grad_mode import is_recording, no_grad
from spillgrad.autograd.core.node import NO_EDGE, Node, OutputMeta
from spillgrad.autograd.core.saved import FREED, SavedNone, SavedTensor
from spillgrad.device.device import filled
from spillgrad.dtypes import is_complex, is_differentiable
from spillgrad.errors import GraphError, OperandError, SavedTensorError
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.inplace import record_change, refuse
from spillgrad.ops.operation import view_of
from spillgrad.tensor import Tensor

OF_THE_NODE = frozenset({"metadata", "name", "next_functions", "register_hook", "register_prehook"})


def require_tensors(says: str, values: Sequence[Any], remedy: str) -> None:
    """Raise OperandError, with `says` and `remedy` in the message, if a value is neither a tensor nor None."""
    for i, value in enumerate(values):
        if value is not None and not isinstance(value, Tensor):
            raise OperandError(f"{says}, but argument {i} is of type {type(value).__name__}; {remedy}")


class Context:
    """The state that a custom function keeps from forward to backward; users may add attributes of their own."""

    def __init__(self) -> None:
        self.needs_input_grad: tuple[bool, ...] = ()
        self._to_save: tuple[Any, ...] | None = None
        self._saved: list[Any] | None = None
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._not_inplace: tuple[Tensor, ...] = ()
        self._materialize = True
        self._forward_done = False
        self._freed = False
        self._node: Callable[[], CustomNode | None] = lambda: None  # a weak reference: the node holds the context

    def save_for_backward(self, *tensors: Any) -> None:
        """Save tensors (or None) for backward, once, in forward. Active hooks pack them after forward has returned.

        Parameters
        ----------
        *tensors : Tensor or None
            What backward needs; it reads them from ``ctx``.

        Raises
        ------
        GraphError
            On a second call or outside forward.
        OperandError
            For anything but tensors and None.
        """
        if self._forward_done:
            raise GraphError("save_for_backward: called outside forward; save what backward needs in forward")
        if self._to_save is not None:
            raise GraphError("save_for_backward: called a second time; pass all tensors in one call")
        says = "save_for_backward can only save variables"
        require_tensors(says, tensors, "keep other values as attributes of ctx")
        self._to_save = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Mark outputs of forward as needing no gradient; backward still gets a gradient of zeros for each.

        Parameters
        ----------
        *outputs : Tensor
            Results of forward.

        Raises
        ------
        OperandError
            For anything but tensors.
        """
        says = "mark_non_differentiable only accepts variable arguments"
        require_tensors(says, outputs, "name outputs of forward")
        self._non_differentiable = outputs

    def set_materialize_grads(self, value: bool) -> None:
        """Choose what backward gets for an output without a gradient.

        Parameters
        ----------
        value : bool
            True, at first, gives zeros; False gives None.
        """
        self._materialize = bool(value)

    def _forget_marks(self) -> None:
        # They are not needed after forward, and a marked input that became an output would keep its own node alive.
        self._non_differentiable = self._dirty = self._not_inplace = ()

    def _unpacked(self) -> tuple[Any, ...]:
        if self._saved is None:  # inside forward, or nothing recorded
            return self._to_save or ()
        if self._freed:
            raise SavedTensorError(FREED)
        return tuple(s.unpack() if isinstance(s, SavedTensor) else s for s in self._saved)


class CustomNode(Node):
    """The node of one call of a custom function; it also has the attributes of its context."""

    def __init__(self, kind: "type[CustomFunction]", ctx: Context, inputs: "Inputs") -> None:
        super().__init__()
        self._kind = kind
        self.starts_from_ones = kind._starts_from_ones
        self._ctx = ctx
        ctx._node = weakref.ref(self)
        self._inputs = inputs.layout
        self._metas: list[tuple[tuple[int, ...], Any]] = [(t.shape, t.numpy_dtype) for t in inputs.tensors]
        self.edges = tuple(t.gradient_edge() if t.requires_grad else NO_EDGE for t in inputs.tensors)
        self._slots: list[int | None] = []  # for each value that forward returned: its output number, or None

    def name(self) -> str:
        return f"{self._kind.__name__}Backward"

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to `save_for_backward`, unpacked."""
        return self._ctx._unpacked()

    @property
    def _raw_saved_tensors(self) -> tuple[Any, ...]:
        if self._ctx._freed:
            raise SavedTensorError(FREED)
        return tuple(SavedNone(self.name(), str(i)) if s is None else s for i, s in enumerate(self._ctx._saved or ()))

    def __getattr__(self, name: str) -> Any:
        ctx = self.__dict__.get("_ctx")
        if ctx is None or name.startswith("_") or name in OF_THE_NODE:
            raise AttributeError(f"{self._kind.__name__}Backward has no attribute {name!r}")
        return getattr(ctx, name)

    def apply(self, grads: list[Any]) -> list[Any]:
        arriving: list[Any] = []
        for slot in self._slots:
            if slot is None:
                if self._kind._none_for_non_tensors:
                    arriving.append(None)
                continue
            grad = grads[slot]
            if grad is None and self._ctx._materialize:
                meta = self.outputs[slot]
                grad = Tensor.wrap(filled(meta.device, meta.shape, meta.dtype, 0))
            arriving.append(None if grad is None else grad.mark_shared())
        if self._kind.boxed_grads_call and not self._posthooks:  # then only backward's own list refers to the gradients
            grads[:] = [None] * len(grads)
            grad = None
        returned = self._kind._run_backward(self._ctx, arriving)
        values = list(returned) if isinstance(returned, self._kind._several) else [returned]
        del arriving, returned
        gradients = self._kind._gradients_per_tensor(self.name(), values, self._inputs, len(self.edges))
        return [self._checked(i, g) for i, g in enumerate(gradients)]

    def _checked(self, i: int, gradient: Any) -> Any:
        if gradient is not None and not isinstance(gradient, Tensor):
            raise self._kind._error(
                f"{self.name()}: expected Variable or None (got {type(gradient).__name__}): backward returned "
                f"{type(gradient).__name__} as gradient {i}; wanted a Tensor or None"
            )
        if gradient is None or self.edges[i][0] is None:
            return None
        shape, dtype = self._metas[i]
        if gradient.shape != shape:
            try:
                expandable = np.broadcast_shapes(gradient.shape, shape) == gradient.shape
            except ValueError:
                expandable = False
            if not expandable:
                raise self._kind._error(
                    f"Function {self.name()} returned an invalid gradient at index {i}: got shape "
                    f"{gradient.shape}, wanted {shape}"
                )
            gradient = sum_to(gradient, shape)
        if gradient.numpy_dtype != dtype and gradient.is_complex() == is_complex(
            dtype
        ):  # the engine refuses other ones
            gradient = gradient.to(dtype)
        return gradient.mark_shared()

    def release(self) -> None:
        self._ctx._freed = True
        for saved in self._ctx._saved or ():
            if isinstance(saved, SavedTensor):
                saved.release()


class Inputs:
    """The tensors among a call's arguments.

    `layout` has an entry for each argument: 1 for a tensor, (count,) for a list of `count` tensors, else 0.
    """

    def __init__(self, arguments: Sequence[Any], into_lists: bool) -> None:
        self.tensors: list[Tensor] = []
        self.layout: list[int | tuple[int]] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                self.tensors.append(argument)
                self.layout.append(1)
            elif into_lists and isinstance(argument, list | tuple) and any(isinstance(a, Tensor) for a in argument):
                inner = [a for a in argument if isinstance(a, Tensor)]
                self.tensors.extend(inner)
                self.layout.append((len(inner),))
            else:
                self.layout.append(0)


def is_among(tensor: Any, others: Sequence[Any]) -> bool:
    """Return whether an object is one of others, by identity: tensors compare element by element."""
    return any(tensor is other for other in others)


class CustomFunction:
    """The base of `Function` and `PyLayer`: it runs and records a call."""

    boxed_grads_call: ClassVar[bool] = False

    _context: ClassVar[type[Context]]
    _in_place_hint: ClassVar[str]
    _error: ClassVar[type[Exception]]
    _forward_error: ClassVar[type[Exception]]  # for a leaf changed in place, or a forward that returns no tensor
    _into_lists: ClassVar[bool]
    _returns_a_tensor: ClassVar[bool]  # whether forward must return a tensor
    _none_for_non_tensors: ClassVar[bool]
    _starts_from_ones: ClassVar[bool] = False
    _several: ClassVar[Any]  # the types that hold more than one gradient
    _repeats_are_one: ClassVar[bool]  # whether a result that forward returns twice is one tensor, the last output

    @staticmethod
    def _gradients_per_tensor(name: str, values: list[Any], layout: list[Any], count: int) -> list[Any]:
        raise NotImplementedError

    @staticmethod
    def _changes_in_place(ctx: Context, returned_input: Tensor) -> bool:
        raise NotImplementedError

    @classmethod
    def _require(cls, method: str) -> None:
        if not hasattr(cls, method):
            raise NotImplementedError(
                f"You must implement the {method} method of a custom function: {cls.__name__}: define a static method "
                f"{method}(ctx, ...)"
            )

    @classmethod
    def _run_forward(cls, ctx: Context, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return cls.forward(ctx, *arguments, **keywords)  # type: ignore[attr-defined]

    @classmethod
    def _run_backward(cls, ctx: Any, grads: list[Any]) -> Any:
        cls._require("backward")
        return cls.backward(ctx, *grads)  # type: ignore[attr-defined]

    @classmethod
    def _bound(cls, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return arguments, keywords

    @classmethod
    def apply(cls, *arguments: Any, **keywords: Any) -> Any:
        """Run forward and record the call.

        Parameters
        ----------
        *arguments : object
            Arguments of forward, after ``ctx``.
        **keywords : object
            Keyword arguments of forward.

        Returns
        -------
        object
            What forward returned.
        """
        cls._require("forward")
        arguments, keywords = cls._bound(arguments, keywords)
        ctx = cls._context()
        inputs = Inputs((*arguments, *keywords.values()), cls._into_lists)
        needs = [t.requires_grad for t in inputs.tensors]
        ctx.needs_input_grad = cls._needs_per_argument(inputs, needs)
        node = CustomNode(cls, ctx, inputs) if is_recording() and any(needs) else None
        with no_grad():
            returned = cls._run_forward(ctx, arguments, keywords)
        ctx._forward_done = True
        is_sequence = isinstance(returned, tuple | list)
        values = list(returned) if is_sequence else [returned]
        if cls._returns_a_tensor and not any(isinstance(value, Tensor) for value in values):
            raise cls._forward_error(
                f"{cls.__name__}: At least one output of `PyLayer.forward` is a `Tensor`: got "
                f"{type(returned).__name__}; return a Tensor, or a tuple or list that holds one"
            )
        outputs = cls._outputs(ctx, node, values, inputs)
        if node is not None:
            cls._save(ctx, node, values, outputs, inputs)
        else:
            ctx._to_save = None
        ctx._forget_marks()
        return type(returned)(outputs) if is_sequence and type(returned) in (tuple, list) else (
            tuple(outputs) if is_sequence else outputs[0]
        )  # fmt: skip

    @classmethod
    def _needs_per_argument(cls, inputs: Inputs, needs: list[bool]) -> tuple[bool, ...]:
        flags, position = [], 0
        for entry in inputs.layout:
            count = entry[0] if isinstance(entry, tuple) else entry
            flags.append(any(needs[position : position + count]))
            position += count
        return tuple(flags)

    @classmethod
    def _outputs(cls, ctx: Context, node: CustomNode | None, values: list[Any], inputs: Inputs) -> list[Any]:
        if any(not is_among(dirty, values) for dirty in ctx._dirty):
            raise cls._error(
                f"{cls.__name__}: Some elements marked as dirty during the forward method were not returned as output; "
                "return every input that is changed in place"
            )
        tensors = [value for value in values if isinstance(value, Tensor)]
        if node is not None:
            node.outputs = tuple(OutputMeta(t.shape, t.numpy_dtype, t.device) for t in tensors)
            numbers = iter(range(len(tensors)))
            node._slots = [next(numbers) if isinstance(value, Tensor) else None for value in values]
        outputs: list[Tensor] = []
        for number, value in enumerate(tensors):
            before = next((k for k in range(number) if tensors[k] is value), None)
            is_own = not is_among(value, inputs.tensors) or is_among(value, outputs)
            if before is not None and is_own and cls._repeats_are_one:
                output = outputs[before]
                if output._grad_fn is node and node is not None:
                    output.attach(node, number)
                outputs.append(output)
            else:
                outputs.append(cls._output(ctx, node, number, value, tensors, inputs))
        connected = iter(outputs)
        return [next(connected) if isinstance(value, Tensor) else value for value in values]

    @classmethod
    def _output(
        cls, ctx: Context, node: CustomNode | None, number: int, value: Tensor, tensors: list[Tensor], inputs: Inputs
    ) -> Tensor:
        """Connect a tensor that forward returned to the node, and return the tensor that the caller gets."""
        returned_before = is_among(value, tensors[:number])
        is_input = is_among(value, inputs.tensors)
        in_place = is_input and not returned_before and cls._changes_in_place(ctx, value)
        differentiable = is_differentiable(value.dtype) and not is_among(value, ctx._non_differentiable)
        if in_place:
            if node is not None:
                refuse(value, f"{cls.__name__} ({cls._in_place_hint})", cls._forward_error)
            value.bump_version()
            if node is not None and differentiable:
                record_change(value, (node, number))
            elif node is not None:
                value.detach_()
            return value
        output = value.alias() if is_input or returned_before or value.requires_grad else value
        if node is not None and differentiable:
            source = next((t for t in inputs.tensors if t.storage is value.storage), None)
            if source is not None:
                output = view_of(source, value.array)
                node.custom_views |= {number}
            output.attach(node, number)
        return output

    @classmethod
    def _save(cls, ctx: Context, node: CustomNode, values: list[Any], outputs: list[Any], inputs: Inputs) -> None:
        saved: list[Any] = []
        ctx._saved = saved
        for i, tensor in enumerate(ctx._to_save or ()):
            if tensor is None:
                saved.append(None)
                continue
            place = next((k for k, value in enumerate(values) if value is tensor), None)
            if place is not None and outputs[place].grad_fn is node:
                output = outputs[place]
                # An input that is returned without having been changed in place is saved as an input.
                if output is tensor or not is_among(tensor, inputs.tensors):
                    saved.append(SavedTensor(output, node.name(), str(i), NO_EDGE, node, node._slots[place]))
                    continue
            saved.append(SavedTensor(tensor, node.name(), str(i), tensor.gradient_edge()))
        ctx._to_save = None if ctx._to_save is None else ()
        for value in saved:
            if value is not None:
                value.pack()
        profiling.note(node)
