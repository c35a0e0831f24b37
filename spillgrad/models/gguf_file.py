"""Writing a model as a GGUF file, which llama.cpp and programs built on it read; one tensor is in memory at a time.

Source: the GGUF format, version 3; llama.cpp's `convert_hf_to_gguf.py` for names, order and shapes of tensors.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.models import gguf_metadata, gguf_vocabulary
from spillgrad.models.adapters import ConvertedTensor, cast
from spillgrad.models.gguf_metadata import GEMMAS, Sizes

# The key behind the architecture, which tells our files from others; its value is the release.
MARK = b"spillgrad.release"
_MARK_WITHIN = 256
# Elements are converted and written in rows of about so many bytes.
_PIECE_BYTES = 1 << 24
_ALIGNMENT = 32
# The formats of matrices, by the names of dtypes; and llama.cpp's names and file types for them.
_FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}


class _Out(NamedTuple):
    """A tensor to write: its name, its format, its shape, and what returns its elements as float32."""

    name: str
    format: str
    shape: tuple[int, ...]
    elements: Callable[[], np.ndarray]


def is_ours(path: Path) -> bool:
    """Return whether a file is a GGUF that `write` wrote."""
    with path.open("rb") as file:
        return MARK in file.read(_MARK_WITHIN)


def expected_bytes(tensors: Mapping[str, ConvertedTensor], dtype: str) -> int:
    """Return the bytes of all tensors in a format, at least."""
    of_element = {"float32": 4.0, "q8_0": 34 / 32}.get(dtype, 2.0)
    return int(sum(np.prod(tensor.shape, dtype=np.float64) for tensor in tensors.values()) * of_element)


def dtype_of(tensors: Mapping[str, ConvertedTensor]) -> str:
    """Return the dtype of the largest tensor as it is stored."""
    largest = max(tensors.values(), key=lambda tensor: tensor.nbytes)
    return largest.stored.dtype.name if largest.stored.dtype.name in _FORMATS else "float32"


def write(
    path: Path, tensors: Mapping[str, ConvertedTensor], config: Mapping[str, Any], tokenizer: Path | None, dtype: str,
    name: str, release: str,
) -> None:  # fmt: skip
    """Write a new file, and wait until it is on the disk.

    `tensors` give float32. Vectors and GPT-2's positions stay float32 in it; a matrix whose rows Q8_0's blocks do not
    divide becomes float16, as in llama.cpp.
    Raises ArgumentError without the package gguf, CheckpointError for models and tensors that llama.cpp does not know,
    and OSError.
    """
    gguf = _package()
    config = gguf_metadata.with_defaults(config)
    sizes = gguf_metadata.sizes_of(config)
    writer = gguf.GGUFWriter(path, sizes.architecture)
    writer.add_string(MARK.decode(), release)
    writer.add_type("model")
    writer.add_name(name)
    further = gguf_metadata.add_metadata(writer, config)
    gguf_vocabulary.add_vocabulary(gguf, writer, tokenizer, config["vocab_size"])
    wanted = _FORMATS[dtype]
    writer.add_file_type(_FILE_TYPES[wanted])
    if wanted == "Q8_0":
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    outs = [_Out(key, "F32", array.shape, lambda array=array: array) for key, array in further.items()]  # type: ignore[misc]
    outs += _outs(gguf, tensors, config, sizes, wanted)
    for out in outs:
        kind = gguf.GGMLQuantizationType[out.format]
        writer.add_tensor_info(out.name, out.shape, np.dtype(np.float32), _bytes_of(out), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        (file,) = writer.fout
        for out in outs:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            for piece in _encoded(gguf, out):
                file.write(piece.reshape(-1).view(np.uint8).data)
        file.write(bytes(-file.tell() % _ALIGNMENT))
        file.flush()
        os.fsync(file.fileno())
    finally:
        for file in writer.fout or ():
            file.raw.close()  # what a full disk refused is not written again


def _outs(
    gguf: Any, tensors: Mapping[str, ConvertedTensor], config: Mapping[str, Any], sizes: Sizes, wanted: str
) -> Iterator[_Out]:
    """Yield the tensors in llama.cpp's names, shapes and formats."""
    architecture = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[sizes.architecture]
    names = gguf.get_tensor_name_map(architecture, sizes.layers)
    is_tied = sizes.architecture in GEMMAS or config.get("tie_word_embeddings", sizes.architecture == "gpt2")
    for name, tensor in tensors.items():
        if not dtypes.is_floating_point(tensor.numpy_dtype) or name.endswith(_LEFT_OUT):
            continue
        if name == "lm_head.weight" and is_tied:
            continue
        known = names.get_name(_full(name, sizes), try_suffixes=(".weight", ".bias"))
        if known is None:
            raise CheckpointError(
                f"gguf: {name} has no place in llama.cpp's {sizes.architecture}; export another model"
            )
        elements, shape = _arranged(tensor, name, sizes)
        # As in llama.cpp's own files.
        format_ = "F32" if len(shape) < 2 or known == "position_embd.weight" else wanted
        if format_ == "Q8_0" and shape[-1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_0][0]:
            format_ = "F16"
        yield _Out(known, format_, shape, elements)


# Masks and tables that a model makes itself.
_LEFT_OUT = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")


def _full(name: str, sizes: Sizes) -> str:
    """Return a tensor's name with that of the inner model, which files may leave out."""
    inner = "transformer." if sizes.architecture == "gpt2" else "model."
    return name if name.startswith((inner, "lm_head.")) else inner + name


def _arranged(tensor: ConvertedTensor, name: str, sizes: Sizes) -> tuple[Callable[[], np.ndarray], tuple[int, ...]]:
    """Return what computes a tensor's elements as llama.cpp arranges them, and its shape."""
    if sizes.architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return lambda: tensor.host_array().T, tensor.shape[::-1]
    if sizes.architecture in GEMMAS and name.endswith("norm.weight"):
        return lambda: tensor.host_array() + np.float32(1), tensor.shape
    if sizes.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = sizes.heads if ".q_proj." in name else sizes.key_value_heads
        return lambda: interleaved(tensor.host_array(), heads), tensor.shape
    return tensor.host_array, tensor.shape


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of each head in the order of llama.cpp, which rotates neighbours.

    Row i of the first half of a head, and row i of its second half, become neighbours.
    """
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _bytes_of(out: _Out) -> int:
    elements = int(np.prod(out.shape, dtype=np.int64))
    return elements // 32 * 34 if out.format == "Q8_0" else elements * (4 if out.format == "F32" else 2)


def _encoded(gguf: Any, out: _Out) -> Iterator[np.ndarray]:
    """Yield the bytes of a tensor in its format, in pieces of whole rows."""
    array = np.atleast_2d(out.elements())
    rows = max(1, _PIECE_BYTES // max(1, 4 * array.shape[-1]))
    for start in range(0, len(array), rows):
        part = np.ascontiguousarray(array[start : start + rows], np.float32)
        if out.format == "Q8_0":
            yield gguf.quants.quantize(part, gguf.GGMLQuantizationType.Q8_0)
        else:
            yield cast(part, _DTYPES[out.format], out.name)


_DTYPES = {"F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16}


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise ArgumentError("gguf: GGUF files need the package gguf; pip install 'spillgrad[gguf]'") from error
    return gguf
