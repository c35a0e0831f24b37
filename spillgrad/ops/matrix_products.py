"""Matrix products."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.errors import ArgumentError, DtypeError, OperandError, ShapeError
from spillgrad.ops import array_casts
from spillgrad.ops.arithmetic import add, mul
from spillgrad.ops.array_casts import on_floats
from spillgrad.ops.autocast import float32_in_autocast, half_in_autocast, product_dtype, require_products_dtype
from spillgrad.ops.broadcast import expand_to, sum_to
from spillgrad.ops.call_plan import CallOnDevice, CallPlan, Planned, new_plan
from spillgrad.ops.clamp_where import where
from spillgrad.ops.complex_views import conjugate
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import OPERATIONS, call
from spillgrad.ops.intercept import is_active
from spillgrad.ops.operation import Operation, operation
from spillgrad.ops.placement import require_one_device
from spillgrad.ops.promotion import Number, as_operand
from spillgrad.ops.shape import permute, reshape, transpose, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import matmul as kernels
from spillgrad_kernels.cpu.product_tile import TILE_ROWS
from spillgrad_kernels.device_array import device_kernel, empty_beside, is_on_device
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.layout import Layout, Shape
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.threads.dispatch import get_num_threads

__all__ = ["addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "dot", "ger", "matmul", "mm", "mv", "outer"]


class _Product(Planned):
    """The matrix product of two arrays of at least two dimensions each; its kernels can add a third array."""

    def __init__(self, name: str, parameters: tuple[str, ...]) -> None:
        super().__init__(name, parameters, absent=3 - len(parameters))

    def promoted(self, *arguments: Any) -> tuple[Tensor, ...]:
        return _checked(*arguments)

    def plan(self, layouts: tuple[Layout, ...]) -> CallPlan | None:
        if layouts[0].dtype not in FLOATS:
            return None
        a, b = layouts
        return self._planned(layouts, a, b)

    def _planned(self, layouts: tuple[Layout, ...], a: Layout, b: Layout, addend: Shape | None = None) -> CallPlan:
        # The number of threads may be raised later: plan for two at least. One thread computes a small product alone.
        call = kernels.prepare(a, b, None, max(2, get_num_threads()), addend)
        large = self if call.code is None else None
        return new_plan(layouts, call.code, call.cut.blocks, call.geometry, call.shape, call.dtype, large)

    def run(self, operands: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        """Compute a large product; the kernel makes a new plan for the present number of threads."""
        kernels.matmul(*operands, *outs)

    def plan_on_device(self, operands: tuple[Any, ...], out: Any, is_aligned: bool) -> Any:
        a, b = operands
        if out is not None or not _of_one_float(operands):
            return None
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        return CallOnDevice(device_kernel(kernels.matmul)), shape, a.dtype

    def converted(self, *arguments: Any, out: np.ndarray | None = None) -> np.ndarray:
        a, b = arguments
        if is_on_device(a) and a.dtype.kind not in "biu":
            return kernels.matmul(a, b)
        if a.dtype.kind in "biuc":
            return np.matmul(a, b)  # type: ignore[no-any-return]
        if a.dtype == dtypes.bfloat16:
            return array_casts.cast(kernels.matmul(_bits(a), _bits(b)), dtypes.bfloat16)
        return on_floats(kernels.matmul, a, b)


def _of_one_float(operands: Sequence[Any]) -> bool:
    """Return whether all operands are arrays on a device and have the same floating-point dtype."""
    dtype = operands[0].dtype
    return dtypes.is_floating_point(dtype) and all([is_on_device(x) and x.dtype == dtype for x in operands])


def _bits(array: np.ndarray) -> np.ndarray:
    """Return bfloat16 numbers as uint16, the form in which the product's kernels take them."""
    return array.view(np.uint16)


_matmul: Operation = operation(
    "matmul", _Product("matmul", ("self", "other")),
    self=lambda g, other, self_shape: _first_gradient(g, other, self_shape),
    other=lambda g, self, other_shape: _second_gradient(g, self, other_shape),
)  # fmt: skip
# PyTorch's name of the product of two matrices, and its names of the saved tensors.
_mm: Operation = operation(
    "mm", _Product("mm", ("self", "mat2")),
    self=lambda g, mat2: _linear_without_bias(g, conjugate(mat2)),
    mat2=lambda g, self: _rows_product(conjugate(self), g),
)  # fmt: skip

