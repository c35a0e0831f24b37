"""Scalar functions for kernels and formulas, each declared once.

In plain Python, a function here calls NumPy's function, also for arrays, and serves as the oracle. Inside compiled
code, functions of float32 and float64 are implemented in `vector_math` and the modules beside it, because Numba from
PyPI has no library of vectorised mathematics and calls libm for one value at a time. Every value agrees with NumPy's to
2 ulp (`tests/kernels/tables/test_scalar_math.py`). Functions of complex numbers are implemented in `complex_math`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.jit.compile import overload, register_jitable
from spillgrad_kernels.tables import complex_math, special_math, vector_math, vector_powers, vector_trigonometry
from spillgrad_kernels.tables.vector_code import OPTIONS, select

_IMPLEMENTATIONS = {
    **vector_math.IMPLEMENTATIONS, **vector_powers.IMPLEMENTATIONS, **vector_trigonometry.IMPLEMENTATIONS,
    **special_math.IMPLEMENTATIONS,
}  # fmt: skip


def where(condition: Any, chosen: Any, otherwise: Any) -> Any:
    """Return `chosen` where `condition` holds, else `otherwise`; both are evaluated."""
    return np.where(condition, chosen, otherwise)


@overload(where, jit_options=OPTIONS, strict=False)
def _where(condition: Any, chosen: Any, otherwise: Any) -> Any:
    if _complex_bits((chosen, otherwise)) is not None:
        return lambda condition, chosen, otherwise: complex(
            select(condition, chosen.real, otherwise.real), select(condition, chosen.imag, otherwise.imag)
        )
    return lambda condition, chosen, otherwise: select(condition, chosen, otherwise)


def _complex_bits(kinds: tuple[Any, ...]) -> int | None:
    """Return the size of the complex dtype that arguments of these Numba types promote to; None if all are real."""
    names = [kind.name for kind in kinds]
    if not any(name.startswith("complex") for name in names):
        return None
    return 64 if all(name in ("complex64", "float32", "bool") for name in names) else 128


def _declare(
    form: Callable[..., Any], name: str, docstring: str, oracle: Callable[..., Any],
    otherwise: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function called `name`. In plain Python it calls `oracle`.

    Inside kernels it calls the implementation for the arguments' dtype. If their dtypes differ, or if there is no
    implementation, it calls `otherwise`, which by default is `oracle`. `form(f)` returns a function that calls f and
    has the parameters of the declared function.
    """
    otherwise = otherwise or oracle
    of_complex: dict[int | None, Any] = dict(zip((64, 128), complex_math.IMPLEMENTATIONS.get(name, ()), strict=False))
    by_type = dict(zip(("float32", "float64"), _IMPLEMENTATIONS.get(name, ()), strict=False))
    function = form(oracle)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = docstring

    @overload(function, jit_options=OPTIONS, strict=False)
    def _implementation(*kinds: Any) -> Any:
        found = of_complex.get(_complex_bits(kinds))
        if found is not None:
            return form(found)
        return form(by_type.get(kinds[0].name, otherwise) if len(set(kinds)) == 1 else otherwise)

    return function  # type: ignore[no-any-return]


_of_one = functools.partial(_declare, lambda f: lambda x: f(x))
_of_two = functools.partial(_declare, lambda f: lambda x, y: f(x, y))


def _over_arrays(function: Callable[..., float]) -> Callable[..., Any]:
    """Return a function of arrays that applies `function`, a function of numbers, to the arrays' elements."""

    def oracle(*operands: Any) -> Any:
        in_float64 = np.vectorize(lambda *numbers: function(*map(float, numbers)), otypes=[np.float64])(*operands)
        return in_float64.astype(np.result_type(*operands, np.float32))[()]

    return oracle


def _without_subnormals(function: Callable[..., Any], *dtypes: Any) -> Callable[..., Any]:
    """Return `function` with subnormal results in `dtypes` replaced by 0. `function` must return no negative number."""

    def oracle(x: Any) -> Any:
        result = function(x)
        if result.dtype not in dtypes:
            return result
        return np.where(result < np.finfo(result.dtype).tiny, result.dtype.type(0), result)[()]

    return oracle


def _sigmoid(x: Any) -> Any:
    if np.iscomplexobj(x):
        e = np.exp(np.where(np.real(x) >= 0, -x, x))
        return np.where(np.real(x) >= 0, 1, e) / (1 + e)
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1, e) / (1 + e)


def _logaddexp(x: Any, y: Any) -> Any:
    if not np.iscomplexobj(x) and not np.iscomplexobj(y):
        return np.logaddexp(x, y)
    x_is_smaller = np.real(x) < np.real(y)
    smaller, larger = np.where(x_is_smaller, x, y), np.where(x_is_smaller, y, x)
    with np.errstate(all="ignore"):
        found = larger + np.log1p(np.exp(smaller - larger))
        infinite = np.where(np.real(larger) < 0, smaller, np.log(np.exp(smaller) + np.exp(larger)))
    equal = (np.real(smaller) == np.real(larger)) & np.isinf(np.real(larger))
    return np.where(np.isnan(x) | np.isnan(y), complex(math.nan, math.nan), np.where(equal, infinite, found))[()]


@register_jitable(**OPTIONS)
def _power(x: Any, exponent: Any) -> Any:
    return x**exponent


