"""PyTorch's cross entropy in less memory: a language model's logits are often its largest tensors."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function_variadic

from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.interop.torch.memory import is_plain

# The gradient is computed for so many bytes of the logits at once: little beside them, and enough to cost no time.
PIECE_BYTES = 16 << 20
_aten = torch.ops.aten
_REDUCTIONS = range(3)  # ATen's numbers of none, mean and sum
_LONGS = range(-(1 << 63), 1 << 63)

# What `torch.nn.functional.cross_entropy` calls when it has seen that nobody overrides it.
_functions = torch._C._nn
_pytorchs = _functions.cross_entropy_loss


class _Entered(threading.local):
    """The contexts that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[LeanCrossEntropy] = []


_entered = _Entered()
_lock = ForkSafeLock()
_count = 0  # of contexts, in all threads


class LeanCrossEntropy:
    """Context in which the gradient of `torch.nn.functional.cross_entropy` needs two tensors of the logits' size.

    PyTorch's needs three: the logarithms of the probabilities, the gradient with respect to these, and the result. The
    second has one number in each row that is not zero; here, a few rows of it exist at a time. PyTorch's own functions
    compute each row, so losses and gradients have the same bits.

    While any thread is in such a context, `torch._C._nn` has another function for what `cross_entropy` calls. (A mode
    of PyTorch that sees all functions would change what some of them compute.) It affects threads in a context alone,
    and logits of more than `PIECE_BYTES`, of shape (rows, classes), with one class for each row, and neither weights
    nor label smoothing. PyTorch computes the rest.

    Parameters
    ----------
    takes : callable, optional
        Returns whether to affect calls with these logits. By default, the logits must be plain memory.
    """

    def __init__(self, takes: Callable[[Any], bool] = is_plain) -> None:
        self.takes = takes

    def __enter__(self) -> None:
        global _count
        _entered.contexts.append(self)
        with _lock:
            _count += 1
            if _functions.cross_entropy_loss is _pytorchs:  # else a program has put its own there
                _functions.cross_entropy_loss = _cross_entropy_loss

    def __exit__(self, *error: object) -> None:
        global _count
        _entered.contexts.pop()
        with _lock:
            _count -= 1
            if not _count and _functions.cross_entropy_loss is _cross_entropy_loss:
                _functions.cross_entropy_loss = _pytorchs


def _cross_entropy_loss(*args: Any, **kwargs: Any) -> Any:
    contexts = () if torch.compiler.is_compiling() else _entered.contexts
    if not contexts or kwargs or len(args) != 6 or not _is_affected(contexts[-1].takes, *args):
        return _pytorchs(*args, **kwargs)
    logits, target, _, reduction, ignore_index, _ = args
    return _NegativeLogLikelihood.apply(logits, torch.log_softmax(logits, 1), target, reduction, ignore_index)


# What runs between compiled parts is not compiled by itself; within them, this is.
torch._dynamo.eval_frame.skip_code(_cross_entropy_loss.__code__)


def _is_affected(
    takes: Callable[[Any], bool], logits: Any, target: Any, weight: Any, reduction: Any, ignore_index: Any,
    label_smoothing: Any,
) -> bool:  # fmt: skip
    return (
        isinstance(logits, torch.Tensor)
        and isinstance(target, torch.Tensor)
        and logits.ndim == 2
        and logits.nbytes > PIECE_BYTES
        and (target.shape, target.dtype) == (logits.shape[:1], torch.int64)
        and weight is None
        and reduction in _REDUCTIONS
        and type(ignore_index) is int
        and ignore_index in _LONGS
        and type(label_smoothing) in (int, float)
        and not label_smoothing
        and takes(logits)
        and logits.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(logits.device.type)
        and not has_torch_function_variadic(logits, target)
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def _is_batch(tensor: Any) -> bool:
    """Return whether a tensor stands for a batch of several, in a transform such as `vmap`."""
    return "Batched" in str(torch._C._dispatch_keys(tensor))  # also of the older kind, which `autograd.grad` makes


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
        if torch.is_grad_enabled() or _is_batch(grad):
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
