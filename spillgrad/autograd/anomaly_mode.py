"""PyTorch's module of contexts that find errors and NaNs in backward."""

from spillgrad.autograd.core.anomaly_mode import *  # noqa: F403
