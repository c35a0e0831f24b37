"""Elementwise loops for the CPU: one builder for contiguous, broadcast and scalar operands.

Operands are dense memory; broadcasting is index arithmetic. The output is walked in rows of the longest inner run over
which every operand either advances by one element or stands still, so that the loop body vectorises whatever the
shapes.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad_kernels.compile import jit
from spillgrad_kernels.dispatch import Kernel, parallel_for
from spillgrad_kernels.formula import FUNCTIONS, Formula, trace
from spillgrad_kernels.memory import empty

# Elements below which another thread does not pay: 65,536 cheap ones take about as long as handing half of them over.
GRAIN = 1 << 16

Shape = tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def plan(shapes: tuple[Shape, ...]) -> tuple[Shape, int, np.ndarray, str]:
    """Return how to walk operands of these shapes: broadcast shape, run length, starts of runs, and pattern.

    Shapes: starts is (operands, runs), in elements of each operand. The pattern has a letter per operand: "v" advances
    along a run, "s" stands still. Raises ValueError, as NumPy does, when the shapes do not broadcast.
    """
    shape = np.broadcast_shapes(*shapes)
    aligned = [(1,) * (len(shape) - len(s)) + s for s in shapes]
    # Per dimension: which operands move along it. Neighbouring dimensions with the same answer are one.
    groups: list[tuple[int, tuple[bool, ...]]] = []
    for d, size in enumerate(shape):
        if size == 1:
            continue
        moves = tuple(s[d] != 1 for s in aligned)
        if groups and groups[-1][1] == moves:
            groups[-1] = (groups[-1][0] * size, moves)
        else:
            groups.append((size, moves))
    if not groups:
        groups = [(math.prod(shape), (True,) * len(shapes))]
    inner, inner_moves = groups.pop()
    strides = [inner if moves else 1 for moves in inner_moves]
    starts = np.zeros((len(shapes), 1), np.int64)
    for size, moves in reversed(groups):
        steps = np.array([stride if m else 0 for stride, m in zip(strides, moves, strict=True)], np.int64)
        starts = (steps[:, None, None] * np.arange(size)[None, :, None] + starts[:, None, :]).reshape(len(shapes), -1)
        strides = [stride * size if m else stride for stride, m in zip(strides, moves, strict=True)]
    starts.setflags(write=False)
    return shape, inner, np.ascontiguousarray(starts), "".join("v" if m else "s" for m in inner_moves)


@functools.cache
def build(formula: Formula, name: str, pattern: str, dtype: np.dtype[Any]) -> Kernel:
    """Compile the loop that computes `formula` for operands that move by `pattern`; constants take `dtype`."""
    body = trace(formula)
    operands = range(len(pattern))
    slices, loads = [], []
    for i, (letter, value) in enumerate(zip(pattern, body.inputs, strict=True)):
        if letter == "v":
            slices.append(f"x{i} = a{i}[starts[{i}, row] + first : starts[{i}, row] + first + length]")
            loads.append(f"{value} = x{i}[i]")
        else:
            slices.append(f"{value} = a{i}[starts[{i}, row]]")
    lines = [
        f"def kernel(start, stop, inner, starts, {', '.join(f'a{i}' for i in operands)}, out):",
        "    row = start // inner",
        "    first = start - row * inner",
        "    while start < stop:",
        "        length = min(inner - first, stop - start)",
        *(f"        {line}" for line in slices),
        "        y = out[start : start + length]",
        "        for i in range(length):",
        *(f"            {line}" for line in [*loads, *body.lines]),
        f"            y[i] = {body.result}",
        "        start += length",
        "        row += 1",
        "        first = 0",
    ]
    namespace: dict[str, Any] = {**FUNCTIONS, **{key: dtype.type(value) for key, value in body.constants.items()}}
    namespace["__name__"] = __name__
    exec(compile("\n".join(lines), f"<{name}>", "exec"), namespace)
    return jit(namespace["kernel"], name=f"elementwise.{name}.{pattern}.{dtype}")  # type: ignore[no-any-return]


def elementwise(
    formula: Formula, name: str, operands: Sequence[np.ndarray], dtype: Any, out: np.ndarray | None = None
) -> np.ndarray:
    """Compute `formula` over broadcast operands into fresh memory of `dtype`, or into `out`.

    Shapes: operands broadcast together; `out`, if given, is C-contiguous and of the broadcast shape. It may be one of
    the operands, but not overlap one otherwise. Constants in the formula take the first floating operand's dtype.
    """
    shape, inner, starts, pattern = plan(tuple([a.shape for a in operands]))
    if out is None:
        out = empty(shape, dtype)
    if out.size:
        constants = next((a.dtype for a in operands if a.dtype.kind == "f"), out.dtype)
        dense = [np.ascontiguousarray(a).reshape(-1) for a in operands]
        kernel = build(formula, name, pattern, constants)
        parallel_for(kernel, out.size, GRAIN, inner, starts, *dense, out.reshape(-1))
    return out
