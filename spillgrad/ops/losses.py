"""Losses of classification, computed from logits; the reduction that all losses share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, DimensionError, DtypeError, ShapeError
from spillgrad.ops.arithmetic import div, mul, sub
from spillgrad.ops.array_casts import as_own, on_floats, refuse_complex, require_floats, require_one_dtype
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.clamp_where import where
from spillgrad.ops.fuse_symbols import Symbol
from spillgrad.ops.indexing import gather
from spillgrad.ops.normalization import log_softmax, softmax
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.reduce import mean, sum
from spillgrad.ops.shape import movedim, reshape, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import losses as kernels
from spillgrad_kernels.device_array import arange_beside, is_on_device

__all__ = ["cross_entropy", "nll_loss"]

# The target of a position that has no loss, as in PyTorch.
IGNORE_INDEX = -100


def reduced(name: str, losses: Tensor, reduction: str, weights: np.ndarray | None = None) -> Tensor:
    """Return `losses` unchanged ("none"), their sum ("sum") or their mean ("mean").

    A mean with `weights` is the sum of the losses divided by the sum of the weights.
    Raises ArgumentError for another `reduction`.
    """
    if reduction == "none":
        return losses
    if reduction == "sum":
        return sum(losses)
    if reduction != "mean":
        raise ArgumentError(f'{name}: got reduction={reduction!r}; accepted are "mean", "sum" and "none"')
    if weights is None:
        return mean(losses)
    return div(sum(losses), Tensor.wrap(as_own(weights.sum(dtype=np.float64)).astype(losses.numpy_dtype)))


def require_alike(name: str, input: Tensor, target: Tensor) -> None:
    """Raise ShapeError unless the input and the target of a loss have the same shape."""
    if input.shape != target.shape:
        raise ShapeError(f"{name}: got input {input.shape} and target {target.shape}; they must be equal")


def refuse_complex_operands(name: str, *operands: Any) -> None:
    """Raise DtypeError, for a loss, if one of its operands is a complex tensor."""
    for operand in operands:
        if type(operand) is not Symbol and isinstance(operand, Tensor):
            refuse_complex(name, operand.dtype)


def _cross_entropy_forward(
    self: np.ndarray, target: np.ndarray, weight: np.ndarray | None, ignore_index: int, label_smoothing: float
) -> tuple[np.ndarray, np.ndarray]:
    def losses(logits: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return kernels.cross_entropy(logits, target, ignore_index, label_smoothing, weight)

    return on_floats(losses, self, weight, exact_aux=True)


def _cross_entropy_fused(
    g: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float,
    lse: Tensor,
) -> Tensor:  # fmt: skip
    def gradient(g: np.ndarray, logits: np.ndarray, lse: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        return kernels.cross_entropy_backward(g, logits, target.array, lse, ignore_index, label_smoothing, weight)

    weights = None if weight is None else weight.array
    return Tensor.wrap(on_floats(gradient, g.array, self.array, lse.array, weights))


def cross_entropy_composed(
    g: Any, self: Any, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float
) -> Any:
    classes = self.shape[1]
    class_weights = 1.0 if weight is None else weight.array
    wanted = target.array[:, None] == arange_beside(target.array, classes)
    goal = class_weights * (wanted * (1 - label_smoothing) + label_smoothing / max(classes, 1))
    if is_on_device(target.array):  # forward has not checked the classes on a device
        goal[(target.array < 0) | (target.array >= classes)] = np.nan
    ignored = target.array == ignore_index
    goal[ignored] = 0
    g = where(Tensor.wrap(ignored), 0.0, g)  # the mean over no targets has infinite gradients
    goal = goal.astype(self.dtype)
    total = Tensor.wrap(goal.sum(1, keepdims=True).astype(self.dtype))
    return mul(unsqueeze(g, 1), sub(mul(softmax(self, 1), total), Tensor.wrap(goal)))


_cross_entropy: Callable[..., Tensor] = operation(
    "cross_entropy", _cross_entropy_forward, aux=("lse",),
    self=Composed(fused=_cross_entropy_fused, composed=cross_entropy_composed),
)  # fmt: skip


@float32_in_autocast
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return the negative log probability that softmax of logits gives to target classes.

    Parameters
    ----------
    input : Tensor
        Of shape (C,), (N, C) or (N, C, d1, ...): the logits.
    target : Tensor
        Class indices, of the shape of `input` without C; or probabilities, of the shape of `input`.
    weight : Tensor, optional
        Of shape (C,): the weight of each class.
    ignore_index : int, default -100
        Class index whose targets have no loss.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves. For class indices, the mean is
        over targets other than `ignore_index`, weighted by the `weight` of their class.
    label_smoothing : float, default 0.0
        Share of the probability of each target that is spread evenly over all classes.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input` without C.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If the logits are not floating-point numbers, or dtypes do not fit.
    DimensionError
        For a class outside [0, C).
    ArgumentError
        For another reduction, or a `label_smoothing` outside [0, 1].

    Examples
    --------
    >>> import spillgrad as sg
    >>> logits = sg.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> loss = sg.nn.functional.cross_entropy(logits, sg.tensor([0, 1]))
    >>> round(loss.item(), 4)
    0.1269
    """
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"cross_entropy: got label_smoothing={label_smoothing}; wanted a number from 0 to 1")
    _check_class_weight("cross_entropy", input, weight)
    if target.is_floating_point():
        return _cross_entropy_of_probabilities(input, target, weight, reduction, label_smoothing)
    rows, classes = _class_rows("cross_entropy", input, target, ignore_index)
    losses = _cross_entropy(rows, classes, weight, ignore_index, float(label_smoothing))
    weights = _target_weights(classes, weight, ignore_index)
    return reduced("cross_entropy", reshape(losses, target.shape), reduction, weights)


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
    return reduced("cross_entropy", losses, reduction)


