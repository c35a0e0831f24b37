"""Losses of classification, computed from logits or from the layer before them; the reduction that all losses share."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, ShapeError
from spillgrad.ops.arithmetic import div, mul, sub
from spillgrad.ops.array_casts import as_own, cast, on_floats, refuse_complex, require_floats, require_one_dtype
from spillgrad.ops.autocast import float32_in_autocast, products_are_in
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.clamp_where import where
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.fuse_symbols import Symbol
from spillgrad.ops.indexing import gather
from spillgrad.ops.matrix_products import check_linear, linear, matmul
from spillgrad.ops.normalization import log_softmax, softmax
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.reduce import mean, sum
from spillgrad.ops.shape import movedim, reshape, transpose, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import losses as kernels
from spillgrad_kernels.device_array import arange_beside, empty_beside, is_on_device

__all__ = ["cross_entropy", "linear_cross_entropy", "nll_loss"]


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


def _cross_entropy_composed(
    g: Any, self: Any, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float
) -> Any:
    classes = self.shape[1]
    class_weights = 1.0 if weight is None else weight.array
    wanted = target.array[:, None] == arange_beside(target.array, classes)
    goal = class_weights * (wanted * (1 - label_smoothing) + label_smoothing / max(classes, 1))
    if is_on_device(target.array):  # forward has not checked the classes on a device
        goal[(target.array < 0) | (target.array >= classes)] = np.nan
    goal[target.array == ignore_index] = 0
    goal = goal.astype(self.dtype)
    total = Tensor.wrap(goal.sum(1, keepdims=True).astype(self.dtype))
    return mul(unsqueeze(g, 1), sub(mul(softmax(self, 1), total), Tensor.wrap(goal)))


_cross_entropy: Callable[..., Tensor] = operation(
    "cross_entropy", _cross_entropy_forward, aux=("lse",),
    self=Composed(fused=_cross_entropy_fused, composed=_cross_entropy_composed),
)  # fmt: skip


@float32_in_autocast
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
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


# The number of targets that count: a number, or an array on the device, so that the host need not wait for it.
_Count = Any

# The gradients of a mean or sum are known before backward begins, up to one factor: the gradient that arrives. Computed
# in forward, while the logits exist, they save backward from computing the logits again: three products instead of
# four. A hook on saved tensors would see a gradient as large as the weight. So with hooks, backward computes the
# logits again, unless the hooks leave such gradients in memory, as `save_on_disk` does.
MADE_AHEAD = ("grad_input", "grad_weight", "grad_bias")


def _linear_cross_entropy_losses(
    input: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, target: np.ndarray, divisor: _Count | None,
    ignore_index: int, label_smoothing: float, in_bfloat16: bool,
) -> np.ndarray:  # fmt: skip
    """Return the loss of each row if `divisor` is None, otherwise the sum of the losses divided by `divisor`.

    With `in_bfloat16`, the products round their operands, which are float32, to bfloat16.
    """

    def losses(input: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        input, weight = _operands(input, weight, in_bfloat16)
        rows = kernels.linear_cross_entropy(input, weight, bias, target, ignore_index, label_smoothing)
        return rows if divisor is None else _total(rows, divisor)

    return on_floats(losses, input, weight, bias)


def _linear_cross_entropy_ahead(
    input: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, target: np.ndarray, divisor: _Count,
    ignore_index: int, label_smoothing: float, in_bfloat16: bool, needs_ahead: tuple[bool, ...],
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Return the sum of the losses divided by `divisor`, and the gradients of this quotient by input, weight and bias.

    `needs_ahead` says which of the three gradients to compute; the others are empty arrays.
    """

    def loss_and_gradients(input: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, ...]:
        row_gradients = _row_gradients(input, divisor)
        input, weight = _operands(input, weight, in_bfloat16)
        rows, *gradients = kernels.linear_cross_entropy_with_gradients(
            row_gradients, input, weight, bias, target, ignore_index, label_smoothing, needs_ahead
        )
        none = empty_beside(rows, (0,), rows.dtype)
        return _total(rows, divisor), *(none if part is None else part for part in gradients)

    # Unscaled gradients would underflow in half precision: backward rounds them once the arriving gradient scales them.
    return on_floats(loss_and_gradients, input, weight, bias, exact_aux=True)


