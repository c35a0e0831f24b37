"""A softmax over many classes that computes only the clusters of rare classes that occur."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from spillgrad.device.device import moved
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn.containers import ModuleList, Sequential
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.ops.indexing import gather, index_add, index_select
from spillgrad.ops.join_split import cat
from spillgrad.ops.normalization import log_softmax
from spillgrad.ops.shape import squeeze, unsqueeze
from spillgrad.tensor import Tensor

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class TargetsAndLoss(NamedTuple):
    """The logarithms of the targets' probabilities, and the negative of their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """The log probabilities of target classes, and their mean loss, of classes that are sorted from frequent to rare.

    The head tells the classes below ``cutoffs[0]`` apart, and the clusters between two cutoffs. A cluster's classes are
    told apart by a linear layer of fewer features, ``in_features // div_value ** i`` for the i-th, counted from 1.

    Parameters
    ----------
    in_features : int
        Size of the input's last dimension.
    n_classes : int
        Number of classes.
    cutoffs : sequence of int
        First class of each cluster, in increasing order, between 1 and ``n_classes - 1``.
    div_value : float, default 4.0
        How many times fewer features each cluster has than the one before.
    head_bias : bool, default False
        Whether the head has a bias.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default dtype.

    Raises
    ------
    ArgumentError
        For cutoffs that do not increase, or are out of range.

    Notes
    -----
    Source: Grave et al. 2017, "Efficient softmax approximation for GPUs".
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ArgumentError("cutoffs should be a sequence of length larger than 0")
        whole = all(int(cutoff) == cutoff for cutoff in cutoffs)
        if not whole or cutoffs != sorted({*cutoffs}) or cutoffs[0] <= 0 or cutoffs[-1] > n_classes - 1:
            raise ArgumentError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each "
                f"value is between 1 and n_classes-1; got {cutoffs} and {n_classes} classes"
            )
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = cutoffs[0], len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        options = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **options)
        self.tail = ModuleList()
        for i, (first, stop) in enumerate(pairwise(self.cutoffs), 1):
            features = int(in_features // div_value**i)
            narrower = Linear(in_features, features, bias=False, **options)
            self.tail.append(Sequential(narrower, Linear(features, stop - first, bias=False, **options)))

    def reset_parameters(self) -> None:
        """Draw all weights anew, as `Linear` does."""
        self.head.reset_parameters()
        for projection in self.tail:
            for layer in projection.children():
                layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> TargetsAndLoss:
        """Return the log probabilities of the target classes, and their mean loss.

        Parameters
        ----------
        input_ : Tensor
            Of shape (N, in_features), or (in_features,).
        target_ : Tensor
            Classes, of shape (N,), or ().

        Returns
        -------
        tuple
            ``output``, the log probabilities in the shape of the target, and ``loss``, of shape ().

        Raises
        ------
        ShapeError
            For shapes that do not fit.
        ArgumentError
            For a target that is no class.
        """
        if target_.ndim > 1:
            raise ShapeError("0D or 1D target tensor expected, multi-target not supported")
        if input_.ndim != target_.ndim + 1:
            raise ShapeError(
                f"{target_.ndim}D target tensor expects {target_.ndim + 1}D input tensors, but found inputs with size "
                f"{tuple(input_.shape)}"
            )
        if target_.ndim and input_.shape[0] != target_.shape[0]:
            raise ShapeError("Input and target should have the same size in the batch dimension.")
        input = input_ if target_.ndim else unsqueeze(input_, 0)
        targets = np.atleast_1d(target_.host_array())
        if targets.size and not 0 <= targets.min() <= targets.max() < self.n_classes:
            raise ArgumentError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range [{targets.min()}, "
                f"{targets.max()}] were found."
            )

        def on_device(numbers: np.ndarray) -> Tensor:
            return Tensor.wrap(moved(np.ascontiguousarray(numbers, np.int64), input.device))

        clusters = np.searchsorted(self.cutoffs, targets, side="right")
        in_head = np.where(clusters == 0, targets, self.shortlist_size + clusters - 1)
        output = squeeze(gather(log_softmax(self.head(input), 1), 1, on_device(in_head[:, None])), 1)
        for cluster in np.unique(clusters[clusters > 0]):
            rows = np.flatnonzero(clusters == cluster)
            within = log_softmax(self.tail[cluster - 1](index_select(input, 0, on_device(rows))), 1)
            places = on_device((targets[rows] - self.cutoffs[cluster - 1])[:, None])
            output = index_add(output, 0, on_device(rows), squeeze(gather(within, 1, places), 1))
        loss = (-output).mean()
        return TargetsAndLoss(output if target_.ndim else squeeze(output, 0), loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the log probabilities of all classes.

        Parameters
        ----------
        input : Tensor
            Of shape (N, in_features).

        Returns
        -------
        Tensor
            Of shape (N, n_classes).
        """
        head = log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i, projection in enumerate(self.tail):
            place = self.shortlist_size + i
            parts.append(log_softmax(projection(input), 1) + head[:, place : place + 1])
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """Return the most likely class of each row.

        Parameters
        ----------
        input : Tensor
            Of shape (N, in_features).

        Returns
        -------
        Tensor
            Of shape (N,).
        """
        found: Tensor = self.head(input).argmax(1)
        if bool((found < self.shortlist_size).all()):
            return found
        return self.log_prob(input).argmax(1).where(found >= self.shortlist_size, found)  # type: ignore[no-any-return]
