"""PyTorch's module `torch.nn.modules.fold`."""

from spillgrad.nn.rearrange import Fold as Fold
from spillgrad.nn.rearrange import Unfold as Unfold
