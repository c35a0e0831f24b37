"""PyTorch's module `torch.nn.modules.batchnorm`."""

from spillgrad.nn.batch_norm import BatchNorm1d as BatchNorm1d
from spillgrad.nn.batch_norm import BatchNorm2d as BatchNorm2d
from spillgrad.nn.batch_norm import BatchNorm3d as BatchNorm3d
from spillgrad.nn.batch_norm import SyncBatchNorm as SyncBatchNorm
from spillgrad.nn.batch_norm import _BatchNorm as _BatchNorm
from spillgrad.nn.batch_norm import _TrackedNorm

_NormBase = _TrackedNorm
