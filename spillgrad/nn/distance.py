"""Distances as modules."""

from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.nn.module import Module
from spillgrad.ops import distance
from spillgrad.tensor import Tensor

__all__ = ["CosineSimilarity", "PairwiseDistance"]


class CosineSimilarity(FunctionLayer):
    """Compute the cosine of the angle between vectors along a dimension.

    Parameters
    ----------
    dim : int, default 1
        Dimension of the vectors.
    eps : float, default 1e-8
        Least length of a vector; a smaller one counts as `eps`.
    """

    _function = distance.cosine_similarity
    _shown = ()
    dim: int = 1
    eps: float = 1e-8


class PairwiseDistance(Module):
    """Compute the p-norm of x1 - x2 + eps along the last dimension.

    Parameters
    ----------
    p : float, default 2.0
        The p of the norm.
    eps : float, default 1e-6
        Added to the differences.
    keepdim : bool, default False
        Whether the reduced dimension stays, with size 1.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Return the distances of vectors.

        Parameters
        ----------
        x1, x2 : Tensor
            Of shape (..., D); they broadcast.

        Returns
        -------
        Tensor
            Of shape (...), or (..., 1) with `keepdim`.
        """
        return distance.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
