"""The benchmarked operations in spillgrad."""

import importlib.metadata
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.nn import functional
from spillgrad_kernels.cpu import elementwise
from spillgrad_kernels.elementwise import ROWS
from spillgrad_tools.bench.operations import Operation, as_numpy, call, layers, release_memory, seconds_of, step_of

__all__ = [
    "OPERATIONS", "VERSION", "as_numpy", "no_grad", "prepare", "release_memory", "seconds_of", "set_num_threads",
]  # fmt: skip

VERSION = f"spillgrad with Numba {importlib.metadata.version('numba')}"

set_num_threads = sg.set_num_threads
no_grad = sg.no_grad


def prepare(operand: np.ndarray, requires_grad: bool) -> Any:
    """Return the operand as this library takes it; strides are kept."""
    return sg.from_numpy(operand).requires_grad_(requires_grad)


def _into(name: str, function: Callable[..., Any]) -> Operation:
    """Return the operation that writes into its last operand; where `function` takes no `out`, its kernel does."""
    if "out" in inspect.signature(function).parameters:
        return lambda *operands: partial(function, *operands[:-1], out=operands[-1])

    def prepared(*operands: Any) -> Callable[[], Any]:
        *inputs, out = [operand.numpy() for operand in operands]
        inputs += [np.asarray(value, out.dtype) for value in _FURTHER_INPUTS.get(name, ())]

        def call() -> Any:
            elementwise(ROWS[name].forward, name, inputs, out.dtype, out)
            return operands[-1]

        return call

    return prepared


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "exp": sg.exp,
    "tanh": sg.tanh,
    "sigmoid": sg.sigmoid,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "erf": sg.erf,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "add": sg.add,
    "mul": sg.mul,
}

# Softplus's beta and threshold.
_FURTHER_INPUTS = {"softplus": (1.0, 20.0)}

OPERATIONS: dict[str, Operation] = {
    "matmul": call(sg.matmul),
    **{name: call(function) for name, function in _ELEMENTWISE.items()},
    **{f"{name} out=": _into(name, function) for name, function in _ELEMENTWISE.items()},
    "copy": call(sg.clone),
    "copy out=": call(lambda x, out: out.copy_(x)),
    "add number": call(lambda x: x + 1.0),
    "relu": call(sg.relu),
    "sum": call(sg.sum),
    "linear": call(functional.linear),
    "reshape": call(lambda x: x.reshape(-1)),
    "select": call(lambda x: x[3]),
    **layers(functional, sg.grad),
    "adamw": step_of(sg.optim.AdamW, lr=1e-3, weight_decay=1e-2),
}