# The products of two equally long batches of matrices.
_bmm: Operation = operation(
    "bmm", _Product("bmm", ("self", "mat2")),
    self=lambda g, mat2: _bmm(g, conjugate(transpose(mat2, 1, 2))),
    mat2=lambda g, self: _bmm(conjugate(transpose(self, 1, 2)), g),
)  # fmt: skip


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _mm.results((a, b))[1][0]


_mv: Operation = operation(
    "mv", lambda self, vec: _product(self, vec[:, None])[:, 0],
    self=lambda g, vec: mul(unsqueeze(g, 1), unsqueeze(conjugate(vec), 0)),
    vec=lambda g, self: _mv(conjugate(transpose(self, 0, 1)), g),
)  # fmt: skip
_dot: Operation = operation(
    "dot", lambda self, tensor: _product(self[None], tensor[:, None]).reshape(()),
    self=lambda g, tensor: mul(g, conjugate(tensor)), tensor=lambda g, self: mul(g, conjugate(self)),
)  # fmt: skip


def _first_gradient(g: Tensor, other: Tensor, self_shape: Shape) -> Tensor:
    if other.ndim == 2:
        return _linear_without_bias(g, conjugate(other))  # type: ignore[no-any-return]
    return sum_to(_matmul(g, conjugate(transpose(other, -2, -1))), self_shape)


def _second_gradient(g: Tensor, self: Tensor, other_shape: Shape) -> Tensor:
    if len(other_shape) == 2:  # a batch times one matrix: one long product instead of a batch to sum
        return _rows_product(conjugate(self), g)  # type: ignore[no-any-return]
    return sum_to(_matmul(conjugate(transpose(self, -2, -1)), g), other_shape)


@declare(method=True, numpy=True)
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return the matrix product over the last two dimensions.

    Leading dimensions broadcast; operands of one dimension are vectors. ``a @ b`` is this product.

    Parameters
    ----------
    input : Tensor
        Of shape (..., m, k), or (k,); or a sparse matrix.
    other : Tensor
        Of shape (..., k, n), or (k,), and of the dtype of `input`; or a sparse matrix.

    Returns
    -------
    Tensor
        Of shape (..., m, n), without m or n for a vector; of two vectors, a tensor of no dimensions.

    Raises
    ------
    ShapeError
        If inner sizes differ, batches do not broadcast, or an operand has no dimensions.
    DtypeError
        If dtypes differ.
    OperandError
        If an operand is a number.

    Examples
    --------
    >>> import spillgrad as sg
    >>> a = sg.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> sg.matmul(a, sg.tensor([1.0, 1.0])).tolist()
    [3.0, 7.0]
    >>> (a @ a).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
    """
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        if hasattr(input, "times_dense"):  # a sparse matrix
            return input.times_dense(other)
        if hasattr(other, "dense_times"):
            return other.dense_times(input)
        input, other = _checked(input, other)
    dims = input.ndim, other.ndim
    if dims == (2, 2):
        return _mm.run(input, other)  # type: ignore[no-any-return]
    if min(dims) > 1:
        return _matmul.run(input, other)  # type: ignore[no-any-return]
    input, other = _checked(input, other)
    if dims == (1, 1):
        return _dot.run(input, other)  # type: ignore[no-any-return]
    if dims == (2, 1):
        return _mv.run(input, other)  # type: ignore[no-any-return]
    if input.ndim == 1:
        product = _matmul(unsqueeze(input, 0), other)
        return reshape(product, (*product.shape[:-2], product.shape[-1]))
    product = _matmul(input, unsqueeze(other, 1))
    return reshape(product, product.shape[:-1])


def _checked(input: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors. Raises OperandError, ShapeError or DtypeError if they cannot be multiplied."""
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
    if len(a) > 2 and len(b) > 2:
        try:
            np.broadcast_shapes(a[:-2], b[:-2])
        except ValueError as error:
            raise ShapeError(
                f"matmul: got {a} and {b}; batch dimensions {a[:-2]} and {b[:-2]} do not broadcast"
            ) from error
    if input.dtype is not other.dtype and product_dtype(input.numpy_dtype) != product_dtype(other.numpy_dtype):
        raise DtypeError(f"matmul: got {input.dtype} and {other.dtype}; convert one with .to(dtype)")
    return input, other


