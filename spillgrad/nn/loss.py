"""Losses as modules."""

from spillgrad.nn.module import Module
from spillgrad.ops import losses
from spillgrad.tensor import Tensor


class CrossEntropyLoss(Module):
    """Negative log-likelihood of the target classes under softmax of the logits.

    Shapes: logits (C,), (N, C) or (N, C, ...), target the same without C, weight of the classes (C,).
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return losses.cross_entropy(
            logits, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class MSELoss(Module):
    """Squared difference of input and target."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return losses.mse_loss(x, target, reduction=self.reduction)
