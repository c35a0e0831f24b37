"""What an export reads: the tensors of a model in files, its adapters, its config, and the folder of its tokenizer."""

import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from spillgrad.dtypes import DType, as_dtype, float32, is_floating_point
from spillgrad.errors import ArgumentError, CheckpointError, MissingFileError
from spillgrad.files import checkpoint_directory, safetensors_io
from spillgrad.files.checkpoint import dataclass_of, require_state
from spillgrad.files.checkpoint_directory import MODEL, POINTER
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.generator import GeneratorState, default_generator
from spillgrad.models import catalogue, peft_folder, pretrained, quantized_files
from spillgrad.models.adapters import Adapter, ConvertedTensor, Stored, paired
from spillgrad.models.catalogue import Config
from spillgrad.models.decoder_config import DecoderConfig
from spillgrad.models.gpt import GPTConfig

T = TypeVar("T")
# What Hugging Face's libraries keep beside a model's weights.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "chat_template.json", "generation_config.json", "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
_LORA = (".lora_A.weight", ".lora_B.weight")
# Weights of GPT-2's blocks; files may leave out the name of the inner model.
_IN_BLOCK = re.compile(r"(.*\.)?h\.\d+\.")
# The entry of ``config.json`` for quantized weights.
QUANTIZATION = "quantization_config"


def folder_of(place: Path) -> Path:
    """Return the folder at a place, or of the file there."""
    return place.parent if place.is_file() or place.suffix in (".json", ".safetensors") else place


@dataclass(frozen=True)
class ExportedModel:
    """A model in files. Tensors are read when they are asked for."""

    path: Path
    tensors: Mapping[str, Stored]
    """Those of the base, by name."""
    description: dict[str, Any]
    """The content of its ``config.json``."""
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    changed: Mapping[str, Stored] = field(default_factory=dict)
    """Tensors that were trained beside adapters, and take the place of the base's."""
    base: Path | None = None
    """Where the base is, if it has a place of its own."""
    dropout: float = 0.0
    tokenizers: tuple[Path, ...] = ()
    """Folders to look for the tokenizer in."""

    @property
    def is_transposed(self) -> bool:
        """Whether weights are (inputs, outputs), as GPT-2's."""
        return self.description.get("model_type") == "gpt2"

    def tokenizer(self) -> Path | None:
        """Return the folder with files of a tokenizer, if there is one; warn if the model's own is not there."""
        for folder in self.tokenizers:
            if any((folder / name).is_file() for name in TOKENIZER_FILES):
                return folder
        if gone := [folder for folder in self.tokenizers if not folder.exists()]:
            warnings.warn(
                f"models: the tokenizer of {self.path} is not in {gone[0]}; none goes along: name its folder with "
                "tokenizer",
                stacklevel=2,
            )
        return None

    def merged(self, dtype: DType | None) -> dict[str, ConvertedTensor]:
        """Return all tensors by name, with adapters merged; quantized weights are the numbers that codes stand for.

        Raises CheckpointError for adapters of a layer that the base lacks, or has in another shape, and for weights
        that are quantized in a way that is not read.
        """
        tensors = self._of_numbers()
        of_weights = {f"{self.base_name(path)}.weight": adapter for path, adapter in self.adapters.items()}
        for name, adapter in of_weights.items():
            if tuple(tensors[name].shape) != adapter.weight_shape:
                raise CheckpointError(
                    f"models: {name} has shape {tuple(tensors[name].shape)}, and the adapters are for "
                    f"{adapter.weight_shape}; name their base"
                )
        changed = {self.base_name(name): tensor for name, tensor in self.changed.items()}
        return {
            name: ConvertedTensor(name, changed.get(name, tensor), dtype, of_weights.get(name))
            for name, tensor in tensors.items()
        }

    def _of_numbers(self) -> Mapping[str, Stored]:
        """Return the base's tensors with floating-point weights, which are computed when they are asked for."""
        codes = [
            name
            for name, each in self.tensors.items()
            if name.endswith(".weight") and not is_floating_point(each.dtype)
        ]
        if not codes and QUANTIZATION not in self.description:
            return self.tensors
        said = self.description.get("dtype") or self.description.get("torch_dtype")
        dtype = as_dtype(said) if said in ("float32", "float16", "bfloat16") else float32
        is_transposed = self.is_transposed
        tensors, names = quantized_files.dequantized(
            self.tensors, lambda name: is_transposed and _IN_BLOCK.match(name) is not None, dtype
        )
        if not names:
            raise CheckpointError(
                f"models: the weights of {self.base or self.path} are quantized (its config.json has a "
                "quantization_config) in a way that is not read; name those that are not"
            )
        return tensors

    def base_name(self, path: str) -> str:
        """Return the base's name for a layer, or for a tensor: files may leave out the name of the inner model.

        Raises CheckpointError if the base has none of the name.
        """
        names = (path, path.partition(".")[2], f"model.{path}", f"transformer.{path}")
        for name in names:
            if name in self.tensors or f"{name}.weight" in self.tensors:
                return name
        raise CheckpointError(
            f"models: {self.path} adapts {path}, which {self.base or 'its base'} lacks, or ties to another layer; name "
            "the base that the adapters are for"
        )


