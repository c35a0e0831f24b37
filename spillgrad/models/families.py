"""The table of what families of decoder-only models have that Llama has not.

`DecoderConfig` holds a model's sizes and numbers; a row here holds what all models of a family share. The class
`Decoder` builds any of them. Facts are those of Hugging Face's classes, which define how published weights compute.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
# Fields of a config that count for some families alone.
SOME_HAVE = (
    "attention_bias", "mlp_bias", "sliding_window", "layer_types", "partial_rotary_factor", "rope_local_base_freq",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Family:
    """A row of the table; the defaults are Llama's."""

    architecture: str
    """Name of Hugging Face's class."""
    qkv_bias: bool = False
    """Whether the projections to queries, keys and values add biases, whatever `attention_bias` says."""
    qk_norm: bool = False
    """Whether queries and keys are normalised, head by head, before they are rotated."""
    fused: bool = False
    """Whether one matrix projects to queries, keys and values, and one to gate and up."""
    offset_norms: bool = False
    """Whether normalisations scale by 1 + weight."""
    norms_results: bool = False
    """Whether results of attention and of the feed-forward network are normalised before they are added."""
    scaled_embedding: bool = False
    """Whether embeddings are multiplied by the square root of their width."""
    own: tuple[str, ...] = ()
    """The fields of a config that count for this family, of those in `SOME_HAVE`; its class ignores the others."""
    activation: str = "hidden_act"
    """The entry of `config.json` that names the activation."""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What a `config.json` of this family means if it lacks these entries."""
    accepted: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    """Entries of a `config.json` that change what is computed, each with the values that `Decoder` can do."""
    layer_types: Callable[[Mapping[str, Any], int], list[str]] | None = None
    """From a `config.json` without `layer_types` and the number of layers: the attention of each layer."""
    window_switch: str | None = None
    """The entry of `config.json` without which `sliding_window` means nothing."""


def _from_max_window_layers(description: Mapping[str, Any], layers: int) -> list[str]:
    first = description.get("max_window_layers", 28)
    return [SLIDING if type(first) is int and layer >= first else FULL for layer in range(layers)]


def _every_second(description: Mapping[str, Any], layers: int) -> list[str]:
    return [FULL if layer % 2 else SLIDING for layer in range(layers)]


def _all_but_each_sixth(description: Mapping[str, Any], layers: int) -> list[str]:
    pattern = description.get("sliding_window_pattern", 6)
    pattern = pattern if type(pattern) is int and pattern > 0 else 6
    return [SLIDING if (layer + 1) % pattern else FULL for layer in range(layers)]


_GEMMA: dict[str, Any] = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_QWEN: dict[str, Any] = {
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    "sliding_window": 4096,
}  # fmt: skip
_GEMMAS_OWN = (
    "attention_bias", "sliding_window", "layer_types", "query_pre_attn_scalar", "final_logit_softcapping",
)  # fmt: skip
_ONE_WAY: dict[str, tuple[Any, ...]] = {"use_bidirectional_attention": (None, False)}

FAMILIES: dict[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM", own=("attention_bias", "mlp_bias"), accepted={"pretraining_tp": (1,)},
        defaults={"bos_token_id": 1, "eos_token_id": 2},
    ),
    "mistral": Family(
        "MistralForCausalLM",
        own=("sliding_window",),
        defaults={
            "bos_token_id": 1,
            "eos_token_id": 2,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM", own=("sliding_window", "layer_types"), qkv_bias=True, defaults=_QWEN,
        layer_types=_from_max_window_layers, window_switch="use_sliding_window",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM", own=("attention_bias", "sliding_window", "layer_types"), qk_norm=True,
        defaults={**_QWEN, "head_dim": 128}, layer_types=_from_max_window_layers,
        window_switch="use_sliding_window",
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        own=("sliding_window", "partial_rotary_factor"),
        fused=True,
        defaults={
            "bos_token_id": 1,
            "eos_token_id": 32000,
            "pad_token_id": 32000,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        accepted={"resid_pdrop": (0.0,), "embd_pdrop": (0.0,)},
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM", own=(*_GEMMAS_OWN, "attn_logit_softcapping"), offset_norms=True, norms_results=True,
        scaled_embedding=True, activation="hidden_activation", layer_types=_every_second, accepted=_ONE_WAY,
        defaults={**_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM", own=(*_GEMMAS_OWN, "rope_local_base_freq"), qk_norm=True, offset_norms=True,
        norms_results=True, scaled_embedding=True, activation="hidden_activation", layer_types=_all_but_each_sixth,
        accepted=_ONE_WAY,
        defaults={
            **_GEMMA, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
        },
    ),
}  # fmt: skip
