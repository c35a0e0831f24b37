"""Folds of contiguous rows for kernels: sums, extremes and positions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.jit.compile import REASSOCIATE, jit, register_jitable
from spillgrad_kernels.tables.reductions import NOT_FOUND, larger_number, smaller_number
from spillgrad_kernels.tables.scalar_math import exp, where

# The number of elements of a run. A run is summed in the precision of the row.
RUN = 1024
# The number of elements that are searched together for a value.
_SCAN = 256


def _row_extreme(name: str, better: Callable[..., Any], start: float) -> Any:
    @jit(name=f"rows.row_{name}")
    def row_extreme(row: Any) -> Any:
        extreme, undefined = row.dtype.type(start), False
        for j in range(row.size):
            undefined |= row[j] != row[j]
            extreme = better(extreme, row[j])
        return where(undefined, row.dtype.type(np.nan), extreme)

    return row_extreme


# The largest and the smallest value of a row. They are NaN if the row holds a NaN, and -inf and inf if it is empty.
row_max, row_min = _row_extreme("max", larger_number, -np.inf), _row_extreme("min", smaller_number, np.inf)


# The sum of a row is float64, but each run is summed in the precision of the row. In float32 this is twice as fast, and
# the rounding error of a run is below the rounding error of the result.


def _row_total(name: str, term: Callable[..., Any]) -> Any:
    """Return a kernel of (row, *numbers) that returns the sum of term(x, *numbers) over the elements x of the row."""
    register_jitable(term)

    @jit(fastmath=REASSOCIATE, name=f"rows.run_{name}")
    def run_total(run: Any, *numbers: Any) -> Any:
        total = run.dtype.type(0.0)
        for j in range(run.size):
            total += term(run[j], *numbers)
        return total

    @jit(name=f"rows.row_{name}")
    def row_total(row: Any, *numbers: Any) -> Any:
        total = np.float64(0.0)
        for j in range(0, row.size, RUN):
            total += run_total(row[j : j + RUN], *numbers)
        return total

    return row_total


row_sum = _row_total("sum", lambda x: x)
row_squares = _row_total("squares", lambda x, centre: (x - centre) * (x - centre))
row_exponentials = _row_total("exponentials", lambda x, shift: exp(x - shift))


@jit(fastmath=REASSOCIATE)
def _run_dot(x: Any, y: Any) -> Any:
    total = x.dtype.type(0.0)
    for j in range(x.size):
        total += x[j] * y[j]
    return total


@jit
def row_dot(x: Any, y: Any) -> Any:
    """Return the scalar product of two rows."""
    total = np.float64(0.0)
    for j in range(0, x.size, RUN):
        total += _run_dot(x[j : j + RUN], y[j : j + RUN])
    return total


@jit(fastmath=REASSOCIATE)
def _row_prod(row: Any) -> Any:
    product = np.float64(1.0)
    for j in range(row.size):
        product *= row[j]
    return product


@jit
def _first_position(row: Any, extreme: Any) -> Any:
    """Return the position of the first element that is equal to `extreme` or is NaN, or NOT_FOUND if there is none."""
    for begin in range(0, row.size, _SCAN):
        part = row[begin : begin + _SCAN]
        found = NOT_FOUND
        for j in range(part.size):
            position = where((part[j] == extreme) | (part[j] != part[j]), np.int64(j), NOT_FOUND)
            found = position if position < found else found
        if found != NOT_FOUND:
            return begin + found
    return NOT_FOUND


def _position_in_row(row: Any, extreme: Any, first: int) -> Any:
    found = _first_position(row, extreme)
    return found if found == NOT_FOUND else first + found


# The fold of a row for each rule, as a function of the row, its shift, and the position of its first element in the
# fold.
ROW_FOLDS: dict[str, Callable[..., Any]] = {
    "sum": lambda row, _, j: row_sum(row),
    "mean": lambda row, _, j: row_sum(row),
    "prod": lambda row, _, j: _row_prod(row),
    "max": lambda row, _, j: row_max(row),
    "min": lambda row, _, j: row_min(row),
    "squares": lambda row, centre, j: row_squares(row, centre),
    "exponentials": lambda row, shift, j: row_exponentials(row, shift),
    "position": _position_in_row,
}
for _function in set(ROW_FOLDS.values()):
    register_jitable(_function)
