"""The benchmarked operations in spillgrad's kernels."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels import dispatch
from spillgrad_kernels.cpu import elementwise
from spillgrad_kernels.elementwise import ROWS
from spillgrad_kernels.losses import cross_entropy
from spillgrad_kernels.matmul import matmul
from spillgrad_kernels.normalization import layer_norm, softmax
from spillgrad_kernels.optim import adamw

VERSION = f"spillgrad with Numba {importlib.metadata.version('numba')}"


def set_num_threads(count: int) -> None:
    """Use `count` threads."""
    dispatch.set_num_threads(count)


def prepare(operand: np.ndarray) -> np.ndarray:
    """Return the operand as this library takes it."""
    return operand


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array."""
    return np.asarray(result)


def _row(name: str) -> Callable[..., np.ndarray]:
    return lambda *operands: elementwise(ROWS[name].forward, name, operands, operands[0].dtype)


def _adamw(param: np.ndarray, grad: np.ndarray, mean: np.ndarray, square: np.ndarray) -> np.ndarray:
    adamw(param, grad, mean, square, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-2, step=1)
    return param


OPERATIONS: dict[str, Callable[..., Any]] = {
    "matmul": matmul,
    "add": _row("add"),
    "exp": _row("exp"),
    "tanh": _row("tanh"),
    "gelu": _row("gelu_tanh"),
    "softmax": lambda x: softmax(x, -1),
    "layer_norm": lambda x, weight, bias: layer_norm(x, weight.size, weight, bias, 1e-5)[0],
    "cross_entropy": lambda logits, target: cross_entropy(logits, target, -100)[0],
    "adamw": _adamw,
}
