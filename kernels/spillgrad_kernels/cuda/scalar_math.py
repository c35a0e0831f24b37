"""Implement the functions of `tables/scalar_math.py` in device kernels, mostly by NVIDIA's libdevice.

libdevice is accurate to a few ulp (CUDA C++ Programming Guide, "Mathematical Functions"). In the simulator, kernels
call the Python functions themselves. Importing this module registers the implementations with Numba.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.jit.compile import SIMULATED, device
from spillgrad_kernels.tables import reductions, special_math
from spillgrad_kernels.tables import scalar_math as functions

# Functions that libdevice has, with their names in libdevice. Names of its float32 functions end with a further "f".
_LIBRARY = {
    **{name: name for name in (
        "exp", "log", "tanh", "erf", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
        "acosh", "atanh", "erfc", "erfinv", "lgamma", "expm1", "log1p", "log2", "log10", "floor", "ceil", "trunc",
        "atan2", "fmod", "pow",
    )},
    "round": "rint", "normal_cdf": "normcdf", "normal_exp": "exp",
}  # fmt: skip

_LOG_2 = math.log(2)


def _as(x: Any, constant: Any) -> Any:
    """Return `constant` in the dtype of x. A plain constant would be float64, and make the result float64."""
    return type(x)(constant)


def _sigmoid(x: Any) -> Any:
    one, e = _as(x, 1), functions.exp(-abs(x))
    return functions.where(x >= 0, one, e) / (one + e)


def _logaddexp(x: Any, y: Any) -> Any:
    larger, distance = functions.where(x > y, x, y), abs(x - y)
    # The difference of equal infinities is NaN. A NaN in x or y makes the last case NaN.
    return functions.where(x == y, x + _as(x, _LOG_2), larger + functions.log1p(functions.exp(-distance)))


def _remainder(x: Any, divisor: Any) -> Any:
    left = functions.fmod(x, divisor)
    if left == 0:
        return math.copysign(left, divisor)
    return left + divisor if (left < 0) != (divisor < 0) else left


def _floor_divide(x: Any, divisor: Any) -> Any:
    quotient = x / divisor
    if divisor == 0 or quotient != quotient:
        return quotient
    left = functions.fmod(x, divisor)
    exact = (x - left) / divisor
    if left != 0 and (left < 0) != (divisor < 0):
        exact -= _as(x, 1)
    if exact == 0:
        return math.copysign(exact, quotient)
    below = functions.floor(exact)
    return below + _as(x, 1) if exact - below > _as(x, 0.5) else below


# A divisor of -1 is a separate case: the lowest integer divided by -1 overflows, which is undefined.
def _integer_remainder(x: Any, divisor: Any) -> Any:
    return x % divisor if divisor != 0 and divisor != -1 else x ^ x


def _integer_floor_divide(x: Any, divisor: Any) -> Any:
    if divisor == -1:
        return -x
    return x // divisor if divisor != 0 else x ^ x


def _integer_fmod(x: Any, divisor: Any) -> Any:
    left = _integer_remainder(x, divisor)
    return left - divisor if left != 0 and (x < 0) != (divisor < 0) else left


def _integer_pow(x: Any, exponent: Any) -> Any:
    """Return x**exponent for integers, wrapped around in the dtype of x. As in PyTorch, a fraction is truncated."""
    power = _as(x, 1)
    if exponent < 0:
        odd = exponent & 1
        return power if x == 1 or (x == -1 and not odd) else x if x == -1 else x ^ x
    while exponent > 0:
        if exponent & 1:
            power *= x
        x *= x
        exponent >>= 1
    return power


@functools.cache
def integers_kept_in(dtype: np.dtype[Any]) -> Any:
    """Return the device function that wraps an integer around in `dtype`, and returns a float unchanged.

    Numba computes integers in 64 bits. Return None in the simulator, where numbers are NumPy's.
    """
    if SIMULATED:
        return None
    kept = types.boolean if dtype == np.bool_ else getattr(types, dtype.name)

    def keep(typing_context: Any, x: Any) -> Any:
        result = kept if isinstance(x, types.Integer) else x

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.cast(builder, arguments[0], signature.args[0], result)

        return result(x), codegen

    return intrinsic(keep)


if not SIMULATED:
    from numba.cuda import libdevice, types
    from numba.cuda.extending import intrinsic, overload

    for _function in (
        _integer_remainder, special_math._positive_digamma, special_math.digamma, special_math._positive_zeta,
    ):  # fmt: skip
        device(_function)

    @overload(_as, strict=False)
    def _as_number(x: Any, constant: Any) -> Any:
        number = getattr(np, x.name) if isinstance(x, types.Integer | types.Float) else np.float64
        return lambda x, constant: number(constant)

    def _implementation(name: str, of_floats: Callable[..., Any] | None, of_integers: Any, *kinds: Any) -> Any:
        """Return the implementation of `name` for arguments of types `kinds`. libdevice takes integers as float64."""
        if of_integers is not None and all(isinstance(kind, types.Integer | types.Boolean) for kind in kinds):
            return of_integers
        if of_floats is not None:
            return of_floats
        return getattr(libdevice, f"{_LIBRARY[name]}f" if set(kinds) == {types.float32} else _LIBRARY[name])

    def _compiled_as(name: str, of_floats: Callable[..., Any] | None = None, of_integers: Any = None) -> None:
        for implementation in (of_floats, of_integers):
            if implementation is not None:
                device(implementation)
        function = getattr(functions, name)

        def of_one(x: Any) -> Any:
            chosen = _implementation(name, of_floats, of_integers, x)
            return lambda x: chosen(x)

        def of_two(x: Any, y: Any) -> Any:
            chosen = _implementation(name, of_floats, of_integers, x, y)
            return lambda x, y: chosen(x, y)

        overload(function, strict=False)(of_two if function.__code__.co_argcount == 2 else of_one)

    def _integer_itself(x: Any) -> Any:
        return x

    _OF_FLOATS = {
        "sigmoid": _sigmoid, "logaddexp": _logaddexp, "remainder": _remainder, "floor_divide": _floor_divide,
        "digamma": special_math.digamma, "polygamma": special_math.polygamma,
    }  # fmt: skip
    _OF_INTEGERS = {
        "remainder": _integer_remainder, "floor_divide": _integer_floor_divide, "fmod": _integer_fmod,
        "pow": _integer_pow, **dict.fromkeys(("floor", "ceil", "round", "trunc"), _integer_itself),
    }  # fmt: skip
    for _name in {**_LIBRARY, **_OF_FLOATS}:
        _compiled_as(_name, _OF_FLOATS.get(_name), _OF_INTEGERS.get(_name))

    @overload(functions.where, strict=False)
    def _where(condition: Any, chosen: Any, otherwise: Any) -> Any:
        return lambda condition, chosen, otherwise: chosen if condition else otherwise

    # The result is NaN if either argument is NaN.
    @overload(reductions.maximum, strict=False)
    def _maximum(x: Any, y: Any) -> Any:
        return lambda x, y: x if x > y or x != x else y

    @overload(reductions.minimum, strict=False)
    def _minimum(x: Any, y: Any) -> Any:
        return lambda x, y: x if x < y or x != x else y
