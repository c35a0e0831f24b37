"""Llama: a decoder-only transformer, with the parameter names and shapes of Hugging Face's `LlamaForCausalLM`.

Source: Touvron et al. 2023, "LLaMA: open and efficient foundation language models"; Llama 3.1 and 3.2.
"""

import dataclasses
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files.checkpoint import dataclass_of
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.models import pretrained
from spillgrad.models.language_model import LanguageModel, tied_head
from spillgrad.nn import init
from spillgrad.nn.containers import ModuleList
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.nn.normalization import RMSNorm
from spillgrad.ops import activations, attention, creation, join_split
from spillgrad.tensor import Tensor

Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama, with Hugging Face's names, meanings and defaults.

    Parameters
    ----------
    vocab_size : int, default 32000
        Number of tokens.
    hidden_size : int, default 4096
        Width of hidden states.
    intermediate_size : int, default 11008
        Width of the feed-forward networks.
    num_hidden_layers : int, default 32
        Number of blocks.
    num_attention_heads : int, default 32
        Number of heads of attention.
    num_key_value_heads : int, optional
        Number of heads of keys and values; by default, each head has its own.
    head_dim : int, optional
        Width of a head; by default, the heads share the width evenly.
    max_position_embeddings : int, default 2048
        Largest number of positions.
    rms_norm_eps : float, default 1e-6
        Added to mean squares by the normalisations.
    rope_theta : float, default 10000.0
        Base of the rotations' frequencies.
    rope_scaling : dict, optional
        How rotations change; by default, they do not. With the `rope_type` "linear", all frequencies are divided by
        `factor`; with "llama3", only the low frequencies are divided.
    tie_word_embeddings : bool, default False
        Whether `lm_head` shares the weight of the token embedding.
    attention_bias : bool, default False
        Whether the projections of attention add biases.
    mlp_bias : bool, default False
        Whether the feed-forward networks add biases.
    attention_dropout : float, default 0.0
        Probability of dropping an attention weight in training.
    initializer_range : float, default 0.02
        Standard deviation of first weights.

    Raises
    ------
    ArgumentError
        If a size or another field is out of its range, or sizes do not fit each other.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "max_position_embeddings", "key_value_heads", "head_width"):  # fmt: skip
            size = getattr(self, name)
            if not 1 <= size < 1 << 31:
                raise ArgumentError(f"LlamaConfig: got {name} {size}; it must be at least 1, and below 2³¹")
        heads = self.num_attention_heads
        if self.head_dim is None and self.hidden_size % heads:
            raise ArgumentError(
                f"LlamaConfig: got hidden_size {self.hidden_size} and num_attention_heads {heads}; the heads must "
                "share the width evenly; else give head_dim"
            )
        if heads % self.key_value_heads:
            raise ArgumentError(
                f"LlamaConfig: got num_attention_heads {heads} and num_key_value_heads {self.key_value_heads}; the "
                "second must divide the first"
            )
        if self.head_width % 2:
            raise ArgumentError(f"LlamaConfig: got heads of {self.head_width}; rotations need an even width")
        if not _is_positive(self.rope_theta):
            raise ArgumentError(f"LlamaConfig: got rope_theta {self.rope_theta!r:.40}; wanted a positive number")
        if self.rope_scaling is not None:
            _check_scaling(self.rope_scaling)

    @property
    def context(self) -> int:
        """The largest number of positions."""
        return self.max_position_embeddings

    @property
    def key_value_heads(self) -> int:
        """The number of heads of the keys and values."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def head_width(self) -> int:
        """The width of each head."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    @classmethod
    def from_hugging_face(cls, description: Mapping[str, Any]) -> Self:
        """Return the config for the content of a ``config.json``.

        Parameters
        ----------
        description : mapping
            Content of a ``config.json``.

        Returns
        -------
        LlamaConfig
            The config.

        Raises
        ------
        CheckpointError
            For models unlike this Llama.
        """
        pretrained.require(description, {"model_type": ("llama",), "hidden_act": ("silu",), "pretraining_tp": (1,)})
        own = {field.name: description[field.name] for field in dataclasses.fields(cls) if field.name in description}
        if own.get("rope_theta") is None:
            own.pop("rope_theta", None)
        # Newer files have everything about rotations in one place.
        rotations = description.get("rope_parameters") or own.get("rope_scaling") or {}
        if not isinstance(rotations, Mapping):
            raise CheckpointError(f"config.json: got rotations {rotations!r:.80}; wanted an object that describes them")
        rotations = dict(rotations)
        own |= {"rope_theta": rotations.pop("rope_theta")} if "rope_theta" in rotations else {}
        rotations.setdefault("rope_type", rotations.pop("type", "default"))
        own["rope_scaling"] = None if rotations["rope_type"] == "default" else rotations
        pretrained.require(rotations, {"partial_rotary_factor": (1.0,)})
        return dataclass_of(cls, own, "config.json")

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the content of the ``config.json`` that describes this model as Hugging Face's `LlamaForCausalLM`.

        Returns
        -------
        dict
            The content.
        """
        own = dataclasses.asdict(self) | {"num_key_value_heads": self.key_value_heads, "head_dim": self.head_width}
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **own}


_SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _check_scaling(scaling: Mapping[str, Any]) -> None:
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise ArgumentError(f"LlamaConfig: got a rope_scaling of type {kind!r}; accepted are {', '.join(_SCALINGS)}")
    missing = [name for name in _SCALINGS[kind] if name not in scaling]
    if missing:
        raise ArgumentError(f"LlamaConfig: got a rope_scaling of type {kind!r} without {', '.join(missing)}; give them")
    wrong = [f"{name} {scaling[name]!r:.40}" for name in _SCALINGS[kind] if not _is_positive(scaling[name])]
    if wrong:
        raise ArgumentError(f"LlamaConfig: got a rope_scaling with {', '.join(wrong)}; wanted positive numbers")


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


def _frequencies(config: LlamaConfig) -> np.ndarray:
    """Return, for each pair of elements of a head, the angle by which its rotation grows from position to position.

    Units: radians. Shapes: result (head_width / 2,).
    Source: Su et al. 2021, "RoFormer", section 3.2.2; for "llama3", Llama 3.1's reference implementation.
    """
    width = config.head_width
    frequencies: np.ndarray = config.rope_theta ** -(np.arange(0, width, 2) / width)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    slow: np.ndarray = frequencies / scaling["factor"]
    if scaling["rope_type"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # The turns of a pair within the original context, scaled so that `low` gives 0 and `high` gives 1.
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    share: np.ndarray = np.clip((turns - low) / (high - low), 0, 1)
    mixed: np.ndarray = slow + share * (frequencies - slow)
    return mixed


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair (i, i + E/2) of a head's elements by the angle of its position: Llama's half-split rotation.

    Shapes: x (..., T, E), rotation a pair of cosines (T, E/2) and sines (T, E/2), result (..., T, E).
    """
    cosines, sines = rotation
    first, second = x.chunk(2, -1)
    return join_split.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


