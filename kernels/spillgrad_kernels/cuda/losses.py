"""Cross entropy between rows of logits and class indices on a device, forward and backward.

A target is read by the kernel alone: waiting for it on the host would cost more than the loss. What is outside the
classes is not looked up: such a row's loss and gradient are NaN.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cuda.array import DeviceArray, empty
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.reductions import EXPONENTIALS, join_exponentials
from spillgrad_kernels.cuda.rows import Fold, RowLoop, Rows, run
from spillgrad_kernels.formula import CONVERSIONS
from spillgrad_kernels.scalar_math import exp, log, where

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

# With a share of every target spread over all classes.
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
    logits: DeviceArray,
    target: DeviceArray,
    ignore_index: int,
    label_smoothing: float = 0.0,
    weight: DeviceArray | None = None,
) -> tuple[DeviceArray, DeviceArray]:
    """Return (losses, lse): the weighted negative log probability of each row's target, and log(sum(exp(row))).

    Shapes: logits (N, C), target of integers (N,), weight (C,), losses and lse (N,); lse is float32 for half precision.
    Rows whose target is `ignore_index` have loss 0; those whose target is otherwise outside [0, C), NaN.
    """
    rows = Rows(*logits.shape)
    losses = empty((rows.units,), logits.dtype)
    lse = empty((rows.units,), CONVERSIONS[logits.dtype.name])
    operands = [contiguous(logits), _weights(weight), contiguous(target)]
    constants = _constants(ignore_index, label_smoothing, logits)
    run(_SMOOTHED if label_smoothing else _CROSS_ENTROPY, rows, [*operands, *constants], [losses, lse])
    return losses, lse


def cross_entropy_backward(
    grad: DeviceArray, logits: DeviceArray, target: DeviceArray, lse: DeviceArray, ignore_index: int,
    label_smoothing: float = 0.0, weight: DeviceArray | None = None,
) -> DeviceArray:  # fmt: skip
    """Return the gradient by the logits, given each row's gradient; `lse` is what `cross_entropy` returned.

    Rows whose target is `ignore_index` have gradient 0; those whose target is otherwise outside [0, C), NaN.
    Shapes: grad (N,), logits (N, C), target of integers (N,), lse (N,), weight (C,).
    """
    out = empty(logits.shape, logits.dtype)
    operands = [contiguous(logits), _weights(weight), contiguous(grad), contiguous(target), contiguous(lse)]
    constants = _constants(ignore_index, label_smoothing, logits)
    loop = _SMOOTHED_BACKWARD if label_smoothing else _CROSS_ENTROPY_BACKWARD
    run(loop, Rows(*logits.shape), [*operands, *constants], [out])
    return out
