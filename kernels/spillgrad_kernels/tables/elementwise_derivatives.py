"""The table of elementwise operations: one row holds the forward formula and one derivative per differentiable input.

A derivative's parameters name the values that it needs: `g` (the gradient of the result), `result`, or an input.
Autograd saves the values that derivatives name, and no others. Formulas use `where` instead of branches (see
`formula.py`). An input without a derivative gets no gradient. `complex_derivatives.py` says which rows take complex
numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

from spillgrad_kernels.tables.formula import Formula
from spillgrad_kernels.tables.scalar_math import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    cos,
    cosh,
    digamma,
    erf,
    erfc,
    erfinv,
    exp,
    expm1,
    floor,
    floor_divide,
    fmod,
    lgamma,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    normal_cdf,
    polygamma,
    pow,
    remainder,
    round,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    where,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One elementwise operation.

    `result` is the dtype: "same" (as the operands), "float" (the same, but default float for integers), "bool", or
    "real" (that of the real and imaginary parts of the operands).
    """

    name: str
    forward: Formula
    derivatives: dict[str, Formula]
    result: str = "same"


ROWS: dict[str, Row] = {}


def row(name: str, forward: Formula, *, result: str = "same", **derivatives: Formula) -> None:
    """Add an operation to the table. `derivatives` maps the name of an input to the formula of its derivative."""
    ROWS[name] = Row(name, forward, derivatives, result)


def _zero(g: Any) -> Any:
    """Return 0, the gradient of a step function, as in PyTorch. 0 * g would be NaN for an infinite g."""
    return where(g > g, g, 0)


# Arithmetic
row("add", lambda self, other: self + other, self=lambda g: g, other=lambda g: g)
row("sub", lambda self, other: self - other, self=lambda g: g, other=lambda g: -g)
row("mul", lambda self, other: self * other, self=lambda g, other: g * other, other=lambda g, self: g * self)
row(
    "div", lambda self, other: self / other, result="float",
    self=lambda g, other: g / other, other=lambda g, self, other: -g * ((self / other) / other),
)  # fmt: skip
row(
    "pow", lambda self, exponent: pow(self, exponent),
    self=lambda g, self, exponent: where(exponent == 0, 0, g * (exponent * pow(self, exponent - 1))),
    exponent=lambda g, self, exponent, result: where((self == 0) & (exponent >= 0), 0, g * (result * log(self))),
)  # fmt: skip
row(
    "remainder", lambda self, other: remainder(self, other),
    self=lambda g: g, other=lambda g, self, other: -g * floor_divide(self, other),
)  # fmt: skip
row(
    "fmod",
    lambda self, other: fmod(self, other),
    self=lambda g: g,
    other=lambda g, self, other: -g * trunc(self / other),
)
row("floor_divide", lambda self, other: floor_divide(self, other), self=_zero, other=_zero)
row("neg", lambda self: -self, self=lambda g: -g)
row("abs", lambda self: abs(self), self=lambda g, self: where(self > 0, g, where(self < 0, -g, 0)))
row("square", lambda self: self * self, self=lambda g, self: g * (2 * self))
row("cube", lambda self: self * self * self, self=lambda g, self: g * (3 * (self * self)))
row("reciprocal", lambda self: 1 / self, result="float", self=lambda g, result: -g * (result * result))
row("sqrt", lambda self: sqrt(self), result="float", self=lambda g, result: g / (2 * result))
row("rsqrt", lambda self: 1 / sqrt(self), result="float", self=lambda g, result: -0.5 * g * (result * result * result))


def _lerp(self: Any, end: Any, weight: Any) -> Any:
    difference = end - self
    # Computed from the nearer end, so that weights of 0 and 1 give the ends exactly.
    return where(abs(weight) < 0.5, self + weight * difference, end - difference * (1 - weight))


row("lerp", _lerp,
    self=lambda g, weight: g * (1 - weight), end=lambda g, weight: g * weight,
    weight=lambda g, self, end: g * (end - self))  # fmt: skip


# The larger operand is factored out, because its square might overflow or underflow.
def _hypot(self: Any, other: Any) -> Any:
    larger = where(abs(self) > abs(other), abs(self), abs(other))
    smaller = where(abs(self) > abs(other), abs(other), abs(self))
    ratio = smaller / where((larger == 0) | (larger == math.inf), 1, larger)
    return where(larger == math.inf, larger, larger * sqrt(1 + ratio * ratio))


