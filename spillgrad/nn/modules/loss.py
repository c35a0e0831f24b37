"""PyTorch's module `torch.nn.modules.loss`."""

from spillgrad.nn.loss import *
from spillgrad.nn.loss import _Loss as _Loss
