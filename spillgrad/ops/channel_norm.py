"""Batch, instance and group normalization, with parameters per channel.

All three are one operation over (N, G, K, S): N samples, G groups of K channels, S positions. They differ in the
dimensions over which mean and variance are taken.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.autograd.recompute.state import is_recomputing
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import inplace
from spillgrad.ops.arithmetic import add, div, mul, pow, rsqrt, square, sub
from spillgrad.ops.array_casts import on_floats, require_floats
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.normalization import composed_gradients, require_parameter_dtype, run_on_tensors
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.padding import pad
from spillgrad.ops.pooling import avg_pool2d
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import channel_norm

__all__ = ["batch_norm", "group_norm", "instance_norm", "local_response_norm"]

Shape = tuple[int, ...]
# The dimensions over which statistics are taken: per group of each sample, and per group over the whole batch.
_SAMPLE, _BATCH = (2, 3), (0, 2, 3)


def _places(shape: Shape, groups: int) -> Shape:
    """Return the shape (N, G, K, S) of an input of `shape` (N, C, ...)."""
    return shape[0], groups, shape[1] // max(groups, 1), math.prod(shape[2:])


def _forward(
    input: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, groups: int, dims: Shape, eps: float,
    running_mean: np.ndarray | None, running_var: np.ndarray | None, momentum: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    places, running = _places(input.shape, groups), (running_mean, running_var)

    def normalized(x: np.ndarray, w: Any, b: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return channel_norm.normalize(x, w, b, places, dims, eps, running, momentum)

    return on_floats(normalized, input, weight, bias, exact_aux=True, device_takes_half=True)


def _fused(
    g: Tensor, input: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, groups: int, dims: Shape,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    places = _places(input.shape, groups)

    def computed(g: np.ndarray, x: np.ndarray, w: Any, mean: np.ndarray, rstd: np.ndarray) -> tuple[np.ndarray, ...]:
        return channel_norm.gradients(g, x, w, mean, rstd, places, dims)

    results = run_on_tensors(computed, g, input, weight, mean, rstd, exact_aux=True, device_takes_half=True)
    return tuple(result if need else None for result, need in zip(results, needs, strict=True))


def _composed(
    g: Any, input: Tensor, weight: Tensor | None, groups: int, dims: Shape, eps: float, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    places = _places(input.shape, groups)
    g = reshape(g, places)
    weight = weight if weight is None else reshape(weight, (1, *places[1:3], 1))
    by_input, normalized = composed_gradients(g, reshape(input, places), weight, dims, eps)
    results = reshape(by_input, input.shape), *(reshape(sum(part, (0, 3)), -1) for part in (g * normalized, g))
    return tuple(result if need else None for result, need in zip(results, needs, strict=True))


def _norm(name: str) -> Callable[..., Tensor]:
    return operation(
        name, _forward, aux=("mean", "rstd"),
        joint=(("input", "weight", "bias"), Composed(fused=_fused, composed=_composed)),
    )  # fmt: skip


_batch_norm, _group_norm = _norm("native_batch_norm"), _norm("native_group_norm")


def _checked(name: str, input: Tensor, **parameters: Tensor | None) -> int:
    """Check the input and its parameters, and return the number of channels. Raises ShapeError or DtypeError."""
    if input.ndim < 2:
        raise ShapeError(f"{name}: got input {input.shape}; wanted (N, C, ...): a batch and channels first")
    require_floats(name, input.dtype)
    channels = input.shape[1]
    for what, parameter in parameters.items():
        if parameter is None:
            continue
        if parameter.shape != (channels,):
            raise ShapeError(
                f"{name}: got input {input.shape} and {what} {parameter.shape}; wanted one number for each of "
                f"{channels} channels"
            )
        if what in ("weight", "bias"):
            require_parameter_dtype(name, input, what, parameter)
    return channels


def _require_several(name: str, what: str, count: int, shape: Shape) -> None:
    if count == 1:
        raise ArgumentError(
            f"{name}: Expected more than 1 {what} when training, got input size {shape}; one number has no variance"
        )


def _by_own_statistics(
    name: str, input: Tensor, weight: Tensor | None, bias: Tensor | None, dims: Shape, eps: float,
    running: tuple[Tensor | None, Tensor | None], momentum: float,
) -> Tensor:  # fmt: skip
    """Normalize by the input's own statistics, and update the running statistics in place.

    Raises GraphError for a running statistic whose memory is read-only or expanded.
    """
    if not input.numel() or is_recomputing():  # a checkpoint's second run moves no statistics
        running = None, None
    for statistic in running:
        if statistic is not None:
            inplace.begin_write(statistic, name, statistic.shape, statistic.numpy_dtype)
    return _batch_norm(input, weight, bias, input.shape[1], dims, float(eps), *running, float(momentum))


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Return each channel normalized to mean 0 and variance 1 over the batch, then times `weight` plus `bias`.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, ...).
    running_mean, running_var : Tensor or None
        Running statistics, of shape (C,). In training, they may be None; otherwise they are the mean and variance, and
        get no gradient.
    weight : Tensor, optional
        Factor of each channel, of shape (C,).
    bias : Tensor, optional
        Term of each channel, of shape (C,).
    training : bool, default False
        Whether mean and variance are the batch's own; the running statistics then move towards these in place. The
        running variance divides by n - 1.
    momentum : float, default 0.1
        Share of the batch's statistics in the running ones.
    eps : float, default 1e-5
        Number that is added to the variance.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the dtypes do not fit together.
    ArgumentError
        If a channel has a single value in training, or a running statistic is missing otherwise.

    Notes
    -----
    Source: Ioffe & Szegedy 2015.
    """
    channels = _checked(
        "batch_norm", input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias
    )
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError(
                "batch_norm: got no running_mean or running_var; pass both, or training=True for the batch's own"
            )
        return _by_constants(input, running_mean, running_var, weight, bias, eps)
    count = input.numel() // channels if channels else 0
    _require_several("batch_norm", "value per channel", count, input.shape)
    running = running_mean, running_var
    return _by_own_statistics("batch_norm", input, weight, bias, _BATCH, eps, running, momentum)


