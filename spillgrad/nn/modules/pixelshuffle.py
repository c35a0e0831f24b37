"""PyTorch's module `torch.nn.modules.pixelshuffle`."""

from spillgrad.nn.rearrange import PixelShuffle as PixelShuffle
from spillgrad.nn.rearrange import PixelUnshuffle as PixelUnshuffle
