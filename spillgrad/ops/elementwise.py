"""Elementwise operations on tensors, made from the kernels' table of rows.

Operands broadcast and promote as in PyTorch; a Python number never widens a tensor. With `out=` the result goes into a
tensor of its shape, which may be an operand or overlap one.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.grad_mode import is_grad_enabled, state
from spillgrad.errors import ArgumentError, DtypeError, GraphError, OperandError, ShapeError
from spillgrad.ops import generate, inplace
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.define import Derivative, Operation
from spillgrad.ops.numeric import as_array, run_formula
from spillgrad.ops.planned import Plan, Planned, new_plan
from spillgrad.ops.symbol import Symbol, record
from spillgrad.tensor import Tensor, native
from spillgrad_kernels.compile import FLOATS
from spillgrad_kernels.cpu import prepare
from spillgrad_kernels.elementwise import ROWS, Row
from spillgrad_kernels.formula import FUNCTIONS, Formula, parameters, with_names
from spillgrad_kernels.formula import trace as traced
from spillgrad_kernels.walk import Layout, Shape

Number = bool | int | float
Operand = Tensor | Number
# What operators compute with; anything else may know what to do with a tensor itself.
OPERANDS = (Tensor, bool, int, float, np.ndarray, np.generic)


def _dtype_of(operands: tuple[Any, ...]) -> dtypes.DType:
    for operand in operands:
        if isinstance(operand, np.ndarray) and operand.dtype != dtypes.bool_:
            return operand.dtype  # type: ignore[no-any-return]
    return next((o.dtype for o in operands if isinstance(o, np.ndarray)), dtypes.get_default_dtype())


class Loop(Planned):
    """A formula of arrays and numbers that broadcast together."""

    def __init__(self, formula: Formula, name: str, gives_bool: bool = False) -> None:
        super().__init__(name, parameters(formula))
        self.formula = formula
        self.gives_bool = gives_bool

    def promoted(self, *operands: Any) -> tuple[Any, ...]:
        return _promoted(self.name, operands)

    def plan(self, layouts: tuple[Layout, ...]) -> Plan | None:
        found = [dtype for _, _, dtype in layouts]
        dtype = next((d for d in found if d != dtypes.bool_), dtypes.bool_)
        if any(d not in (dtype, dtypes.bool_) for d in found):
            return None
        result = dtypes.bool_ if self.gives_bool else dtype
        try:
            call = prepare(self.formula, self.name, (result,), layouts)
        except ValueError as error:
            raise _shape_error(self.name, [shape for shape, _, _ in layouts]) from error
        small = not call.copied and call.tiles <= call.grain
        code, large = (call.code, None) if small else (None, call)
        return new_plan(layouts, code, call.tiles, call.kept, call.shape, result, large)

    def converted(self, *operands: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Return the result. Raises ShapeError when shapes do not broadcast."""
        dtype = _dtype_of(operands)
        try:
            return run_formula(
                self.formula, self.name, operands, dtype, dtypes.bool_ if self.gives_bool else dtype, out
            )
        except ValueError as error:
            raise _shape_error(self.name, _shapes(operands)) from error


def _result_dtype(row: Row, operands: tuple[Any, ...]) -> dtypes.DType:
    return dtypes.bool_ if row.result == "bool" else _dtype_of(operands)


def _shapes(operands: Iterable[Any]) -> list[Shape]:
    return [operand.shape for operand in operands if isinstance(operand, np.ndarray)]


def _shape_error(name: str, shapes: Iterable[Shape]) -> ShapeError:
    found = " and ".join([str(shape) for shape in shapes if shape])  # numbers, and what is like one, fit anything
    return ShapeError(
        f"{name}: got shapes {found}; sizes must match from the last dimension on, or be 1: "
        "reshape or unsqueeze one of them"
    )


def _derivative(row: Row, source: str, formula: Formula) -> Derivative:
    """One compiled kernel per derivative; under `create_graph` the same formula runs on tensors."""
    if traced(formula).results == ("in_g",):
        return Derivative((source,), ("g", f"{source}_shape"), sum_to)
    loop = Loop(formula, f"{row.name}.{source}")

    @functools.cache
    def on_tensors() -> Formula:
        return with_names(formula, tensor_functions())

    names = {"loop": loop, "on_tensors": on_tensors, "state": state, "sum_to": sum_to, "Tensor": Tensor}
    derivative = generate.function(_derivative_source(len(parameters(formula))), loop.name, names)
    return Derivative((source,), (*parameters(formula), f"{source}_shape"), derivative)


