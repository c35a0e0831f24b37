"""Formulas of bitwise and logical operations for a device; the CPU calls NumPy for these operations.

The formulas are written like the formulas of the elementwise table, and `cuda.elementwise` computes them.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.jit.compile import SIMULATED
from spillgrad_kernels.tables.formula import Formula, Symbol


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` in a form for formulas: called with a symbol of a trace, it adds code to the trace."""

    @functools.wraps(function)
    def call(*operands: Any) -> Any:
        symbol = next((value for value in operands if isinstance(value, Symbol)), None)
        if symbol is None:
            return function(*operands)
        return symbol.trace.emit(f"{function.__name__}({', '.join(['{}'] * len(operands))})", *operands)

    return call


def inverted(x: Any) -> Any:
    """Return the bitwise complement of an integer, or the negation of a bool."""
    return np.invert(x)


def in_one(x: Any, y: Any) -> Any:
    """Return the exclusive or of two integers or two bools."""
    return np.bitwise_xor(x, y)


def shifted_left(x: Any, bits: Any) -> Any:
    """Return x shifted left by `bits`; 0 if `bits` is at least the width of x."""
    return np.left_shift(x, bits)


def shifted_right(x: Any, bits: Any) -> Any:
    """Return x shifted right by `bits`, keeping the sign.

    If `bits` is at least the width of x, the result is 0, or -1 for x < 0.
    """
    return np.right_shift(x, bits)


# The functions above by their names in kernels, in addition to the functions that all formulas may call.
FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (inverted, in_one, shifted_left, shifted_right)}
_inverted, _in_one, _shifted_left, _shifted_right = map(_named, FUNCTIONS.values())

# Operands and result have the same dtype: an integer dtype or, except for shifts, bool.
BITWISE: dict[str, Formula] = {
    "bitwise_and": lambda self, other: self & other,
    "bitwise_or": lambda self, other: self | other,
    "bitwise_xor": lambda self, other: _in_one(self, other),
    "bitwise_not": lambda self: _inverted(self),
    "bitwise_left_shift": lambda self, other: _shifted_left(self, other),
    "bitwise_right_shift": lambda self, other: _shifted_right(self, other),
}

# Operands have any dtype, and the result is bool.
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
