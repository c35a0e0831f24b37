"""PyTorch on the CPU."""

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from spillgrad_tools.bench.gpt_torch import Training
from spillgrad_tools.bench.operations import Call, Library, Operation


class PyTorch(Library):
    """PyTorch on the CPU."""

    version: str | None = f"PyTorch {torch.__version__}"
    top, functional, training = torch, functional, Training
    grad = staticmethod(torch.autograd.grad)
    adamw = staticmethod(partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2, fused=True))

    def into(self, operation: Operation, *operands: Any) -> Call:
        """Return the call of an operation that writes to its last operand.

        The functions of `torch.nn` take no `out`; the operators that they call do.
        """
        *inputs, out = operands
        if operation.name == "copy":
            return partial(out.copy_, *inputs)
        if operation.is_functional:
            operator = getattr(torch.ops.aten, operation.spelled or operation.name)
            return partial(operator.out, *inputs, **operation.options, out=out)
        return partial(operation.function(self), *inputs, out=out)


LIBRARY = PyTorch
