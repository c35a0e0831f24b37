"""Dropout. A mask is not saved: backward draws it again from its seed and position."""

import warnings
from collections.abc import Callable

import numpy as np

from spillgrad.device.device import filled
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.generator import default_generator
from spillgrad.ops.arithmetic import add, mul
from spillgrad.ops.array_casts import on_floats, require_floats, require_inexact
from spillgrad.ops.inplace import change
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import random as kernels
from spillgrad_kernels.tables.random import counters_needed

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_add", "feature_alpha_dropout"]


def _dropped(self: np.ndarray, p: float, seed: int, offset: int) -> np.ndarray:
    return on_floats(lambda a: kernels.dropout(a, p, seed, offset), self)


def _dropped_and_added(self: np.ndarray, residual: np.ndarray, p: float, seed: int, offset: int) -> np.ndarray:
    return on_floats(lambda a, b: kernels.dropout(a, p, seed, offset, b), self, residual)


_dropout: Callable[..., Tensor] = operation(
    "dropout", _dropped, self=lambda g, p, seed, offset: _dropout(g, p, seed, offset)
)
_dropout_add: Callable[..., Tensor] = operation(
    "dropout_add", _dropped_and_added,
    self=lambda g, p, seed, offset: _dropout(g, p, seed, offset), residual=lambda g: g,
)  # fmt: skip


