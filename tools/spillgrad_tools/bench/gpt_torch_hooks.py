"""A GPT and its training step in PyTorch, under hooks that keep what is saved for backward on disk."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spillgrad.interop.torch import save_on_disk
from spillgrad_tools.bench import gpt_torch as bench_train_torch
from spillgrad_tools.bench.step_runner import Spilling
from spillgrad_tools.bench.torch import VERSION, set_num_threads

__all__ = ["VERSION", "Training", "set_num_threads"]

# The tutorial's: of fewer elements, a tensor stays in RAM.
FEWEST_ELEMENTS = 1000


class SelfDeletingTempFile:
    """The file of one saved tensor, removed with the node that saved it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / str(uuid.uuid4())

    def __del__(self) -> None:
        os.remove(self.path)


def file_per_tensor(directory: Path) -> Any:
    """Return the hooks of PyTorch's tutorial "Hooks for autograd saved tensors": each tensor in a file of its own."""

    def pack(tensor: Any) -> Any:
        if tensor.numel() < FEWEST_ELEMENTS:
            return tensor.detach()
        file = SelfDeletingTempFile(directory)
        torch.save(tensor, file.path)
        return file

    def unpack(packed: Any) -> Any:
        return torch.load(packed.path) if isinstance(packed, SelfDeletingTempFile) else packed

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class Training(bench_train_torch.Training):
    """What is saved goes to `directory`: beyond `spill_budget`, or by the hooks of PyTorch's tutorial."""

    def __init__(
        self,
        *args: Any,
        directory: str,
        spill_budget: int | str | None = None,
        file_per_tensor: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.directory = Path(directory) if file_per_tensor else None
        if spill_budget is not None:
            self.spill = Spilling(save_on_disk(directory, ram_budget=spill_budget))

    def saving(self) -> Any:
        """Return the context of a forward."""
        if self.directory is not None:
            return file_per_tensor(self.directory)
        return self.spill or super().saving()

    def gradients(self) -> Iterator[np.ndarray]:
        """Yield what the last step left on each parameter."""
        for parameter in self.model.parameters():
            yield parameter.grad.numpy()
