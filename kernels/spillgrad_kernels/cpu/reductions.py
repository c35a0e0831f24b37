"""Reductions over any axes, and cumulative sums.

Every reduction is brought to a contiguous problem of shape (outer, n, inner) and folded over n by one kind of kernel:
`term` maps an element, `combine` folds it in. Long folds are cut into blocks of a fixed size whose partial results are
combined in order, so that results do not depend on the number of threads. Sums and products of float32 accumulate in
float64, along a row after runs of a fixed length.
"""

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.pointers import aligned, array_at, data_of
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import CONTRACT, DISABLE_JIT, REASSOCIATE, intrinsic, jit, overload, register_jitable
from spillgrad_kernels.layout import Layout, layout_of
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.scalar_math import exp, where
from spillgrad_kernels.threads.dispatch import Kernel, entry_point, parallel_for

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
NOT_FOUND = np.int64(np.iinfo(np.int64).max)


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
    """Return where a row holds `extreme` or NaN first, NOT_FOUND if nowhere."""
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


class Rule(NamedTuple):
    """What a fold does.

    `term(x, shift, j)` maps element x at position j of the fold, where `shift` holds one value per result; `combine`
    folds it in, beginning from `identity`. In place of both, `row(row, shift, j)` folds a row from position j on.
    `finish(folded, n)` makes the result of what n elements, or a block of them, were folded to.
    """

    row: Callable[..., Any]
    term: Callable[..., Any]
    combine: Callable[..., Any]
    identity: Callable[[Any], Any]  # of the dtype's type
    ufunc: np.ufunc  # combines the results of blocks, in the identity's dtype
    fastmath: set[str] = CONTRACT
    shifted: bool = False
    finish: Callable[..., Any] = lambda folded, n: folded
    empty: float | None = None  # the result over no elements, if not the identity

    def result_type(self, dtype: Any) -> Any:
        """Return the dtype of results: the elements', or that of positions."""
        return np.int64 if type(self.identity(np.float64)) is np.int64 else dtype


RULES = {
    "sum": Rule(
        lambda row, _, j: row_sum(row), lambda x, _, j: x, lambda y, x: y + x,
        lambda _: np.float64(0.0), np.add, REASSOCIATE,
    ),
    "mean": Rule(
        lambda row, _, j: row_sum(row), lambda x, _, j: x, lambda y, x: y + x,
        lambda _: np.float64(0.0), np.add, REASSOCIATE, finish=lambda total, n: total / n, empty=np.nan,
    ),
    "prod": Rule(
        lambda row, _, j: _row_prod(row), lambda x, _, j: x, lambda y, x: y * x,
        lambda _: np.float64(1.0), np.multiply, REASSOCIATE,
    ),
    "max": Rule(
        lambda row, _, j: row_max(row), lambda x, _, j: x, lambda y, x: maximum(y, x),
        lambda kind: kind(-np.inf), np.maximum,
    ),
    "min": Rule(
        lambda row, _, j: row_min(row), lambda x, _, j: x, lambda y, x: minimum(y, x),
        lambda kind: kind(np.inf), np.minimum,
    ),
    "squares": Rule(
        lambda row, centre, j: row_squares(row, centre), lambda x, centre, j: (x - centre) * (x - centre),
        lambda y, x: y + x, lambda _: np.float64(0.0), np.add, REASSOCIATE, shifted=True,
    ),
    "exponentials": Rule(
        lambda row, shift, j: row_exponentials(row, shift), lambda x, shift, j: exp(x - shift),
        lambda y, x: y + x, lambda _: np.float64(0.0), np.add, REASSOCIATE, shifted=True,
    ),
    "position": Rule(
        _position_in_row, lambda x, extreme, j: where((x == extreme) | (x != x), j, NOT_FOUND),
        lambda y, j: y if y < j else j, lambda _: NOT_FOUND, np.minimum, shifted=True,
    ),
}  # fmt: skip
for _function in {f for rule in RULES.values() for f in (rule.row, rule.term, rule.combine, rule.finish)}:
    register_jitable(_function)


