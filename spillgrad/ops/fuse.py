"""Fusion: a function of elementwise tensor operations becomes one kernel forward and one backward.

The function is called once with symbols, which record its operations as a program (`spillgrad_kernels.tables.program`).
The program is compiled for the dtypes of the arguments. Backward saves only arguments, and recomputes everything else.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import enable_grad, is_recording
from spillgrad.errors import FusionError
from spillgrad.ops.arithmetic import add
from spillgrad.ops.array_casts import as_array, cast
from spillgrad.ops.broadcast import shape_error, sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.elementwise import tensor_functions
from spillgrad.ops.fuse_symbols import Recorder, Symbol, Unrecorded, refusal
from spillgrad.ops.operation import Derivative, Operation
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import native
from spillgrad_kernels.cpu.elementwise import compute
from spillgrad_kernels.tables.formula import CONVERSIONS, Formula, Trace, with_names

__all__ = ["fuse"]

Shape = tuple[int, ...]


class FusedFunction:
    """A function that `fuse` made: each call runs one kernel.

    The original function is called once for given dtypes and numbers of dimensions of the tensors, and given values of
    the arguments that are neither tensors nor floats.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.__qualname__: str = getattr(function, "__qualname__", "function")
        self.name = getattr(function, "__name__", "function").strip("<>").lstrip("_")
        self._signature = inspect.signature(function)
        self._names = tuple(self._signature.parameters)
        kinds = {parameter.kind for parameter in self._signature.parameters.values()}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            raise FusionError(f"fuse: {self.name} takes *arguments or **options; name each of them")
        self._variants: dict[Any, _Variant] = {}

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what the function returns.

        Raises FusionError for an operation or argument that cannot be fused, ShapeError if shapes do not broadcast.
        """
        if options or len(arguments) != len(self._names):
            bound = self._signature.bind(*arguments, **options)
            bound.apply_defaults()
            arguments = tuple([bound.arguments[name] for name in self._names])
        if Symbol in map(type, arguments):
            return self._call(arguments)
        operands: list[Any] = []
        key: list[Any] = [dtypes.get_default_dtype()]
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                argument = Tensor.wrap(native(argument))
            if isinstance(argument, Tensor):
                key.append((argument.numpy_dtype, argument.ndim))
                operands.append(argument)
            elif isinstance(argument, float):
                key.append(float)
                operands.append(argument)
            else:
                key.append((type(argument), argument))
        try:
            variant = self._variants.get(tuple(key))
        except TypeError as error:
            raise FusionError(f"{self.name}: {error}; pass tensors, numbers, and what can be a dict's key") from error
        if variant is None:
            tensors = [operand for operand in operands if isinstance(operand, Tensor)]
            if any(tensor.is_complex() for tensor in tensors):
                return self._call([Tensor.wrap(native(a)) if isinstance(a, np.ndarray) else a for a in arguments])
            if not tensors:
                return self._call(arguments)
            variant = self._variants[tuple(key)] = self._record(arguments, operands)
        return variant(operands)

    def _call(self, arguments: Sequence[Any]) -> Any:
        bound = inspect.BoundArguments(self._signature, dict(zip(self._names, arguments, strict=True)))
        return self.function(*bound.args, **bound.kwargs)

    def _record(self, arguments: Sequence[Any], operands: Sequence[Any]) -> "_Variant":
        recorder = Recorder(self.name)
        tensors = [(o.numpy_dtype, o.ndim == 0) for o in operands if isinstance(o, Tensor)]
        float_dtype = dtypes.result_type(tensors, [1.0])
        given, names = [], []
        for name, argument in zip(self._names, arguments, strict=True):
            if isinstance(argument, Tensor | np.ndarray):
                dtype = dtypes.as_dtype(argument.dtype)
                given.append(recorder.input(dtype, argument.ndim))
                names.append(name)
            elif isinstance(argument, float):
                given.append(recorder.input(float_dtype, 0))
                names.append(name)
            else:
                given.append(argument)
        try:
            with enable_grad():
                returned = self._call(given)
        except Unrecorded as error:
            raise refusal(self.name, _operation_that_raised(error.__traceback__)) from None
        several = isinstance(returned, tuple | list)
        results = list(returned) if several else [returned]
        for result in results:
            if type(result) is not Symbol or result.recorder is not recorder:
                raise FusionError(
                    f"{self.name}: returns {type(result).__name__}; wanted what is computed from its arguments: one "
                    "tensor, or a tuple of them"
                )
        if not results:
            raise FusionError(f"{self.name}: returns nothing; wanted a tensor, or a tuple of them")
        return _Variant(recorder, names, [s.numpy_dtype for s in given if type(s) is Symbol], results, several)

    def __reduce__(self) -> Any:
        module = inspect.getmodule(self.function)
        found: Any = module
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        return self.__qualname__ if found is self else (FusedFunction, (self.function,))

    def __repr__(self) -> str:
        return f"<fused {self.name}>"


def fuse(function: Callable[..., Any]) -> FusedFunction:
    """Fuse the elementwise operations of a function to one forward and one backward kernel; also a decorator.

    Backward saves only the arguments that gradients need, and computes the rest again. Arguments broadcast.

    Parameters
    ----------
    function : callable
        Function of tensors and numbers. Float arguments may change from call to call; each value of an argument that is
        neither tensor nor float gets a kernel of its own. The function may branch on such arguments, but not on tensors
        or floats. Values that it reads from outside are fixed at the first call.

    Returns
    -------
    FusedFunction
        Function that takes the same arguments.

    Raises
    ------
    FusionError
        If the function takes ``*arguments`` or ``**options``; in a call, for an operation or argument that cannot be
        fused.

    Notes
    -----
    With complex tensors the function runs as it is, operation by operation.

    Examples
    --------
    >>> import spillgrad as sg
    >>> swish = sg.fuse(lambda x, beta: x * sg.sigmoid(beta * x))
    >>> swish(sg.tensor([0.0, 1.0]), 0.0).tolist()
    [0.0, 0.5]
    """
    return FusedFunction(function)


def _operation_that_raised(traceback: TracebackType | None) -> str:
    """Return the name of the operation that read a symbol: the outermost spillgrad function below the user's."""
    name, outside = "an operation", True
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_globals.get("__name__", "")
        ours = module.partition(".")[0] == "spillgrad" and module not in (__name__, "spillgrad.ops.tensor_methods")
        if ours and outside:
            name = frame.f_code.co_name
        if module == "spillgrad.ops.inplace" and isinstance(frame.f_locals.get("name"), str):
            name, ours = frame.f_locals["name"], True  # an in-place method
        outside = not ours
        if ours:
            return name
        traceback = traceback.tb_next
    return name


