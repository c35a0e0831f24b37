"""PyTorch's module `torch.optim.adamw`; `spillgrad.optim.adam` defines the optimizer."""

from spillgrad.optim.adam import AdamW as AdamW
