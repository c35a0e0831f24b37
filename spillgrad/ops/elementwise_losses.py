"""Elementwise losses, computed with their sum or mean in one operation: squares, Huber, binary cross entropy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.ops.activations import relu, sigmoid, softplus
from spillgrad.ops.arithmetic import abs, div, square
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.clamp_where import clamp
from spillgrad.ops.fuse import fuse
from spillgrad.ops.fuse_symbols import Symbol
from spillgrad.ops.losses import reduced, refuse_complex_operands, require_alike
from spillgrad.ops.operation import Operation, operation
from spillgrad.tensor import Tensor

__all__ = ["binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss"]


def _reduced_operation(
    name: str, losses: Callable[..., Any], by_input: Callable[..., Any], by_target: Callable[..., Any]
) -> Operation:
    """Return the operation that computes the losses of elements and reduces them.

    `losses(input, target, *options)` returns the losses of elements. `by_input(g, input, target, *options)` returns the
    gradient by the input, and `by_target`, with the same arguments, the gradient by the target.
    """

    def forward(self: np.ndarray, target: np.ndarray, reduction: str, options: tuple[float, ...]) -> np.ndarray:
        return reduced(name, losses(Tensor.wrap(self), Tensor.wrap(target), *options), reduction).array

    def gradient(function: Callable[..., Any], g: Any, self: Any, target: Any, reduction: str, options: Any) -> Any:
        if reduction == "mean":
            g = div(g, max(math.prod(np.broadcast_shapes(self.shape, target.shape)), 1))
        return function(g, self, target, *options)

    return operation(
        name, forward,
        self=lambda g, self, target, reduction, options, self_shape: sum_to(
            gradient(by_input, g, self, target, reduction, options), self_shape
        ),
        target=lambda g, self, target, reduction, options, target_shape: sum_to(
            gradient(by_target, g, self, target, reduction, options), target_shape
        ),
    )  # fmt: skip


def _run_reduced(
    loss: Operation, losses: Callable[..., Any], input: Any, target: Any, reduction: str, *options: float
) -> Tensor:
    refuse_complex_operands(loss.name, input, target)
    if type(input) is Symbol or type(target) is Symbol or not isinstance(target, Tensor):
        return reduced(loss.name, losses(input, target, *options), reduction)
    return loss.run(input, target, reduction, options)  # type: ignore[no-any-return]


@fuse
def _binary_cross_entropy_with_logits(input: Any, target: Any, weight: Any, pos_weight: Any) -> Any:
    # Beyond 40, log(1 + exp(x)) is x in float64 too.
    log_rest: Any = softplus(-input, threshold=40.0)
    if pos_weight is not None:
        log_rest = log_rest * ((pos_weight - 1) * target + 1)
    losses = (1.0 - target) * input + log_rest
    return losses if weight is None else losses * weight


_plain_cross_entropy = _reduced_operation(
    "binary_cross_entropy_with_logits",
    lambda input, target: _binary_cross_entropy_with_logits(input, target, None, None),
    fuse(lambda g, input, target: g * (sigmoid(input) - target)), fuse(lambda g, input, target: -g * input),
)  # fmt: skip


@float32_in_autocast
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the negative log probability of targets under the sigmoid of logits.

    Parameters
    ----------
    input : Tensor
        Logits, of any shape.
    target : Tensor
        Probabilities, of the shape of `input`.
    weight : Tensor, optional
        Factor of each loss; it broadcasts.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the result is the mean of the losses, their sum, or each of them.
    pos_weight : Tensor, optional
        Factor of the term that has the factor `target`; it broadcasts.

    Returns
    -------
    Tensor
        Of the shape of `input` for "none", otherwise ().

    Raises
    ------
    ShapeError
        If `target` has another shape.
    """
    require_alike("binary_cross_entropy_with_logits", input, target)
    refuse_complex_operands("binary_cross_entropy_with_logits", input, target, weight, pos_weight)
    if weight is None and pos_weight is None and type(input) is not Symbol:
        return _plain_cross_entropy.run(input, target, reduction, ())  # type: ignore[no-any-return]
    losses = _binary_cross_entropy_with_logits(input, target, weight, pos_weight)
    return reduced("binary_cross_entropy_with_logits", losses, reduction)


