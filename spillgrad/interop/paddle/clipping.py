"""Paddle's clipping of gradients by their global norm, one gradient in RAM at a time."""

from collections.abc import Iterable, Iterator
from typing import Any

import paddle
from paddle.nn.clip import (
    ClipGradBase,
    ClipGradByGlobalNorm,
    _can_inplace_clip_grad,
    _squared_l2_norm,
    merge_selected_rows,
)


def is_clipped(parameter: Any) -> bool:
    """Return whether the gradient of a parameter is clipped."""
    return getattr(parameter, "need_clip", True) is not False


class ClipByFactor(ClipGradBase):  # type: ignore[misc]
    """Clips by a factor that is known; the factor comes from `factor_and_norm`."""

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self._factor = factor

    def _dygraph_clip(self, params_grads: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return [(param, self._clipped(param, grad)) for param, grad in params_grads if grad is not None]

    def _clipped(self, param: Any, grad: Any) -> Any:
        if not is_clipped(param):
            return grad
        factor = self._factor if self._factor.dtype == grad.dtype else self._factor.astype(grad.dtype)
        return grad.multiply_(factor) if _can_inplace_clip_grad(grad, factor) else paddle.multiply(grad, factor)


@paddle.no_grad()
def factor_and_norm(clip: ClipGradByGlobalNorm, gradients: Iterator[Any]) -> tuple[Any, float | None]:
    """Return the factor by which `clip` scales gradients, and their norm; None for the factor if it scales none.

    The norm is None if there are no gradients. The sums have the order and the dtypes of Paddle's own
    `ClipGradByGlobalNorm._dygraph_clip`.
    """
    squares: dict[str, list[Any]] = {"half": [], "float32": [], "other": []}
    for grad in gradients:
        if grad.is_selected_rows():
            grad = merge_selected_rows(grad)._get_tensor_from_selected_rows()
        square = _squared_l2_norm(grad)
        halves = square.dtype in (paddle.float16, paddle.bfloat16)
        squares["half" if halves else "float32" if square.dtype == paddle.float32 else "other"].append(square)
        del grad
    if not any(squares.values()):
        return None, None
    dtype = "float64" if squares["other"] else "float32"
    sums = [paddle.stack(some).sum() for some in squares.values() if some]
    sums = [each if each.dtype == getattr(paddle, dtype) else each.astype(dtype) for each in sums]
    norm = paddle.sqrt(paddle.stack(sums).sum())
    most = paddle.full(shape=[1], dtype=dtype, fill_value=clip.clip_norm)
    if clip.auto_skip_clip and not bool(norm > most):
        return None, float(norm)
    return paddle.divide(most, paddle.maximum(norm, most)), float(norm)
