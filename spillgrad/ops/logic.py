"""Logical operations on truth values and on the bits of integers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import DtypeError
from spillgrad.ops.array_casts import as_array, as_own
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.elementwise import by_numpy, deliver
from spillgrad.ops.fuse_symbols import Symbol, record
from spillgrad.ops.promotion import Operand, as_operand, common_dtype
from spillgrad.tensor import Tensor

__all__ = [
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "logical_and", "logical_not", "logical_or", "logical_xor",
]  # fmt: skip


def _logical(name: str, function: np.ufunc) -> Callable[..., Tensor]:
    def logical(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:
        """Return the logical {0} of truth values (nonzero is true).

        Parameters
        ----------
        input : Tensor or float
            Of any shape.
        other : Tensor or float
            Broadcasts with `input`.
        out : Tensor, optional
            Tensor that takes the result.

        Returns
        -------
        Tensor
            Of bool, and of the broadcast shape.
        """
        if Symbol in (type(input), type(other)):
            return record(logical.__name__, (input, other))  # type: ignore[no-any-return]
        operands = [as_operand(logical.__name__, o) for o in (input, other)]
        return deliver(logical.__name__, by_numpy(logical.__name__, function, *operands), out)

    named(logical, f"logical_{name}", (logical.__doc__ or "").format(name))
    return declare(in_place=True, numpy=True, standard=True)(logical)


def _bitwise(name: str, doc: str, function: np.ufunc, takes_bool: bool = True) -> Callable[..., Tensor]:
    def on_bits(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:
        """Return {doc}.

        Parameters
        ----------
        input : Tensor or int
            Of {taken}.
        other : Tensor or int
            Of {taken}; broadcasts with `input`.
        out : Tensor, optional
            Tensor that takes the result.

        Returns
        -------
        Tensor
            Of the broadcast shape, and of the common dtype.

        Raises
        ------
        DtypeError
            For other dtypes.
        """
        if Symbol in (type(input), type(other)):
            return record(name, (input, other))  # type: ignore[no-any-return]
        operands = [as_operand(name, o) for o in (input, other)]
        dtype = common_dtype(operands)
        if dtypes.category(dtype) > 1 or (dtype == dtypes.bool_ and not takes_bool):
            raise DtypeError(f"{name}: got operands of {dtype}; wanted integers{' or bool' if takes_bool else ''}")
        return deliver(name, by_numpy(name, lambda a, b: function(*_as_integers(a, b, dtype)), *operands), out)

    doc = (on_bits.__doc__ or "").format(doc=doc, taken="integers or bool" if takes_bool else "integers")
    return declare(in_place=True, numpy=function.__name__, standard=True)(named(on_bits, name, doc))


def _as_integers(a: Any, b: Any, dtype: dtypes.DType) -> list[np.ndarray]:
    return [as_array(value, dtype).astype(dtype, copy=False) for value in (a, b)]


logical_and = _logical("and", np.logical_and)
logical_or = _logical("or", np.logical_or)
logical_xor = _logical("xor", np.logical_xor)


@declare(in_place=True, numpy=True, standard=True)
def logical_not(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return whether each element is zero: the logical not of its truth value.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of bool, and of the shape of `input`.
    """
    if type(input) is Symbol:
        return record("logical_not", (input,))  # type: ignore[no-any-return]
    return deliver("logical_not", by_numpy("logical_not", np.logical_not, input), out)


bitwise_and = _bitwise("bitwise_and", "the bitwise and of integers, or the logical and of bools", np.bitwise_and)
bitwise_or = _bitwise("bitwise_or", "the bitwise or of integers, or the logical or of bools", np.bitwise_or)
bitwise_xor = _bitwise("bitwise_xor", "the bitwise xor of integers, or the logical xor of bools", np.bitwise_xor)


@declare(in_place=True, numpy="invert", standard="bitwise_invert")
def bitwise_not(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the bits of integers inverted, or the logical not of bools.

    Parameters
    ----------
    input : Tensor
        Of any shape, of integers or bool.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape and dtype of `input`.

    Raises
    ------
    DtypeError
        For other dtypes.
    """
    if type(input) is Symbol:
        return record("bitwise_not", (input,))  # type: ignore[no-any-return]
    if dtypes.category(input.dtype) > 1:
        raise DtypeError(f"bitwise_not: got a tensor of {input.dtype}; wanted integers or bool")
    return deliver("bitwise_not", Tensor.wrap(as_own(np.invert(input.array))), out)


bitwise_left_shift = _bitwise(
    "bitwise_left_shift", "integers times two to the power `other`", np.left_shift, takes_bool=False
)
bitwise_right_shift = _bitwise(
    "bitwise_right_shift",
    "integers over two to the power `other`, rounded down",
    np.right_shift,
    takes_bool=False,
)
