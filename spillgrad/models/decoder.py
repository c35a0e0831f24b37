"""Decoder-only models of many families, with the parameter names and shapes of Hugging Face's classes.

One class builds them all: `spillgrad.models.families` says what each has that Llama has not.
Source: Touvron et al. 2023, "LLaMA: open and efficient foundation language models", and the reports of the families:
Llama 3, Mistral 7B, Qwen2 and Qwen3, Phi-3, Gemma 2 and Gemma 3.
"""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spillgrad.errors import CheckpointError
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.models import pretrained
from spillgrad.models.attended import KeyValueCache, LayerCache, first_keys
from spillgrad.models.decoder_config import DecoderConfig
from spillgrad.models.families import FULL, SLIDING
from spillgrad.models.language_model import LanguageModel, tied_head
from spillgrad.models.rotations import Angles, Rotation, rotate, rotate_one, rotation_at
from spillgrad.nn import init
from spillgrad.nn.containers import ModuleList
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.nn.normalization import RMSNorm
from spillgrad.ops import activations, creation
from spillgrad.ops.arithmetic import add, mul
from spillgrad.ops.causal_attention import causal_attention
from spillgrad.ops.normalization import rms_norm
from spillgrad.tensor import Tensor


class OffsetRMSNorm(RMSNorm):
    """Divide by the root mean square of the last dimension, then multiply by 1 + weight; the weight begins as zeros."""

    def reset_parameters(self) -> None:
        assert self.weight is not None
        init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return rms_norm(x, self.normalized_shape, add(self.weight, 1), self.eps)


def _norm(config: DecoderConfig, width: int) -> RMSNorm:
    return (OffsetRMSNorm if config.family.offset_norms else RMSNorm)(width, eps=config.rms_norm_eps)


class Attention(Module):
    """Causal self-attention with rotary positions; groups of neighbouring heads share keys and values.

    Shapes: x and result (B, T, hidden_size).
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.attention_dropout = config.attention_dropout
        self.scale = config.score_scale
        self.softcap = config.attn_logit_softcapping
        width, bias, family = config.hidden_size, config.attention_bias, config.family
        inner, shared = (heads * self.head_width for heads in (config.num_attention_heads, config.key_value_heads))
        self.split = (inner, shared, shared)
        if family.fused:
            self.qkv_proj = Linear(width, sum(self.split), bias=bias)
        else:
            self.q_proj = Linear(width, inner, bias=bias or family.qkv_bias)
            self.k_proj = Linear(width, shared, bias=bias or family.qkv_bias)
            self.v_proj = Linear(width, shared, bias=bias or family.qkv_bias)
        self.o_proj = Linear(inner, width, bias=bias)
        if family.qk_norm:
            self.q_norm = _norm(config, self.head_width)
            self.k_norm = _norm(config, self.head_width)
        self.is_fused, self.normalizes = family.fused, family.qk_norm

    def forward(
        self, x: Tensor, rotation: Rotation, first_keys: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv_proj(x).split(self.split, -1) if self.is_fused else (
            projection(x) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )  # fmt: skip
        q, k, v = (part.view(batch, length, -1, self.head_width).transpose(1, 2) for part in parts)
        if self.normalizes:
            q, k = self.q_norm(q), self.k_norm(k)
        is_recorded = q.grad_fn is not None or k.grad_fn is not None
        turn = rotate if cache is None or length > 1 or is_recorded else rotate_one
        q, k = turn(q, rotation), turn(k, rotation)
        dropout = self.attention_dropout if self.training else 0.0
        if cache is None:
            heads = causal_attention(q, k, v, first_keys, dropout, self.scale, self.softcap)
            attended = heads.transpose(1, 2).reshape(batch, length, -1)
        else:
            attended = cache.attend(q, k, v, first_keys, dropout, self.scale, self.softcap)
        return self.o_proj(attended)  # type: ignore[no-any-return]


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": activations.silu,
    "gelu": activations.gelu,
    "gelu_pytorch_tanh": lambda x: activations.gelu(x, "tanh"),
}


class MLP(Module):
    """A gated feed-forward network: compute down(activation(gate(x)) * up(x)).

    Source: Shazeer 2020, "GLU variants improve transformer".
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.activation = config.hidden_act
        self.is_fused = config.family.fused
        if self.is_fused:
            self.gate_up_proj = Linear(width, 2 * inner, bias=bias)
        else:
            self.gate_proj = Linear(width, inner, bias=bias)
            self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1) if self.is_fused else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(_ACTIVATIONS[self.activation](gate) * up)  # type: ignore[no-any-return]


