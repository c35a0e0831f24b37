"""Comparisons of elements, and tests of what kind of numbers they are."""

from typing import Any

import numpy as np

from spillgrad.ops.elementwise import by_numpy, row_function
from spillgrad.ops.promotion import Operand, as_operand
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import ARRAYS

eq = equal_elements = row_function("eq", "Return whether elements are equal.")
ne = not_equal = row_function("ne", "Return whether elements differ.")
lt = less = row_function("lt", "Return whether input is less than other.")
le = less_equal = row_function("le", "Return whether input is at most other.")
gt = greater = row_function("gt", "Return whether input is greater than other.")
ge = greater_equal = row_function("ge", "Return whether input is at least other.")
isnan = row_function("isnan", "Return whether elements are not a number.")
isinf = row_function("isinf", "Return whether elements are infinite.")
isposinf = row_function("isposinf", "Return whether elements are positive infinity.")
isneginf = row_function("isneginf", "Return whether elements are negative infinity.")
isfinite = row_function("isfinite", "Return whether elements are neither infinite nor not a number.")
signbit = row_function("signbit", "Return whether elements are negative, or -0.")


def isclose(
    input: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:  # fmt: skip
    """Return whether |input - other| <= atol + rtol |other|, elementwise; infinite ones if they are equal."""

    def are_close(*values: Any) -> Any:
        a, b = [x.astype(np.float64) if isinstance(x, ARRAYS) else np.float64(x) for x in values]
        with np.errstate(all="ignore"):
            close = (np.abs(a - b) <= atol + rtol * np.abs(b)) & np.isfinite(b) | (a == b)
        return close | np.isnan(a) & np.isnan(b) if equal_nan else close

    return by_numpy("isclose", are_close, as_operand("isclose", input), as_operand("isclose", other))


def allclose(input: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return whether all elements are close (see `isclose`)."""
    return bool(np.all(isclose(input, other, rtol, atol, equal_nan).array))


def equal(input: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same elements."""
    return input.shape == other.shape and bool(np.all(eq(input, other).array))