def _derivative_source(count: int) -> str:
    """Return the code of a derivative that names so many values."""
    values = ", ".join([f"v{i}" for i in range(count)])
    arrays = ", ".join([f"v{i}._array if isinstance(v{i}, Tensor) else v{i}" for i in range(count)])
    return f"""def derivative({values}, shape):
    if state.enabled:
        return sum_to(on_tensors()({values}), shape)
    return sum_to(Tensor.wrap(loop.result({arrays})), shape)
"""


def _operation(row: Row) -> Operation:
    derivatives = tuple(_derivative(row, source, formula) for source, formula in row.derivatives.items())
    operation = Operation(row.name, LOOPS[row.name], derivatives, parameters(row.forward))
    operation.node_name = _NODE_NAMES.get(row.name, operation.node_name)
    return operation


# Variants of one function have its node's name, as in PyTorch.
_NODE_NAMES = {"square": "PowBackward0", "cube": "PowBackward0", "gelu_tanh": "GeluBackward0", "selu": "EluBackward0"}

LOOPS = {name: Loop(row.forward, name, row.result == "bool") for name, row in ROWS.items()}
OPERATIONS: dict[str, Operation] = {name: _operation(row) for name, row in ROWS.items()}


def tensor_functions() -> dict[str, Callable[..., Any]]:
    """Return what the functions that formulas call mean for tensors."""
    return {name: globals().get(name) or OPERATIONS[name].run for name in FUNCTIONS}


def _compute_into(out: Any, row: Row, operands: tuple[Any, ...]) -> Tensor:
    arrays = tuple([o._array if isinstance(o, Tensor) else o for o in operands])
    shapes = {a.shape for a in arrays if isinstance(a, np.ndarray)}
    try:
        shape = np.broadcast_shapes(*shapes) if len(shapes) > 1 else shapes.pop()
    except ValueError as error:
        raise _shape_error(row.name, _shapes(arrays)) from error
    _check_out(row.name, out, shape, operands if row.derivatives else ())
    inplace.begin_write(out, row.name, shape, _result_dtype(row, arrays))
    direct = out._array if all([_same_or_apart(out._array, a) for a in arrays]) else None
    result = LOOPS[row.name].result(*arrays, out=direct)
    if result is not out.array:
        np.copyto(out.array, result, casting="unsafe")
    return out  # type: ignore[no-any-return]


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """Do `total.add_(gradient)` where nothing is recorded: backward does it for every leaf."""
    into, array = total._array, gradient._array
    if array.shape == into.shape and inplace.computes_in_place(total, (gradient,), {}) and _same_or_apart(into, array):
        total._storage.begin_change()
        LOOPS["add"].result(into, array, out=into)
    else:
        total.add_(gradient)


def _check_out(name: str, out: Any, shape: tuple[int, ...], differentiable: Iterable[Any]) -> None:
    """Raise OperandError, ShapeError or GraphError for an `out` that cannot take a result of this shape."""
    if not isinstance(out, Tensor):
        raise OperandError(f"{name}: got out of {type(out).__name__}; wanted a tensor")
    if out._array.shape != shape:
        raise ShapeError(f"{name}: got out of shape {out.shape}; the result has {shape}: give out that shape")
    if is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (out, out._base, *differentiable)):
        raise GraphError(
            f"{name}: got out= and a tensor that requires a gradient; what overwrites memory is not recorded: leave it "
            "away, or call in no_grad()"
        )


def _same_or_apart(out: np.ndarray, operand: Any) -> bool:
    """Return whether each element of the operand is read before, or never, overwritten."""
    if operand is out or not isinstance(operand, np.ndarray) or not np.may_share_memory(out, operand):
        return True
    return out.__array_interface__ == operand.__array_interface__


def _deliver(name: str, result: Tensor, out: Any) -> Tensor:
    """Return a result that has no gradient, after copying it into `out` if that is given."""
    if out is None:
        return result
    _check_out(name, out, result.shape, ())
    inplace.write(out, name, result.array)
    return out  # type: ignore[no-any-return]


