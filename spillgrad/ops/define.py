"""How an operation is defined: a forward function over arrays and one derivative per differentiable input.

    softmax = operation("softmax", kernels.softmax, self=lambda g, result, axis: softmax_backward(g, result, axis))

What a derivative's parameters name is what is saved for backward:

* `g`, the gradient of the (first) output, or `grads`, those of all outputs;
* an input or attribute of the forward function, by its name;
* an output, by the names in `outputs`; a further result that only backward needs, by the names in `aux`;
* `<input>_shape`, `<input>_dtype`: metadata, never saved arrays;
* `needs`, in a joint derivative: which of its inputs want a gradient.

Derivatives take and return tensors and are themselves differentiable: with `create_graph` they run recorded.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spillgrad.autograd.grad_mode import is_grad_enabled
from spillgrad.autograd.node import NO_EDGE, Edge, Node, new_output, next_sequence
from spillgrad.autograd.saved import SavedTensor
from spillgrad.device import CPU
from spillgrad.dtypes import is_floating_point
from spillgrad.ops.symbol import Unrecorded, record
from spillgrad.tensor import Tensor


@dataclass(frozen=True)
class Derivative:
    """The gradient of one input, or of several at once, as a function whose parameters name what it needs."""

    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    function: Callable[..., Any]

    @classmethod
    def of(cls, inputs: tuple[str, ...], function: Callable[..., Any]) -> "Derivative":
        return cls(inputs, tuple(inspect.signature(function).parameters), function)


@dataclass(frozen=True)
class Composed:
    """A derivative with two forms: `fused` kernels, and `composed` of differentiable operations for `create_graph`."""

    fused: Callable[..., Any]
    composed: Callable[..., Any]


def _both(pair: Composed) -> tuple[tuple[str, ...], Callable[..., Any]]:
    fused = tuple(inspect.signature(pair.fused).parameters)
    composed = tuple(inspect.signature(pair.composed).parameters)
    names = (*fused, *(name for name in composed if name not in fused))

    def choose(*values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        function, wanted = (pair.composed, composed) if is_grad_enabled() else (pair.fused, fused)
        return function(*(given[name] for name in wanted))

    return names, choose


def _share_memory(result: np.ndarray, array: np.ndarray) -> bool:
    """Return whether an operation's result looks at its operand's memory."""
    base = result.base
    if base is not None and (base is array or base is array.base) and result.size:
        return True
    return np.may_share_memory(result, array)


def view_of(source: Tensor, array: np.ndarray) -> Tensor:
    """Return a tensor over `array`, part of the source's memory, that follows in-place changes of the source."""
    view = Tensor.wrap(array, source._storage)
    base = source if source._base is None else source._base
    view._base = base
    view._base_fn = base._grad_fn
    return view


