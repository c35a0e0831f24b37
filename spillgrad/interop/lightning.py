"""Train Lightning modules that do not fit your RAM, with callbacks for Lightning's Trainer."""

from typing import Any

from spillgrad.interop.needed_package import needed_package

with needed_package("lightning"):
    from lightning.pytorch import Callback

from spillgrad.errors import ArgumentError
from spillgrad.interop.torch.disk_offload import disk_offload
from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["DiskOffloadCallback", "SaveOnDiskCallback"]


class SaveOnDiskCallback(Callback):  # type: ignore[misc]
    """Spill what training steps save for backward to disk, while Lightning's Trainer trains a module.

    An optimizer that `configure_optimizers` returns may be offloaded by `disk_offload_optimizer`.

    Parameters
    ----------
    directory : str, path, disk_offload or optimizer, optional
        Folder for the files. Or an offload that `disk_offload` returned, or the optimizer that `disk_offload_optimizer`
        returned.
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


class DiskOffloadCallback(SaveOnDiskCallback):
    """Keep all of a training on disk, while Lightning's Trainer trains: model, gradients, state, saved tensors.

    When training begins, `spillgrad.interop.torch.disk_offload` takes the module and its optimizer.

    Parameters
    ----------
    directory : str or path, optional
        Folder for the files. By default, a folder of this user in the directory for temporary files.
    ram_budget : int or str
        The most bytes of all these in RAM, or a size such as "4GiB".
    **options : object
        The other arguments of `spillgrad.interop.torch.disk_offload`. With `step_in_backward`, give `max_grad_norm` in
        place of the Trainer's `gradient_clip_val`, and let each batch be a step.

    Attributes
    ----------
    offload : disk_offload or None
        The offload, from the beginning of training on; None before.
    spill : save_on_disk
        The context for saved tensors, from the beginning of training on.

    Raises
    ------
    ArgumentError
        When training begins, if there are several optimizers, or if `step_in_backward` excludes an argument of the
        Trainer.
    SpillgradError
        When training begins, as by `spillgrad.interop.torch.disk_offload`.

    Notes
    -----
    Lightning saves and resumes by its own means: the tensors of state dicts are in files until they are used.

    Examples
    --------
    As a callback of a Trainer::

        trainer = lightning.Trainer(callbacks=[DiskOffloadCallback("spill/", ram_budget="4GiB")])
    """

    def __init__(self, directory: Any = None, *, ram_budget: int | str, **options: Any) -> None:
        self.offload: disk_offload | None = None
        self._is_entered = False
        self._directory, self._options = directory, {"ram_budget": ram_budget, **options}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Offload the module and its optimizer, unless they are from an earlier training.

        Parameters
        ----------
        trainer : lightning.pytorch.Trainer
            The Trainer, which has the optimizer.
        pl_module : lightning.pytorch.LightningModule
            The module.
        """
        if self.offload is not None and self.offload.model is pl_module:
            return
        if len(trainer.optimizers) != 1:
            raise ArgumentError(
                f"DiskOffloadCallback: got {len(trainer.optimizers)} optimizers; wanted one, for all parameters"
            )
        if self._options.get("step_in_backward"):
            for name, value, none in (
                ("accumulate_grad_batches", trainer.accumulate_grad_batches, 1),
                ("gradient_clip_val", trainer.gradient_clip_val, None),
            ):
                if value != none:
                    raise ArgumentError(
                        f"DiskOffloadCallback: got step_in_backward=True and the Trainer's {name}={value}, which needs "
                        "the gradients after backward; give one of the two"
                    )
        self.offload = disk_offload(pl_module, trainer.optimizers[0], self._directory, **self._options)
        self.spill = save_on_disk(self.offload)
