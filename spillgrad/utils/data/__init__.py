"""Datasets, samplers and batches, under PyTorch's path."""

from importlib import import_module as _import_module
from typing import Any as _Any

from spillgrad.data.collate import default_collate, default_convert
from spillgrad.data.data_loader import DataLoader
from spillgrad.data.dataset import *
from spillgrad.data.distributed_sampler import *
from spillgrad.data.fetching import WorkerInfo, get_worker_info
from spillgrad.data.sampler import *


def __getattr__(name: str) -> _Any:
    """Import PyTorch's modules of these names on first use."""
    if name not in ("_utils", "dataloader", "dataset", "distributed", "sampler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_module(f"{__name__}.{name}")