def with_model(
    path: str | os.PathLike[str], weights: str | os.PathLike[str] | None, use: Callable[[ExportedModel], T]
) -> T:
    """Call `use` with the model at a path; return its result.

    The path is a checkpoint's directory, a folder of peft, or what `from_safetensors` reads. `weights` is the base of
    adapters; by default, it is where the files say. If another process replaces a checkpoint meanwhile, calls `use`
    again. Raises ArgumentError, MissingFileError or CheckpointError for what is no such path.
    """
    root = safetensors_io.absolute(path)
    if (root / POINTER).is_file():
        return checkpoint_directory.of_current(
            root, lambda version, state: _of_checkpoint(root, version, state, weights, use)
        )
    if peft_folder.is_at(root):
        adapters, config = peft_folder.read(root)
        base = weights or peft_folder.base_of(config, root)
        dropout = config.get("lora_dropout") or 0.0
        return _over(base, lambda found: use(_joined(root, found, adapters, {}, dropout)))
    if not root.exists():
        raise MissingFileError(
            f"models: {root} does not exist; give a run's folder, or one with the weights of a model or of adapters"
        )
    if weights is not None:
        raise ArgumentError(f"models: {root} holds no adapters, so it needs no other weights than its own")
    return _over(root, use)


def _over(place: str | os.PathLike[str], use: Callable[[ExportedModel], T]) -> T:
    """Call `use` with the model that `from_safetensors` reads from a place."""
    root = safetensors_io.absolute(place)

    def described(saved: pretrained.Weights, description: dict[str, Any] | None) -> T:
        if description is None:
            description = catalogue.config_of(root).to_hugging_face()
        return use(ExportedModel(root, dict(saved), description, tokenizers=(folder_of(root),)))

    return pretrained.load(root, described)


def _joined(
    root: Path, base: ExportedModel, adapters: Mapping[str, Adapter], changed: Mapping[str, Stored], dropout: float,
    tokenizers: tuple[Path, ...] | None = None,
) -> ExportedModel:  # fmt: skip
    if base.adapters:
        raise CheckpointError(f"models: the base {base.path} has adapters itself; merge them into a folder first")
    places = (root, *base.tokenizers) if tokenizers is None else tokenizers
    # A base that is another run's checkpoint is in a folder of that, where other libraries find it.
    folder = next((each.path.parent for each in base.tensors.values() if isinstance(each, StoredTensor)), base.path)
    return ExportedModel(root, base.tensors, base.description, adapters, changed, folder, dropout, places)


