"""PyTorch's module `torch.nn.modules.instancenorm`."""

from spillgrad.nn.batch_norm import InstanceNorm1d as InstanceNorm1d
from spillgrad.nn.batch_norm import InstanceNorm2d as InstanceNorm2d
from spillgrad.nn.batch_norm import InstanceNorm3d as InstanceNorm3d
from spillgrad.nn.batch_norm import _InstanceNorm as _InstanceNorm
from spillgrad.nn.batch_norm import _TrackedNorm

_NormBase = _TrackedNorm