row(
    "hypot", _hypot, result="float",
    self=lambda g, self, result: g * (self / where(result == 0, 1, result)),
    other=lambda g, other, result: g * (other / where(result == 0, 1, result)),
)  # fmt: skip

# Exponentials, logarithms, trigonometry
row("exp", lambda self: exp(self), result="float", self=lambda g, result: g * result)
row("exp2", lambda self: pow(2, self), result="float", self=lambda g, result: g * (result * math.log(2)))
row("expm1", lambda self: expm1(self), result="float", self=lambda g, result: g * (result + 1))
row("log", lambda self: log(self), result="float", self=lambda g, self: g / self)
row("log2", lambda self: log2(self), result="float", self=lambda g, self: g / (self * math.log(2)))
row("log10", lambda self: log10(self), result="float", self=lambda g, self: g / (self * math.log(10)))
row("log1p", lambda self: log1p(self), result="float", self=lambda g, self: g / (self + 1))
row(
    "logaddexp", lambda self, other: logaddexp(self, other), result="float",
    self=lambda g, self, other: g * sigmoid(self - other), other=lambda g, self, other: g * sigmoid(other - self),
)  # fmt: skip


def _logaddexp2(self: Any, other: Any) -> Any:
    larger = where(self > other, self, other)
    difference = where(self == other, 0, abs(self - other))
    return larger + log1p(pow(2, -difference)) * (1 / math.log(2))


row(
    "logaddexp2", _logaddexp2, result="float",
    self=lambda g, self, other: g * sigmoid((self - other) * math.log(2)),
    other=lambda g, self, other: g * sigmoid((other - self) * math.log(2)),
)  # fmt: skip
row(
    "xlogy", lambda self, other: where((self == 0) & (other == other), 0, self * log(other)), result="float",
    self=lambda g, self, other: where((self == 0) & (other <= 0), 0, g * log(other)),
    other=lambda g, self, other: g * (self / where((self == 0) & (other == 0), 1, other)),
)  # fmt: skip
row(
    "xlog1py", lambda self, other: where((self == 0) & (other == other), 0, self * log1p(other)), result="float",
    self=lambda g, self, other: where((self == 0) & (other <= -1), 0, g * log1p(other)),
    other=lambda g, self, other: g * (self / where((self == 0) & (other == -1), 1, other + 1)),
)  # fmt: skip
row(
    "logit", lambda self: log(self / (1 - self)), result="float",
    self=lambda g, self: where((self < 0) | (self > 1), math.nan, g / (self * (1 - self))),
)  # fmt: skip
row("sin", lambda self: sin(self), result="float", self=lambda g, self: g * cos(self))
row("cos", lambda self: cos(self), result="float", self=lambda g, self: -g * sin(self))
row("tan", lambda self: tan(self), result="float", self=lambda g, result: g * (1 + result * result))
row("asin", lambda self: asin(self), result="float", self=lambda g, self: g / sqrt(1 - self * self))
row("acos", lambda self: acos(self), result="float", self=lambda g, self: -g / sqrt(1 - self * self))
row("atan", lambda self: atan(self), result="float", self=lambda g, self: g / (1 + self * self))


# g * other / (self**2 + other**2), and -g * self / (self**2 + other**2) below. The larger operand is factored out,
# because its square might overflow or underflow.
def _atan2_self(g: Any, self: Any, other: Any) -> Any:
    steep = abs(self) > abs(other)
    larger, smaller = where(steep, self, other), where(steep, other, self)
    ratio = smaller / larger
    return where((self == 0) & (other == 0), 0, g * where(steep, ratio, 1) / (larger * (1 + ratio * ratio)))


def _atan2_other(g: Any, self: Any, other: Any) -> Any:
    steep = abs(self) > abs(other)
    larger, smaller = where(steep, self, other), where(steep, other, self)
    ratio = smaller / larger
    return where((self == 0) & (other == 0), 0, -g * where(steep, 1, ratio) / (larger * (1 + ratio * ratio)))