def call(name: str, *operands: Any, out: Tensor | None = None) -> Tensor:
    """Call a row's operation after promoting its operands to one dtype; the result goes into `out`, if given.

    Raises OperandError for operands that are no tensors or numbers, DtypeError for dtypes without this operation,
    ShapeError when shapes do not broadcast; with `out`, DtypeError or ShapeError when the result does not fit into it,
    GraphError when a gradient would have to be recorded, or its memory is read-only or expanded.
    """
    if out is None:
        return OPERATIONS[name].run(*operands)  # type: ignore[no-any-return]
    return _compute_into(out, ROWS[name], _promoted(name, operands))


def _promoted(name: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return tensors and numbers of one dtype, of which at least one is a tensor; raise as `call` does."""
    if _share_a_float(operands):  # most calls: nothing to convert
        return operands
    tensors = [as_operand(name, o) for o in operands]
    conditions = 1 if name == "where" else 0
    dtype = _common_dtype(tensors[conditions:])
    if not dtypes.is_floating_point(dtype):
        _check_exact(name, dtype, tensors[conditions:])
        if ROWS[name].result == "float":
            dtype = dtypes.get_default_dtype()
    promoted = [to_dtype(t, dtype) if isinstance(t, Tensor) else t for t in tensors[conditions:]]
    if not any(isinstance(t, Tensor) for t in promoted) and not isinstance(tensors[0], Symbol):
        promoted[0] = Tensor.wrap(np.asarray(promoted[0], dtype))
    return (*tensors[:conditions], *promoted)


def _share_a_float(operands: tuple[Any, ...]) -> bool:
    """Return whether operands are Python numbers and tensors of one floating dtype, which is then the result's."""
    dtype = None
    for operand in operands:
        if isinstance(operand, Tensor):
            if type(operand) is Symbol or (dtype is not None and operand._array.dtype is not dtype):
                return False
            dtype = operand._array.dtype
        elif not isinstance(operand, int | float):
            return False
    return dtype in FLOATS or dtype in dtypes.HALF


# Arithmetic that truth values do not have, in PyTorch neither.
_NOT_FOR_BOOL = frozenset((
    "abs", "ceil", "clamp", "cube", "elu", "floor", "floor_divide", "fmod", "frac", "hardtanh",
    "leaky_relu", "lerp", "neg", "pow", "relu", "remainder", "round", "square", "sub", "trunc",
))  # fmt: skip


# Arithmetic in which an integer too large for the dtype means the same as what is left of it.
_MODULAR = frozenset(("add", "sub", "mul"))


def _check_exact(name: str, dtype: dtypes.DType, operands: list[Any]) -> None:
    """Raise DtypeError or ArgumentError for what bool, integers and complex numbers do not have."""
    if dtypes.is_complex(dtype):
        raise DtypeError(
            f"{name}: got {dtype}; complex tensors can be stored and moved, not computed with: use their real and "
            "imaginary parts"
        )
    if name in _NOT_FOR_BOOL and dtype == dtypes.bool_:
        raise DtypeError(
            f"{name}: got bool, which has no such arithmetic; convert with .to(int64), or use ~, &, | and ^"
        )
    if dtypes.category(dtype) != 1:
        return
    if name not in _MODULAR and ROWS[name].result == "same":
        limits = dtypes.iinfo(dtype)
        for value in operands:
            if isinstance(value, int) and not limits.min <= value <= limits.max:
                raise ArgumentError(f"{name}: got {value}; {dtype} takes {limits.min} to {limits.max}")
    if name in ("floor_divide", "remainder", "fmod", "pow"):
        other = operands[1].array if isinstance(operands[1], Tensor) else operands[1]
        if name == "pow" and np.any(other < 0):
            raise ArgumentError("pow: got integers and a negative exponent; convert with .to(float32)")
        if name != "pow" and np.any(other == 0):
            raise ArgumentError(f"{name}: got integers and a zero divisor; convert with .to(float32)")


def as_operand(name: str, value: Any) -> Any:
    """Return a tensor or Python number for an operand; NumPy arrays become tensors over their memory."""
    if isinstance(value, (Tensor, int, float)):
        return value
    if isinstance(value, np.ndarray):
        return Tensor.wrap(native(value))
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float):
        return value.item()
    raise OperandError(f"{name}: got {type(value).__name__}; wanted a tensor, a number or a NumPy array")


