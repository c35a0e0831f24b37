"""What the benchmarks of two libraries call alike, written once: both have PyTorch's interface."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

# Given the operands, what is timed.
Operation = Callable[..., Callable[[], Any]]


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array."""
    array: np.ndarray = result.detach().numpy()
    return array


def seconds_of(calls: int, call: Callable[[], Any]) -> float:
    """Return how long so many calls take."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - started


def release_memory() -> None:
    """Keep what memory there is: the next case's operands take it over."""


def call(function: Callable[..., Any]) -> Operation:
    """Return the operation that calls `function` with the operands."""
    return lambda *operands: partial(function, *operands)


def _with_gradients(function: Callable[..., Any], grad: Callable[..., Any]) -> Callable[..., Any]:
    def forward_and_backward(*operands: Any) -> Any:
        *inputs, g = operands
        y = function(*inputs)
        return y, *grad(y, inputs, g)

    return forward_and_backward


def layers(functional: Any, grad: Callable[..., Any]) -> dict[str, Operation]:
    """Return the operations of a network's layers; those with a "+" compute gradients too."""
    with_gradients = partial(_with_gradients, grad=grad)

    def softmax(x: Any) -> Any:
        return functional.softmax(x, -1)

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)

    def cross_entropy_and_gradient(logits: Any, target: Any) -> Any:
        loss = functional.cross_entropy(logits, target)
        return loss, *grad(loss, logits)

    attention = partial(functional.scaled_dot_product_attention, is_causal=True)
    return {
        "softmax": call(softmax),
        "softmax+": call(with_gradients(softmax)),
        "layer_norm": call(layer_norm),
        "layer_norm+": call(with_gradients(layer_norm)),
        "cross_entropy": call(functional.cross_entropy),
        "cross_entropy+": call(cross_entropy_and_gradient),
        "attention+": call(with_gradients(attention)),
    }


def step_of(optimizer: Callable[..., Any], **options: Any) -> Operation:
    """Return the operation that updates one parameter, given its gradient."""

    def prepared(param: Any, grad: Any) -> Callable[[], Any]:
        made = optimizer([param], **options)
        param.grad = grad

        def step() -> Any:
            made.step()
            return param

        return step

    return prepared


def _chain_of_5(x: Any) -> Any:
    return ((x * 2 + 1).sigmoid() * x).clamp(min=0.1)


def _chain_of_7(x: Any, y: Any) -> Any:
    return ((x * y + x).tanh() * y.sigmoid() - x).relu()


def chains(fused: Callable[..., Any], grad: Callable[..., Any]) -> dict[str, Operation]:
    """Return chains of so many elementwise operations, as `fused` returns them; with a "+", gradients too."""
    seven = fused(_chain_of_7)
    return {
        "chain of 5": call(fused(_chain_of_5)),
        "chain of 7": call(seven),
        "chain of 7+": call(_with_gradients(seven, grad)),
    }