row("atan2", lambda self, other: atan2(self, other), result="float", self=_atan2_self, other=_atan2_other)
row("sinh", lambda self: sinh(self), result="float", self=lambda g, self: g * cosh(self))
row("cosh", lambda self: cosh(self), result="float", self=lambda g, self: g * sinh(self))
row("tanh", lambda self: tanh(self), result="float", self=lambda g, result: g * (1 - result * result))
row("asinh", lambda self: asinh(self), result="float", self=lambda g, self: g / sqrt(self * self + 1))
row("acosh", lambda self: acosh(self), result="float", self=lambda g, self: g / sqrt((self - 1) * (self + 1)))
row("atanh", lambda self: atanh(self), result="float", self=lambda g, self: g / ((1 - self) * (1 + self)))


def _sinc(self: Any) -> Any:
    x = math.pi * self
    return where(x == 0, 1, sin(x) / where(x == 0, 1, x))


def _sinc_self(g: Any, self: Any) -> Any:
    x = math.pi * self
    squared = x * x
    # Near 0, x cos x - sin x cancels; the first terms of its series take its place.
    near = -x * (1 / 3 - squared * (1 / 30 - squared * (1 / 840 - squared * (
        1 / 45360 - squared * (1 / 3991680 - squared * (1 / 518918400 - squared / 93405312000))))))  # fmt: skip
    safe = where(squared < 0.25, 1, x)
    return g * (math.pi * where(squared < 0.25, near, (cos(safe) - sin(safe) / safe) / safe))


row("sinc", _sinc, result="float", self=_sinc_self)
row(
    "erf", lambda self: erf(self), result="float",
    self=lambda g, self: g * ((2 / math.sqrt(math.pi)) * exp(-(self * self))),
)  # fmt: skip

row(
    "erfc", lambda self: erfc(self), result="float",
    self=lambda g, self: -g * ((2 / math.sqrt(math.pi)) * exp(-(self * self))),
)  # fmt: skip
row(
    "erfinv", lambda self: erfinv(self), result="float",
    self=lambda g, result: g * ((math.sqrt(math.pi) / 2) * exp(result * result)),
)  # fmt: skip
row("lgamma", lambda self: lgamma(self), result="float", self=lambda g, self: g * digamma(self))
row("digamma", lambda self: digamma(self), result="float", self=lambda g, self: g * polygamma(1, self))
row("polygamma", lambda n, self: polygamma(n, self), result="float", self=lambda g, n, self: g * polygamma(n + 1, self))

_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
row(
    "normal_cdf", lambda self: normal_cdf(self), result="float",
    self=lambda g, self: g * (_INV_SQRT_2PI * exp(-0.5 * (self * self))),
)  # fmt: skip

# Activations
row("sigmoid", lambda self: sigmoid(self), result="float", self=lambda g, result: g * (result * (1 - result)))
row("relu", lambda self: where(self < 0, 0, self), self=lambda g, result: where(result <= 0, 0, g))
row(
    "leaky_relu", lambda self, negative_slope: where(self < 0, self * negative_slope, self),
    self=lambda g, self, negative_slope: where(self > 0, g, g * negative_slope),
)  # fmt: skip
row(
    "elu", lambda self, alpha: where(self > 0, self, alpha * expm1(self)),
    self=lambda g, self, alpha: where(self > 0, g, g * (alpha * exp(self))),
)  # fmt: skip
row(
    "celu", lambda self, alpha: where(self > 0, self, alpha * expm1(self / alpha)),
    self=lambda g, self, alpha: where(self > 0, g, g * exp(self / alpha)),
)  # fmt: skip