class Attention(Module):
    """Causal self-attention with rotary positions; groups of neighbouring heads share keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.attention_dropout = config.attention_dropout
        width, bias = config.hidden_size, config.attention_bias
        inner, shared = (heads * self.head_width for heads in (config.num_attention_heads, config.key_value_heads))
        self.q_proj = Linear(width, inner, bias=bias)
        self.k_proj = Linear(width, shared, bias=bias)
        self.v_proj = Linear(width, shared, bias=bias)
        self.o_proj = Linear(inner, width, bias=bias)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        dropout = self.attention_dropout if self.training else 0.0
        heads = attention.scaled_dot_product_attention(
            rotate(q, rotation), rotate(k, rotation), v, dropout_p=dropout, is_causal=True,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return self.o_proj(heads.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class MLP(Module):
    """SwiGLU: compute down_proj(SiLU(gate_proj(x)) * up_proj(x)).

    Source: Shazeer 2020, "GLU variants improve transformer".
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(activations.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Block(Module):
    """A transformer block: compute y + MLP(norm(y)), with y = x + attention(norm(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class Transformer(Module):
    """Embedding, blocks, and the last normalisation: from token numbers to hidden states.

    Shapes: idx int64 (B, T), result (B, T, hidden_size).
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.frequencies = _frequencies(config)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embed_tokens(idx)
        # In float64, because angles of far positions would be inexact in float32.
        angles = np.arange(idx.shape[1])[:, np.newaxis] * self.frequencies
        rotation = tuple(
            creation.tensor(part, dtype=x.dtype, device=x.device) for part in (np.cos(angles), np.sin(angles))
        )
        for block in self.layers:
            x = block(x, rotation)
        result: Tensor = self.norm(x)
        return result


class Llama(LanguageModel):
    """Llama as a language model: `model` and `lm_head`.

    Parameters
    ----------
    config : LlamaConfig
        Sizes of the model; it may tie the weight of `lm_head` to the embedding's.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Transformer(config)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, Linear | Embedding):
                init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, Linear) and module.bias is not None:
                init.zeros_(module.bias)
        if config.tie_word_embeddings:
            self.lm_head = tied_head(self.model.embed_tokens)

    def hidden_states(self, idx: Tensor) -> Tensor:
        """Return the input of `lm_head`.

        Parameters
        ----------
        idx : Tensor
            Token numbers, int64 of shape (B, T).

        Returns
        -------
        Tensor
            Hidden states of shape (B, T, width).
        """
        return self.model(idx)  # type: ignore[no-any-return]

    @staticmethod
    def from_safetensors(
        path: str | os.PathLike[str], config: LlamaConfig | None = None, *, model: "Llama | None" = None
    ) -> "Llama":
        """Return a Llama with weights from a safetensors file, a sharded checkpoint's index, or a folder with either.

        Tensors are read one by one. Their names are those of `LlamaForCausalLM`, with or without "model."; tables of
        frequencies are ignored. As in Hugging Face's libraries, the model is in evaluation mode.

        Parameters
        ----------
        path : str or path
            The file or folder.
        config : LlamaConfig, optional
            Sizes of the model; by default, those of the ``config.json`` beside the file.
        model : Llama, optional
            Model that takes the weights; by default, a new one.

        Returns
        -------
        Llama
            The model.

        Raises
        ------
        MissingFileError
            If a file does not exist.
        CheckpointError
            For a damaged file, and for weights of another model; the message then lists all differences.
        """
        return from_safetensors(path, config, model=model)


def from_safetensors(
    path: str | os.PathLike[str], config: LlamaConfig | None = None, *, model: Llama | None = None
) -> Llama:
    """Return a Llama with weights from a safetensors file, a sharded checkpoint's index, or a folder with either.

    Tensors are read one by one, into a new model or into `model`. Their names are those of `LlamaForCausalLM`, with or
    without "model."; tables of frequencies ("rotary_emb.inv_freq") are ignored. `config` defaults to the `config.json`
    beside the file; it cannot be inferred, because shapes do not show the number of heads. As in Hugging Face's
    libraries, the model is in evaluation mode.
    Raises MissingFileError if a file does not exist. Raises CheckpointError for a damaged file, and for weights of
    another model; the message then lists all differences.
    """
    return pretrained.model_of(
        Llama, path, config, model, own_weights=_own_weights, config_of=config_of, layers="num_hidden_layers",
        embedding="model.embed_tokens.weight",
    )  # fmt: skip


def config_of(
    saved: Mapping[str, StoredTensor], description: Mapping[str, Any] | None, path: str | os.PathLike[str]
) -> LlamaConfig:
    """Return the config in `description`, the content of a `config.json`. Raises CheckpointError if that is None."""
    if description is None:
        raise CheckpointError(f"from_safetensors: {path} has no config.json beside it; give a config")
    return LlamaConfig.from_hugging_face(description)


def _own_weights(saved: pretrained.Weights) -> pretrained.Weights:
    return {
        name if name.startswith(("model.", "lm_head.")) else f"model.{name}": tensor
        for name, tensor in saved.items()
        if not name.endswith("rotary_emb.inv_freq")
    }
