"""The benchmarked operations in PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

VERSION = f"PyTorch {torch.__version__}"


def set_num_threads(count: int) -> None:
    """Use `count` threads."""
    torch.set_num_threads(count)


def prepare(operand: np.ndarray) -> Any:
    """Return the operand as this library takes it; strides are kept."""
    return torch.from_numpy(operand)


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array."""
    array: np.ndarray = result.numpy()
    return array


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def _adamw(param: Any, grad: Any, mean: Any, square: Any) -> Any:
    torch._fused_adamw_(
        [param], [grad], [mean], [square], [], [torch.tensor(1.0)],
        lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1e-2, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return param


OPERATIONS: dict[str, Callable[..., Any]] = {
    "matmul": torch.matmul,
    "add": torch.add,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": _layer_norm,
    "cross_entropy": lambda logits, target: functional.cross_entropy(logits, target, reduction="none"),
    "adamw": _adamw,
}
