"""PyTorch's package `torch.utils.data._utils`, whose `collate` programs use."""

from spillgrad.utils.data._utils import collate

__all__ = ["collate"]
