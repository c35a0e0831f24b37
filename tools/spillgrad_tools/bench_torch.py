"""The benchmarked operations in PyTorch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

VERSION = f"PyTorch {torch.__version__}"

set_num_threads = torch.set_num_threads
no_grad = torch.no_grad


def prepare(operand: np.ndarray, requires_grad: bool) -> Any:
    """Return the operand as this library takes it; strides are kept."""
    return torch.from_numpy(operand).requires_grad_(requires_grad)


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array."""
    array: np.ndarray = result.detach().numpy()
    return array


def _call(function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    return lambda *operands: partial(function, *operands)


def _into(function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    return lambda *operands: partial(function, *operands[:-1], out=operands[-1])


def _softmax_and_gradient(x: Any, g: Any) -> Any:
    y = torch.softmax(x, -1)
    return y, *torch.autograd.grad(y, x, g)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def _layer_norm_and_gradients(x: Any, weight: Any, bias: Any, g: Any) -> Any:
    y = _layer_norm(x, weight, bias)
    return y, *torch.autograd.grad(y, (x, weight, bias), g)


def _cross_entropy_and_gradient(logits: Any, target: Any) -> Any:
    loss = functional.cross_entropy(logits, target)
    return loss, *torch.autograd.grad(loss, logits)


def _attention_and_gradients(q: Any, k: Any, v: Any, g: Any) -> Any:
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y, *torch.autograd.grad(y, (q, k, v), g)


def _adamw(param: Any, grad: Any) -> Callable[[], Any]:
    optimizer = torch.optim.AdamW([param], lr=1e-3, weight_decay=1e-2, fused=True)
    param.grad = grad

    def step() -> Any:
        optimizer.step()
        return param

    return step


# Given the operands, what is timed. The functions of torch.nn take no `out`; the operators below them do.
OPERATIONS: dict[str, Callable[..., Callable[[], Any]]] = {
    "matmul": _call(torch.matmul),
    "exp": _call(torch.exp),
    "tanh": _call(torch.tanh),
    "sigmoid": _call(torch.sigmoid),
    "gelu": _call(functional.gelu),
    "gelu_tanh": _call(partial(functional.gelu, approximate="tanh")),
    "erf": _call(torch.erf),
    "silu": _call(functional.silu),
    "softplus": _call(functional.softplus),
    "add": _call(torch.add),
    "mul": _call(torch.mul),
    "copy": _call(torch.clone),
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
    "copy out=": _call(lambda x, out: out.copy_(x)),
    "add number": _call(lambda x: x + 1.0),
    "relu": _call(torch.relu),
    "sum": _call(torch.sum),
    "reshape": _call(lambda x: x.reshape(-1)),
    "select": _call(lambda x: x[3]),
    "softmax": _call(lambda x: torch.softmax(x, -1)),
    "softmax+": _call(_softmax_and_gradient),
    "layer_norm": _call(_layer_norm),
    "layer_norm+": _call(_layer_norm_and_gradients),
    "cross_entropy": _call(functional.cross_entropy),
    "cross_entropy+": _call(_cross_entropy_and_gradient),
    "attention+": _call(_attention_and_gradients),
    "adamw": _adamw,
}
