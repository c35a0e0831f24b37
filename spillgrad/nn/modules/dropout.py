"""PyTorch's module `torch.nn.modules.dropout`."""

from spillgrad.nn.dropout import *
from spillgrad.nn.dropout import _Dropout

_DropoutNd = _Dropout
