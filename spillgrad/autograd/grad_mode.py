"""Context managers that switch recording on and off, under the name of PyTorch's module."""

from spillgrad.autograd.core.grad_mode import *  # noqa: F403
from spillgrad.autograd.core.multithreading import set_multithreading_enabled as set_multithreading_enabled