# The functions of tensors that formulas call, conversions and `detach` included; numbers stay numbers.
def _to(dtype: str) -> Callable[[Any], Any]:
    return lambda value: to_dtype(value, dtypes.as_dtype(dtype)) if isinstance(value, Tensor) else value


_TENSOR_NAMES: dict[str, Callable[..., Any]] = {
    **tensor_functions(),
    **{name: _to(name) for name in CONVERSIONS},
    "detach": lambda value: value.detach() if isinstance(value, Tensor) else value,
}


def _on_tensors(formula: Formula, dtype: Any, *values: Any) -> Any:
    return with_names(formula, _TENSOR_NAMES)(*values)


class _Variant:
    """A fused function for arguments of given dtypes: its program, and an operation per set of wanted gradients.

    Results of different shapes come from separate loops, such as those of f(x, y) = (x + y, 2 * y) if y broadcasts.
    """

    def __init__(
        self, recorder: Recorder, names: Sequence[str], input_dtypes: Sequence[dtypes.DType], results: Sequence[Symbol],
        several: bool,
    ) -> None:  # fmt: skip
        self._name = recorder.name
        self._program = recorder.program
        self._slots = tuple([_slot(name) for name in names])
        self._input_dtypes = input_dtypes
        self._values = [result.value for result in results]
        self._dtypes = [result.numpy_dtype for result in results]
        self._several = several
        self._floating = [k for k, dtype in enumerate(self._dtypes) if dtypes.is_floating_point(dtype)]
        self._reached = [sorted(self._program.reached_by(value)) for value in self._values]
        self._operations: dict[tuple[int, ...], Operation] = {}
        self._loops: dict[tuple[int, ...], Trace] = {}
        self._backward_loops: dict[Any, tuple[Trace, list[str | None]]] = {}

    def __call__(self, operands: Sequence[Any]) -> Any:
        needs: tuple[int, ...] = ()
        if is_recording():
            needs = tuple([i for i, o in enumerate(operands) if isinstance(o, Tensor) and o.requires_grad])
        operation = self._operations.get(needs)
        if operation is None:
            operation = self._operations[needs] = self._operation(needs)
        results = operation(*operands)
        return (results,) if self._several and len(self._values) == 1 else results

    def _operation(self, needs: tuple[int, ...]) -> Operation:
        outputs = tuple([f"result{k}" for k in range(len(self._values))]) if len(self._values) > 1 else ("result",)
        _, names = self._program.backward_loop([self._values[k] for k in self._floating], needs)
        wanted = tuple([i for i, name in zip(needs, names, strict=True) if name])
        derivatives: tuple[Derivative, ...] = ()
        if wanted:
            loop, _ = self._backward_loop(tuple(self._floating), wanted)
            saved = [i for i in range(len(self._slots)) if f"in{i}" in loop.inputs]
            shapes = [f"{self._slots[i]}_shape" for i in wanted]
            parameters = ("grads", *shapes, *(self._slots[i] for i in saved))

            def backward(grads: Sequence[Tensor], *values: Any) -> tuple[Tensor | None, ...]:
                inputs: list[Any] = [None] * len(self._slots)
                for i, value in zip(saved, values[len(wanted) :], strict=True):
                    inputs[i] = value
                return self._backward(grads, inputs, wanted, values[: len(wanted)])

            derivatives = (Derivative(tuple(self._slots[i] for i in wanted), parameters, backward),)
        return Operation(self._name, self._forward, derivatives, self._slots, outputs)

    def _forward(self, *operands: Any) -> Any:
        arrays = self._arrays(operands)
        results: list[Any] = [None] * len(self._values)
        try:
            for group in self._result_groups(arrays):
                loop = self._loops.get(group)
                if loop is None:
                    loop = self._loops[group] = self._program.forward_loop([self._values[k] for k in group])
                used = [arrays[i] for i in self._reached_by(group)]
                computed = compute(loop, self._name, used, tuple([self._values[k].dtype for k in group]))
                for k, array in zip(group, computed, strict=True):
                    results[k] = _as(array, self._dtypes[k])
        except ValueError as error:
            raise shape_error(self._name, [a.shape for a in arrays]) from error
        return results[0] if len(results) == 1 else tuple(results)

    def _result_groups(self, arrays: list[Any]) -> list[tuple[int, ...]]:
        if len(self._values) == 1:
            return [(0,)]
        shapes = [np.broadcast_shapes(*[arrays[i].shape for i in reached]) for reached in self._reached]
        return _groups(shapes, range(len(shapes)))

    def _reached_by(self, group: tuple[int, ...]) -> list[int]:
        return self._reached[0] if len(self._values) == 1 else sorted(set().union(*[self._reached[k] for k in group]))

    def _arrays(self, operands: Sequence[Any]) -> list[Any]:
        return [
            None if o is None else as_array(o._array if isinstance(o, Tensor) else o, value.dtype)
            for o, value in zip(operands, self._program.inputs, strict=True)
        ]

    def _backward_loop(self, group: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[Trace, list[str | None]]:
        loop = self._backward_loops.get((group, wanted))
        if loop is None:
            loop = self._program.backward_loop([self._values[k] for k in group], wanted)
            self._backward_loops[group, wanted] = loop
        return loop

    def _backward(
        self, grads: Sequence[Tensor], inputs: list[Any], wanted: tuple[int, ...], shapes: Sequence[Shape]
    ) -> tuple[Tensor | None, ...]:
        totals: list[Tensor | None] = [None] * len(wanted)
        for group in _groups([g.shape for g in grads], self._floating):
            if is_recording():
                slopes = self._composed_slopes(group, grads, inputs, wanted)
            else:
                slopes = self._fused_slopes(group, grads, self._arrays(inputs), wanted)
            for place, (slope, shape) in enumerate(zip(slopes, shapes, strict=True)):
                if slope is not None:
                    part, total = sum_to(slope, shape), totals[place]
                    totals[place] = part if total is None else add(total, part)
        return tuple(
            [None if t is None else to_dtype(t, self._input_dtypes[i]) for t, i in zip(totals, wanted, strict=True)]
        )

    def _composed_slopes(
        self, group: tuple[int, ...], grads: Sequence[Tensor], inputs: list[Any], wanted: tuple[int, ...]
    ) -> list[Any]:
        given: dict[int, Any] = {}
        for k in group:
            index = self._values[k].index
            given[index] = add(given[index], grads[k]) if index in given else grads[k]
        return self._program.gradients(_on_tensors, inputs, given, wanted)

    def _fused_slopes(
        self, group: tuple[int, ...], grads: Sequence[Tensor], arrays: list[Any], wanted: tuple[int, ...]
    ) -> list[Any]:
        loop, names = self._backward_loop(group, wanted)
        known: dict[str | None, Any] = {f"g{j}": grads[k] for j, k in enumerate(group)}
        if loop.results:
            values = [as_array(grads[k]._array, self._values[k].dtype) for k in group]
            used = [values[int(name[1:])] if name[0] == "g" else arrays[int(name[2:])] for name in loop.inputs]
            kinds = {name: self._program.inputs[i].dtype for i, name in zip(wanted, names, strict=True)}
            computed = compute(loop, f"{self._name}_backward", used, tuple([kinds[name] for name in loop.results]))
            # A gradient that several inputs share is one tensor.
            known |= dict(zip(loop.results, map(Tensor.wrap, computed), strict=True))
        return [known.get(name) for name in names]


# Names that mean something else in derivatives, and so cannot name an argument.
_RESERVED = ("g", "grads", "needs")


def _slot(name: str) -> str:
    """Return the name under which an argument is saved: its own name, with a suffix if derivatives reserve it."""
    taken = name.startswith("result") or name in _RESERVED or name.endswith(("_shape", "_dtype"))
    return f"{name}_argument" if taken else name


def _as(array: np.ndarray, dtype: dtypes.DType) -> np.ndarray:
    return array if array.dtype == dtype else cast(array, dtype)


def _groups(shapes: Sequence[Shape], numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Return `numbers`, which are indices into `shapes`, in groups with equal shapes."""
    if len(numbers) == 1:
        return [tuple(numbers)]
    groups: dict[Shape, list[int]] = {}
    for k in numbers:
        groups.setdefault(shapes[k], []).append(k)
    return [tuple(group) for group in groups.values()]
