"""Softmax, layer normalization and root-mean-square normalization on a device, forward and backward.

A kernel reads a row twice: to fold the row, and to compute its results. For rows of half precision, the numbers of a
row, such as its mean, are float32.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import contiguous, converted
from spillgrad_kernels.cuda.reductions import EXPONENTIALS_FOLD
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.cuda.rows import Fold, RowLoop, Rows, run
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.formula import CONVERSIONS
from spillgrad_kernels.tables.scalar_math import exp, log, sqrt, where

# Gradients of parameters are sums over rows, in at most `_MAX_PARTIALS` parts of at least `_PARTIAL_ROWS` rows.
_PARTIAL_ROWS, _MAX_PARTIALS = 64, 512


# --- Softmax ---------------------------------------------------------------------------------------------------------

# If the largest element is infinite, largest - largest makes the row NaN, as the definition does.
_SOFTMAX = RowLoop(
    "softmax", ["a"], fold=EXPONENTIALS_FOLD,
    finish=lambda largest, total: 1 / (total + (largest - largest)), finished=["factor"],
    element=lambda a, largest, factor: exp(a - largest) * factor,
)  # fmt: skip
_LOG_SOFTMAX = RowLoop(
    "log_softmax", ["a"], fold=EXPONENTIALS_FOLD,
    finish=lambda largest, total: log(total + (largest - largest)), finished=["log_total"],
    element=lambda a, largest, log_total: a - largest - log_total,
)  # fmt: skip
_SOFTMAX_BACKWARD = RowLoop(
    "softmax_backward", ["grad", "result"], fold=Fold({"dot": 0}, lambda grad, result: grad * result),
    element=lambda grad, result, dot: result * (grad - dot),
)  # fmt: skip
_LOG_SOFTMAX_BACKWARD = RowLoop(
    "log_softmax_backward", ["grad", "result"], fold=Fold({"total": 0}, lambda grad: grad),
    element=lambda grad, result, total: grad - exp(result) * total,
)  # fmt: skip


def _along(axis: int, loop: RowLoop, *operands: DeviceArray) -> DeviceArray:
    out = empty(operands[0].shape, operands[0].dtype)
    run(loop, Rows.along(out.shape, axis), [contiguous(operand) for operand in operands], [out])
    return out


def softmax(a: DeviceArray, axis: int) -> DeviceArray:
    """Return exp(a) / sum(exp(a)) along `axis`, without overflow."""
    return _along(axis, _SOFTMAX, a)


def softmax_backward(grad: DeviceArray, result: DeviceArray, axis: int) -> DeviceArray:
    """Return the gradient of `softmax` by its input; `result` is the result of `softmax`."""
    return _along(axis, _SOFTMAX_BACKWARD, grad, result)


def log_softmax(a: DeviceArray, axis: int) -> DeviceArray:
    """Return log(softmax(a)) along `axis`, accurate even if softmax underflows."""
    return _along(axis, _LOG_SOFTMAX, a)


def log_softmax_backward(grad: DeviceArray, result: DeviceArray, axis: int) -> DeviceArray:
    """Return the gradient of `log_softmax` by its input; `result` is the result of `log_softmax`."""
    return _along(axis, _LOG_SOFTMAX_BACKWARD, grad, result)


# --- Normalization ---------------------------------------------------------------------------------------------------


def _join_moments(count: Any, mean: Any, squares: Any, other_count: Any, other_mean: Any, other_squares: Any) -> Any:
    """Return the count, the mean and the sum of squared deviations of two parts' elements together.

    Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    both = count + other_count
    share = other_count / where(both > 0, both, 1)
    distance = other_mean - mean
    return both, mean + distance * share, squares + other_squares + distance * distance * count * share


# Moments are computed of distances from the first element, which is accurate even if all elements are far from 0.
_LAYER_NORM = RowLoop(
    "layer_norm", ["a"], columns={"weight": 1, "bias": 0}, constants=["eps"], picked={"origin": ("a", 0)},
    fold=Fold({"count": 0, "distance": 0, "squares": 0}, lambda a, origin: (1, a - origin, 0), _join_moments),
    finish=lambda origin, distance, squares, n, eps: (origin + distance, 1 / sqrt(squares / n + eps)),
    finished=["mean", "rstd"], stored=["mean", "rstd"],
    element=lambda a, weight, bias, mean, rstd: (a - mean) * rstd * weight + bias,
)  # fmt: skip
_LAYER_NORM_BACKWARD = RowLoop(
    "layer_norm_backward", ["grad", "a"], columns={"weight": 1}, numbers=["mean", "rstd"],
    fold=Fold(
        {"plain": 0, "centred": 0}, lambda grad, a, weight, mean: (grad * weight, grad * weight * (a - mean))
    ),
    finish=lambda plain, centred, n, rstd: (plain / n, centred / n * rstd), finished=["shift", "slope"],
    element=lambda grad, a, weight, mean, rstd, shift, slope:
        rstd * (grad * weight - shift - (a - mean) * rstd * slope),
)  # fmt: skip
_RMS_NORM = RowLoop(
    "rms_norm", ["a"], columns={"weight": 1}, constants=["eps"], fold=Fold({"squares": 0}, lambda a: a * a),
    finish=lambda squares, n, eps: 1 / sqrt(squares / n + eps), finished=["rstd"], stored=["rstd"],
    element=lambda a, weight, rstd: a * rstd * weight,
)  # fmt: skip
_RMS_NORM_BACKWARD = RowLoop(
    "rms_norm_backward", ["grad", "a"], columns={"weight": 1}, numbers=["rstd"],
    fold=Fold({"weighted": 0}, lambda grad, a, weight: grad * weight * a),
    finish=lambda weighted, n, rstd: weighted / n * rstd, finished=["slope"],
    element=lambda grad, a, weight, rstd, slope: rstd * (grad * weight - a * rstd * slope),
)  # fmt: skip

