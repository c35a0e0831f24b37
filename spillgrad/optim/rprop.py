"""PyTorch's module `torch.optim.rprop`; `spillgrad.optim.adaptive` defines the optimizer."""

from spillgrad.optim.adaptive import Rprop as Rprop
