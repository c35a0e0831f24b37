"""Reductions over any axes, and cumulative sums.

Every reduction is brought to a contiguous problem of shape (outer, n, inner) and folded over n by one kind of kernel:
`term` maps an element, `combine` folds it in. Long folds are cut into blocks of a fixed size whose partial results are
combined in order, so that results do not depend on the number of threads. Sums and products of float32 accumulate in
float64, along a row after runs of a fixed length.
"""

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from spillgrad_kernels import memory
from spillgrad_kernels.compile import CONTRACT, DISABLE_JIT, REASSOCIATE, intrinsic, jit, overload, register_jitable
from spillgrad_kernels.dispatch import parallel_for
from spillgrad_kernels.scalar_math import exp, where

# Elements that one unit of work folds: 256 KiB of float32, some 8 microseconds.
_BLOCK_ELEMENTS = 1 << 16
# Elements worth a thread of their own: 1 to 3 microseconds of work.
_GRAIN_ELEMENTS = 1 << 13
# Columns folded side by side when inner > 1: their accumulators (8 KiB) stay in the first-level cache.
_BLOCK_COLUMNS = 1024
# Elements of a row that are summed in its own precision.
RUN = 1024
# Elements looked through together for a value.
_SCAN = 256
_NOT_FOUND = np.int64(np.iinfo(np.int64).max)


def maximum(x: Any, y: Any) -> Any:
    """Return the larger of two values, NaN when either is NaN."""
    return np.maximum(x, y)


def minimum(x: Any, y: Any) -> Any:
    """Return the smaller of two values, NaN when either is NaN."""
    return np.minimum(x, y)


def _compiled_as(function: Callable[..., Any], name: str) -> None:
    """Inside kernels, `function` means LLVM's `name`: its reductions are vectorised without assumptions about NaN."""

    @intrinsic
    def instruction(typing_context: Any, x: Any, y: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = arguments[0].type
            return builder.call(
                builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind, kind])), arguments
            )

        return x(x, x), codegen

    @overload(function)
    def _implementation(x: Any, y: Any) -> Any:
        def call(x: Any, y: Any) -> Any:
            return instruction(x, y)

        return call


_compiled_as(maximum, "llvm.maximum")
_compiled_as(minimum, "llvm.minimum")


