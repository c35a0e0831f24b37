"""GPT-2: a decoder-only transformer, with the parameter names and shapes of Hugging Face's `GPT2LMHeadModel`.

Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files.checkpoint import dataclass_of
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.models import pretrained
from spillgrad.models.attended import KeyValueCache, LayerCache, first_keys, heads_of
from spillgrad.models.language_model import LanguageModel, tied_head
from spillgrad.nn import init
from spillgrad.nn.containers import ModuleList
from spillgrad.nn.dropout import Dropout
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.gpt2_linear import Conv1D
from spillgrad.nn.module import Module
from spillgrad.nn.normalization import LayerNorm
from spillgrad.ops import creation
from spillgrad.ops.causal_attention import causal_attention
from spillgrad.tensor import Tensor


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT; the defaults are GPT-2's.

    Parameters
    ----------
    vocab_size : int, default 50257
        Number of tokens.
    context : int, default 1024
        Largest number of positions.
    n_layer : int, default 12
        Number of blocks.
    n_head : int, default 12
        Number of heads of attention; it divides the width.
    n_embd : int, default 768
        Width of hidden states.
    dropout : float, default 0.0
        Probability of dropping an element in training.
    layer_norm_epsilon : float, default 1e-5
        Added to variances by the normalisations.

    Raises
    ------
    ArgumentError
        If a size is less than 1, or the heads do not share the width evenly.
    """

    vocab_size: int = 50257
    context: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_layer", "n_head", "n_embd"):
            size = getattr(self, name)
            if not 1 <= size < 1 << 31:
                raise ArgumentError(f"GPTConfig: got {name} {size}; it must be at least 1, and below 2³¹")
        if self.n_embd % self.n_head:
            raise ArgumentError(
                f"GPTConfig: got n_embd {self.n_embd} and n_head {self.n_head}; the heads must share the width evenly"
            )

    @classmethod
    def from_hugging_face(cls, description: Mapping[str, Any]) -> Self:
        """Return the config for the content of a ``config.json``.

        Parameters
        ----------
        description : mapping
            Content of a ``config.json``.

        Returns
        -------
        GPTConfig
            The config.

        Raises
        ------
        CheckpointError
            For models unlike this GPT-2.
        """
        width = description.get("n_embd", cls.n_embd)
        accepted = {
            "model_type": ("gpt2",),
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "n_inner": (None, 4 * width if type(width) is int else None),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        }
        pretrained.require(description, accepted)
        drops = [description.get(f"{place}_pdrop", 0.1) for place in ("embd", "attn", "resid")]
        if any(drop != drops[0] for drop in drops):
            raise CheckpointError(
                f"config.json: got embd_pdrop, attn_pdrop and resid_pdrop of {', '.join(map(str, drops))}; GPT has one "
                "dropout: give a config"
            )
        own = {name: description[name] for name in _SHARED_FIELDS if name in description}
        own |= {"context": description.get("n_positions", cls.context), "dropout": drops[0]}
        return dataclass_of(cls, own, "config.json")

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the content of the ``config.json`` that describes this model as Hugging Face's `GPT2LMHeadModel`.

        Returns
        -------
        dict
            The content.
        """
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **{name: getattr(self, name) for name in _SHARED_FIELDS},
            "n_positions": self.context,
            "embd_pdrop": self.dropout,
            "attn_pdrop": self.dropout,
            "resid_pdrop": self.dropout,
        }


_SHARED_FIELDS = ("vocab_size", "n_layer", "n_head", "n_embd", "layer_norm_epsilon")


def _add_to(residual: Tensor, x: Tensor, projection: Conv1D, dropout: Dropout) -> Tensor:
    """Return residual + dropout(projection(x)), in as few passes over memory as possible."""
    if dropout.p > 0 and dropout.training:
        return dropout(projection(x), residual)  # type: ignore[no-any-return]
    return projection(x, residual)  # type: ignore[no-any-return]


class Attention(Module):
    """Add causal self-attention of `x` to `residual`. Shapes: x, residual and result (B, T, n_embd)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd, std=_residual_std(config))
        self.attention_dropout = config.dropout
        self.resid_dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, residual: Tensor, first_keys: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        batch, length, width = x.shape
        qkv = self.c_attn(x)
        dropout = self.attention_dropout if self.training else 0.0
        if cache is None:
            q, k, v = (
                part.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
                for part in qkv.split(width, -1)
            )
            heads = causal_attention(q, k, v, first_keys, dropout)
            attended = heads.transpose(1, 2).reshape(batch, length, width)
        else:
            attended = cache.attend(*heads_of(qkv, self.n_head), first_keys, dropout)
        return _add_to(residual, attended, self.c_proj, self.resid_dropout)


