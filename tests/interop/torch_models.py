"""Tensors and models of PyTorch, and their gradients, which tests compare bit for bit."""

from collections.abc import Callable
from typing import Any

import torch

# Its threads wait for each other by turning idly, for milliseconds where other processes need the cores.
torch.set_num_threads(1)

SHAPE = (80, 60)
NBYTES = 80 * 60 * 4
LARGE = "1GiB"
BUDGETS = (0, 3 * NBYTES, LARGE)


def batch() -> Any:
    return torch.randn(SHAPE)


def weight() -> Any:
    return torch.randn(SHAPE, requires_grad=True)


def about(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def bits(tensor: Any) -> bytes:
    """Return the elements of a tensor in order, as bytes."""
    tensor = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().tobytes()


GPT_WIDTH = 64


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(GPT_WIDTH)
        self.attention = torch.nn.MultiheadAttention(GPT_WIDTH, 4, batch_first=True)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(GPT_WIDTH, 4 * GPT_WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * GPT_WIDTH, GPT_WIDTH)
        )

    def forward(self, x: Any) -> Any:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(x)


def transformer() -> Any:
    return torch.nn.Sequential(torch.nn.Embedding(100, GPT_WIDTH), Block(), Block(), torch.nn.Linear(GPT_WIDTH, 100))


def gradients(model: Any, forward: Callable[[], Any], context: Any = None) -> list[Any]:
    """Return the gradients of a model after a step whose forward runs in a context."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    if context is None:
        loss = forward().abs().square().mean()
    else:
        with context:
            loss = forward().abs().square().mean()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def all_same(got: list[Any], wanted: list[Any]) -> bool:
    return len(got) == len(wanted) > 0 and all(
        about(one) == about(other) and bits(one) == bits(other) for one, other in zip(got, wanted, strict=True)
    )