# Gradients of parameters are folds down the columns of an array. A column of the array is a row of the loop, so the
# numbers that belong to the array's rows are `columns` operands of the loop.
_LAYER_NORM_PARAMETERS = RowLoop(
    "layer_norm_parameters", ["grad", "a"], columns={"mean": 0, "rstd": 1},
    fold=Fold({"dweight": 0, "dbias": 0}, lambda grad, a, mean, rstd: (grad * ((a - mean) * rstd), grad)),
    stored=["dweight", "dbias"],
)  # fmt: skip
_RMS_NORM_PARAMETERS = RowLoop(
    "rms_norm_parameters", ["grad", "a"], columns={"rstd": 1},
    fold=Fold({"dweight": 0}, lambda grad, a, rstd: grad * (a * rstd)), stored=["dweight"],
)  # fmt: skip


def _number(a: DeviceArray) -> Any:
    """Return the NumPy type of the numbers, such as means, that belong to the rows of `a`."""
    return _numbers[a.dtype]


_numbers = {np.dtype(name): number for name, number in CONVERSIONS.items()}


def _parameter(value: DeviceArray | None, n: int) -> DeviceArray | None:
    if value is None or (value.shape == (n,) and value.layout.dense):
        return value
    return contiguous(value).reshape(n)


def _rows(a: DeviceArray, n: int) -> Rows:
    """Return the rows of `a`, of n elements each; no rows if n is 0."""
    return Rows(a.size // n if n else 0, n)


def _parameter_gradients(loop: RowLoop, rows: Rows, operands: list[DeviceArray]) -> list[DeviceArray]:
    """Return the gradients of the parameters, each with one dimension."""
    parts = max(1, min(rows.units // _PARTIAL_ROWS, _MAX_PARTIALS))
    partials = empty((len(loop.stored), parts, rows.n), _number(operands[0]))
    run(loop, Rows(1, rows.units, rows.n, parts), operands, [partials[i] for i in range(len(loop.stored))])
    sums = sum_over(partials, (1,)) if parts > 1 else partials[:, 0]
    return [converted(sums[i], operands[0].dtype) for i in range(len(loop.stored))]


def _backward(
    loop: RowLoop, parameters: RowLoop, grad: DeviceArray, a: DeviceArray, weight: DeviceArray | None,
    *numbers: DeviceArray,
) -> list[DeviceArray]:  # fmt: skip
    """Return the gradient by `a`, then the gradients by the parameters. Each of `numbers` has a value for each row."""
    count = numbers[0].size
    n = a.size // count if count else 0 if weight is None else weight.size
    rows, da = _rows(a, n), empty(a.shape, a.dtype)
    grad, a = contiguous(grad), contiguous(a)
    run(loop, rows, [grad, a, _parameter(weight, n), *numbers], [da])
    return [da, *_parameter_gradients(parameters, rows, [grad, a, *numbers])]


def layer_norm(
    a: DeviceArray, n: int, weight: DeviceArray | None, bias: DeviceArray | None, eps: float
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return (out, mean, rstd): each row of n elements normalized to mean 0 and variance 1, times weight plus bias."""
    rows, number = _rows(a, n), _number(a)
    out, mean, rstd = empty(a.shape, a.dtype), empty((rows.units,), number), empty((rows.units,), number)
    operands = [contiguous(a), _parameter(weight, n), _parameter(bias, n), number(eps)]
    run(_LAYER_NORM, rows, operands, [mean, rstd, out])
    return out, mean, rstd


def layer_norm_backward(
    grad: DeviceArray, a: DeviceArray, weight: DeviceArray | None, mean: DeviceArray, rstd: DeviceArray
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return (da, dweight, dbias). The last two are returned even if the forward pass had no weight or bias."""
    da, dweight, dbias = _backward(_LAYER_NORM_BACKWARD, _LAYER_NORM_PARAMETERS, grad, a, weight, mean, rstd)
    return da, dweight, dbias


def rms_norm(a: DeviceArray, n: int, weight: DeviceArray | None, eps: float) -> tuple[DeviceArray, DeviceArray]:
    """Return (out, rstd): each row of n elements scaled to mean square 1, times the weight."""
    rows, number = _rows(a, n), _number(a)
    out, rstd = empty(a.shape, a.dtype), empty((rows.units,), number)
    run(_RMS_NORM, rows, [contiguous(a), _parameter(weight, n), number(eps)], [rstd, out])
    return out, rstd


def rms_norm_backward(
    grad: DeviceArray, a: DeviceArray, weight: DeviceArray | None, rstd: DeviceArray
) -> tuple[DeviceArray, DeviceArray]:
    """Return (da, dweight). dweight is returned even if the forward pass had no weight."""
    da, dweight = _backward(_RMS_NORM_BACKWARD, _RMS_NORM_PARAMETERS, grad, a, weight, rstd)
    return da, dweight
