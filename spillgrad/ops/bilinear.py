"""The bilinear map of two vectors."""

import math

from spillgrad.errors import DtypeError, ShapeError
from spillgrad.ops.arithmetic import add, mul
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import permute, reshape, unsqueeze
from spillgrad.tensor import Tensor

__all__ = ["bilinear"]


@float32_in_autocast
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return input1 A input2 + bias for each of the matrices A in `weight`.

    Shapes: input1 (..., m), input2 (..., n), weight (k, m, n), bias (k,), result (..., k).
    Raises ShapeError when they do not fit, DtypeError when dtypes differ.
    """
    name = "bilinear"
    if weight.ndim != 3 or not input1.ndim or not input2.ndim:
        raise ShapeError(
            f"{name}: got inputs {input1.shape} and {input2.shape} and weight {weight.shape}; wanted (..., m), (..., "
            "n) and (k, m, n)"
        )
    outputs, first, second = weight.shape
    if input1.shape[:-1] != input2.shape[:-1]:
        raise ShapeError(f"{name}: input batch dimensions do not match: got {input1.shape} and {input2.shape}")
    if (input1.shape[-1], input2.shape[-1]) != (first, second):
        raise ShapeError(
            f"{name}: got inputs {input1.shape} and {input2.shape} and weight {weight.shape}; their last sizes must be "
            f"{first} and {second}"
        )
    if bias is not None and bias.shape != (outputs,):
        raise ShapeError(f"{name}: got bias {bias.shape}; wanted one for each of {outputs} outputs")
    for what, operand in (("input2", input2), ("weight", weight), ("bias", bias)):
        if operand is not None and operand.dtype != input1.dtype:
            raise DtypeError(
                f"{name}: got input1 {input1.dtype} and {what} {operand.dtype}; convert one with .to(dtype)"
            )
    lead = input1.shape[:-1]
    rows = math.prod(lead)
    # For each row the products of input1 with every column of every matrix, then with input2.
    columns = reshape(permute(weight, (1, 0, 2)), (first, outputs * second))
    halves = reshape(matmul(reshape(input1, (rows, first)), columns), (rows, outputs, second))
    result = reshape(sum(mul(halves, unsqueeze(reshape(input2, (rows, second)), 1)), -1), (*lead, outputs))
    return result if bias is None else add(result, bias)
