"""Optimizer updates in place, one pass over memory for all arrays together, and the norm for gradient clipping."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.compile import FLOATS, REASSOCIATE, jit
from spillgrad_kernels.dispatch import Kernel, parallel_for
from spillgrad_kernels.pointers import array_at, data_of
from spillgrad_kernels.scalar_math import where

# Elements per unit of work: a multiple of every vector width, so that only the last unit has a tail.
_CHUNK = 4096
# Elements worth a thread of their own: 3 to 6 microseconds of work.
_GRAIN = 2 * _CHUNK

Rule = Callable[..., None]


class Update(NamedTuple):
    """How to update one parameter in place: the rule, the parameter, its gradient, its state, and the rule's numbers.

    A rule is called with part of each array (the second state's is empty where there is none) and the numbers.
    """

    rule: Rule
    param: np.ndarray
    grad: np.ndarray
    state: tuple[np.ndarray, ...]
    numbers: tuple[float, ...]


@jit
def _adam(p: Any, g: Any, m: Any, v: Any, numbers: Any) -> None:
    keep, coupled_decay, rate1, beta2 = numbers[0], numbers[1], numbers[2], numbers[3]
    rate2, step_size, eps = numbers[4], numbers[5], numbers[6]
    for j in range(p.size):
        d = g[j] + coupled_decay * p[j]
        average = m[j] + rate1 * (d - m[j])
        square = beta2 * v[j] + rate2 * d * d
        m[j] = average
        v[j] = square
        p[j] = keep * p[j] - step_size * (average / (np.sqrt(square) + eps))


@jit
def _lion(p: Any, g: Any, m: Any, _: Any, numbers: Any) -> None:
    keep, rate1, rate2, lr = numbers[0], numbers[1], numbers[2], numbers[3]
    one = p.dtype.type(1)
    for j in range(p.size):
        change = m[j] + rate1 * (g[j] - m[j])
        m[j] += rate2 * (g[j] - m[j])
        # The sign; zero and NaN are their own.
        p[j] = keep * p[j] - lr * where(change > 0, one, where(change < 0, -one, change))


@jit
def _sgd(p: Any, g: Any, _: Any, __: Any, numbers: Any) -> None:
    lr, weight_decay = numbers[0], numbers[1]
    for j in range(p.size):
        p[j] -= lr * (g[j] + weight_decay * p[j])


@jit
def _sgd_momentum(p: Any, g: Any, b: Any, _: Any, numbers: Any) -> None:
    lr, weight_decay, momentum, kept_grad, nesterov = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] != 0
    for j in range(p.size):
        d = g[j] + weight_decay * p[j]
        velocity = momentum * b[j] + kept_grad * d
        b[j] = velocity
        p[j] -= lr * where(nesterov, d + momentum * velocity, velocity)


@jit
def _scale(p: Any, _: Any, __: Any, ___: Any, numbers: Any) -> None:
    factor = numbers[0]
    for j in range(p.size):
        p[j] *= factor


@functools.cache
def _over_arrays(rule: Any) -> Kernel:
    """Return the kernel that applies a rule to chunks of many arrays.

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
            rule(
                array_at(like, data_of(table[row, 2]) + begin * width, count),
                array_at(like, data_of(table[row, 3]) + begin * width, count),
                array_at(like, data_of(table[row, 4]) + begin * width, count),
                array_at(like, data_of(table[row, 5]) + begin * width, count),
                numbers[row],
            )

    return jit(kernel, name=f"{getattr(rule, 'py_func', rule).kernel_name}.over_arrays")


def run(updates: Iterable[Update]) -> None:
    """Update all parameters, in one launch for each rule and dtype."""
    groups: dict[tuple[Rule, Any], list[Update]] = {}
    for update in updates:
        if update.param.size:
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
        parallel_for(_over_arrays(rule), chunks, grain, np.empty(0, dtype), np.array(rows, np.int64), numbers)


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


def _update(
    who: str, rule: Rule, param: np.ndarray, grad: np.ndarray, state: tuple[np.ndarray, ...], *numbers: float
) -> Update:
    # The kernel gets their ids: what holds for all of them must hold here.
    for array in (param, *state):
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
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
    return Update(rule, param, grad if grad.flags.c_contiguous else np.ascontiguousarray(grad), state, numbers)


def adamw(
    param: np.ndarray, grad: np.ndarray, exp_avg: np.ndarray, exp_avg_sq: np.ndarray,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Update:  # fmt: skip
    """Return the update of `param` and its two moments; the weights decay apart from the gradient. `step` is from 1.

    Source: Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2.
    """
    keep = 1 - lr * weight_decay
    moments = _moments(lr, beta1, beta2, eps, step)
    return _update("adamw", _adam, param, grad, (exp_avg, exp_avg_sq), keep, 0.0, *moments)


def adam(
    param: np.ndarray, grad: np.ndarray, exp_avg: np.ndarray, exp_avg_sq: np.ndarray,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Update:  # fmt: skip
    """Return the update of `param` and its two moments; the weight decay is part of the gradient. `step` is from 1.

    Source: Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
    """
    moments = _moments(lr, beta1, beta2, eps, step)
    return _update("adam", _adam, param, grad, (exp_avg, exp_avg_sq), 1.0, weight_decay, *moments)


@functools.lru_cache(maxsize=64)  # the parameters of a group share them
def _moments(lr: float, beta1: float, beta2: float, eps: float, step: int) -> tuple[float, ...]:
    # The second moment's correction, taken out of the square root and of eps, costs no division an element.
    # Differences from 1 are taken before rounding to the arrays' dtype, so that they keep their digits.
    correction2_sqrt = math.sqrt(1 - beta2**step)
    return 1 - beta1, beta2, 1 - beta2, lr * correction2_sqrt / (1 - beta1**step), eps * correction2_sqrt


def lion(
    param: np.ndarray, grad: np.ndarray, exp_avg: np.ndarray, lr: float, beta1: float, beta2: float,
    weight_decay: float,
) -> Update:  # fmt: skip
    """Return the update of `param` and its momentum: a step of one size for every element, in the momentum's direction.

    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
    """
    return _update("lion", _lion, param, grad, (exp_avg,), 1 - lr * weight_decay, 1 - beta1, 1 - beta2, lr)


def sgd(
    param: np.ndarray, grad: np.ndarray, momentum_buffer: np.ndarray | None,
    lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool, first_step: bool,
) -> Update:  # fmt: skip
    """Return the update of `param` and its momentum buffer; without a buffer there is no momentum.

    The first step fills the buffer with the undamped gradient, as torch.optim.SGD does.
    """
    if momentum_buffer is None:
        return _update("sgd", _sgd, param, grad, (), lr, weight_decay)
    kept_grad = 1.0 if first_step else 1.0 - dampening
    update = _update(
        "sgd", _sgd_momentum, param, grad, (momentum_buffer,), lr, weight_decay, momentum, kept_grad, bool(nesterov)
    )
    if first_step:
        momentum_buffer.fill(0)
    return update


def scaled(array: np.ndarray, factor: float) -> Update:
    """Return the update that multiplies an array by a number."""
    return _update("scaled", _scale, array, array, (), factor)


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
