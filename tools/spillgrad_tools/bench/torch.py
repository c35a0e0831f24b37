"""PyTorch on the CPU, and a GPT-2's training step in it: in RAM, or with saved tensors on disk."""

import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from spillgrad.interop.torch import disk_offload, disk_offload_optimizer, save_on_disk
from spillgrad.storage.store import StoreStats
from spillgrad_tools.bench.file_per_tensor import file_per_tensor
from spillgrad_tools.bench.gpt import BETAS, LR, WEIGHT_DECAY, GPTFunctions, GPTTraining, Spilling, gpt_weights
from spillgrad_tools.bench.operations import Call, Library, Operation


def _attention(qkv: Any) -> Any:
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Training(GPTTraining):
    """A GPT-2 with its optimizer, in training; its parameters are `weights`, or random if `weights` is None.

    Saved tensors beyond `spill_budget` go to `directory`; if `file_per_tensor`, each saved tensor goes to its own file.
    The optimizer's state beyond `optimizer_budget` goes to `directory`, too, and shares that budget with saved tensors.
    With `offload_budget`, parameters and gradients do so, too, and backward updates the parameters.
    With `autocast`, products are in bfloat16.
    """

    functions = GPTFunctions(
        functional.embedding, lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
        functional.linear, partial(functional.gelu, approximate="tanh"), _attention, functional.linear,
        functional.cross_entropy,
    )  # fmt: skip

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, np.ndarray] | None, directory: str | None = None,
        spill_budget: int | str | None = None, file_per_tensor: bool = False, device: str = "cpu",
        optimizer_budget: int | str | None = None, offload_budget: int | str | None = None, autocast: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self.device = device
        self.autocast = partial(torch.autocast, device, torch.bfloat16) if autocast else None
        self.directory = Path(directory) if directory and file_per_tensor else None
        self.parameters = {}
        for name, array in (gpt_weights(config) if weights is None else weights).items():
            # PyTorch's linear layers take the transposed weight.
            turned = np.ascontiguousarray(array.T) if ".c_" in name and name.endswith("weight") else array
            self.parameters[name] = torch.nn.Parameter(torch.tensor(turned, device=device))
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        if optimizer_budget is not None:
            self.optimizer = disk_offload_optimizer(self.optimizer, directory, ram_budget=optimizer_budget)
        self.model = _Model(self) if offload_budget is not None else None
        if offload_budget is not None:
            offload = disk_offload(
                self.model, self.optimizer, directory, ram_budget=offload_budget, step_in_backward=True
            )
            self.spill = Spilling(save_on_disk(offload))
        elif spill_budget is None:
            self.spill = None
        elif optimizer_budget is None:
            self.spill = Spilling(save_on_disk(directory, ram_budget=spill_budget))
        else:
            self.spill = Spilling(save_on_disk(self.optimizer))

    def stats(self) -> StoreStats:
        """Return the counters of the store."""
        stores: list[Any] = [self.optimizer] if hasattr(self.optimizer, "stats") else []
        stores += [] if self.spill is None else [self.spill.hooks]
        counted: StoreStats = stores[0].stats() if stores else StoreStats()
        return counted

    def loss(self, inputs: Any, targets: Any) -> Any:
        return self.loss_of_parameters(inputs, targets) if self.model is None else self.model(inputs, targets)

    def loss_of_parameters(self, inputs: Any, targets: Any) -> Any:
        """Return the loss of a batch, computed from the parameters."""
        return super().loss(inputs, targets)

    def tensor(self, array: np.ndarray) -> Any:
        """Return an array as a tensor on the model's device."""
        return torch.from_numpy(array).to(self.device)

    def saving(self) -> Any:
        """Return the context manager under which a forward pass runs."""
        if self.directory is None:
            return super().saving()
        return torch.autograd.graph.saved_tensors_hooks(*file_per_tensor(self.directory, torch.save, torch.load))


class _Model(torch.nn.Module):  # type: ignore[misc]
    """The model of a training, as a module: `disk_offload` takes modules."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._loss = weakref.WeakMethod(training.loss_of_parameters)
        self.parts = torch.nn.ParameterList(training.parameters.values())  # a list's parameters are used one by one

    def forward(self, inputs: Any, targets: Any) -> Any:
        compute: Any = self._loss()
        return compute(inputs, targets)


class PyTorch(Library):
    """PyTorch on the CPU."""

    version: str | None = f"PyTorch {torch.__version__}"
    top, functional, training = torch, functional, Training
    grad = staticmethod(torch.autograd.grad)
    adamw = staticmethod(partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2, fused=True))

    def into(self, operation: Operation, *operands: Any) -> Call:
        """Return a function that calls an operation with its last operand as `out`.

        The functions of `torch.nn` take no `out`, but the operators that these functions call do.
        """
        *inputs, out = operands
        if operation.name == "copy":
            return partial(out.copy_, *inputs)
        if operation.is_functional:
            operator = getattr(torch.ops.aten, operation.spelled or operation.name)
            return partial(operator.out, *inputs, **operation.options, out=out)
        return partial(operation.function(self), *inputs, out=out)


LIBRARY = PyTorch
