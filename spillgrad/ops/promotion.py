"""Promote the operands of elementwise operations to tensors and numbers, in the dtype that the operation computes in.

The rules are PyTorch's; a Python number never widens a tensor.
"""

from typing import Any

import numpy as np

from spillgrad import data_type, dtypes
from spillgrad.errors import ArgumentError, ComplexDtypeError, DtypeError, OperandError
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.fuse_symbols import Symbol
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import native
from spillgrad_kernels.device_array import ARRAYS, is_on_device
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.tables.complex_derivatives import COMPLEX_ROWS
from spillgrad_kernels.tables.elementwise_derivatives import ROWS

RealNumber = bool | int | float
Number = RealNumber | complex
Operand = Tensor | Number
# The types that operators take; the operators of other types may know what to do with a tensor.
OPERANDS = (Tensor, bool, int, float, complex, np.ndarray, np.generic)


def as_operand(name: str, value: Any) -> Any:
    """Return an operand as a tensor or Python number; NumPy arrays become tensors over their memory."""
    if isinstance(value, (Tensor, int, float, complex)):
        return value
    if isinstance(value, ARRAYS):
        return Tensor.wrap(native(value))
    if isinstance(value, np.generic) and isinstance(value.item(), Number):
        return value.item()
    raise OperandError(f"{name}: got {type(value).__name__}; wanted a tensor, a number or a NumPy array")


def common_dtype(operands: list[Any]) -> dtypes.DType:
    """Return the dtype of arithmetic on operands that `as_operand` returned."""
    kinds = [o for o in operands if isinstance(o, Tensor)]
    numbers = [o for o in operands if not isinstance(o, Tensor)]
    first = kinds[0].numpy_dtype if kinds else None
    limit = 3 if any(isinstance(number, complex) for number in numbers) else 2
    if first is not None and dtypes.category(first) >= limit and all(t.numpy_dtype == first for t in kinds):
        return first
    return dtypes.result_type([(t.numpy_dtype, t.ndim == 0) for t in kinds], numbers)


def result_type(*operands: Operand) -> data_type.dtype:
    """Return the dtype of the result of arithmetic on tensors and numbers.

    Parameters
    ----------
    *operands : Tensor or float
        The tensors and numbers.

    Returns
    -------
    dtype
        Their common dtype.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.result_type(sg.tensor([1, 2]), 0.5)
    spillgrad.float32
    """
    return data_type.BY_NUMPY[common_dtype([as_operand("result_type", o) for o in operands])]


def promoted(name: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return operands in the dtype that `name` computes in; at least one is a tensor. Raises as `elementwise.call`."""
    if _share_a_float(operands):  # most calls: nothing to convert
        return operands
    tensors = [as_operand(name, o) for o in operands]
    conditions = 1 if name == "where" else 0
    dtype = common_dtype(tensors[conditions:])
    if dtypes.is_complex(dtype):
        if name not in COMPLEX_ROWS:
            raise refused_complex(name, dtype)
    elif not dtypes.is_floating_point(dtype):
        _check_exact(name, dtype, tensors[conditions:])
        if ROWS[name].result == "float":
            dtype = dtypes.get_default_dtype()
    values = [to_dtype(t, dtype) if isinstance(t, Tensor) else t for t in tensors[conditions:]]
    if not any(isinstance(t, Tensor) for t in values) and not isinstance(tensors[0], Symbol):
        values[0] = Tensor.wrap(np.asarray(values[0], dtype))
    return (*tensors[:conditions], *values)


def _share_a_float(operands: tuple[Any, ...]) -> bool:
    """Return whether operands are Python numbers and tensors of one floating-point dtype; the result has it, too."""
    dtype = None
    for operand in operands:
        if isinstance(operand, Tensor):
            if type(operand) is Symbol or (dtype is not None and operand._array.dtype is not dtype):
                return False
            dtype = operand._array.dtype
        elif not isinstance(operand, int | float):
            return False
    return dtype in FLOATS or dtype in dtypes.HALF


_REMEDIES = {"sign": "torch.sgn has the direction of complex numbers: use sgn()"}


def refused_complex(name: str, dtype: dtypes.DType) -> ComplexDtypeError:
    """Return (not raise) the error for complex operands of an operation that is not defined for them."""
    torch_name = {"complex64": "ComplexFloat", "complex128": "ComplexDouble"}[str(dtype)]
    remedy = _REMEDIES.get(name, "use abs(), or the real and imaginary parts")
    return ComplexDtypeError(
        f"{name}: got {dtype}; it is not supported for complex numbers, \"{name}\" not implemented for '{torch_name}': "
        f"{remedy}"
    )


# Arithmetic that is not defined for bool, as in PyTorch.
_NOT_FOR_BOOL = frozenset((
    "abs", "ceil", "clamp", "cube", "elu", "floor", "floor_divide", "fmod", "frac", "hardtanh",
    "leaky_relu", "lerp", "neg", "pow", "relu", "remainder", "round", "square", "sub", "trunc",
))  # fmt: skip
# Arithmetic in which an integer too large for the dtype may be wrapped around first.
_MODULAR = frozenset(("add", "sub", "mul"))


def _check_exact(name: str, dtype: dtypes.DType, operands: list[Any]) -> None:
    """Raise DtypeError or ArgumentError if the operation is not defined for these bool or integer operands."""
    if name in _NOT_FOR_BOOL and dtype == dtypes.bool_:
        raise DtypeError(
            f"{name}: got bool, which has no such arithmetic; convert with .to(int64), or use ~, &, | and ^"
        )
    if dtypes.category(dtype) != 1:
        return
    if name not in _MODULAR and ROWS[name].result == "same":
        limits = dtypes.iinfo(dtype)
        for value in operands:
            if isinstance(value, int) and not limits.min <= value <= limits.max:
                raise ArgumentError(f"{name}: got {value}; {dtype} takes {limits.min} to {limits.max}")
    if name in ("floor_divide", "remainder", "fmod", "pow"):
        other = operands[1].array if isinstance(operands[1], Tensor) else operands[1]
        if is_on_device(other):  # to look at it would wait for the device
            return
        if name == "pow" and np.any(other < 0):
            raise ArgumentError("pow: got integers and a negative exponent; convert with .to(float32)")
        if name != "pow" and np.any(other == 0):
            raise ArgumentError(f"{name}: got integers and a zero divisor; convert with .to(float32)")
