"""Matrix products."""

from typing import Any

import numpy as np

from spillgrad.errors import DtypeError, ShapeError
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.define import operation
from spillgrad.ops.numeric import on_floats
from spillgrad.ops.shape import reshape, transpose, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels import matmul as kernels
from spillgrad_kernels.memory import empty


def _product(self: np.ndarray, other: np.ndarray) -> np.ndarray:
    if self.dtype.kind in "biu":
        return np.matmul(self, other)
    return on_floats(kernels.matmul, self, other)  # type: ignore[no-any-return]


_matmul: Any = operation(
    "matmul", _product,
    self=lambda g, other, self_shape: sum_to(_matmul(g, transpose(other, -2, -1)), self_shape),
    other=lambda g, self, other_shape: _other_gradient(g, self, other_shape),
)  # fmt: skip


def _other_gradient(g: Tensor, self: Tensor, other_shape: tuple[int, ...]) -> Tensor:
    if len(other_shape) == 2 and self.ndim > 2:  # a batch times one matrix: one long product instead of a batch to sum
        self, g = reshape(self, (-1, self.shape[-1])), reshape(g, (-1, g.shape[-1]))
    return sum_to(_matmul(transpose(self, -2, -1), g), other_shape)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return the matrix product of the last two dimensions; leading ones broadcast, 1-D operands are vectors.

    Shapes: (..., m, k) and (..., k, n) give (..., m, n); (k,) with (k,) gives a 0-d tensor.
    Raises ShapeError when inner sizes differ or batches do not broadcast, DtypeError when dtypes differ.
    """
    _check(input, other)
    if input.ndim == 1 and other.ndim == 1:
        return reshape(_matmul(unsqueeze(input, 0), unsqueeze(other, 1)), ())
    if input.ndim == 1:
        product = _matmul(unsqueeze(input, 0), other)
        return reshape(product, (*product.shape[:-2], product.shape[-1]))
    if other.ndim == 1:
        product = _matmul(input, unsqueeze(other, 1))
        return reshape(product, product.shape[:-1])
    return _matmul(input, other)  # type: ignore[no-any-return]


def _check(input: Tensor, other: Tensor) -> None:
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        raise DtypeError(f"matmul: got {type(input).__name__} and {type(other).__name__}; wanted two tensors")
    a, b = input.shape, other.shape
    if not a or not b:
        raise ShapeError(f"matmul: got {a} and {b}; both operands need at least one dimension: multiply scalars with *")
    inner_a, inner_b = a[-1], b[-2] if len(b) > 1 else b[0]
    if inner_a != inner_b:
        raise ShapeError(
            f"matmul: got {a} and {b}; inner sizes {inner_a} and {inner_b} must match; transpose one of them"
        )
    try:
        np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError as error:
        raise ShapeError(f"matmul: got {a} and {b}; batch dimensions {a[:-2]} and {b[:-2]} do not broadcast") from error
    if input.dtype != other.dtype:
        raise DtypeError(f"matmul: got {input.dtype} and {other.dtype}; convert one with .to(dtype)")


mm = bmm = matmul


def _linear_forward(input: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    def product(rows: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        if bias is None:
            return kernels.matmul(rows, weight.T)
        out = empty((rows.shape[0], weight.shape[0]), rows.dtype)
        np.copyto(out, bias)
        return kernels.matmul(rows, weight.T, out, accumulate=True)

    rows = input.reshape(-1, input.shape[-1])
    result: np.ndarray = on_floats(product, rows, weight, bias)
    return result.reshape(*input.shape[:-1], weight.shape[0])


def _rows(tensor: Tensor) -> Tensor:
    return reshape(tensor, (-1, tensor.shape[-1]))


_linear: Any = operation(
    "linear", _linear_forward,
    input=lambda g, weight, input_shape: reshape(_matmul(_rows(g), weight), input_shape),
    weight=lambda g, input: _matmul(transpose(_rows(g), 0, 1), _rows(input)),
    bias=lambda g, bias_shape: sum_to(_rows(g), bias_shape),
)  # fmt: skip


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return input @ weight.T + bias.

    Shapes: input (..., k), weight (n, k), bias (n,); the result is (..., n).
    Raises ShapeError when they do not fit, DtypeError when dtypes differ.
    """
    if not input.ndim or weight.ndim != 2 or input.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: got input {input.shape} and weight {weight.shape}; wanted (..., k) and (n, k) with one k"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"linear: got weight {weight.shape} and bias {bias.shape}; the bias has one value per row: "
            f"({weight.shape[0]},)"
        )
    for name, operand in (("weight", weight), ("bias", bias)):
        if operand is not None and operand.dtype != input.dtype:
            raise DtypeError(f"linear: got input {input.dtype} and {name} {operand.dtype}; convert one with .to(dtype)")
    return _linear(input, weight, bias)  # type: ignore[no-any-return]


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Return the outer product of two vectors."""
    return unsqueeze(input, 1) * unsqueeze(vec2, 0)  # type: ignore[operator, no-any-return]
