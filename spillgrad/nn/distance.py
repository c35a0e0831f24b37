"""Distances as modules."""

from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.nn.module import Module
from spillgrad.ops import distance
from spillgrad.tensor import Tensor

__all__ = ["CosineSimilarity", "PairwiseDistance"]


class CosineSimilarity(FunctionLayer):
    """The cosine of the angle between vectors along a dimension; a vector's length counts as at least `eps`."""

    _function = distance.cosine_similarity
    _shown = ()
    dim: int = 1
    eps: float = 1e-8


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last dimension."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return distance.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
