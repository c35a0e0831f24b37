"""The rows of the table of elementwise operations for complex operands; other rows do not take complex numbers.

As in PyTorch, the gradient of a real loss by a complex number is its derivative by the real part plus i times that by
the imaginary part. For a holomorphic function f this is g * conj(f'(z)), which follows from the row's own derivative;
a function that is not holomorphic has its own derivatives here. A derivative names the same values for complex numbers
as for real ones.
"""

import math
from typing import Any

from spillgrad_kernels.tables.elementwise_derivatives import ROWS, Row
from spillgrad_kernels.tables.formula import Formula, conjugated
from spillgrad_kernels.tables.scalar_math import conj, cos, log, sin, sqrt, where

# Rows whose formulas and derivatives hold for complex numbers as they are, unless a derivative is given below.
HOLOMORPHIC = frozenset({
    "add", "sub", "mul", "div", "pow", "neg", "square", "cube", "reciprocal", "sqrt", "rsqrt", "lerp", "where",
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "sigmoid", "silu", "sinc",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
})  # fmt: skip
COMPLEX_ROWS: dict[str, Row] = {
    name: Row(name, row.forward, {source: conjugated(d) for source, d in row.derivatives.items()}, row.result)
    for name, row in ROWS.items()
    if name in HOLOMORPHIC
}


def _row(name: str, forward: Formula | None = None, *, result: str = "same", **derivatives: Formula) -> None:
    """Add the row of a function that is not holomorphic; by default, the formula is that for real numbers."""
    COMPLEX_ROWS[name] = Row(name, forward or ROWS[name].forward, derivatives, result)


def _derivative(name: str, source: str, formula: Formula) -> None:
    """Give the derivative of a holomorphic function, where that for real numbers does not hold for complex ones."""
    COMPLEX_ROWS[name].derivatives[source] = conjugated(formula)


_derivative(
    "pow", "exponent",
    lambda g, self, exponent, result: where(
        (self == 0) & (exponent == abs(exponent)), 0, g * (result * log(where(self == 0, 1, self)))
    ),
)  # fmt: skip
# The product of two square roots is not the square root of the product.
_derivative("acosh", "self", lambda g, self: g / (sqrt(self - 1) * sqrt(self + 1)))


def _sinc_self(g: Any, self: Any) -> Any:
    x = math.pi * self
    squared = x * x
    near = -x * (1 / 3 - squared * (1 / 30 - squared * (1 / 840 - squared * (
        1 / 45360 - squared * (1 / 3991680 - squared * (1 / 518918400 - squared / 93405312000))))))  # fmt: skip
    safe = where(abs(squared) < 0.25, 1, x)
    return g * (math.pi * where(abs(squared) < 0.25, near, (cos(safe) - sin(safe) / safe) / safe))


_derivative("sinc", "self", _sinc_self)


def _sgn(self: Any) -> Any:
    size = abs(self)
    return where(size == 0, 0, self / where(size == 0, 1, size))  # 0 for -0 too, as in PyTorch


def _sgn_self(g: Any, self: Any) -> Any:
    size, direction = abs(self), _sgn(self)
    return where(size == 0, 0, (g - conj(g) * (direction * direction)) / (2 * where(size == 0, 1, size)))


def _softsign_self(g: Any, self: Any) -> Any:
    size, along = 1 + abs(self), conj(g) * self + g * conj(self)
    return g / size - _sgn(self) * (along / (2 * size * size))


# Where the gradient of a power of 0 is infinite, its product with a direction of 0 would be NaN.
_row("abs", result="real", self=lambda g, self: where(self == 0, 0, g * _sgn(self)))
_row("conj", lambda self: conj(self), self=lambda g: conj(g))
_row("sgn", _sgn, self=_sgn_self)
_row("softsign", self=_softsign_self)
_row("eq", result="bool")
_row("ne", result="bool")
_row("isnan", result="bool")
# A difference from itself is 0 for finite numbers only; the absolute value of a finite number may be infinite.
_row("isinf", lambda self: (abs(self) == math.inf) & (self - self != 0), result="bool")
_row("isfinite", lambda self: self - self == 0, result="bool")
