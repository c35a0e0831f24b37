"""Train PyTorch models that do not fit your RAM.

* `save_on_disk` keeps on disk what a model's forward saves for backward;
* `disk_offload_optimizer` keeps an optimizer's state on disk.
"""

try:
    import torch
except ModuleNotFoundError as error:
    from spillgrad.errors import MissingPackageError

    if error.name != "torch":  # PyTorch is here, but not what it needs
        raise
    raise MissingPackageError(
        "spillgrad.interop.torch: got no package torch; pip install torch", name="torch"
    ) from error

from spillgrad.interop.torch.optimizer import OffloadedOptimizer, disk_offload_optimizer
from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["OffloadedOptimizer", "disk_offload_optimizer", "save_on_disk"]