# Klambauer et al. 2017, "Self-Normalizing Neural Networks", equation 14.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
row(
    "selu", lambda self: _SELU_SCALE * where(self > 0, self, _SELU_ALPHA * expm1(self)), result="float",
    self=lambda g, self: g * (_SELU_SCALE * where(self > 0, 1, _SELU_ALPHA * exp(self))),
)  # fmt: skip
row(
    "prelu_kernel", lambda self, weight: where(self > 0, self, weight * self),
    self=lambda g, self, weight: where(self > 0, g, g * weight),
    weight=lambda g, self: where(self > 0, 0, g * self),
)  # fmt: skip
row(
    "threshold", lambda self, threshold, value: where(self <= threshold, value, self),
    self=lambda g, self, threshold: where(self <= threshold, 0, g),
)  # fmt: skip
row(
    "hardtanh", lambda self, min_val, max_val: where(self < min_val, min_val, where(self > max_val, max_val, self)),
    self=lambda g, self, min_val, max_val: where((self <= min_val) | (self >= max_val), 0, g),
)  # fmt: skip
row(
    "hardsigmoid", lambda self: where(self < -3, 0, where(self > 3, 1, self * (1 / 6) + 0.5)), result="float",
    self=lambda g, self: where((self <= -3) | (self >= 3), 0, g * (1 / 6)),
)  # fmt: skip
row(
    "hardswish", lambda self: where(self < -3, 0, where(self > 3, self, self * (self + 3) * (1 / 6))), result="float",
    self=lambda g, self: where(self <= -3, 0, where(self >= 3, g, g * (self * (1 / 3) + 0.5))),
)  # fmt: skip
row(
    "hardshrink", lambda self, lambd: where((self >= -lambd) & (self <= lambd), 0, self),
    self=lambda g, self, lambd: where((self >= -lambd) & (self <= lambd), 0, g),
)  # fmt: skip
row(
    "softshrink", lambda self, lambd: where(self > lambd, self - lambd, where(self < -lambd, self + lambd, self * 0)),
    self=lambda g, self, lambd: where((self >= -lambd) & (self <= lambd), 0, g),
)  # fmt: skip
row(
    "softsign", lambda self: self / (1 + abs(self)), result="float",
    self=lambda g, self: g / ((1 + abs(self)) * (1 + abs(self))),
)  # fmt: skip
row("log_sigmoid", lambda self: -logaddexp(-self, 0), result="float", self=lambda g, self: g * sigmoid(-self))


def _mish_self(g: Any, self: Any) -> Any:
    t = tanh(logaddexp(self, 0))
    return g * (t + self * ((1 - t * t) * sigmoid(self)))


row("mish", lambda self: self * tanh(logaddexp(self, 0)), result="float", self=_mish_self)
row(
    "silu", lambda self: self * sigmoid(self), result="float",
    self=lambda g, self: g * (sigmoid(self) * (1 + self * (1 - sigmoid(self)))),
)  # fmt: skip


def _softplus(self: Any, beta: Any, threshold: Any) -> Any:
    scaled = self * beta
    return where(scaled > threshold, self, logaddexp(scaled, 0) * (1 / beta))


row(
    "softplus", _softplus, result="float",
    self=lambda g, self, beta, threshold: where(self * beta > threshold, g, g * sigmoid(self * beta)),
)  # fmt: skip

# Hendrycks & Gimpel 2016, "Gaussian Error Linear Units", section 2: the tanh approximation.
_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


def _gelu_tanh(self: Any) -> Any:
    return 0.5 * self * (1 + tanh(_GELU_SCALE * (self + _GELU_CUBIC * (self * self * self))))


def _gelu_tanh_self(g: Any, self: Any) -> Any:
    squared = self * self
    t = tanh(_GELU_SCALE * (self + _GELU_CUBIC * (squared * self)))
    slope = _GELU_SCALE * (1 + (3 * _GELU_CUBIC) * squared)
    return g * (0.5 * (1 + t) + 0.5 * self * (1 - t * t) * slope)


row(
    "gelu", lambda self: self * normal_cdf(self), result="float",
    self=lambda g, self: g * (normal_cdf(self) + self * (_INV_SQRT_2PI * exp(-0.5 * (self * self)))),
)  # fmt: skip
row("gelu_tanh", _gelu_tanh, result="float", self=_gelu_tanh_self)

# Choosing. NaN in any operand gives NaN. Equal operands of maximum or minimum share the gradient, as in PyTorch.
row(
    "maximum", lambda self, other: where((self > other) | (self != self), self, other),
    self=lambda g, self, other: where(self == other, 0.5 * g, where(self < other, 0, g)),
    other=lambda g, self, other: where(self == other, 0.5 * g, where(self > other, 0, g)),
)  # fmt: skip
row(
    "minimum", lambda self, other: where((self < other) | (self != self), self, other),
    self=lambda g, self, other: where(self == other, 0.5 * g, where(self > other, 0, g)),
    other=lambda g, self, other: where(self == other, 0.5 * g, where(self < other, 0, g)),
)  # fmt: skip

