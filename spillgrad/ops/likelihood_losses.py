"""Losses that are negative logarithms of probabilities or densities, or divergences of two distributions."""

import math
from typing import Any

from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops.activations import logsigmoid
from spillgrad.ops.arithmetic import add, div, exp, log, log1p, mul, square
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.clamp_where import clamp, where
from spillgrad.ops.elementwise import OPERATIONS
from spillgrad.ops.fuse import fuse
from spillgrad.ops.losses import reduced, refuse_complex_operands, require_alike
from spillgrad.ops.reduce import mean, sum
from spillgrad.ops.shape import unsqueeze
from spillgrad.ops.special import xlogy
from spillgrad.tensor import Tensor

__all__ = [
    "binary_cross_entropy", "gaussian_nll_loss", "kl_div", "multilabel_soft_margin_loss", "poisson_nll_loss",
    "soft_margin_loss",
]  # fmt: skip


@float32_in_autocast
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the negative log probability of targets under given probabilities.

    Parameters
    ----------
    input : Tensor
        Of any shape: probabilities.
    target : Tensor
        Of the shape of `input`: probabilities.
    weight : Tensor, optional
        Factors of the losses; broadcasts to their shape.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input`.

    Raises
    ------
    ArgumentError
        For an input outside [0, 1] on the host; values on a device are not checked.
    ShapeError
        If the shapes of `input` and `target` differ.
    DtypeError
        For complex numbers.

    Notes
    -----
    Logarithms are limited to at least -100, and their derivative to at most 1e12.
    """
    require_alike("binary_cross_entropy", input, target)
    refuse_complex_operands("binary_cross_entropy", input, target, weight)
    # A check of values on a device would wait for the device.
    if not input.is_cuda and not bool(((input.array >= 0) & (input.array <= 1) | (input.array != input.array)).all()):
        raise ArgumentError(
            "binary_cross_entropy: got an input outside [0, 1]; wanted probabilities: of logits, use "
            "binary_cross_entropy_with_logits"
        )
    losses: Tensor = OPERATIONS["binary_cross_entropy"](input, target)
    return reduced("binary_cross_entropy", losses if weight is None else mul(losses, weight), reduction)


@fuse
def _kl_div(input: Any, target: Any, log_target: bool) -> Any:
    return exp(target) * (target - input) if log_target else xlogy(target, target) - target * input


@float32_in_autocast
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return the Kullback-Leibler divergence of the distribution `target` from the distribution `input`.

    Parameters
    ----------
    input : Tensor
        Of any shape: logarithms of probabilities.
    target : Tensor
        Of the shape of `input`: probabilities, or their logarithms.
    reduction : {"mean", "batchmean", "sum", "none"}, default "mean"
        "mean" divides the sum by the number of elements, "batchmean" by the first size, as the divergence is defined;
        "none" returns the elements.
    log_target : bool, default False
        Whether `target` holds logarithms.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input`.

    Raises
    ------
    DtypeError
        For complex numbers.
    ArgumentError
        For another reduction.
    """
    refuse_complex_operands("kl_div", input, target)
    losses: Tensor = _kl_div(input, target, log_target)
    if reduction == "batchmean":
        return div(sum(losses), input.shape[0] if input.ndim else 1)
    return reduced("kl_div", losses, reduction)


@fuse
def _poisson_nll_loss(input: Any, target: Any, log_input: bool, full: bool, eps: Any) -> Any:
    losses = exp(input) - target * input if log_input else input - target * log(input + eps)
    if not full:
        return losses
    stirling = target * log(target) - target + 0.5 * log(2 * math.pi * target)
    return losses + where(target > 1, stirling, 0.0)


@float32_in_autocast
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the negative log probability of counts under Poisson distributions.

    Parameters
    ----------
    input : Tensor
        Of any shape: the rates, or their logarithms.
    target : Tensor
        Of the shape of `input`: the counts.
    log_input : bool, default True
        Whether `input` holds logarithms of rates.
    full : bool, default False
        Whether the loss includes Stirling's approximation of the logarithm of the factorial.
    eps : float, default 1e-08
        Added to rates before their logarithm is taken.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input`.

    Raises
    ------
    ArgumentError
        For another reduction.
    """
    return reduced("poisson_nll_loss", _poisson_nll_loss(input, target, log_input, full, float(eps)), reduction)


@fuse
def _gaussian_nll_loss(input: Any, target: Any, var: Any, constant: Any) -> Any:
    return 0.5 * (log(var) + square(input - target) / var) + constant


@float32_in_autocast
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Return the negative log density of targets under normal distributions.

    Parameters
    ----------
    input : Tensor
        Of any shape: the means.
    target : Tensor
        Of a shape that broadcasts with that of `input`.
    var : Tensor or float
        Variances of the shape of `input`, but its last size may be 1, or its last dimension missing; or one number.
    full : bool, default False
        Whether the loss includes the constant log(2π) / 2.
    eps : float, default 1e-06
        Smallest variance. Variances below are raised to it; their gradients are the gradients of the raised variances.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input`.

    Raises
    ------
    ArgumentError
        For a negative variance, or an `eps` that is not positive.
    ShapeError
        If `var` has another shape.
    """
    if not isinstance(var, Tensor):
        var = mul(input.detach() * 0 + 1, var)
    if bool((var.array < 0).any()):
        raise ArgumentError("gaussian_nll_loss: got a negative variance; wanted numbers from 0 on")
    if not eps > 0:
        raise ArgumentError(f"gaussian_nll_loss: got eps={eps}; wanted a positive number")
    if var.shape != input.shape:
        if var.shape == input.shape[:-1]:
            var = unsqueeze(var, -1)
        elif var.shape[:-1] != input.shape[:-1] or var.shape[-1:] != (1,):
            raise ShapeError(
                f"gaussian_nll_loss: got input {input.shape} and var {var.shape}; wanted one variance for each element "
                "or row"
            )
    raised = clamp(var.detach(), float(eps)) - var.detach()
    losses = _gaussian_nll_loss(input, target, add(var, raised), 0.5 * math.log(2 * math.pi) if full else 0.0)
    return reduced("gaussian_nll_loss", losses, reduction)


@float32_in_autocast
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return log(1 + exp(-target * input)).

    Parameters
    ----------
    input : Tensor
        Of any shape.
    target : Tensor
        Of the shape of `input`: 1 or -1.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input`.

    Raises
    ------
    ShapeError
        If the shapes of `input` and `target` differ.
    """
    require_alike("soft_margin_loss", input, target)
    margins = mul(input, target)
    losses = log1p(exp(-margins)) if margins.is_complex() else -logsigmoid(margins)
    return reduced("soft_margin_loss", losses, reduction)


@float32_in_autocast
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the binary cross entropy of logits, averaged over classes.

    Parameters
    ----------
    input : Tensor
        Of shape (..., C): the logits.
    target : Tensor
        Of the shape of `input`: 1 for the classes of a row, 0 for the others.
    weight : Tensor, optional
        Factors of the classes' losses; broadcasts to the shape of `input`.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of shape (...).

    Raises
    ------
    ShapeError
        If the shapes of `input` and `target` differ.
    DtypeError
        For integers and complex numbers.
    """
    require_alike("multilabel_soft_margin_loss", input, target)
    if not input.is_floating_point():
        raise DtypeError(f"multilabel_soft_margin_loss: got an input of {input.dtype}; wanted floating-point logits")
    losses: Any = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    return reduced("multilabel_soft_margin_loss", mean(losses if weight is None else losses * weight, -1), reduction)
