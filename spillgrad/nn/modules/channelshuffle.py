"""PyTorch's module `torch.nn.modules.channelshuffle`."""

from spillgrad.nn.rearrange import ChannelShuffle as ChannelShuffle
