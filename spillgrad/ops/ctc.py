"""Connectionist temporal classification: the probability of a sequence of labels, summed over all possible timings.

Source: Graves et al. 2006, "Connectionist temporal classification", equations 5 to 8.
"""

from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, ShapeError
from spillgrad.ops.arithmetic import add, div, logaddexp, mul, neg
from spillgrad.ops.array_casts import require_floats
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.clamp_where import clamp_min, where
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.getitem_setitem import getitem
from spillgrad.ops.indexing import gather
from spillgrad.ops.join_split import narrow, select, stack, unbind
from spillgrad.ops.losses import reduced
from spillgrad.ops.rearrange import constant_pad
from spillgrad.ops.reduce import mean
from spillgrad.ops.shape import reshape, unsqueeze
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import beside

__all__ = ["ctc_loss"]

# Stands for the logarithm of 0. It is finite, so that no gradient is infinity minus infinity.
_NONE = -1e30


def _lengths(what: str, given: Any, batch: int) -> np.ndarray:
    lengths = np.asarray(given.host_array() if isinstance(given, Tensor) else given)
    if lengths.dtype.kind not in "iu":
        raise DtypeError(f"ctc_loss: {what} must be integral, got {lengths.dtype}")
    if lengths.size != batch:
        raise ShapeError(f"ctc_loss: {what} must be of size batch_size: got {lengths.size} for a batch of {batch}")
    return lengths.reshape(batch).astype(np.int64)


def _labels(targets: Tensor, lengths: np.ndarray, alone: bool) -> np.ndarray:
    """Return a row of labels per sequence, padded with zeros; `alone` says that there is no batch dimension."""
    if targets.dtype.kind not in "iu":
        raise DtypeError(f"ctc_loss: got targets of {targets.dtype}; wanted class indices: convert them to int64")
    longest = int(lengths.max(initial=0))
    values = targets.host_array()
    if values.ndim == 2 or (alone and values.ndim == 1):
        rows = values.reshape(-1, values.shape[-1])
        if len(rows) != len(lengths) or longest > rows.shape[1]:
            raise ShapeError(
                f"ctc_loss: got targets {targets.shape} and target_lengths {lengths.tolist()}; wanted a row for each "
                "sequence, as long as the longest"
            )
        rows = rows[:, :longest]
    elif values.ndim == 1 and values.size == lengths.sum():
        rows = np.zeros((len(lengths), longest), np.int64)
        rows[np.arange(longest) < lengths[:, None]] = values
    else:
        raise ShapeError(
            f"ctc_loss: got targets {targets.shape} and target_lengths {lengths.tolist()}; wanted two dimensions, or "
            f"all labels in one: {lengths.sum()} of them"
        )
    return np.where(np.arange(longest) < lengths[:, None], rows, 0).astype(np.int64)


