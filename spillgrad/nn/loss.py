"""Losses as modules: each calls the function of its name with fixed options."""

from collections.abc import Callable
from dataclasses import KW_ONLY

from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.ops import ctc, elementwise_losses, likelihood_losses, losses, margin_losses
from spillgrad.tensor import Tensor

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss",
    "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss",
    "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss",
    "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip


class _Loss(FunctionLayer):
    """The base of losses: tensors among the options are buffers, and the representation shows no options."""

    _shown = ()

    def _set_up(self) -> None:
        for name in ("weight", "pos_weight"):
            if name in self._options:
                tensor = getattr(self, name)
                delattr(self, name)
                self.register_buffer(name, tensor)


class CrossEntropyLoss(_Loss):
    """Compute the negative log-likelihood of the target classes under the softmax of the logits.

    The logits have shape (C,), (N, C) or (N, C, ...). The target has class indices in the same shape without C, or
    probabilities in the same shape.

    Parameters
    ----------
    weight : Tensor, optional
        Of shape (C,): factors of the losses of the classes; by default, all are 1.
    ignore_index : int, default -100
        Class index of targets that do not count.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses are averaged, summed or returned as they are. The mean is weighted by `weight`, and leaves
        `ignore_index` out.
    label_smoothing : float, default 0.0
        Share of the target's probability that all classes get alike, from 0 to 1.

    Examples
    --------
    >>> import spillgrad as sg
    >>> logits = sg.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> sg.nn.CrossEntropyLoss(reduction="none")(logits, sg.tensor([0, 1]))
    tensor([0.1269, 0.6931])
    """

    _function = losses.cross_entropy
    weight: Tensor | None = None
    ignore_index: int = losses.IGNORE_INDEX
    reduction: str = "mean"
    label_smoothing: float = 0.0


class NLLLoss(_Loss):
    """Compute the negative log-likelihood of the target classes, given log probabilities.

    Shapes are as for `CrossEntropyLoss`.

    Parameters
    ----------
    weight : Tensor, optional
        Of shape (C,): factors of the losses of the classes; by default, all are 1.
    ignore_index : int, default -100
        Class index of targets that do not count.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses are averaged, summed or returned as they are. The mean is weighted by `weight`, and leaves
        `ignore_index` out.
    """

    _function = losses.nll_loss
    weight: Tensor | None = None
    ignore_index: int = losses.IGNORE_INDEX
    reduction: str = "mean"


class MSELoss(_Loss):
    """Compute the squared difference of input and target.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.nn.MSELoss()(sg.tensor([1.0, 2.0]), sg.tensor([1.0, 4.0]))
    tensor(2.)
    """

    _function = elementwise_losses.mse_loss
    reduction: str = "mean"


class L1Loss(_Loss):
    """Compute the absolute difference of input and target.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = elementwise_losses.l1_loss
    reduction: str = "mean"


class SmoothL1Loss(_Loss):
    """Compute the absolute difference of input and target; below `beta`, a parabola.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    beta : float, default 1.0
        Difference up to which the loss is a parabola; 0 gives the absolute difference.
    """

    _function = elementwise_losses.smooth_l1_loss
    reduction: str = "mean"
    beta: float = 1.0


class HuberLoss(_Loss):
    """Compute half the squared difference of input and target; beyond `delta`, go on linearly.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    delta : float, default 1.0
        Difference up to which the loss is a parabola; it is positive.
    """

    _function = elementwise_losses.huber_loss
    reduction: str = "mean"
    delta: float = 1.0


class BCELoss(_Loss):
    """Compute the binary cross entropy: the negative log probability of the target, given probabilities.

    Input and target have the same shape.

    Parameters
    ----------
    weight : Tensor, optional
        Factors of the losses; it broadcasts to the input.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = likelihood_losses.binary_cross_entropy
    weight: Tensor | None = None
    reduction: str = "mean"


class BCEWithLogitsLoss(_Loss):
    """Compute the binary cross entropy of the target and the sigmoid of logits.

    Input and target have the same shape.

    Parameters
    ----------
    weight : Tensor, optional
        Factors of the losses; it broadcasts to the input.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    pos_weight : Tensor, optional
        Factors of the loss of the target 1; it broadcasts to the input.
    """

    _function = elementwise_losses.binary_cross_entropy_with_logits
    weight: Tensor | None = None
    reduction: str = "mean"
    pos_weight: Tensor | None = None


class KLDivLoss(_Loss):
    """Compute the Kullback-Leibler divergence of the target from the input, which is log probabilities.

    Parameters
    ----------
    reduction : {"mean", "batchmean", "sum", "none"}, default "mean"
        How the losses of all elements become the result; "batchmean", the sum divided by the first size, is the
        definition of the divergence.
    log_target : bool, default False
        Whether the target holds logarithms of probabilities.
    """

    _function = likelihood_losses.kl_div
    reduction: str = "mean"
    log_target: bool = False


