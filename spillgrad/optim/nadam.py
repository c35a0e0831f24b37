"""PyTorch's module `torch.optim.nadam`; `spillgrad.optim.adam` defines the optimizer."""

from spillgrad.optim.adam import NAdam as NAdam
