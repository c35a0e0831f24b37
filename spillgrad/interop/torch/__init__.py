"""Train PyTorch models that do not fit your RAM.

* `disk_offload` keeps a model's parameters, their gradients and the optimizer's state on disk;
* `save_on_disk` keeps on disk what a model's forward saves for backward;
* `disk_offload_optimizer` keeps an optimizer's state on disk;
* `plan` says before training where tensors should be, how much memory that needs, and how long a step takes.
"""

from spillgrad.interop.needed_package import needed_package

with needed_package("torch"):
    from spillgrad.interop.torch.disk_offload import disk_offload
    from spillgrad.interop.torch.optimizer import OffloadedOptimizer, disk_offload_optimizer
    from spillgrad.interop.torch.planning.plan import Plan, plan
    from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["OffloadedOptimizer", "Plan", "disk_offload", "disk_offload_optimizer", "plan", "save_on_disk"]