def _by_constants(
    input: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    centre, variance = (to_dtype(running.detach(), input.dtype) for running in (running_mean, running_var))
    scale = rsqrt(variance + float(eps))
    scale = scale if weight is None else mul(scale, weight)
    shift = mul(centre, -scale) if bias is None else sub(bias, mul(centre, scale))
    per_channel = (1, input.shape[1], *(1,) * (input.ndim - 2))
    return add(mul(input, reshape(scale, per_channel)), reshape(shift, per_channel))


def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Return each channel of each sample normalized to mean 0 and variance 1, then times `weight` plus `bias`.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, ...).
    running_mean, running_var : Tensor, optional
        Running statistics, of shape (C,); mean and variance without `use_input_stats`.
    weight : Tensor, optional
        Factor of each channel, of shape (C,).
    bias : Tensor, optional
        Term of each channel, of shape (C,).
    use_input_stats : bool, default True
        Whether mean and variance are the channel's own; the running statistics then move in place towards the averages
        of these over the batch.
    momentum : float, default 0.1
        Share of the batch's statistics in the running ones.
    eps : float, default 1e-5
        Number that is added to the variance.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the dtypes do not fit together.
    ArgumentError
        If a channel has a single position, or a running statistic is missing without `use_input_stats`.

    Notes
    -----
    Source: Ulyanov et al. 2016.
    """
    _checked("instance_norm", input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ArgumentError(
                "instance_norm: Expected running_mean and running_var to be given when use_input_stats=False; pass both"
            )
        return _by_constants(input, running_mean, running_var, weight, bias, eps)
    _require_several("instance_norm", "spatial element", math.prod(input.shape[2:]), input.shape)
    running = running_mean, running_var
    return _by_own_statistics("instance_norm", input, weight, bias, _SAMPLE, eps, running, momentum)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return each group of channels of each sample normalized to mean 0 and variance 1, then times weight plus bias.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, ...).
    num_groups : int
        Number of groups; it divides C.
    weight : Tensor, optional
        Factor of each channel, of shape (C,).
    bias : Tensor, optional
        Term of each channel, of shape (C,).
    eps : float, default 1e-5
        Number that is added to the variance.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the dtypes do not fit together.
    ArgumentError
        If `num_groups` does not divide C, or a group has a single number.

    Notes
    -----
    Source: Wu & He 2018.
    """
    channels = _checked("group_norm", input, weight=weight, bias=bias)
    if num_groups < 1 or channels % num_groups:
        raise ArgumentError(
            f"group_norm: got input {input.shape} and num_groups {num_groups}; Expected number of channels in input to "
            "be divisible by num_groups"
        )
    _require_several("group_norm", "value per channel", input.numel() // num_groups, input.shape)
    return _group_norm(input, weight, bias, int(num_groups), _SAMPLE, float(eps), None, None, 0.0)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Return each element divided by ``(k + alpha * mean of squares) ** beta`` over neighbouring channels.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, ...), with at least three dimensions.
    size : int
        Number of neighbouring channels over which squares are averaged.
    alpha : float, default 1e-4
        Factor of the mean.
    beta : float, default 0.75
        Exponent.
    k : float, default 1.0
        Term beside the mean.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If `input` has fewer than three dimensions.
    ArgumentError
        If `size` is below 1.

    Notes
    -----
    Source: Krizhevsky et al. 2012, section 3.3.
    """
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm: Expected 3D or higher dimensionality input, got {input.shape}")
    if size < 1:
        raise ArgumentError(f"local_response_norm: got size {size}; wanted a number of channels from 1 on")
    require_floats("local_response_norm", input.dtype)
    if not input.numel():
        return input
    channels = reshape(square(input), (input.shape[0], 1, input.shape[1], -1))
    around = pad(channels, (0, 0, size // 2, (size - 1) // 2))
    means = reshape(avg_pool2d(around, (size, 1), stride=1), input.shape)
    return div(input, pow(add(mul(means, alpha), k), beta))
