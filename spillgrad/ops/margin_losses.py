"""Losses that demand a margin between the scores or distances of right and of wrong pairs or classes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, DimensionError, ShapeError
from spillgrad.ops.arithmetic import div, mul, pow, sqrt
from spillgrad.ops.array_casts import require_floats
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.clamp_where import clamp_min, minimum, where
from spillgrad.ops.distance import pairwise_distance
from spillgrad.ops.indexing import check_index, gather, index_select
from spillgrad.ops.losses import reduced
from spillgrad.ops.placement import by_host
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape, unsqueeze
from spillgrad.tensor import Tensor

__all__ = [
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


@float32_in_autocast
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return max(0, margin - target * (input1 - input2)).

    Parameters
    ----------
    input1, input2 : Tensor
        Of shapes that broadcast.
    target : Tensor
        1 wants input1 > input2, -1 wants input1 < input2.
    margin : float, default 0.0
        Difference from which on there is no loss.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the broadcast shape.
    """
    losses: Any = clamp_min(margin - target * (input1 - input2), 0.0)
    return reduced("margin_ranking_loss", losses, reduction)


@float32_in_autocast
def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """Return distances where the target is 1, and max(0, margin - distance) where it is -1.

    Parameters
    ----------
    input : Tensor
        Of any shape: the distances.
    target : Tensor
        Of the shape of `input`: 1 or -1.
    margin : float, default 1.0
        Distance from which on targets of -1 have no loss.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `input`.
    """
    alike, apart = where(target != -1, input, 0.0), where(target != 1, clamp_min(margin - input, 0.0), 0.0)
    return reduced("hinge_embedding_loss", alike + apart, reduction)


@float32_in_autocast
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return 1 - cos where the target is 1, and max(0, cos - margin) where it is -1.

    Parameters
    ----------
    input1, input2 : Tensor
        Of shape (N, D) or (D,); cos is the cosine of the angle between their rows.
    target : Tensor
        Of shape (N,) or (): 1 or -1.
    margin : float, default 0.0
        Largest cosine without loss for targets of -1.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `target`.

    Raises
    ------
    ShapeError
        For other shapes.
    """
    if input1.shape != input2.shape or input1.ndim not in (1, 2) or target.shape != input1.shape[:-1]:
        raise ShapeError(
            f"cosine_embedding_loss: got inputs {input1.shape} and {input2.shape} and target {target.shape}; wanted "
            "(N, D), (N, D) and (N,), or these without N"
        )
    lengths: list[Any] = [sum(mul(x, x), -1) + 1e-12 for x in (input1, input2)]
    cosine: Any = div(sum(mul(input1, input2), -1), sqrt(lengths[0] * lengths[1]))
    losses: Any = where(target == 1, 1 - cosine, 0.0) + where(target == -1, clamp_min(cosine - margin, 0.0), 0.0)
    return reduced("cosine_embedding_loss", losses, reduction)


@float32_in_autocast
def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return max(0, margin + distance(anchor, positive) - distance(anchor, negative)) for any distance.

    Parameters
    ----------
    anchor, positive, negative : Tensor
        What `distance_function` takes.
    distance_function : callable, optional
        Gives the distance of two tensors; by default, `pairwise_distance`.
    margin : float, default 1.0
        Difference of distances from which on there is no loss.
    swap : bool, default False
        Whether distance(positive, negative) replaces distance(anchor, negative) where it is smaller.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of the distances.

    Raises
    ------
    ArgumentError
        If `margin` is not positive.
    """
    if not margin > 0:
        raise ArgumentError(f"triplet_margin_loss: got margin={margin}; wanted a positive number")
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    losses: Any = clamp_min(margin + near - far, 0.0)
    return reduced("triplet_margin_loss", losses, reduction)


