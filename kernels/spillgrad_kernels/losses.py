"""Cross entropy between rows of logits and class indices, forward and backward, without the softmax in memory."""

from typing import Any

import numpy as np

from spillgrad_kernels import memory
from spillgrad_kernels.compile import REASSOCIATE, jit
from spillgrad_kernels.dispatch import parallel_for
from spillgrad_kernels.reductions import row_dot, row_max, row_sum
from spillgrad_kernels.scalar_math import exp

# Elements worth a thread of their own: 20 to 50 microseconds of work.
_GRAIN_ELEMENTS = 1 << 16


@jit(fastmath=REASSOCIATE)
def _sum_of_exponentials(row: Any, shift: Any) -> Any:
    total = np.float64(0.0)
    for j in range(row.size):
        total += exp(row[j] - shift)
    return total


@jit
def _cross_entropy(
    start: int,
    stop: int,
    logits: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    smoothing: float,
    losses: Any,
    lse: Any,
) -> None:
    classes = logits.shape[1]
    total_weight = row_sum(weight)
    for i in range(start, stop):
        x, t = logits[i], target[i]
        largest = row_max(x)
        # An infinite reference point would give inf - inf; with 0 the sum is inf or 0, as by definition.
        shift = largest if abs(largest) < np.inf else x.dtype.type(0.0)
        log_total = shift + np.log(_sum_of_exponentials(x, shift))
        loss = 0.0
        if t != ignore_index:
            loss = (1.0 - smoothing) * weight[t] * (log_total - x[t])
            if smoothing != 0.0:
                loss += smoothing / classes * (total_weight * log_total - row_dot(weight, x))
        losses[i] = loss
        lse[i] = log_total


@jit
def _cross_entropy_backward(
    start: int,
    stop: int,
    grad: Any,
    logits: Any,
    target: Any,
    lse: Any,
    weight: Any,
    ignore_index: int,
    smoothing: float,
    out: Any,
) -> None:
    classes = logits.shape[1]
    total_weight = row_sum(weight)
    uniform = out.dtype.type(smoothing / classes)
    for i in range(start, stop):
        x, dx, t, log_total, g = logits[i], out[i], target[i], lse[i], grad[i]
        if t == ignore_index:
            dx[:] = 0
        else:
            hard = (1.0 - smoothing) * weight[t]
            scale = dx.dtype.type(g * (hard + smoothing / classes * total_weight))
            spread = g * uniform
            for j in range(classes):
                dx[j] = scale * exp(x[j] - log_total) - spread * weight[j]
            dx[t] -= g * hard


def _class_weights(weight: np.ndarray | None, logits: np.ndarray) -> np.ndarray:
    return np.ones(logits.shape[1], logits.dtype) if weight is None else np.ascontiguousarray(weight)


def _checked_target(target: np.ndarray, classes: int, ignore_index: int) -> np.ndarray:
    target = np.ascontiguousarray(target, np.int64)
    outside = np.flatnonzero(((target < 0) | (target >= classes)) & (target != ignore_index))
    if outside.size:
        row = outside[0]
        raise IndexError(
            f"cross_entropy: got target {target[row]} in row {row}; the {classes} classes are numbered from 0; "
            f"mark rows to leave out with ignore_index ({ignore_index})"
        )
    return target


def _grain(classes: int) -> int:
    return max(1, _GRAIN_ELEMENTS // max(classes, 1))


def cross_entropy(
    logits: np.ndarray,
    target: np.ndarray,
    ignore_index: int,
    label_smoothing: float = 0.0,
    weight: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (losses, lse): the weighted negative log probability of each row's target, and log(sum(exp(row))).

    Shapes: logits (N, C), target int64 (N,), weight (C,), losses and lse (N,).
    Rows whose target is `ignore_index` have loss 0.
    Raises IndexError for a target outside [0, C) that is not `ignore_index`.
    """
    target = _checked_target(target, logits.shape[1], ignore_index)
    losses, lse = memory.empty(target.shape, logits.dtype), memory.empty(target.shape, logits.dtype)
    parallel_for(
        _cross_entropy, target.size, _grain(logits.shape[1]),
        np.ascontiguousarray(logits), target, _class_weights(weight, logits), int(ignore_index), float(label_smoothing),
        losses, lse,
    )  # fmt: skip
    return losses, lse


def cross_entropy_backward(
    grad: np.ndarray, logits: np.ndarray, target: np.ndarray, lse: np.ndarray, ignore_index: int,
    label_smoothing: float = 0.0, weight: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return the gradient by the logits, given each row's gradient; `lse` is what `cross_entropy` returned.

    Shapes: grad (N,), logits (N, C), target int64 (N,), lse (N,), weight (C,).
    """
    target = _checked_target(target, logits.shape[1], ignore_index)
    out = memory.empty(logits.shape, logits.dtype)
    parallel_for(
        _cross_entropy_backward, logits.shape[0], _grain(logits.shape[1]),
        np.ascontiguousarray(grad), np.ascontiguousarray(logits), target, lse,
        _class_weights(weight, logits), int(ignore_index), float(label_smoothing), out,
    )  # fmt: skip
    return out
