"""Optimizer updates, in place and in one pass over the memory of all arrays; and sums of squares to clip gradients."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at, data_of
from spillgrad_kernels.device_array import DeviceArray, device_kernel, on_device
from spillgrad_kernels.jit.compile import FLOATS, REASSOCIATE, jit
from spillgrad_kernels.tables.formula import Formula, parameters
from spillgrad_kernels.tables.optim import Update, adam, adamw, lion, scaled, sgd
from spillgrad_kernels.threads.dispatch import Kernel, parallel_for

__all__ = ["CHUNK", "adam", "adamw", "lion", "run", "scaled", "sgd", "squares_of_chunks", "sums_of_squares"]

# The elements of a unit of work. They fill whole vectors, so that only the last unit has a remainder.
CHUNK = 4096
# The number of elements that pays for another thread: 3 to 6 microseconds of work.
_GRAIN = 2 * CHUNK


def _loop(formula: Formula, states: int) -> Any:
    """Return the compiled loop that applies an optimizer's formula, in place, to parts of five arrays.

    The arrays are the parameter, its gradient and three states. The formula has `states` states, from 0 to 3; the loop
    does not read a state that the formula lacks.
    """
    arrays = ["param", "grad", "state0", "state1", "state2"]
    operands = [f"{array}[j]" for array in arrays[: 2 + states]]
    numbers = [f"n{i}" for i in range(len(parameters(formula)) - len(operands))]
    lines = [
        f"def loop({', '.join(arrays)}, numbers):",
        *(f"    {number} = numbers[{i}]" for i, number in enumerate(numbers)),
        "    for j in range(param.size):",
        f"        {', '.join([operands[0], *operands[2:]])} = formula({', '.join([*operands, *numbers])})",
    ]
    namespace: dict[str, Any] = {"formula": formula, "__name__": __name__}
    exec(compile("\n".join(lines), f"<{formula.__name__}>", "exec"), namespace)
    return jit(namespace["loop"], name=f"optim.{formula.__name__}")


@functools.cache
def _over_arrays(formula: Formula, states: int) -> Kernel:
    """Return the kernel that applies a formula with `states` states to chunks of many parameters, in place.

    The kernel's argument `table` has a row for each parameter: the number of the parameter's first chunk, its size in
    elements, and the ids of its five arrays (see `_loop`).
    """
    loop = _loop(formula, states)

    def kernel(start: int, stop: int, like: Any, table: Any, numbers: Any) -> None:
        row = 0
        width = like.itemsize
        for chunk in range(start, stop):
            while row + 1 < len(table) and table[row + 1, 0] <= chunk:
                row += 1
            begin = (chunk - table[row, 0]) * CHUNK
            count = min(CHUNK, table[row, 1] - begin)
            loop(
                array_at(like, data_of(table[row, 2]) + begin * width, count),
                array_at(like, data_of(table[row, 3]) + begin * width, count),
                array_at(like, data_of(table[row, 4]) + begin * width, count),
                array_at(like, data_of(table[row, 5]) + begin * width, count),
                array_at(like, data_of(table[row, 6]) + begin * width, count),
                numbers[row],
            )

    return jit(kernel, name=f"optim.{formula.__name__}.over_arrays")


@on_device("optim")
def run(updates: Iterable[Update]) -> None:
    """Update the arrays of all `updates` in place, in one launch for each formula and dtype."""
    groups: dict[tuple[Formula, Any], list[Update]] = {}
    elsewhere = []
    for update in updates:
        if type(update.param) is DeviceArray:
            elsewhere.append(update)
        elif update.param.size:
            groups.setdefault((update.formula, update.param.dtype), []).append(update)
    for (formula, dtype), group in groups.items():
        rows, chunks, elements = [], 0, 0
        for _, param, grad, state, _ in group:
            # In place of a state that the formula lacks, the loop gets the gradient, and does not read it as a state.
            states = (*state, grad, grad, grad)[:3]
            rows.append((chunks, param.size, id(param), id(grad), *map(id, states)))
            chunks += -(-param.size // CHUNK)
            elements += param.size
        # Numbers have the dtype of the arrays. A float64 number would make the whole loop float64.
        numbers = np.array([update.numbers for update in group], dtype)
        grain = max(1, chunks * _GRAIN // elements)
        kernel, table = _over_arrays(formula, len(group[0].state)), np.array(rows, np.int64)
        parallel_for(kernel, chunks, grain, np.empty(0, dtype), table, numbers)
    if elsewhere:
        device_kernel(run)(elsewhere)


@jit(fastmath=REASSOCIATE)
def _sums_of_squares(start: int, stop: int, like: Any, table: Any, partials: Any) -> None:
    row = 0
    for chunk in range(start, stop):
        while row + 1 < len(table) and table[row + 1, 0] <= chunk:
            row += 1
        begin = (chunk - table[row, 0]) * CHUNK
        part = array_at(like, data_of(table[row, 2]) + begin * like.itemsize, min(CHUNK, table[row, 1] - begin))
        total = np.float64(0.0)
        for j in range(part.size):
            x = np.float64(part[j])
            total += x * x
        partials[chunk] = total


@on_device("optim")
def sums_of_squares(arrays: Sequence[np.ndarray]) -> list[float]:
    """Return each array's sum of squares, added up in float64. Raises TypeError unless all have the same float type."""
    return [float(sums[0] if sums.size == 1 else sums.sum()) for sums in squares_of_chunks(arrays)]


def squares_of_chunks(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the sums of squares of each array's runs of `CHUNK` elements, added up in float64.

    The sum of squares of an array is the sum of these. So parts of an array that begin at multiples of `CHUNK` give the
    bits of the whole. Raises TypeError unless all arrays have the same float type.
    """
    flat = [np.ascontiguousarray(a) for a in arrays]
    if not flat:
        return []
    if flat[0].dtype not in FLOATS or any(a.dtype != flat[0].dtype for a in flat):
        listed = ", ".join(sorted({str(a.dtype) for a in flat}))
        raise TypeError(f"sums_of_squares: got {listed}; all must be float32, or all float64")
    starts = [0, *itertools.accumulate(-(-a.size // CHUNK) for a in flat)]
    table = np.array([(start, a.size, id(a)) for start, a in zip(starts, flat, strict=False)], np.int64)
    sums = np.empty(starts[-1])
    grain = max(1, starts[-1] * _GRAIN // max(1, sum(a.size for a in flat)))
    parallel_for(_sums_of_squares, starts[-1], grain, np.empty(0, flat[0].dtype), table, sums)
    return [sums[start:stop] for start, stop in itertools.pairwise(starts)]
