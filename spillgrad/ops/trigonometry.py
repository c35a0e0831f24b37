"""Trigonometric and hyperbolic functions, their inverses, and angles.

Formulas and derivatives are rows of `spillgrad_kernels/tables/elementwise_derivatives.py`.
"""

import math

from spillgrad.ops.arithmetic import mul
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import row_function
from spillgrad.tensor import Tensor

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "cos", "cosh", "deg2rad", "rad2deg", "sin", "sinh", "tan", "tanh",
]  # fmt: skip

sin = row_function("sin", "Return the sine of each element, in radians.", in_place=True, numpy=True, standard=True)
cos = row_function("cos", "Return the cosine of each element, in radians.", in_place=True, numpy=True, standard=True)
tan = row_function("tan", "Return the tangent of each element, in radians.", in_place=True, numpy=True, standard=True)
asin = arcsin = row_function(
    "asin", "Return the inverse sine of each element, in radians.", in_place=True, numpy=True, standard=True
)
acos = arccos = row_function(
    "acos", "Return the inverse cosine of each element, in radians.", in_place=True, numpy=True, standard=True
)
atan = arctan = row_function(
    "atan", "Return the inverse tangent of each element, in radians.", in_place=True, numpy=True, standard=True
)
atan2 = arctan2 = row_function(
    "atan2", "Return the angle of each point (other, input), in radians.", in_place=True, numpy=True, standard=True
)
sinh = row_function("sinh", "Return the hyperbolic sine of each element.", in_place=True, numpy=True, standard=True)
cosh = row_function("cosh", "Return the hyperbolic cosine of each element.", in_place=True, numpy=True, standard=True)
tanh = row_function("tanh", "Return the hyperbolic tangent of each element.", in_place=True, numpy=True, standard=True)
asinh = arcsinh = row_function(
    "asinh", "Return the inverse hyperbolic sine of each element.", in_place=True, numpy=True, standard=True
)
acosh = arccosh = row_function(
    "acosh",
    "Return the inverse hyperbolic cosine of each element; NaN below 1.",
    in_place=True,
    numpy=True,
    standard=True,
)
atanh = arctanh = row_function(
    "atanh",
    "Return the inverse hyperbolic tangent of each element; NaN beyond -1 and 1.",
    in_place=True,
    numpy=True,
    standard=True,
)


@declare(in_place=True, numpy="deg2rad radians")
def deg2rad(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles in radians of angles in degrees."""
    return mul(input, math.pi / 180, out=out)


@declare(in_place=True, numpy="rad2deg degrees")
def rad2deg(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles in degrees of angles in radians."""
    return mul(input, 180 / math.pi, out=out)
