"""PyTorch's module `torch.nn.modules.flatten`."""

from spillgrad.nn.rearrange import Flatten as Flatten
from spillgrad.nn.rearrange import Unflatten as Unflatten
