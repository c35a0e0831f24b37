"""Softmax and the normalizations of whole rows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.device.device import filled
from spillgrad.dtypes import HALF, float32, real_part
from spillgrad.errors import DtypeError, ShapeError
from spillgrad.ops.arithmetic import add, exp, mul, rsqrt, square, sub
from spillgrad.ops.array_casts import on_floats, require_floats, require_inexact
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.reduce import mean, sum
from spillgrad.ops.shape import normalize_dim, reshape, shape_arguments
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import normalization as kernels

__all__ = ["layer_norm", "log_softmax", "rms_norm", "softmax"]

Shape = tuple[int, ...]


def run_on_tensors(kernel: Callable[..., Any], *tensors: Tensor | None, **options: bool) -> Any:
    """Call a fused backward kernel on tensors; return the gradients that it computes, in the dtype of the first tensor.

    `options` are passed to `on_floats`. With `exact_aux`, only the first gradient has that dtype; the other gradients,
    those of parameters, are not rounded to half precision.
    """
    results = on_floats(kernel, *(t.array if isinstance(t, Tensor) else t for t in tensors), **options)
    return tuple(map(Tensor.wrap, results)) if isinstance(results, tuple) else Tensor.wrap(results)


def _softmax_forward(self: np.ndarray, dim: int) -> np.ndarray:
    return on_floats(lambda a: kernels.softmax(a, dim), self)


def _log_softmax_forward(self: np.ndarray, dim: int) -> np.ndarray:
    return on_floats(lambda a: kernels.log_softmax(a, dim), self)


_softmax: Callable[..., Tensor] = operation(
    "softmax", _softmax_forward,
    self=Composed(
        fused=lambda g, result, dim: run_on_tensors(lambda g, y: kernels.softmax_backward(g, y, dim), g, result),
        composed=lambda g, result, dim: mul(result, sub(g, sum(mul(g, result), dim, True))),
    ),
)  # fmt: skip
_log_softmax: Callable[..., Tensor] = operation(
    "log_softmax", _log_softmax_forward,
    self=Composed(
        fused=lambda g, result, dim: run_on_tensors(lambda g, y: kernels.log_softmax_backward(g, y, dim), g, result),
        composed=lambda g, result, dim: sub(g, mul(exp(result), sum(g, dim, True))),
    ),
)  # fmt: skip


def _along(name: str, function: Any, input: Tensor, dim: int, dtype: Any) -> Tensor:
    if dtype is not None:
        input = to_dtype(input, dtype)
    require_floats(name, input.dtype)
    dim = normalize_dim(name, dim, input.ndim)
    if not input.ndim:
        return reshape(function(reshape(input, 1), 0), ())
    return function(input, dim)  # type: ignore[no-any-return]


@declare(method=True)
def softmax(input: Tensor, dim: int = -1, dtype: Any = None, *, axis: int | None = None) -> Tensor:
    """Return exp(x) / sum(exp(x)) along one dimension, without overflow.

    Parameters
    ----------
    input : Tensor
        Of floating-point numbers, unless `dtype` is given.
    dim : int, default -1
        Dimension along which the result sums to 1.
    dtype : dtype, optional
        Data type to which the input is converted first; by default, that of the input.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DtypeError
        For integers.
    DimensionError
        If the dimension is out of range.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.softmax(sg.tensor([0.0, 0.0]), dim=0).tolist()
    [0.5, 0.5]
    """
    return _along("softmax", _softmax, input, dim if axis is None else axis, dtype)


@declare(method=True)
def log_softmax(input: Tensor, dim: int = -1, dtype: Any = None, *, axis: int | None = None) -> Tensor:
    """Return log(softmax(x)) along one dimension, accurate where softmax itself underflows.

    Parameters
    ----------
    input : Tensor
        Of floating-point numbers, unless `dtype` is given.
    dim : int, default -1
        Dimension along which the exponentials of the result sum to 1.
    dtype : dtype, optional
        Data type to which the input is converted first; by default, that of the input.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DtypeError
        For integers.
    DimensionError
        If the dimension is out of range.
    """
    return _along("log_softmax", _log_softmax, input, dim if axis is None else axis, dtype)


def _layer_norm_forward(
    input: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, normalized_shape: Shape, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = math.prod(normalized_shape)
    return on_floats(lambda x, w, b: kernels.layer_norm(x, n, w, b, eps), input, weight, bias, exact_aux=True)


def _layer_norm_fused(
    g: Tensor, input: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, normalized_shape: Shape,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    gradients = run_on_tensors(kernels.layer_norm_backward, g, input, weight, mean, rstd, exact_aux=True)
    return _wanted(gradients, normalized_shape, needs)


def composed_gradients(
    g: Any, input: Tensor, weight: Any, dims: Shape, eps: float, centre: bool = True
) -> tuple[Any, Any]:
    """Return the gradient by `input` of a normalization over `dims`, and the normalized elements without the weight."""
    x = sub(input, mean(input, dims, True)) if centre else input
    rstd: Any = rsqrt(mean(square(x), dims, True) + eps)
    normalized: Any = mul(x, rstd)
    by_normalized = g if weight is None else g * weight
    by_x = by_normalized - mean(by_normalized, dims, True) if centre else by_normalized
    return rstd * (by_x - normalized * mean(by_normalized * normalized, dims, True)), normalized


def _layer_norm_composed(
    g: Any, input: Tensor, weight: Tensor | None, normalized_shape: Shape, eps: float, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    dims = tuple(range(-len(normalized_shape), 0))
    by_input, normalized = composed_gradients(g, input, weight, dims, eps)
    gradients = by_input, sum_to(g * normalized, normalized_shape), sum_to(g, normalized_shape)
    return _wanted(gradients, normalized_shape, needs)


def _wanted(
    gradients: tuple[Tensor, ...], normalized_shape: Shape, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Return each gradient, or None if `needs` is False; reshape gradients of parameters, which kernels return flat."""
    by_input, *by_parameters = gradients
    found = [by_input if needs[0] else None]
    for part, need in zip(by_parameters, needs[1:], strict=True):
        if need and part.shape != normalized_shape:
            if part.numel():
                part = reshape(part, normalized_shape)
            else:  # without rows and without a weight, the kernel does not know how long rows are
                part = Tensor.wrap(filled(part.device, normalized_shape, part.numpy_dtype, 0))
        found.append(part if need else None)
    return tuple(found)