def _number_extreme(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a twin of `function` that is undefined for NaN: one instruction, where LLVM's own takes five."""
    if DISABLE_JIT:
        return function

    @intrinsic
    def instruction(typing_context: Any, x: Any, y: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = arguments[0].type
            twin = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(twin, arguments, fastmath=("nnan", "nsz"))

        return x(x, y), codegen

    return instruction  # type: ignore[no-any-return]


larger_number = _number_extreme(maximum, "llvm.maxnum")
_smaller_number = _number_extreme(minimum, "llvm.minnum")


# Rows are contiguous. What a row is summed up to is float64, but runs of it are summed in its own precision: in float32
# twice as fast, and the rounding error of a run is below that of the result.


@jit
def row_max(row: Any) -> Any:
    """Return the largest value of a row: NaN if it holds one, -inf if it is empty. Called by kernels."""
    largest, undefined = row.dtype.type(-np.inf), False
    for j in range(row.size):
        undefined |= row[j] != row[j]
        largest = larger_number(largest, row[j])
    return where(undefined, row.dtype.type(np.nan), largest)


@jit
def row_min(row: Any) -> Any:
    """Return the smallest value of a row: NaN if it holds one, inf if it is empty. Called by kernels."""
    smallest, undefined = row.dtype.type(np.inf), False
    for j in range(row.size):
        undefined |= row[j] != row[j]
        smallest = _smaller_number(smallest, row[j])
    return where(undefined, row.dtype.type(np.nan), smallest)


@jit(fastmath=REASSOCIATE)
def _run_sum(x: Any) -> Any:
    total = x.dtype.type(0.0)
    for j in range(x.size):
        total += x[j]
    return total


@jit
def row_sum(row: Any) -> Any:
    """Return the sum of a row. Called by kernels."""
    total = np.float64(0.0)
    for j in range(0, row.size, RUN):
        total += _run_sum(row[j : j + RUN])
    return total


@jit(fastmath=REASSOCIATE)
def _run_dot(x: Any, y: Any) -> Any:
    total = x.dtype.type(0.0)
    for j in range(x.size):
        total += x[j] * y[j]
    return total


@jit
def row_dot(x: Any, y: Any) -> Any:
    """Return the scalar product of two rows. Called by kernels."""
    total = np.float64(0.0)
    for j in range(0, x.size, RUN):
        total += _run_dot(x[j : j + RUN], y[j : j + RUN])
    return total


@jit(fastmath=REASSOCIATE)
def _run_squares(x: Any, centre: Any) -> Any:
    total = x.dtype.type(0.0)
    for j in range(x.size):
        total += (x[j] - centre) * (x[j] - centre)
    return total


@jit
def row_squares(row: Any, centre: Any) -> Any:
    """Return the sum of squared distances from `centre`. Called by kernels."""
    total = np.float64(0.0)
    for j in range(0, row.size, RUN):
        total += _run_squares(row[j : j + RUN], centre)
    return total


@jit(fastmath=REASSOCIATE)
def _run_exponentials(x: Any, shift: Any) -> Any:
    total = x.dtype.type(0.0)
    for j in range(x.size):
        total += exp(x[j] - shift)
    return total


@jit
def row_exponentials(row: Any, shift: Any) -> Any:
    """Return the sum of exp(x - shift). Called by kernels."""
    total = np.float64(0.0)
    for j in range(0, row.size, RUN):
        total += _run_exponentials(row[j : j + RUN], shift)
    return total


@jit(fastmath=REASSOCIATE)
def _row_prod(row: Any) -> Any:
    product = np.float64(1.0)
    for j in range(row.size):
        product *= row[j]
    return product


@jit
def _first_position(row: Any, extreme: Any) -> Any:
    """Return where a row holds `extreme` or NaN first, _NOT_FOUND if nowhere."""
    for begin in range(0, row.size, _SCAN):
        part = row[begin : begin + _SCAN]
        found = _NOT_FOUND
        for j in range(part.size):
            position = where((part[j] == extreme) | (part[j] != part[j]), np.int64(j), _NOT_FOUND)
            found = position if position < found else found
        if found != _NOT_FOUND:
            return begin + found
    return _NOT_FOUND


def _fold_kernel(
    name: str, fold_row: Callable[..., Any], term: Callable[..., Any], combine: Callable[..., Any], fastmath: set[str]
) -> Any:
    """Make a kernel over units of work; unit ((o * blocks + b) * column_blocks + c) folds block b of outer index o.

    `term(x, shift, j)` maps element x at position j of the fold, where `shift` holds one value per result; `combine`
    folds it in. Where there is one column, `fold_row(row, shift, j)` does both from position j on.
    """

    @jit(name=f"reductions.{name}", fastmath=fastmath)
    def kernel(
        start: int, stop: int, a: Any, shift: Any, out: Any, identity: Any, n: int, inner: int, blocks: int, length: int
    ) -> None:
        column_blocks = (inner + _BLOCK_COLUMNS - 1) // _BLOCK_COLUMNS
        accumulators = np.full(_BLOCK_COLUMNS if inner > 1 else 1, identity)
        for unit in range(start, stop):
            o = unit // column_blocks // blocks
            first = unit // column_blocks % blocks * length
            last = first + length if first + length < n else n
            if inner == 1:
                row = a[o * n + first : o * n + last]
                out[unit] = fold_row(row, shift[o], first)
            else:
                column = unit % column_blocks * _BLOCK_COLUMNS
                width = inner - column if inner - column < _BLOCK_COLUMNS else _BLOCK_COLUMNS
                shifts = shift[o * inner + column : o * inner + column + width]
                accumulators[:] = identity
                for j in range(first, last):
                    begin = (o * n + j) * inner + column
                    row = a[begin : begin + width]
                    for c in range(width):
                        accumulators[c] = combine(accumulators[c], term(row[c], shifts[c], j))
                begin = unit // column_blocks * inner + column
                for c in range(width):
                    out[begin + c] = accumulators[c]

    return kernel


def _fold(
    name: str,
    fold_row: Callable[..., Any],
    term: Callable[..., Any],
    combine: Callable[..., Any],
    fastmath: set[str] = CONTRACT,
) -> Any:
    return _fold_kernel(name, register_jitable(fold_row), register_jitable(term), register_jitable(combine), fastmath)


@register_jitable
def _position_in_row(row: Any, extreme: Any, first: int) -> Any:
    found = _first_position(row, extreme)
    return found if found == _NOT_FOUND else first + found


# Name: the fold's kernel (of a row, of a term, of two), and the NumPy function that combines its partial results.
_FOLDS = {
    "sum": (
        _fold("sum", lambda row, _, j: row_sum(row), lambda x, _, j: x, lambda y, x: y + x, REASSOCIATE),
        np.add,
    ),
    "prod": (
        _fold("prod", lambda row, _, j: _row_prod(row), lambda x, _, j: x, lambda y, x: y * x, REASSOCIATE),
        np.multiply,
    ),
    "max": (_fold("max", lambda row, _, j: row_max(row), lambda x, _, j: x, lambda y, x: maximum(y, x)), np.maximum),
    "min": (_fold("min", lambda row, _, j: row_min(row), lambda x, _, j: x, lambda y, x: minimum(y, x)), np.minimum),
    "squares": (
        _fold(
            "squares",
            lambda row, centre, j: row_squares(row, centre),
            lambda x, centre, j: (x - centre) * (x - centre),
            lambda y, x: y + x,
            REASSOCIATE,
        ),
        np.add,
    ),
    "exponentials": (
        _fold(
            "exponentials",
            lambda row, shift, j: row_exponentials(row, shift),
            lambda x, shift, j: exp(x - shift),
            lambda y, x: y + x,
            REASSOCIATE,
        ),
        np.add,
    ),
    "position": (
        _fold(
            "position",
            _position_in_row,
            lambda x, extreme, j: where((x == extreme) | (x != x), j, _NOT_FOUND),
            lambda y, j: y if y < j else j,
        ),
        np.minimum,
    ),
}


class _Order(NamedTuple):
    """How to look at an array such that reducing some axes means folding the middle one of (outer, n, inner)."""

    permutation: tuple[int, ...] | None
    outer: int
    n: int
    inner: int


def _order(shape: tuple[int, ...], axes: tuple[int, ...]) -> _Order:
    axes = tuple(sorted(axes))
    permutation = None
    if axes and axes[-1] - axes[0] != len(axes) - 1:
        kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
        permutation = kept + axes
        shape = tuple(shape[axis] for axis in permutation)
        axes = tuple(range(len(kept), len(shape)))
    first, last = (axes[0], axes[-1] + 1) if axes else (len(shape), len(shape))
    return _Order(permutation, math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:]))


