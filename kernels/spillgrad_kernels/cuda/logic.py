"""Formulas of the bits of integers, and of truth values, for which the CPU has NumPy's functions.

They are written as those of the elementwise table are, and computed by `cuda.elementwise`.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.jit.compile import SIMULATED
from spillgrad_kernels.tables.formula import Formula, Symbol


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what writes a call of `function` where formulas are traced, and calls it elsewhere."""

    @functools.wraps(function)
    def call(*operands: Any) -> Any:
        symbol = next((value for value in operands if isinstance(value, Symbol)), None)
        if symbol is None:
            return function(*operands)
        return symbol.trace.emit(f"{function.__name__}({', '.join(['{}'] * len(operands))})", *operands)

    return call


def inverted(x: Any) -> Any:
    """Return the bits that an integer has not; of a truth value, the other one."""
    return np.invert(x)


def in_one(x: Any, y: Any) -> Any:
    """Return the bits that one of two integers or truth values has."""
    return np.bitwise_xor(x, y)


def shifted_left(x: Any, bits: Any) -> Any:
    """Return x times two to the power `bits`; 0 where that shifts all of x away."""
    return np.left_shift(x, bits)


def shifted_right(x: Any, bits: Any) -> Any:
    """Return x over two to the power `bits`, rounded down; of a negative x, -1 where that shifts all of it away."""
    return np.right_shift(x, bits)


# What formulas call here, beside the functions of all formulas, by its name inside kernels.
FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (inverted, in_one, shifted_left, shifted_right)}
_inverted, _in_one, _shifted_left, _shifted_right = map(_named, FUNCTIONS.values())

# Of operands of one dtype, integers or (but for shifts) bool, and a result of that dtype.
BITWISE: dict[str, Formula] = {
    "bitwise_and": lambda self, other: self & other,
    "bitwise_or": lambda self, other: self | other,
    "bitwise_xor": lambda self, other: _in_one(self, other),
    "bitwise_not": lambda self: _inverted(self),
    "bitwise_left_shift": lambda self, other: _shifted_left(self, other),
    "bitwise_right_shift": lambda self, other: _shifted_right(self, other),
}

# Of operands of any dtype, and a result of bool.
LOGICAL: dict[str, Formula] = {
    "logical_and": lambda self, other: (self != 0) & (other != 0),
    "logical_or": lambda self, other: (self != 0) | (other != 0),
    "logical_xor": lambda self, other: (self != 0) != (other != 0),
    "logical_not": lambda self: self == 0,
}

if not SIMULATED:
    from numba.cuda import types
    from numba.cuda.extending import overload

    @overload(inverted, strict=False)
    def _of_one(x: Any) -> Any:
        return (lambda x: not x) if isinstance(x, types.Boolean) else (lambda x: ~x)

    @overload(in_one, strict=False)
    def _of_two(x: Any, y: Any) -> Any:
        are_truths = isinstance(x, types.Boolean) and isinstance(y, types.Boolean)
        return (lambda x, y: x != y) if are_truths else (lambda x, y: x ^ y)

    @overload(shifted_left, strict=False)
    def _to_the_left(x: Any, bits: Any) -> Any:
        width = x.bitwidth
        return lambda x, bits: x << bits if 0 <= bits < width else x ^ x

    @overload(shifted_right, strict=False)
    def _to_the_right(x: Any, bits: Any) -> Any:
        width = x.bitwidth
        if x.signed:
            return lambda x, bits: x >> bits if 0 <= bits < width else x >> (width - 1)
        return lambda x, bits: x >> bits if 0 <= bits < width else x ^ x