@dataclass
class Operation:
    """A differentiable operation; calling it computes, and records where gradients are wanted.

    `view` says that the output may share the first input's memory; it then shares its storage and version.
    """

    name: str
    forward: Callable[..., Any]
    derivatives: tuple[Derivative, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...] = ("result",)
    aux: tuple[str, ...] = ()
    view: bool = False
    # Per derivative: the values it needs.
    saves: tuple[frozenset[str], ...] = field(init=False)

    def __post_init__(self) -> None:
        order = (*self.parameters, *self.outputs, *self.aux)
        known = {
            *order,
            "g",
            "grads",
            "needs",
            *(f"{name}_{what}" for name in self.parameters for what in ("shape", "dtype")),
        }
        for derivative in self.derivatives:
            unknown = [name for name in (*derivative.inputs, *derivative.parameters) if name not in known]
            if unknown:
                raise TypeError(
                    f"{self.name}: a derivative names {', '.join(unknown)}; it can name {', '.join(sorted(known))}"
                )
        self.saves = tuple(frozenset(order).intersection(d.parameters) for d in self.derivatives)
        self._wanted: dict[tuple[int, ...], tuple[tuple[int, str], ...]] = {}
        self.positions = {name: i for i, name in enumerate(self.parameters)}
        self.differentiable = tuple(self.positions[name] for d in self.derivatives for name in d.inputs)
        self.metadata = tuple(
            position
            for name, position in self.positions.items()
            if any(f"{name}_{what}" in d.parameters for d in self.derivatives for what in ("shape", "dtype"))
        )
        self._results = len(self.outputs) + len(self.aux)
        self.node_name = "".join(part.capitalize() for part in self.name.split("_")) + "Backward0"
        self.__doc__ = inspect.getdoc(self.forward)

    def __call__(self, *arguments: Any) -> Any:
        """Return the output tensor, or a tuple of them; `arguments` follow the forward function's parameters."""
        try:
            arrays = [a._array if isinstance(a, Tensor) else a for a in arguments]
        except Unrecorded:  # a symbol has no array
            return record(self.name, arguments)
        results = self.forward(*arrays)
        if self._results == 1:
            results = (results,)
        shown = results[: len(self.outputs)] if self.aux else results
        if self.view and _share_memory(results[0], arrays[0]):
            outputs = [view_of(arguments[0], array) for array in shown]
        else:
            outputs = [Tensor.wrap(array) for array in shown]
        self._record_if_wanted(arguments, arrays, outputs, results[len(self.outputs) :])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def computed(self, arguments: Sequence[Any], result: np.ndarray) -> Tensor:
        """Return the output tensor, recorded, of a call whose result a kernel of several operations already made.

        Where no derivative names the output, its dtype and shape are all that count.
        """
        output = Tensor.wrap(result)
        arrays = [a._array if isinstance(a, Tensor) else a for a in arguments]
        self._record_if_wanted(arguments, arrays, [output], ())
        return output

    def _record_if_wanted(
        self, arguments: Sequence[Any], arrays: Sequence[Any], outputs: list[Tensor], aux: Sequence[Any]
    ) -> None:
        if is_grad_enabled():
            needs = []
            for i in self.differentiable:
                a = arguments[i]
                if isinstance(a, Tensor) and (a._requires_grad if a._base is None else a.requires_grad):
                    needs.append(i)
            if needs:
                self._record(arguments, arrays, outputs, aux, tuple(needs))

    def wanted(self, needs: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
        """Return what is saved when the inputs at positions `needs` want a gradient.

        Position and name among inputs, outputs and auxiliaries, in that order.
        """
        found = self._wanted.get(needs)
        if found is None:
            names: set[str] = set()
            for derivative, saved in zip(self.derivatives, self.saves, strict=True):
                if any(self.positions[name] in needs for name in derivative.inputs):
                    names |= saved
            order = (*self.parameters, *self.outputs, *self.aux)
            found = self._wanted[needs] = tuple((i, name) for i, name in enumerate(order) if name in names)
        return found

    def _record(
        self,
        arguments: Sequence[Any],
        arrays: Sequence[Any],
        outputs: list[Tensor],
        aux: Sequence[Any],
        needs: tuple[int, ...],
    ) -> None:
        node = OperationNode(self, arguments, arrays, outputs, needs)
        for output_nr, meta in enumerate(node.outputs):
            if is_floating_point(meta.dtype):
                outputs[output_nr].attach(node, output_nr)
        inputs = len(arguments)
        for position, name in self.wanted(needs):
            output_nr = position - inputs
            if output_nr < 0:
                edge = node.edges[position]
                node.save(name, arguments[position], None, None if edge is NO_EDGE else edge)
            elif output_nr < len(outputs):
                node.save(name, outputs[output_nr], output_nr)
            else:
                node.save(name, Tensor.wrap(aux[output_nr - len(outputs)]))


class OperationNode(Node):
    """A recorded call of an operation; `_saved_<name>` and `_raw_saved_<name>` show what it saved."""

    def __init__(
        self,
        operation: Operation,
        arguments: Sequence[Any],
        arrays: Sequence[Any],
        outputs: Sequence[Tensor],
        needs: tuple[int, ...],
    ) -> None:
        self.sequence = next_sequence()
        self.operation = operation
        edges = [NO_EDGE] * len(arguments)
        for i in needs:
            edges[i] = arguments[i].gradient_edge()
        self.edges = tuple(edges)
        self.outputs = tuple([new_output((o._array.shape, o._array.dtype, CPU)) for o in outputs])
        inputs: list[Any] = [None] * len(arguments)
        for position in operation.metadata:
            array = arrays[position]
            inputs[position] = (array.shape, array.dtype) if isinstance(array, np.ndarray) else ((), None)
        self._inputs = inputs
        self._saved: dict[str, Any] = {}

    def name(self) -> str:
        return self.operation.node_name

    def save(self, name: str, value: Any, output_nr: int | None = None, edge: Edge | None = None) -> None:
        """Keep a tensor (packed by the active hooks) or an attribute under a slot's name."""
        if isinstance(value, Tensor):
            self._saved[name] = None  # the slot exists while its pack hook runs
            self._saved[name] = SavedTensor(value, self, self.operation.name, name, output_nr, edge)
        else:
            self._saved[name] = value

    def apply(self, grads: list[Any]) -> list[Any]:
        results: list[Any] = [None] * len(self.edges)
        if all(grad is None for grad in grads):
            return results
        # In the order they were packed, whatever the order in which derivatives name them.
        values = {
            name: value.unpack() if isinstance(value, SavedTensor) else value for name, value in self._saved.items()
        }
        positions = self.operation.positions
        held = [*grads, *values.values()]  # what somebody else may hold, so that a leaf must copy it
        for derivative in self.operation.derivatives:
            needs = tuple(self.edges[positions[name]].node is not None for name in derivative.inputs)
            if not any(needs):
                continue
            gradient = derivative.function(*(self._value(name, grads, needs, values) for name in derivative.parameters))
            parts = (gradient,) if gradient is None or isinstance(gradient, Tensor) else gradient
            for name, part in zip(derivative.inputs, parts, strict=True):
                if part is not None and any(part is other for other in held):
                    part.mark_shared()
                held.append(part)
                results[positions[name]] = part
        return results

    def _value(self, name: str, grads: list[Any], needs: tuple[bool, ...], values: dict[str, Any]) -> Any:
        if name in values:
            return values[name]
        if name == "g":
            return self._zeros(0) if grads[0] is None else grads[0]
        if name == "grads":
            return tuple(self._zeros(i) if grad is None else grad for i, grad in enumerate(grads))
        if name == "needs":
            return needs
        source, _, what = name.rpartition("_")
        return self._inputs[self.operation.positions[source]][0 if what == "shape" else 1]

    def _zeros(self, output_nr: int) -> Tensor:
        meta = self.outputs[output_nr]
        return Tensor.wrap(np.zeros(meta.shape, meta.dtype))

    def release(self) -> None:
        for saved in self._saved.values():
            if isinstance(saved, SavedTensor):
                saved.release()

    def __getattr__(self, name: str) -> Any:
        saved = self.__dict__.get("_saved", {})
        if name.startswith("_raw_saved_") and isinstance(saved.get(name[11:]), SavedTensor):
            return saved[name[11:]]
        if name.startswith("_saved_") and name[7:] in saved:
            value = saved[name[7:]]
            return value.unpack() if isinstance(value, SavedTensor) else value
        raise AttributeError(f"{self.name()} has no attribute {name!r}; it saved {', '.join(saved) or 'nothing'}")


def operation(
    name: str,
    forward: Callable[..., Any],
    /,
    *,
    outputs: tuple[str, ...] = ("result",),
    aux: tuple[str, ...] = (),
    view: bool = False,
    joint: tuple[tuple[str, ...], Callable[..., Any] | Composed] | None = None,
    **derivatives: Callable[..., Any] | Composed,
) -> Operation:
    """Define an operation; keyword arguments name inputs of `forward` and give their derivatives.

    `forward` takes arrays in place of tensors and returns the outputs, then the auxiliaries. `joint` gives one
    derivative for several inputs, returning a gradient (or None) for each.
    """
    rows = [((key,), function) for key, function in derivatives.items()] + ([joint] if joint else [])
    parsed = []
    for inputs, function in rows:
        if isinstance(function, Composed):
            names, choose = _both(function)
            parsed.append(Derivative(inputs, names, choose))
        else:
            parsed.append(Derivative.of(inputs, function))
    parameters = tuple(inspect.signature(forward).parameters)
    return Operation(name, forward, tuple(parsed), parameters, outputs, aux, view)
