"""Trigonometric and hyperbolic functions, their inverses, and angles.

Formulas and derivatives are rows of `spillgrad_kernels/tables/elementwise_derivatives.py`.
"""

import math

from spillgrad.ops.arithmetic import mul
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import common_function
from spillgrad.ops.promotion import refused_complex
from spillgrad.tensor import Tensor

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "cos", "cosh", "deg2rad", "rad2deg", "sin", "sinh", "tan", "tanh",
]  # fmt: skip

sin = common_function("sin", "Return the sine of each element, in radians.")
cos = common_function("cos", "Return the cosine of each element, in radians.")
tan = common_function("tan", "Return the tangent of each element, in radians.")
asin = arcsin = common_function("asin", "Return the inverse sine of each element, in radians.")
acos = arccos = common_function("acos", "Return the inverse cosine of each element, in radians.")
atan = arctan = common_function("atan", "Return the inverse tangent of each element, in radians.")
atan2 = arctan2 = common_function("atan2", "Return the angle of each point (other, input), in radians.")
sinh = common_function("sinh", "Return the hyperbolic sine of each element.")
cosh = common_function("cosh", "Return the hyperbolic cosine of each element.")
tanh = common_function("tanh", "Return the hyperbolic tangent of each element.")
asinh = arcsinh = common_function("asinh", "Return the inverse hyperbolic sine of each element.")
acosh = arccosh = common_function("acosh", "Return the inverse hyperbolic cosine of each element; NaN below 1.")
atanh = arctanh = common_function(
    "atanh", "Return the inverse hyperbolic tangent of each element; NaN beyond -1 and 1."
)


@declare(in_place=True, numpy="deg2rad radians")
def deg2rad(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles converted from degrees to radians.

    Parameters
    ----------
    input : Tensor
        Of any shape: angles in degrees.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`: angles in radians.
    """
    return _scaled("deg2rad", input, math.pi / 180, out)


@declare(in_place=True, numpy="rad2deg degrees")
def rad2deg(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles converted from radians to degrees.

    Parameters
    ----------
    input : Tensor
        Of any shape: angles in radians.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`: angles in degrees.
    """
    return _scaled("rad2deg", input, 180 / math.pi, out)


def _scaled(name: str, angles: Tensor, factor: float, out: Tensor | None) -> Tensor:
    if angles.is_complex():
        raise refused_complex(name, angles.dtype)
    return mul(angles, factor, out=out)
