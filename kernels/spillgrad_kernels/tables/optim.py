"""Optimizers: for each, the formula of one element, and a function that returns the update of a parameter."""

import ast
import functools
import inspect
import math
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.jit.compile import FLOATS, register_jitable
from spillgrad_kernels.tables.formula import Formula
from spillgrad_kernels.tables.scalar_math import sqrt, where
from spillgrad_kernels.tables.state_codes import KINDS, Encoded

# The arrays of one update are all in the host's memory, or all on one device.
Array = Any


class Update(NamedTuple):
    """How to update a parameter and its optimizer state in place.

    `formula(param, grad, *state, *numbers)` returns the new value and the new state of one element. State may be
    `Encoded`, that of float32 parameters in the host's memory.
    """

    formula: Formula
    param: Array
    grad: Array
    state: tuple[Array | Encoded, ...]
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
def amsgrad_element(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any, max_exp_avg_sq: Any,
    keep: Any, coupled_decay: Any, rate1: Any, beta2: Any, rate2: Any, step_size: Any, eps: Any,
) -> Any:  # fmt: skip
    pull = grad + coupled_decay * param
    average = exp_avg + rate1 * (pull - exp_avg)
    square = beta2 * exp_avg_sq + rate2 * pull * pull
    largest = where(max_exp_avg_sq > square, max_exp_avg_sq, square)
    return keep * param - step_size * (average / (sqrt(largest) + eps)), average, square, largest


@register_jitable(inline="always")
def nadam_element(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
    keep: Any, coupled_decay: Any, rate1: Any, beta2: Any, rate2: Any, grad_step: Any, avg_step: Any, eps: Any,
) -> Any:  # fmt: skip
    pull = grad + coupled_decay * param
    average = exp_avg + rate1 * (pull - exp_avg)
    square = beta2 * exp_avg_sq + rate2 * pull * pull
    return keep * param - (grad_step * pull + avg_step * average) / (sqrt(square) + eps), average, square


@register_jitable(inline="always")
def radam_element(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
    keep: Any, coupled_decay: Any, rate1: Any, beta2: Any, rate2: Any, step_size: Any, adapts: Any, eps: Any,
) -> Any:  # fmt: skip
    pull = grad + coupled_decay * param
    average = exp_avg + rate1 * (pull - exp_avg)
    square = beta2 * exp_avg_sq + rate2 * pull * pull
    return keep * param - step_size * average / where(adapts > 0, sqrt(square) + eps, 1), average, square


@register_jitable(inline="always")
def adamax_element(
    param: Any, grad: Any, exp_avg: Any, exp_inf: Any,
    weight_decay: Any, rate1: Any, beta2: Any, step_size: Any, eps: Any,
) -> Any:  # fmt: skip
    pull = grad + weight_decay * param
    average = exp_avg + rate1 * (pull - exp_avg)
    decayed, size = beta2 * exp_inf, abs(pull) + eps
    largest = where(decayed > size, decayed, size)
    return param - step_size * average / largest, average, largest


@register_jitable(inline="always")
def adagrad_element(param: Any, grad: Any, total: Any, weight_decay: Any, lr: Any, eps: Any) -> Any:
    pull = grad + weight_decay * param
    square = total + pull * pull
    return param - lr * pull / (sqrt(square) + eps), square


@register_jitable(inline="always")
def adadelta_element(
    param: Any, grad: Any, square_avg: Any, acc_delta: Any, weight_decay: Any, lr: Any, rho: Any, rate: Any, eps: Any
) -> Any:
    pull = grad + weight_decay * param
    square = rho * square_avg + rate * pull * pull
    change = sqrt(acc_delta + eps) / sqrt(square + eps) * pull
    return param - lr * change, square, rho * acc_delta + rate * change * change


@register_jitable(inline="always")
def rmsprop_element(
    param: Any, grad: Any, square_avg: Any, weight_decay: Any, lr: Any, alpha: Any, rate: Any, eps: Any
) -> Any:
    pull = grad + weight_decay * param
    square = alpha * square_avg + rate * pull * pull
    return param - lr * pull / (sqrt(square) + eps), square


@register_jitable(inline="always")
def rmsprop_momentum_element(
    param: Any, grad: Any, square_avg: Any, momentum_buffer: Any,
    weight_decay: Any, lr: Any, alpha: Any, rate: Any, eps: Any, momentum: Any,
) -> Any:  # fmt: skip
    pull = grad + weight_decay * param
    square = alpha * square_avg + rate * pull * pull
    velocity = momentum * momentum_buffer + pull / (sqrt(square) + eps)
    return param - lr * velocity, square, velocity


@register_jitable(inline="always")
def rmsprop_centered_element(
    param: Any, grad: Any, square_avg: Any, grad_avg: Any,
    weight_decay: Any, lr: Any, alpha: Any, rate: Any, eps: Any,
) -> Any:  # fmt: skip
    pull = grad + weight_decay * param
    square = alpha * square_avg + rate * pull * pull
    average = grad_avg + rate * (pull - grad_avg)
    return param - lr * pull / (sqrt(square - average * average) + eps), square, average