@float32_in_autocast
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return max(0, margin + distance(anchor, positive) - distance(anchor, negative)).

    Parameters
    ----------
    anchor, positive, negative : Tensor
        Of shape (..., D): the vectors.
    margin : float, default 1.0
        Difference of distances from which on there is no loss.
    p : float, default 2.0
        Order of the norm that is the distance.
    eps : float, default 1e-06
        Added to the differences of vectors.
    swap : bool, default False
        Whether distance(positive, negative) replaces distance(anchor, negative) where it is smaller.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of shape (...).

    Raises
    ------
    ArgumentError
        If `margin` is not positive.

    Notes
    -----
    Source: Balntas et al. 2016, section 3.
    """
    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=lambda a, b: pairwise_distance(a, b, p, eps), margin=margin,
        swap=swap, reduction=reduction,
    )  # fmt: skip


@float32_in_autocast
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the sum over non-target classes i of ``max(0, margin - input[target] + input[i])**p``, divided by C.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C) or (C,), of floating-point numbers.
    target : Tensor
        Of shape (N,) or (): class indices.
    p : {1, 2}, default 1
        Power of the differences.
    margin : float, default 1.0
        Difference from which on there is no loss.
    weight : Tensor, optional
        Of shape (C,): the weight of each class.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of the shape of `target`.

    Raises
    ------
    ArgumentError
        For another `p`.
    ShapeError
        If shapes do not fit.
    DimensionError
        For a class outside [0, C).
    DtypeError
        For integers and complex numbers.
    """
    require_floats("multi_margin_loss", input.dtype)
    if p not in (1, 2):
        raise ArgumentError(f"multi_margin_loss: got p={p}; accepted are 1 and 2")
    if input.ndim not in (1, 2) or target.shape != input.shape[:-1]:
        raise ShapeError(
            f"multi_margin_loss: got input {input.shape} and target {target.shape}; wanted (N, C) and (N,), or (C,) "
            "and ()"
        )
    classes = input.shape[-1]
    check_index("multi_margin_loss", target, classes, input.ndim - 1, input.shape)
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(f"multi_margin_loss: got weight {weight.shape}; wanted one for each of {classes} classes")
    own = unsqueeze(target, -1)
    losses = pow(clamp_min(margin - gather(input, input.ndim - 1, own) + input, 0.0), p)
    others = Tensor.wrap(own.array != np.arange(classes))
    if weight is not None:
        losses = mul(losses, reshape(index_select(weight, 0, reshape(target, -1)), own.shape))
    return reduced("multi_margin_loss", div(sum(where(others, losses, 0.0), -1), classes), reduction)


@float32_in_autocast
@by_host
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the sum over target classes j and other classes i of ``max(0, 1 - input[j] + input[i])``, divided by C.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C) or (C,), of floating-point numbers.
    target : Tensor
        Of the shape of `input`; a row lists its target classes, up to the first -1.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether to return the mean of the losses, their sum, or the losses themselves.

    Returns
    -------
    Tensor
        Of no dimensions; with the reduction "none", of shape (N,) or ().

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        For a class outside [0, C).
    DtypeError
        For integers and complex numbers.
    """
    require_floats("multilabel_margin_loss", input.dtype)
    if input.ndim not in (1, 2) or target.shape != input.shape:
        raise ShapeError(
            f"multilabel_margin_loss: got input {input.shape} and target {target.shape}; wanted both (N, C) or (C,)"
        )
    classes = input.shape[-1]
    places = target.array
    listed = np.cumprod(places != -1, -1).astype(np.bool_)
    kept = np.where(listed, places, 0)
    if ((kept < 0) | (kept >= classes)).any():
        raise DimensionError(f"multilabel_margin_loss: got a class outside 0 to {classes - 1}; -1 ends a row's list")
    wanted = np.zeros(places.shape, np.bool_)
    for place in zip(*np.nonzero(listed), strict=True):
        wanted[(*place[:-1], places[place])] = True
    own = gather(input, input.ndim - 1, Tensor.wrap(kept.astype(np.int64)))
    losses: Any = clamp_min(1.0 - unsqueeze(own, -1) + unsqueeze(input, -2), 0.0)
    counted = Tensor.wrap(listed[..., :, None] & ~wanted[..., None, :])
    return reduced("multilabel_margin_loss", div(sum(where(counted, losses, 0.0), (-2, -1)), classes), reduction)
