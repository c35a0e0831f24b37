"""PyTorch's package `torch.distributed`: processes that work together, on one machine or several, over MPI.

A process that no launcher started is a group of its own, in which collectives give what they are given.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from spillgrad.distributed.collectives import *
from spillgrad.distributed.messages import *
from spillgrad.distributed.objects import *
from spillgrad.distributed.process_group import *

if _TYPE_CHECKING:
    from spillgrad.distributed.fsdp import fully_shard as fully_shard


def __getattr__(name: str) -> _Any:
    """Import `fully_shard` on first use: it is made of parts of `disk_offload`, which import this package."""
    if name != "fully_shard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_module("spillgrad.distributed.fsdp").fully_shard
