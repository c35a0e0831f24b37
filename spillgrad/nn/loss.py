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
    """Negative log-likelihood of the target classes under the softmax of the logits.

    Shapes: logits (C,), (N, C) or (N, C, ...), target the same without C, weight of the classes (C,).
    """

    _function = losses.cross_entropy
    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0


class NLLLoss(_Loss):
    """Negative log-likelihood of the target classes, given log probabilities. Shapes: as for `CrossEntropyLoss`."""

    _function = losses.nll_loss
    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"


class MSELoss(_Loss):
    """Squared difference of input and target."""

    _function = elementwise_losses.mse_loss
    reduction: str = "mean"


class L1Loss(_Loss):
    """Absolute difference of input and target."""

    _function = elementwise_losses.l1_loss
    reduction: str = "mean"


class SmoothL1Loss(_Loss):
    """Absolute difference of input and target; below `beta`, a parabola."""

    _function = elementwise_losses.smooth_l1_loss
    reduction: str = "mean"
    beta: float = 1.0


class HuberLoss(_Loss):
    """Half the squared difference of input and target; beyond `delta`, linear."""

    _function = elementwise_losses.huber_loss
    reduction: str = "mean"
    delta: float = 1.0


class BCELoss(_Loss):
    """Binary cross entropy: the negative log probability of the target, given probabilities."""

    _function = likelihood_losses.binary_cross_entropy
    weight: Tensor | None = None
    reduction: str = "mean"


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of the target and the sigmoid of logits; `pos_weight` scales the loss of the target 1."""

    _function = elementwise_losses.binary_cross_entropy_with_logits
    weight: Tensor | None = None
    reduction: str = "mean"
    pos_weight: Tensor | None = None


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of the target from the input, which is log probabilities.

    The reduction "batchmean" is the definition of the divergence.
    """

    _function = likelihood_losses.kl_div
    reduction: str = "mean"
    log_target: bool = False


class PoissonNLLLoss(_Loss):
    """Negative log probability of counts under Poisson distributions, given rates, or their logs (`log_input`)."""

    _function = likelihood_losses.poisson_nll_loss
    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"


class GaussianNLLLoss(_Loss):
    """Negative log density of the target under normal distributions; the inputs are means, target and variances."""

    _function = likelihood_losses.gaussian_nll_loss
    _: KW_ONLY
    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * input)) for targets of 1 and -1."""

    _function = likelihood_losses.soft_margin_loss
    reduction: str = "mean"


class MultiLabelSoftMarginLoss(_Loss):
    """Binary cross entropy of logits, averaged over classes."""

    _function = likelihood_losses.multilabel_soft_margin_loss
    weight: Tensor | None = None
    reduction: str = "mean"


class MarginRankingLoss(_Loss):
    """max(0, margin - target * (input1 - input2))."""

    _function = margin_losses.margin_ranking_loss
    margin: float = 0.0
    reduction: str = "mean"


class HingeEmbeddingLoss(_Loss):
    """For inputs that are distances: the distance if the target is 1, max(0, margin - distance) if it is -1."""

    _function = margin_losses.hinge_embedding_loss
    margin: float = 1.0
    reduction: str = "mean"


class CosineEmbeddingLoss(_Loss):
    """For two vectors with a target: 1 - cosine if the target is 1, max(0, cosine - margin) if it is -1."""

    _function = margin_losses.cosine_embedding_loss
    margin: float = 0.0
    reduction: str = "mean"


class TripletMarginLoss(_Loss):
    """max(0, margin + distance of anchor and positive - distance of anchor and negative), with the p-norm."""

    _function = margin_losses.triplet_margin_loss
    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"


class TripletMarginWithDistanceLoss(_Loss):
    """max(0, margin + distance of anchor and positive - distance of anchor and negative), with a given distance."""

    _function = margin_losses.triplet_margin_with_distance_loss
    _: KW_ONLY
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"


class MultiMarginLoss(_Loss):
    """Sum of max(0, margin - input[target] + input[i])**p over the other classes i, divided by the count of classes."""

    _function = margin_losses.multi_margin_loss
    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = None
    reduction: str = "mean"


class MultiLabelMarginLoss(_Loss):
    """Sum of max(0, 1 - input[j] + input[i]) over target classes j and others i, divided by the count of classes."""

    _function = margin_losses.multilabel_margin_loss
    reduction: str = "mean"


class CTCLoss(_Loss):
    """Negative log-likelihood of the target labels over all alignments, with blanks and repeats, to a longer sequence.

    Shapes: log_probs (T, N, C), targets (N, S) or (sum of target lengths,), input and target lengths (N,).
    """

    _function = ctc.ctc_loss
    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False
