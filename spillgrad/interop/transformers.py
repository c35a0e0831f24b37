"""Train models of Hugging Face's transformers that do not fit your RAM, with a callback for its Trainer."""

from typing import Any

from spillgrad.interop.needed_package import needed_package

with needed_package("transformers", to_install='"transformers[torch]"'):
    from transformers import TrainerCallback

from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["SaveOnDiskCallback"]


class SaveOnDiskCallback(TrainerCallback):  # type: ignore[misc]
    """Spill what a model's forward saves for backward to disk, while Hugging Face's Trainer trains the model.

    Parameters
    ----------
    directory : str, path or optimizer, optional
        Folder for the files, or the optimizer that `disk_offload_optimizer` returned, which is passed to the Trainer
        too.
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

    Notes
    -----
    Models of transformers compute their loss in forward, if labels are given. What a loss outside the model saves
    (`label_smoothing_factor`, `compute_loss_func`) stays in RAM; ``with save_on_disk(...): trainer.train()`` spills
    these tensors too.

    Examples
    --------
    As a callback of a Trainer::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[SaveOnDiskCallback(ram_budget="2GiB")])
    """

    def __init__(self, directory: Any = None, **options: Any) -> None:
        self.spill = save_on_disk(directory, **options)
        self._hooks: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Begin to spill what the model saves.

        Parameters
        ----------
        args, state, control : object
            What the Trainer gives to callbacks.
        model : torch.nn.Module
            The model.
        **kwargs : object
            What else the Trainer gives to callbacks.
        """
        self.on_train_end(args, state, control)  # removes the hooks of a training that an error ended
        # Around forward only: its hook leaves the context after an error too, when the Trainer calls no callback.
        self._hooks = [
            model.register_forward_pre_hook(self._enter, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop spilling: remove the hooks from the model.

        Parameters
        ----------
        args, state, control : object
            What the Trainer gives to callbacks.
        **kwargs : object
            What else the Trainer gives to callbacks.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, *_: Any) -> None:
        self.spill.__enter__()

    def _leave(self, *_: Any) -> None:
        self.spill.__exit__()
