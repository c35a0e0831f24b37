"""Programs: chains of elementwise operations. One loop computes a program's results, another loop its gradients.

A program holds no arrays. To run it, a caller passes a function `evaluate(formula, dtype, *values)`, which computes one
step. Depending on `evaluate`, the steps become code for a kernel, operations on NumPy arrays, or recorded operations on
tensors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import Formula, Symbol, Trace, parameters

Evaluate = Callable[..., Any]


@dataclass(frozen=True)
class Value:
    """An input of a program or the result of a step: its number, and the dtype in which it is computed."""

    index: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Step:
    """A formula and its operands, which are values, or numbers to convert to `dtype`.

    `derivatives` holds the formulas of the derivatives by parameter name, as in a row of the elementwise table.
    """

    formula: Formula
    derivatives: dict[str, Formula]
    operands: tuple[Any, ...]
    dtype: np.dtype[Any]

    @property
    def named_operands(self) -> list[tuple[str, Any]]:
        """Each operand, with the name of its parameter in the formula: pairs (name, operand)."""
        return list(zip(parameters(self.formula), self.operands, strict=True))

    @property
    def differentiable(self) -> list[tuple[Formula, Value]]:
        """Each derivative, with the operand whose gradient it computes: pairs (derivative, operand)."""
        return [
            (self.derivatives[n], o) for n, o in self.named_operands if isinstance(o, Value) and n in self.derivatives
        ]


@dataclass
class Program:
    """Steps in the order they run. Values are numbered: the inputs first, then the steps' results."""

    inputs: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def add_input(self, dtype: np.dtype[Any]) -> Value:
        """Add an input of `dtype` and return its value. All inputs must be added before the first step."""
        value = Value(len(self.inputs), dtype)
        self.inputs.append(value)
        return value

    def add_step(self, step: Step, dtype: np.dtype[Any]) -> Value:
        """Add a step whose result has `dtype`, and return the value of its result."""
        self.steps.append(step)
        return Value(len(self.inputs) + len(self.steps) - 1, dtype)

    def reached_by(self, result: Value) -> frozenset[int]:
        """Return the numbers of the inputs from which `result` is computed."""
        reached: dict[int, frozenset[int]] = {i: frozenset((i,)) for i in range(len(self.inputs))}
        for i, step in enumerate(self.steps, len(self.inputs)):
            reached[i] = frozenset().union(*[reached[o.index] for o in step.operands if isinstance(o, Value)])
        return reached[result.index]

    def run(self, evaluate: Evaluate, inputs: Sequence[Any], needed: Iterable[int]) -> list[Any]:
        """Run the steps on which the values numbered `needed` depend; return all values, in the order of their numbers.

        The value of a step that did not run is None.
        """
        wanted = set(needed)
        for i, step in reversed(list(self._numbered_steps())):
            if i in wanted:
                wanted.update(o.index for o in step.operands if isinstance(o, Value))
        values = list(inputs)
        for i, step in self._numbered_steps():
            operands = [values[o.index] if isinstance(o, Value) else o for o in step.operands]
            values.append(evaluate(step.formula, step.dtype, *operands) if i in wanted else None)
        return values

    def gradients(
        self, evaluate: Evaluate, inputs: Sequence[Any], grads: dict[int, Any], wanted: Sequence[int]
    ) -> list[Any]:
        """Return the gradient of each input in `wanted`, in reverse mode; None for an input that no gradient reaches.

        `grads` maps the numbers of results to their gradients. Gradients are not summed over broadcast dimensions.
        """
        leads = [i in wanted for i in range(len(inputs))]
        used: set[int] = set()
        for i, step in self._numbered_steps():
            onward = [derivative for derivative, o in step.differentiable if leads[o.index]]
            leads.append(bool(onward))
            numbers = {"result": i, **{n: o.index for n, o in step.named_operands if isinstance(o, Value)}}
            used.update(numbers[n] for derivative in onward for n in parameters(derivative) if n in numbers)
        values = self.run(evaluate, inputs, used)
        slopes = dict(grads)
        for i, step in reversed(list(self._numbered_steps())):
            g = slopes.pop(i, None)
            if g is None or not leads[i]:
                continue
            operands = {n: values[o.index] if isinstance(o, Value) else o for n, o in step.named_operands}
            given = {**operands, "g": g, "result": values[i]}
            for derivative, operand in step.differentiable:
                if leads[operand.index]:
                    slope = evaluate(derivative, step.dtype, *[given[name] for name in parameters(derivative)])
                    if operand.index in slopes:
                        slope = evaluate(ROWS["add"].forward, step.dtype, slopes[operand.index], slope)
                    slopes[operand.index] = slope
        return [slopes.get(i) for i in wanted]

    def _numbered_steps(self) -> Iterator[tuple[int, Step]]:
        return enumerate(self.steps, len(self.inputs))

    def forward_loop(self, results: Sequence[Value]) -> Trace:
        """Return the code that computes `results`. Its inputs are the program's inputs on which `results` depend."""
        loop = Trace([f"in{i}" for i in range(len(self.inputs))])
        values = self.run(_writer(loop), [Symbol(loop, name) for name in loop.inputs], [r.index for r in results])
        loop.results = tuple(loop.name_of(values[r.index]) for r in results)
        reached = frozenset().union(*map(self.reached_by, results))
        loop.inputs = tuple(f"in{i}" for i in sorted(reached))
        return loop

    def backward_loop(self, results: Sequence[Value], wanted: Sequence[int]) -> tuple[Trace, list[str | None]]:
        """Return the code that computes gradients, and the name in this code of each gradient of an input in `wanted`.

        The code's inputs are g0, g1, … (the gradients of `results`) and in0, in1, … (the program's inputs), as far as
        the code reads them. Two gradients may have the same name, and a gradient may have the name of an input. The
        name is None for an input that no gradient reaches.
        """
        inputs = [f"in{i}" for i in range(len(self.inputs))]
        loop = Trace([*(f"g{k}" for k in range(len(results))), *inputs])
        write = _writer(loop)
        grads: dict[int, Any] = {}
        for k, result in enumerate(results):
            g = Symbol(loop, f"g{k}")
            known = grads.get(result.index)
            grads[result.index] = g if known is None else write(ROWS["add"].forward, result.dtype, known, g)
        slopes = self.gradients(write, [Symbol(loop, name) for name in inputs], grads, wanted)
        names = [None if slope is None else loop.name_of(slope) for slope in slopes]
        loop.results = tuple(dict.fromkeys(name for name in names if name and name not in loop.inputs))
        loop.inputs = tuple(name for name in loop.inputs if name in loop.used)
        return loop, names


def _writer(loop: Trace) -> Evaluate:
    return lambda formula, dtype, *values: loop.apply(formula, values, dtype.type)
