"""PyTorch's module `torch.nn.modules.conv`."""

from spillgrad.nn.conv import *
from spillgrad.nn.conv import _Conv, _ConvTranspose

_ConvNd = _Conv
_ConvTransposeNd = _ConvTranspose
