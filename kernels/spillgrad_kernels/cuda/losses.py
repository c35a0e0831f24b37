"""Cross entropy between rows of logits and class indices on a device, forward and backward.

Only the kernel reads targets. If the host read targets, it would have to wait, which costs more than the loss. Unlike
on the CPU, therefore, a target outside the classes raises no error; the loss and the gradient of its row are NaN.
Targets have any integer dtype.

`linear_cross_entropy` computes logits by a matrix product without holding all logits in memory: it takes rows in
blocks, and overwrites each block's logits with their gradients in one workspace.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import empty, zeros
from spillgrad_kernels.cuda.elementwise import compute, contiguous, converted
from spillgrad_kernels.cuda.matmul import linear, matmul
from spillgrad_kernels.cuda.reductions import EXPONENTIALS, join_exponentials
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.cuda.rows import Fold, RowLoop, Rows, run
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import CONVERSIONS
from spillgrad_kernels.tables.scalar_math import exp, log, where

# The bytes of logits that `linear_cross_entropy` holds at once: 1,280 rows of 50,257 float32 classes. The number of
# rows of a block is a multiple of `_BLOCK_ROWS`, the number of rows of a product's tile.
_WORKSPACE_BYTES = 256 << 20
_BLOCK_ROWS = 128

_OF_TARGET = {"wanted": ("logits", "target"), "target_weight": ("weight", "target")}

_CROSS_ENTROPY = RowLoop(
    "cross_entropy", ["logits"], columns={"weight": 1}, numbers=["target"], constants=["ignore_index"],
    picked=_OF_TARGET, fold=Fold(EXPONENTIALS, lambda logits: (logits, 1), join_exponentials),
    finish=lambda largest, total, wanted, target_weight, target, ignore_index: (
        where(target == ignore_index, 0, target_weight * (largest + log(total) - wanted)),
        largest + log(total),
    ),
    finished=["loss", "lse"], stored=["loss", "lse"],
)  # fmt: skip
_CROSS_ENTROPY_BACKWARD = RowLoop(
    "cross_entropy_backward", ["logits"], columns={"weight": 1}, numbers=["grad", "target", "lse"],
    constants=["ignore_index"], picked={"target_weight": _OF_TARGET["target_weight"]},
    finish=lambda grad, target_weight: grad * target_weight, finished=["scale"],
    element=lambda logits, lse, scale, j, target, ignore_index: where(
        target == ignore_index, 0, scale * exp(logits - lse) - where(j == target, scale, 0)
    ),
)  # fmt: skip

# With label smoothing, a part of every target's probability is spread over all classes.
_SMOOTHED = RowLoop(
    "cross_entropy_smoothed", ["logits"], columns={"weight": 1}, numbers=["target"],
    constants=["ignore_index", "smoothing"], picked=_OF_TARGET,
    fold=Fold(
        {**EXPONENTIALS, "weighted": 0, "weights": 0}, lambda logits, weight: (logits, 1, weight * logits, weight),
        join_exponentials,
    ),
    finish=lambda largest, total, weighted, weights, wanted, target_weight, target, ignore_index, smoothing, n: (
        where(
            target == ignore_index, 0,
            (1 - smoothing) * target_weight * (largest + log(total) - wanted)
            + smoothing / n * (weights * (largest + log(total)) - weighted),
        ),
        largest + log(total),
    ),
    finished=["loss", "lse"], stored=["loss", "lse"],
)  # fmt: skip
_SMOOTHED_BACKWARD = RowLoop(
    "cross_entropy_smoothed_backward", ["logits"], columns={"weight": 1}, numbers=["grad", "target", "lse"],
    constants=["ignore_index", "smoothing"], picked={"target_weight": _OF_TARGET["target_weight"]},
    fold=Fold({"weights": 0}, lambda weight: weight),
    finish=lambda grad, weights, target_weight, smoothing, n: (
        grad * (1 - smoothing) * target_weight, grad * smoothing / n,
        grad * ((1 - smoothing) * target_weight + smoothing / n * weights),
    ),
    finished=["hard", "spread", "scale"],
    element=lambda logits, weight, lse, hard, spread, scale, j, target, ignore_index: where(
        target == ignore_index, 0, scale * exp(logits - lse) - spread * weight - where(j == target, hard, 0)
    ),
)  # fmt: skip


def _weights(weight: DeviceArray | None) -> DeviceArray | None:
    return None if weight is None else contiguous(weight)


def _constants(ignore_index: int, label_smoothing: float, logits: DeviceArray) -> list[Any]:
    smoothing = [CONVERSIONS[logits.dtype.name](label_smoothing)] if label_smoothing else []
    return [np.int64(ignore_index), *smoothing]


def cross_entropy(
    logits: DeviceArray, target: DeviceArray, ignore_index: int, label_smoothing: float = 0.0,
    weight: DeviceArray | None = None, losses: DeviceArray | None = None,
) -> tuple[DeviceArray, DeviceArray]:  # fmt: skip
    """Return (losses, lse): the weighted negative log probability of each row's target, and log(sum(exp(row))).

    For rows of half precision, lse is float32. If `losses` is given, the losses are written to it.
    """
    losses = empty(logits.shape[:1], logits.dtype) if losses is None else losses
    lse = empty(losses.shape, CONVERSIONS[logits.dtype.name])
    operands = [contiguous(logits), _weights(weight), contiguous(target)]
    constants = _constants(ignore_index, label_smoothing, logits)
    loop = _SMOOTHED if label_smoothing else _CROSS_ENTROPY
    run(loop, Rows(*logits.shape), [*operands, *constants], [losses, lse])
    return losses, lse


def cross_entropy_backward(
    grad: DeviceArray, logits: DeviceArray, target: DeviceArray, lse: DeviceArray, ignore_index: int,
    label_smoothing: float = 0.0, weight: DeviceArray | None = None, out: DeviceArray | None = None,
) -> DeviceArray:  # fmt: skip
    """Return the gradient of `cross_entropy` by the logits. `grad` is the gradient by the losses.

    `lse` is the second result of `cross_entropy`. If `out` is given, the gradient is written to `out`, which may be
    `logits` itself if `logits` is dense.
    """
    out = empty(logits.shape, logits.dtype) if out is None else out
    operands = [contiguous(logits), _weights(weight), contiguous(grad), contiguous(target), contiguous(lse)]
    constants = _constants(ignore_index, label_smoothing, logits)
    loop = _SMOOTHED_BACKWARD if label_smoothing else _CROSS_ENTROPY_BACKWARD
    run(loop, Rows(*logits.shape), [*operands, *constants], [out])
    return out


def linear_cross_entropy(
    a: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, target: DeviceArray, ignore_index: int,
    label_smoothing: float = 0.0,
) -> DeviceArray:  # fmt: skip
    """Return the losses of `cross_entropy` for the logits a @ weight.T + bias, held one block at a time."""
    losses = empty(target.shape, a.dtype)
    for rows, logits in _blocks_of_logits(a, weight, bias):
        cross_entropy(logits, target[rows], ignore_index, label_smoothing, None, losses[rows])
    return losses


def linear_cross_entropy_with_gradients(
    grad: DeviceArray, a: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, target: DeviceArray,
    ignore_index: int, label_smoothing: float = 0.0, needs: tuple[bool, ...] = (True, True, True),
) -> tuple[DeviceArray, DeviceArray | None, DeviceArray | None, DeviceArray | None]:  # fmt: skip
    """Return (losses, da, dweight, dbias) of `linear_cross_entropy`, given `grad`, the gradient by each row's loss.

    `needs` says whether da, dweight and dbias are needed; a gradient that is not needed is None. Gradients of half
    precision are summed in float32.
    """
    losses, summed_in = empty(target.shape, a.dtype), CONVERSIONS[a.dtype.name]
    da = empty(a.shape, a.dtype) if needs[0] else None
    dweight = zeros(weight.shape, summed_in) if needs[1] else None
    dbias = zeros(weight.shape[:1], summed_in) if needs[2] else None
    for rows, logits in _blocks_of_logits(a, weight, bias):
        _, lse = cross_entropy(logits, target[rows], ignore_index, label_smoothing, None, losses[rows])
        cross_entropy_backward(grad[rows], logits, target[rows], lse, ignore_index, label_smoothing, None, logits)
        if da is not None:
            matmul(logits, weight, da[rows])
        if dweight is not None:
            matmul(logits.T, a[rows], dweight, accumulate=True)
        if dbias is not None:
            compute(ROWS["add"].forward, "add", [dbias, sum_over(logits, (0,))], (summed_in,), (dbias,))
    dweight, dbias = (None if sums is None else converted(sums, a.dtype) for sums in (dweight, dbias))
    return losses, da, dweight, dbias


def _blocks_of_logits(
    a: DeviceArray, weight: DeviceArray, bias: DeviceArray | None
) -> Iterator[tuple[slice, DeviceArray]]:
    """Yield (rows, logits) for each block of rows of `a`. The logits of all blocks share one workspace."""
    rows, classes = a.shape[0], weight.shape[0]
    fitting = _WORKSPACE_BYTES // max(classes * a.dtype.itemsize, 1)
    length = max(_BLOCK_ROWS, fitting // _BLOCK_ROWS * _BLOCK_ROWS)
    workspace = empty((min(length, rows), classes), a.dtype)
    for start in range(0, rows, length):
        block = slice(start, min(start + length, rows))
        yield block, linear(a[block], weight, bias, product=workspace[: block.stop - start])
