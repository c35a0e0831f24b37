"""The catalogue of models: their configs by name, and functions that build or load a model."""

import dataclasses
import difflib
import os
from collections.abc import Mapping
from typing import Any

from spillgrad.errors import ArgumentError, UnknownModelError
from spillgrad.models import decoder, gpt, pretrained
from spillgrad.models.decoder import Decoder
from spillgrad.models.decoder_config import DecoderConfig
from spillgrad.models.families import FAMILIES
from spillgrad.models.gpt import GPT, GPTConfig
from spillgrad.models.language_model import LanguageModel

Config = GPTConfig | DecoderConfig

_LLAMA3: dict[str, Any] = {
    "vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}  # fmt: skip
_LLAMA3_SCALING = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
# Numbers of parameters: tiny and llama-tiny 0.12 M, small 3.3 M (the tokens of these three are bytes), gpt2 124 M,
# gpt2-medium 355 M, gpt2-large 774 M, gpt2-xl 1558 M, tinyllama 1100 M, llama-3.2-1b 1236 M, llama-3.1-8b 8030 M.
_CONFIGS: dict[str, Config] = {
    "tiny": GPTConfig(vocab_size=256, context=64, n_layer=2, n_head=4, n_embd=64),
    "small": GPTConfig(vocab_size=256, context=256, n_layer=4, n_head=4, n_embd=256),
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
    "llama-tiny": DecoderConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    ),
    "tinyllama": DecoderConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_key_value_heads=4,
        rms_norm_eps=1e-5,
    ),
    "llama-3.2-1b": DecoderConfig(
        **_LLAMA3,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        rope_scaling=_LLAMA3_SCALING | {"factor": 32.0},
        tie_word_embeddings=True,
    ),
    "llama-3.1-8b": DecoderConfig(**_LLAMA3, intermediate_size=14336, rope_scaling=_LLAMA3_SCALING | {"factor": 8.0}),
}


def names() -> list[str]:
    """Return the names of the models that `build` accepts.

    Returns
    -------
    list of str
        The names.
    """
    return list(_CONFIGS)


def config(name: str | Config, context: int | None = None, **overrides: Any) -> Config:
    """Return a model's config with some fields replaced.

    Parameters
    ----------
    name : str or config
        Name of a model, or a config.
    context : int, optional
        Largest number of positions; by default, that of the config.
    **overrides : object
        Fields of the config to replace.

    Returns
    -------
    GPTConfig or DecoderConfig
        The config.

    Raises
    ------
    UnknownModelError
        For a name that `names` does not list.
    ArgumentError
        For a field that is unknown.
    """
    if isinstance(name, str) and name not in _CONFIGS:
        near = difflib.get_close_matches(name, _CONFIGS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownModelError(f"models: got {name!r}; known are {', '.join(_CONFIGS)}{hint}")
    chosen = _CONFIGS[name] if isinstance(name, str) else name
    if context is not None:
        overrides["context" if isinstance(chosen, GPTConfig) else "max_position_embeddings"] = context
    fields = [field.name for field in dataclasses.fields(chosen)]
    unknown = [key for key in overrides if key not in fields]
    if unknown:
        raise ArgumentError(f"models: got {', '.join(unknown)}; the sizes are {', '.join(fields)}")
    return dataclasses.replace(chosen, **overrides)


def build(name: str | Config, context: int | None = None, **overrides: Any) -> LanguageModel:
    """Build a freshly initialised model from a name or a config.

    Parameters
    ----------
    name : str or config
        Name of a model, or a config.
    context : int, optional
        Largest number of positions; by default, that of the config.
    **overrides : object
        Fields of the config to replace.

    Returns
    -------
    LanguageModel
        The model.

    Raises
    ------
    UnknownModelError
        For a name that `names` does not list.
    ArgumentError
        For a field that is unknown.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.models.build("tiny", context=32)
    >>> model.config.context
    32
    """
    chosen = config(name, context, **overrides)
    return GPT(chosen) if isinstance(chosen, GPTConfig) else Decoder(chosen)


def from_safetensors(path: str | os.PathLike[str]) -> LanguageModel:
    """Return the model with the weights at a path, of the kind that ``config.json`` names; without that file, a GPT.

    Parameters
    ----------
    path : str or path
        A safetensors file, the index of a sharded checkpoint, or a folder with either.

    Returns
    -------
    LanguageModel
        The model, in evaluation mode.

    Raises
    ------
    MissingFileError
        If a file does not exist.
    CheckpointError
        For a damaged file, weights that do not fit the config, and a model of another kind.
    """
    layout, _, _ = _read(path)
    return pretrained.model_of(layout, path)  # type: ignore[no-any-return]


def first_layers(path: str | os.PathLike[str], count: int) -> LanguageModel:
    """Return the model that `from_safetensors` reads from a path, with its first layers alone, as a planner builds."""
    layout, _, _ = _read(path)

    def make(saved: pretrained.Weights, description: dict[str, Any] | None) -> LanguageModel:
        sizes = dataclasses.replace(layout.config_of(saved, description, path), **{layout.layers: count})
        model: LanguageModel = pretrained.filled(layout, layout.first_layers(saved, count), description, path, sizes)
        return model

    return pretrained.load(path, make)


def config_of(path: str | os.PathLike[str]) -> Config:
    """Return the config of the model that `from_safetensors` reads from a path.

    Parameters
    ----------
    path : str or path
        A safetensors file, the index of a sharded checkpoint, or a folder with either.

    Returns
    -------
    GPTConfig or DecoderConfig
        The config.

    Raises
    ------
    MissingFileError
        If a file does not exist.
    CheckpointError
        For a damaged file, and a model of another kind.
    """
    layout, saved, description = _read(path)
    return layout.config_of(saved, description, path)  # type: ignore[no-any-return]


def layout_of(description: Mapping[str, Any] | None) -> pretrained.Layout:
    """Return how files hold the model that a ``config.json`` describes. Raises CheckpointError for unknown models."""
    if description is not None:
        pretrained.require(description, {"model_type": tuple(_LAYOUTS)})
    return _LAYOUTS[(description or {}).get("model_type", "gpt2")]


def _read(
    path: str | os.PathLike[str],
) -> tuple[pretrained.Layout, pretrained.Weights, dict[str, Any] | None]:
    saved, description = pretrained.read(path)
    return layout_of(description), saved, description


_LAYOUTS = {"gpt2": gpt.LAYOUT, **dict.fromkeys(FAMILIES, decoder.LAYOUT)}
