"""Trigonometric and hyperbolic functions, their inverses, and angles."""

import math

from spillgrad.ops.arithmetic import mul
from spillgrad.ops.elementwise import row_function
from spillgrad.tensor import Tensor

sin = row_function("sin", "Return the sine of each element, in radians.")
cos = row_function("cos", "Return the cosine of each element, in radians.")
tan = row_function("tan", "Return the tangent of each element, in radians.")
asin = arcsin = row_function("asin", "Return the inverse sine of each element, in radians.")
acos = arccos = row_function("acos", "Return the inverse cosine of each element, in radians.")
atan = arctan = row_function("atan", "Return the inverse tangent of each element, in radians.")
atan2 = arctan2 = row_function("atan2", "Return the angle of each point (other, input), in radians.")
sinh = row_function("sinh", "Return the hyperbolic sine of each element.")
cosh = row_function("cosh", "Return the hyperbolic cosine of each element.")
tanh = row_function("tanh", "Return the hyperbolic tangent of each element.")
asinh = arcsinh = row_function("asinh", "Return the inverse hyperbolic sine of each element.")
acosh = arccosh = row_function("acosh", "Return the inverse hyperbolic cosine of each element; NaN below 1.")
atanh = arctanh = row_function("atanh", "Return the inverse hyperbolic tangent of each element; NaN beyond -1 and 1.")


def deg2rad(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles in radians of angles in degrees."""
    return mul(input, math.pi / 180, out=out)


def rad2deg(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles in degrees of angles in radians."""
    return mul(input, 180 / math.pi, out=out)
