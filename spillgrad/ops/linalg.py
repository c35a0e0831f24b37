"""Matrix products."""

import math
from collections.abc import Callable

import numpy as np

from spillgrad.errors import DtypeError, OperandError, ShapeError
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.define import operation
from spillgrad.ops.elementwise import Number, add, as_operand, mul
from spillgrad.ops.numeric import on_floats
from spillgrad.ops.shape import reshape, t, transpose, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels import matmul as kernels
from spillgrad_kernels.memory import empty


def _product(self: np.ndarray, other: np.ndarray) -> np.ndarray:
    if self.dtype.kind in "biu":
        return np.matmul(self, other)  # type: ignore[no-any-return]
    return on_floats(kernels.matmul, self, other)


_matmul: Callable[..., Tensor] = operation(
    "matmul", _product,
    self=lambda g, other, self_shape: sum_to(_matmul(g, transpose(other, -2, -1)), self_shape),
    other=lambda g, self, other_shape: _other_gradient(g, self, other_shape),
)  # fmt: skip
# Of two matrices: PyTorch's name, and its names of what is saved.
_mm: Callable[..., Tensor] = operation(
    "mm", lambda self, mat2: _product(self, mat2),
    self=lambda g, mat2: _mm(g, transpose(mat2, 0, 1)), mat2=lambda g, self: _mm(transpose(self, 0, 1), g),
)  # fmt: skip


def _other_gradient(g: Tensor, self: Tensor, other_shape: tuple[int, ...]) -> Tensor:
    if len(other_shape) == 2 and self.ndim > 2:  # a batch times one matrix: one long product instead of a batch to sum
        self, g = _rows(self), _rows(g)
    return sum_to(_matmul(transpose(self, -2, -1), g), other_shape)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return the matrix product of the last two dimensions; leading ones broadcast, 1-D operands are vectors.

    Shapes: (..., m, k) and (..., k, n) give (..., m, n); (k,) with (k,) gives a 0-d tensor.
    Raises ShapeError when inner sizes differ or batches do not broadcast, DtypeError when dtypes differ.
    """
    input, other = _check(input, other)
    if input.ndim == other.ndim == 2:
        return _mm(input, other)
    if input.ndim == other.ndim == 1:
        return reshape(_mm(unsqueeze(input, 0), unsqueeze(other, 1)), ())
    if input.ndim == 1:
        product = _matmul(unsqueeze(input, 0), other)
        return reshape(product, (*product.shape[:-2], product.shape[-1]))
    if other.ndim == 1:
        product = _matmul(input, unsqueeze(other, 1))
        return reshape(product, product.shape[:-1])
    return _matmul(input, other)


def _check(input: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors after checking that they can be multiplied."""
    input, other = as_operand("matmul", input), as_operand("matmul", other)
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        raise OperandError("matmul: got a number; multiply by it with *")
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
    return input, other


def _require_dims(name: str, operands: tuple[tuple[Tensor, int], ...]) -> None:
    if any(tensor.ndim != ndim for tensor, ndim in operands):
        got = " and ".join(str(tensor.shape) for tensor, _ in operands)
        wanted = " and ".join(f"{ndim}" for _, ndim in operands)
        raise ShapeError(f"{name}: got {got}; wanted {wanted} dimensions: matmul takes any")


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two matrices. Raises ShapeError for anything else."""
    _require_dims("mm", ((input, 2), (mat2, 2)))
    return matmul(input, mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the products of two equally long batches of matrices. Raises ShapeError for anything else."""
    _require_dims("bmm", ((input, 3), (mat2, 3)))
    if input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"bmm: got {input.shape} and {mat2.shape}; batches must be equally long: matmul broadcasts")
    return matmul(input, mat2)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Return the product of a matrix and a vector. Raises ShapeError for anything else."""
    _require_dims("mv", ((input, 2), (vec, 1)))
    return matmul(input, vec)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Return the sum of the products of two vectors. Raises ShapeError for anything else."""
    _require_dims("dot", ((input, 1), (tensor, 1)))
    return matmul(input, tensor)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return beta * input + alpha * mat1 @ mat2."""
    return add(input if beta == 1 else mul(input, beta), mm(mat1, mat2), alpha=alpha)


def _linear_forward(input: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    def product(rows: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        if bias is None:
            return kernels.matmul(rows, weight.T)
        out = empty((rows.shape[0], weight.shape[0]), rows.dtype)
        np.copyto(out, bias)
        return kernels.matmul(rows, weight.T, out, accumulate=True)

    rows = input.reshape(math.prod(input.shape[:-1]), input.shape[-1])
    result: np.ndarray = on_floats(product, rows, weight, bias)
    return result.reshape(*input.shape[:-1], weight.shape[0])


def _rows(tensor: Tensor) -> Tensor:
    return reshape(tensor, (math.prod(tensor.shape[:-1]), tensor.shape[-1]))


_linear: Callable[..., Tensor] = operation(
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
    if not input.is_floating_point():
        product = matmul(input, t(weight))
        return product if bias is None else add(product, bias)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"linear: got weight {weight.shape} and bias {bias.shape}; the bias has one value per row: "
            f"({weight.shape[0]},)"
        )
    for name, operand in (("weight", weight), ("bias", bias)):
        if operand is not None and operand.dtype != input.dtype:
            raise DtypeError(f"linear: got input {input.dtype} and {name} {operand.dtype}; convert one with .to(dtype)")
    return _linear(input, weight, bias)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Return the outer product of two vectors. Raises ShapeError for anything else."""
    _require_dims("outer", ((input, 1), (vec2, 1)))
    return mul(unsqueeze(input, 1), unsqueeze(vec2, 0))
