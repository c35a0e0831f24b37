"""PyTorch's module of contexts that switch recording on and off."""

from spillgrad.autograd.core.grad_mode import *  # noqa: F403
