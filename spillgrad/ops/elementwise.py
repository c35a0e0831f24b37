"""How elementwise operations are made from the kernels' table of rows, and called.

Operands broadcast and promote as in PyTorch. `out=` takes a tensor of the result's shape, which may be an operand or
overlap an operand. The functions themselves are in `arithmetic`, `trigonometry`, `comparison`, `clamp_where`, `logic`,
`special` and `activations`.
"""

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import is_recording, state
from spillgrad.device.device import CPU, CUDA, Device
from spillgrad.errors import DeviceError, GraphError, OperandError, ShapeError
from spillgrad.ops import docstrings, inplace, operation_source
from spillgrad.ops.array_casts import as_own, run_formula
from spillgrad.ops.broadcast import common_shape, shape_error, sum_to
from spillgrad.ops.call_plan import CallPlan, Planned, computed_dtype, new_plan
from spillgrad.ops.complex_views import conjugate
from spillgrad.ops.declaration import Names, declare, named
from spillgrad.ops.operation import Derivative, Operation
from spillgrad.ops.placement import compute_on_host, computed_anywhere, require_one_device
from spillgrad.ops.promotion import promoted, refused_complex
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu.elementwise import prepare
from spillgrad_kernels.device_array import ARRAYS, NotOnDevice, address_of, is_on_device, prepare_on_device
from spillgrad_kernels.layout import Layout, Shape, layout_of
from spillgrad_kernels.tables.complex_derivatives import COMPLEX_ROWS, HOLOMORPHIC
from spillgrad_kernels.tables.elementwise_derivatives import ROWS, Row
from spillgrad_kernels.tables.formula import FUNCTIONS, Formula, parameters, with_names
from spillgrad_kernels.tables.formula import trace as traced


def _dtype_of(operands: tuple[Any, ...]) -> dtypes.DType:
    found = [operand.dtype for operand in operands if isinstance(operand, ARRAYS)]
    return computed_dtype(found) if found else dtypes.get_default_dtype()