@fuse
def _mse_loss(input: Any, target: Any) -> Any:
    return square(input - target)


_mse = _reduced_operation(
    "mse_loss", _mse_loss,
    fuse(lambda g, input, target: g * (2.0 * (input - target))),
    fuse(lambda g, input, target: g * (2.0 * (target - input))),
)  # fmt: skip


@fuse
def _l1_loss(input: Any, target: Any) -> Any:
    return abs(input - target)


@fuse
def _huber_loss(input: Any, target: Any, delta: Any, slope: Any) -> Any:
    difference = input - target
    # Two parts are added: if `where` chose one of them, the gradient of the other could be 0 times infinity.
    near = square(clamp(difference, -delta, delta)) * (0.5 * slope / delta)
    return near + relu(abs(difference) - delta) * slope


def _huber_slope(g: Any, input: Any, target: Any, delta: Any, slope: Any) -> Any:
    return g * (clamp(input - target, -delta, delta) * (slope / delta))


_huber, _smooth_l1 = (
    _reduced_operation(
        name, _huber_loss, fuse(_huber_slope),
        fuse(lambda g, input, target, delta, slope: _huber_slope(g, target, input, delta, slope)),
    )
    for name in ("huber_loss", "smooth_l1_loss")
)  # fmt: skip


@float32_in_autocast
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared differences, or their mean or sum.

    Parameters
    ----------
    input, target : Tensor
        Their shapes broadcast.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the result is the mean of the losses, their sum, or each of them.

    Returns
    -------
    Tensor
        Of shape (), or for "none" the one that the operands broadcast to.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.nn.functional.mse_loss(sg.tensor([1.0, 2.0]), sg.tensor([1.0, 4.0])).item()
    2.0
    """
    return _run_reduced(_mse, _mse_loss, input, target, reduction)


@float32_in_autocast
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the absolute differences, or their mean or sum.

    Parameters
    ----------
    input, target : Tensor
        Their shapes broadcast.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the result is the mean of the losses, their sum, or each of them.

    Returns
    -------
    Tensor
        Of shape (), or for "none" the one that the operands broadcast to.
    """
    return reduced("l1_loss", _l1_loss(input, target), reduction)


@float32_in_autocast
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return half the squares of small differences d, and ``delta * (|d| - delta / 2)`` for large ones.

    Parameters
    ----------
    input, target : Tensor
        Their shapes broadcast.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the result is the mean of the losses, their sum, or each of them.
    delta : float, default 1.0
        Largest difference that is squared; positive.

    Returns
    -------
    Tensor
        Of shape (), or for "none" the one that the operands broadcast to.

    Raises
    ------
    ArgumentError
        If `delta` is not positive.

    Notes
    -----
    Source: Huber 1964.
    """
    if not delta > 0:
        raise ArgumentError(f"huber_loss: got delta={delta}; wanted a positive number")
    return _run_reduced(_huber, _huber_loss, input, target, reduction, float(delta), float(delta))


@float32_in_autocast
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return the Huber loss with delta `beta`, divided by `beta`.

    Parameters
    ----------
    input, target : Tensor
        Their shapes broadcast.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the result is the mean of the losses, their sum, or each of them.
    beta : float, default 1.0
        Largest difference that is squared; 0 gives the absolute differences.

    Returns
    -------
    Tensor
        Of shape (), or for "none" the one that the operands broadcast to.

    Raises
    ------
    ArgumentError
        If `beta` is negative.

    Notes
    -----
    Source: Girshick 2015, equation 3.
    """
    if beta < 0:
        raise ArgumentError(f"smooth_l1_loss: got beta={beta}; wanted a number from 0 on")
    if beta == 0:
        return l1_loss(input, target, reduction)
    return _run_reduced(_smooth_l1, _huber_loss, input, target, reduction, float(beta), 1.0)