def _require_probability(name: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise ArgumentError(f"{name}: got p={p}; wanted a probability from 0 to 1")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return `input` with each element set to 0 with probability `p`, and the others scaled by ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    p : float, default 0.5
        Probability, 0 to 1.
    training : bool, default True
        Whether to drop elements; otherwise the result is `input`.
    inplace : bool, default False
        Whether to overwrite the input.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `p` is no probability.

    Notes
    -----
    Source: Srivastava et al. 2014.
    """
    _require_probability("dropout", p)
    if not training or p == 0:
        require_inexact("dropout", input.dtype)
        return input
    require_floats("dropout", input.dtype)
    seed, offset = default_generator.take(counters_needed(input.numel()))
    if inplace:
        return change(input, "dropout", lambda tensor: _dropout(tensor, float(p), seed, offset))
    return _dropout(input, float(p), seed, offset)


def dropout_add(input: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Return ``residual + dropout(input, p, training)`` in one pass.

    The random numbers are those that `dropout` would draw.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    residual : Tensor
        Term; the shapes broadcast.
    p : float, default 0.5
        Probability, 0 to 1.
    training : bool, default True
        Whether to drop elements.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ArgumentError
        If `p` is no probability.
    """
    alike = input.shape == residual.shape and input.dtype == residual.dtype and 0 < p <= 1
    if not training or not alike:
        return add(residual, dropout(input, p, training))
    require_floats("dropout_add", input.dtype)
    seed, offset = default_generator.take(counters_needed(input.numel()))
    return _dropout_add(input, residual, float(p), seed, offset)


def _ones(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor.wrap(filled(like.device, shape, like.dtype, 1))


def _dropped_channels(
    name: str, input: Tensor, p: float, training: bool, inplace: bool, ndims: tuple[int, ...], unbatched: int | None
) -> Tensor:
    """Zero whole channels: along dimension 0 if the tensor has `unbatched` dimensions, otherwise along dimension 1."""
    _require_probability(name, p)
    if input.ndim not in ndims:
        raise ShapeError(
            f"{name}: got a tensor of shape {input.shape}; wanted {' or '.join(map(str, ndims))} dimensions"
        )
    if not training or p == 0:
        return input
    lead = 1 if input.ndim == unbatched else 2
    mask = dropout(_ones(input, (*input.shape[:lead], *(1,) * (input.ndim - lead))), p)
    return change(input, name, mul, mask) if inplace else mul(input, mask)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return `input` with whole channels set to 0 with probability `p`, and the others scaled by ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L) or (C, L).
    p : float, default 0.5
        Probability, 0 to 1.
    training : bool, default True
        Whether to drop channels; otherwise the result is `input`.
    inplace : bool, default False
        Whether to overwrite the input.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `p` is no probability.
    ShapeError
        If `input` has another number of dimensions.
    """
    return _dropped_channels("dropout1d", input, p, training, inplace, (2, 3), 2)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return `input` with whole channels set to 0 with probability `p`, and the others scaled by ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (N, C, L); of shape (N, C), elements are channels.
    p : float, default 0.5
        Probability, 0 to 1.
    training : bool, default True
        Whether to drop channels; otherwise the result is `input`.
    inplace : bool, default False
        Whether to overwrite the input.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `p` is no probability.
    ShapeError
        If `input` has another number of dimensions.

    Warns
    -----
    UserWarning
        If `input` has two dimensions, as in PyTorch.
    """
    if input.ndim == 2:
        warnings.warn(
            "dropout2d: Received a 2-D input to dropout2d, which is deprecated and will result in an error in a future "
            "release. To retain the behavior and silence this warning, please use dropout instead. Note that dropout2d "
            "exists to provide channel-wise dropout on inputs with 2 spatial dimensions, a channel dimension, and an "
            "optional batch dimension (i.e. 3D or 4D inputs).",
            stacklevel=2,
        )
        return _dropped_channels("dropout2d", input, p, training, inplace, (2,), None)
    return _dropped_channels("dropout2d", input, p, training, inplace, (3, 4), None)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return `input` with whole channels set to 0 with probability `p`, and the others scaled by ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W).
    p : float, default 0.5
        Probability, 0 to 1.
    training : bool, default True
        Whether to drop channels; otherwise the result is `input`.
    inplace : bool, default False
        Whether to overwrite the input.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `p` is no probability.
    ShapeError
        If `input` has another number of dimensions.
    """
    return _dropped_channels("dropout3d", input, p, training, inplace, (4, 5), 4)


# The limit of selu far below 0 (Klambauer et al. 2017, section 2).
_SELU_LOWEST = -1.7580993408473766


def _alpha_dropped(name: str, input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[int, ...]) -> Tensor:
    _require_probability(name, p)
    require_inexact(name, input.dtype)
    if not training or p == 0:
        return input
    if p == 1:
        return change(input, name, mul, 0.0) if inplace else mul(input, 0.0)
    require_floats(name, input.dtype)
    kept = Tensor.wrap((dropout(_ones(input, shape), p).array != 0).astype(input.dtype))
    scale = ((_SELU_LOWEST**2 * p + 1) * (1 - p)) ** -0.5

    def dropped(input: Tensor) -> Tensor:
        return add(mul(input, mul(kept, scale)), mul(add(kept, p - 1), -scale * _SELU_LOWEST))

    return change(input, name, dropped) if inplace else dropped(input)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Return `input` with each element set to selu's lowest value with probability `p`, then scaled and shifted.

    Scale and shift keep mean 0 and variance 1.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    p : float, default 0.5
        Probability, 0 to 1.
    training : bool, default False
        Whether to drop elements; otherwise the result is `input`.
    inplace : bool, default False
        Whether to overwrite the input.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `p` is no probability.

    Notes
    -----
    Source: Klambauer et al. 2017, section 2.
    """
    return _alpha_dropped("alpha_dropout", input, p, training, inplace, input.shape)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Return `input` after `alpha_dropout` of whole channels.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, ...).
    p : float, default 0.5
        Probability, 0 to 1.
    training : bool, default False
        Whether to drop channels; otherwise the result is `input`.
    inplace : bool, default False
        Whether to overwrite the input.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `p` is no probability.
    ShapeError
        If `input` has fewer than two dimensions.
    """
    if input.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: got a tensor of shape {input.shape}; wanted (N, C, ...)")
    shape = (*input.shape[:2], *(1,) * (input.ndim - 2))
    return _alpha_dropped("feature_alpha_dropout", input, p, training, inplace, shape)
