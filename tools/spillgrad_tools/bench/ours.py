"""spillgrad on the CPU, and a GPT's training step in it."""

import contextlib
import importlib.metadata
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.nn import functional, init
from spillgrad.storage.store_owner import MIN_BYTES
from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_tools.bench.gpt import BETAS, LR, WEIGHT_DECAY, GPTTraining, Spilling
from spillgrad_tools.bench.operations import Call, Library, Operation

# Softplus's beta and threshold.
_FURTHER_INPUTS = {"softplus": (1.0, 20.0)}


class Training(GPTTraining):
    """A GPT with its optimizer, in training; its parameters are `weights`, or random if `weights` is None.

    `spill_budget` bounds the RAM of saved tensors, `offload_budget` the RAM of all tensors; whatever exceeds a budget
    goes to `directory`. `lora` is the rank of adapters, which are trained in place of the model's parameters. The model
    is on `device`, unless it is offloaded. `device_budget` bounds the saved tensors that stay on the device. With
    `autocast`, products are in bfloat16.
    """

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, np.ndarray] | None, directory: str | None = None,
        spill_budget: int | str | None = None, offload_budget: int | str | None = None, lora: int | None = None,
        device: str = "cpu", device_budget: int | str = 0, min_bytes: int | str = MIN_BYTES, lr: float = LR,
        autocast: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(config)
        sg.manual_seed(0)
        self.device = device
        self.autocast = partial(sg.autocast, device) if autocast else None

        def build() -> sg.nn.Module:
            with contextlib.nullcontext() if weights is None else init.skipped():
                model = sg.models.GPT(sg.models.GPTConfig(**config))
            return model if lora is None else sg.nn.lora(model, lora)

        def make_optimizer(parameters: list[sg.nn.Parameter]) -> sg.optim.Optimizer:
            return sg.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=WEIGHT_DECAY)

        self.model: sg.nn.Module
        if offload_budget is None:
            self.model = build().to(device)
            self.optimizer = make_optimizer([p for p in self.model.parameters() if p.requires_grad])
            if spill_budget is not None:
                hooks = sg.save_on_disk(
                    directory, ram_budget=spill_budget, device_budget=device_budget, min_bytes=min_bytes
                )
                self.spill = Spilling(hooks)
        else:
            self.offload = sg.disk_offload(
                build, make_optimizer, directory, ram_budget=offload_budget, step_in_backward=True
            )
            self.model, self.optimizer = self.offload.model, self.offload.optimizer
            self.spill = Spilling(sg.save_on_disk(self.offload))
        if weights is not None:
            with sg.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(sg.from_numpy(weights[name]))

    def tensor(self, array: np.ndarray) -> sg.Tensor:
        """Return an array as a tensor on the model's device."""
        placed: sg.Tensor = sg.from_numpy(array).to(self.device)
        return placed

    def loss(self, inputs: sg.Tensor, targets: sg.Tensor) -> sg.Tensor:
        """Return the loss of a batch."""
        loss: sg.Tensor = self.model(inputs, targets)[1]
        return loss


class Spillgrad(Library):
    """spillgrad on the CPU."""

    version = f"spillgrad with Numba {importlib.metadata.version('numba')}"
    top, functional, training = sg, functional, Training
    grad, fuse = staticmethod(sg.grad), staticmethod(sg.fuse)
    adamw = staticmethod(partial(sg.optim.AdamW, lr=1e-3, weight_decay=1e-2))

    def into(self, operation: Operation, *operands: Any) -> Call:
        """Return a function that writes to the last operand: with `out` if the operation has it, else by the kernel."""
        if operation.name == "copy":
            return partial(operands[-1].copy_, operands[0])
        function = operation.function(self)
        if "out" in inspect.signature(function).parameters:
            return partial(function, *operands[:-1], out=operands[-1])
        *inputs, out = [operand.numpy() for operand in operands]
        inputs += [np.asarray(value, out.dtype) for value in _FURTHER_INPUTS.get(operation.name, ())]

        def call() -> Any:
            elementwise(ROWS[operation.name].forward, operation.name, inputs, out.dtype, out)
            return operands[-1]

        return call


LIBRARY = Spillgrad
