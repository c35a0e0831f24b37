"""Optimizer updates in place, one pass over memory for all arrays together, and the norm for gradient clipping."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at, data_of
from spillgrad_kernels.device_array import DeviceArray, device_kernel, on_device
from spillgrad_kernels.jit.compile import FLOATS, REASSOCIATE, jit, register_jitable
from spillgrad_kernels.tables.formula import Formula
from spillgrad_kernels.tables.scalar_math import sqrt, where
from spillgrad_kernels.threads.dispatch import Kernel, parallel_for

# Elements per unit of work: a multiple of every vector width, so that only the last unit has a tail.
_CHUNK = 4096
# Elements worth a thread of their own: 3 to 6 microseconds of work.
_GRAIN = 2 * _CHUNK

# In the host's memory, or all of an update's arrays on a device (see `cuda.optim`).
Array = Any


class Rule(NamedTuple):
    """What an update does: `formula(param, grad, *state, *numbers)` returns an element's new value and state.

    `loop` computes it over parts of four arrays (without a second state, or any, the last are not looked at).
    """

    loop: Callable[..., None]
    formula: Formula


class Update(NamedTuple):
    """How to update a parameter in place: the rule, the parameter, its gradient, its state, and the rule's numbers."""

    rule: Rule
    param: Array
    grad: Array
    state: tuple[Array, ...]
    numbers: tuple[float, ...]


@register_jitable(inline="always")
def _adam_element(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
    keep: Any, coupled_decay: Any, rate1: Any, beta2: Any, rate2: Any, step_size: Any, eps: Any,
) -> Any:  # fmt: skip
    pull = grad + coupled_decay * param
    average = exp_avg + rate1 * (pull - exp_avg)
    square = beta2 * exp_avg_sq + rate2 * pull * pull
    return keep * param - step_size * (average / (sqrt(square) + eps)), average, square


@register_jitable(inline="always")
def _lion_element(param: Any, grad: Any, exp_avg: Any, keep: Any, rate1: Any, rate2: Any, lr: Any) -> Any:
    change = exp_avg + rate1 * (grad - exp_avg)
    # lr times the sign; of zero and NaN, times themselves.
    step = where(change > 0, lr, where(change < 0, -lr, lr * change))
    return keep * param - step, exp_avg + rate2 * (grad - exp_avg)


@register_jitable(inline="always")
def _sgd_element(param: Any, grad: Any, lr: Any, weight_decay: Any) -> Any:
    return param - lr * (grad + weight_decay * param)


@register_jitable(inline="always")
def _sgd_momentum_element(
    param: Any, grad: Any, momentum_buffer: Any,
    lr: Any, weight_decay: Any, momentum: Any, kept_grad: Any, nesterov: Any, first_step: Any,
) -> Any:  # fmt: skip
    pull = grad + weight_decay * param
    # What the buffer holds before the first step does not count, even if it is NaN.
    velocity = where(first_step > 0, pull, momentum * momentum_buffer + kept_grad * pull)
    return param - lr * where(nesterov > 0, pull + momentum * velocity, velocity), velocity


@register_jitable(inline="always")
def _scale_element(param: Any, _: Any, factor: Any) -> Any:
    return param * factor


@jit
def _adam(p: Any, g: Any, m: Any, v: Any, numbers: Any) -> None:
    keep, coupled_decay, rate1, beta2 = numbers[0], numbers[1], numbers[2], numbers[3]
    rate2, step_size, eps = numbers[4], numbers[5], numbers[6]
    for j in range(p.size):
        value, average, square = _adam_element(
            p[j], g[j], m[j], v[j], keep, coupled_decay, rate1, beta2, rate2, step_size, eps
        )
        m[j] = average
        v[j] = square
        p[j] = value


@jit
def _lion(p: Any, g: Any, m: Any, _: Any, numbers: Any) -> None:
    keep, rate1, rate2, lr = numbers[0], numbers[1], numbers[2], numbers[3]
    for j in range(p.size):
        p[j], m[j] = _lion_element(p[j], g[j], m[j], keep, rate1, rate2, lr)