@functools.cache
def _kernel(name: str, dtype: np.dtype[Any]) -> Kernel:
    """Return a kernel over units of work; unit ((o * blocks + b) * column_blocks + c) folds block b of outer index o.

    It gets the address of `Fold.words`, and the ids of the array, of the shifts if the rule has any, and of the result.
    """
    rule = RULES[name]
    fold_row, term, combine, finish = rule.row, rule.term, rule.combine, rule.finish
    identity = rule.identity(dtype.type)
    accumulated = type(identity)
    like, like_result, like_int64 = np.zeros(1, dtype), np.zeros(1, rule.result_type(dtype)), np.zeros(1, np.int64)

    def fold(start: int, stop: int, words: int, a: int, shift: int, out: int) -> None:
        numbers = array_at(like_int64, words, 5)
        outer, n, inner, blocks, length = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
        elements = array_at(like, data_of(a), outer * n * inner)
        shifts = array_at(like, data_of(shift), outer * inner)
        results = array_at(like_result, data_of(out), outer * blocks * inner)
        if inner == 1:
            for unit in range(start, stop):
                o, first = unit // blocks, unit % blocks * length
                last = first + length if first + length < n else n
                results[unit] = finish(fold_row(elements[o * n + first : o * n + last], shifts[o], first), n)
            return
        column_blocks = (inner + _BLOCK_COLUMNS - 1) // _BLOCK_COLUMNS
        accumulators = np.empty(_BLOCK_COLUMNS, accumulated)
        for unit in range(start, stop):
            o = unit // column_blocks // blocks
            first = unit // column_blocks % blocks * length
            last = first + length if first + length < n else n
            column = unit % column_blocks * _BLOCK_COLUMNS
            width = inner - column if inner - column < _BLOCK_COLUMNS else _BLOCK_COLUMNS
            own_shifts = shifts[o * inner + column : o * inner + column + width]
            accumulators[:] = identity
            for j in range(first, last):
                begin = (o * n + j) * inner + column
                row = elements[begin : begin + width]
                for c in range(width):
                    accumulators[c] = combine(accumulators[c], term(row[c], own_shifts[c], j))
            begin = unit // column_blocks * inner + column
            for c in range(width):
                results[begin + c] = finish(accumulators[c], n)

    name = f"reductions.{name}.{dtype.name}"
    if rule.shifted:
        return jit(fold, name=name, fastmath=rule.fastmath)
    register_jitable(fold, fastmath=rule.fastmath, error_model="numpy")

    @jit(name=name, fastmath=rule.fastmath)
    def kernel(start: int, stop: int, words: int, a: int, out: int) -> None:
        fold(start, stop, words, a, out, out)  # shifts that no term uses may be read anywhere

    return kernel


class Order(NamedTuple):
    """How to look at an array such that reducing some axes means folding the middle one of (outer, n, inner)."""

    permutation: tuple[int, ...] | None
    outer: int
    n: int
    inner: int


def fold_order(shape: tuple[int, ...], axes: tuple[int, ...]) -> Order:
    """Return how to look at an array such that reducing some axes means folding the middle one."""
    axes = tuple(sorted(axes))
    permutation = None
    if axes and axes[-1] - axes[0] != len(axes) - 1:
        kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
        permutation = kept + axes
        shape = tuple(shape[axis] for axis in permutation)
        axes = tuple(range(len(kept), len(shape)))
    first, last = (axes[0], axes[-1] + 1) if axes else (len(shape), len(shape))
    return Order(permutation, math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:]))