def _operands(input: np.ndarray, weight: np.ndarray, in_bfloat16: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the operands as the kernels take them: with `in_bfloat16`, as the bits of bfloat16 numbers."""
    if not in_bfloat16:
        return input, weight
    return cast(input, dtypes.bfloat16).view(np.uint16), cast(weight, dtypes.bfloat16).view(np.uint16)


def _count_of_targets(target: np.ndarray, ignore_index: int) -> _Count:
    count = np.count_nonzero(target != ignore_index)
    return count.astype(np.float64) if is_on_device(count) else float(count)


def _total(losses: np.ndarray, divisor: _Count) -> np.ndarray:
    with np.errstate(all="ignore"):  # the mean over no targets is NaN
        return as_own(losses.sum(dtype=np.float64) / _as_float64(divisor)).astype(losses.dtype)


def _row_gradients(input: np.ndarray, divisor: _Count) -> np.ndarray:
    with np.errstate(all="ignore"):
        gradients: np.ndarray = np.empty_like(input, shape=input.shape[:1])
        gradients[...] = 1 / _as_float64(divisor)
        return gradients


def _as_float64(divisor: _Count) -> Any:
    return divisor if is_on_device(divisor) else np.float64(divisor)


def _gradients_made_ahead(
    g: Tensor, grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    return _scaled((grad_input, grad_weight, grad_bias), g, needs)


def _scaled(gradients: Sequence[Any], g: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    return tuple(mul(part, g) if need else None for part, need in zip(gradients, needs, strict=True))


def _linear_cross_entropy_fused(
    g: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, divisor: _Count | None,
    ignore_index: int, label_smoothing: float, in_bfloat16: bool, needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    def gradients(
        input: np.ndarray, weight: np.ndarray, g: np.ndarray, bias: np.ndarray | None
    ) -> tuple[np.ndarray | None, ...]:
        row_gradients = g if divisor is None else _row_gradients(input, divisor)
        input, weight = _operands(input, weight, in_bfloat16)
        return kernels.linear_cross_entropy_with_gradients(
            row_gradients, input, weight, bias, target.array, ignore_index, label_smoothing, needs
        )

    operands = (input.array, weight.array, g.array, None if bias is None else bias.array)
    _, *arrays = on_floats(gradients, *operands, exact_aux=True)
    parts = tuple(None if array is None else Tensor.wrap(array) for array in arrays)
    # One gradient is as large as the weight: a factor of one must not make another array of that size.
    return parts if divisor is None or g.array == 1 else _scaled(parts, g, needs)


def _rounded(tensor: Tensor) -> Tensor:
    return to_dtype(to_dtype(tensor, dtypes.bfloat16), tensor.numpy_dtype)


def _linear_cross_entropy_composed(
    g: Any, input: Any, weight: Any, bias: Tensor | None, target: Tensor, divisor: _Count | None,
    ignore_index: int, label_smoothing: float, in_bfloat16: bool, needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if divisor is not None and is_on_device(divisor):
        divisor = Tensor.wrap(divisor.astype(g.dtype))
    rows = g if divisor is None else expand_to(div(g, divisor), target.shape)
    if in_bfloat16:
        input, weight = _rounded(input), _rounded(weight)
    logits = linear(input, weight, bias)
    by_logits = _cross_entropy_composed(rows, logits, target, None, ignore_index, label_smoothing)
    operand = _rounded(by_logits) if in_bfloat16 else by_logits
    return (
        matmul(operand, weight) if needs[0] else None,
        matmul(transpose(operand, 0, 1), input) if needs[1] else None,
        sum(by_logits, 0) if needs[2] else None,
    )


_linear_cross_entropy: Callable[..., Tensor] = operation(
    "linear_cross_entropy", _linear_cross_entropy_losses,
    joint=(
        ("input", "weight", "bias"),
        Composed(fused=_linear_cross_entropy_fused, composed=_linear_cross_entropy_composed),
    ),
)  # fmt: skip
_linear_cross_entropy_made_ahead: Callable[..., Tensor] = operation(
    "linear_cross_entropy", _linear_cross_entropy_ahead, aux=MADE_AHEAD,
    joint=(
        ("input", "weight", "bias"),
        Composed(fused=_gradients_made_ahead, composed=_linear_cross_entropy_composed),
    ),
)  # fmt: skip


def linear_cross_entropy(
    input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *,
    ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return the cross entropy of ``linear(input, weight, bias)`` without ever holding all logits.

    Logits exist for one block of rows at a time.

    Parameters
    ----------
    input : Tensor
        Of shape (..., k).
    weight : Tensor
        Of shape (C, k).
    target : Tensor
        Of shape (...): class indices.
    bias : Tensor, optional
        Of shape (C,).
    ignore_index : int, default -100
        Class index whose targets have no loss.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean over targets other than `ignore_index`, the sum, or the losses themselves.
    label_smoothing : float, default 0.0
        Share of the probability of each target that is spread evenly over all classes.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of shape (...).

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DtypeError
        If dtypes do not fit.
    DimensionError
        For a class outside [0, C).
    ArgumentError
        For another reduction, or a `label_smoothing` outside [0, 1].

    Notes
    -----
    If a gradient is recorded and no hook but `save_on_disk` sees saved tensors, the reductions "mean" and "sum" compute
    the gradients in forward and save these. Otherwise the inputs are saved, and backward computes the logits again.
    """
    in_bfloat16 = not input.is_cuda and products_are_in(dtypes.bfloat16, input)
    return _linear_cross_entropy_of_floats(
        input, weight, target, bias, ignore_index, reduction, label_smoothing, in_bfloat16
    )


@float32_in_autocast
def _linear_cross_entropy_of_floats(
    input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, reduction: str,
    label_smoothing: float, in_bfloat16: bool,
) -> Tensor:  # fmt: skip
    name = "linear_cross_entropy"
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"{name}: got label_smoothing={label_smoothing}; wanted a number from 0 to 1")
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f'{name}: got reduction={reduction!r}; accepted are "mean", "sum" and "none"')
    require_floats(name, input.dtype)
    check_linear(name, input, weight, bias)
    if target.shape != input.shape[:-1]:
        raise ShapeError(
            f"{name}: got input {input.shape} and target {target.shape}; wanted a class index for each row: "
            f"{input.shape[:-1]}"
        )
    _check_classes(name, target, weight.shape[0], ignore_index)
    rows, places = reshape(input, (target.numel(), input.shape[-1])), reshape(target, (target.numel(),))
    options = (ignore_index, float(label_smoothing), in_bfloat16)
    if reduction == "none":
        losses = _linear_cross_entropy(rows, weight, bias, places, None, *options)
        return reshape(losses, target.shape)
    divisor = _count_of_targets(places.array, ignore_index) if reduction == "mean" else 1.0
    needs = tuple(operand is not None and operand.requires_grad for operand in (rows, weight, bias))
    if is_recording() and any(needs) and not hooks.see_gradients():
        return _linear_cross_entropy_made_ahead(rows, weight, bias, places, divisor, *options, needs)
    return _linear_cross_entropy(rows, weight, bias, places, divisor, *options)


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
    _check_classes(name, target, classes, ignore_index)
    if input.ndim == 2:
        return input, target
    last = movedim(input, 1, -1) if input.ndim > 2 else input
    count = target.numel()
    return reshape(last, (count, classes)), reshape(target, (count,))


def _check_classes(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
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
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
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
