"""PyTorch's cross entropy in less memory: a language model's logits are often its largest tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spillgrad.interop.torch.memory import is_plain

# The gradient is computed for so many bytes of the logits at once: little beside them, and enough to cost no time.
PIECE_BYTES = 16 << 20
_aten = torch.ops.aten
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}  # the numbers of ATen's functions


class LeanCrossEntropy(TorchFunctionMode):  # type: ignore[misc]
    """Context in which the gradient of `torch.nn.functional.cross_entropy` needs two tensors of the logits' size.

    PyTorch's needs three: the logarithms of the probabilities, the gradient with respect to these, and the result. The
    second has one number in each row that is not zero; here, a few rows of it exist at a time. PyTorch's own functions
    compute each row, so losses and gradients have the same bits.

    This affects logits of more than `PIECE_BYTES`, of shape (rows, classes), with one class for each row, and neither
    weights nor label smoothing. PyTorch computes other calls.

    Parameters
    ----------
    takes : callable, optional
        Returns whether to affect calls with these logits. By default, the logits must be plain memory.
    """

    def __init__(self, takes: Callable[[Any], bool] = is_plain) -> None:
        super().__init__()
        self._takes = takes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_ours = func is functional.cross_entropy and not torch.compiler.is_compiling()
        if is_ours and self._is_affected(*args, **kwargs):
            logits, target = args
            reduction, ignore_index = _REDUCTIONS[kwargs["reduction"]], kwargs["ignore_index"]
            return _NegativeLogLikelihood.apply(logits, torch.log_softmax(logits, 1), target, reduction, ignore_index)
        return func(*args, **kwargs)

    def _is_affected(
        self, logits: Any, target: Any, *, weight: Any, size_average: Any, ignore_index: int, reduce: Any,
        reduction: str, label_smoothing: float,
    ) -> bool:  # fmt: skip
        # PyTorch gives all options by name, whatever its caller gave.
        return (
            self._takes(logits)
            and reduction in _REDUCTIONS
            and weight is size_average is reduce is None
            and not label_smoothing
            and (logits.ndim, target.ndim, target.dtype) == (2, 1, torch.int64)
            and len(logits) == len(target)
            and logits.nbytes > PIECE_BYTES
            and logits.requires_grad
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled(logits.device.type)
        )


# What runs between compiled parts is not compiled by itself; within them, this is.
torch._dynamo.eval_frame.skip_code(LeanCrossEntropy.__torch_function__.__code__)


class _NegativeLogLikelihood(torch.autograd.Function):  # type: ignore[misc]
    """The loss as a function of the logits, which gives them their gradient at once.

    The logarithms of the probabilities are an operand besides, for second derivatives: these go PyTorch's own way.
    """

    @staticmethod
    def forward(ctx: Any, logits: Any, log_probabilities: Any, target: Any, reduction: int, ignore_index: int) -> Any:
        ctx.options = None, reduction, ignore_index
        loss, total_weight = _aten.nll_loss_forward(log_probabilities, target, *ctx.options)
        ctx.save_for_backward(log_probabilities, target, total_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        log_probabilities, target, total_weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = _aten.nll_loss_backward(grad, log_probabilities, target, *ctx.options, total_weight)
            return None, found, None, None, None
        gradient = torch.empty_like(log_probabilities)
        rows = max(1, PIECE_BYTES // log_probabilities[0].nbytes)
        for start in range(0, len(target), rows):
            part = slice(start, start + rows)
            own, own_grad = log_probabilities[part], grad[part] if grad.ndim else grad
            found = _aten.nll_loss_backward(own_grad, own, target[part], *ctx.options, total_weight)
            _aten._log_softmax_backward_data.out(found, own, 1, own.dtype, out=gradient[part])
        return gradient, None, None, None, None