class Block(Module):
    """A transformer block: compute y + MLP(norm(y)), with y = x + attention(norm(x)).

    In families that normalise results, too, what is added is norm(attention(…)) and norm(MLP(…)).
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        width = config.hidden_size
        self.input_layernorm = _norm(config, width)
        self.post_attention_layernorm = _norm(config, width)
        self.norms_results = config.family.norms_results
        if self.norms_results:
            self.pre_feedforward_layernorm = _norm(config, width)
            self.post_feedforward_layernorm = _norm(config, width)

    def forward(
        self, x: Tensor, rotation: Rotation, first_keys: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), rotation, first_keys, cache)
        if not self.norms_results:
            x = x + attended
            return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]
        x = x + self.post_attention_layernorm(attended)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))  # type: ignore[no-any-return]


def _lengths(starts: np.ndarray) -> np.ndarray:
    """Return, for each token, how many its document has. Shapes: starts (B, T), result (B, 1, T, 1)."""
    counts = np.stack([np.bincount(row, minlength=row.size)[row] for row in starts])
    return counts[:, np.newaxis, :, np.newaxis]


def _angles(config: DecoderConfig, kind: str, lengths: np.ndarray) -> Angles:
    """Return the angles for tokens of documents of these lengths, which differ where long contexts turn otherwise."""
    each = {int(length): config.angles(kind, int(length)) for length in np.unique(lengths)}
    first, *others = each.values()
    if all(np.array_equal(first.frequencies, other.frequencies) for other in others):
        return first
    of = np.stack([each[int(length)].frequencies for length in lengths.ravel()])
    return Angles(of.reshape(*lengths.shape[:-1], -1), first.factor)


class Transformer(Module):
    """Embedding, blocks, and the last normalisation: from token numbers to hidden states.

    Shapes: idx int64 (B, T), result (B, T, hidden_size).
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = _norm(config, config.hidden_size)

    def forward(self, idx: Tensor, starts: np.ndarray | None = None, cache: KeyValueCache | None = None) -> Tensor:
        config = self.config
        x = self.embed_tokens(idx)
        if config.family.scaled_embedding:
            # Rounded to the embedding's precision, as in the reference.
            x = mul(x, creation.tensor(math.sqrt(config.hidden_size), dtype=x.dtype, device=x.device))
        queries = idx.shape[1]
        keys = queries + (0 if cache is None else cache.length)
        positions = np.arange(keys - queries, keys)
        if starts is not None:
            positions = (positions - starts)[:, np.newaxis]
        lengths = np.asarray(keys) if starts is None else _lengths(starts)
        types = [config.layer_type(layer) for layer in range(len(self.layers))]
        rotations, seen = {}, {}
        for kind in dict.fromkeys(types):
            rotations[kind] = rotation_at(positions, _angles(config, kind, lengths), x)
            first = first_keys(queries, keys, config.sliding_window if kind == SLIDING else None, starts)
            seen[kind] = None if first is None else creation.tensor(first, device=x.device)
        for number, (block, kind) in enumerate(zip(self.layers, types, strict=True)):
            x = block(x, rotations[kind], seen[kind], None if cache is None else cache.layers[number])
        result: Tensor = self.norm(x)
        return result


class Decoder(LanguageModel):
    """A decoder-only language model of the Llama kind: `model` and `lm_head`.

    Parameters
    ----------
    config : DecoderConfig
        Sizes and family of the model; it may tie the weight of `lm_head` to the embedding's.
    """

    def __init__(self, config: DecoderConfig) -> None:
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

    @property
    def layers(self) -> int:
        return self.config.num_hidden_layers  # type: ignore[no-any-return]

    @property
    def logit_softcap(self) -> float | None:
        return self.config.final_logit_softcapping  # type: ignore[no-any-return]

    def keeps_keys(self, former: int, length: int) -> bool:
        return all(
            np.array_equal(self.config.angles(kind, former).frequencies, self.config.angles(kind, length).frequencies)
            for kind in (FULL, SLIDING)
        )

    def hidden_states(
        self, idx: Tensor, starts: np.ndarray | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:  # fmt: skip
        return self.model(idx, starts, cache)  # type: ignore[no-any-return]

    @staticmethod
    def from_safetensors(
        path: str | os.PathLike[str], config: DecoderConfig | None = None, *, model: "Decoder | None" = None
    ) -> "Decoder":
        """Return a model with weights from a safetensors file, a sharded checkpoint's index, or a folder with either.

        Tensors are read one by one. Their names are those of Hugging Face's `LlamaForCausalLM`, with or without
        "model."; tables of frequencies are ignored. As in Hugging Face's libraries, the model is in evaluation mode.

        Parameters
        ----------
        path : str or path
            The file or folder.
        config : DecoderConfig, optional
            Sizes of the model; by default, those of the ``config.json`` beside the file.
        model : Decoder, optional
            Model that takes the weights; by default, a new one.

        Returns
        -------
        Decoder
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
    path: str | os.PathLike[str], config: DecoderConfig | None = None, *, model: Decoder | None = None
) -> Decoder:
    """Return a model with weights from a safetensors file, a sharded checkpoint's index, or a folder with either.

    Tensors are read one by one, into a new model or into `model`. Their names are those of Hugging Face's
    `LlamaForCausalLM`, with or without "model."; tables of frequencies ("rotary_emb.inv_freq") are ignored. `config`
    defaults to the `config.json` beside the file; it cannot be inferred, because shapes do not show the number of
    heads. As in Hugging Face's libraries, the model is in evaluation mode.
    Raises MissingFileError if a file does not exist. Raises CheckpointError for a damaged file, and for weights of
    another model; the message then lists all differences.
    """
    made: Decoder = pretrained.model_of(LAYOUT, path, config, model)
    return made


def config_of(
    saved: Mapping[str, StoredTensor], description: Mapping[str, Any] | None, path: str | os.PathLike[str]
) -> DecoderConfig:
    """Return the config in `description`, the content of a `config.json`. Raises CheckpointError if that is None."""
    if description is None:
        raise CheckpointError(f"from_safetensors: {path} has no config.json beside it; give a config")
    return DecoderConfig.from_hugging_face(description)


def _own_weights(saved: pretrained.Weights) -> pretrained.Weights:
    return {
        name if name.startswith(("model.", "lm_head.")) else f"model.{name}": tensor
        for name, tensor in saved.items()
        if not name.endswith("rotary_emb.inv_freq")
    }


LAYOUT = pretrained.Layout(Decoder, _own_weights, config_of, "num_hidden_layers", "model.embed_tokens.weight", "layers")
