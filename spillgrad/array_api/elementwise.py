"""Elementwise functions of the array API standard; most are functions of `sg` that declare their standard name."""

from collections.abc import Callable
from typing import Any

from spillgrad.array_api.wrapping import binary, promoted, unary
from spillgrad.ops import arithmetic, clamp_where, comparison, complex_numbers, complex_views, convert
from spillgrad.ops.declaration import declarations, declare
from spillgrad.tensor import Tensor

__all__ = ["clip", "round", "sign", "where"]


def _operands_of(function: Callable[..., Any]) -> int:
    return function.__code__.co_argcount - len(function.__defaults__ or ())


for _declared in declarations:
    _wrap = unary if _operands_of(_declared.function) == 1 else binary
    globals().update({_name: _wrap(_declared.function, _name) for _name in _declared.standard_names()})
    __all__ += _declared.standard_names()


def round(x: Tensor, /) -> Tensor:
    """Return each element, or each part of a complex number, rounded to the nearest integer, halves to even.

    Parameters
    ----------
    x : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    if x.is_complex():
        parts = complex_views.real(x), complex_views.imag(x)
        return complex_numbers.complex(*map(arithmetic.round, parts))
    return arithmetic.round(x)


@declare(numpy=True)
def sign(x: Tensor, /) -> Tensor:
    """Return -1, 0 or 1 for each element, and NaN for NaN; ``z / abs(z)`` or 0 for a complex number z.

    Parameters
    ----------
    x : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    signs: Tensor = arithmetic.sgn(x)
    return clamp_where.where(comparison.isnan(x), x, signs) if x.is_floating_point() else signs


@declare(numpy=True)
def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Return the elements limited to the range from `min` to `max`.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    min, max : Tensor or number, optional
        Bounds; None is no limit.

    Returns
    -------
    Tensor
        Of the dtype of `x`, of the shape that the operands broadcast to.
    """
    low, high = (convert.to_dtype(bound, x.dtype) if isinstance(bound, Tensor) else bound for bound in (min, max))
    return convert.clone(x) if low is None and high is None else clamp_where.clip(x, low, high)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """Return elements of `x1` where a condition holds, and elements of `x2` elsewhere.

    Parameters
    ----------
    condition : Tensor
        Of bool.
    x1, x2 : Tensor or number
        Values to choose from; all shapes broadcast.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        return clamp_where.where(condition, x1, x2)  # type: ignore[no-any-return]
    return clamp_where.where(condition, *promoted("where", x1, x2))  # type: ignore[no-any-return]
