"""PyTorch's module `torch.optim.asgd`; `spillgrad.optim.adaptive` defines the optimizer."""

from spillgrad.optim.adaptive import ASGD as ASGD
