"""Optimizer updates in place, one pass over memory each, and the norm for gradient clipping."""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.compile import REASSOCIATE, jit
from spillgrad_kernels.dispatch import parallel_for
from spillgrad_kernels.scalar_math import where

# Elements per unit of work: a multiple of every vector width, so that only the last unit has a tail.
_CHUNK = 4096
# Chunks worth a thread of their own: 3 to 6 microseconds of work.
_GRAIN_CHUNKS = 2


@jit
def _adam(
    start: int, stop: int, param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
    keep: Any, coupled_decay: Any, rate1: Any, beta2: Any, rate2: Any, step_size: Any, eps: Any,
) -> None:  # fmt: skip
    first, last = start * _CHUNK, min(stop * _CHUNK, param.size)
    p, g, m, v = param[first:last], grad[first:last], exp_avg[first:last], exp_avg_sq[first:last]
    for j in range(p.size):
        d = g[j] + coupled_decay * p[j]
        average = m[j] + rate1 * (d - m[j])
        square = beta2 * v[j] + rate2 * d * d
        m[j] = average
        v[j] = square
        p[j] = keep * p[j] - step_size * (average / (np.sqrt(square) + eps))


@jit
def _lion(
    start: int, stop: int, param: Any, grad: Any, exp_avg: Any, keep: Any, rate1: Any, rate2: Any, lr: Any
) -> None:
    first, last = start * _CHUNK, min(stop * _CHUNK, param.size)
    p, g, m = param[first:last], grad[first:last], exp_avg[first:last]
    one = p.dtype.type(1)
    for j in range(p.size):
        change = m[j] + rate1 * (g[j] - m[j])
        m[j] += rate2 * (g[j] - m[j])
        # The sign; zero and NaN are their own.
        p[j] = keep * p[j] - lr * where(change > 0, one, where(change < 0, -one, change))


@jit
def _sgd(start: int, stop: int, param: Any, grad: Any, lr: Any, weight_decay: Any) -> None:
    first, last = start * _CHUNK, min(stop * _CHUNK, param.size)
    p, g = param[first:last], grad[first:last]
    for j in range(p.size):
        p[j] -= lr * (g[j] + weight_decay * p[j])


@jit
def _sgd_momentum(
    start: int, stop: int, param: Any, grad: Any, momentum_buffer: Any,
    lr: Any, weight_decay: Any, momentum: Any, kept_grad: Any, nesterov: bool,
) -> None:  # fmt: skip
    first, last = start * _CHUNK, min(stop * _CHUNK, param.size)
    p, g, b = param[first:last], grad[first:last], momentum_buffer[first:last]
    for j in range(p.size):
        d = g[j] + weight_decay * p[j]
        velocity = momentum * b[j] + kept_grad * d
        b[j] = velocity
        p[j] -= lr * where(nesterov, d + momentum * velocity, velocity)


@jit(fastmath=REASSOCIATE)
def _sum_of_squares(start: int, stop: int, a: Any, partials: Any) -> None:
    for chunk in range(start, stop):
        row = a[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        total = np.float64(0.0)
        for j in range(row.size):
            x = np.float64(row[j])
            total += x * x
        partials[chunk] = total


def _flat(who: str, array: np.ndarray) -> np.ndarray:
    """Return a flat view of an array that is to be updated in place."""
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{who}: got an array of shape {array.shape} and strides {array.strides}; an update in place needs "
            "contiguous memory; make the array contiguous first"
        )
    return array.reshape(-1)


def _require_one_shape(who: str, param: np.ndarray, *others: np.ndarray) -> None:
    for array in others:
        if array.shape != param.shape:
            listed = ", ".join(str(array.shape) for array in (param, *others))
            raise ValueError(
                f"{who}: got shapes {listed}; parameter, gradient and state must have one shape; load a state that fits"
            )