_layer_norm: Callable[..., Tensor] = operation(
    "native_layer_norm", _layer_norm_forward, aux=("mean", "rstd"),
    joint=(("input", "weight", "bias"), Composed(fused=_layer_norm_fused, composed=_layer_norm_composed)),
)  # fmt: skip


def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Return each row shifted to mean 0 and scaled to variance 1, then multiplied by `weight` and added to `bias`.

    Parameters
    ----------
    input : Tensor
        Of floating-point numbers; a row is its trailing dimensions.
    normalized_shape : int or sequence of int
        Shape of a row.
    weight : Tensor, optional
        Of the shape of a row.
    bias : Tensor, optional
        Of the shape of a row.
    eps : float, default 1e-05
        Added to the variance.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        For integers and complex numbers.

    Notes
    -----
    Source: Ba et al. 2016.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.layer_norm(sg.tensor([[1.0, 3.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    require_floats("layer_norm", input.dtype)
    shape = _checked_rows("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    return _layer_norm(input, weight, bias, shape, float(eps))


def require_parameter_dtype(name: str, input: Tensor, what: str, parameter: Tensor) -> None:
    """Raise DtypeError unless a parameter has the dtype of the input, or is float32 for an input of half precision."""
    if parameter.dtype is not input.dtype and not (input.numpy_dtype in HALF and parameter.numpy_dtype == float32):
        raise DtypeError(f"{name}: got input {input.dtype} and {what} {parameter.dtype}; convert one with .to(dtype)")


def _checked_rows(
    name: str, input: Tensor, normalized_shape: int | Sequence[int], **parameters: Tensor | None
) -> Shape:
    """Return `normalized_shape` as a tuple. Raises ShapeError or DtypeError if the operands do not match."""
    shape = shape_arguments((normalized_shape,))
    if not shape or input.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"{name}: got input {input.shape} and normalized_shape {shape}; wanted the input's last dimensions"
        )
    for parameter_name, parameter in parameters.items():
        if parameter is not None and parameter.shape != shape:
            raise ShapeError(
                f"{name}: got {parameter_name} {parameter.shape} and normalized_shape {shape}; they must be equal"
            )
        if parameter is not None and not input.is_complex():
            require_parameter_dtype(name, input, parameter_name, parameter)
    return shape


def _rms_norm_forward(
    input: np.ndarray, weight: np.ndarray | None, normalized_shape: Shape, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    n = math.prod(normalized_shape)
    return on_floats(lambda x, w: kernels.rms_norm(x, n, w, eps), input, weight, exact_aux=True)


def _rms_norm_fused(
    g: Tensor, input: Tensor, weight: Tensor | None, rstd: Tensor, normalized_shape: Shape, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    gradients = run_on_tensors(kernels.rms_norm_backward, g, input, weight, rstd, exact_aux=True)
    return _wanted(gradients, normalized_shape, needs)


def _rms_norm_composed(
    g: Any, input: Tensor, weight: Tensor | None, normalized_shape: Shape, eps: float, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    dims = tuple(range(-len(normalized_shape), 0))
    by_input, normalized = composed_gradients(g, input, weight, dims, eps, centre=False)
    return _wanted((by_input, sum_to(g * normalized, normalized_shape)), normalized_shape, needs)


_rms_norm: Callable[..., Tensor] = operation(
    "rms_norm", _rms_norm_forward, aux=("rstd",),
    joint=(("input", "weight"), Composed(fused=_rms_norm_fused, composed=_rms_norm_composed)),
)  # fmt: skip


def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return each row scaled to mean square 1, then multiplied by `weight`.

    Parameters
    ----------
    input : Tensor
        Of floating-point or complex numbers; a row is its trailing dimensions.
    normalized_shape : int or sequence of int
        Shape of a row.
    weight : Tensor, optional
        Of the shape of a row; may be real for complex numbers.
    eps : float, optional
        Added to the mean square; by default, the machine epsilon of float64 if the input is float64 or complex128, of
        float32 if not.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        For integers.

    Notes
    -----
    As in PyTorch, complex numbers are squared as they are, without absolute value.

    Source: Zhang & Sennrich 2019.
    """
    require_inexact("rms_norm", input.dtype)
    shape = _checked_rows("rms_norm", input, normalized_shape, weight=weight)
    computed = np.float64 if real_part(input.numpy_dtype) == np.float64 else np.float32
    eps = float(np.finfo(computed).eps if eps is None else eps)
    if input.is_complex():
        squares = mean(square(input), tuple(range(-len(shape), 0)), keepdim=True)
        normalized = mul(input, rsqrt(add(squares, eps)))
        return normalized if weight is None else mul(normalized, weight)
    return _rms_norm(input, weight, shape, eps)
