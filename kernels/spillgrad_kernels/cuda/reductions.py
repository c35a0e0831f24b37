"""Reductions over any axes of arrays on a device, by the same rules as on the CPU.

Every reduction is computed as a fold over n of an array of shape (outer, n, inner). A block of threads computes several
results, each with several threads. Adjacent threads walk along n if n is dense in memory, else along the results. Long
folds are cut into parts of a fixed length, whose results are folded again, so that sums do not depend on the device.
Sums and products accumulate in float64, or in int64 for integers; sums of exponentials accumulate in their own dtype.
"""

import builtins
import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import scans
from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import compute, contiguous, converted
from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, cuda, device, for_each_group
from spillgrad_kernels.cuda.pointers import computing_dtype, loaders, quotient, storers
from spillgrad_kernels.cuda.rows import Fold, RowLoop, Rows, threads_of_row
from spillgrad_kernels.cuda.rows import run as run_rows
from spillgrad_kernels.device_array import DeviceArray, refuse_complex
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import CONVERSIONS
from spillgrad_kernels.tables.reductions import RULES as _CPU_RULES
from spillgrad_kernels.tables.reductions import fold_order, reduced_shape, require_elements
from spillgrad_kernels.tables.scalar_math import exp, log, sqrt, where

# The length of a part: 2**24 elements make 1,024 blocks, as many as a large device runs at once.
_PART_ELEMENTS = 1 << 14
# The length of a part of a column, in a running fold, where one thread walks along a part, and in a fold of fewer than
# `_MANY_COLUMNS` columns. More columns fill a large device, though the parts be long.
_COLUMN_ELEMENTS = 1 << 7
_MANY_COLUMNS = 1 << 15

