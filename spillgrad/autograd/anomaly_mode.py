"""Context managers that find errors and NaNs in backward, under the name of PyTorch's module."""

from spillgrad.autograd.core.anomaly_mode import *  # noqa: F403
