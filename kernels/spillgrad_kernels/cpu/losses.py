"""Cross entropy between rows of logits and class indices, forward and backward. It never holds the softmax.

For logits that are a matrix product, `linear_cross_entropy` does not hold all logits either. It computes the logits of
one block of rows at a time, and overwrites them by their gradients, in one bounded workspace.
Source: Hsu et al. 2024, "Liger Kernel: Efficient Triton Kernels for LLM Training", section 3.2.
"""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.cpu.matmul import SUMS, matmul
from spillgrad_kernels.cpu.reductions import sum as sum_over
from spillgrad_kernels.cpu.rows import RUN, row_dot, row_exponentials, row_max, row_sum
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import REASSOCIATE, jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.scalar_math import exp
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for

# Bytes of logits that the fused product and loss hold at once: 166 rows of 50257 classes. Twice as many rows are 5 %
# faster, half as many 8 % slower: for each block of rows, the weight is read and its gradient updated once.
_WORKSPACE_BYTES = 32 << 20
# A product of fewer rows would wait for memory, however many classes there are.
_MIN_BLOCK_ROWS = 48


@jit
def _cross_entropy(
    start: int, stop: int, logits: Any, target: Any, weight: Any, ignore_index: int, smoothing: float, losses: Any,
    lse: Any,
) -> None:  # fmt: skip
    classes = logits.shape[1]
    total_weight = row_sum(weight)
    for i in range(start, stop):
        x, t = logits[i], target[i]
        largest = row_max(x)
        # Subtracting an infinite maximum would give NaN. Without the subtraction, the sum is inf or 0, as it should be.
        shift = largest if abs(largest) < np.inf else x.dtype.type(0.0)
        log_total = shift + np.log(row_exponentials(x, shift))
        loss = 0.0
        if t != ignore_index:
            loss = (1.0 - smoothing) * weight[t] * (log_total - x[t])
            if smoothing != 0.0:
                loss += smoothing / classes * (total_weight * log_total - row_dot(weight, x))
        losses[i] = loss
        lse[i] = log_total


@jit
def _cross_entropy_backward(
    start: int, stop: int, grad: Any, logits: Any, target: Any, lse: Any, weight: Any, ignore_index: int,
    smoothing: float, out: Any,
) -> None:  # fmt: skip
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
            spread = g * uniform if smoothing != 0.0 else uniform  # g may be infinite
            for j in range(classes):
                dx[j] = scale * exp(x[j] - log_total) - spread * weight[j]
            dx[t] -= g * hard


@jit(fastmath=REASSOCIATE)
def _to_exponentials(x: Any, shift: Any) -> Any:
    """Replace each logit x, in place, by exp(x - `shift`); return the sum of the exponentials."""
    total = x.dtype.type(0.0)
    for j in range(x.size):
        x[j] = exp(x[j] - shift)
        total += x[j]
    return np.float64(total)


@jit
def _logits_to_gradients(
    start: int, stop: int, logits: Any, target: Any, grad: Any, ignore_index: int, smoothing: float, losses: Any,
) -> None:  # fmt: skip
    """Set each row's loss, and replace the row's logits, in place, by the gradient of grad[row] * loss."""
    classes = logits.shape[1]
    uniform = smoothing / classes
    for i in range(start, stop):
        x, t, g = logits[i], target[i], grad[i]
        if t == ignore_index:
            x[:] = 0
            losses[i] = 0
        else:
            wanted, plain_sum = x[t], row_sum(x) if smoothing != 0.0 else 0.0
            largest = row_max(x)
            shift = largest if abs(largest) < np.inf else x.dtype.type(0.0)
            total = np.float64(0.0)
            for j in range(0, classes, RUN):
                total += _to_exponentials(x[j : j + RUN], shift)
            log_total = shift + np.log(total)
            loss = (1.0 - smoothing) * (log_total - wanted)
            if smoothing != 0.0:
                loss += smoothing * log_total - uniform * plain_sum
            losses[i] = loss
            scale = x.dtype.type(g / total)
            spread = x.dtype.type(g * uniform if smoothing != 0.0 else 0.0)  # g may be infinite
            for j in range(classes):
                x[j] = x[j] * scale - spread
            x[t] -= x.dtype.type(g * (1.0 - smoothing))


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


