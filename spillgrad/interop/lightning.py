"""Train Lightning modules that do not fit your RAM, by a callback of its Trainer."""

from typing import Any

from spillgrad.interop.needed_package import needed_package

with needed_package("lightning"):
    from lightning.pytorch import Callback

from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["SaveOnDiskCallback"]


class SaveOnDiskCallback(Callback):  # type: ignore[misc]
    """Keep what training steps save for backward on disk.

        trainer = lightning.Trainer(callbacks=[SaveOnDiskCallback("spill/", ram_budget="2GiB")])

    Its arguments and errors are those of `spillgrad.interop.torch.save_on_disk`; `spill` is the context that it made.
    An optimizer that `configure_optimizers` returns may be offloaded by `disk_offload_optimizer`.
    """

    def __init__(self, directory: Any = None, **options: Any) -> None:
        self.spill = save_on_disk(directory, **options)
        self._is_entered = False

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Begin to spill."""
        if not self._is_entered:  # a module may have skipped the batch before
            self.spill.__enter__()
            self._is_entered = True

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop spilling."""
        if self._is_entered:
            self._is_entered = False
            self.spill.__exit__()

    on_train_end = on_train_batch_end
    on_exception = on_train_batch_end
