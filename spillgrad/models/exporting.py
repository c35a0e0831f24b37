"""Models for other programs: folders of Hugging Face's transformers and peft, and GGUF files for llama.cpp."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files import safetensors_io
from spillgrad.files.checkpoint_directory import CONFIG, MODEL
from spillgrad.files.replacement import copy, replacing
from spillgrad.models import gguf_file, peft_folder
from spillgrad.models.adapters import Adapter, ConvertedTensor, attach
from spillgrad.models.catalogue import from_safetensors
from spillgrad.models.exported_model import QUANTIZATION, TOKENIZER_FILES, ExportedModel, folder_of, with_model
from spillgrad.models.language_model import LanguageModel
from spillgrad.nn.lora import LoRAConv1D, adapted_layers
from spillgrad.nn.module import Module
from spillgrad.release import __version__
from spillgrad.storage.sizes import parse_bytes

Format = Literal["safetensors", "peft", "gguf"]
FORMATS = ("safetensors", "peft", "gguf")
DTYPES = ("float32", "bfloat16", "float16", "q8_0")
GGUF_SUFFIX = ".gguf"
# Marks the safetensors files of an export, which another export may replace.
_MARK = "spillgrad_export"
METADATA = {_MARK: __version__}


def export(
    path: str | os.PathLike[str], to: str | os.PathLike[str], *, format: Format | None = None,
    weights: str | os.PathLike[str] | None = None, merge: bool = False, dtype: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None, max_shard_size: int | str = "5GB", overwrite: bool = False,
) -> Path:  # fmt: skip
    """Write a model in files, such as a run's checkpoint, for other programs.

    Tensors are read, converted and written one by one; quantized weights, of `quantize` or of bitsandbytes, become the
    numbers that their codes stand for. All is written beside `to`, and moved there when it is on the disk: an error, a
    full disk or a kill leaves what was there before.

    Parameters
    ----------
    path : str or path
        Directory of a checkpoint, folder of `peft`, or folder or file with a model's weights.
    to : str or path
        Folder to write, or file of the format "gguf".
    format : {"safetensors", "peft", "gguf"}, optional
        "safetensors" is a whole model for Hugging Face's `transformers`, "peft" adapters alone, and "gguf" a whole
        model for llama.cpp. By default, "gguf" if the name ends so, "peft" for adapters without `merge`, else
        "safetensors".
    weights : str or path, optional
        The base of adapters; by default, where the files say. For a run's checkpoint, its checksums are verified.
    merge : bool, default False
        Whether to add adapters to the weights of their base, and write the whole model.
    dtype : {"float32", "bfloat16", "float16", "q8_0"}, optional
        Format of the elements; by default, as stored, or, of quantized weights, as their config says. Sums of weights
        and adapters are computed in float32. "q8_0", for "gguf" alone, has eight bits for an element.
    tokenizer : str or path, optional
        Folder of the tokenizer; by default, that of the model or of its base, if it has one.
    max_shard_size : int or str, default "5GB"
        The most bytes of tensors in a safetensors file, or a size.
    overwrite : bool, default False
        Whether to replace a model that is no export of this function. Its own exports are always replaced, and folders
        with other files never.

    Returns
    -------
    Path
        The folder or file.

    Raises
    ------
    ArgumentError
        For a format or dtype that is unknown, options that do not go together, and a place that may not be replaced.
    MissingFileError
        If the model or its base does not exist.
    CheckpointError
        For damaged files, a base of other adapters, what the format cannot hold, and a place that cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import spillgrad as sg
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = sg.nn.lora(sg.models.build("llama-tiny"), rank=4)
    ...     _ = sg.save_checkpoint(f"{folder}/run", model)
    ...     exported = sg.models.export(f"{folder}/run", f"{folder}/exported", merge=True, dtype="bfloat16")
    ...     print(sorted(file.name for file in exported.iterdir()))
    ['config.json', 'model.safetensors']
    """
    if format is not None and format not in FORMATS:
        raise ArgumentError(f"export: got format {format!r:.40}; known are {', '.join(FORMATS)}")
    if dtype is not None and dtype not in DTYPES:
        raise ArgumentError(f"export: got dtype {dtype!r:.40}; known are {', '.join(DTYPES)}")
    max_shard_bytes = parse_bytes(max_shard_size)
    if max_shard_bytes < 1:
        raise ArgumentError(f"export: got max_shard_size {max_shard_size!r}; it must be at least one byte")
    place = safetensors_io.absolute(to).resolve()

    def use(model: ExportedModel) -> Path:
        chosen = _format(model, place, format, merge)
        if dtype == "q8_0" and chosen != "gguf":
            raise ArgumentError(f"export: got dtype q8_0, which files of the format gguf alone have, for {chosen}")
        require_free(place, model, chosen, overwrite)
        folder = model.tokenizer() if tokenizer is None else _tokenizer(tokenizer)
        if chosen == "peft":
            _write_peft(place, model, dtype)
        elif chosen == "gguf":
            _write_gguf(place, model, dtype, folder)
        else:
            _write_safetensors(place, model, dtype, folder, max_shard_bytes)
        return place

    return with_model(path, weights, use)


def from_peft(
    folder: str | os.PathLike[str], base: str | os.PathLike[str] | LanguageModel | None = None
) -> LanguageModel:
    """Return a language model with the adapters in a folder that Hugging Face's `peft` wrote.

    Parameters
    ----------
    folder : str or path
        Folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
    base : str, path or LanguageModel, optional
        The model that the adapters are for, which then gets them, or where its weights are; by default, where the
        config says.

    Returns
    -------
    LanguageModel
        The model, in evaluation mode; its adapters alone require gradients. `nn.merge_lora` merges them.

    Raises
    ------
    MissingFileError
        If a file does not exist.
    CheckpointError
        For a damaged file, and for adapters that are not LoRA's plain ones; before `base` changes.
    ArgumentError
        If there is no base where the config says, or if the base lacks a layer of the adapters, or has adapters.

    Examples
    --------
    >>> import tempfile
    >>> import spillgrad as sg
    >>> model = sg.nn.lora(sg.models.build("llama-tiny"), rank=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sg.models.to_peft(model, f"{folder}/adapters", base="tiny")
    ...     again = sg.models.from_peft(f"{folder}/adapters", base=sg.models.build("llama-tiny"))
    >>> again.model.layers[0].mlp.up_proj.rank
    4
    """
    root = safetensors_io.absolute(folder)
    if not peft_folder.is_at(root):
        raise CheckpointError(f"from_peft: {root} has no {peft_folder.CONFIG}; give a folder that peft has saved")
    adapters, config = peft_folder.read(root)
    model = base if isinstance(base, LanguageModel) else from_safetensors(base or peft_folder.base_of(config, root))
    layers = dict(model.named_modules())
    for path, adapter in adapters.items():
        weight = getattr(layers.get(path), "weight", None)
        if weight is not None and tuple(weight.shape) != adapter.weight_shape:
            raise CheckpointError(
                f"from_peft: {root} has adapters for a weight of shape {adapter.weight_shape}, and {path} has "
                f"{tuple(weight.shape)}; give the base that they are for"
            )
    attach(model, adapters, config.get("lora_dropout") or 0.0)
    return model.eval()


def to_peft(
    model: Module, folder: str | os.PathLike[str], base: str | os.PathLike[str], *, overwrite: bool = False
) -> Path:
    """Write a model's adapters to a folder, as Hugging Face's `peft` does.

    Parameters
    ----------
    model : Module
        A model that `nn.lora` returned.
    folder : str or path
        Folder to write.
    base : str or path
        Name or folder of the model that the adapters are for; `peft` looks for it there.
    overwrite : bool, default False
        As of `export`.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ArgumentError
        For a model without adapters, and a place that may not be replaced.
    CheckpointError
        If the place cannot be written.
    """
    found = dict(adapted_layers(model))
    if not found:
        raise ArgumentError(f"to_peft: {type(model).__name__} has no adapters; give a model that nn.lora returned")
    adapters = {
        path: Adapter(
            layer.lora_A.weight.host_array(),
            layer.lora_B.weight.host_array(),
            layer.alpha,
            isinstance(layer, LoRAConv1D),
        )
        for path, layer in found.items()
    }
    place = safetensors_io.absolute(folder).resolve()
    _require_replaceable(place, "peft", overwrite)
    others = [path for path, module in model.named_modules() if "weight" in module._parameters and path not in found]
    tensors = peft_folder.named(adapters)
    dropout = next(iter(found.values())).lora_dropout.p
    with replacing(place, _total(tensors)) as new:
        peft_folder.write(new, adapters, os.fspath(base), others, tensors, METADATA, dropout)
    return place


def _format(model: ExportedModel, place: Path, format: Format | None, merge: bool) -> str:
    """Return the format to write. Raises ArgumentError if the options do not go together."""
    is_gguf = place.suffix == GGUF_SUFFIX
    chosen = format or ("gguf" if is_gguf else "peft" if model.adapters and not merge else "safetensors")
    if (chosen == "gguf") != is_gguf:
        wanted = f"the name of a file *{GGUF_SUFFIX}" if chosen == "gguf" else "the name of a folder"
        raise ArgumentError(f"export: got {place} for the format {chosen}; wanted {wanted}")
    if not model.adapters and (merge or chosen == "peft"):
        raise ArgumentError(f"export: {model.path} has no adapters; leave out merge, and the format peft")
    if chosen == "peft":
        if merge:
            raise ArgumentError("export: got merge and the format peft, which holds adapters alone; give one of them")
        if model.changed:
            raise CheckpointError(
                f"export: {model.path} also has trained {', '.join(list(model.changed)[:3])}; peft's files hold "
                "adapters alone: merge them"
            )
        if model.base is None:
            raise ArgumentError(
                f"export: the base of the adapters in {model.path} is in no files of its own, in which peft could find "
                "it; merge them, or name the base with weights"
            )
    return chosen


def _tokenizer(place: str | os.PathLike[str]) -> Path:
    folder = safetensors_io.absolute(place)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ArgumentError(f"export: {folder} has no file of a tokenizer, such as tokenizer.json; name its folder")
    return folder


def require_free(place: Path, model: ExportedModel, chosen: str, overwrite: bool) -> None:
    """Raise ArgumentError if an export to this place would remove what it reads, or what is not to be replaced."""
    for read in (model.path, model.base):
        if read is not None and (place == read.resolve() or place in read.resolve().parents):
            raise ArgumentError(
                f"export: got {place}, which the export reads, or in which that lies; name another place"
            )
    _require_replaceable(place, chosen, overwrite)


def _require_replaceable(place: Path, chosen: str, overwrite: bool) -> None:
    """Raise ArgumentError if what is at a place may not be replaced, CheckpointError if it cannot be read."""
    try:
        if place.exists():
            _require_export(place, chosen, overwrite)
    except OSError as error:
        raise safetensors_io.damaged(place, safetensors_io.reason(error)) from error


def _require_export(place: Path, chosen: str, overwrite: bool) -> None:
    if chosen == "gguf":
        if not place.is_file():
            raise ArgumentError(f"export: {place} is a folder; name a file")
        is_ours = gguf_file.is_ours(place)
    else:
        if not place.is_dir():
            raise ArgumentError(f"export: {place} is a file; name a folder")
        names = os.listdir(place)
        if foreign := sorted(name for name in names if not _is_written(place / name)):
            raise ArgumentError(
                f"export: {place} holds {', '.join(foreign[:3])}{' …' if foreign[3:] else ''}, which no export writes; "
                "name another folder"
            )
        weights = [place / name for name in names if name.endswith(".safetensors")]
        is_ours = not names or (bool(weights) and all(map(_is_marked, weights)))
    if not is_ours and not overwrite:
        raise ArgumentError(f"export: {place} exists, and no export wrote it; name another place, or give overwrite")


def _is_written(path: Path) -> bool:
    """Return whether an export writes files of this name."""
    names = {CONFIG, peft_folder.CONFIG, f"{MODEL}.safetensors.index.json", *TOKENIZER_FILES}
    stems = (MODEL, peft_folder.MODEL)
    is_weights = path.name.startswith(stems) and path.suffix == ".safetensors"
    return path.is_file() and not path.is_symlink() and (path.name in names or is_weights)


def _is_marked(path: Path) -> bool:
    """Return whether an export wrote a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return f'"{_MARK}"'.encode() in file.read(min(length, 256))


def _write_peft(place: Path, model: ExportedModel, dtype: str | None) -> None:
    tensors = peft_folder.named(model.adapters, None if dtype is None else dtypes.as_dtype(dtype))
    adapted = {model.base_name(path) for path in model.adapters}
    layers = (name.removesuffix(".weight") for name, each in model.tensors.items() if each.ndim > 1)
    others = [path for path in layers if path not in adapted]
    base = None if model.base is None else folder_of(model.base)
    with replacing(place, _total(tensors)) as new:
        peft_folder.write(new, model.adapters, str(base), others, tensors, METADATA, model.dropout)


def _write_safetensors(
    place: Path, model: ExportedModel, dtype: str | None, tokenizer: Path | None, max_shard_bytes: int
) -> None:
    tensors = model.merged(None if dtype is None else dtypes.as_dtype(dtype))
    if dtype is None:
        dtype = max(tensors.values(), key=lambda tensor: tensor.nbytes).numpy_dtype.name
    # Of the two names that Hugging Face's library has had for it, all its releases read this one.
    of_others = ("dtype", QUANTIZATION)
    config = {key: value for key, value in model.description.items() if key not in of_others} | {"torch_dtype": dtype}
    with replacing(place, _total(tensors)) as new:
        new.mkdir()
        safetensors_io.write(new, MODEL, tensors, max_shard_bytes, safetensors_io.write_tensors, METADATA)
        safetensors_io.write_json(new / CONFIG, config)
        copy_tokenizer(tokenizer, new)


def copy_tokenizer(tokenizer: Path | None, new: Path) -> None:
    """Copy a tokenizer's files, if there are any, to a new folder. Raises OSError."""
    for name in TOKENIZER_FILES:
        if tokenizer is not None and (tokenizer / name).is_file():
            copy(tokenizer / name, new / name)


def _write_gguf(place: Path, model: ExportedModel, dtype: str | None, tokenizer: Path | None) -> None:
    dtype = dtype or gguf_file.dtype_of(model.merged(None))
    tensors = model.merged(dtypes.float32)
    with replacing(place, gguf_file.expected_bytes(tensors, dtype)) as new:
        gguf_file.write(new, tensors, model.description, tokenizer, dtype, model.path.name, __version__)


def _total(tensors: Mapping[str, ConvertedTensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