def _of_checkpoint(
    root: Path, version: Path, state: dict[str, Any], weights: str | os.PathLike[str] | None,
    use: Callable[[ExportedModel], T],
) -> T:  # fmt: skip
    require_state(version, state)
    for name in state["checksums"]:
        if name.startswith(MODEL):
            checkpoint_directory.verify(version, name, state["checksums"])
    file = safetensors_io.find(version, MODEL)
    if file is None:
        raise safetensors_io.damaged(version, f"it lacks {MODEL}.safetensors")
    saved = safetensors_io.read(file, in_place=True)
    own: dict[str, Stored] = {name: tensor for name, tensor in saved.items() if not name.endswith(_LORA)}
    description = _description(root, state)
    alphas, dropout = _alphas(root, state, len(saved) != len(own))
    adapters = paired(
        {name: tensor for name, tensor in saved.items() if name not in own}, alphas,
        description.get("model_type") == "gpt2", version,
    )  # fmt: skip
    settings = state["extra"].get("settings")
    settings = settings if isinstance(settings, dict) else {}
    place = weights or settings.get("weights")
    tokenizers = _tokenizers(root, settings, weights)
    if not state.get("trainable_only"):
        if any(name.endswith(".absmax") for name in own):
            raise CheckpointError(
                f"models: {root} holds a quantized model, which load_checkpoint alone reads; save its adapters alone, "
                "with trainable_only, or sg.nn.dequantize it first"
            )
        if weights is not None and not adapters:
            raise ArgumentError(f"models: {root} holds the whole model, so it needs no other weights than its own")
        base = None if place is None else safetensors_io.absolute(place)
        return use(ExportedModel(root, own, description, adapters, {}, base, dropout, tokenizers))
    if not adapters:
        raise CheckpointError(
            f"models: {root} holds the trained parameters alone, and no adapters; save the whole model, without "
            "trainable_only"
        )
    if place is not None:
        checksums = state["extra"].get("base")
        if settings and settings.get("weights") is None:
            raise ArgumentError(f"models: {root} holds adapters of weights that it drew itself; name no others")

        def verified(found: ExportedModel) -> T:
            if isinstance(checksums, dict):
                _require_base(root, found, checksums)
            return use(_joined(root, found, adapters, own, dropout, tokenizers))

        if weights is None and not Path(place).exists():
            raise MissingFileError(
                f"models: {root} holds adapters of the weights at {place}, which are not there; name where these are"
            )
        return _over(place, verified)
    if type(seed := settings.get("seed")) is not int:
        raise ArgumentError(f"models: {root} holds adapters alone, and does not say of which weights; name these")
    # The base was never saved: the run drew it from its seed, which gives the same weights again.
    with default_generator.replay(GeneratorState(seed, 0)):
        model = catalogue.build(_config(root, state))
    drawn = {name: np.asarray(tensor.host_array()) for name, tensor in model.named_parameters()}
    return use(ExportedModel(root, drawn, description, adapters, own, None, dropout, tokenizers))


def _tokenizers(root: Path, settings: Mapping[str, Any], weights: str | os.PathLike[str] | None) -> tuple[Path, ...]:
    """Return where to look for the tokenizer of a checkpoint's model; a run's settings say which it was."""
    if not settings:
        return (root, *(() if weights is None else (folder_of(safetensors_io.absolute(weights)),)))
    if not isinstance(named := settings.get("tokenizer"), str):
        return ()  # its tokens are bytes
    places = (named,) if weights is None else (named, weights)
    return tuple(folder_of(safetensors_io.absolute(place)) for place in places)


def _alphas(root: Path, state: dict[str, Any], has_adapters: bool) -> tuple[dict[str, float], float]:
    """Return the alpha of each layer's adapters, by path, and their dropout."""
    said = state.get("adapters", {})
    entries = [entry for entry in said.values() if isinstance(entry, list) and len(entry) == 3]
    if len(entries) != len(said) or not all(type(part) in (int, float) for entry in entries for part in entry):
        raise CheckpointError(f"models: {root} says of its adapters what no save says; use another copy")
    if has_adapters and not said:
        raise CheckpointError(f"models: {root} was saved by a release that does not say how adapters are scaled")
    return {path: float(entry[1]) for path, entry in said.items()}, float(entries[0][2]) if entries else 0.0


def _require_base(root: Path, base: ExportedModel, checksums: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless the files of the base have the checksums that a run has noted."""
    files = {tensor.path for tensor in base.tensors.values() if isinstance(tensor, StoredTensor)}
    if safetensors_io.checksums(files) != checksums:
        raise CheckpointError(
            f"models: {root} holds adapters of other weights than those at {base.path}; name where theirs are"
        )


def _config(root: Path, state: dict[str, Any]) -> Config:
    kind: type[Config] = GPTConfig if state["model"] == "GPT" else DecoderConfig
    return dataclass_of(kind, state["config"], f"models: {root}")


def _description(root: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the ``config.json`` of a checkpoint's model. Raises CheckpointError for other modules."""
    if state["config"] is None:
        raise CheckpointError(
            f"models: {root} holds a {state['model']!r:.40}, which Hugging Face's libraries do not know; export a "
            "model of spillgrad.models"
        )
    return _config(root, state).to_hugging_face()