def _flat(a: np.ndarray, permutation: tuple[int, ...] | None) -> np.ndarray:
    """Return the elements in the order of (outer, n, inner), one after the other."""
    if permutation is not None:
        a = a.transpose(permutation)
    return (a if a.flags.c_contiguous else np.ascontiguousarray(a)).reshape(-1)


def _reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    sizes = [1 if axis in axes else size for axis, size in enumerate(shape) if keepdims or axis not in axes]
    return tuple(sizes)


class _Plan(NamedTuple):
    """How to fold an array of a shape: its order, and the blocks that make the units of work."""

    order: _Order
    shape: tuple[int, ...]  # of the result
    blocks: int
    length: int  # of a block
    units: int
    grain: int


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> _Plan:
    order = _order(shape, axes)
    columns = builtins.max(1, builtins.min(order.inner, _BLOCK_COLUMNS))
    length = builtins.max(1, _BLOCK_ELEMENTS // columns)
    blocks = -(-order.n // length)
    units = order.outer * blocks * -(-order.inner // _BLOCK_COLUMNS)
    grain = -(-_GRAIN_ELEMENTS // builtins.max(1, builtins.min(order.n, length) * columns))
    return _Plan(order, _reduced_shape(shape, axes, keepdims), blocks, length, units, grain)


def _reduce(
    name: str,
    a: np.ndarray,
    axes: tuple[int, ...],
    keepdims: bool,
    start: Any,
    shift: np.ndarray | None = None,
    dtype: Any = None,
) -> np.ndarray:
    """Fold `axes` of `a`, beginning from `start`; `shift` holds one value per result in the result's order."""
    kernel, ufunc = _FOLDS[name]
    dtype = a.dtype if dtype is None else dtype
    (permutation, outer, n, inner), shape, blocks, length, units, grain = _plan(a.shape, axes, keepdims)
    if units == 0:
        return np.full(shape, start, dtype)
    partials = memory.empty((outer * blocks * inner,), dtype)
    # Folds that take no shift never use the value read; the results' own memory is a valid place to read it from.
    shifts = partials if shift is None else np.ascontiguousarray(shift).reshape(-1)
    parallel_for(kernel, units, grain, _flat(a, permutation), shifts, partials, start, n, inner, blocks, length)
    if blocks == 1:
        return partials.reshape(shape)
    out = memory.empty(shape, dtype)
    accumulator = np.float64 if isinstance(start, np.float64) else dtype
    with np.errstate(all="ignore"):
        out.reshape(outer, inner)[...] = ufunc.reduce(partials.reshape(outer, blocks, inner), axis=1, dtype=accumulator)
    return out


def sum(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the sum over `axes`; 0 over no elements."""
    return _reduce("sum", a, axes, keepdims, np.float64(0.0))


def prod(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the product over `axes`; 1 over no elements."""
    return _reduce("prod", a, axes, keepdims, np.float64(1.0))


def max(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the largest element over `axes`, NaN where there is one.

    Raises ValueError for the maximum of no elements.
    """
    _require_elements("max", a, axes)
    return _reduce("max", a, axes, keepdims, a.dtype.type(-np.inf))


def min(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the smallest element over `axes`, NaN where there is one.

    Raises ValueError for the minimum of no elements.
    """
    _require_elements("min", a, axes)
    return _reduce("min", a, axes, keepdims, a.dtype.type(np.inf))


def argmax(a: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Return the position of the first largest element along `axis`, of the first NaN where there is one; int64.

    Raises ValueError for the maximum of no elements.
    """
    _require_elements("argmax", a, (axis,))
    return _reduce("position", a, (axis,), keepdims, _NOT_FOUND, max(a, (axis,)), np.int64)


def argmin(a: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Return the position of the first smallest element along `axis`, of the first NaN where there is one; int64.

    Raises ValueError for the minimum of no elements.
    """
    _require_elements("argmin", a, (axis,))
    return _reduce("position", a, (axis,), keepdims, _NOT_FOUND, min(a, (axis,)), np.int64)


def var(
    a: np.ndarray, axes: tuple[int, ...], correction: float = 1, keepdims: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return (variance, mean) over `axes`; squared deviations are divided by max(0, n - `correction`)."""
    n = math.prod(a.shape[axis] for axis in axes)
    mean = sum(a, axes, keepdims)
    with np.errstate(all="ignore"):
        mean /= n
        variance = _reduce("squares", a, axes, keepdims, np.float64(0.0), mean)
        variance /= builtins.max(0.0, n - correction)
    return variance, mean


def norm(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the square root of the sum of squares over `axes`."""
    centre = np.zeros(_reduced_shape(a.shape, axes, keepdims), a.dtype)
    result = _reduce("squares", a, axes, keepdims, np.float64(0.0), centre)
    np.sqrt(result, out=result)
    return result


def logsumexp(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return log(sum(exp(a))) over `axes` without overflow; -inf over no elements."""
    with np.errstate(all="ignore"):
        largest = _reduce("max", a, axes, keepdims, a.dtype.type(-np.inf))
        largest[~np.isfinite(largest)] = 0  # inf - inf would be NaN
        total = _reduce("exponentials", a, axes, keepdims, np.float64(0.0), largest)
        np.log(total, out=total)
        total += largest
    return total


@jit
def _cumsum_rows(start: int, stop: int, a: Any, before: Any, out: Any, n: int, blocks: int, length: int) -> None:
    """Write running sums of the blocks `start` to `stop` of rows, `before` being what precedes each block."""
    for unit in range(start, stop):
        first = unit % blocks * length
        begin, size = unit // blocks * n + first, length if length < n - first else n - first
        x, y = a[begin : begin + size], out[begin : begin + size]
        total = before[unit]
        for j in range(size):
            total += x[j]
            y[j] = total


@jit
def _cumsum_columns(start: int, stop: int, a: Any, out: Any, n: int, inner: int) -> None:
    column_blocks = (inner + _BLOCK_COLUMNS - 1) // _BLOCK_COLUMNS
    accumulators = np.empty(_BLOCK_COLUMNS)
    for unit in range(start, stop):
        column = unit % column_blocks * _BLOCK_COLUMNS
        width = inner - column if inner - column < _BLOCK_COLUMNS else _BLOCK_COLUMNS
        accumulators[:] = 0
        for j in range(n):
            begin = (unit // column_blocks * n + j) * inner + column
            row, result = a[begin : begin + width], out[begin : begin + width]
            for c in range(width):
                accumulators[c] += row[c]
                result[c] = accumulators[c]


def cumsum(a: np.ndarray, axis: int) -> np.ndarray:
    """Return the running sums along `axis`."""
    out = memory.empty(a.shape, a.dtype)
    permutation, outer, n, inner = _order(a.shape, (axis,))
    if out.size == 0:
        return out
    flat = _flat(a, permutation)
    if inner > 1:
        grain = -(-_GRAIN_ELEMENTS // (n * builtins.min(inner, _BLOCK_COLUMNS)))
        parallel_for(_cumsum_columns, outer * -(-inner // _BLOCK_COLUMNS), grain, flat, out.reshape(-1), n, inner)
        return out
    length = builtins.min(n, _BLOCK_ELEMENTS)
    blocks = -(-n // length)
    before = np.zeros((outer, blocks))
    if blocks > 1:
        whole = flat.reshape(outer, n)[:, : (blocks - 1) * length].reshape(outer, blocks - 1, length)
        with np.errstate(all="ignore"):
            np.cumsum(sum(whole, (2,)), axis=1, dtype=np.float64, out=before[:, 1:])
    parallel_for(
        _cumsum_rows, outer * blocks, -(-_BLOCK_ELEMENTS // length), flat, before.reshape(-1), out.reshape(-1),
        n, blocks, length,
    )  # fmt: skip
    return out


def _require_elements(who: str, a: np.ndarray, axes: tuple[int, ...]) -> None:
    for axis in axes:
        if a.shape[axis] == 0:
            raise ValueError(f"{who}: got shape {a.shape}, dimension {axis} is empty; {who} needs an element")
