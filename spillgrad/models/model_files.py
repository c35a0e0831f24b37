"""A language model in files of any kind: what it is before it is read, and the model itself, adapters merged."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillgrad.errors import CheckpointError
from spillgrad.files import safetensors_io
from spillgrad.files.checkpoint import load_into
from spillgrad.models import pretrained
from spillgrad.models.adapters import attach
from spillgrad.models.catalogue import Config, layout_of
from spillgrad.models.exported_model import ExportedModel, with_model
from spillgrad.models.language_model import LanguageModel
from spillgrad.nn.lora import merge_lora

_GENERATION = "generation_config.json"


@dataclass(frozen=True)
class ModelFiles:
    """A language model in files, which are not read yet: see `describe`.

    Parameters
    ----------
    path : Path
        Where the model is, or its adapters.
    base : Path or None
        Where the base of the adapters is, if that was named.
    config : GPTConfig or DecoderConfig
        The model's config.
    weight_bytes : int
        The memory of its weights: quantized ones as they are in files, others in float32.
    tokenizer : Path or None
        The folder of its tokenizer, if there is one.
    stop_tokens : tuple of int
        Tokens that end a text, as far as its files name them.
    """

    path: Path
    base: Path | None
    config: Config
    weight_bytes: int
    tokenizer: Path | None
    stop_tokens: tuple[int, ...]

    def load(self) -> LanguageModel:
        """Return the model, with adapters merged into its weights, in evaluation mode.

        Returns
        -------
        LanguageModel
            The model. Weights are read one by one.

        Raises
        ------
        CheckpointError
            For a damaged file, and for weights or adapters of another model.
        """
        return with_model(self.path, self.base, _merged)


def describe(path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> ModelFiles:
    """Return what a model in files is, without reading its weights.

    Parameters
    ----------
    path : str or path
        A folder as Hugging Face's, the directory of a checkpoint, or a folder of adapters that `peft` wrote.
    base : str or path, optional
        The weights that adapters are for; by default, where their folder says.

    Returns
    -------
    ModelFiles
        Config, sizes, and the folder of the tokenizer; its method `load` reads the model.

    Raises
    ------
    MissingFileError
        If a file does not exist.
    CheckpointError
        For a damaged file, and for a model of another kind.
    """
    root = safetensors_io.absolute(path)
    where = None if base is None else safetensors_io.absolute(base)

    def described(found: ExportedModel) -> ModelFiles:
        layout = layout_of(found.description)
        config = layout.config_of(found.tensors, found.description, root)
        weights = layout.own_weights(dict(found.tensors))  # type: ignore[arg-type]
        if getattr(config, "tie_word_embeddings", True):
            weights.pop("lm_head.weight", None)
        nbytes = sum(map(_ram_bytes, weights.values()))
        tokenizer = found.tokenizer()
        return ModelFiles(root, where, config, nbytes, tokenizer, _stop_tokens(found, tokenizer))

    return with_model(root, where, described)


def from_pretrained(path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> LanguageModel:
    """Return the model at a path, of any kind that `describe` knows, with adapters merged into its weights.

    Parameters
    ----------
    path : str or path
        A folder as Hugging Face's, the directory of a checkpoint, or a folder of adapters that `peft` wrote.
    base : str or path, optional
        The weights that adapters are for; by default, where their folder says.

    Returns
    -------
    LanguageModel
        The model, in evaluation mode.

    Raises
    ------
    MissingFileError
        If a file does not exist.
    CheckpointError
        For a damaged file, and for weights or adapters of another model.
    """
    return describe(path, base).load()


def _merged(found: ExportedModel) -> LanguageModel:
    layout = layout_of(found.description)
    model: LanguageModel = pretrained.filled(
        layout, dict(found.tensors), found.description, found.base or found.path  # type: ignore[arg-type]
    )  # fmt: skip
    if not found.adapters:
        return model
    load_into(model, dict(found.changed), strict=False)
    attach(model, found.adapters)
    if not any(hasattr(module, "dequantized") for module in model.modules()):
        merge_lora(model)
    return model.eval()


def _ram_bytes(tensor: Any) -> int:
    """Return the memory of a tensor in files."""
    return int(tensor.nbytes) if tensor.dtype.itemsize == 1 else 4 * math.prod(tensor.shape)


def _stop_tokens(found: ExportedModel, tokenizer: Path | None) -> tuple[int, ...]:
    """Return the tokens that the config, and the file for generation beside the tokenizer, name as ends."""
    named = [found.description.get("eos_token_id")]
    file = None if tokenizer is None else tokenizer / _GENERATION
    if file is not None and file.is_file():
        said = safetensors_io.read_json(file)
        if not isinstance(said, dict):
            raise CheckpointError(f"{file}: holds no object; use the one that came with the model")
        named.append(said.get("eos_token_id"))
    flat = [token for each in named for token in (each if isinstance(each, list) else [each])]
    return tuple(dict.fromkeys(token for token in flat if type(token) is int))
