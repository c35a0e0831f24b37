"""PyTorch's module `torch.nn.modules.rnn`."""

from spillgrad.nn.rnn import *
from spillgrad.nn.rnn import RNNCellBase as RNNCellBase