@jit
def _sgd(p: Any, g: Any, _: Any, __: Any, numbers: Any) -> None:
    lr, weight_decay = numbers[0], numbers[1]
    for j in range(p.size):
        p[j] = _sgd_element(p[j], g[j], lr, weight_decay)


@jit
def _sgd_momentum(p: Any, g: Any, b: Any, _: Any, numbers: Any) -> None:
    lr, weight_decay, momentum = numbers[0], numbers[1], numbers[2]
    kept_grad, nesterov, first_step = numbers[3], numbers[4], numbers[5]
    for j in range(p.size):
        p[j], b[j] = _sgd_momentum_element(
            p[j], g[j], b[j], lr, weight_decay, momentum, kept_grad, nesterov, first_step
        )


@jit
def _scale(p: Any, _: Any, __: Any, ___: Any, numbers: Any) -> None:
    factor = numbers[0]
    for j in range(p.size):
        p[j] = _scale_element(p[j], p[j], factor)


ADAM, LION, SGD = Rule(_adam, _adam_element), Rule(_lion, _lion_element), Rule(_sgd, _sgd_element)
SGD_MOMENTUM, SCALE = Rule(_sgd_momentum, _sgd_momentum_element), Rule(_scale, _scale_element)


@functools.cache
def _over_arrays(loop: Any) -> Kernel:
    """Return the kernel that runs a rule's loop over chunks of many arrays.

    Rows of `table`: the first of the array's chunks, its size, and the ids of four arrays.
    """

    def kernel(start: int, stop: int, like: Any, table: Any, numbers: Any) -> None:
        row = 0
        width = like.itemsize
        for chunk in range(start, stop):
            while row + 1 < len(table) and table[row + 1, 0] <= chunk:
                row += 1
            begin = (chunk - table[row, 0]) * _CHUNK
            count = min(_CHUNK, table[row, 1] - begin)
            loop(
                array_at(like, data_of(table[row, 2]) + begin * width, count),
                array_at(like, data_of(table[row, 3]) + begin * width, count),
                array_at(like, data_of(table[row, 4]) + begin * width, count),
                array_at(like, data_of(table[row, 5]) + begin * width, count),
                numbers[row],
            )

    return jit(kernel, name=f"{getattr(loop, 'py_func', loop).kernel_name}.over_arrays")