def _check_class_weight(name: str, input: Tensor, weight: Tensor | None) -> None:
    require_floats(name, input.dtype)
    if not input.ndim:
        raise ShapeError(f"{name}: got a 0-d input; wanted (C,), (N, C) or (N, C, d1, ...)")
    classes = input.shape[0 if input.ndim == 1 else 1]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(
            f"{name}: got weight {weight.shape} for input {input.shape}; wanted one for each of {classes} classes"
        )
    require_one_dtype(name, input=input, weight=weight)


def _class_rows(name: str, input: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return input reshaped to (rows, C) and target reshaped to (rows,).

    Raises ShapeError unless target has the shape of input without C, DtypeError unless target holds integers,
    DimensionError for a class out of range.
    """
    wanted = () if input.ndim == 1 else (input.shape[0], *input.shape[2:])
    if target.shape != wanted:
        raise ShapeError(
            f"{name}: got input {input.shape} and target {target.shape}; wanted a class index for each place: {wanted}"
        )
    classes = input.shape[0 if input.ndim == 1 else 1]
    check_classes(name, target, classes, ignore_index)
    if input.ndim == 2:
        return input, target
    last = movedim(input, 1, -1) if input.ndim > 2 else input
    count = target.numel()
    return reshape(last, (count, classes)), reshape(target, (count,))


def check_classes(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
    """Raise DtypeError unless targets are integers, DimensionError unless each is a class or `ignore_index`."""
    if target.dtype.kind not in "iu":
        raise DtypeError(f"{name}: got a target of {target.dtype}; wanted class indices: convert it with .to(int64)")
    values = target.array
    if is_on_device(values):  # a check would wait for the device: a class out of range has a loss of NaN there
        return
    outside = values[((values < 0) | (values >= classes)) & (values != ignore_index)]
    if outside.size:
        raise DimensionError(
            f"{name}: got target {outside[0]}; the {classes} classes are 0 to {classes - 1}; "
            f"ignore_index ({ignore_index}) leaves places out"
        )


def _target_weights(classes: Tensor, weight: Tensor | None, ignore_index: int) -> np.ndarray:
    """Return each row's weight in the mean: 0 if the row is ignored, otherwise its class's weight (by default 1)."""
    kept: np.ndarray = np.not_equal(classes.array, ignore_index)
    if weight is None:
        return kept
    return np.where(kept, weight.array[np.where(kept, classes.array, 0)].astype(np.float64), 0.0)


@float32_in_autocast
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative of the log probabilities that are given to target classes.

    Parameters
    ----------
    input : Tensor
        Of shape (C,), (N, C) or (N, C, d1, ...): log probabilities.
    target : Tensor
        Class indices, of the shape of `input` without C.
    weight : Tensor, optional
        Of shape (C,): the weight of each class.
    ignore_index : int, default -100
        Class index whose targets have no loss.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves. The mean is over targets other
        than `ignore_index`, weighted by the `weight` of their class.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input` without C.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If `input` does not hold floating-point numbers, or `target` no integers.
    DimensionError
        For a class outside [0, C).
    """
    _check_class_weight("nll_loss", input, weight)
    rows, classes = _class_rows("nll_loss", input, target, ignore_index)
    weights = _target_weights(classes, weight, ignore_index)
    kept = classes.array != ignore_index
    places = Tensor.wrap(np.where(kept, classes.array, 0).astype(np.int64)[:, None])
    losses = mul(reshape(gather(rows, 1, places), classes.shape), Tensor.wrap(-weights.astype(input.dtype)))
    losses = where(Tensor.wrap(kept), losses, 0.0)
    return reduced("nll_loss", reshape(losses, target.shape), reduction, weights)