class MLP(Module):
    """Project `x` to four times its width, apply GELU, project it back, and add the result to `residual`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = Conv1D(config.n_embd, 4 * config.n_embd, activation="gelu_tanh")
        self.c_proj = Conv1D(4 * config.n_embd, config.n_embd, std=_residual_std(config))
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return _add_to(residual, self.c_fc(x), self.c_proj, self.dropout)


class Block(Module):
    """A transformer block: compute y + MLP(norm(y)), with y = x + attention(norm(x))."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, first_keys: Tensor | None = None, cache: LayerCache | None = None) -> Tensor:
        x = self.attn(self.ln_1(x), x, first_keys, cache)
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
        self.ln_f = LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        init.normal_(self.wte.weight, std=0.02)
        init.normal_(self.wpe.weight, std=0.02)

    def forward(self, idx: Tensor, starts: np.ndarray | None = None, cache: KeyValueCache | None = None) -> Tensor:
        queries = idx.shape[1]
        before = 0 if cache is None else cache.length
        positions: Any = np.arange(before, before + queries)
        positions = creation.tensor(positions if starts is None else positions - starts, device=idx.device)
        first = first_keys(queries, before + queries, None, starts)
        seen = None if first is None else creation.tensor(first, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for number, block in enumerate(self.h):
            x = block(x, seen, None if cache is None else cache.layers[number])
        result: Tensor = self.ln_f(x)
        return result


class GPT(LanguageModel):
    """GPT-2 as a language model: `transformer`, and `lm_head`, which shares the weight of the token embedding.

    Parameters
    ----------
    config : GPTConfig
        Sizes of the model.

    Examples
    --------
    >>> import spillgrad as sg
    >>> config = sg.models.GPTConfig(vocab_size=256, context=16, n_layer=1, n_head=2, n_embd=8)
    >>> model = sg.models.GPT(config)
    >>> logits, _ = model(sg.zeros(1, 4, dtype="int64"))
    >>> logits.shape
    (1, 4, 256)
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.lm_head = tied_head(self.transformer.wte)

    @property
    def layers(self) -> int:
        return self.config.n_layer  # type: ignore[no-any-return]

    def hidden_states(
        self, idx: Tensor, starts: np.ndarray | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:  # fmt: skip
        return self.transformer(idx, starts, cache)  # type: ignore[no-any-return]


def _residual_std(config: GPTConfig) -> float:
    """Return the initial standard deviation of the projections that add to the residual stream, two in each block."""
    return 0.02 / math.sqrt(2 * config.n_layer)


def from_safetensors(path: str | os.PathLike[str], config: GPTConfig | None = None, *, model: GPT | None = None) -> GPT:
    """Return a GPT with weights from a safetensors file, the index of a sharded checkpoint, or a folder with either.

    Tensors are read one by one, into a new model or into `model`. Their names are those of `GPT2LMHeadModel` or,
    without "transformer.", of `GPT2Model`; masks ("attn.bias") are ignored. `config` defaults to the `config.json`
    beside the file; if that is missing, the config is inferred from the weights, assuming heads of width 64, as in
    all published models. As in Hugging Face's libraries, the model is in evaluation mode.
    Raises MissingFileError if a file does not exist. Raises CheckpointError for a damaged file, and for weights of
    another model; the message then lists all differences.
    """
    made: GPT = pretrained.model_of(LAYOUT, path, config, model)
    return made


def config_of(
    saved: Mapping[str, StoredTensor], description: Mapping[str, Any] | None, path: str | os.PathLike[str]
) -> GPTConfig:
    """Return the config in `description`, the content of a `config.json`; if that is None, infer it from the weights.

    Raises CheckpointError if the description or the shapes of the weights give no config.
    """
    if description is not None:
        return GPTConfig.from_hugging_face(description)
    return _inferred(_own_weights(saved), path)


_MASK = re.compile(r"\.attn\.(masked_)?bias$")


def _own_weights(saved: Mapping[str, StoredTensor]) -> pretrained.Weights:
    return {
        name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor
        for name, tensor in saved.items()
        if not _MASK.search(name)
    }


def _inferred(saved: Mapping[str, StoredTensor], path: str | os.PathLike[str]) -> GPTConfig:
    """Return a config inferred from the shapes of the weights. Raises CheckpointError if they are not GPT-2's."""
    tables = [saved.get(f"transformer.{name}.weight") for name in ("wte", "wpe")]
    numbers = [int(found[1]) for name in saved if (found := re.match(r"transformer\.h\.(\d+)\.", name))]
    shapes = [table.shape for table in tables if table is not None and table.ndim == 2]
    if len(shapes) != 2 or not numbers:
        raise CheckpointError(f"from_safetensors: {path} holds no GPT-2: wanted wte.weight, wpe.weight and h.0.…")
    (vocab_size, width), (context, _) = shapes
    if width % _HEAD_WIDTH:
        raise CheckpointError(
            f"from_safetensors: {path} has no config.json, and its width of {width} is no multiple of {_HEAD_WIDTH}, "
            "the width of GPT-2's heads; give a config"
        )
    return GPTConfig(vocab_size, context, max(numbers) + 1, width // _HEAD_WIDTH, width)


_HEAD_WIDTH = 64


LAYOUT = pretrained.Layout(GPT, _own_weights, config_of, "n_layer", "transformer.wte.weight", "h")
