"""Tensors and models of Paddle, and their gradients, which tests compare bit for bit."""

from collections.abc import Callable
from typing import Any

import paddle

SHAPE = (80, 60)
NBYTES = 80 * 60 * 4
LARGE = "1GiB"
BUDGETS = (0, 3 * NBYTES, LARGE)


def batch() -> Any:
    return paddle.randn(SHAPE)


def weight() -> Any:
    tensor = paddle.randn(SHAPE)
    tensor.stop_gradient = False
    return tensor


def about(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.strides), tensor.offset


def bits(tensor: Any) -> bytes:
    """Return the elements of a tensor in order, as bytes."""
    with paddle.no_grad():
        copy = tensor.clone().contiguous()  # which changes the tensor itself
        return copy.reshape([-1]).view("uint8").numpy().tobytes()


WIDTH = 64


class Attention(paddle.nn.Layer):
    """Causal attention over views of one product, as GPT-2 has it."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.both = paddle.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = paddle.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        parts = self.both(x).reshape([batch, length, 3, self.heads, -1]).transpose([2, 0, 3, 1, 4])
        q, k, v = parts[0], parts[1], parts[2]
        scores = paddle.matmul(q, k, transpose_y=True) / (WIDTH // self.heads) ** 0.5
        mask = paddle.tril(paddle.ones([length, length], dtype="bool"))
        scores = paddle.where(mask, scores, paddle.full([], -1e4, dtype=scores.dtype))
        mixed = paddle.matmul(paddle.nn.functional.softmax(scores), v)
        return self.out(mixed.transpose([0, 2, 1, 3]).reshape([batch, length, WIDTH]))


class Block(paddle.nn.Layer):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.attention = paddle.nn.LayerNorm(WIDTH), Attention()
        self.mlp = paddle.nn.Sequential(
            paddle.nn.LayerNorm(WIDTH),
            paddle.nn.Linear(WIDTH, 4 * WIDTH),
            paddle.nn.GELU(approximate=True),
            paddle.nn.Linear(4 * WIDTH, WIDTH),
            paddle.nn.Dropout(dropout),
        )

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class GPT(paddle.nn.Layer):
    """GPT-2, small, whose last product is with its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = paddle.nn.Embedding(100, WIDTH), paddle.nn.Embedding(16, WIDTH)
        self.blocks = paddle.nn.LayerList([Block(), Block()])
        self.norm = paddle.nn.LayerNorm(WIDTH)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places(paddle.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return paddle.matmul(self.norm(x), self.tokens.weight, transpose_y=True)


def gradients(model: Any, forward: Callable[[], Any], context: Any = None) -> list[Any]:
    """Return the gradients of a model after a step whose forward runs in a context."""
    paddle.seed(1)
    for parameter in model.parameters():
        parameter.clear_gradient(set_to_zero=False)
    if context is None:
        loss = forward().abs().square().mean()
    else:
        with context:
            loss = forward().abs().square().mean()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def all_same(got: list[Any], wanted: list[Any]) -> bool:
    return len(got) == len(wanted) > 0 and all(
        about(one) == about(other) and bits(one) == bits(other) for one, other in zip(got, wanted, strict=True)
    )
