"""Train models of Hugging Face's transformers that do not fit your RAM.

* `load` reads a model from a folder to disk, parameter by parameter;
* `SaveOnDiskCallback` and `DiskOffloadCallback` are for the Trainer of transformers.
"""

import os
from pathlib import Path
from typing import Any

from spillgrad.interop.needed_package import needed_package

with needed_package("transformers", to_install='"transformers[torch]"'):
    import transformers
    from transformers import TrainerCallback

from spillgrad.errors import ArgumentError
from spillgrad.interop.torch.disk_offload import disk_offload
from spillgrad.interop.torch.saved_tensors import save_on_disk

__all__ = ["DiskOffloadCallback", "SaveOnDiskCallback", "load"]

# With it, transformers reads one tensor after another. Else its threads read ahead, as far as they get.
_READS_IN_ORDER = "HF_DEACTIVATE_ASYNC_LOAD"


def load(
    folder: str | os.PathLike[str],
    optimizer: Any = None,
    directory: str | os.PathLike[str] | None = None,
    *,
    ram_budget: int | str,
    step_in_backward: bool = False,
    max_grad_norm: float | None = None,
    direct_io: bool | None = None,
    checksums: bool = True,
    on_full: str = "raise",
    keep_journal: str | os.PathLike[str] | None = None,
    state: str | None = None,
    model_class: Any = None,
    **arguments: Any,
) -> disk_offload:
    """Load a model of transformers from a folder to disk, without room for it in RAM.

    Parameters
    ----------
    folder : str or path
        What ``save_pretrained`` wrote: ``config.json`` and weights, best in safetensors files, one or several.
    optimizer : torch.optim.Optimizer or callable, optional
        As for `spillgrad.interop.torch.disk_offload`: a function that makes the optimizer from the list of parameters
        that require gradients.
    directory, ram_budget, step_in_backward, max_grad_norm, direct_io, checksums, on_full, keep_journal : optional
        As for `spillgrad.interop.torch.disk_offload`.
    state : {"float32", "bf16", "int8"}, optional
        The format of the optimizer's state, as for `spillgrad.interop.torch.disk_offload`.
    model_class : type, optional
        Class of transformers whose ``from_pretrained`` loads the model. By default, AutoModelForCausalLM.
    **arguments : object
        Further arguments of ``from_pretrained``, such as ``dtype=torch.bfloat16``.

    Returns
    -------
    disk_offload
        Its `model` is the loaded model, and its `optimizer` the optimizer.

    Raises
    ------
    ArgumentError
        If `folder` is no folder with a ``config.json``.
    SpillgradError
        As by `spillgrad.interop.torch.disk_offload`.

    Notes
    -----
    transformers itself reads the weights, so renamed, merged and sharded weights work. Each parameter goes to disk when
    transformers puts it into the model.

    Adapters of peft can be added: ``peft.get_peft_model(offload.model, config)``. The frozen base stays on disk; the
    adapters and their optimizer are in RAM.

    Examples
    --------
    Train a model from a folder::

        offload = load("llama/", lambda params: torch.optim.AdamW(params, lr=1e-5), ram_budget="8GiB")
        for batch in data:
            with save_on_disk(offload):
                loss = offload.model(**batch).loss
            loss.backward()
            offload.optimizer.step()
            offload.optimizer.zero_grad()
        offload.model.save_pretrained("llama-tuned/")
    """
    if not (Path(folder) / "config.json").is_file():
        raise ArgumentError(
            f"load: got {str(folder)!r}; wanted a folder that save_pretrained wrote, with a config.json"
        )
    kind = transformers.AutoModelForCausalLM if model_class is None else model_class

    def build() -> Any:
        before = os.environ.get(_READS_IN_ORDER)
        os.environ[_READS_IN_ORDER] = "1"
        try:
            return kind.from_pretrained(folder, **{"local_files_only": True, **arguments})
        finally:
            os.environ.pop(_READS_IN_ORDER)
            if before is not None:
                os.environ[_READS_IN_ORDER] = before

    return disk_offload(
        build,
        optimizer,
        directory,
        ram_budget=ram_budget,
        step_in_backward=step_in_backward,
        max_grad_norm=max_grad_norm,
        direct_io=direct_io,
        checksums=checksums,
        on_full=on_full,
        keep_journal=keep_journal,
        state=state,
    )


