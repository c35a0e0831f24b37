"""PyTorch's module `torch.optim.adamax`; `spillgrad.optim.adam` defines the optimizer."""

from spillgrad.optim.adam import Adamax as Adamax