class PoissonNLLLoss(_Loss):
    """Compute the negative log probability of counts under Poisson distributions, given rates or their logs.

    Parameters
    ----------
    log_input : bool, default True
        Whether the input holds logarithms of rates.
    full : bool, default False
        Whether the loss includes Stirling's approximation of the logarithm of the factorial.
    eps : float, default 1e-8
        Added to rates before their logarithm is taken, unless `log_input`.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = likelihood_losses.poisson_nll_loss
    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"


class GaussianNLLLoss(_Loss):
    """Compute the negative log density of the target under normal distributions.

    The inputs are means, target and variances.

    Parameters
    ----------
    full : bool, default False
        Whether the loss includes the constant log(2π) / 2.
    eps : float, default 1e-6
        Least variance; smaller ones are raised to it.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = likelihood_losses.gaussian_nll_loss
    _: KW_ONLY
    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"


class SoftMarginLoss(_Loss):
    """Compute log(1 + exp(-target * input)) for targets of 1 and -1.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = likelihood_losses.soft_margin_loss
    reduction: str = "mean"


class MultiLabelSoftMarginLoss(_Loss):
    """Compute the binary cross entropy of logits, averaged over classes.

    Parameters
    ----------
    weight : Tensor, optional
        Of shape (C,): factors of the losses of the classes; by default, all are 1.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = likelihood_losses.multilabel_soft_margin_loss
    weight: Tensor | None = None
    reduction: str = "mean"


class MarginRankingLoss(_Loss):
    """Compute max(0, margin - target * (input1 - input2)).

    A target of 1 wants input1 to be larger, -1 wants input2 to be larger.

    Parameters
    ----------
    margin : float, default 0.0
        Difference from which the loss is 0.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = margin_losses.margin_ranking_loss
    margin: float = 0.0
    reduction: str = "mean"


class HingeEmbeddingLoss(_Loss):
    """Compute, of distances, the distance if the target is 1, max(0, margin - distance) if it is -1.

    Parameters
    ----------
    margin : float, default 1.0
        Distance from which the loss of the target -1 is 0.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = margin_losses.hinge_embedding_loss
    margin: float = 1.0
    reduction: str = "mean"


class CosineEmbeddingLoss(_Loss):
    """Compute, of two vectors, 1 - cosine if the target is 1, max(0, cosine - margin) if it is -1.

    The inputs have shape (N, D) and the target (N,); or (D,) and ().

    Parameters
    ----------
    margin : float, default 0.0
        Cosine up to which the loss of the target -1 is 0.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = margin_losses.cosine_embedding_loss
    margin: float = 0.0
    reduction: str = "mean"


class TripletMarginLoss(_Loss):
    """Compute max(0, margin + distance of anchor and positive - distance of anchor and negative), with the p-norm.

    Parameters
    ----------
    margin : float, default 1.0
        Difference of the distances from which the loss is 0; it is positive.
    p : float, default 2.0
        The p of the norm.
    eps : float, default 1e-6
        Added to differences before the norm is taken.
    swap : bool, default False
        Whether the distance of positive and negative counts where it is smaller than that of anchor and negative.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.

    Notes
    -----
    Source: Balntas et al. 2016, section 3.
    """

    _function = margin_losses.triplet_margin_loss
    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"


class TripletMarginWithDistanceLoss(_Loss):
    """Compute max(0, margin + distance of anchor and positive - distance of anchor and negative), by a given distance.

    Parameters
    ----------
    distance_function : callable, optional
        Returns the distances of two tensors; by default, `pairwise_distance`.
    margin : float, default 1.0
        Difference of the distances from which the loss is 0; it is positive.
    swap : bool, default False
        Whether the distance of positive and negative counts where it is smaller than that of anchor and negative.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = margin_losses.triplet_margin_with_distance_loss
    _: KW_ONLY
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"


class MultiMarginLoss(_Loss):
    """Compute the sum of ``max(0, margin - input[target] + input[i]) ** p`` over the other classes i, divided by C.

    The input has shape (N, C) or (C,), the target, class indices, (N,) or ().

    Parameters
    ----------
    p : int, default 1
        Exponent.
    margin : float, default 1.0
        Difference of the scores from which the loss is 0.
    weight : Tensor, optional
        Of shape (C,): factors of the losses of the classes; by default, all are 1.
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = margin_losses.multi_margin_loss
    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = None
    reduction: str = "mean"


class MultiLabelMarginLoss(_Loss):
    """Compute the sum of ``max(0, 1 - input[j] + input[i])`` over target classes j and others i, divided by C.

    Input and target have shape (N, C) or (C,); a row of the target lists its target classes, up to the first -1.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses of all elements are averaged, summed or returned as they are.
    """

    _function = margin_losses.multilabel_margin_loss
    reduction: str = "mean"


class CTCLoss(_Loss):
    """Compute the negative log-likelihood of labels over all their alignments to a longer sequence.

    An alignment has blanks and repeats between the labels. The shapes are: log_probs (T, N, C), targets (N, S) or
    (sum of target lengths,), input and target lengths (N,).

    Parameters
    ----------
    blank : int, default 0
        Class that means "no label".
    reduction : {"mean", "sum", "none"}, default "mean"
        Whether the losses are averaged, summed or returned as they are. The mean is of each loss divided by the length
        of its target.
    zero_infinity : bool, default False
        Whether a target that is too long for its input has the loss and gradient 0; otherwise its loss is infinite.
    """

    _function = ctc.ctc_loss
    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False
