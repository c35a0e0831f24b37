"""A GPT and its training step in Paddle, in RAM or with saved tensors on disk.

Source: Radford et al. 2019, "Language models are unsupervised multitask learners"; parameter names of Hugging Face's
`GPT2LMHeadModel`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional

from spillgrad.interop.paddle import save_on_disk
from spillgrad_tools.bench.gpt import Spilling
from spillgrad_tools.bench.operations import Library


class Attention(nn.Layer):  # type: ignore[misc]
    """Causal self-attention."""

    def __init__(self, width: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """Return what each position gathers from those before it."""
        batch, length, width = x.shape
        heads = self.c_attn(x).reshape([batch, length, 3, self.n_head, width // self.n_head])
        q, k, v = heads.unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.reshape([batch, length, width]))


class MLP(nn.Layer):  # type: ignore[misc]
    """Two projections with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Return the projections of x."""
        return self.c_proj(functional.gelu(self.c_fc(x), approximate=True))


class Block(nn.Layer):  # type: ignore[misc]
    """Attention, then MLP, each on the normalised stream and added to it."""

    def __init__(self, width: int, n_head: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, n_head)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Any) -> Any:
        """Return the stream with both added."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Layer):  # type: ignore[misc]
    """A language model whose last layer has the token embedding's weight."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["n_embd"]
        blocks = nn.LayerList([Block(width, config["n_head"]) for _ in range(config["n_layer"])])
        self.transformer = nn.LayerDict(
            {
                "wte": nn.Embedding(config["vocab_size"], width),
                "wpe": nn.Embedding(config["context"], width),
                "h": blocks,
                "ln_f": nn.LayerNorm(width),
            }
        )

    def forward(self, idx: Any, targets: Any) -> Any:
        """Return the mean cross-entropy of the targets."""
        parts = self.transformer
        x = parts["wte"](idx) + parts["wpe"](paddle.arange(idx.shape[1]))
        for block in parts["h"]:
            x = block(x)
        logits = paddle.matmul(parts["ln_f"](x), parts["wte"].weight, transpose_y=True)
        return functional.cross_entropy(logits.reshape([-1, logits.shape[-1]]), targets.reshape([-1]))

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copy GPT-2's parameters."""
        for name, parameter in self.named_parameters():
            parameter.set_value(weights[name])


class Training:
    """A model with given parameters, or drawn ones, and its optimizer; saved tensors go to `directory`."""

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, np.ndarray] | None,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        directory: str,
        spill_budget: int | str | None = None,
    ) -> None:
        paddle.seed(0)
        self.model = GPT(config)
        if weights is not None:
            self.model.load(weights)
        self.optimizer = paddle.optimizer.AdamW(
            lr, beta1=betas[0], beta2=betas[1], parameters=self.model.parameters(), weight_decay=weight_decay
        )
        self.spill = None if spill_budget is None else Spilling(save_on_disk(directory, ram_budget=spill_budget))

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """Run forward, backward and the optimizer's step; return the loss."""
        self.optimizer.clear_grad(set_to_zero=False)
        given = [paddle.to_tensor(array) for array in (inputs, targets)]
        with self.spill or contextlib.nullcontext():
            loss = self.model(*given)
        loss.backward()
        self.optimizer.step()
        return float(loss)

    def gradients(self) -> Iterator[np.ndarray]:
        """Yield what the last step left on each parameter."""
        for parameter in self.model.parameters():
            yield parameter.grad.numpy()


class Paddle(Library):
    """Paddle, which only trains."""

    version = f"Paddle {paddle.__version__}"
    training = Training

    def set_num_threads(self, count: int) -> None:
        """Use so many threads."""
        paddle.set_flags({"FLAGS_paddle_num_threads": count})


LIBRARY = Paddle
