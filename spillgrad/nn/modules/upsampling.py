"""PyTorch's module `torch.nn.modules.upsampling`."""

from spillgrad.nn.upsample import *
