"""Losses: how far predictions are from targets, per element, averaged or summed."""

from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, DimensionError, DtypeError, ShapeError
from spillgrad.ops.define import Composed, operation
from spillgrad.ops.elementwise import abs, div, mul, softplus, square, sub, where
from spillgrad.ops.indexing import gather
from spillgrad.ops.normalization import log_softmax, softmax
from spillgrad.ops.numeric import on_floats, require_floats
from spillgrad.ops.reduce import mean, sum
from spillgrad.ops.shape import movedim, reshape, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels import losses as kernels


def _reduced(name: str, losses: Tensor, reduction: str, weights: np.ndarray | None = None) -> Tensor:
    """Return the losses as they are, summed, or averaged; a mean with `weights` divides by their sum.

    Raises ArgumentError for another reduction.
    """
    if reduction == "none":
        return losses
    if reduction == "sum":
        return sum(losses)
    if reduction != "mean":
        raise ArgumentError(f'{name}: got reduction={reduction!r}; accepted are "mean", "sum" and "none"')
    if weights is None:
        return mean(losses)
    return div(sum(losses), Tensor.wrap(np.asarray(weights.sum(dtype=np.float64)).astype(losses.dtype)))


# --- Classification --------------------------------------------------------------------------------------------------


def _cross_entropy_forward(
    self: np.ndarray, target: np.ndarray, weight: np.ndarray | None, ignore_index: int, label_smoothing: float
) -> tuple[np.ndarray, np.ndarray]:
    def losses(logits: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return kernels.cross_entropy(logits, target, ignore_index, label_smoothing, weight)

    return on_floats(losses, self, weight, exact_aux=True)  # type: ignore[no-any-return]


def _cross_entropy_fused(
    g: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    lse: Tensor,
) -> Tensor:
    def gradient(g: np.ndarray, logits: np.ndarray, lse: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        return kernels.cross_entropy_backward(g, logits, target.array, lse, ignore_index, label_smoothing, weight)

    weights = None if weight is None else weight.array
    return Tensor.wrap(on_floats(gradient, g.array, self.array, lse.array, weights))


def _cross_entropy_composed(
    g: Any, self: Any, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float
) -> Any:
    classes = self.shape[1]
    class_weights = np.ones(classes, self.dtype) if weight is None else weight.array
    wanted = target.array[:, None] == np.arange(classes)
    goal = class_weights * (wanted * (1 - label_smoothing) + label_smoothing / max(classes, 1))
    goal[target.array == ignore_index] = 0
    goal = goal.astype(self.dtype)
    total = Tensor.wrap(goal.sum(1, keepdims=True).astype(self.dtype))
    return mul(unsqueeze(g, 1), sub(mul(softmax(self, 1), total), Tensor.wrap(goal)))


_cross_entropy: Any = operation(
    "cross_entropy", _cross_entropy_forward, aux=("lse",),
    self=Composed(fused=_cross_entropy_fused, composed=_cross_entropy_composed),
)  # fmt: skip


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return the negative log probability that softmax of the logits `input` gives to the target classes.

    Shapes: input (C,), (N, C) or (N, C, d1, …); target without the C: class indices, or as input: probabilities. The
    mean is over targets that are not `ignore_index`, weighted by the `weight` (C,) of their class.
    Raises ShapeError, DtypeError, ArgumentError, and DimensionError for a class outside [0, C).
    """
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"cross_entropy: got label_smoothing={label_smoothing}; wanted a number from 0 to 1")
    _check_class_weight("cross_entropy", input, weight)
    if target.is_floating_point():
        return _cross_entropy_of_probabilities(input, target, weight, reduction, label_smoothing)
    rows, classes = _class_rows("cross_entropy", input, target, ignore_index)
    losses = _cross_entropy(rows, classes, weight, ignore_index, float(label_smoothing))
    weights = _target_weights(classes, weight, ignore_index)
    return _reduced("cross_entropy", reshape(losses, target.shape), reduction, weights)


def _cross_entropy_of_probabilities(
    input: Any, target: Any, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    if input.shape != target.shape or not input.ndim:
        raise ShapeError(
            f"cross_entropy: got input {input.shape} and probabilities {target.shape}; they must be equal "
            "(class indices are integers)"
        )
    class_dim = 0 if input.ndim == 1 else 1
    classes = input.shape[class_dim]
    goal = target * (1 - label_smoothing) + label_smoothing / max(classes, 1) if label_smoothing else target
    if weight is not None:
        goal = goal * reshape(weight, (-1,) + (1,) * (input.ndim - class_dim - 1))
    losses: Any = -sum(log_softmax(input, class_dim) * goal, class_dim)
    return _reduced("cross_entropy", losses, reduction)


def _check_class_weight(name: str, input: Tensor, weight: Tensor | None) -> None:
    require_floats(name, input.dtype)
    if not input.ndim:
        raise ShapeError(f"{name}: got a 0-d input; wanted (C,), (N, C) or (N, C, d1, ...)")
    classes = input.shape[0 if input.ndim == 1 else 1]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(
            f"{name}: got weight {weight.shape} for input {input.shape}; wanted one for each of {classes} classes"
        )
    if weight is not None and weight.dtype != input.dtype:
        raise DtypeError(f"{name}: got input {input.dtype} and weight {weight.dtype}; convert one with .to(dtype)")


def _class_rows(name: str, input: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return input as (rows, C) and target as (rows,).

    Raises ShapeError, DtypeError, or DimensionError for a class out of range.
    """
    if target.dtype.kind not in "iu":
        raise DtypeError(f"{name}: got a target of {target.dtype}; wanted class indices: convert it with .to(int64)")
    wanted = () if input.ndim == 1 else (input.shape[0], *input.shape[2:])
    if target.shape != wanted:
        raise ShapeError(
            f"{name}: got input {input.shape} and target {target.shape}; wanted a class index for each place: {wanted}"
        )
    classes = input.shape[0 if input.ndim == 1 else 1]
    values = target.array
    outside = values[((values < 0) | (values >= classes)) & (values != ignore_index)]
    if outside.size:
        raise DimensionError(
            f"{name}: got target {outside[0]}; the {classes} classes are 0 to {classes - 1}; "
            f"ignore_index ({ignore_index}) leaves places out"
        )
    if input.ndim == 2:
        return input, target
    last = movedim(input, 1, -1) if input.ndim > 2 else input
    count = target.numel()
    return reshape(last, (count, classes)), reshape(target, (count,))


def _target_weights(classes: Tensor, weight: Tensor | None, ignore_index: int) -> np.ndarray:
    """Return each row's part in the mean: the weight of its class, 0 where it is ignored."""
    kept: np.ndarray = np.not_equal(classes.array, ignore_index)
    if weight is None:
        return kept
    return np.where(kept, weight.array[np.where(kept, classes.array, 0)].astype(np.float64), 0.0)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Return the negative of the log probabilities `input` of the target classes.

    Shapes and mean are those of `cross_entropy`.
    """
    _check_class_weight("nll_loss", input, weight)
    rows, classes = _class_rows("nll_loss", input, target, ignore_index)
    weights = _target_weights(classes, weight, ignore_index)
    kept = classes.array != ignore_index
    places = Tensor.wrap(np.where(kept, classes.array, 0).astype(np.int64)[:, None])
    losses = mul(reshape(gather(rows, 1, places), classes.shape), Tensor.wrap(-weights.astype(input.dtype)))
    losses = where(Tensor.wrap(kept), losses, 0.0)
    return _reduced("nll_loss", reshape(losses, target.shape), reduction, weights)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Return the negative log probability of `target` (probabilities) under sigmoid of the logits `input`.

    Shapes: input and target alike; weight and pos_weight (of the positive part) broadcast.
    """
    if input.shape != target.shape:
        raise ShapeError(
            f"binary_cross_entropy_with_logits: got input {input.shape} and target {target.shape}; they must be equal"
        )
    logits: Any = input
    wanted: Any = target
    # Beyond 40, log(1 + exp(x)) is x in float64 too.
    log_rest: Any = softplus(-logits, threshold=40.0)
    if pos_weight is not None:
        log_rest = log_rest * ((pos_weight - 1) * wanted + 1)
    losses = (1 - wanted) * logits + log_rest
    return _reduced("binary_cross_entropy_with_logits", losses if weight is None else losses * weight, reduction)


# --- Regression ------------------------------------------------------------------------------------------------------


def _difference(name: str, input: Tensor, target: Tensor) -> Any:
    try:
        np.broadcast_shapes(input.shape, target.shape)
    except ValueError as error:
        raise ShapeError(
            f"{name}: got input {input.shape} and target {target.shape}; they must be equal or broadcast"
        ) from error
    return sub(input, target)


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared differences."""
    return _reduced("mse_loss", square(_difference("mse_loss", input, target)), reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the absolute differences."""
    return _reduced("l1_loss", abs(_difference("l1_loss", input, target)), reduction)


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return half the squared differences up to `delta`, and delta (|difference| - delta / 2) beyond.

    Raises ArgumentError unless delta > 0. Source: Huber 1964.
    """
    if not delta > 0:
        raise ArgumentError(f"huber_loss: got delta={delta}; wanted a positive number")
    difference = _difference("huber_loss", input, target)
    distance: Any = abs(difference)
    losses = where(distance < delta, square(difference) * 0.5, (distance - 0.5 * delta) * delta)
    return _reduced("huber_loss", losses, reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return the Huber loss divided by `beta`, its delta; the absolute differences where that is 0.

    Source: Girshick 2015, equation 3.
    """
    if beta < 0:
        raise ArgumentError(f"smooth_l1_loss: got beta={beta}; wanted a number from 0 on")
    return l1_loss(input, target, reduction) if beta == 0 else div(huber_loss(input, target, reduction, beta), beta)
