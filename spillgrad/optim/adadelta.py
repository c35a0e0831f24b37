"""PyTorch's module `torch.optim.adadelta`; `spillgrad.optim.adaptive` defines the optimizer."""

from spillgrad.optim.adaptive import Adadelta as Adadelta