def _chunks(array: np.ndarray) -> int:
    return -(-array.size // _CHUNK)


def adamw(
    param: np.ndarray, grad: np.ndarray, exp_avg: np.ndarray, exp_avg_sq: np.ndarray,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> None:  # fmt: skip
    """Update `param` and its two moments in place; the weights decay apart from the gradient. `step` counts from 1.

    Source: Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2.
    """
    _run_adam("adamw", param, grad, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, 1 - lr * weight_decay, 0.0, step)


def adam(
    param: np.ndarray, grad: np.ndarray, exp_avg: np.ndarray, exp_avg_sq: np.ndarray,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> None:  # fmt: skip
    """Update `param` and its two moments in place; the weight decay is part of the gradient. `step` counts from 1.

    Source: Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
    """
    _run_adam("adam", param, grad, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, 1.0, weight_decay, step)


def _run_adam(
    who: str, param: np.ndarray, grad: np.ndarray, exp_avg: np.ndarray, exp_avg_sq: np.ndarray,
    lr: float, beta1: float, beta2: float, eps: float, keep: float, coupled_decay: float, step: int,
) -> None:  # fmt: skip
    # The second moment's correction, taken out of the square root and of eps, costs no division an element.
    correction2_sqrt = math.sqrt(1 - beta2**step)
    step_size = lr * correction2_sqrt / (1 - beta1**step)
    _require_one_shape(who, param, grad, exp_avg, exp_avg_sq)
    # In the array's own dtype, since a float64 number would make the whole loop float64. Differences from 1 are taken
    # before rounding to it, so that they keep their digits.
    numbers = map(
        param.dtype.type,
        (keep, coupled_decay, 1 - beta1, beta2, 1 - beta2, step_size, eps * correction2_sqrt),
    )
    parallel_for(
        _adam, _chunks(param), _GRAIN_CHUNKS,
        _flat(who, param), np.ascontiguousarray(grad).reshape(-1), _flat(who, exp_avg), _flat(who, exp_avg_sq),
        *numbers,
    )  # fmt: skip


def lion(
    param: np.ndarray, grad: np.ndarray, exp_avg: np.ndarray, lr: float, beta1: float, beta2: float,
    weight_decay: float,
) -> None:  # fmt: skip
    """Update `param` and its momentum in place: a step of one size for every element, in the momentum's direction.

    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
    """
    _require_one_shape("lion", param, grad, exp_avg)
    numbers = map(param.dtype.type, (1 - lr * weight_decay, 1 - beta1, 1 - beta2, lr))
    parallel_for(
        _lion, _chunks(param), _GRAIN_CHUNKS,
        _flat("lion", param), np.ascontiguousarray(grad).reshape(-1), _flat("lion", exp_avg), *numbers,
    )  # fmt: skip


def sgd(
    param: np.ndarray, grad: np.ndarray, momentum_buffer: np.ndarray | None,
    lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool, first_step: bool,
) -> None:  # fmt: skip
    """Update `param` and its momentum buffer in place; without a buffer there is no momentum.

    The first step fills the buffer with the undamped gradient, as torch.optim.SGD does.
    """
    number = param.dtype.type
    _require_one_shape("sgd", param, grad, *(() if momentum_buffer is None else (momentum_buffer,)))
    flat, gradient = _flat("sgd", param), np.ascontiguousarray(grad).reshape(-1)
    if momentum_buffer is None:
        parallel_for(_sgd, _chunks(param), _GRAIN_CHUNKS, flat, gradient, number(lr), number(weight_decay))
        return
    velocity = _flat("sgd", momentum_buffer)
    if first_step:
        velocity.fill(0)
    kept_grad = 1.0 if first_step else 1.0 - dampening
    numbers = map(number, (lr, weight_decay, momentum, kept_grad))
    parallel_for(_sgd_momentum, _chunks(param), _GRAIN_CHUNKS, flat, gradient, velocity, *numbers, bool(nesterov))


def sum_of_squares(a: np.ndarray) -> float:
    """Return the sum of the squared elements, accumulated in float64."""
    flat = np.ascontiguousarray(a).reshape(-1)
    partials = np.empty(_chunks(flat))
    parallel_for(_sum_of_squares, partials.size, _GRAIN_CHUNKS, flat, partials)
    return float(partials.sum())
