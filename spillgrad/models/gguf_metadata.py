"""What a GGUF file of llama.cpp says of a model: its architecture, sizes and rotations.

Source: llama.cpp's `convert_hf_to_gguf.py`, and the keys that its loader reads.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import CheckpointError
from spillgrad.models.families import FAMILIES, FULL, SLIDING

# The names of architectures by Hugging Face's model types. Mistral is computed as Llama is.
_ARCHITECTURES = {
    "gpt2": "gpt2", "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3",
}  # fmt: skip
# Models whose norms multiply by 1 + weight; GGUF stores the sum.
GEMMAS = ("gemma", "gemma2", "gemma3")
# Every so-many-th layer attends to all positions; llama.cpp's loader assumes it.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6}
# The models of which llama.cpp scales queries by the width over the heads, by their number of layers.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
# The base of rotations in layers with a window, which llama.cpp's loader assumes.
_LOCAL_THETA = 10_000.0


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a ``config.json`` with the entries that it leaves out because they are usual."""
    family = FAMILIES.get(config.get("model_type", ""))
    return dict(config) if family is None else {**family.defaults, **config}


class Sizes(NamedTuple):
    """The sizes of a model that its tensors depend on."""

    architecture: str
    layers: int
    heads: int
    key_value_heads: int
    head_width: int


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """Return the sizes in the content of a ``config.json``. Raises CheckpointError for unknown models."""
    kind = config.get("model_type")
    if kind not in _ARCHITECTURES:
        raise CheckpointError(f"gguf: got a model of the type {kind!r:.40}; known are {', '.join(_ARCHITECTURES)}")
    if kind == "gpt2":
        heads = _get(config, "n_head")
        return Sizes("gpt2", _get(config, "n_layer"), heads, heads, _get(config, "n_embd") // heads)
    heads = _get(config, "num_attention_heads")
    width = config.get("head_dim") or _get(config, "hidden_size") // heads
    layers = _get(config, "num_hidden_layers")
    return Sizes(_ARCHITECTURES[kind], layers, heads, config.get("num_key_value_heads") or heads, width)


def add_metadata(writer: Any, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Tell a `GGUFWriter` the sizes of a model; return further tensors, which scale rotations, by name.

    Raises CheckpointError for what llama.cpp does not compute.
    """
    sizes = sizes_of(config)
    writer.add_block_count(sizes.layers)
    writer.add_head_count(sizes.heads)
    writer.add_vocab_size(_get(config, "vocab_size"))
    if sizes.architecture == "gpt2":
        width = _get(config, "n_embd")
        writer.add_context_length(config.get("n_positions", 1024))
        writer.add_embedding_length(width)
        writer.add_feed_forward_length(config.get("n_inner") or 4 * width)
        writer.add_layer_norm_eps(config.get("layer_norm_epsilon", 1e-5))
        return {}
    context = _get(config, "max_position_embeddings")
    writer.add_context_length(context)
    writer.add_embedding_length(_get(config, "hidden_size"))
    writer.add_feed_forward_length(_get(config, "intermediate_size"))
    writer.add_head_count_kv(sizes.key_value_heads)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_key_length(sizes.head_width)
    writer.add_value_length(sizes.head_width)
    _add_window(writer, config, sizes)
    if sizes.architecture in GEMMAS:
        _add_softcaps(writer, config, sizes)
    return _add_rotations(writer, config, sizes, context)


def _add_window(writer: Any, config: Mapping[str, Any], sizes: Sizes) -> None:
    """Tell of the window of attention, if there is one."""
    window = config.get("sliding_window")
    kinds = config.get("layer_types")
    every = _FULL_EVERY.get(sizes.architecture)
    if every is not None:
        wanted = [SLIDING if (layer + 1) % every else FULL for layer in range(sizes.layers)]
        if (kinds is not None and kinds != wanted) or config.get("sliding_window_pattern", every) != every:
            raise CheckpointError(
                f"gguf: got a {sizes.architecture} in which other layers than every {every}th attend to all positions; "
                "llama.cpp computes no such model"
            )
        writer.add_sliding_window(window or 0)
    elif sizes.architecture == "phi3":
        writer.add_sliding_window(window or 0)
    elif window is not None and _slides(config, kinds):
        warnings.warn(
            f"gguf: llama.cpp has no window of attention for a {config['model_type']}; beyond {window} tokens, it "
            "computes something else",
            stacklevel=2,
        )


def _slides(config: Mapping[str, Any], kinds: list[str] | None) -> bool:
    """Return whether some layers have the window of attention that a ``config.json`` gives."""
    family = FAMILIES.get(config["model_type"])
    if family is not None and family.window_switch is not None and not config.get(family.window_switch):
        return False
    return kinds is None or SLIDING in kinds


def _add_softcaps(writer: Any, config: Mapping[str, Any], sizes: Sizes) -> None:
    """Tell of the bounds of logits; require the scale of queries that llama.cpp takes."""
    if (bound := config.get("attn_logit_softcapping")) is not None:
        writer.add_attn_logit_softcapping(bound)
    if (bound := config.get("final_logit_softcapping")) is not None:
        writer.add_final_logit_softcapping(bound)
    by_width = sizes.layers == _SCALED_BY_WIDTH.get(sizes.architecture)
    wanted = _get(config, "hidden_size") / sizes.heads if by_width else sizes.head_width
    scalar = config.get("query_pre_attn_scalar", wanted)
    if scalar != wanted:
        raise CheckpointError(
            f"gguf: got query_pre_attn_scalar {scalar}; llama.cpp takes {wanted:g} for a {sizes.architecture} of these "
            "sizes"
        )


def _add_rotations(writer: Any, config: Mapping[str, Any], sizes: Sizes, context: int) -> dict[str, np.ndarray]:
    """Tell of rotary positions; return the tensors of factors that divide their frequencies."""
    rotations = config.get("rope_parameters") or {}
    if "full_attention" in rotations:  # Gemma 3, in newer files
        local = (rotations.get("sliding_attention") or {}).get("rope_theta", _LOCAL_THETA)
        rotations = rotations["full_attention"]
    else:
        local = config.get("rope_local_base_freq", _LOCAL_THETA)
    theta = rotations.get("rope_theta") or config.get("rope_theta") or 10_000.0
    share = rotations.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    turned = int(sizes.head_width * share)
    writer.add_rope_dimension_count(turned)
    writer.add_rope_freq_base(theta)
    if sizes.architecture == "gemma3" and local != _LOCAL_THETA:
        writer.add_rope_freq_base_swa(local)
    scaling = rotations if rotations.get("rope_type", "default") != "default" else config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    original = scaling.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    if kind in ("longrope", "su"):
        return _long_rope(writer, scaling, context, original or context, turned)
    if sizes.architecture == "phi3":
        writer.add_rope_scaling_orig_ctx_len(original or context)
    if kind == "llama3":
        return {"rope_freqs.weight": _llama3_factors(scaling, theta, turned)}
    if kind in ("linear", "yarn"):
        writer.add_string(f"{sizes.architecture}.rope.scaling.type", kind)
        writer.add_rope_scaling_factor(scaling["factor"])
        if kind == "yarn" and original is not None:
            writer.add_rope_scaling_orig_ctx_len(original)
    elif kind != "default":
        raise CheckpointError(
            f"gguf: got rotations of the type {kind!r:.40}; known are linear, yarn, llama3 and longrope"
        )
    return {}


def _long_rope(
    writer: Any, scaling: Mapping[str, Any], context: int, original: int, turned: int
) -> dict[str, np.ndarray]:
    """Tell of Phi-3's long rotations; return their factors for contexts of any length, and of the original one."""
    stretch = context / original
    writer.add_rope_scaling_orig_ctx_len(original)
    factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    writer.add_rope_scaling_attn_factors(scaling.get("attention_factor") or factor)
    factors = {f"rope_factors_{kind}.weight": scaling.get(f"{kind}_factor") for kind in ("long", "short")}
    if not all(isinstance(each, list) and len(each) == turned // 2 for each in factors.values()):
        raise CheckpointError(f"gguf: got rotations without {turned // 2} long and short factors; use another copy")
    return {name: np.array(each, np.float32) for name, each in factors.items()}


def _llama3_factors(scaling: Mapping[str, Any], theta: float, turned: int) -> np.ndarray:
    """Return what divides each frequency: 1 for the high ones, `factor` for the low ones, a mixture in between."""
    frequencies = 1.0 / theta ** (np.arange(0, turned, 2) / turned)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    factors: np.ndarray = (1 / ((1 - share) / scaling["factor"] + share)).astype(np.float32)
    return factors


def _get(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: got {name} {value!r:.40}; wanted a number from 1 on")
    return value
