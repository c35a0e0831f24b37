"""Programs: a chain of rows of the elementwise table. One loop computes its results, another its gradients.

A program knows no arrays: `evaluate(formula, dtype, *values)`, which runs it, gives its steps their meaning. The steps
become code for a kernel, operations on NumPy arrays, or recorded operations on tensors.
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
    """A formula and its operands: values, and numbers, which take `dtype`. Its derivatives are those of a row."""

    formula: Formula
    derivatives: dict[str, Formula]
    operands: tuple[Any, ...]
    dtype: np.dtype[Any]

    @property
    def named_operands(self) -> list[tuple[str, Any]]:
        """The operands, each with the name of its parameter."""
        return list(zip(parameters(self.formula), self.operands, strict=True))

    @property
    def differentiable(self) -> list[tuple[Formula, Value]]:
        """The derivatives, each with the operand whose gradient it computes."""
        return [
            (self.derivatives[n], o) for n, o in self.named_operands if isinstance(o, Value) and n in self.derivatives
        ]


@dataclass
class Program:
    """Steps in the order they run. Values are numbered: the inputs first, then the steps' results."""

    inputs: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def add_input(self, dtype: np.dtype[Any]) -> Value:
        """Add an input. All inputs must be added before the first step."""
        value = Value(len(self.inputs), dtype)
        self.inputs.append(value)
        return value

    def add_step(self, step: Step, dtype: np.dtype[Any]) -> Value:
        """Add a step whose result is of `dtype`."""
        self.steps.append(step)
        return Value(len(self.inputs) + len(self.steps) - 1, dtype)

    def reached_by(self, result: Value) -> frozenset[int]:
        """Return the numbers of the inputs that a result is computed from."""
        reached: dict[int, frozenset[int]] = {i: frozenset((i,)) for i in range(len(self.inputs))}
        for i, step in enumerate(self.steps, len(self.inputs)):
            reached[i] = frozenset().union(*[reached[o.index] for o in step.operands if isinstance(o, Value)])
        return reached[result.index]

    def run(self, evaluate: Evaluate, inputs: Sequence[Any], needed: Iterable[int]) -> list[Any]:
        """Return all values by their numbers; None stands for those that no value in `needed` depends on."""
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
        """Return the gradient of each input in `wanted`, or None where no step propagates one: reverse mode.

        `grads` holds the gradients of the results, by their numbers. Nothing is summed over broadcast dimensions.
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
        """Return the code of some results. Its inputs are the program's inputs that the results depend on."""
        loop = Trace([f"in{i}" for i in range(len(self.inputs))])
        values = self.run(_writer(loop), [Symbol(loop, name) for name in loop.inputs], [r.index for r in results])
        loop.results = tuple(loop.name_of(values[r.index]) for r in results)
        reached = frozenset().union(*map(self.reached_by, results))
        loop.inputs = tuple(f"in{i}" for i in sorted(reached))
        return loop

    def backward_loop(self, results: Sequence[Value], wanted: Sequence[int]) -> tuple[Trace, list[str | None]]:
        """Return the code of gradients, and in it the name of each gradient of the inputs in `wanted`.

        The code's inputs are g0, g1, … (the gradients of `results`) and in0, in1, … (the program's inputs), as far as
        it reads them. Two gradients may have one name, and a gradient may have the name of an input. The name is None
        where no gradient reaches the input.
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
