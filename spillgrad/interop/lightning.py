"""Train Lightning modules that do not fit your RAM, with a callback for Lightning's Trainer."""

from typing import Any

from spillgrad.interop.needed_package import needed_package

with needed_package("lightning"):
    from lightning.pytorch import Callback

from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["SaveOnDiskCallback"]


class SaveOnDiskCallback(Callback):  # type: ignore[misc]
    """Spill what training steps save for backward to disk, while Lightning's Trainer trains a module.

    An optimizer that `configure_optimizers` returns may be offloaded by `disk_offload_optimizer`.

    Parameters
    ----------
    directory : str, path or optimizer, optional
        Folder for the files, or the optimizer that `disk_offload_optimizer` returned.
    **options : object
        The other arguments of `spillgrad.interop.torch.save_on_disk`, such as `ram_budget`.

    Attributes
    ----------
    spill : save_on_disk
        The context, with ``stats()`` and ``flush()``.

    Raises
    ------
    SpillgradError
        As by `spillgrad.interop.torch.save_on_disk`.

    Examples
    --------
    As a callback of a Trainer::

        trainer = lightning.Trainer(callbacks=[SaveOnDiskCallback("spill/", ram_budget="2GiB")])
    """

    def __init__(self, directory: Any = None, **options: Any) -> None:
        self.spill = save_on_disk(directory, **options)
        self._is_entered = False

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Begin to spill.

        Parameters
        ----------
        *args : object
            What Lightning gives to callbacks.
        **kwargs : object
            What else Lightning gives to callbacks.
        """
        if not self._is_entered:  # still entered if a module skipped the batch before
            self.spill.__enter__()
            self._is_entered = True

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop spilling.

        Parameters
        ----------
        *args : object
            What Lightning gives to callbacks.
        **kwargs : object
            What else Lightning gives to callbacks.
        """
        if self._is_entered:
            self._is_entered = False
            self.spill.__exit__()

    on_train_end = on_train_batch_end
    on_exception = on_train_batch_end
