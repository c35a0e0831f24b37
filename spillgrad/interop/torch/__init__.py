"""Train PyTorch models that do not fit your RAM.

* `save_on_disk` keeps on disk what a model's forward saves for backward;
* `disk_offload_optimizer` keeps an optimizer's state on disk.
"""

from spillgrad.interop.needed_package import needed_package

with needed_package("torch"):
    from spillgrad.interop.torch.optimizer import OffloadedOptimizer, disk_offload_optimizer
    from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["OffloadedOptimizer", "disk_offload_optimizer", "save_on_disk"]