def _flat(a: np.ndarray, permutation: tuple[int, ...] | None) -> np.ndarray:
    """Return the elements in the order of (outer, n, inner), one after the other."""
    if permutation is not None:
        a = a.transpose(permutation)
    return aligned(a if a.flags.c_contiguous else np.ascontiguousarray(a)).reshape(-1)


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Return the shape of what a reduction over some axes gives."""
    sizes = [1 if axis in axes else size for axis, size in enumerate(shape) if keepdims or axis not in axes]
    return tuple(sizes)


class Fold(NamedTuple):
    """How to fold arrays of one layout: the kernel, the blocks that make its units of work, and the result.

    `moved` says that elements must first be brought into the order of (outer, n, inner).
    """

    rule: Rule
    kernel: Kernel
    units: int
    grain: int
    words: int  # the address of what the kernel reads: outer, n, inner, blocks, length of a block
    order: Order
    blocks: int
    moved: bool
    shape: tuple[int, ...]
    dtype: Any
    kept: np.ndarray  # the memory at `words`

    @property
    def direct(self) -> bool:
        """Whether `code` alone gives the result, on one thread."""
        return not self.moved and self.blocks == 1 and 0 < self.units <= self.grain

    @property
    def code(self) -> Kernel:
        """The kernel as a function of a range, `words` and the arrays' ids."""
        return entry_point(self.kernel, 6 if self.rule.shifted else 5)

    def run(self, operands: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        """Fold an array into one, a contiguous one; a shifted fold's second operand has one value per result."""
        (out,), rule = outs, self.rule
        permutation, outer, _, inner = self.order
        if self.units == 0:
            out.fill(rule.identity(operands[0].dtype.type) if rule.empty is None else rule.empty)
            return
        arrays = [_flat(operands[0], permutation), *map(np.ascontiguousarray, operands[1:])]
        partials = out if self.blocks == 1 else buffers.empty((outer, self.blocks, inner), out.dtype)
        parallel_for(self.kernel, self.units, self.grain, self.words, *map(id, arrays), id(partials))
        if partials is not out:
            kind = type(rule.identity(out.dtype.type))
            with np.errstate(all="ignore"):
                out.reshape(outer, inner)[...] = rule.ufunc.reduce(partials, axis=1, dtype=kind)


@functools.lru_cache(maxsize=4096)
def prepare(name: str, operand: Layout, axes: tuple[int, ...], keepdims: bool) -> Fold:
    """Return how to fold `axes` of arrays of a layout by the rule `name`."""
    shape, dtype, rule = operand.shape, operand.dtype, RULES[name]
    order = fold_order(shape, axes)
    columns = builtins.max(1, builtins.min(order.inner, _BLOCK_COLUMNS))
    length = builtins.max(1, _BLOCK_ELEMENTS // columns)
    blocks = -(-order.n // length)
    units = order.outer * blocks * -(-order.inner // _BLOCK_COLUMNS)
    grain = -(-_GRAIN_ELEMENTS // builtins.max(1, builtins.min(order.n, length) * columns))
    words = np.array([order.outer, order.n, order.inner, blocks, length], np.int64)
    moved = order.permutation is not None or not operand.dense
    return Fold(
        rule, _kernel(name, dtype), units, grain, words.ctypes.data, order, blocks, moved,
        reduced_shape(shape, axes, keepdims), rule.result_type(dtype), words,
    )  # fmt: skip


def _reduce(name: str, axes: tuple[int, ...], keepdims: bool, *operands: np.ndarray) -> np.ndarray:
    """Fold `axes` of an array; a shifted fold has a second operand, with one value per result in the result's order."""
    fold = prepare(name, layout_of(operands[0]), axes, keepdims)
    out = buffers.empty(fold.shape, fold.dtype)
    fold.run(operands, (out,))
    return out


@on_device("reductions")
def sum(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the sum over `axes`; 0 over no elements."""
    return _reduce("sum", axes, keepdims, a)


@on_device("reductions")
def mean(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the average over `axes`; NaN over no elements."""
    return _reduce("mean", axes, keepdims, a)


@on_device("reductions")
def prod(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the product over `axes`; 1 over no elements."""
    return _reduce("prod", axes, keepdims, a)


@on_device("reductions")
def max(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the largest element over `axes`, NaN where there is one.

    Raises ValueError for the maximum of no elements.
    """
    require_elements("max", a.shape, axes)
    return _reduce("max", axes, keepdims, a)


@on_device("reductions")
def min(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the smallest element over `axes`, NaN where there is one.

    Raises ValueError for the minimum of no elements.
    """
    require_elements("min", a.shape, axes)
    return _reduce("min", axes, keepdims, a)


@on_device("reductions")
def argmax(a: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Return the position of the first largest element along `axis`, of the first NaN where there is one; int64.

    Raises ValueError for the maximum of no elements.
    """
    require_elements("argmax", a.shape, (axis,))
    return _reduce("position", (axis,), keepdims, a, max(a, (axis,)))


@on_device("reductions")
def argmin(a: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Return the position of the first smallest element along `axis`, of the first NaN where there is one; int64.

    Raises ValueError for the minimum of no elements.
    """
    require_elements("argmin", a.shape, (axis,))
    return _reduce("position", (axis,), keepdims, a, min(a, (axis,)))


@on_device("reductions")
def var(
    a: np.ndarray, axes: tuple[int, ...], correction: float = 1, keepdims: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return (variance, mean) over `axes`; squared deviations are divided by max(0, n - `correction`)."""
    n = math.prod(a.shape[axis] for axis in axes)
    centre = mean(a, axes, keepdims)
    variance = _reduce("squares", axes, keepdims, a, centre)
    with np.errstate(all="ignore"):
        variance /= builtins.max(0.0, n - correction)
    return variance, centre


@on_device("reductions")
def norm(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the square root of the sum of squares over `axes`."""
    centre = np.zeros(reduced_shape(a.shape, axes, keepdims), a.dtype)
    result = _reduce("squares", axes, keepdims, a, centre)
    np.sqrt(result, out=result)
    return result


@on_device("reductions")
def logsumexp(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return log(sum(exp(a))) over `axes` without overflow; -inf over no elements."""
    with np.errstate(all="ignore"):
        largest = _reduce("max", axes, keepdims, a)
        largest[~np.isfinite(largest)] = 0  # inf - inf would be NaN
        total = _reduce("exponentials", axes, keepdims, a, largest)
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


@on_device("reductions")
def cumsum(a: np.ndarray, axis: int) -> np.ndarray:
    """Return the running sums along `axis`."""
    out = buffers.empty(a.shape, a.dtype)
    permutation, outer, n, inner = fold_order(a.shape, (axis,))
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


def require_elements(who: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Raise ValueError where a reduction has no elements, and no value for that."""
    for axis in axes:
        if shape[axis] == 0:
            raise ValueError(f"{who}: got shape {shape}, dimension {axis} is empty; {who} needs an element")