@float32_in_autocast
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Return the negative log probability of labels, read in order, with blanks or repeats between them.

    The gradient is the derivative by `log_probs` itself, and can be differentiated again. (PyTorch's gradient assumes
    that log_softmax made `log_probs`; the input of log_softmax gets the same gradient from both.)

    Parameters
    ----------
    log_probs : Tensor
        Log probabilities of C classes at T times, of shape (T, N, C) or (T, C).
    targets : Tensor
        Labels, 0 to C - 1 without `blank`: of shape (N, S), or all in one dimension.
    input_lengths, target_lengths : Tensor or sequence of int
        Numbers of times and of labels, of shape (N,) or ().
    blank : int, default 0
        Class that stands for no label.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the result is the mean of the losses, their sum, or each of them; "mean" first divides each loss by the
        length of its target.
    zero_infinity : bool, default False
        Whether loss and gradient are 0 where the loss is infinite: where a target is too long for its input.

    Returns
    -------
    Tensor
        Of shape (N,) or () for "none", otherwise ().

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If labels or lengths are not integers, or log probabilities are not floating-point numbers.
    ArgumentError
        If an option or a length is out of range.
    DimensionError
        If a label is outside [0, C).
    """
    name = "ctc_loss"
    require_floats(name, log_probs.dtype)
    if reduction not in ("none", "sum", "mean"):
        raise ArgumentError(f'{name}: got reduction={reduction!r}; accepted are "mean", "sum" and "none"')
    if log_probs.ndim not in (2, 3):
        raise ShapeError(f"{name}: got log_probs {log_probs.shape}; wanted (T, N, C), or (T, C) without a batch")
    alone = log_probs.ndim == 2
    scores = unsqueeze(log_probs, 1) if alone else log_probs
    steps, batch, classes = scores.shape
    if not 0 <= blank < classes:
        raise ArgumentError(f"{name}: blank must be in label range: got {blank} for {classes} classes")
    inputs = _lengths("input_lengths", input_lengths, batch)
    lengths = _lengths("target_lengths", target_lengths, batch)
    if inputs.size and not (inputs.min() >= 0 and inputs.max() <= steps):
        raise ArgumentError(
            f"{name}: Expected input_lengths to have value at most {steps} and at least 0, but got {inputs.tolist()}"
        )
    if lengths.size and lengths.min() < 0:
        raise ArgumentError(f"{name}: Expected target_lengths to be at least 0, but got {lengths.tolist()}")
    labels = _labels(targets, lengths, alone)
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise DimensionError(f"{name}: got labels {labels.min()} to {labels.max()}; {classes} classes take 0 on")
    half = scores.dtype in dtypes.HALF
    losses = neg(_log_probability(to_dtype(scores, dtypes.float32) if half else scores, labels, inputs, lengths, blank))
    impossible = losses.detach() > -_NONE / 10
    losses = where(impossible, 0.0, losses) if zero_infinity else mul(losses, where(impossible, np.inf, 1.0))
    losses = to_dtype(losses, log_probs.dtype)
    if reduction == "mean":
        return mean(div(losses, Tensor.wrap(beside(losses.array, np.maximum(lengths, 1).astype(losses.dtype)))))
    return reduced(name, reshape(losses, ()) if alone else losses, reduction)


def _log_probability(scores: Tensor, labels: np.ndarray, inputs: np.ndarray, lengths: np.ndarray, blank: int) -> Tensor:
    """Return the log probability of each sequence of labels, by a recursion over time.

    A state is the log probability of having read the labels up to a position, with blanks between them.
    """

    def there(array: np.ndarray) -> Tensor:
        return Tensor.wrap(beside(scores.array, array))

    steps, batch, _ = scores.shape
    path = np.full((batch, 2 * labels.shape[1] + 1), blank)
    path[:, 1::2] = labels
    width = path.shape[1]
    # A blank between two labels can be passed over, unless they are equal.
    passes = np.zeros(path.shape, np.bool_)
    passes[:, 3::2] = labels[:, 1:] != labels[:, :-1]
    begins = np.arange(width) <= np.minimum(lengths, 1)[:, None]
    if not steps:
        return there(np.where(lengths == 0, 0.0, _NONE).astype(scores.dtype))
    places = there(np.ascontiguousarray(np.broadcast_to(path, (steps, *path.shape))))
    emitted = unbind(gather(clamp_min(scores, _NONE), 2, places))
    state: Any = where(there(begins), emitted[0], _NONE)
    states = [state]
    can_pass = there(passes)
    for emission in emitted[1:]:
        before = constant_pad(state, ((0, 0), (2, 0)), _NONE)
        stayed_or_moved = logaddexp(state, narrow(before, 1, 1, width))
        passed = where(can_pass, narrow(before, 1, 0, width), _NONE)
        state = add(logaddexp(stayed_or_moved, passed), emission)
        states.append(state)
    if (inputs != steps).any():
        state = getitem(stack(states), (there(np.maximum(inputs - 1, 0)), there(np.arange(batch))))
    ends = gather(state, 1, there(np.stack([2 * lengths, np.maximum(2 * lengths - 1, 0)], 1)))
    last_label = where(there(lengths > 0), select(ends, 1, 1), _NONE)
    total = logaddexp(select(ends, 1, 0), last_label)
    if (inputs == 0).any():
        nothing_read = there(np.where(lengths == 0, 0.0, _NONE).astype(scores.dtype))
        total = where(there(inputs == 0), nothing_read, total)
    return total
