"""Define an operation: a forward function of arrays, and a derivative for each differentiable input.

    softmax = operation("softmax", kernels.softmax, self=lambda g, result, axis: softmax_backward(g, result, axis))

The values that a derivative's parameters name are saved for backward:

* `g`, the gradient of the (first) output, or `grads`, those of all outputs;
* an input or attribute of the forward function, by its name;
* an output, by the names in `outputs`; a further result that only backward needs, by the names in `aux`;
* `<input>_shape`, `<input>_dtype`: metadata, never saved arrays;
* `needs`, in a joint derivative: which of its inputs want a gradient.

Derivatives take and return tensors and are themselves differentiable: `create_graph` records their operations.
"""

import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spillgrad.autograd.core import anomaly_mode, grad_mode, hooks, profiling
from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.autograd.core.node import NO_EDGE, Node, accumulate_gradients, new_output, next_sequence
from spillgrad.autograd.core.saved import SavedNone, SavedTensor
from spillgrad.device.device import device_of, filled
from spillgrad.dtypes import is_differentiable
from spillgrad.fork_safe_lock import lazy_property
from spillgrad.ops import operation_source
from spillgrad.ops.call_plan import Planned
from spillgrad.ops.fuse_symbols import Unrecorded, record
from spillgrad.ops.placement import compute_on_host, refuse_view, require_one_device
from spillgrad.ops.saved_names import KNOWN
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.device_array import ARRAYS, DeviceArray, NotOnDevice, is_on_device


@dataclass(frozen=True)
class Derivative:
    """A function that returns the gradient of one input or of several; its parameters name the values it needs."""

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

    in_composed = [names.index(name) for name in composed]

    def choose(*values: Any) -> Any:
        if is_recording():
            return pair.composed(*[values[i] for i in in_composed])
        return pair.fused(*values[: len(fused)])

    return names, choose


def _share_memory(result: np.ndarray, array: np.ndarray) -> bool:
    """Return whether the result of an operation may be a view of the memory of its operand `array`."""
    base = result.base
    if base is not None and (base is array or base is array.base) and result.size:
        return True
    return np.may_share_memory(result, array)


def view_of(source: Tensor, array: np.ndarray) -> Tensor:
    """Return a view of `source` over `array`, a part of the memory of `source`; a change of either changes both."""
    view = Tensor.wrap(array, source._storage)
    base = source if source._base is None else source._base
    view._base = base
    view._base_fn = base._grad_fn
    return view


# All live operations; some are made for a number of operands, and freed when they are not used.
all_operations: "weakref.WeakSet[Operation]" = weakref.WeakSet()


