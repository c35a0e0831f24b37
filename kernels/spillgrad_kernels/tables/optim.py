"""Optimizers: for each, the formula of one element, and a function that returns the update of a parameter."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.jit.compile import FLOATS, register_jitable
from spillgrad_kernels.tables.formula import Formula
from spillgrad_kernels.tables.scalar_math import sqrt, where

# The arrays of one update are all in the host's memory, or all on one device.
Array = Any


class Update(NamedTuple):
    """How to update a parameter and its optimizer state in place.

    `formula(param, grad, *state, *numbers)` returns the new value and the new state of one element.
    """

    formula: Formula
    param: Array
    grad: Array
    state: tuple[Array, ...]
    numbers: tuple[float, ...]


@register_jitable(inline="always")
def adam_element(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
    keep: Any, coupled_decay: Any, rate1: Any, beta2: Any, rate2: Any, step_size: Any, eps: Any,
) -> Any:  # fmt: skip
    pull = grad + coupled_decay * param
    average = exp_avg + rate1 * (pull - exp_avg)
    square = beta2 * exp_avg_sq + rate2 * pull * pull
    return keep * param - step_size * (average / (sqrt(square) + eps)), average, square


@register_jitable(inline="always")
def lion_element(param: Any, grad: Any, exp_avg: Any, keep: Any, rate1: Any, rate2: Any, lr: Any) -> Any:
    change = exp_avg + rate1 * (grad - exp_avg)
    # lr times the sign of `change`. For a zero or NaN, lr * change is that zero or NaN.
    step = where(change > 0, lr, where(change < 0, -lr, lr * change))
    return keep * param - step, exp_avg + rate2 * (grad - exp_avg)


@register_jitable(inline="always")
def sgd_element(param: Any, grad: Any, lr: Any, weight_decay: Any) -> Any:
    return param - lr * (grad + weight_decay * param)


@register_jitable(inline="always")
def sgd_momentum_element(
    param: Any, grad: Any, momentum_buffer: Any,
    lr: Any, weight_decay: Any, momentum: Any, kept_grad: Any, nesterov: Any, first_step: Any,
) -> Any:  # fmt: skip
    pull = grad + weight_decay * param
    # The first step ignores the buffer, which may hold NaN.
    velocity = where(first_step > 0, pull, momentum * momentum_buffer + kept_grad * pull)
    return param - lr * where(nesterov > 0, pull + momentum * velocity, velocity), velocity


@register_jitable(inline="always")
def scale_element(param: Any, _: Any, factor: Any) -> Any:
    return param * factor


_OF_HOST = (np.ndarray, np.generic)


def _update(who: str, formula: Formula, param: Array, grad: Array, state: tuple[Array, ...], *numbers: float) -> Update:
    on_host = isinstance(param, _OF_HOST)
    for array in (grad, *state):
        if isinstance(array, _OF_HOST) != on_host:
            raise ValueError(
                f"{who}: got arrays of the host and of a device; parameter, gradient and state must be in one place; "
                "move them to the parameter's"
            )
    # Loops get the ids of these arrays and check nothing. A NumPy scalar raises here, since it cannot be written to.
    for array in (param, *state) if on_host else ():
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(
                f"{who}: got an array of shape {array.shape} and strides {array.strides}; an update in place needs "
                "contiguous memory that may be written to; make the array contiguous first"
            )
    if any(array.shape != param.shape for array in (grad, *state)):
        listed = ", ".join(str(a.shape) for a in (param, grad, *state))
        raise ValueError(
            f"{who}: got shapes {listed}; parameter, gradient and state must have one shape; load a state that fits"
        )
    if param.dtype not in FLOATS or any(array.dtype != param.dtype for array in (grad, *state)):
        listed = ", ".join(str(a.dtype) for a in (param, grad, *state))
        raise TypeError(f"{who}: got {listed}; parameter, gradient and state must all be float32, or all float64")
    if on_host and not (isinstance(grad, np.ndarray) and grad.flags.c_contiguous):
        grad = np.ascontiguousarray(grad)
    return Update(formula, param, grad, state, numbers)


def adamw(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Update:  # fmt: skip
    """Return the update of `param`, `exp_avg` and `exp_avg_sq`, with decoupled weight decay. `step` counts from 1.

    Source: Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2.
    """
    keep = 1 - lr * weight_decay
    moments = _moments(lr, beta1, beta2, eps, step)
    return _update("adamw", adam_element, param, grad, (exp_avg, exp_avg_sq), keep, 0.0, *moments)


def adam(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Update:  # fmt: skip
    """Return the update of `param`, `exp_avg` and `exp_avg_sq`, with weight decay in the gradient. `step` starts at 1.

    Source: Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
    """
    moments = _moments(lr, beta1, beta2, eps, step)
    return _update("adam", adam_element, param, grad, (exp_avg, exp_avg_sq), 1.0, weight_decay, *moments)


@functools.lru_cache(maxsize=64)  # all parameters of a group use the same numbers
def _moments(lr: float, beta1: float, beta2: float, eps: float, step: int) -> tuple[float, ...]:
    # The second moment's bias correction is moved out of the square root and into eps. So it needs no division per
    # element. Differences from 1 are computed before they are rounded to the arrays' dtype, so that they keep their
    # digits.
    correction2_sqrt = math.sqrt(1 - beta2**step)
    return 1 - beta1, beta2, 1 - beta2, lr * correction2_sqrt / (1 - beta1**step), eps * correction2_sqrt


def lion(
    param: Array, grad: Array, exp_avg: Array, lr: float, beta1: float, beta2: float,
    weight_decay: float,
) -> Update:  # fmt: skip
    """Return the update of `param` and its momentum `exp_avg`, in which each element moves by `lr` times a sign.

    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
    """
    return _update("lion", lion_element, param, grad, (exp_avg,), 1 - lr * weight_decay, 1 - beta1, 1 - beta2, lr)


def sgd(
    param: Array, grad: Array, momentum_buffer: Array | None,
    lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool, first_step: bool,
) -> Update:  # fmt: skip
    """Return the update of `param` and `momentum_buffer`, which is None for an update without momentum.

    As in torch.optim.SGD, the first step fills the buffer with the gradient without dampening.
    """
    if momentum_buffer is None:
        return _update("sgd", sgd_element, param, grad, (), lr, weight_decay)
    numbers = lr, weight_decay, momentum, 1.0 - dampening, float(nesterov), float(first_step)
    return _update("sgd", sgd_momentum_element, param, grad, (momentum_buffer,), *numbers)


def scaled(array: Array, factor: float) -> Update:
    """Return the update that multiplies `array` by `factor`."""
    return _update("scaled", scale_element, array, array, (), factor)
