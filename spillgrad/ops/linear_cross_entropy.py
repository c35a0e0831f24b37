"""The cross entropy of a linear layer's result, computed without holding all logits."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.grad_mode import is_recording, state
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.arithmetic import div, mul
from spillgrad.ops.array_casts import as_own, cast, on_floats, require_floats
from spillgrad.ops.autocast import float32_in_autocast, products_are_in, rounded_for_product
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.losses import IGNORE_INDEX, check_classes, cross_entropy_composed
from spillgrad.ops.matrix_products import check_linear, linear, matmul
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape, transpose
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import losses as kernels
from spillgrad_kernels.device_array import empty_beside, is_on_device

__all__ = ["linear_cross_entropy"]

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

    With `in_bfloat16`, the products round their operands, which are float32, to bfloat16; a weight may be rounded.
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
    input, weight = (x if x.dtype == dtypes.bfloat16 else cast(x, dtypes.bfloat16) for x in (input, weight))
    return input.view(np.uint16), weight.view(np.uint16)


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
    parts = (grad_input, grad_weight, grad_bias)
    if not state.frees_graph or any(is_on_device(part.array) or part.array.dtype != g.array.dtype for part in parts):
        return _scaled(parts, g, needs)
    # Nobody uses the saved gradients after this, and one of them is as large as the weight: they are scaled in place.
    for part in parts:
        if g.array != 1:
            part.bump_version()
            np.multiply(part.array, g.array, out=part.array)
    return tuple(Tensor.wrap(part.array) if need else None for part, need in zip(parts, needs, strict=True))


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
    return to_dtype(to_dtype(tensor, dtypes.bfloat16), dtypes.float32)


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
    by_logits = cross_entropy_composed(rows, logits, target, None, ignore_index, label_smoothing)
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
    ignore_index: int = IGNORE_INDEX, reduction: str = "mean", label_smoothing: float = 0.0,
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
    check_classes(name, target, weight.shape[0], ignore_index)
    if in_bfloat16:
        weight = rounded_for_product(weight, dtypes.bfloat16)
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
