"""Formulas: plain Python functions of elementwise arithmetic, turned into the body of a compiled loop.

A formula runs in three ways. Called with NumPy arrays, it computes on them and serves as the oracle. Called with
symbols in place of numbers (`trace`), it yields straight-line code for kernels. Called with tensors, it is
differentiable. So formulas use the functions of `scalar_math`, `where` instead of `if`, and no loops.
"""

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad_kernels.tables import scalar_math

Formula = Callable[..., Any]

# The functions that a formula may call: all public functions of `scalar_math`, except the functions for kernels only.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in vars(scalar_math).items()
    if inspect.isfunction(function) and function.__module__ == scalar_math.__name__
    and not name.startswith(("_", "normal_exp"))
}  # fmt: skip

# The conversions that a formula may call, by name. Half-precision values are computed in float32.
CONVERSIONS: dict[str, Callable[..., Any]] = {
    "float16": np.float32, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64,
}  # fmt: skip
# How the code of complex numbers spells operators: Numba's own division raises at 0, and its `abs` calls libm.
_COMPLEX_SPELLING = {"{} / {}": "quotient({}, {})", "abs({})": "magnitude({})"}


@functools.cache
def constants_of(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return the function that converts a formula's constants for computing in `dtype`.

    In formulas of complex numbers, real constants stay real: they are compared with absolute values.
    """
    if dtype.kind != "c":
        return CONVERSIONS.get(dtype.name, dtype.type)
    real = np.float32 if dtype == np.complex64 else np.float64
    return lambda value: dtype.type(value) if isinstance(value, complex) else real(value)


class Trace:
    """Straight-line code: `lines` compute `results` from `inputs`; `constants` maps a name to its number."""

    def __init__(self, inputs: Sequence[str], is_complex: bool = False) -> None:
        self.inputs = tuple(inputs)
        self._spelling = _COMPLEX_SPELLING if is_complex else {}
        self.constants: dict[str, Any] = {}
        self.results: tuple[str, ...] = ()
        self._names: dict[str, str] = {}  # the name of each expression's value: equal expressions are computed once
        self._operands: dict[str, tuple[str, ...]] = {}
        self._number: Callable[[float], Any] = float

    def apply(self, formula: Formula, arguments: Sequence[Any], number: Callable[[float], Any] = float) -> Any:
        """Add the code that applies `formula` to `arguments`, which are symbols or numbers; return the results.

        `number` converts the constants of the formula. Raises TypeError if the formula branches on a symbol's value.
        """
        self._number = number
        names = {name: self._writer(name) for name in FUNCTIONS}
        names |= {name: self._writer(kind.__name__) for name, kind in CONVERSIONS.items()}
        return with_names(formula, {**names, "detach": lambda value: value})(*arguments)

    def _writer(self, function: str) -> Callable[..., "Symbol"]:
        return lambda *operands: self.emit(f"{function}({', '.join(['{}'] * len(operands))})", *operands)

    def emit(self, expression: str, *operands: Any) -> "Symbol":
        """Add a line that computes `expression`; return the result's symbol. Each `{}` stands for an operand."""
        names = tuple(map(self.name_of, operands))
        text = self._spelling.get(expression, expression).format(*names)
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = f"t{len(self._names)}"
            self._operands[name] = names
        return Symbol(self, name)

    def name_of(self, value: Any) -> str:
        """Return the name that the code uses for a symbol or a number."""
        if isinstance(value, Symbol):
            return value.name
        # Comparing two numbers, as the derivative of 2**x does, gives a bool, which stays a bool.
        constant = np.bool_(value) if isinstance(value, bool) else self._number(value)
        digits = str(constant).replace(".", "_").replace("-", "m").replace("+", "p").strip("()")
        name = f"c{digits}_{type(constant).__name__}"
        self.constants[name] = constant
        return name

    @property
    def used(self) -> frozenset[str]:
        """The names of the inputs, lines and constants that the results depend on."""
        found: set[str] = set()
        waiting = list(self.results)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._operands.get(name, ())
        return frozenset(found)

    @property
    def lines(self) -> list[str]:
        """The lines of code that the results depend on."""
        used = self.used
        return [f"{name} = {expression}" for expression, name in self._names.items() if name in used]


class Symbol:
    """A value inside a trace. Arithmetic on a symbol adds code to the trace."""

    __slots__ = ("name", "trace")

    def __init__(self, trace: Trace, name: str) -> None:
        self.trace = trace
        self.name = name

    def __neg__(self) -> "Symbol":
        return self.trace.emit("-{}", self)

    def __invert__(self) -> "Symbol":
        return self.trace.emit("not {}", self)

    def __abs__(self) -> "Symbol":
        return self.trace.emit("abs({})", self)

    def __bool__(self) -> bool:
        raise TypeError("formula: got `if`, `and` or `or` on a value; use where(), & or |")


def _operator(symbol: str, swapped: bool = False) -> Callable[[Symbol, Any], Symbol]:
    expression = f"{{}} {symbol} {{}}"
    return lambda self, other: self.trace.emit(expression, *((other, self) if swapped else (self, other)))


for _name, _symbol in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "and": "&", "or": "|"}.items():
    setattr(Symbol, f"__{_name}__", _operator(_symbol))
    setattr(Symbol, f"__r{_name}__", _operator(_symbol, swapped=True))
for _name, _symbol in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Symbol, f"__{_name}__", _operator(_symbol))


def parameters(formula: Formula) -> tuple[str, ...]:
    """Return the names of a formula's parameters, in order."""
    code = formula.__code__
    return code.co_varnames[: code.co_argcount]


def with_names(formula: Formula, names: dict[str, Any]) -> Formula:
    """Return a copy of `formula` in which each name that is a key of `names` refers to the name's value in `names`.

    The formulas that it calls by other names are copied in the same way. A function with a closure is no formula.
    """
    own = formula.__globals__
    called = {
        name: with_names(function, names)
        for name in formula.__code__.co_names
        if name not in names and isinstance(function := own.get(name), types.FunctionType) and not function.__closure__
    }
    return types.FunctionType(formula.__code__, {**own, **called, **names}, formula.__name__)


def conjugated(formula: Formula) -> Formula:
    """Return the derivative of a holomorphic function of complex numbers, from its derivative for real numbers.

    PyTorch's gradient is g * conj(f'(z)). `formula` computes g * f'(z), so conj(formula(conj(g), z)) is that gradient.
    """
    names = ", ".join(parameters(formula))
    given = ", ".join(f"conj({name})" if name == "g" else name for name in parameters(formula))
    namespace = {"formula": formula, "conj": scalar_math.conj}
    exec(f"def conjugated({names}): return conj(formula({given}))", namespace)
    made: Formula = namespace["conjugated"]
    return made


def trace(formula: Formula, number: Callable[[float], Any] = float, is_complex: bool = False) -> Trace:
    """Run `formula` on symbols and return its straight-line code; `number` converts the formula's constants.

    `is_complex` says that operands may be complex.

    A formula may return a tuple of results. Raises TypeError if the formula branches on a symbol's value.
    """
    # Without the prefix, a parameter named `min` would hide the function.
    record = Trace([f"in_{name}" for name in parameters(formula)], is_complex)
    result = record.apply(formula, [Symbol(record, name) for name in record.inputs], number)
    record.results = tuple([record.name_of(part) for part in (result if isinstance(result, tuple) else (result,))])
    return record
