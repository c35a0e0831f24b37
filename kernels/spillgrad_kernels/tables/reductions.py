"""The rules of reductions (how elements are mapped and folded), and the shapes of reductions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.compile import CONTRACT, REASSOCIATE, emitted, overload, register_jitable
from spillgrad_kernels.tables.scalar_math import exp, where

NOT_FOUND = np.int64(np.iinfo(np.int64).max)


def _extreme(ufunc: np.ufunc, instruction: str, docstring: str, flags: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Return a function of two values: `ufunc`, or inside kernels an LLVM `instruction` with fast-math `flags`.

    LLVM vectorises reductions by these instructions without assumptions about NaN.
    """

    def extreme(x: Any, y: Any) -> Any:
        return ufunc(x, y)

    @emitted(lambda x, y: x(x, x))
    def emit(builder: Any, x: Any, y: Any) -> Any:
        kind = ir.FunctionType(x.type, [x.type, x.type])
        return builder.call(builder.module.declare_intrinsic(instruction, [x.type], kind), [x, y], fastmath=flags)

    @overload(extreme, strict=False)
    def _implementation(x: Any, y: Any) -> Any:
        return lambda x, y: emit(x, y)

    extreme.__doc__ = docstring
    return extreme


maximum = _extreme(np.maximum, "llvm.maximum", "Return the larger of two values, NaN when either is NaN.")
minimum = _extreme(np.minimum, "llvm.minimum", "Return the smaller of two values, NaN when either is NaN.")
maximum_of_any_zero = _extreme(
    np.maximum, "llvm.maximum", "Do as `maximum`; of 0 and -0 return either. Telling them apart costs as much again.",
    ("nsz",),
)  # fmt: skip
# Each of these is one machine instruction, where `maximum` and `minimum` take five.
larger_number = _extreme(
    np.maximum, "llvm.maxnum", "Return the larger of two numbers; undefined for NaN.", ("nnan", "nsz")
)
smaller_number = _extreme(
    np.minimum, "llvm.minnum", "Return the smaller of two numbers; undefined for NaN.", ("nnan", "nsz")
)


class Rule(NamedTuple):
    """How a reduction folds elements into one result.

    `term(x, shift, j)` maps element x at position j of the fold; each result has one `shift`. `combine(folded, term)`
    returns the fold with one more term; a fold starts as `identity`. `finish(folded, n)` returns the result of a fold
    of n elements. A long fold is cut into blocks; then `finish` gets the fold of each block, and n of the whole fold.
    """

    term: Callable[..., Any]
    combine: Callable[..., Any]
    identity: Callable[[Any], Any]  # called with the scalar type of the elements
    ufunc: np.ufunc  # combines the results of blocks in the dtype of the identity
    fastmath: set[str] = CONTRACT
    shifted: bool = False
    finish: Callable[..., Any] = lambda folded, n: folded
    empty: float | None = None  # the result over no elements, if it is not the identity

    def result_type(self, dtype: Any) -> Any:
        """Return the dtype of results for elements of `dtype`: `dtype` itself, or int64 if results are positions."""
        return np.int64 if type(self.identity(np.float64)) is np.int64 else dtype


_SUM = Rule(lambda x, _, j: x, lambda y, x: y + x, lambda _: np.float64(0.0), np.add, REASSOCIATE)
RULES = {
    "sum": _SUM,
    "mean": _SUM._replace(finish=lambda total, n: total / n, empty=np.nan),
    "prod": _SUM._replace(combine=lambda y, x: y * x, identity=lambda _: np.float64(1.0), ufunc=np.multiply),
    "max": Rule(lambda x, _, j: x, lambda y, x: maximum(y, x), lambda kind: kind(-np.inf), np.maximum),
    "min": Rule(lambda x, _, j: x, lambda y, x: minimum(y, x), lambda kind: kind(np.inf), np.minimum),
    "squares": _SUM._replace(term=lambda x, centre, j: (x - centre) * (x - centre), shifted=True),
    "exponentials": _SUM._replace(term=lambda x, shift, j: exp(x - shift), shifted=True),
    "position": Rule(
        lambda x, extreme, j: where((x == extreme) | (x != x), j, NOT_FOUND),
        lambda y, j: y if y < j else j, lambda _: NOT_FOUND, np.minimum, shifted=True,
    ),
}  # fmt: skip
for _function in {f for rule in RULES.values() for f in (rule.term, rule.combine, rule.finish)}:
    register_jitable(_function)


class Order(NamedTuple):
    """An array's shape, viewed as (outer, n, inner); a reduction folds the dimension n.

    If `permutation` is not None, the array's axes must be permuted first.
    """

    permutation: tuple[int, ...] | None
    outer: int
    n: int
    inner: int


def fold_order(shape: tuple[int, ...], axes: tuple[int, ...]) -> Order:
    """Return `shape` as (outer, n, inner), so that reducing `axes` means folding n."""
    axes = tuple(sorted(axes))
    permutation = None
    if axes and axes[-1] - axes[0] != len(axes) - 1:
        kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
        permutation = kept + axes
        shape = tuple(shape[axis] for axis in permutation)
        axes = tuple(range(len(kept), len(shape)))
    first, last = (axes[0], axes[-1] + 1) if axes else (len(shape), len(shape))
    return Order(permutation, math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:]))


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Return the shape of the result of reducing `axes` of an array of `shape`."""
    sizes = [1 if axis in axes else size for axis, size in enumerate(shape) if keepdims or axis not in axes]
    return tuple(sizes)


def require_elements(who: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Raise ValueError if a dimension in `axes` is empty. The message names the reduction `who`."""
    for axis in axes:
        if shape[axis] == 0:
            raise ValueError(f"{who}: got shape {shape}, dimension {axis} is empty; {who} needs an element")