class SaveOnDiskCallback(TrainerCallback):  # type: ignore[misc]
    """Spill what a model's forward saves for backward to disk, while Hugging Face's Trainer trains the model.

    Parameters
    ----------
    directory : str, path, disk_offload or optimizer, optional
        Folder for the files. Or the offload that `load` or `disk_offload` returned, or the optimizer that
        `disk_offload_optimizer` returned; its optimizer must be passed to the Trainer too.
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


class DiskOffloadCallback(SaveOnDiskCallback):
    """Keep all of a training on disk, while Hugging Face's Trainer trains: model, gradients, state, saved tensors.

    When training begins, `spillgrad.interop.torch.disk_offload` takes the Trainer's model and optimizer.

    Parameters
    ----------
    directory : str or path, optional
        Folder for the files. By default, a folder of this user in the directory for temporary files.
    ram_budget : int or str
        The most bytes of all these in RAM, or a size such as "4GiB".
    step_in_backward : bool, default False
        Whether each parameter is updated as soon as backward has its gradient. Not with gradient accumulation. The
        gradients are clipped by the Trainer's `max_grad_norm`; the Trainer then logs a norm of 0, and
        ``callback.offload.grad_norm`` has the norm.
    **options : object
        The other arguments of `spillgrad.interop.torch.disk_offload`.

    Attributes
    ----------
    offload : disk_offload or None
        The offload, from the beginning of training on; None before.
    spill : save_on_disk
        The context for saved tensors, from the beginning of training on.

    Raises
    ------
    SpillgradError
        When training begins, as by `spillgrad.interop.torch.disk_offload`.

    Notes
    -----
    The Trainer saves and resumes by its own means: the tensors of state dicts are in files until they are used.

    To train a model that does not fit your RAM, load it with `load` and an optimizer, and give the Trainer
    ``offload.model``, ``optimizers=(offload.optimizer, None)`` and ``callbacks=[SaveOnDiskCallback(offload)]``.

    Examples
    --------
    As a callback of a Trainer::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DiskOffloadCallback(ram_budget="4GiB")])
    """

    def __init__(
        self, directory: Any = None, *, ram_budget: int | str, step_in_backward: bool = False, **options: Any
    ) -> None:
        self.offload: disk_offload | None = None
        self._hooks = []
        self._directory, self._step_in_backward = directory, step_in_backward
        self._options = {"ram_budget": ram_budget, **options}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Offload the model and the optimizer, unless they are from an earlier training, and begin to spill.

        Parameters
        ----------
        args, state, control : object
            What the Trainer gives to callbacks.
        model : torch.nn.Module
            The model.
        optimizer : object
            The optimizer, or Accelerate's wrapper of it.
        **kwargs : object
            What else the Trainer gives to callbacks.
        """
        if self.offload is None or self.offload.model is not model:
            if self._step_in_backward and args.gradient_accumulation_steps > 1:
                raise ArgumentError(
                    f"DiskOffloadCallback: got step_in_backward=True and gradient_accumulation_steps="
                    f"{args.gradient_accumulation_steps}; with it, each backward is a step; give one of the two"
                )
            self.offload = disk_offload(
                model,
                getattr(optimizer, "optimizer", optimizer),
                self._directory,
                step_in_backward=self._step_in_backward,
                max_grad_norm=(args.max_grad_norm or None) if self._step_in_backward else None,
                **self._options,
            )
            self.spill = save_on_disk(self.offload)
        super().on_train_begin(args, state, control, model=model, **kwargs)