def _require_dims(name: str, operands: tuple[tuple[Tensor, int], ...]) -> None:
    if any(tensor.ndim != ndim for tensor, ndim in operands):
        got = " and ".join(str(tensor.shape) for tensor, _ in operands)
        wanted = " and ".join(f"{ndim}" for _, ndim in operands)
        raise ShapeError(f"{name}: got {got}; wanted {wanted} dimensions: matmul takes any")


@declare(method=True)
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two matrices.

    Parameters
    ----------
    input : Tensor
        Of shape (m, k).
    mat2 : Tensor
        Of shape (k, n), and of the dtype of `input`.

    Returns
    -------
    Tensor
        Of shape (m, n).

    Raises
    ------
    ShapeError
        For anything else than two matrices whose inner sizes agree; `matmul` takes any dimensions.
    DtypeError
        If dtypes differ.
    """
    _require_dims("mm", ((input, 2), (mat2, 2)))
    return matmul(input, mat2)


@declare(method=True)
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the products of two equally long batches of matrices.

    Parameters
    ----------
    input : Tensor
        Of shape (b, m, k).
    mat2 : Tensor
        Of shape (b, k, n), and of the dtype of `input`.

    Returns
    -------
    Tensor
        Of shape (b, m, n).

    Raises
    ------
    ShapeError
        For other shapes; `matmul` broadcasts batches.
    DtypeError
        If dtypes differ.
    """
    _require_dims("bmm", ((input, 3), (mat2, 3)))
    if input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"bmm: got {input.shape} and {mat2.shape}; batches must be equally long: matmul broadcasts")
    return _bmm.run(input, mat2)  # type: ignore[no-any-return]


@declare(method=True)
@float32_in_autocast
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Return the product of a matrix and a vector.

    Parameters
    ----------
    input : Tensor
        Of shape (m, k).
    vec : Tensor
        Of shape (k,), and of the dtype of `input`.

    Returns
    -------
    Tensor
        Of shape (m,).

    Raises
    ------
    ShapeError
        For other shapes.
    DtypeError
        If dtypes differ.
    """
    _require_dims("mv", ((input, 2), (vec, 1)))
    return matmul(input, vec)


@declare(method=True)
@float32_in_autocast
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Return the dot product of two vectors.

    Parameters
    ----------
    input : Tensor
        Of shape (n,).
    tensor : Tensor
        Of shape (n,), and of the dtype of `input`; not conjugated.

    Returns
    -------
    Tensor
        Of no dimensions.

    Raises
    ------
    ShapeError
        For anything else than two vectors of one length.
    DtypeError
        If dtypes differ.
    """
    _require_dims("dot", ((input, 1), (tensor, 1)))
    return matmul(input, tensor)


_NEVER = Tensor.wrap(np.zeros((), np.bool_))


