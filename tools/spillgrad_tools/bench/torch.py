"""The benchmarked operations in PyTorch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from spillgrad_tools.bench.operations import Operation, as_numpy, call, layers, release_memory, seconds_of, step_of

__all__ = [
    "OPERATIONS", "VERSION", "as_numpy", "no_grad", "prepare", "release_memory", "seconds_of", "set_num_threads",
]  # fmt: skip

VERSION = f"PyTorch {torch.__version__}"

set_num_threads = torch.set_num_threads
no_grad = torch.no_grad


def prepare(operand: np.ndarray, requires_grad: bool) -> Any:
    """Return the operand as this library takes it; strides are kept."""
    return torch.from_numpy(operand).requires_grad_(requires_grad)


def _into(function: Callable[..., Any]) -> Operation:
    return lambda *operands: partial(function, *operands[:-1], out=operands[-1])


# The functions of torch.nn take no `out`; the operators below them do.
OPERATIONS: dict[str, Operation] = {
    "matmul": call(torch.matmul),
    "exp": call(torch.exp),
    "tanh": call(torch.tanh),
    "sigmoid": call(torch.sigmoid),
    "gelu": call(functional.gelu),
    "gelu_tanh": call(partial(functional.gelu, approximate="tanh")),
    "erf": call(torch.erf),
    "silu": call(functional.silu),
    "softplus": call(functional.softplus),
    "add": call(torch.add),
    "mul": call(torch.mul),
    "copy": call(torch.clone),
    "exp out=": _into(torch.exp),
    "tanh out=": _into(torch.tanh),
    "sigmoid out=": _into(torch.sigmoid),
    "gelu out=": _into(torch.ops.aten.gelu.out),
    "gelu_tanh out=": _into(partial(torch.ops.aten.gelu.out, approximate="tanh")),
    "erf out=": _into(torch.erf),
    "silu out=": _into(torch.ops.aten.silu.out),
    "softplus out=": _into(torch.ops.aten.softplus.out),
    "add out=": _into(torch.add),
    "mul out=": _into(torch.mul),
    "copy out=": call(lambda x, out: out.copy_(x)),
    "add number": call(lambda x: x + 1.0),
    "relu": call(torch.relu),
    "sum": call(torch.sum),
    "linear": call(functional.linear),
    "reshape": call(lambda x: x.reshape(-1)),
    "select": call(lambda x: x[3]),
    **layers(functional, torch.autograd.grad),
    "adamw": step_of(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2, fused=True),
}
