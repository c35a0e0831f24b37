"""Layers whose frozen weight is in 4 or 8 bits: see `spillgrad.nn.quantize`."""

from typing import Any, ClassVar

from spillgrad.dtypes import DType
from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import quantized
from spillgrad.ops.arithmetic import add
from spillgrad.ops.elementwise import call
from spillgrad.ops.quantized import FORMATS, QuantizedMatrix
from spillgrad.ops.shape import reshape
from spillgrad.tensor import Tensor
from spillgrad_kernels.tables.quantization import BLOCK, NESTED_BLOCK

__all__ = ["QuantizedConv1D", "QuantizedEmbedding", "QuantizedLinear"]

# The buffers of a quantized weight, in the order of `QuantizedMatrix`.
BUFFERS = ("weight", "absmax", "nested_absmax", "nested_offset")


class QuantizedWeight(Module):
    """The base of layers with a quantized weight: its buffers, which no conversion to another dtype changes.

    `weight` holds the codes, `absmax` their scales; with scales in eight bits, `nested_absmax` and `nested_offset` say
    what these stand for.
    """

    weight: Tensor
    absmax: Tensor
    nested_absmax: Tensor | None
    nested_offset: Tensor | None
    _exact: ClassVar[frozenset[str]] = frozenset(BUFFERS)

    def _take(self, format: str, matrix: QuantizedMatrix, dtype: DType) -> None:
        self.format = format
        self.dtype = dtype
        self.weight_shape = matrix.shape
        stored, codes = stored_shape(matrix.shape, format), matrix.codes
        if codes.shape != stored:  # a view is not read in place, nor offloaded while a model is built
            codes = reshape(codes, stored)
        for name, part in zip(BUFFERS, (codes, *matrix[2:]), strict=True):
            self.register_buffer(name, part)

    def _matrix(self) -> QuantizedMatrix:
        return QuantizedMatrix(self.weight_shape, *[self._buffers[name] for name in BUFFERS])  # type: ignore[arg-type]

    def dequantized(self) -> Tensor:
        """Return the numbers of the weight, in the dtype that it had.

        Returns
        -------
        Tensor
            Of the shape that the weight had.
        """
        return quantized.dequantize(self._matrix(), self.dtype)


def quantized_numbers(module: Module) -> int:
    """Return how many numbers the quantized weight of a layer stands for; 0 for other modules."""
    shape = getattr(module, "weight_shape", None)
    return shape[0] * shape[1] if shape is not None and set(BUFFERS) <= module._buffers.keys() else 0


def stored_shape(shape: tuple[int, int], format: str) -> tuple[int, int]:
    """Return the shape in which layers and files hold the codes of a matrix."""
    return (-(-shape[0] * shape[1] // 2), 1) if format == "nf4" else shape


def empty_matrix(shape: tuple[int, int], format: str, nests: bool, tensors: Any) -> QuantizedMatrix:
    """Return a matrix of tensors that `tensors(shape, dtype)` makes."""
    if format == "int8":
        return QuantizedMatrix(shape, tensors(shape, FORMATS[format]), tensors((shape[0],), "float32"))
    blocks = -(-shape[0] * shape[1] // BLOCK)
    codes = tensors(stored_shape(shape, format), FORMATS[format])
    if not nests:
        return QuantizedMatrix(shape, codes, tensors((blocks,), "float32"))
    nested = tensors((-(-blocks // NESTED_BLOCK),), "float32"), tensors((), "float32")
    return QuantizedMatrix(shape, codes, tensors((blocks,), "uint8"), *nested)


class QuantizedLinear(QuantizedWeight):
    """Compute ``x @ weight.T + bias`` with a frozen weight of 4 or 8 bits; `quantize` makes such layers.

    The numbers of the weight exist only in the caches, while a product uses them. No gradient flows to the weight; the
    one of the input is that of the weight that `dequantized` returns.

    Parameters
    ----------
    format : {"nf4", "int8"}
        How the weight is held.
    matrix : QuantizedMatrix
        The weight, of shape (out_features, in_features).
    bias : Parameter, optional
        Of shape (out_features,).
    dtype : dtype
        Data type that the weight had.
    """

    bias: Parameter | None

    def __init__(self, format: str, matrix: QuantizedMatrix, bias: Parameter | None, dtype: DType) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.shape
        self._take(format, matrix, dtype)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the affine map of the input.

        Parameters
        ----------
        x : Tensor
            Of shape (..., in_features).

        Returns
        -------
        Tensor
            Of shape (..., out_features).
        """
        return quantized.linear(x, self._matrix(), self.bias)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"format={self.format}"
        )


class QuantizedConv1D(QuantizedWeight):
    """GPT-2's `Conv1D` with a frozen weight of 4 or 8 bits, held as that of a `QuantizedLinear`.

    Parameters
    ----------
    format : {"nf4", "int8"}
        How the weight is held.
    matrix : QuantizedMatrix
        The transpose of the weight, of shape (out_features, in_features).
    bias : Parameter
        Of shape (out_features,).
    dtype : dtype
        Data type that the weight had.
    activation : str, optional
        Function of the sum.
    """

    bias: Parameter

    def __init__(
        self, format: str, matrix: QuantizedMatrix, bias: Parameter, dtype: DType, activation: str | None = None
    ) -> None:
        super().__init__()
        self.activation = activation
        self._take(format, matrix, dtype)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the layer's result, plus `residual` if that is given.

        Parameters
        ----------
        x : Tensor
            Of shape (..., in_features).
        residual : Tensor, optional
            Of the shape of the result.

        Returns
        -------
        Tensor
            Of shape (..., out_features).
        """
        result = quantized.linear(x, self._matrix(), self.bias)
        if self.activation is not None:
            result = call(self.activation, result)
        return result if residual is None else add(residual, result)

    def dequantized(self) -> Tensor:
        """Return the numbers of the weight, in the dtype that it had.

        Returns
        -------
        Tensor
            Of shape (in_features, out_features).
        """
        weight: Tensor = quantized.dequantize(self._matrix(), self.dtype).t().contiguous()
        return weight

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        extra = "" if self.activation is None else f", activation={self.activation!r}"
        outputs, inputs = self.weight_shape
        return f"in_features={inputs}, out_features={outputs}{extra}, format={self.format}"


class QuantizedEmbedding(QuantizedWeight):
    """Look up rows of a frozen table of 4 or 8 bits, of which only these rows are expanded.

    Parameters
    ----------
    format : {"nf4", "int8"}
        How the table is held.
    matrix : QuantizedMatrix
        The table, of shape (num_embeddings, embedding_dim).
    dtype : dtype
        Data type of the table that was, and of the rows.
    """

    def __init__(self, format: str, matrix: QuantizedMatrix, dtype: DType) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = matrix.shape
        self._take(format, matrix, dtype)

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows at the indices.

        Parameters
        ----------
        index : Tensor
            Integers of any shape, from 0 on and below `num_embeddings`.

        Returns
        -------
        Tensor
            Of shape ``(*index.shape, embedding_dim)``.
        """
        return quantized.rows_of(self._matrix(), index, self.dtype)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return f"{self.num_embeddings}, {self.embedding_dim}, format={self.format}"


def require_format(name: str, format: Any) -> None:
    """Raise ArgumentError for an unknown format."""
    if not isinstance(format, str) or format not in FORMATS:
        raise ArgumentError(f"{name}: got {format!r}; wanted {' or '.join(map(repr, FORMATS))}")