def _added_to(input: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    """Return beta * input + alpha * product; if beta is 0, the values of `input` are ignored, even NaN."""
    if beta == 0:
        result = product if alpha == 1 else mul(product, alpha)
        return where(_NEVER, input, result) if input.requires_grad else result
    scaled = input if beta == 1 else mul(input, beta)
    return add(expand_to(scaled, product.shape), product, alpha=alpha)


@declare(in_place=True)
@half_in_autocast
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return ``beta * input + alpha * mat1 @ mat2``.

    Parameters
    ----------
    input : Tensor
        Broadcasts to (m, n).
    mat1 : Tensor
        Of shape (m, k).
    mat2 : Tensor
        Of shape (k, n).
    beta : float, default 1
        Factor of `input`; if it is 0, the values of `input` are ignored, even NaN.
    alpha : float, default 1
        Factor of the product.

    Returns
    -------
    Tensor
        Of shape (m, n).

    Raises
    ------
    ShapeError
        For other shapes.
    """
    return _added_to(input, mm(mat1, mat2), beta, alpha)


@declare(in_place=True)
@half_in_autocast
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return ``beta * input + alpha * batch1 @ batch2`` for batches of matrices.

    Parameters
    ----------
    input : Tensor
        Broadcasts to (b, m, n).
    batch1 : Tensor
        Of shape (b, m, k).
    batch2 : Tensor
        Of shape (b, k, n).
    beta : float, default 1
        Factor of `input`; if it is 0, the values of `input` are ignored, even NaN.
    alpha : float, default 1
        Factor of the products.

    Returns
    -------
    Tensor
        Of shape (b, m, n).

    Raises
    ------
    ShapeError
        For other shapes.
    """
    return _added_to(input, bmm(batch1, batch2), beta, alpha)


@declare(in_place=True)
@half_in_autocast
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return ``beta * input + alpha *`` the sum over the batch of ``batch1 @ batch2``.

    Parameters
    ----------
    input : Tensor
        Broadcasts to (m, n).
    batch1 : Tensor
        Of shape (b, m, k).
    batch2 : Tensor
        Of shape (b, k, n).
    beta : float, default 1
        Factor of `input`; if it is 0, the values of `input` are ignored, even NaN.
    alpha : float, default 1
        Factor of the sum.

    Returns
    -------
    Tensor
        Of shape (m, n).

    Raises
    ------
    ShapeError
        For other shapes.
    """
    _require_dims("addbmm", ((batch1, 3), (batch2, 3)))
    if batch1.shape[0] != batch2.shape[0]:
        raise ShapeError(f"addbmm: got {batch1.shape} and {batch2.shape}; batches must be equally long")
    first = reshape(permute(batch1, (1, 0, 2)), (batch1.shape[1], batch1.shape[0] * batch1.shape[2]))
    second = reshape(batch2, (batch2.shape[0] * batch2.shape[1], batch2.shape[2]))
    return _added_to(input, mm(first, second), beta, alpha)


@declare(in_place=True)
@float32_in_autocast
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return ``beta * input + alpha * mat @ vec`` for a matrix and a vector.

    Parameters
    ----------
    input : Tensor
        Broadcasts to (m,).
    mat : Tensor
        Of shape (m, k).
    vec : Tensor
        Of shape (k,).
    beta : float, default 1
        Factor of `input`; if it is 0, the values of `input` are ignored, even NaN.
    alpha : float, default 1
        Factor of the product.

    Returns
    -------
    Tensor
        Of shape (m,).

    Raises
    ------
    ShapeError
        For other shapes.
    """
    return _added_to(input, mv(mat, vec), beta, alpha)


@declare(in_place=True)
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return ``beta * input + alpha *`` the outer product of two vectors.

    Parameters
    ----------
    input : Tensor
        Broadcasts to (m, n).
    vec1 : Tensor
        Of shape (m,).
    vec2 : Tensor
        Of shape (n,).
    beta : float, default 1
        Factor of `input`; if it is 0, the values of `input` are ignored, even NaN.
    alpha : float, default 1
        Factor of the product.

    Returns
    -------
    Tensor
        Of shape (m, n).

    Raises
    ------
    ShapeError
        For other shapes.
    """
    return _added_to(input, outer(vec1, vec2), beta, alpha)


class _Linear(_Product):
    """The product input @ weight.T, plus the bias if there is one."""

    def promoted(self, *arguments: Any) -> tuple[Tensor, ...]:
        check_linear(self.name, *arguments)
        return arguments

    def plan(self, layouts: tuple[Layout, ...]) -> CallPlan | None:
        rows, weight, *bias = layouts
        dtype = weight.dtype
        if dtype not in FLOATS or rows.ndim < 2 or any(b.strides != (dtype.itemsize,) for b in bias):
            return None
        addend = (0,) * (rows.ndim - 1) + (dtype.itemsize,) if bias else None
        return self._planned(layouts, rows, Layout.made(weight.shape[::-1], weight.strides[::-1], dtype), addend)

    def plan_on_device(self, operands: tuple[Any, ...], out: Any, is_aligned: bool) -> Any:
        input, weight = operands[:2]
        if out is not None or not _of_one_float(operands):
            return None
        multiply, shape = device_kernel(kernels.linear), (*input.shape[:-1], weight.shape[0])
        call = CallOnDevice(lambda input, *others: multiply(_as_rows(input), *others).reshape(shape))
        return call, shape, input.dtype

    def run(self, operands: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        input, *others = operands
        kernels.linear(_as_rows(input), *others, product=_as_rows(outs[0]))

    def converted(self, *arguments: Any, out: np.ndarray | None = None) -> np.ndarray:
        input, weight, *bias = arguments
        rows = _as_rows(input)
        if is_on_device(input) and input.dtype.kind not in "biu":
            product = kernels.linear(rows, weight, *bias)
        elif input.dtype.kind in "biuc":
            product = np.add(rows @ weight.T, *bias) if bias else rows @ weight.T
        elif input.dtype == dtypes.bfloat16:
            wide_bias = [array_casts.cast(b, dtypes.float32) for b in bias]
            product = array_casts.cast(kernels.linear(_bits(rows), _bits(weight), *wide_bias), dtypes.bfloat16)
        else:
            product = on_floats(kernels.linear, rows, weight, *bias)
        return product.reshape(*input.shape[:-1], weight.shape[0])


def _as_rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 2 else reshape(tensor, (math.prod(tensor.shape[:-1]), tensor.shape[-1]))


class _RowsProduct(_Product):
    """The product of two arrays of rows, the first transposed: the sum of the outer products of their rows."""

    def promoted(self, *arguments: Any) -> tuple[Tensor, ...]:
        first, second = arguments
        if first.dtype is not second.dtype:
            raise DtypeError(
                f"matmul: got {first.dtype} and {second.dtype}; wanted one dtype; convert one with .to(dtype)"
            )
        if not first.ndim or first.shape[:-1] != second.shape[:-1]:
            raise ShapeError(f"matmul: got {first.shape} and {second.shape}; wanted as many rows in both")
        return first, second

    def plan(self, layouts: tuple[Layout, ...]) -> CallPlan | None:
        if layouts[0].dtype not in FLOATS or layouts[0].ndim < 2:
            return None
        if not all([kernels.rows_are_regular(layout) for layout in layouts]):
            return None
        first, second = [Layout.made((math.prod(x.shape[:-1]), x.shape[-1]), x.strides[-2:], x.dtype) for x in layouts]
        turned = Layout.made(first.shape[::-1], first.strides[::-1], first.dtype)
        return self._planned(layouts, turned, second)

    def run(self, operands: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        first, second = map(_as_rows, operands)
        kernels.matmul(first.T, second, *outs)

    def plan_on_device(self, operands: tuple[Any, ...], out: Any, is_aligned: bool) -> Any:
        first, second = operands
        if out is not None or not _of_one_float(operands):
            return None
        multiply, shape = device_kernel(kernels.matmul), (first.shape[-1], second.shape[-1])
        return CallOnDevice(lambda a, b: multiply(_as_rows(a).T, _as_rows(b))), shape, first.dtype

    def converted(self, *arguments: Any, out: np.ndarray | None = None) -> np.ndarray:
        first, second = map(_as_rows, arguments)
        return super().converted(first.T, second)


_rows_product: Operation = operation(
    "rows_product", _RowsProduct("rows_product", ("self", "other")),
    self=lambda g, other: _linear_without_bias(conjugate(other), g),
    other=lambda g, self, other_shape: reshape(_matmul(_rows(conjugate(self)), g), other_shape),
)  # fmt: skip


def _input_gradient(g: Tensor, weight: Tensor, input_shape: Shape) -> Tensor:
    if g.ndim > 1 and g._array.flags.c_contiguous:
        return _matmul(g, conjugate(weight))  # type: ignore[no-any-return]
    return reshape(_matmul(_rows(g), conjugate(weight)), input_shape)


_OF_INPUT_AND_WEIGHT: dict[str, Any] = {
    "input": _input_gradient,
    "weight": lambda g, input: _rows_product(g, conjugate(input)),
}
_linear: Operation = operation(
    "linear", _Linear("linear", ("input", "weight", "bias")),
    **_OF_INPUT_AND_WEIGHT, bias=lambda g, bias_shape: sum_to(g, bias_shape),
)  # fmt: skip
_linear_without_bias: Operation = operation("linear", _Linear("linear", ("input", "weight")), **_OF_INPUT_AND_WEIGHT)


# The functions that `linear` can apply to its result while the result is in the cache.
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return ``activation(input @ weight.T + bias) + residual``.

    The kernel of the product also applies the activation, or, if there is none, adds `residual`: neither needs a
    separate pass over memory.

    Parameters
    ----------
    input : Tensor
        Of shape (..., k).
    weight : Tensor
        Of shape (n, k), and of the dtype of `input`.
    bias : Tensor, optional
        Of shape (n,).
    activation : {"relu", "silu", "gelu", "gelu_tanh"}, optional
        Function of the sum; none, by default.
    residual : Tensor, optional
        Of shape (..., n), added last.

    Returns
    -------
    Tensor
        Of shape (..., n).

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If dtypes differ.
    ArgumentError
        For another activation.

    Notes
    -----
    Gradients and saved tensors are those of the separate operations.
    """
    if activation is None and residual is None:
        if bias is None:
            return _linear_without_bias.run(input, weight)  # type: ignore[no-any-return]
        return _linear.run(input, weight, bias)  # type: ignore[no-any-return]
    if activation is not None and activation not in ACTIVATIONS:
        raise ArgumentError(f"linear: got activation {activation!r}; wanted None or one of {', '.join(ACTIVATIONS)}")
    # Of few rows, the result is small: passes over it cost less than the preparations of a kernel that saves them.
    if math.prod(input.shape[:-1]) > TILE_ROWS and input.numpy_dtype in FLOATS and not is_active():
        check_linear("linear", input, weight, bias, residual)
        return _fused_linear(input, weight, bias, activation, residual)
    product = linear(input, weight, bias)
    if residual is not None and (residual.shape, residual.dtype) != (product.shape, product.dtype):
        check_linear("linear", input, weight, bias, residual)
    if activation is not None:
        product = call(activation, product)
    return product if residual is None else add(product, residual)


def check_linear(
    name: str, input: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> None:
    """Raise ShapeError or DtypeError unless shapes and dtypes fit together as in `linear`."""
    if not input.ndim or weight.ndim != 2 or input.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"{name}: got input {input.shape} and weight {weight.shape}; wanted (..., k) and (n, k) with one k"
        )
    shape = (*input.shape[:-1], weight.shape[0])
    if residual is not None and residual.shape != shape:
        raise ShapeError(f"{name}: got residual {residual.shape}; the result has {shape}: give one of that shape")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"{name}: got weight {weight.shape} and bias {bias.shape}; the bias has one value per row: "
            f"({weight.shape[0]},)"
        )
    require_products_dtype(name, input, weight=weight, bias=bias, residual=residual)


