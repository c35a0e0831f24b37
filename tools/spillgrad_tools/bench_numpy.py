"""The benchmarked operations in plain NumPy: a time to beat, and the result the others are checked against."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

VERSION = f"NumPy {np.__version__}"


def set_num_threads(count: int) -> None:
    """Do nothing: the worker's environment has told the BLAS library before it was loaded."""


def prepare(operand: np.ndarray) -> np.ndarray:
    """Return the operand as this library takes it."""
    return operand


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array."""
    return np.asarray(result)


def _gelu(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _softmax(x: np.ndarray) -> Any:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _cross_entropy(logits: np.ndarray, target: np.ndarray) -> Any:
    peak = logits.max(-1, keepdims=True)
    lse = np.log(np.exp(logits - peak).sum(-1)) + peak[:, 0]
    return lse - logits[np.arange(len(target)), target]


def _adamw(param: np.ndarray, grad: np.ndarray, mean: np.ndarray, square: np.ndarray) -> Any:
    param *= 1 - 1e-3 * 1e-2
    mean += 0.1 * (grad - mean)
    square *= 0.999
    square += 0.001 * grad * grad
    param -= 1e-3 / 0.1 * mean / (np.sqrt(square / 0.001) + 1e-8)
    return param


OPERATIONS: dict[str, Callable[..., Any]] = {
    "matmul": np.matmul,
    "add": np.add,
    "exp": np.exp,
    "tanh": np.tanh,
    "gelu": _gelu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "cross_entropy": _cross_entropy,
    "adamw": _adamw,
}
