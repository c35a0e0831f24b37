"""spillgrad on the CPU."""

import importlib.metadata
import inspect
from functools import partial
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.nn import functional
from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_tools.bench.gpt_ours import Training
from spillgrad_tools.bench.operations import Call, Library, Operation

# Softplus's beta and threshold.
_FURTHER_INPUTS = {"softplus": (1.0, 20.0)}


class Spillgrad(Library):
    """spillgrad on the CPU."""

    version = f"spillgrad with Numba {importlib.metadata.version('numba')}"
    top, functional, training = sg, functional, Training
    grad, fuse = staticmethod(sg.grad), staticmethod(sg.fuse)
    adamw = staticmethod(partial(sg.optim.AdamW, lr=1e-3, weight_decay=1e-2))

    def into(self, operation: Operation, *operands: Any) -> Call:
        """Return the call of an operation that writes to its last operand; without an argument `out`, of its kernel."""
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