def _common_dtype(operands: list[Any]) -> dtypes.DType:
    kinds = [o for o in operands if isinstance(o, Tensor)]
    first = kinds[0].dtype if kinds else None
    if first is not None and dtypes.category(first) == 2 and all(t.dtype == first for t in kinds):
        return first
    return dtypes.result_type(
        [(t.dtype, t.ndim == 0) for t in kinds], [o for o in operands if not isinstance(o, Tensor)]
    )


def result_type(*operands: Operand) -> dtypes.DType:
    """Return the dtype that arithmetic on these tensors and numbers has."""
    return _common_dtype([as_operand("result_type", o) for o in operands])


def row_function(name: str, doc: str) -> Callable[..., Tensor]:
    """Return the function of tensors that a row with one or two operands is."""
    operation = OPERATIONS[name]
    if len(operation.parameters) == 1:

        def function(input: Any, *, out: Tensor | None = None) -> Tensor:
            return operation.run(input) if out is None else call(name, input, out=out)
    else:

        def function(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            return operation.run(input, other) if out is None else call(name, input, other, out=out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = row_function("exp", "Return e raised to each element.")
expm1 = row_function("expm1", "Return exp(x) - 1, accurate near 0.")
log = row_function("log", "Return the natural logarithm of each element.")
log2 = row_function("log2", "Return the base-2 logarithm of each element.")
log10 = row_function("log10", "Return the base-10 logarithm of each element.")
log1p = row_function("log1p", "Return log(1 + x), accurate near 0.")
logaddexp = row_function("logaddexp", "Return log(exp(input) + exp(other)) without overflow.")
sqrt = row_function("sqrt", "Return the square root of each element.")
rsqrt = row_function("rsqrt", "Return the reciprocal of the square root of each element.")
square = row_function("square", "Return the square of each element.")
reciprocal = row_function("reciprocal", "Return 1 / x for each element.")
neg = negative = row_function("neg", "Return each element with the other sign.")
abs = absolute = row_function("abs", "Return the absolute value of each element.")
sin = row_function("sin", "Return the sine of each element, in radians.")
cos = row_function("cos", "Return the cosine of each element, in radians.")
tan = row_function("tan", "Return the tangent of each element, in radians.")
asin = arcsin = row_function("asin", "Return the inverse sine of each element, in radians.")
acos = arccos = row_function("acos", "Return the inverse cosine of each element, in radians.")
atan = arctan = row_function("atan", "Return the inverse tangent of each element, in radians.")
atan2 = arctan2 = row_function("atan2", "Return the angle of each point (other, input), in radians.")
sinh = row_function("sinh", "Return the hyperbolic sine of each element.")
cosh = row_function("cosh", "Return the hyperbolic cosine of each element.")
tanh = row_function("tanh", "Return the hyperbolic tangent of each element.")
erf = row_function("erf", "Return the error function of each element.")
normal_cdf = row_function("normal_cdf", "Return the standard normal distribution's Φ of each element.")
sigmoid = row_function("sigmoid", "Return 1 / (1 + exp(-x)) for each element.")
floor = row_function("floor", "Return the largest integer not above each element.")
ceil = row_function("ceil", "Return the smallest integer not below each element.")
trunc = row_function("trunc", "Return each element without its fraction.")
sign = row_function("sign", "Return -1, 0 or 1 for each element.")
mul = multiply = row_function("mul", "Return the elementwise product.")
remainder = mod = row_function("remainder", "Return input modulo other, with the divisor's sign (Python's %).")
maximum = row_function("maximum", "Return the larger of two elements; NaN where either is.")
minimum = row_function("minimum", "Return the smaller of two elements; NaN where either is.")
eq = equal_elements = row_function("eq", "Return whether elements are equal.")
ne = not_equal = row_function("ne", "Return whether elements differ.")
lt = less = row_function("lt", "Return whether input is less than other.")
le = less_equal = row_function("le", "Return whether input is at most other.")
gt = greater = row_function("gt", "Return whether input is greater than other.")
ge = greater_equal = row_function("ge", "Return whether input is at least other.")

isnan = row_function("isnan", "Return whether elements are not a number.")
isinf = row_function("isinf", "Return whether elements are infinite.")
isfinite = row_function("isfinite", "Return whether elements are neither infinite nor not a number.")


def add(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return input + alpha * other."""
    if alpha == 1 and out is None:
        return OPERATIONS["add"].run(input, other)  # type: ignore[no-any-return]
    return call("add", input, other if alpha == 1 else mul(other, alpha), out=out)


def sub(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return input - alpha * other."""
    if alpha == 1 and out is None:
        return OPERATIONS["sub"].run(input, other)  # type: ignore[no-any-return]
    return call("sub", input, other if alpha == 1 else mul(other, alpha), out=out)


subtract = sub


def rsub(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return other - alpha * input."""
    return sub(other, input, alpha=alpha, out=out)


def addcmul(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return input + value * tensor1 * tensor2."""
    return add(input, mul(tensor1, tensor2), alpha=value, out=out)


def addcdiv(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return input + value * tensor1 / tensor2."""
    return add(input, div(tensor1, tensor2), alpha=value, out=out)


def div(
    input: Operand, other: Operand, *, rounding_mode: str | None = None, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return input / other: true division, or rounded with `rounding_mode` "floor" or "trunc" (integers stay exact)."""
    if rounding_mode is None:
        return call("div", input, other, out=out)
    if rounding_mode == "floor":
        return floor_divide(input, other, out=out)
    if rounding_mode == "trunc":
        if dtypes.category(result_type(input, other)) == 2:
            return trunc(call("div", input, other), out=out)
        has_rest = ne(remainder(input, other), 0)
        up = logical_and(has_rest, ne(lt(input, 0), lt(other, 0)))
        return add(floor_divide(input, other), up, out=out)
    raise ArgumentError(f'div: got rounding_mode={rounding_mode!r}; accepted are None, "floor" and "trunc"')


divide = true_divide = div


def floor_divide(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return the largest integer not above input / other; integers stay integers."""
    return call("floor_divide", input, other, out=out)


def pow(input: Operand, exponent: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return input raised to `exponent`; common exponents take a product instead of a logarithm."""
    if isinstance(input, Tensor) and input.is_floating_point() and isinstance(exponent, int | float):
        if exponent == 1:
            return call("mul", input, 1, out=out)
        if exponent == 2:
            return square(input, out=out)
        if exponent == 3:
            return call("cube", input, out=out)
        if exponent == 0.5:
            return sqrt(input, out=out)
        if exponent == -1:
            return reciprocal(input, out=out)
    return call("pow", input, exponent, out=out)


def round(input: Tensor, decimals: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return the nearest integer, halves to the even one; with `decimals`, the nearest multiple of 10**-decimals."""
    if decimals == 0:
        return call("round", input, out=out)
    return div(call("round", input * 10.0**decimals), 10.0**decimals, out=out)


def lerp(input: Tensor, end: Tensor, weight: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return input + weight * (end - input)."""
    return call("lerp", input, end, weight, out=out)


def clamp(
    input: Tensor, min: Operand | None = None, max: Operand | None = None, *, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return each element moved into [min, max]; max where min exceeds it.

    Raises ArgumentError when neither bound is given.
    """
    if min is None and max is None:
        raise ArgumentError("clamp: got neither min nor max; give at least one")
    lowest, highest = _bounds(result_type(input, *(b for b in (min, max) if b is not None)))
    return call("clamp", input, lowest if min is None else min, highest if max is None else max, out=out)


clip = clamp


def _bounds(dtype: dtypes.DType) -> tuple[Number, Number]:
    """The bounds that move nothing."""
    if dtypes.category(dtype) == 1:
        limits = dtypes.iinfo(dtype)
        return limits.min, limits.max
    return (-math.inf, math.inf) if dtypes.category(dtype) > 1 else (False, True)


def clamp_min(input: Tensor, min: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return each element, those below `min` as `min`."""
    return clamp(input, min, out=out)


def clamp_max(input: Tensor, max: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return each element, those above `max` as `max`."""
    return clamp(input, None, max, out=out)


def where(
    condition: Tensor, input: Operand | None = None, other: Operand | None = None, *, out: Tensor | None = None
) -> Any:  # fmt: skip
    """Return elements of `input` where `condition` holds, else of `other`.

    With the condition alone, return the indices where it holds.
    """
    condition = condition if isinstance(condition, Tensor) else Tensor.wrap(np.asarray(condition))
    if (input is None) != (other is None):
        raise ArgumentError("where: got one of input and other; give both, or the condition alone")
    if input is None or other is None:
        return tuple(Tensor.wrap(index) for index in np.nonzero(condition.array))
    if condition.dtype != dtypes.bool_:
        raise DtypeError(f"where: got a condition of {condition.dtype}; wanted bool, such as x > 0")
    return call("where", condition, input, other, out=out)


def isclose(
    input: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:  # fmt: skip
    """Return whether |input - other| <= atol + rtol |other|, elementwise."""
    first, second = (
        value.array.astype(np.float64) if isinstance(value, Tensor) else value
        for value in (as_operand("isclose", input), as_operand("isclose", other))
    )
    return by_numpy("isclose", lambda a, b: np.isclose(a, b, rtol, atol, equal_nan), first, second)


def allclose(input: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return whether all elements are close (see `isclose`)."""
    return bool(isclose(input, other, rtol, atol, equal_nan).array.all())


def equal(input: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same elements."""
    return input.shape == other.shape and bool(eq(input, other).array.all())


def by_numpy(name: str, function: Callable[..., Any], *values: Any) -> Tensor:
    """Compute what needs no kernel and has no gradient. Raises ShapeError when shapes do not broadcast."""
    try:
        return Tensor.wrap(np.asarray(function(*values)))
    except ValueError as error:
        raise _shape_error(name, _shapes(values)) from error


def _logical(name: str, function: np.ufunc) -> Callable[..., Tensor]:
    def logical(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:
        if Symbol in (type(input), type(other)):
            return record(logical.__name__, (input, other))  # type: ignore[no-any-return]
        operands = (as_operand(logical.__name__, o) for o in (input, other))
        arrays = (o.array if isinstance(o, Tensor) else o for o in operands)
        return _deliver(logical.__name__, by_numpy(logical.__name__, function, *arrays), out)

    logical.__name__ = logical.__qualname__ = f"logical_{name}"
    logical.__doc__ = f"Return the logical {name} of truth values (nonzero is true)."
    return logical


def _bitwise(name: str, doc: str, function: np.ufunc, takes_bool: bool = True) -> Callable[..., Tensor]:
    def on_bits(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:
        if Symbol in (type(input), type(other)):
            return record(name, (input, other))  # type: ignore[no-any-return]
        operands = [as_operand(name, o) for o in (input, other)]
        dtype = _common_dtype(operands)
        if dtypes.category(dtype) > 1 or (dtype == dtypes.bool_ and not takes_bool):
            raise DtypeError(f"{name}: got operands of {dtype}; wanted integers{' or bool' if takes_bool else ''}")
        arrays = (as_array(o.array if isinstance(o, Tensor) else o, dtype).astype(dtype, copy=False) for o in operands)
        return _deliver(name, by_numpy(name, function, *arrays), out)

    on_bits.__name__ = on_bits.__qualname__ = name
    on_bits.__doc__ = doc
    return on_bits


logical_and = _logical("and", np.logical_and)
logical_or = _logical("or", np.logical_or)
logical_xor = _logical("xor", np.logical_xor)
bitwise_and = _bitwise(
    "bitwise_and", "Return the bitwise and of integers, or the logical and of bools.", np.bitwise_and
)
bitwise_or = _bitwise("bitwise_or", "Return the bitwise or of integers, or the logical or of bools.", np.bitwise_or)
bitwise_xor = _bitwise(
    "bitwise_xor", "Return the bitwise xor of integers, or the logical xor of bools.", np.bitwise_xor
)
bitwise_left_shift = _bitwise(
    "bitwise_left_shift", "Return integers times two to the power `other`.", np.left_shift, takes_bool=False
)
bitwise_right_shift = _bitwise(
    "bitwise_right_shift",
    "Return integers over two to the power `other`, rounded down.",
    np.right_shift,
    takes_bool=False,
)


def logical_not(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return whether elements are zero."""
    if type(input) is Symbol:
        return record("logical_not", (input,))  # type: ignore[no-any-return]
    return _deliver("logical_not", Tensor.wrap(np.asarray(np.logical_not(input.array))), out)


def bitwise_not(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the bits of integers inverted, or the logical not of bools. Raises DtypeError for other dtypes."""
    if type(input) is Symbol:
        return record("bitwise_not", (input,))  # type: ignore[no-any-return]
    if dtypes.category(input.dtype) > 1:
        raise DtypeError(f"bitwise_not: got a tensor of {input.dtype}; wanted integers or bool")
    return _deliver("bitwise_not", Tensor.wrap(np.asarray(np.invert(input.array))), out)
