"""PyTorch's module `torch.optim.adagrad`; `spillgrad.optim.adaptive` defines the optimizer."""

from spillgrad.optim.adaptive import Adagrad as Adagrad
