"""PyTorch's module `torch.optim.radam`; `spillgrad.optim.adam` defines the optimizer."""

from spillgrad.optim.adam import RAdam as RAdam