@on_device("optim")
def run(updates: Iterable[Update]) -> None:
    """Update all parameters, in one launch for each rule and dtype."""
    groups: dict[tuple[Rule, Any], list[Update]] = {}
    elsewhere = []
    for update in updates:
        if type(update.param) is DeviceArray:
            elsewhere.append(update)
        elif update.param.size:
            groups.setdefault((update.rule, update.param.dtype), []).append(update)
    for (rule, dtype), group in groups.items():
        rows, chunks, elements = [], 0, 0
        for _, param, grad, state, _ in group:
            # A rule without a second state, or any, gets the gradient in its place and does not look at it.
            first, second = (*state, grad, grad)[:2]
            rows.append((chunks, param.size, id(param), id(grad), id(first), id(second)))
            chunks += -(-param.size // _CHUNK)
            elements += param.size
        # In the arrays' own dtype, since a float64 number would make the whole loop float64.
        numbers = np.array([update.numbers for update in group], dtype)
        grain = max(1, chunks * _GRAIN // elements)
        parallel_for(_over_arrays(rule.loop), chunks, grain, np.empty(0, dtype), np.array(rows, np.int64), numbers)
    if elsewhere:
        device_kernel(run)(elsewhere)


@jit(fastmath=REASSOCIATE)
def _sums_of_squares(start: int, stop: int, like: Any, table: Any, partials: Any) -> None:
    row = 0
    for chunk in range(start, stop):
        while row + 1 < len(table) and table[row + 1, 0] <= chunk:
            row += 1
        begin = (chunk - table[row, 0]) * _CHUNK
        part = array_at(like, data_of(table[row, 2]) + begin * like.itemsize, min(_CHUNK, table[row, 1] - begin))
        total = np.float64(0.0)
        for j in range(part.size):
            x = np.float64(part[j])
            total += x * x
        partials[chunk] = total


_OF_HOST = (np.ndarray, np.generic)


def _update(who: str, rule: Rule, param: Array, grad: Array, state: tuple[Array, ...], *numbers: float) -> Update:
    on_host = isinstance(param, _OF_HOST)
    for array in (grad, *state):
        if isinstance(array, _OF_HOST) != on_host:
            raise ValueError(
                f"{who}: got arrays of the host and of a device; parameter, gradient and state must be in one place; "
                "move them to the parameter's"
            )
    # A loop gets their ids: what holds for all of them must hold here. Not for a number of NumPy: it is not writeable.
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
    return Update(rule, param, grad, state, numbers)


def adamw(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Update:  # fmt: skip
    """Return the update of `param` and its two moments; the weights decay apart from the gradient. `step` is from 1.

    Source: Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2.
    """
    keep = 1 - lr * weight_decay
    moments = _moments(lr, beta1, beta2, eps, step)
    return _update("adamw", ADAM, param, grad, (exp_avg, exp_avg_sq), keep, 0.0, *moments)


def adam(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Update:  # fmt: skip
    """Return the update of `param` and its two moments; the weight decay is part of the gradient. `step` is from 1.

    Source: Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
    """
    moments = _moments(lr, beta1, beta2, eps, step)
    return _update("adam", ADAM, param, grad, (exp_avg, exp_avg_sq), 1.0, weight_decay, *moments)


@functools.lru_cache(maxsize=64)  # the parameters of a group share them
def _moments(lr: float, beta1: float, beta2: float, eps: float, step: int) -> tuple[float, ...]:
    # The second moment's correction, taken out of the square root and of eps, costs no division an element.
    # Differences from 1 are taken before rounding to the arrays' dtype, so that they keep their digits.
    correction2_sqrt = math.sqrt(1 - beta2**step)
    return 1 - beta1, beta2, 1 - beta2, lr * correction2_sqrt / (1 - beta1**step), eps * correction2_sqrt


def lion(
    param: Array, grad: Array, exp_avg: Array, lr: float, beta1: float, beta2: float,
    weight_decay: float,
) -> Update:  # fmt: skip
    """Return the update of `param` and its momentum: a step of one size for every element, in the momentum's direction.

    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
    """
    return _update("lion", LION, param, grad, (exp_avg,), 1 - lr * weight_decay, 1 - beta1, 1 - beta2, lr)


def sgd(
    param: Array, grad: Array, momentum_buffer: Array | None,
    lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool, first_step: bool,
) -> Update:  # fmt: skip
    """Return the update of `param` and its momentum buffer; without a buffer there is no momentum.

    The first step fills the buffer with the undamped gradient, as torch.optim.SGD does.
    """
    if momentum_buffer is None:
        return _update("sgd", SGD, param, grad, (), lr, weight_decay)
    numbers = lr, weight_decay, momentum, 1.0 - dampening, float(nesterov), float(first_step)
    return _update("sgd", SGD_MOMENTUM, param, grad, (momentum_buffer,), *numbers)


def scaled(array: Array, factor: float) -> Update:
    """Return the update that multiplies an array by a number."""
    return _update("scaled", SCALE, array, array, (), factor)


@on_device("optim")
def sums_of_squares(arrays: Sequence[np.ndarray]) -> list[float]:
    """Return the sum of the squared elements of each array, accumulated in float64; all have one dtype."""
    flat = [np.ascontiguousarray(a) for a in arrays]
    if not flat:
        return []
    if flat[0].dtype not in FLOATS or any(a.dtype != flat[0].dtype for a in flat):
        listed = ", ".join(sorted({str(a.dtype) for a in flat}))
        raise TypeError(f"sums_of_squares: got {listed}; all must be float32, or all float64")
    starts = [0, *itertools.accumulate(-(-a.size // _CHUNK) for a in flat)]
    table = np.array([(start, a.size, id(a)) for start, a in zip(starts, flat, strict=False)], np.int64)
    partials = np.empty(starts[-1])
    grain = max(1, starts[-1] * _GRAIN // max(1, sum(a.size for a in flat)))
    parallel_for(_sums_of_squares, starts[-1], grain, np.empty(0, flat[0].dtype), table, partials)
    return [
        float(partials[start] if stop - start == 1 else partials[start:stop].sum())
        for start, stop in itertools.pairwise(starts)
    ]