@on_device("losses")
def cross_entropy(
    logits: np.ndarray,
    target: np.ndarray,
    ignore_index: int,
    label_smoothing: float = 0.0,
    weight: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (losses, lse): the weighted negative log probability of each row's target, and log(sum(exp(row))).

    The loss of a row whose target is `ignore_index` is 0.
    Shapes: logits (N, C), target int64 (N,), weight (C,), losses and lse (N,).
    Raises IndexError for a target outside [0, C) that is not `ignore_index`.
    """
    target = _checked_target(target, logits.shape[1], ignore_index)
    losses, lse = buffers.empty(target.shape, logits.dtype), buffers.empty(target.shape, logits.dtype)
    parallel_for(
        _cross_entropy, target.size, grain_of(logits.shape[1]),
        np.ascontiguousarray(logits), target, _class_weights(weight, logits), int(ignore_index), float(label_smoothing),
        losses, lse,
    )  # fmt: skip
    return losses, lse


@on_device("losses")
def cross_entropy_backward(
    grad: np.ndarray, logits: np.ndarray, target: np.ndarray, lse: np.ndarray, ignore_index: int,
    label_smoothing: float = 0.0, weight: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return the gradient of `cross_entropy` with respect to the logits.

    `grad` is the gradient with respect to the losses; `lse` is the second result of `cross_entropy`.
    Shapes: grad (N,), logits (N, C), target int64 (N,), lse (N,), weight (C,).
    """
    target = _checked_target(target, logits.shape[1], ignore_index)
    out = buffers.empty(logits.shape, logits.dtype)
    parallel_for(
        _cross_entropy_backward, logits.shape[0], grain_of(logits.shape[1]),
        np.ascontiguousarray(grad), np.ascontiguousarray(logits), target, lse,
        _class_weights(weight, logits), int(ignore_index), float(label_smoothing), out,
    )  # fmt: skip
    return out


@on_device("losses")
def linear_cross_entropy(
    a: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, target: np.ndarray, ignore_index: int,
    label_smoothing: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """Return the losses of `cross_entropy` for the logits a @ weight.T + bias, computed one block of rows at a time.

    All dtypes are float32, or all are float64. Or `a` and `weight` are uint16, the bits of bfloat16 numbers, and the
    others are float32.
    Shapes: a (N, K), weight (C, K), bias (C,), target int64 (N,), losses (N,). Any strides.
    Raises IndexError for a target outside [0, C) that is not `ignore_index`.
    """
    target = _checked_target(target, weight.shape[0], ignore_index)
    losses = buffers.empty(target.shape, SUMS[a.dtype])
    for rows, logits in _blocks_of_logits(a, weight, bias):
        losses[rows] = cross_entropy(logits, target[rows], ignore_index, label_smoothing)[0]
    return losses


@on_device("losses")
def linear_cross_entropy_with_gradients(
    grad: np.ndarray, a: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, target: np.ndarray,
    ignore_index: int, label_smoothing: float = 0.0, needs: tuple[bool, ...] = (True, True, True),
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]:  # fmt: skip
    """Return (losses, da, dweight, dbias): the losses of `linear_cross_entropy`, and its gradients.

    `grad` is the gradient with respect to the losses. `needs` says which of the three gradients to compute; a gradient
    that is not needed is None. Sums over rows and classes do not depend on the number of threads. If `a` is uint16, the
    gradients of the logits are rounded to bfloat16 for the products; all results are float32.
    Shapes: grad and losses (N,), the others as in `linear_cross_entropy`.
    """
    dtype = SUMS[a.dtype]
    target = _checked_target(target, weight.shape[0], ignore_index)
    grad, losses = np.ascontiguousarray(grad), buffers.empty(target.shape, dtype)
    da = buffers.empty(a.shape, dtype) if needs[0] else None
    dweight = buffers.zeros(weight.shape, dtype) if needs[1] else None
    dbias = np.zeros(weight.shape[0], dtype) if needs[2] else None
    rounded = None
    for rows, logits in _blocks_of_logits(a, weight, bias):
        if rounded is None and a.dtype != dtype:
            rounded = buffers.empty(logits.shape, np.dtype(ml_dtypes.bfloat16))
        parallel_for(
            _logits_to_gradients, len(logits), grain_of(weight.shape[0]),
            logits, target[rows], grad[rows], int(ignore_index), float(label_smoothing), losses[rows],
        )  # fmt: skip
        operand = logits if rounded is None else _bits_of_bfloat16(logits, rounded[: len(logits)])
        if da is not None:
            matmul(operand, weight, da[rows])
        if dweight is not None:
            matmul(operand.T, a[rows], dweight, accumulate=True)
        if dbias is not None:
            dbias += sum_over(logits, (0,))
    return losses, da, dweight, dbias


def _blocks_of_logits(a: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield (rows, logits) for each block of rows of `a`; all logits share the same memory."""
    rows, classes, dtype = a.shape[0], weight.shape[0], SUMS[a.dtype]
    length = max(_MIN_BLOCK_ROWS, _WORKSPACE_BYTES // max(classes * dtype.itemsize, 1))
    workspace = buffers.empty((min(length, rows), classes), dtype)
    for start in range(0, rows, length):
        block = slice(start, min(start + length, rows))
        logits = workspace[: block.stop - start]
        if bias is not None:
            np.copyto(logits, bias)
        yield block, matmul(a[block], weight.T, logits, accumulate=bias is not None)


def _bits_of_bfloat16(array: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Round an array to bfloat16 in the memory `rounded`; return the bits."""
    elementwise(_itself, "convert", [array], rounded.dtype, rounded)
    return rounded.view(np.uint16)


def _itself(x: Any) -> Any:
    return x
