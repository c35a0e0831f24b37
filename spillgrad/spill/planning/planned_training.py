"""A model and an optimizer as a plan has them, in RAM or on disk, and the contexts of their training."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, Self

from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.disk_offload import disk_offload
from spillgrad.spill.planning.candidate import TrainingPlan
from spillgrad.spill.planning.formats import EXACTLY, Formats
from spillgrad.spill.planning.keep_within import keep_within
from spillgrad.spill.save_on_disk import save_on_disk


class PlannedTraining:
    """What `Plan.apply` returns: the model and the optimizer, and contexts for the training and its forward passes.

    A context manager: within it, the memory of the process is watched (`keep_within`).

    Parameters
    ----------
    plan : Plan
        The plan.
    model : Module or callable
        The model, or a function that builds it.
    optimizer : callable
        Function that makes the optimizer from the list of parameters that require gradients.
    directory : str or path, optional
        Folder for what goes to disk.
    options : dict
        Options of `disk_offload`.
    formats : Formats, optional
        How weights and state are stored.

    Attributes
    ----------
    model : Module
        The model.
    optimizer : Optimizer
        The optimizer.
    offload : disk_offload or None
        What keeps both on disk, if the plan says so.
    spill : save_on_disk or None
        What spills or recomputes saved tensors, unless the plan keeps them all.
    """

    def __init__(
        self, plan: TrainingPlan, model: Module | Callable[[], Module],
        optimizer: Callable[[list[Parameter]], Optimizer], directory: str | os.PathLike[str] | None,
        options: dict[str, Any], formats: Formats = EXACTLY,
    ) -> None:  # fmt: skip
        budget = plan.prediction.budget_bytes
        self.offload: disk_offload | None = None
        self.spill: save_on_disk | None = None
        if plan.offload:
            self.offload = disk_offload(
                model, optimizer, directory, ram_budget=budget, **{**formats._asdict(), **options}
            )
            self.model: Any = self.offload.model
            self.optimizer: Any = self.offload.optimizer
        else:
            self.model = model if isinstance(model, Module) else model()
            self.optimizer = formats.in_ram(self.model, optimizer)
        if self.offload is not None:
            self.spill = save_on_disk(self.offload, policy=plan.policy)
        elif plan.policy != "keep":
            self.spill = save_on_disk(directory, ram_budget=budget, policy=plan.policy)
        self._watch = keep_within(plan.ram_bytes, self.offload or self.spill)

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context manager for a forward pass.

        Returns
        -------
        context manager
            `spill`, or one that does nothing.
        """
        return contextlib.nullcontext() if self.spill is None else self.spill

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)