def _fused_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> Tensor:
    """Compute `linear` in one kernel, and record the separate operations as if each had been called."""
    operands = [x for x in (input, weight, bias, residual) if x is not None]
    if any([x.is_cuda for x in operands]):
        require_one_device("linear", operands)
    shape = (*input.shape[:-1], weight.shape[0])
    if activation is None:
        name, other = "add", residual
        formula = _add_residual
    else:
        name, other = activation, None
        formula = ROWS[activation].forward
    following = OPERATIONS[name]
    rows = _as_rows(input.array)
    recorded = is_recording() and any(x is not None and x.requires_grad for x in (input, weight, bias))
    # The product is written to memory only if a derivative needs it.
    product = None
    if recorded and any("self" in saved for saved in following.saves):
        product = empty_beside(rows, (rows.shape[0], weight.shape[0]), input.dtype)
    result = kernels.linear(
        rows, weight.array, None if bias is None else bias.array,
        other=None if other is None else _as_rows(other.array), formula=formula, name=name, product=product,
    )  # fmt: skip
    product = result if product is None else product
    product = product.reshape(shape)
    if bias is None:
        output = _linear_without_bias.computed((input, weight), product)
    else:
        output = _linear.computed((input, weight, bias), product)
    output = following.computed((output,) if other is None else (output, other), result.reshape(shape))
    return output if residual is None or other is not None else add(output, residual)


def _add_residual(product: Any, other: Any) -> Any:
    return product + other


@declare(method=True)
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Return the outer product of two vectors.

    Parameters
    ----------
    input : Tensor
        Of shape (m,).
    vec2 : Tensor
        Of shape (n,).

    Returns
    -------
    Tensor
        Of shape (m, n): the product of each element of `input` and each of `vec2`.

    Raises
    ------
    ShapeError
        For anything else than two vectors.
    """
    _require_dims("outer", ((input, 1), (vec2, 1)))
    return mul(unsqueeze(input, 1), unsqueeze(vec2, 0))


ger = outer