@dataclass(eq=False)
class Operation:
    """A differentiable operation. A call computes the outputs, and records them if an input needs a gradient.

    `view` says that an output may share the memory of the first input; such an output also shares storage and version.
    """

    name: str
    forward: Callable[..., Any] | Planned
    derivatives: tuple[Derivative, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...] = ("result",)
    aux: tuple[str, ...] = ()
    view: bool = False
    # For a view of a part: returns that part of another array of the input's shape. It takes the array, the gradient of
    # the output, and the saved values by name.
    part_of: Callable[..., Any] | None = None
    # For each derivative, the names of the values that are saved for it.
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
        all_operations.add(self)
        self.node_name = self.name.title().replace("_", "") + "Backward0"  # as PyTorch: Log1PBackward0
        self.__doc__ = None if isinstance(self.forward, Planned) else inspect.getdoc(self.forward)

    def __call__(self, *arguments: Any) -> Any:
        """Return the output tensor, or a tuple of outputs; `arguments` are those of the forward function, in order."""
        return self.run(*arguments)

    @lazy_property
    def run(self) -> Callable[..., Any]:
        """The function that `__call__` runs; to call it directly saves a call. Its code is generated on first use."""
        return self._generated(operation_source.call_source(self.structure, made=False))

    @lazy_property
    def _run_made(self) -> Callable[..., Any]:
        return self._generated(operation_source.call_source(self.structure, made=True))

    def computed(self, arguments: Sequence[Any], result: np.ndarray) -> Tensor:
        """Record a call whose result a kernel of several operations has already computed; return the output.

        If no derivative names the output, only the shape and dtype of `result` matter.
        """
        return self._run_made(result, *arguments)  # type: ignore[no-any-return]

    def promoted(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments with tensors converted to the dtype that the forward function computes in."""
        return self.forward.promoted(*arguments) if isinstance(self.forward, Planned) else tuple(arguments)

    def results(self, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], Sequence[np.ndarray]]:
        """Return the promoted arguments, and all results of the forward function, those in `aux` included."""
        arguments = self.promoted(arguments)
        if isinstance(self.forward, Planned):
            return arguments, [self._result(arguments)]
        found = self.forward(*[a._array if isinstance(a, Tensor) else a for a in arguments])
        return arguments, found if isinstance(found, tuple | list) else [found]

    def again(self, arguments: Sequence[Any], results: Sequence[np.ndarray]) -> Any:
        """Record a call whose arguments are promoted and whose results are known; return the output."""
        return self._run_made(*(results if self.structure.single else [results]), *arguments)

    @lazy_property
    def structure(self) -> operation_source.Structure:
        """The properties that the operation's generated code depends on."""
        positions = {name: i for i, name in enumerate(self.parameters)}
        named = {name for derivative in self.derivatives for name in derivative.parameters}
        planned = isinstance(self.forward, Planned)  # a plan has the metadata of every input
        derivatives = [(tuple([positions[name] for name in d.inputs]), d.parameters) for d in self.derivatives]
        asked = [i for name, i in positions.items() if planned or {f"{name}_shape", f"{name}_dtype"} & named]
        return operation_source.Structure(
            self.parameters, self.outputs, self.aux, tuple(derivatives), tuple(asked), self.view, planned
        )  # fmt: skip

    @lazy_property
    def differentiable(self) -> tuple[int, ...]:
        """The positions of the inputs that have a derivative."""
        having = {name for derivative in self.derivatives for name in derivative.inputs}
        return tuple([position for position, name in enumerate(self.parameters) if name in having])

    def _generated(self, source: str) -> Callable[..., Any]:
        return operation_source.function(source, self.name, {**_NAMES, **self._own_names})

    @lazy_property
    def _own_names(self) -> dict[str, Any]:
        """The names in the generated code of the call that differ between operations: {name: object}."""
        own: dict[str, Any] = {"name": self.name, "symbolic": self._symbolic, "anew": self._anew}
        own["forward"] = self.forward.compute if isinstance(self.forward, Planned) else self.forward
        if self.derivatives:
            members = {"operation": self, "apply": self._apply()}
            own["NodeType"] = type(self.node_name, (OperationNode if self.part_of is None else PartNode,), members)
        return own

    def _apply(self) -> Callable[..., list[Any]]:
        functions = {f"derivative{number}": derivative.function for number, derivative in enumerate(self.derivatives)}
        return operation_source.function(
            operation_source.apply_source(self.structure), "apply", {**_NAMES, **functions}
        )

    def _symbolic(self, *arguments: Any) -> Any:
        return record(self.name, self.promoted(arguments))

    def _anew(self, *arguments: Any) -> Tensor:
        """Compute a call that has no plan yet: promote the operands, and make a plan for the next call."""
        assert isinstance(self.forward, Planned)
        arguments = self.forward.promoted(*arguments)
        return self.computed(arguments, self._result(arguments))

    def _result(self, arguments: Sequence[Any]) -> Any:
        """Return the result of the planned forward function for promoted arguments."""
        assert isinstance(self.forward, Planned)
        arrays = [a._array if isinstance(a, Tensor) else a for a in arguments]
        if any([is_on_device(array) for array in arrays]):
            require_one_device(self.name, arguments)
        try:
            return self.forward.result(*arrays)
        except NotOnDevice:
            return compute_on_host(self.name, self.forward.result, *arrays)


class OperationNode(Node):
    """A recorded call of an operation; `_saved_<name>` and `_raw_saved_<name>` show its saved values.

    Each operation has its own subclass, whose `apply` is generated for it. The operation's call sets the attributes.
    """

    operation: Operation
    _saved: dict[str, Any]  # in the order of packing
    _inputs: tuple[tuple[tuple[int, ...], Any], ...]  # shapes and dtypes of inputs whose metadata a derivative names

    def name(self) -> str:
        return self.operation.node_name

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """(node, output number) for each input that has a derivative; (None, 0) if no gradient flows to the input."""
        return tuple([self.edges[position] for position in self.operation.differentiable])

    def recorded(self) -> None:
        """Let anomaly detection and a profile note the operation, and let hooks pack the saved tensors."""
        anomaly_mode.note(self)
        profiling.note(self)
        for saved in self._saved.values():
            if isinstance(saved, SavedTensor):
                saved.pack()

    def zeros(self, output_nr: int) -> Tensor:
        """Return zeros, the gradient of an output that nothing used."""
        meta = self.outputs[output_nr]
        return Tensor.wrap(filled(meta.device, meta.shape, meta.dtype, 0))

    def release(self) -> None:
        for saved in self._saved.values():
            if isinstance(saved, SavedTensor):
                saved.release()

    def value(self, slot: str) -> Any:
        """Return a saved value, unpacked."""
        value = self._saved[slot]
        return value.unpack() if isinstance(value, SavedTensor) else value

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input whose shape a derivative names."""
        structure = self.operation.structure
        return self._inputs[structure.metadata.index(structure.parameters.index(name))][0]

    def __getattr__(self, name: str) -> Any:
        saved = self.__dict__.get("_saved", {})
        prefix, _, asked = name.rpartition("saved_")
        shown = KNOWN.get(self.operation.name, {}).get(asked, asked)
        slot = shown if isinstance(shown, str) else asked
        if prefix == "_" and not isinstance(shown, str):
            return shown(self)
        if prefix == "_" and slot in saved:
            return self.value(slot)
        if prefix == "_raw_" and slot in saved:
            value = saved[slot]
            if value is None:
                return SavedNone(self.operation.name, slot)
            if isinstance(value, SavedTensor):
                return value
        raise AttributeError(f"{self.name()} has no attribute {name!r}; it saved {', '.join(saved) or 'nothing'}")

    def __dir__(self) -> list[str]:
        known = KNOWN.get(self.operation.name, {})
        slots = {name: name for name in self._saved if name not in (*known, *known.values())}
        slots |= {name: shown for name, shown in known.items() if isinstance(shown, str) and shown in self._saved}
        worked_out = [name for name, shown in known.items() if not isinstance(shown, str)]
        raw = [name for name, slot in slots.items() if isinstance(self._saved[slot], SavedTensor)]
        shown_names = [f"_saved_{name}" for name in (*slots, *worked_out)]
        return [*super().__dir__(), *shown_names, *(f"_raw_saved_{name}" for name in raw)]


class PartNode(OperationNode):
    """A recorded view of a part of a tensor."""

    def add_part(self, grad: Tensor, total: Tensor) -> None:
        """Add the gradient of the view to the same part of a gradient of the whole tensor, in place."""
        assert self.operation.part_of is not None
        part = self.operation.part_of(total._array, grad._array, **self._saved)
        accumulate_gradients(Tensor.wrap(part), grad)


def _hold(gradient: Any, held: set[int]) -> Any:
    """Return the gradient of an input. If its id is in `held`, mark the gradient as shared: a leaf then stores a copy.

    `held` contains the ids of tensors that other code may use, too. The id of the gradient is added to `held`.
    """
    if gradient is None:
        return None
    if not isinstance(gradient, Tensor):
        (gradient,) = gradient
    if id(gradient) in held:
        gradient.mark_shared()
    held.add(id(gradient))
    return gradient


def _hold_all(gradients: Any, held: set[int], results: list[Any], positions: Iterable[int]) -> None:
    if gradients is None or isinstance(gradients, Tensor):
        gradients = (gradients,)
    for position, gradient in zip(positions, gradients, strict=True):
        results[position] = None if gradient is None else _hold(gradient, held)


# The objects that generated code of every operation names.
_NAMES: dict[str, Any] = {
    "ARRAYS": ARRAYS, "DeviceArray": DeviceArray, "NO_EDGE": NO_EDGE, "NotOnDevice": NotOnDevice,
    "SavedTensor": SavedTensor, "Storage": Storage, "Tensor": Tensor, "Unrecorded": Unrecorded, "device_of": device_of,
    "hold": _hold, "hold_all": _hold_all, "hooks": hooks.stack, "is_differentiable": is_differentiable,
    "mode": grad_mode.state, "new": object.__new__, "new_output": new_output, "next_sequence": next_sequence,
    "on_host": compute_on_host, "refuse": refuse_view, "require_one_device": require_one_device,
    "share_memory": _share_memory, "view_of": view_of, "wrap": Tensor.wrap,
}  # fmt: skip


def operation(
    name: str, forward: Callable[..., Any] | Planned, /, *, outputs: tuple[str, ...] = ("result",),
    aux: tuple[str, ...] = (), view: bool = False, part_of: Callable[..., Any] | None = None,
    joint: tuple[tuple[str, ...], Callable[..., Any] | Composed] | None = None,
    **derivatives: Callable[..., Any] | Composed,
) -> Operation:  # fmt: skip
    """Define and return an operation. Each keyword argument in `derivatives` is the derivative of the input so named.

    `forward` takes arrays in place of tensors; it returns the outputs, then the results that `aux` names. `joint` is
    (names of inputs, function): one derivative for several inputs, which returns a gradient or None for each.
    `part_of` is explained at `Operation`.
    """
    rows = [((key,), function) for key, function in derivatives.items()] + ([joint] if joint else [])
    parsed = []
    for inputs, function in rows:
        if isinstance(function, Composed):
            names, choose = _both(function)
            parsed.append(Derivative(inputs, names, choose))
        else:
            parsed.append(Derivative.of(inputs, function))
    parameters = forward.parameters if isinstance(forward, Planned) else tuple(inspect.signature(forward).parameters)
    return Operation(name, forward, tuple(parsed), parameters, outputs, aux, view, part_of)
