"""Dtypes: their limits, and conversions between them, by the array API standard."""

import functools
from typing import Any, NamedTuple

from spillgrad import dtypes
from spillgrad.array_api.wrapping import NUMBERS
from spillgrad.data_type import dtype
from spillgrad.errors import OperandError
from spillgrad.ops.array_api_names import astype
from spillgrad.tensor import Tensor

__all__ = ["FloatInfo", "IntegerInfo", "astype", "can_cast", "finfo", "iinfo", "result_type"]


class FloatInfo(NamedTuple):
    """The limits of a floating-point dtype, or of the real and imaginary parts of a complex dtype.

    Parameters
    ----------
    bits : int
        Size of a number.
    eps : float
        Difference of 1 and the next larger number.
    max, min : float
        Largest and lowest finite number.
    smallest_normal : float
        Smallest positive number of full precision.
    dtype : dtype
        The real dtype.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: dtype


class IntegerInfo(NamedTuple):
    """The limits of an integer dtype.

    Parameters
    ----------
    bits : int
        Size of a number.
    max, min : int
        Largest and lowest number.
    dtype : dtype
        The dtype itself.
    """

    bits: int
    max: int
    min: int
    dtype: dtype


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a floating-point or complex dtype.

    Parameters
    ----------
    type : dtype or Tensor
        The dtype, or a tensor that has it.

    Returns
    -------
    FloatInfo
        The limits of the dtype, or of its real and imaginary parts.
    """
    part = _dtype_of(type).to_real()
    found = dtypes.finfo(part)
    return FloatInfo(found.bits, found.eps, found.max, found.min, found.smallest_normal, part)


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer dtype.

    Parameters
    ----------
    type : dtype or Tensor
        The dtype, or a tensor that has it.

    Returns
    -------
    IntegerInfo
        The limits of the dtype.
    """
    found = dtypes.iinfo(_dtype_of(type))
    return IntegerInfo(found.bits, found.max, found.min, _dtype_of(type))


def _dtype_of(array_or_dtype: Any) -> dtype:
    return array_or_dtype.dtype if isinstance(array_or_dtype, Tensor) else dtype(array_or_dtype)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether a dtype can be cast to another: promoting both must give the other.

    Both must be of one kind (bool, integer, real or complex), or the first real and the other complex.

    Parameters
    ----------
    from_ : dtype or Tensor
        Dtype to cast, or a tensor that has it.
    to : dtype
        Dtype to cast to.

    Returns
    -------
    bool
        Whether it can.
    """
    source, target = _dtype_of(from_), dtypes.as_dtype(to)
    kinds = dtypes.category(source), dtypes.category(target)
    return kinds in ((0, 0), (1, 1), (2, 2), (2, 3), (3, 3)) and dtypes.promote(source, target) == target


def result_type(*arrays_and_dtypes: Any) -> dtype:
    """Return the dtype that tensors, dtypes and Python numbers promote to.

    Parameters
    ----------
    *arrays_and_dtypes : Tensor, dtype or number
        At least one a tensor or dtype; of a number, only the kind counts.

    Returns
    -------
    dtype
        The common dtype.

    Raises
    ------
    OperandError
        If there is no tensor and no dtype.
    """
    numbers = [x for x in arrays_and_dtypes if isinstance(x, NUMBERS)]
    found = [_dtype_of(x).__numpy_dtype__ for x in arrays_and_dtypes if not isinstance(x, NUMBERS)]
    if not found:
        raise OperandError("result_type: got no tensor and no dtype; wanted at least one")
    return dtype(dtypes.result_type([(functools.reduce(dtypes.promote, found), False)], numbers))
