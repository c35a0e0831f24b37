"""PyTorch's module `torch.utils.data.dataloader`; `spillgrad.data` defines all these names."""

from spillgrad.data.collate import default_collate, default_convert
from spillgrad.data.data_loader import DataLoader
from spillgrad.data.fetching import get_worker_info

__all__ = ["DataLoader", "default_collate", "default_convert", "get_worker_info"]
