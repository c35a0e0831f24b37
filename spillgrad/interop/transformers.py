"""Train models of Hugging Face's transformers that do not fit your RAM, by a callback of its Trainer."""

from typing import Any

from spillgrad.interop.needed_package import needed_package

with needed_package("transformers", to_install='"transformers[torch]"'):
    from transformers import TrainerCallback

from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["SaveOnDiskCallback"]


class SaveOnDiskCallback(TrainerCallback):  # type: ignore[misc]
    """Keep what the model's forward saves for backward on disk while a Trainer trains it.

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[SaveOnDiskCallback(ram_budget="2GiB")])

    Its arguments and errors are those of `spillgrad.interop.torch.save_on_disk`; `spill` is the context that it made.
    An optimizer that `disk_offload_optimizer` returned may stand in place of the directory; give it to the Trainer too.

    Models of transformers compute their loss in forward, where labels are given. What a loss outside the model saves
    (`label_smoothing_factor`, `compute_loss_func`) stays in RAM; `with save_on_disk(...): trainer.train()` spills that
    too.
    """

    def __init__(self, directory: Any = None, **options: Any) -> None:
        self.spill = save_on_disk(directory, **options)
        self._hooks: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Begin to spill what the model saves."""
        self.on_train_end(args, state, control)  # of a training that an error ended
        # Only around forward, which leaves the context after an error too: the Trainer calls no callback then.
        self._hooks = [
            model.register_forward_pre_hook(self._enter, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the model back its own forward."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, *_: Any) -> None:
        self.spill.__enter__()

    def _leave(self, *_: Any) -> None:
        self.spill.__exit__()
