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

VERSION = f"spillgrad with Numba {importlib.metadata.version('numba')}"

set_num_threads = sg.set_num_threads
no_grad = sg.no_grad


def prepare(operand: np.ndarray, requires_grad: bool) -> Any:
    """Return the operand as this library takes it; strides are kept."""
    return sg.from_numpy(operand).requires_grad_(requires_grad)


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array."""
    array: np.ndarray = result.detach().numpy()
    return array


def _call(function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    return lambda *operands: partial(function, *operands)


def _into(name: str, function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
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


def _softmax_and_gradient(x: Any, g: Any) -> Any:
    y = functional.softmax(x, -1)
    return y, *sg.grad(y, x, g)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def _layer_norm_and_gradients(x: Any, weight: Any, bias: Any, g: Any) -> Any:
    y = _layer_norm(x, weight, bias)
    return y, *sg.grad(y, (x, weight, bias), g)


def _cross_entropy_and_gradient(logits: Any, target: Any) -> Any:
    loss = functional.cross_entropy(logits, target)
    return loss, *sg.grad(loss, logits)


def _attention_and_gradients(q: Any, k: Any, v: Any, g: Any) -> Any:
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y, *sg.grad(y, (q, k, v), g)


def _adamw(param: Any, grad: Any) -> Callable[[], Any]:
    optimizer = sg.optim.AdamW([param], lr=1e-3, weight_decay=1e-2)
    param.grad = grad

    def step() -> Any:
        optimizer.step()
        return param

    return step


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

# Given the operands, what is timed.
OPERATIONS: dict[str, Callable[..., Callable[[], Any]]] = {
    "matmul": _call(sg.matmul),
    **{name: _call(function) for name, function in _ELEMENTWISE.items()},
    **{f"{name} out=": _into(name, function) for name, function in _ELEMENTWISE.items()},
    "copy": _call(sg.clone),
    "copy out=": _call(lambda x, out: out.copy_(x)),
    "add number": _call(lambda x: x + 1.0),
    "relu": _call(sg.relu),
    "sum": _call(sg.sum),
    "reshape": _call(lambda x: x.reshape(-1)),
    "select": _call(lambda x: x[3]),
    "softmax": _call(lambda x: functional.softmax(x, -1)),
    "softmax+": _call(_softmax_and_gradient),
    "layer_norm": _call(_layer_norm),
    "layer_norm+": _call(_layer_norm_and_gradients),
    "cross_entropy": _call(functional.cross_entropy),
    "cross_entropy+": _call(_cross_entropy_and_gradient),
    "attention+": _call(_attention_and_gradients),
    "adamw": _adamw,
}
