"""A GPT and its training step in plain PyTorch, in RAM or with saved tensors on disk.

Source: Radford et al. 2019, "Language models are unsupervised multitask learners"; parameter names of Hugging Face's
`GPT2LMHeadModel`.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from spillgrad.interop.torch import save_on_disk
from spillgrad_tools.bench.gpt import Spilling

# PyTorch's tutorial keeps tensors of fewer elements in RAM.
FEWEST_ELEMENTS = 1000


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention."""

    def __init__(self, width: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """Return what each position gathers from those before it."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(width, -1)
        )
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(heads.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):  # type: ignore[misc]
    """Two projections with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Return the projections of x."""
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):  # type: ignore[misc]
    """Attention, then MLP, each on the normalised stream and added to it."""

    def __init__(self, width: int, n_head: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, n_head)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Any) -> Any:
        """Return the stream with both added."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):  # type: ignore[misc]
    """A language model whose last layer has the token embedding's weight."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["n_embd"]
        blocks = nn.ModuleList(Block(width, config["n_head"]) for _ in range(config["n_layer"]))
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config["vocab_size"], width),
                "wpe": nn.Embedding(config["context"], width),
                "h": blocks,
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, config["vocab_size"], bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, idx: Any, targets: Any) -> Any:
        """Return the mean cross-entropy of the targets."""
        parts = self.transformer
        x = parts.wte(idx) + parts.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in parts.h:
            x = block(x)
        logits = self.lm_head(parts.ln_f(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copy GPT-2's parameters; the weights of its linear layers are transposed."""
        for name, parameter in self.named_parameters():
            array = weights[name]
            turned = name.endswith("weight") and (".c_" in name)
            parameter.copy_(torch.from_numpy(array.T if turned else array))


class SelfDeletingTempFile:
    """The file of one saved tensor, removed with the node that saved it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / str(uuid.uuid4())

    def __del__(self) -> None:
        os.remove(self.path)


def file_per_tensor(directory: Path) -> Any:
    """Return the hooks of PyTorch's tutorial "Hooks for autograd saved tensors": each tensor in a file of its own."""

    def pack(tensor: Any) -> Any:
        if tensor.numel() < FEWEST_ELEMENTS:
            return tensor.detach()
        file = SelfDeletingTempFile(directory)
        torch.save(tensor, file.path)
        return file

    def unpack(packed: Any) -> Any:
        return torch.load(packed.path) if isinstance(packed, SelfDeletingTempFile) else packed

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class Training:
    """A model with given parameters, or drawn ones, and its optimizer.

    Saved tensors stay in RAM, or go to `directory`: beyond `spill_budget`, or each to a file of its own.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, np.ndarray] | None,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        directory: str | None = None,
        spill_budget: int | str | None = None,
        file_per_tensor: bool = False,
        device: str = "cpu",
    ) -> None:
        self.device = device
        self.directory = Path(directory) if directory and file_per_tensor else None
        self.spill = None if spill_budget is None else Spilling(save_on_disk(directory, ram_budget=spill_budget))
        self.model = GPT(config)
        if weights is not None:
            self.model.load(weights)
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=lr, betas=tuple(betas), weight_decay=weight_decay, fused=True
        )

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """Run forward, backward and the optimizer's step; return the loss."""
        self.optimizer.zero_grad()
        given = [torch.from_numpy(array).to(self.device) for array in (inputs, targets)]
        with self.saving():
            loss = self.model(*given)
        loss.backward()
        self.optimizer.step()
        value: float = loss.item()
        return value

    def saving(self) -> Any:
        """Return the context of a forward pass."""
        if self.directory is not None:
            return file_per_tensor(self.directory)
        return self.spill or contextlib.nullcontext()

    def gradients(self) -> Iterator[np.ndarray]:
        """Yield what the last step left on each parameter."""
        for parameter in self.model.parameters():
            yield parameter.grad.numpy()