@register_jitable(inline="always")
def rmsprop_centered_momentum_element(
    param: Any, grad: Any, square_avg: Any, momentum_buffer: Any, grad_avg: Any,
    weight_decay: Any, lr: Any, alpha: Any, rate: Any, eps: Any, momentum: Any,
) -> Any:  # fmt: skip
    pull = grad + weight_decay * param
    square = alpha * square_avg + rate * pull * pull
    average = grad_avg + rate * (pull - grad_avg)
    velocity = momentum * momentum_buffer + pull / (sqrt(square - average * average) + eps)
    return param - lr * velocity, square, velocity, average


@register_jitable(inline="always")
def asgd_element(param: Any, grad: Any, ax: Any, weight_decay: Any, keep: Any, eta: Any, mu: Any) -> Any:
    stepped = keep * param - eta * (grad + weight_decay * param)
    return stepped, where(mu == 1, stepped, ax + (stepped - ax) * mu)


@register_jitable(inline="always")
def rprop_element(
    param: Any, grad: Any, prev: Any, step_size: Any, shrink: Any, grow: Any, least: Any, most: Any
) -> Any:
    agrees = grad * prev
    scaled_size = step_size * where(agrees > 0, grow, where(agrees < 0, shrink, 1))
    size = where(scaled_size < least, least, where(scaled_size > most, most, scaled_size))
    used = where(agrees < 0, 0, grad)  # where the sign changed, nothing moves in this step
    return param - where(used > 0, size, where(used < 0, -size, used)), used, size


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


@functools.cache
def maximizing(formula: Formula) -> Formula:
    """Return the formula that steps along the gradient, where `formula` steps against it.

    It is the code of `formula` behind a line that changes the gradient's sign: a formula calls no other one.
    """
    (definition,) = ast.parse(inspect.getsource(formula)).body
    assert isinstance(definition, ast.FunctionDef)
    definition.name, definition.decorator_list = f"maximizing_{definition.name}", []
    definition.body[:0] = ast.parse("grad = -grad").body
    namespace = dict(globals())
    exec(compile(ast.unparse(definition), f"<{definition.name}>", "exec"), namespace)
    return register_jitable(inline="always")(namespace[definition.name])  # type: ignore[no-any-return]


_OF_HOST = (np.ndarray, np.generic)


def _update(who: str, formula: Formula, param: Array, grad: Array, state: tuple[Array, ...], *numbers: float) -> Update:
    shape, dtype = param.shape, param.dtype
    for array in (param, grad, *state):
        if type(array) is not np.ndarray or not array.flags.carray or array.shape != shape or array.dtype is not dtype:
            grad = _checked(who, param, grad, state)
            break
    else:
        if dtype not in FLOATS:
            grad = _checked(who, param, grad, state)
    return Update(formula, param, grad, state, numbers)


def _checked(who: str, param: Array, grad: Array, state: tuple[Array | Encoded, ...]) -> Array:
    """Return a contiguous gradient; raise ValueError or TypeError for arrays that do not fit together."""
    on_host = isinstance(param, _OF_HOST)
    for encoded in [each for each in state if isinstance(each, Encoded)]:
        _check_encoded(who, param, encoded)
    state = tuple([each for each in state if not isinstance(each, Encoded)])
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
    return grad