class Loop(Planned):
    """An elementwise formula as a function of arrays and numbers, which broadcast together.

    `of_complex` is the formula for complex numbers, and `result` is the dtype (see `Row`).
    """

    takes_complex = True

    def __init__(self, formula: Formula, name: str, result: str = "same", of_complex: Formula | None = None) -> None:
        super().__init__(name, parameters(formula))
        self.formula = formula
        self.of_complex = of_complex
        self._result_kind = result

    def _formula(self, dtype: dtypes.DType) -> Formula:
        """Return the formula for numbers of `dtype`. Raises DtypeError if there is none for complex numbers."""
        if not dtypes.is_complex(dtype):
            return self.formula
        if self.of_complex is None:
            raise refused_complex(self.name, dtype)
        return self.of_complex

    def result_dtype(self, dtype: dtypes.DType) -> dtypes.DType:
        """Return the dtype of the result, if the formula computes in `dtype`."""
        if self._result_kind == "bool":
            return dtypes.bool_
        return dtypes.real_part(dtype) if self._result_kind == "real" else dtype

    def promoted(self, *operands: Any) -> tuple[Any, ...]:
        return promoted(self.name, operands)

    def plan(self, layouts: tuple[Layout, ...]) -> CallPlan | None:
        found = [layout.dtype for layout in layouts]
        dtype = computed_dtype(found)
        if any(d not in (dtype, dtypes.bool_, dtypes.real_part(dtype)) for d in found):
            return None
        result = self.result_dtype(dtype)
        try:
            call = prepare(self._formula(dtype), self.name, (result,), layouts)
        except ValueError as error:
            raise shape_error(self.name, [layout.shape for layout in layouts]) from error
        small = not call.copied and call.tiles <= call.grain
        code, large = (call.code, None) if small else (None, call)
        return new_plan(layouts, code, call.tiles, call.kept, call.shape, result, large)

    def plan_on_device(self, operands: tuple[Any, ...], out: Any, is_aligned: bool) -> Any:
        dtype = self.result_dtype(_dtype_of(operands))
        if out is not None and out.dtype != dtype:
            return None
        layouts = tuple([layout_of(x) if is_on_device(x) else x.dtype for x in operands])
        outs = () if out is None else (layout_of(out),)
        try:
            call = prepare_on_device(self.formula, self.name, (dtype,), layouts, outs, is_aligned)
        except ValueError as error:
            raise shape_error(self.name, _shapes(operands)) from error
        return call, call.results[0].layout.shape, dtype

    def converted(self, *operands: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Return the result, computed without a plan. Raises ShapeError if shapes do not broadcast."""
        dtype = _dtype_of(operands)
        try:
            return run_formula(self._formula(dtype), self.name, operands, dtype, self.result_dtype(dtype), out)
        except ValueError as error:
            raise shape_error(self.name, _shapes(operands)) from error


def _shapes(operands: Iterable[Any]) -> list[Shape]:
    return [operand.shape for operand in operands if isinstance(operand, ARRAYS)]


def _derivative(row: Row, source: str, formula: Formula) -> Derivative:
    """Return the derivative by operand `source`, running `formula` as a kernel, or on tensors under `create_graph`.

    Complex values have a formula of their own; see the kernels' `complex_derivatives.py`.
    """
    complex_row = COMPLEX_ROWS.get(row.name)
    of_complex = None if complex_row is None else complex_row.derivatives[source]
    if traced(formula).results == ("in_g",) and (complex_row is None or row.name in HOLOMORPHIC):
        return Derivative((source,), ("g", f"{source}_shape"), sum_to)
    loop = Loop(formula, f"{row.name}.{source}", of_complex=of_complex)

    @functools.cache
    def on(chosen: Formula, dtype: dtypes.DType) -> Formula:
        return with_names(chosen, {n: _computing_in(dtype, f) for n, f in tensor_functions().items()})

    def on_tensors(*values: Any) -> Any:
        dtype = computed_dtype([v.numpy_dtype for v in values if isinstance(v, Tensor)])
        dtype = dtypes.float32 if dtype in dtypes.HALF else dtype
        is_complex = of_complex is not None and dtypes.is_complex(dtype)
        return on(of_complex if is_complex else formula, dtype)(*values)

    names = {"loop": loop, "on_tensors": on_tensors, "state": state, "sum_to": sum_to, "Tensor": Tensor}
    derivative = operation_source.function(_derivative_source(len(parameters(formula))), loop.name, names)
    return Derivative((source,), (*parameters(formula), f"{source}_shape"), derivative)


def _derivative_source(count: int) -> str:
    """Return the source of the derivative function of `count` values."""
    values = ", ".join([f"v{i}" for i in range(count)])
    arrays = ", ".join([f"v{i}._array if isinstance(v{i}, Tensor) else v{i}" for i in range(count)])
    return f"""def derivative({values}, shape):
    if state.enabled:
        return sum_to(on_tensors({values}), shape)
    return sum_to(Tensor.wrap(loop.result({arrays})), shape)
"""


def _operation(row: Row) -> Operation:
    derivatives = tuple(_derivative(row, source, formula) for source, formula in row.derivatives.items())
    operation = Operation(row.name, LOOPS[row.name], derivatives, parameters(row.forward))
    operation.node_name = _NODE_NAMES.get(row.name, operation.node_name)
    return operation


# Variants of one function share the function's node name, as in PyTorch.
_NODE_NAMES = {"square": "PowBackward0", "cube": "PowBackward0", "gelu_tanh": "GeluBackward0", "selu": "EluBackward0"}
_FORMS = {name: COMPLEX_ROWS.get(name) for name in ROWS}
LOOPS = {
    name: Loop(row.forward, name, (form or row).result, None if form is None else form.forward)
    for (name, row), form in zip(ROWS.items(), _FORMS.values(), strict=True)
}
OPERATIONS: dict[str, Operation] = {name: _operation(row) for name, row in ROWS.items()}


def _computing_in(dtype: dtypes.DType, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which computes in `dtype` if no operand is a tensor.

    The logarithm of a number is then as exact as the tensors' dtype, and that of -2 exists among complex numbers.
    """

    def called(*operands: Any) -> Any:
        if not any([isinstance(o, Tensor) for o in operands]):
            operands = tuple([o if isinstance(o, bool) else Tensor.wrap(np.asarray(o, dtype)) for o in operands])
        return function(*operands)

    return called


def tensor_functions() -> dict[str, Callable[..., Any]]:
    """Return {name: function of tensors} for all functions that formulas call."""
    return {name: OPERATIONS.get(name, conjugate) for name in FUNCTIONS}  # only `conj` is no row


def call(name: str, *operands: Any, out: Tensor | None = None) -> Tensor:
    """Call the operation of the row `name` on operands promoted to one dtype; write the result to `out`, if given.

    Raises OperandError for an operand that is neither tensor nor number, DtypeError for a dtype without this operation,
    and ShapeError if shapes do not broadcast. With `out`, raises DtypeError or ShapeError if the result does not fit
    into it, and GraphError if a gradient would have to be recorded, or if `out` has read-only or expanded memory.
    """
    if out is None:
        return OPERATIONS[name].run(*operands)  # type: ignore[no-any-return]
    return _compute_into(out, ROWS[name], promoted(name, operands))


def row_function(
    name: str, doc: str, *, method: Names = False, in_place: Names = False, numpy: Names = False,
    standard: Names = False,
) -> Callable[..., Tensor]:  # fmt: skip
    """Make the function of tensors for a row with one or two operands, `declare` its further names, and return it.

    `doc` is the first line of its docstring.
    """
    operation = OPERATIONS[name]
    if len(operation.parameters) == 1:

        def function(input: Any, *, out: Tensor | None = None) -> Tensor:
            return operation.run(input) if out is None else call(name, input, out=out)
    else:

        def function(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            return operation.run(input, other) if out is None else call(name, input, other, out=out)

    function.__module__ = sys._getframe(1).f_globals["__name__"]  # where unpickling finds it, as for namedtuples
    named(function, name, _docstring(doc, len(operation.parameters), ROWS[name].result))
    return declare(method=method, in_place=in_place, numpy=numpy, standard=standard)(function)


_RESULTS = {"same": "", "float": "; of integers, in the default dtype", "bool": ", of bool", "real": "; real"}
_RAISES = """DtypeError
    If the operation does not take the dtype, or `out` cannot hold that of the result.
ShapeError
    If {}`out` has another shape than the result.
GraphError
    If `out` is given, and a gradient would have to be recorded."""


def _docstring(summary: str, count: int, result: str) -> str:
    """Return the docstring of a function of one or two operands; `result` says what the dtype is (see `Row`)."""
    shape = "Of the shape of `input`" if count == 1 else "Of the shape that the operands broadcast to"
    returns = f"Tensor\n    {shape}{_RESULTS[result]}."
    operands = docstrings.INPUT if count == 1 else docstrings.OPERANDS
    raises = _RAISES.format("" if count == 1 else "the shapes do not broadcast, or ")
    return docstrings.composed(summary, operands, docstrings.OUT, returns=returns, raises=raises)


# As `row_function`; also declares the function's name as a method, in place, in NumPy and in the standard.
common_function = functools.partial(row_function, in_place=True, numpy=True, standard=True)


def by_numpy(name: str, function: Callable[..., Any], *operands: Any) -> Tensor:
    """Return the result of a NumPy function, without a gradient. Raises ShapeError if shapes do not broadcast."""
    require_one_device(name, operands)
    values = [operand.array if isinstance(operand, Tensor) else operand for operand in operands]
    try:
        return Tensor.wrap(computed_anywhere(name, lambda *arrays: as_own(function(*arrays)), *values))
    except ValueError as error:
        raise shape_error(name, _shapes(values)) from error


def _compute_into(out: Any, row: Row, operands: tuple[Any, ...]) -> Tensor:
    arrays = tuple([o._array if isinstance(o, Tensor) else o for o in operands])
    shapes = _shapes(arrays)
    shape = shapes[0] if len(set(shapes)) == 1 else common_shape(row.name, shapes)
    device = CPU
    if any([is_on_device(a) for a in arrays]):
        require_one_device(row.name, operands)
        device = CUDA
    _check_out(row.name, out, shape, device, operands if row.derivatives else ())
    inplace.begin_write(out, row.name, shape, LOOPS[row.name].result_dtype(_dtype_of(arrays)))
    direct = out._array if all([_same_or_apart(out._array, a) for a in arrays]) else None
    try:
        result = LOOPS[row.name].result(*arrays, out=direct)
    except NotOnDevice:
        result = compute_on_host(row.name, LOOPS[row.name].result, *arrays)
    if result is not out.array:
        np.copyto(out.array, result, casting="unsafe")
    return out  # type: ignore[no-any-return]


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """Add `gradient` to `total` in place, as backward does for every leaf; call this only where nothing is recorded."""
    if total._storage.offloaded and total._storage.accumulate(total, gradient):
        return
    into, array = total._array, gradient._array
    if array.shape == into.shape and inplace.computes_in_place(total, (gradient,), {}) and _same_or_apart(into, array):
        total._storage.begin_change()
        LOOPS["add"].result(into, array, out=into)
    else:
        total.add_(gradient)


def _check_out(name: str, out: Any, shape: tuple[int, ...], device: Device, differentiable: Iterable[Any] = ()) -> None:
    """Raise OperandError, DeviceError, ShapeError or GraphError if `out` cannot take a result of this shape."""
    if not isinstance(out, Tensor):
        raise OperandError(f"{name}: got out of {type(out).__name__}; wanted a tensor")
    if out.device is not device:
        raise DeviceError(f"{name}: got out on '{out.device}'; the result is on '{device}': give out there")
    if out._array.shape != shape:
        raise ShapeError(f"{name}: got out of shape {out.shape}; the result has {shape}: give out that shape")
    if is_recording() and any(isinstance(t, Tensor) and t.requires_grad for t in (out, out._base, *differentiable)):
        raise GraphError(
            f"{name}: got out= and a tensor that requires a gradient; what overwrites memory is not recorded: leave it "
            "away, or call in no_grad()"
        )


def _same_or_apart(out: np.ndarray, operand: Any) -> bool:
    """Return whether writing `out` overwrites no unread element: `out` and the operand coincide or share no memory."""
    if operand is out or not isinstance(operand, ARRAYS) or not np.may_share_memory(out, operand):
        return True
    return (address_of(out), layout_of(out)) == (address_of(operand), layout_of(operand))


def deliver(name: str, result: Tensor, out: Any) -> Tensor:
    """Return `result`, or copy it into `out` and return `out`. Raises GraphError if the copy has to be recorded."""
    if out is None:
        return result
    _check_out(name, out, result.shape, result.device, (result,))
    inplace.write(out, name, result.array)
    return out  # type: ignore[no-any-return]
