"""PyTorch's module `torch.optim.rmsprop`; `spillgrad.optim.adaptive` defines the optimizer."""

from spillgrad.optim.adaptive import RMSprop as RMSprop