def _check_encoded(who: str, param: Array, encoded: Encoded) -> None:
    kind, codes, scales = encoded
    dtype, block = KINDS[kind]
    wanted = (-(-param.size // block),) if block else None
    found = None if scales is None else scales.shape
    has_other_dtype = codes.dtype.name != dtype or (scales is not None and scales.dtype != np.float32)
    if param.dtype != np.float32 or has_other_dtype or codes.shape != param.shape or found != wanted:
        of_scales = "" if scales is None else f" of {scales.dtype}"
        raise ValueError(
            f"{who}: got state of {codes.dtype}, shape {codes.shape} and scales {found}{of_scales}, for a parameter of "
            f"{param.dtype} and shape {param.shape}; wanted {dtype} of the shape of a float32 parameter, and float32 "
            f"scales {wanted}; load a state that fits"
        )
    for array in (codes, scales):
        if array is not None and not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError(
                f"{who}: got encoded state of strides {array.strides}; an update in place needs contiguous memory that "
                "may be written to; make the array contiguous first"
            )


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


def amsgrad(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, max_exp_avg_sq: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, step: int,
) -> Update:  # fmt: skip
    """Return the update of Adam, or AdamW if `decoupled`, that divides by the largest second moment so far.

    Source: Reddi et al. 2018, "On the convergence of Adam and beyond", algorithm 2.
    """
    moments = _moments(lr, beta1, beta2, eps, step)
    state = exp_avg, exp_avg_sq, max_exp_avg_sq
    return _update("amsgrad", amsgrad_element, param, grad, state, *_decay(lr, weight_decay, decoupled), *moments)


def _decay(lr: float, weight_decay: float, decoupled: bool) -> tuple[float, float]:
    """Return the factor of the parameter, and its share in the gradient."""
    return (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)


def nadam(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool,
    step: int, mu: float, mu_next: float, mu_product: float,
) -> Update:  # fmt: skip
    """Return the update of Adam with Nesterov's momentum; `mu_product` is the product of the momentums up to `mu`.

    Source: Dozat 2016, "Incorporating Nesterov momentum into Adam", algorithm 2.
    """
    correction2_sqrt = math.sqrt(1 - beta2**step)
    steps = [lr * (1 - mu) / (1 - mu_product), lr * mu_next / (1 - mu_product * mu_next)]
    numbers = 1 - beta1, beta2, 1 - beta2, *[size * correction2_sqrt for size in steps], eps * correction2_sqrt
    state = exp_avg, exp_avg_sq
    return _update("nadam", nadam_element, param, grad, state, *_decay(lr, weight_decay, decoupled), *numbers)


def radam(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, step: int,
) -> Update:  # fmt: skip
    """Return the update of Adam that adapts steps only once the variance of the second moment is known.

    Source: Liu et al. 2020, "On the variance of the adaptive learning rate and beyond", algorithm 2.
    """
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / (1 - beta2**step)
    size, adapts = lr / (1 - beta1**step), length > 5
    if adapts:
        rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        size *= math.sqrt(rectified * (1 - beta2**step))
    numbers = 1 - beta1, beta2, 1 - beta2, size, float(adapts), eps
    state = exp_avg, exp_avg_sq
    return _update("radam", radam_element, param, grad, state, *_decay(lr, weight_decay, decoupled), *numbers)


def adamax(
    param: Array, grad: Array, exp_avg: Array, exp_inf: Array,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Update:  # fmt: skip
    """Return the update of Adam with the largest gradient in place of the second moment.

    Source: Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 2.
    """
    numbers = weight_decay, 1 - beta1, beta2, lr / (1 - beta1**step), eps
    return _update("adamax", adamax_element, param, grad, (exp_avg, exp_inf), *numbers)


def adagrad(
    param: Array, grad: Array, total: Array, lr: float, lr_decay: float, weight_decay: float, eps: float, step: int
) -> Update:  # fmt: skip
    """Return the update of `param` and the sum `total` of its squared gradients.

    Source: Duchi et al. 2011, "Adaptive subgradient methods for online learning and stochastic optimization".
    """
    rate = lr / (1 + (step - 1) * lr_decay)
    return _update("adagrad", adagrad_element, param, grad, (total,), weight_decay, rate, eps)


def adadelta(
    param: Array, grad: Array, square_avg: Array, acc_delta: Array,
    lr: float, rho: float, eps: float, weight_decay: float,
) -> Update:  # fmt: skip
    """Return the update of `param`, its average squared gradient and its average squared change.

    Source: Zeiler 2012, "ADADELTA: an adaptive learning rate method", algorithm 1.
    """
    state = square_avg, acc_delta
    return _update("adadelta", adadelta_element, param, grad, state, weight_decay, lr, rho, 1 - rho, eps)


def rmsprop(
    param: Array, grad: Array, square_avg: Array, momentum_buffer: Array | None, grad_avg: Array | None,
    lr: float, alpha: float, eps: float, weight_decay: float, momentum: float,
) -> Update:  # fmt: skip
    """Return the update by the gradient over its root mean square; centered if `grad_avg` is given.

    Source: Hinton 2012, "Neural networks for machine learning", lecture 6e; centered: Graves 2013, "Generating
    sequences with recurrent neural networks", eqs. 38 to 45.
    """
    formula = (
        (rmsprop_element, rmsprop_momentum_element), (rmsprop_centered_element, rmsprop_centered_momentum_element),
    )[grad_avg is not None][momentum_buffer is not None]  # fmt: skip
    state = tuple([array for array in (square_avg, momentum_buffer, grad_avg) if array is not None])
    numbers = weight_decay, lr, alpha, 1 - alpha, eps, *(() if momentum_buffer is None else (momentum,))
    return _update("rmsprop", formula, param, grad, state, *numbers)


def asgd(
    param: Array, grad: Array, ax: Array, weight_decay: float, lambd: float, eta: float, mu: float
) -> Update:  # fmt: skip
    """Return the update of `param` with the learning rate `eta`, and of its average `ax` with the weight `mu`.

    Source: Polyak & Juditsky 1992, "Acceleration of stochastic approximation by averaging".
    """
    return _update("asgd", asgd_element, param, grad, (ax,), weight_decay, 1 - lambd * eta, eta, mu)


def rprop(
    param: Array, grad: Array, prev: Array, step_size: Array, shrink: float, grow: float, least: float, most: float
) -> Update:  # fmt: skip
    """Return the update by steps that grow while the gradient's sign stays, and shrink when it changes.

    Source: Riedmiller & Braun 1993, "A direct adaptive method for faster backpropagation learning: the RPROP
    algorithm".
    """
    return _update("rprop", rprop_element, param, grad, (prev, step_size), shrink, grow, least, most)


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
