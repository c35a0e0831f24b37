"""Products and lookups of rows with quantized matrices, whose numbers are never in memory as a whole."""

from typing import Any, NamedTuple

import numpy as np

from spillgrad.dtypes import DType
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops.array_casts import cast, on_floats
from spillgrad.ops.autocast import product_dtype
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.indexing import check_index
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import quantizing
from spillgrad_kernels.cpu.quantization import Quantized
from spillgrad_kernels.cpu.quantized_product import times, times_transposed
from spillgrad_kernels.tables.quantization import INT8, NF4

FORMATS = {"nf4": NF4, "int8": INT8}


class QuantizedMatrix(NamedTuple):
    """The tensors of a quantized matrix of `shape`; see `spillgrad_kernels.cpu.quantization.Quantized`."""

    shape: tuple[int, int]
    codes: Tensor
    scales: Tensor
    nested: Tensor | None = None
    offset: Tensor | None = None


def quantize(name: str, weight: Any, format: str) -> QuantizedMatrix:
    """Return a matrix of floating-point numbers, a tensor or an array on the host, as quantized numbers of `format`.

    Raises ArgumentError if a number is infinite or NaN; the message begins with `name`.
    """
    array = cast(weight.host_array() if isinstance(weight, Tensor) else np.asarray(weight), np.dtype(np.float32))
    try:
        found = quantizing.quantize(array, FORMATS[format])
    except ValueError as error:
        raise ArgumentError(f"{name}: got a weight with a number that is infinite or NaN; mend it first") from error
    parts = [None if part is None else Tensor.wrap(part) for part in found[1:]]
    return QuantizedMatrix(found.shape, *parts)  # type: ignore[arg-type]


def dequantize(matrix: QuantizedMatrix, dtype: DType) -> Tensor:
    """Return the numbers of a quantized matrix, rounded to `dtype`."""
    return Tensor.wrap(cast(quantizing.dequantize(_on_host(matrix)), dtype))


def rows_of(matrix: QuantizedMatrix, index: Tensor, dtype: DType) -> Tensor:
    """Return rows of a quantized matrix, by their numbers, after the dimensions of the index.

    Raises DimensionError for an index outside the matrix.
    """
    check_index("embedding", index, matrix.shape[0], 0, matrix.shape)
    rows = quantizing.dequantize(_on_host(matrix), np.asarray(index.host_array(), np.int64))
    found: Tensor = Tensor.wrap(cast(rows, dtype)).to(index.device)
    return found


def _on_host(matrix: QuantizedMatrix) -> Quantized:
    parts: list[Any] = [None if part is None else part.host_array() for part in matrix[1:]]
    return Quantized(matrix.shape, *parts)


def _forward(
    input: np.ndarray, bias: np.ndarray | None, codes: np.ndarray, scales: np.ndarray, nested: np.ndarray | None,
    offset: np.ndarray | None, shape: tuple[int, int],
) -> np.ndarray:  # fmt: skip
    matrix = Quantized(shape, codes, scales, nested, offset)
    rows = input.reshape(-1, shape[1])
    result: np.ndarray = on_floats(lambda x, b: times_transposed(x, matrix, b), rows, bias)
    return result.reshape(*input.shape[:-1], shape[0])


def _backward(
    grad_output: np.ndarray, codes: np.ndarray, scales: np.ndarray, nested: np.ndarray | None,
    offset: np.ndarray | None, shape: tuple[int, int],
) -> np.ndarray:  # fmt: skip
    matrix = Quantized(shape, codes, scales, nested, offset)
    result: np.ndarray = on_floats(lambda x: times(x, matrix), grad_output.reshape(-1, shape[0]))
    return result.reshape(*grad_output.shape[:-1], shape[1])


_product: Any = operation(
    "quantized_linear", _forward,
    input=lambda g, codes, scales, nested, offset, shape: _gradient(g, codes, scales, nested, offset, shape),
    bias=lambda g, bias_shape: sum_to(g, bias_shape),
)  # fmt: skip
_gradient: Any = operation(
    "quantized_product", _backward,
    grad_output=lambda g, codes, scales, nested, offset, shape: _product(
        g, None, codes, scales, nested, offset, shape
    ),
)  # fmt: skip


def linear(input: Tensor, matrix: QuantizedMatrix, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ matrix.T + bias``; the matrix gets no gradient.

    Sums are float32, or float64 for float64 inputs. In `autocast`, input and result are converted as for `linear`.
    Raises ShapeError or DtypeError for what does not fit together.
    """
    if not input.ndim or input.shape[-1] != matrix.shape[1]:
        raise ShapeError(
            f"linear: got input {input.shape} and a quantized weight {matrix.shape}; wanted (..., k) and (n, k)"
        )
    if not input.is_floating_point():
        raise DtypeError(f"linear: got input {input.dtype} for a quantized weight; convert it with .to(dtype)")
    dtype = product_dtype(input.numpy_dtype)
    input = to_dtype(input, dtype)
    bias = None if bias is None else to_dtype(bias, dtype)
    for part in matrix[1:]:
        if isinstance(part, Tensor) and not part._storage.offloaded:
            # As a weight's memory, it is in RAM anyway: nothing is saved by spilling it.
            part._storage.trainable = True
    return _product(input, bias, *matrix[1:], matrix.shape)  # type: ignore[no-any-return]
