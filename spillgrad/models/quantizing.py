"""Writing a model in files as one with quantized weights, tensor by tensor."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files import safetensors_io
from spillgrad.files.checkpoint_directory import CONFIG, MODEL
from spillgrad.files.replacement import replacing
from spillgrad.files.safetensors_io import Place, StoredTensor
from spillgrad.models.catalogue import layout_of
from spillgrad.models.exported_model import ExportedModel, with_model
from spillgrad.models.exporting import METADATA, copy_tokenizer, require_free
from spillgrad.models.quantized_files import STATE, STATE_BYTES
from spillgrad.nn import init
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.gpt2_linear import Conv1D
from spillgrad.nn.quantize import OUTPUT_LAYERS, quantizable, skipped_layers
from spillgrad.nn.quantized import empty_matrix, require_format
from spillgrad.ops import quantized
from spillgrad.ops.quantized import QuantizedMatrix
from spillgrad.storage.sizes import parse_bytes
from spillgrad_kernels.tables.quantization import BLOCK, LEVELS, NESTED_BLOCK, dynamic_map


class _Layer:
    """A weight in a file, quantized when a part of it is asked for; of all layers, the last stays in memory."""

    _last: "_Layer | None" = None

    def __init__(self, name: str, stored: StoredTensor, to: str, is_transposed: bool) -> None:
        self.name, self.stored, self.to, self.is_transposed = name, stored, to, is_transposed
        rows, columns = (int(size) for size in stored.shape)
        self.shape = (columns, rows) if is_transposed else (rows, columns)
        self._matrix: QuantizedMatrix | None = None

    def matrix(self) -> QuantizedMatrix:
        """Return the quantized weight."""
        if self._matrix is None:
            if _Layer._last is not None:
                _Layer._last._matrix = None
            array = np.asarray(self.stored)
            array = np.ascontiguousarray(array.T) if self.is_transposed else array
            self._matrix, _Layer._last = quantized.quantize(f"quantize: {self.name}", array, self.to), self
        return self._matrix

    def forget(self) -> None:
        """Free the memory of the quantized weight."""
        self._matrix = _Layer._last = None

    def parts(self) -> Iterator[tuple[str, "_Part"]]:
        """Yield the tensors that files hold of the weight, by name."""
        nests = self.to == "nf4"
        empty = empty_matrix(self.shape, self.to, nests, lambda shape, dtype: (shape, dtypes.as_dtype(dtype)))
        yield self.name, self._part(empty.codes, lambda found: found.codes)
        if not nests:
            yield f"{self.name.removesuffix('weight')}SCB", self._part(empty.scales, lambda found: found.scales)
            order = np.zeros((), np.uint8)
            yield f"{self.name}_format", _Part((), dtypes.uint8, lambda: order)
            return
        yield f"{self.name}.absmax", self._part(empty.scales, lambda found: found.scales)
        yield f"{self.name}.nested_absmax", self._part(empty.nested, lambda found: found.nested)
        yield f"{self.name}.nested_quant_map", _Part((256,), dtypes.float32, dynamic_map)
        yield f"{self.name}.quant_map", _Part((16,), dtypes.float32, lambda: LEVELS)
        yield self.name + STATE, _Part((STATE_BYTES,), dtypes.uint8, self._state)

    def _part(self, layout: Any, of: Any) -> "_Part":
        shape, dtype = layout
        return _Part(shape, dtype, lambda: of(self.matrix()).host_array().reshape(shape))

    def _state(self) -> np.ndarray:
        offset = self.matrix().offset
        assert offset is not None
        text = json.dumps(
            {
                "quant_type": "nf4", "blocksize": BLOCK, "dtype": dtypes.as_dtype(self.stored.dtype).name,
                "shape": list(self.shape), "nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32",
                "nested_offset": float(offset.item()),
            }
        ).encode()  # fmt: skip
        return np.frombuffer(text.ljust(STATE_BYTES), np.uint8)


class _Part:
    """A tensor to write."""

    def __init__(self, shape: tuple[int, ...], dtype: dtypes.DType, elements: Any) -> None:
        self.shape = shape
        self.numpy_dtype = dtype
        self.itemsize = dtype.itemsize
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.host_array = elements


def quantize(
    path: str | os.PathLike[str], to: str, out: str | os.PathLike[str], *, skip: str | Sequence[str] = OUTPUT_LAYERS,
    embeddings: bool = False, max_shard_size: int | str = "5GB", overwrite: bool = False,
) -> Path:  # fmt: skip
    """Write a model in files as one whose linear layers have weights of 4 or 8 bits, which `from_pretrained` reads.

    The folder has the layout of bitsandbytes, so that transformers reads it with that package, too. Weights are read,
    quantized and written one by one. The folder appears when all of it is written.

    Parameters
    ----------
    path : str or path
        The model: a folder as Hugging Face's, or the directory of a checkpoint of a whole model.
    to : {"nf4", "int8"}
        Format of the weights; see `nn.quantize`.
    out : str or path
        Folder to write.
    skip : str or sequence of str, default ("lm_head",)
        Names of layers that stay as they are, as in `nn.quantize`.
    embeddings : bool, default False
        Whether to quantize tables, too. transformers reads only folders without.
    max_shard_size : int or str, default "5GB"
        The most bytes of tensors in a file, or a size.
    overwrite : bool, default False
        Whether to replace a model that is no export. Exports are always replaced, and folders with other files never.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ArgumentError
        For an unknown format, a model with adapters or with nothing to quantize, numbers that are not finite, and a
        place that may not be replaced.
    MissingFileError
        If the model does not exist.
    CheckpointError
        For damaged files, weights that are quantized already, and a place that cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import spillgrad as sg
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sg.save_checkpoint(f"{folder}/run", sg.models.build("llama-tiny"))
    ...     place = sg.models.quantize(f"{folder}/run", "nf4", f"{folder}/small")
    ...     print(sg.models.from_pretrained(place).model.layers[0].mlp.up_proj)
    QuantizedLinear(in_features=64, out_features=176, bias=False, format=nf4)
    """
    require_format("quantize", to)
    max_shard_bytes = parse_bytes(max_shard_size)
    place = safetensors_io.absolute(out).resolve()

    def use(model: ExportedModel) -> Path:
        if model.adapters:
            raise ArgumentError(f"quantize: {model.path} has adapters; merge them first: spillgrad export --merge")
        require_free(place, model, "safetensors", overwrite)
        layers, skipped = _layers(model, to, skip, embeddings)
        tensors: dict[str, Any] = {}
        for name, stored in model.tensors.items():
            of_layer = dict(layers[name].parts()) if name in layers else {name: _stored(stored)}
            tensors |= of_layer
        description = {**model.description, "quantization_config": _config(to, skipped)}
        with replacing(place, sum(tensor.nbytes for tensor in tensors.values())) as new:
            new.mkdir()
            safetensors_io.write(new, MODEL, tensors, max_shard_bytes, _write, METADATA)
            safetensors_io.write_json(new / CONFIG, description)
            copy_tokenizer(model.tokenizer(), new)
        return place

    try:
        return with_model(path, None, use)
    finally:
        if _Layer._last is not None:
            _Layer._last.forget()


def _write(folder: Path, tensors: Mapping[str, Any], places: Mapping[str, Place]) -> dict[str, bytes]:
    """Write tensors in the order of `tensors`, in which those of a layer are neighbours."""
    return safetensors_io.write_tensors(folder, tensors, {name: places[name] for name in tensors})


def _stored(stored: Any) -> _Part:
    return _Part(tuple(stored.shape), dtypes.as_dtype(stored.dtype), lambda: np.asarray(stored))


def _layers(
    model: ExportedModel, to: str, skip: str | Sequence[str], embeddings: bool
) -> tuple[dict[str, _Layer], tuple[str, ...]]:  # fmt: skip
    """Return the weights to quantize, by their names in the files, and the names of the layers that stay."""
    layout = layout_of(model.description)
    given: dict[str, Any] = dict(model.tensors)
    if "quantization_config" in model.description or any(
        name.endswith(".weight") and not dtypes.is_floating_point(each.dtype) for name, each in given.items()
    ):
        raise CheckpointError(f"quantize: the weights of {model.path} are quantized already; name those that are not")
    with init.skipped(without_memory=True):
        built = layout.kind(layout.config_of(given, model.description, model.path))
    names = {id(tensor): name for name, tensor in given.items()}
    own = {name: names[id(tensor)] for name, tensor in layout.own_weights(given).items()}
    found = {}
    skipped = skipped_layers(built, skip)
    for path, layer in quantizable(built):
        is_table = type(layer).forward is Embedding.forward
        if path in skipped or (is_table and not embeddings):
            continue
        name = own.get(f"{path}.weight")
        wanted = tuple(layer._parameters["weight"].shape)  # type: ignore[union-attr]
        if name is None or tuple(given[name].shape) != wanted:
            got = "nothing" if name is None else tuple(given[name].shape)
            raise CheckpointError(
                f"quantize: {model.path} has {got} as {path}.weight, wanted {wanted}; use another copy"
            )
        found[name] = _Layer(name, given[name], to, type(layer).forward is Conv1D.forward)
    if not found:
        raise ArgumentError(f"quantize: {model.path} has no linear layer that skip={skipped.names} leaves; name fewer")
    return found, skipped.names


def _config(to: str, skip: tuple[str, ...]) -> dict[str, Any]:
    """Return what ``config.json`` says of the weights, in the words of transformers."""
    is_nf4 = to == "nf4"
    return {
        "quant_method": "bitsandbytes",
        "_load_in_4bit": is_nf4,
        "_load_in_8bit": not is_nf4,
        "load_in_4bit": is_nf4,
        "load_in_8bit": not is_nf4,
        "bnb_4bit_compute_dtype": "float32",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": "nf4" if is_nf4 else "fp4",
        "bnb_4bit_use_double_quant": is_nf4,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": list(skip),
        "llm_int8_threshold": 6.0,
    }
