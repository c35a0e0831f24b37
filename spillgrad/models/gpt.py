"""GPT-2: a decoder-only transformer, with the parameter names and shapes of Hugging Face's `GPT2LMHeadModel`.

Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spillgrad.autograd.grad_mode import no_grad
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import init
from spillgrad.nn.dropout import Dropout
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.layer_norm import LayerNorm
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.nn.module_list import ModuleList
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import attention, creation, linalg, losses
from spillgrad.tensor import Tensor


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT; the defaults are GPT-2's. `context` is the largest number of positions."""

    vocab_size: int = 50257
    context: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"GPTConfig: got {name} {getattr(self, name)}; it must be at least 1")
        if self.n_embd % self.n_head:
            raise ArgumentError(
                f"GPTConfig: got n_embd {self.n_embd} and n_head {self.n_head}; the heads must share the width evenly"
            )


class Conv1D(Module):
    """Compute `activation(x @ weight + bias)`; the weight lies the other way round than a linear layer's, as in GPT-2.

    Shapes: x (..., in_features), result (..., out_features), weight (in_features, out_features), bias (out_features,).
    """

    weight: Parameter
    bias: Parameter

    def __init__(self, in_features: int, out_features: int, std: float = 0.02, activation: str | None = None) -> None:
        super().__init__()
        self.activation = activation
        self.weight = Parameter(creation.empty(in_features, out_features))
        self.bias = Parameter(creation.zeros(out_features))
        init.normal_(self.weight, std=std)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the layer's result, added to `residual` where one is given."""
        return linalg.linear(x, self.weight.t(), self.bias, activation=self.activation, residual=residual)

    def extra_repr(self) -> str:
        extra = "" if self.activation is None else f", activation={self.activation!r}"
        return f"in_features={self.weight.shape[0]}, out_features={self.weight.shape[1]}{extra}"


def _add_to(residual: Tensor, x: Tensor, projection: Conv1D, dropout: Dropout) -> Tensor:
    """Return residual + dropout(projection(x)), in as few passes over memory as it takes."""
    if dropout.p > 0 and dropout.training:
        return dropout(projection(x), residual)  # type: ignore[no-any-return]
    return projection(x, residual)  # type: ignore[no-any-return]


class Attention(Module):
    """Causal self-attention of `x`, added to `residual`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd, std=_residual_std(config))
        self.attention_dropout = config.dropout
        self.resid_dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(width, -1)
        )
        dropout = self.attention_dropout if self.training else 0.0
        heads = attention.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return _add_to(residual, heads.transpose(1, 2).reshape(batch, length, width), self.c_proj, self.resid_dropout)


class MLP(Module):
    """Two projections of `x` with a GELU between them, four times as wide inside, added to `residual`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = Conv1D(config.n_embd, 4 * config.n_embd, activation="gelu_tanh")
        self.c_proj = Conv1D(4 * config.n_embd, config.n_embd, std=_residual_std(config))
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return _add_to(residual, self.c_fc(x), self.c_proj, self.dropout)


class Block(Module):
    """Attention, then MLP, each on the normalised stream and added to it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.ln_1(x), x)
        x = self.mlp(self.ln_2(x), x)
        return x


class Transformer(Module):
    """Embeddings, blocks, and the last normalisation: from token numbers to hidden states.

    Shapes: idx int64 (B, T), result (B, T, n_embd).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.context, config.n_embd)
        self.drop = Dropout(config.dropout)
        self.h = ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = LayerNorm(config.n_embd)
        init.normal_(self.wte.weight, std=0.02)
        init.normal_(self.wpe.weight, std=0.02)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.drop(self.wte(idx) + self.wpe(creation.arange(idx.shape[1])))
        for block in self.h:
            x = block(x)
        result: Tensor = self.ln_f(x)
        return result


class GPT(Module):
    """A language model: `transformer`, and `lm_head`, whose weight is the token embedding's."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(
        self, idx: Tensor | np.ndarray, targets: Tensor | np.ndarray | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return (logits of each next token, None), or (None, mean cross-entropy) when `targets` are given.

        The loss needs no memory for the logits, which are the model's largest tensor.
        Shapes: idx and targets int64 (B, T), logits (B, T, vocab_size), loss ().
        """
        hidden = self.transformer(self._tokens(idx))
        if targets is None:
            return self.lm_head(hidden), None
        return None, losses.linear_cross_entropy(hidden, self.lm_head.weight, creation.as_tensor(targets))

    def generate(
        self,
        idx: Tensor | np.ndarray,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Continue token sequences by sampling; temperature 0 always takes the likeliest token.

        Shapes: idx int64 (B, T), result int64 (B, T + max_new_tokens). Only the last `context` tokens are looked at.
        """
        if temperature < 0 or (top_k is not None and top_k < 1):
            raise ArgumentError(
                f"generate: got temperature {temperature} and top_k {top_k}; wanted at least 0, and None or at least 1"
            )
        tokens = np.array(creation.as_tensor(idx).numpy(), np.int64)
        uniform = np.random.Generator(np.random.Philox(seed))
        was_training = self.training
        self.eval()
        try:
            with no_grad():
                for _ in range(max_new_tokens):
                    hidden = self.transformer(self._tokens(tokens[:, -self.config.context :]))
                    logits = self.lm_head(hidden[:, -1]).numpy().astype(np.float64)
                    following = _sample(logits, temperature, top_k, uniform.random(len(logits)))
                    tokens = np.concatenate([tokens, following[:, None]], axis=1)
        finally:
            self.train(was_training)
        return creation.tensor(tokens)

    def _tokens(self, idx: Tensor | np.ndarray) -> Tensor:
        idx = creation.as_tensor(idx)
        if idx.ndim != 2 or not 1 <= idx.shape[1] <= self.config.context:
            raise ShapeError(
                f"GPT: got tokens of shape {tuple(idx.shape)}, wanted (batch, 1 to {self.config.context}); "
                "use shorter sequences, or a model with a larger context"
            )
        return idx


def _residual_std(config: GPTConfig) -> float:
    """Return the spread of the projections into the residual stream, which each block adds to twice."""
    return 0.02 / math.sqrt(2 * config.n_layer)


def _sample(logits: np.ndarray, temperature: float, top_k: int | None, uniform: np.ndarray) -> Any:
    """Return one token for each row of logits, by inversion of the distribution at a uniform number."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = np.partition(logits, -top_k, axis=-1)[:, [-top_k]]
        logits = np.where(logits < least, -np.inf, logits)
    weights = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    cumulative = weights.cumsum(-1)
    return (cumulative <= uniform[:, None] * cumulative[:, [-1]]).sum(-1)