# The rules that fold elements by a universal function. If a fold is cut into parts, the results of the parts are
# folded by the rule for the fold's universal function.
FOLD_OF_UFUNC: dict[np.ufunc, str] = {np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min"}

RULES = {
    **_CPU_RULES,
    "norm": _CPU_RULES["sum"]._replace(
        term=lambda x, _, j: np.float64(x) * np.float64(x), finish=lambda total, n: sqrt(total)
    ),
}  # fmt: skip


@device
def _unfinished(folded: Any, n: Any) -> Any:
    return folded


for _function in {f for rule in RULES.values() for f in (rule.term, rule.combine, rule.finish)}:
    device(_function)


@device
def add_up_block(shared: Any) -> None:
    """Add up `shared`, an array in shared memory with a number for each thread of a block, into its first element.

    All threads of the block must call this function.
    """
    cuda.syncthreads()
    half = THREADS >> 1
    while half > 0:
        if cuda.threadIdx.x < half:
            shared[cuda.threadIdx.x] += shared[cuda.threadIdx.x + half]
        cuda.syncthreads()
        half >>= 1


def _identity(name: str, dtype: np.dtype[Any]) -> Any:
    """Return the value from which a fold of elements of `dtype` starts, in the dtype in which the fold accumulates."""
    value = RULES[name].identity(np.float64 if dtype == np.float64 else np.float32)
    if dtype.kind not in "iub" or isinstance(value, np.integer):
        return value
    if np.isfinite(value):
        return np.int64(value)
    limits = np.iinfo(np.uint8 if dtype == np.bool_ else dtype)
    return limits.dtype.type(limits.min if value < 0 else limits.max)


@functools.cache
def kernel(name: str, finished_as: str | None, dtype: np.dtype[Any], result: np.dtype[Any]) -> Kernel:
    """Return the kernel that folds elements by the rule `name`, and finishes results by the rule `finished_as`.

    If `finished_as` is None, results are not finished.
    """
    rule = RULES[name]
    term, combine = rule.term, rule.combine
    finish = _unfinished if finished_as is None else RULES[finished_as].finish
    identity = _identity(name, dtype)
    number, accumulated = type(identity), getattr(types, type(identity).__name__)
    load, store = loaders[dtype.name, 1], storers[result.name, 1]
    shifted, no_shift = rule.shifted, computing_dtype(dtype).type(0)
    size, result_size, threads = dtype.itemsize, result.itemsize, THREADS

    def fold(
        group: int, units: int, n: int, inner: int, parts: int, length: int, count: int, width: int, beside: int,
        apart: int, a: int, shift: int, out: int,
    ) -> None:  # fmt: skip
        # A result has `width` threads at a distance of `beside`; threads of consecutive results are `apart` apart.
        shared = cuda.shared.array(threads, accumulated)
        thread = cuda.threadIdx.x
        columns = quotient(threads, width)
        lane = quotient(thread, beside) % width
        column = quotient(thread, apart) % columns
        part = group % parts
        unit = quotient(group, parts) * columns + column
        folded = identity
        if unit < units:
            o = quotient(unit, inner)
            base = a + (o * n * inner + unit - o * inner) * size
            own_shift = load(shift + unit * size) if shifted else no_shift
            last = (part + 1) * length if (part + 1) * length < n else n
            j = part * length + lane
            while j < last:
                folded = combine(folded, number(term(load(base + j * inner * size), own_shift, j)))
                j += width
        shared[thread] = folded
        cuda.syncthreads()
        half = width >> 1
        while half > 0:
            if lane < half:
                shared[thread] = combine(shared[thread], shared[thread + half * beside])
            cuda.syncthreads()
            half >>= 1
        if lane == 0 and unit < units:
            store(out + (unit * parts + part) * result_size, finish(shared[thread], count))
        cuda.syncthreads()

    return Kernel(for_each_group(fold), f"{name}_{dtype.name}")


class _Folding(NamedTuple):
    """A fold of an (outer, n, inner) array over n, in parts of `length`, each by `width` threads."""

    outer: int
    n: int
    inner: int
    length: int

    @property
    def units(self) -> int:
        return self.outer * self.inner

    @property
    def parts(self) -> int:
        return builtins.max(1, -(-self.n // self.length))

    @property
    def width(self) -> int:
        """The number of threads for one result, a power of two."""
        return threads_of_row(builtins.min(self.n, self.length), self.inner)

    def run(
        self, name: str, finished_as: str | None, count: int, a: DeviceArray, shift: DeviceArray | None,
        out: DeviceArray,
    ) -> None:  # fmt: skip
        """Fold `a` by the rule `name` into `out`. The rule `finished_as` gets `count` as the number of elements."""
        columns = THREADS // self.width
        beside, apart = (1, self.width) if self.inner == 1 else (columns, 1)
        kernel(name, finished_as, a.dtype, out.dtype).run_blocks(
            -(-self.units // columns) * self.parts, self.units, self.n, self.inner, self.parts, self.length, count,
            self.width, beside, apart, a.address, a.address if shift is None else shift.address, out.address,
        )  # fmt: skip


def _in_order(a: DeviceArray, permutation: Shape | None) -> DeviceArray:
    """Return `a` as a dense array, with its dimensions in the order `permutation` if it is given."""
    return contiguous(a if permutation is None else a.transpose(*permutation))


def _result_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if name == "position" or (name in ("sum", "prod") and dtype.kind in "iub"):
        return np.dtype(np.int64)
    return dtype


def _reduce(name: str, axes: Shape, keepdims: bool, a: DeviceArray, shift: DeviceArray | None = None) -> DeviceArray:
    """Return `a` folded over `axes` by the rule `name`. If the rule takes shifts, `shift` has one for each result.

    Raises NotOnDevice for complex numbers.
    """
    refuse_complex(name, a)
    order = fold_order(a.shape, axes)
    out = empty(reduced_shape(a.shape, axes, keepdims), _result_dtype(name, a.dtype))
    is_short = order.inner > 1 and order.outer * order.inner < _MANY_COLUMNS
    fold = _Folding(order.outer, order.n, order.inner, _COLUMN_ELEMENTS if is_short else _PART_ELEMENTS)
    if not fold.units:
        return out
    a, shift = _in_order(a, order.permutation), None if shift is None else contiguous(shift)
    count, rule = fold.n, name
    while fold.parts > 1:
        partials = empty((fold.units, fold.parts), np.dtype(type(_identity(rule, a.dtype))))
        fold.run(rule, None, count, a, shift, partials)
        fold, rule = _Folding(fold.units, fold.parts, 1, _PART_ELEMENTS), FOLD_OF_UFUNC[RULES[rule].ufunc]
        a, shift = partials, None
    fold.run(rule, name, count, a, shift, out)
    return out


def sum(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return the sum over `axes`, in int64 for integers; 0 over no elements."""
    return _reduce("sum", axes, keepdims, a)


def mean(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return the average over `axes`; NaN over no elements."""
    return _reduce("mean", axes, keepdims, a)


def prod(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return the product over `axes`, in int64 for integers; 1 over no elements."""
    return _reduce("prod", axes, keepdims, a)


def max(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return the largest element over `axes`, or NaN if an element is NaN."""
    require_elements("max", a.shape, axes)
    return _reduce("max", axes, keepdims, a)


def min(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return the smallest element over `axes`, or NaN if an element is NaN."""
    require_elements("min", a.shape, axes)
    return _reduce("min", axes, keepdims, a)


def argmax(a: DeviceArray, axis: int, keepdims: bool = False) -> DeviceArray:
    """Return the position of the first largest element along `axis`, or of the first NaN, as int64."""
    require_elements("argmax", a.shape, (axis,))
    return _reduce("position", (axis,), keepdims, a, max(a, (axis,)))


def argmin(a: DeviceArray, axis: int, keepdims: bool = False) -> DeviceArray:
    """Return the position of the first smallest element along `axis`, or of the first NaN, as int64."""
    require_elements("argmin", a.shape, (axis,))
    return _reduce("position", (axis,), keepdims, a, min(a, (axis,)))


def var(a: DeviceArray, axes: Shape, correction: float = 1, keepdims: bool = False) -> tuple[DeviceArray, DeviceArray]:
    """Return (variance, mean) over `axes`. The sum of squared deviations is divided by max(0, n - `correction`)."""
    freedom = math.prod(a.shape[axis] for axis in axes) - correction
    centre = mean(a, axes, keepdims)
    squares = _reduce("squares", axes, keepdims, a, centre)
    divisor = computing_dtype(a.dtype).type(freedom if freedom > 0 else 0)
    compute(ROWS["div"].forward, "div", [squares, divisor], (a.dtype,), (squares,))
    return squares, centre


def any(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return whether any element over `axes` is not 0; False over no elements."""
    return _reduce("max", axes, keepdims, converted(a, np.dtype(np.bool_)))


def all(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return whether all elements over `axes` are not 0; True over no elements."""
    return _reduce("min", axes, keepdims, converted(a, np.dtype(np.bool_)))


def norm(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return the square root of the sum of squares over `axes`."""
    return _reduce("norm", axes, keepdims, a)


# --- Sums of exponentials --------------------------------------------------------------------------------------------


def join_exponentials(largest: Any, total: Any, other_largest: Any, other_total: Any) -> Any:
    """Join the folds of two parts of a row: return the largest value, and the sum of exp(value - largest).

    The sum is NaN if any value is NaN.
    """
    # The difference of two equal infinities is NaN.
    scale = where(other_largest == largest, 1, exp(-abs(other_largest - largest)))
    is_larger = other_largest > largest
    return (
        where(is_larger, other_largest, largest),
        where(is_larger, total * scale + other_total, total + other_total * scale),
    )


EXPONENTIALS = {"largest": -math.inf, "total": 0}
EXPONENTIALS_FOLD = Fold(EXPONENTIALS, lambda a: (a, 1), join_exponentials)


def _log_of_sum(largest: Any, total: Any) -> Any:
    return largest + log(total)


_LOGSUMEXP = RowLoop("logsumexp", ["a"], fold=EXPONENTIALS_FOLD, finish=_log_of_sum, finished=["lse"], stored=["lse"])
_LOGSUMEXP_OF_PART = RowLoop("logsumexp_of_part", ["a"], fold=EXPONENTIALS_FOLD, stored=["largest", "total"])
_LOGSUMEXP_OF_PARTS = RowLoop(
    "logsumexp_of_parts", ["part_largest", "part_total"],
    fold=Fold(EXPONENTIALS, lambda part_largest, part_total: (part_largest, part_total), join_exponentials),
    finish=_log_of_sum, finished=["lse"], stored=["lse"],
)  # fmt: skip


def logsumexp(a: DeviceArray, axes: Shape, keepdims: bool = False) -> DeviceArray:
    """Return log(sum(exp(a))) over `axes` without overflow; -inf over no elements."""
    order = fold_order(a.shape, axes)
    out = empty(reduced_shape(a.shape, axes, keepdims), a.dtype)
    rows = Rows(order.outer, order.n, order.inner)
    a = _in_order(a, order.permutation)
    parts = -(-rows.n // _PART_ELEMENTS)
    if parts <= 1:
        run_rows(_LOGSUMEXP, rows, [a], [out])
    else:
        folded = empty((2, parts, rows.units), CONVERSIONS[a.dtype.name])
        run_rows(_LOGSUMEXP_OF_PART, rows._replace(parts=parts), [a], [folded[0], folded[1]])
        run_rows(_LOGSUMEXP_OF_PARTS, Rows(1, parts, rows.units), [folded[0], folded[1]], [out])
    return out


# --- Running folds ---------------------------------------------------------------------------------------------------


@functools.cache
def scan(name: str, dtype: np.dtype[Any], is_dense: bool) -> Kernel:
    """Return the kernel of running folds by the rule `name`. `is_dense` says whether rows are dense in memory."""
    identity, result = _identity(name, dtype), _result_dtype(name, dtype)
    return scans.kernel(RULES[name].combine, identity, dtype, result, is_dense, f"running_{name}_{dtype.name}")


def running(name: str, a: DeviceArray, axis: int) -> DeviceArray:
    """Return running folds along `axis` by the rule `name`; sums and products of integers are int64.

    Raises NotOnDevice for complex numbers.
    """
    refuse_complex(name, a)
    dtype = a.dtype
    out = empty(a.shape, _result_dtype(name, dtype))
    _, outer, n, inner = fold_order(a.shape, (axis,))
    if not out.size:
        return out
    a = contiguous(a)
    fold = _Folding(outer, n, inner, _PART_ELEMENTS if inner == 1 else _COLUMN_ELEMENTS)
    before = None
    if fold.parts > 1:
        partials = empty((fold.units, fold.parts), np.dtype(type(_identity(name, dtype))))
        fold.run(name, None, n, a, None, partials)
        before = running(name, partials, 1)
    groups, kernel = outer * fold.parts, scan(name, dtype, inner == 1)
    words = n, fold.parts, fold.length, a.address, 0 if before is None else before.address, out.address
    if inner == 1:
        kernel.run_blocks(groups, *words)
    else:
        kernel.run(groups * inner, inner, *words)
    return out


def cumsum(a: DeviceArray, axis: int) -> DeviceArray:
    """Return the running sums along `axis`, in int64 for integers."""
    return running("sum", a, axis)


def cumprod(a: DeviceArray, axis: int) -> DeviceArray:
    """Return the running products along `axis`, in int64 for integers."""
    return running("prod", a, axis)
