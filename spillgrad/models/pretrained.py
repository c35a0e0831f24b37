"""Loading pretrained weights from safetensors files in Hugging Face's layout."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from spillgrad.errors import CheckpointError, MissingFileError, StateDictError
from spillgrad.files import safetensors_io
from spillgrad.files.checkpoint import load_into, require_state
from spillgrad.files.checkpoint_directory import CONFIG, POINTER, of_current
from spillgrad.files.safetensors_io import StoredTensor
from spillgrad.models import quantized_files
from spillgrad.nn import init

T = TypeVar("T")
Weights = dict[str, StoredTensor]


def load(path: str | os.PathLike[str], make: Callable[[Weights, dict[str, Any] | None], T]) -> T:
    """Return `make(tensors, config)` for the tensors at a path, which are not read yet.

    The path is a safetensors file, the index of a sharded checkpoint, a folder with either, or a directory of
    `save_checkpoint`. If another process replaces the checkpoint meanwhile, `make` is called again with the new
    checkpoint. `config` is the content of the `config.json` beside the tensors, or None if there is no such file.
    Raises MissingFileError if the file at the path does not exist. Raises CheckpointError if a file is damaged.
    """
    root = safetensors_io.absolute(path)
    if (root / POINTER).is_file():

        def make_of(version: Path, state: dict[str, Any]) -> T:
            require_state(version, state)
            return make(*_read(_file_in(version), CONFIG in state["checksums"]))

        return of_current(root, make_of)
    file = _file_in(root) if root.is_dir() else root
    return make(*_read(file, file.with_name(CONFIG).is_file()))


class Layout(NamedTuple):
    """How Hugging Face's files hold a kind of model."""

    kind: Callable[[Any], Any]
    """The class, called with a config."""
    own_weights: Callable[[Weights], Weights]
    """Renames saved weights to the model's names."""
    config_of: Callable[..., Any]
    """From weights, the content of a ``config.json`` or None, and the path: the config."""
    layers: str
    """The config's field for the number of layers."""
    embedding: str
    """The path of the token embedding, which the output layer may share."""
    blocks: str
    """The name of the list of layers, in files."""

    def first_layers(self, saved: Weights, count: int) -> Weights:
        """Return the weights without those of all layers but the first."""
        of_layer = re.compile(rf"(?:^|\.){self.blocks}\.(\d+)\.")
        return {
            name: tensor
            for name, tensor in saved.items()
            if (found := of_layer.search(name)) is None or int(found[1]) < count
        }


def model_of(layout: Layout, path: str | os.PathLike[str], config: Any = None, model: Any = None) -> Any:
    """Read the weights at a path, one by one, into `model` or a new model; return the model in evaluation mode.

    Raises the errors of `load` and of `filled`.
    """
    return load(path, lambda saved, description: filled(layout, saved, description, path, config, model))


def filled(
    layout: Layout, saved: Weights, description: Mapping[str, Any] | None, path: str | os.PathLike[str],
    config: Any = None, model: Any = None,
) -> Any:  # fmt: skip
    """Copy weights, one by one, into `model` or a new model of a config; return the model in evaluation mode.

    Raises CheckpointError, before anything changes, that lists every tensor that is missing, unexpected or of another
    shape.
    """
    named, matrices = quantized_files.split(saved)
    saved = layout.own_weights(named)
    if model is None:
        sizes = config or layout.config_of(saved, description, path)
        require_layers(getattr(sizes, layout.layers), saved, path)
        with init.skipped(without_memory=bool(matrices)):
            model = layout.kind(sizes)
    if matrices:
        with init.skipped():
            model = quantized_files.prepare(model, saved, matrices)
            quantized_files.give_memory(model)
    if model.lm_head.weight is model.get_submodule(layout.embedding.removesuffix(".weight")).weight:
        saved = _without_tied_head(saved, layout.embedding, path)
    try:
        load_into(model, saved, strict=True)
    except StateDictError as error:
        raise CheckpointError(f"from_safetensors: {path} is of another model: {error}") from error
    return model.eval()


def read(path: str | os.PathLike[str]) -> tuple[Weights, dict[str, Any] | None]:
    """Return the tensors and the config that `load` passes to `make`. Raises MissingFileError, CheckpointError."""
    return load(path, lambda saved, description: (saved, description))


def _read(file: Path, is_described: bool) -> tuple[Weights, dict[str, Any] | None]:
    if not file.is_file():
        raise MissingFileError(
            f"from_safetensors: {file} does not exist; give a .safetensors file, its index, or a folder with them"
        )
    weights = safetensors_io.read(file, in_place=True)
    return weights, safetensors_io.read_json(file.with_name(CONFIG)) if is_described else None


def _file_in(folder: Path) -> Path:
    found = safetensors_io.find(folder, "model")
    if found is not None:
        return found
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    holds = f"{len(files)} .safetensors files" if files else "neither"
    raise CheckpointError(
        f"from_safetensors: {folder} holds {holds}, wanted model.safetensors or model.safetensors.index.json; in "
        "PyTorch, write other files anew with model.save_pretrained(folder)"
    )


def require(description: Mapping[str, Any], accepted: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise CheckpointError that lists the entries of a `config.json` for which `accepted` lacks the value."""
    wrong = [
        f"{name} {description[name]!r} (accepted: {', '.join(map(repr, values))})"
        for name, values in accepted.items()
        if name in description and description[name] not in values
    ]
    if wrong:
        raise CheckpointError(f"config.json: got {'; '.join(wrong)}; spillgrad cannot build such a model")


def _without_tied_head(saved: Weights, embedding: str, path: str | os.PathLike[str]) -> Weights:
    """Return the weights without the head's copy of the embedding. Raises CheckpointError if the copy differs."""
    head = saved.get("lm_head.weight")
    if head is None or embedding not in saved:
        return saved
    if not head.equals(saved[embedding]):
        raise CheckpointError(
            f"from_safetensors: in {path}, lm_head.weight is not {embedding}; a model that ties them cannot hold both"
        )
    return {name: tensor for name, tensor in saved.items() if name != "lm_head.weight"}


def require_layers(layers: int, saved: Weights, path: str | os.PathLike[str]) -> None:
    """Raise CheckpointError for more layers than tensors: building the layers of a damaged config might never end."""
    if layers > len(saved):
        raise CheckpointError(f"{path}: got {len(saved)} tensors, wanted those of {layers} layers; use another copy")