@register_jitable(**OPTIONS)
def _remainder(x: Any, divisor: Any) -> Any:
    return x % divisor


@register_jitable(**OPTIONS)
def _floor_divide(x: Any, divisor: Any) -> Any:
    return x // divisor


@register_jitable(**OPTIONS)
def _itself(x: Any) -> Any:
    return x


conj = _of_one("conj", "Return the complex conjugate; that of a real number is the number.", np.conj, _itself)
exp = _of_one("exp", "Return e raised to x.", np.exp)
expm1 = _of_one("expm1", "Return exp(x) - 1, accurate near 0.", np.expm1)
log = _of_one("log", "Return the natural logarithm.", np.log)
log1p = _of_one("log1p", "Return log(1 + x), accurate near 0.", np.log1p)
log2 = _of_one("log2", "Return the base-2 logarithm.", np.log2)
log10 = _of_one("log10", "Return the base-10 logarithm.", np.log10)
logaddexp = _of_two("logaddexp", "Return log(exp(x) + exp(y)) without overflow.", _logaddexp, np.logaddexp)
pow = _of_two("pow", "Return x raised to the power y.", np.power, _power)
sqrt = _of_one("sqrt", "Return the square root.", np.sqrt)
sigmoid = _of_one("sigmoid", "Return 1 / (1 + exp(-x)) without overflow.", _sigmoid)

sin = _of_one("sin", "Return the sine of x in radians.", np.sin)
cos = _of_one("cos", "Return the cosine of x in radians.", np.cos)
tan = _of_one("tan", "Return the tangent of x in radians.", np.tan)
asin = _of_one("asin", "Return the inverse sine, in radians.", np.arcsin)
acos = _of_one("acos", "Return the inverse cosine, in radians.", np.arccos)
atan = _of_one("atan", "Return the inverse tangent, in radians.", np.arctan)
atan2 = _of_two("atan2", "Return the angle in radians of the point with ordinate x and abscissa y.", np.arctan2)
sinh = _of_one("sinh", "Return the hyperbolic sine.", np.sinh)
cosh = _of_one("cosh", "Return the hyperbolic cosine.", np.cosh)
tanh = _of_one("tanh", "Return the hyperbolic tangent.", np.tanh)
asinh = _of_one("asinh", "Return the inverse hyperbolic sine.", np.arcsinh)
acosh = _of_one("acosh", "Return the inverse hyperbolic cosine.", np.arccosh)
atanh = _of_one("atanh", "Return the inverse hyperbolic tangent.", np.arctanh)

erf = _of_one(
    "erf", "Return the error function, 2/sqrt(pi) times the integral of exp(-t²) from 0 to x.",
    _over_arrays(math.erf), math.erf,
)  # fmt: skip
erfc = _of_one("erfc", "Return 1 - erf(x), accurate where that is near 0.", _over_arrays(special_math.erfc), math.erfc)
erfinv = _of_one("erfinv", "Return the inverse of the error function.", _over_arrays(special_math.erfinv))
normal_cdf = _of_one(
    "normal_cdf", "Return the standard normal distribution's Φ(x).",
    _over_arrays(lambda x: math.erfc(-x / math.sqrt(2)) / 2),
)  # fmt: skip
lgamma = _of_one(
    "lgamma", "Return the logarithm of the gamma function's absolute value.", _over_arrays(special_math.lgamma),
    math.lgamma,
)  # fmt: skip
digamma = _of_one(
    "digamma", "Return the derivative of the gamma function's logarithm.", _over_arrays(special_math.digamma)
)
polygamma = _of_two("polygamma", "Return the x-th derivative of digamma at y.", _over_arrays(special_math.polygamma))

floor = _of_one("floor", "Return the largest integer not above x.", np.floor)
ceil = _of_one("ceil", "Return the smallest integer not below x.", np.ceil)
round = _of_one("round", "Return the nearest integer; halves go to the even one.", np.round, np.rint)
trunc = _of_one("trunc", "Return x without its fraction.", np.trunc)
remainder = _of_two("remainder", "Return x modulo y, with the sign of y.", np.remainder, _remainder)
fmod = _of_two("fmod", "Return x modulo y, with the sign of x.", np.fmod)
copysign = _of_two("copysign", "Return |x| with the sign of y, which 0 and NaN have too.", np.copysign, math.copysign)
floor_divide = _of_two(
    "floor_divide", "Return the largest integer not above the exact quotient x / y.", np.floor_divide, _floor_divide
)

# How formulas of complex numbers divide and take absolute values inside kernels.
_quotient = _of_two("quotient", "Return x / y, of which one is complex.", np.true_divide)
_magnitude = _of_one("magnitude", "Return the absolute value of a complex number.", np.abs)
COMPLEX_OPERATORS = {"quotient": _quotient, "magnitude": _magnitude}

# Functions for kernels that know their arguments' range. Formulas do not call them, as they have no derivatives.
normal_exp = _of_one(
    "normal_exp", "Return e to x, at most 88, in a fifth less time than `exp`; subnormal results in float32 are 0.",
    _without_subnormals(np.exp, np.float32), np.exp,
)  # fmt: skip
normal_exp2 = _of_one(
    "normal_exp2", "Return 2 to x, at most 127, to 2 ulp; results below the smallest normal number are 0.",
    _without_subnormals(np.exp2, np.float32, np.float64),
)  # fmt: skip