row(
    "fmax", lambda self, other: where((self >= other) | (other != other), self, other),
    self=lambda g, self, other: where((self >= other) | (other != other), g, 0),
    other=lambda g, self, other: where((self >= other) | (other != other), 0, g),
)  # fmt: skip
row(
    "fmin", lambda self, other: where((self <= other) | (other != other), self, other),
    self=lambda g, self, other: where((self <= other) | (other != other), g, 0),
    other=lambda g, self, other: where((self <= other) | (other != other), 0, g),
)  # fmt: skip


def _clamp(self: Any, min: Any, max: Any) -> Any:
    raised = where((self > min) | (self != self), self, min)
    return where((raised < max) | (raised != raised), raised, max)


row(
    "clamp", _clamp,
    self=lambda g, self, min, max: where((self < min) | (self > max), 0, g),
    min=lambda g, self, min, max: where((self < min) & (min < max), g, 0),
    max=lambda g, self, min, max: where((self > max) | (max < min), g, 0),
)  # fmt: skip
row(
    "where", lambda condition, self, other: where(condition, self, other),
    self=lambda g, condition: where(condition, g, 0), other=lambda g, condition: where(condition, 0, g),
)  # fmt: skip
row(
    "nan_to_num",
    lambda self, nan, posinf, neginf: where(
        self != self, nan, where(self == math.inf, posinf, where(self == -math.inf, neginf, self))
    ),
    self=lambda g, self: where(abs(self) < math.inf, g, 0),
)
row(
    "heaviside", lambda self, values: where(self == 0, values, where(self > 0, 1, 0)),
    self=_zero, values=lambda g, self: where(self == 0, g, 0),
)  # fmt: skip
# 1 / other has the sign of other, even if other is 0 or -0.
row(
    "copysign", lambda self, other: where((other < 0) | (1 / other < 0), -abs(self), abs(self)), result="float",
    self=lambda g, self, result: where(self == 0, 0, where(self == result, g, -g)), other=_zero,
)  # fmt: skip

# Rounding
row("floor", lambda self: floor(self), self=_zero)
row("ceil", lambda self: ceil(self), self=_zero)
row("round", lambda self: round(self), self=_zero)
row("trunc", lambda self: trunc(self), self=_zero)
row("frac", lambda self: self - trunc(self), self=lambda g: g)
row("sign", lambda self: where(self > 0, 1, where(self < 0, -1, 0)), self=_zero)
row("sgn", lambda self: where(self > 0, 1, where(self < 0, -1, 0)), self=lambda g, self: where(g > g, self, 0))

# Comparisons
row("eq", lambda self, other: self == other, result="bool")
row("ne", lambda self, other: self != other, result="bool")
row("lt", lambda self, other: self < other, result="bool")
row("le", lambda self, other: self <= other, result="bool")
row("gt", lambda self, other: self > other, result="bool")
row("ge", lambda self, other: self >= other, result="bool")
row("isnan", lambda self: self != self, result="bool")
row("isinf", lambda self: abs(self) == math.inf, result="bool")
row("isfinite", lambda self: abs(self) < math.inf, result="bool")
row("isposinf", lambda self: self == math.inf, result="bool")
row("isneginf", lambda self: self == -math.inf, result="bool")
row("signbit", lambda self: (self < 0) | (1 / self < 0), result="bool")


# As in PyTorch, a logarithm below -100 counts as -100, and the derivative's denominator is at least 1e-12.
def _binary_cross_entropy(self: Any, target: Any) -> Any:
    log_self, log_rest = log(self), log1p(-self)
    log_self = where(log_self < -100, -100, log_self)
    return (target - 1) * where(log_rest < -100, -100, log_rest) - target * log_self


def _binary_cross_entropy_self(g: Any, self: Any, target: Any) -> Any:
    spread = self * (1 - self)
    return g * ((self - target) / where(spread < 1e-12, 1e-12, spread))


def _binary_cross_entropy_target(g: Any, self: Any) -> Any:
    log_self, log_rest = log(self), log1p(-self)
    return g * (where(log_rest < -100, -100, log_rest) - where(log_self < -100, -100, log_self))


row(
    "binary_cross_entropy", _binary_cross_entropy, result="float",
    self=_binary_cross_entropy_self, target=_binary_cross_entropy_target,
)  # fmt: skip
