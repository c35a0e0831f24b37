"""PyTorch's package `torch.nn.attention`: the kernels of attention to choose from; here, one kernel does them all."""

from spillgrad.nn.attention.kernel_choice import *
