"""Reductions over any axes, and cumulative sums.

Every reduction is computed as a fold over n of a contiguous array of shape (outer, n, inner). `Rule.term` maps each
element, and `Rule.combine` adds the mapped element to the fold. A long fold is cut into blocks of a fixed size, whose
results are combined in order, so that results do not depend on the number of threads. Sums and products of float32 are
accumulated in float64; along a row, runs of a fixed length are summed in float32, and their sums in float64.
"""

import builtins
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cpu.pointers import aligned, array_at, data_of
from spillgrad_kernels.cpu.rows import ROW_FOLDS
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit, register_jitable
from spillgrad_kernels.layout import Layout, layout_of
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.reductions import RULES, Order, Rule, fold_order, reduced_shape, require_elements
from spillgrad_kernels.threads.dispatch import Kernel, entry_point, parallel_for

# The number of elements that a unit of work folds: 256 KiB of float32, some 8 microseconds.
_BLOCK_ELEMENTS = 1 << 16
# The number of elements that pays for another thread: 1 to 3 microseconds of work.
_GRAIN_ELEMENTS = 1 << 13
# The number of columns that are folded together if inner > 1: their accumulators (8 KiB) stay in the first-level cache.
_BLOCK_COLUMNS = 1024


@functools.cache
def _kernel(name: str, dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that folds arrays of `dtype` by the rule `name`.

    After its range of units, the kernel takes the address `Fold.words`, and the ids of the array, of the shifts if the
    rule has shifts, and of the result. Unit (o * blocks + b) * column_blocks + c folds column block c of block b of
    outer index o.
    """
    rule = RULES[name]
    fold_row, term, combine, finish = ROW_FOLDS[name], rule.term, rule.combine, rule.finish
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
        fold(start, stop, words, a, out, out)  # `out` stands for the shifts, which no term reads

    return kernel


def _flat(a: np.ndarray, permutation: tuple[int, ...] | None) -> np.ndarray:
    """Return the elements of `a`, in the order (outer, n, inner), as a flat array.

    `permutation` brings the axes into this order; None if they are in this order already.
    """
    if permutation is not None:
        a = a.transpose(permutation)
    return aligned(a if a.flags.c_contiguous else np.ascontiguousarray(a)).reshape(-1)


class Fold(NamedTuple):
    """The prepared fold of arrays of one layout: the kernel, the cut into units of work, and the result's layout.

    `moved` says that elements must first be copied into the order of (outer, n, inner).
    """

    rule: Rule
    kernel: Kernel
    units: int
    grain: int
    words: int  # the address of numbers that the kernel reads: outer, n, inner, blocks, length of a block
    order: Order
    blocks: int
    moved: bool
    shape: tuple[int, ...]
    dtype: Any
    kept: np.ndarray  # holds the memory at `words`

    @property
    def direct(self) -> bool:
        """Whether one call of `code`, over all units, computes the whole result."""
        return not self.moved and self.blocks == 1 and 0 < self.units <= self.grain

    @property
    def code(self) -> Kernel:
        """The kernel as a function of start, stop, `words` and the arrays' ids, without type checks."""
        return entry_point(self.kernel, 6 if self.rule.shifted else 5)

    def run(self, operands: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        """Fold operands[0] into the contiguous outs[0]. If the fold has shifts, operands[1] has one for each result."""
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
    """Return the prepared fold over `axes`, by the rule `name`, for arrays with the layout `operand`."""
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
    """Fold operands[0] over `axes` by the rule `name`. If the rule has shifts, operands[1] has one for each result."""
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
    """Return the mean over `axes`; NaN over no elements."""
    return _reduce("mean", axes, keepdims, a)


@on_device("reductions")
def prod(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the product over `axes`; 1 over no elements."""
    return _reduce("prod", axes, keepdims, a)


@on_device("reductions")
def max(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the largest element over `axes`; NaN if an element is NaN.

    Raises ValueError for the maximum of no elements.
    """
    require_elements("max", a.shape, axes)
    return _reduce("max", axes, keepdims, a)


@on_device("reductions")
def min(a: np.ndarray, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Return the smallest element over `axes`; NaN if an element is NaN.

    Raises ValueError for the minimum of no elements.
    """
    require_elements("min", a.shape, axes)
    return _reduce("min", axes, keepdims, a)


@on_device("reductions")
def argmax(a: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Return the position of the first largest element along `axis`, or of the first NaN, as int64.

    Raises ValueError for the maximum of no elements.
    """
    require_elements("argmax", a.shape, (axis,))
    return _reduce("position", (axis,), keepdims, a, max(a, (axis,)))


@on_device("reductions")
def argmin(a: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Return the position of the first smallest element along `axis`, or of the first NaN, as int64.

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
        largest[~np.isfinite(largest)] = 0  # subtracting an infinite shift would give NaN
        total = _reduce("exponentials", axes, keepdims, a, largest)
        np.log(total, out=total)
        total += largest
    return total


@jit
def _cumsum_rows(start: int, stop: int, a: Any, before: Any, out: Any, n: int, blocks: int, length: int) -> None:
    """Write running sums of blocks of rows of `a` to `out`. `before` has the sum of all earlier blocks of the row."""
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
