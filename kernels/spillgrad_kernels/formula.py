"""Formulas: plain Python functions of elementwise arithmetic, turned into the body of a compiled loop.

The same code object serves three readers. Called as it is, it works on NumPy arrays: the oracle. Run with symbols in
place of numbers (`trace`), it yields straight-line code for kernels. Run with tensors, it is differentiable. So
formulas use the names of `scalar_math`, `where` instead of `if`, and no loops.
"""

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spillgrad_kernels import scalar_math

Formula = Callable[..., Any]

# What a formula may call, by name: every public function of scalar_math.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in vars(scalar_math).items()
    if inspect.isfunction(function) and function.__module__ == scalar_math.__name__ and not name.startswith("_")
}


@dataclass
class Trace:
    """Straight-line code: `lines` compute `result` from `inputs`; `constants` maps a name to its number."""

    inputs: tuple[str, ...]
    lines: list[str] = field(default_factory=list)
    constants: dict[str, float] = field(default_factory=dict)
    result: str = ""
    _known: dict[str, str] = field(default_factory=dict)  # expression -> the name that already holds it

    def emit(self, expression: str) -> "Symbol":
        name = self._known.get(expression)
        if name is None:
            name = self._known[expression] = f"t{len(self.lines)}"
            self.lines.append(f"{name} = {expression}")
        return Symbol(self, name)

    def name_of(self, value: Any) -> str:
        if isinstance(value, Symbol):
            return value.name
        name = "c" + repr(float(value)).replace(".", "_").replace("-", "m").replace("+", "p")
        self.constants[name] = float(value)
        return name


class Symbol:
    """A value inside a trace; arithmetic on it writes code."""

    __slots__ = ("name", "trace")

    def __init__(self, trace: Trace, name: str) -> None:
        self.trace = trace
        self.name = name

    def _binary(self, operator: str, left: Any, right: Any) -> "Symbol":
        return self.trace.emit(f"{self.trace.name_of(left)} {operator} {self.trace.name_of(right)}")

    def __neg__(self) -> "Symbol":
        return self.trace.emit(f"-{self.name}")

    def __invert__(self) -> "Symbol":
        return self.trace.emit(f"not {self.name}")

    def __abs__(self) -> "Symbol":
        return self.trace.emit(f"abs({self.name})")

    def __bool__(self) -> bool:
        raise TypeError("formula: got `if`, `and` or `or` on a value; use where(), & or |")


def _operator(symbol: str, swapped: bool = False) -> Callable[[Symbol, Any], Symbol]:
    def method(self: Symbol, other: Any) -> Symbol:
        return self._binary(symbol, other, self) if swapped else self._binary(symbol, self, other)

    return method


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
    """Return the same code with other meanings for the functions it calls."""
    return types.FunctionType(formula.__code__, {**formula.__globals__, **names}, formula.__name__)


def trace(formula: Formula) -> Trace:
    """Run `formula` on symbols and return its straight-line code; equal subexpressions are computed once.

    Raises TypeError where the formula branches on a value.
    """
    record = Trace(tuple(f"in_{name}" for name in parameters(formula)))  # the prefix keeps `min` and its like free

    def writer(name: str) -> Callable[..., Symbol]:
        return lambda *arguments: record.emit(f"{name}({', '.join(map(record.name_of, arguments))})")

    symbolic = with_names(formula, {name: writer(name) for name in FUNCTIONS})
    record.result = record.name_of(symbolic(*(Symbol(record, name) for name in record.inputs)))
    return record
