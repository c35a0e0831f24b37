"""Quantized weights beside those of bitsandbytes: codes, numbers, and model folders that each reads of the other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spillgrad as sg
from spillgrad_kernels.cpu.quantizing import _nested, dequantize, quantize
from spillgrad_kernels.tables.quantization import INT8, NF4

functional = pytest.importorskip("bitsandbytes.functional")

torch.manual_seed(0)
MATRICES = {
    "normal": torch.randn(512, 1024),
    "blocks across rows": torch.randn(33, 7),
    "one number": torch.randn(1, 1),
    "a last block that is shorter": torch.randn(5, 77),
    "zeros": torch.zeros(64, 64),
    "equal scales": torch.ones(8, 64),
    "blocks of zeros": torch.cat([torch.zeros(4, 64), torch.randn(60, 64)]),
    "bfloat16": torch.randn(300, 320).bfloat16().float(),
    "many scales": torch.randn(256, 512) * torch.logspace(-6, 3, 256)[:, None],
    "integers": torch.randint(-8, 9, (64, 640)).float(),
}


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    """It compiles some operations for CPUs, in threads that PyTorch keeps for good."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("name", MATRICES)
def test_codes_and_numbers_of_nf4_are_equal(name: str) -> None:
    matrix = MATRICES[name]
    plain, of_plain = functional.quantize_4bit(matrix, quant_type="nf4")
    ours = quantize(matrix.numpy(), NF4, nests=False)
    np.testing.assert_array_equal(ours.codes, plain.numpy().reshape(-1))
    np.testing.assert_array_equal(ours.scales, of_plain.absmax.numpy())
    np.testing.assert_array_equal(
        dequantize(ours), functional.dequantize_4bit(plain, of_plain).numpy().reshape(matrix.shape)
    )
    codes, state = functional.quantize_4bit(matrix, quant_type="nf4", compress_statistics=True)
    # Its mean depends on the order in which threads add up.
    own = quantize(matrix.numpy(), NF4)
    assert own.offset is not None
    np.testing.assert_allclose(own.offset, state.offset.numpy(), rtol=1e-6)
    scales, nested, offset = _nested(ours.scales, state.offset.numpy())
    np.testing.assert_array_equal(scales, state.absmax.numpy())
    np.testing.assert_array_equal(nested, state.state2.absmax.numpy())
    theirs = functional.dequantize_4bit(codes, state).numpy().reshape(matrix.shape)
    np.testing.assert_array_equal(dequantize(ours._replace(scales=scales, nested=nested, offset=offset)), theirs)


@pytest.mark.parametrize("name", MATRICES)
def test_codes_and_numbers_of_int8_are_equal(name: str) -> None:
    matrix = MATRICES[name]
    codes, scales, _ = functional.int8_vectorwise_quant(matrix)
    ours = quantize(matrix.numpy(), INT8)
    np.testing.assert_array_equal(ours.codes, codes.numpy())
    np.testing.assert_array_equal(ours.scales, scales.numpy())
    theirs = torch.ops.bitsandbytes.int8_vectorwise_dequant(codes, scales).numpy()
    np.testing.assert_array_equal(dequantize(ours), theirs)


def _base(folder: Path, name: str) -> Path:
    sg.manual_seed(0)
    # Its kernel for CPUs takes other scales than it made where rows end within a block: sizes are multiples of 64.
    sizes = {"intermediate_size": 192} if name == "llama-tiny" else {}
    sg.save_checkpoint(folder / "run", sg.models.build(name, **sizes))
    return sg.models.export(folder / "run", folder / "base")


def _theirs(place: Path, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, device_map="cpu", **options)


def _require_equal(theirs: Any, ours: Any, layers: int) -> None:
    """Require that quantized layers of both models stand for the same numbers."""
    found = {path: layer for path, layer in ours.named_modules() if hasattr(layer, "dequantized")}
    assert len(found) == layers
    for path, layer in found.items():
        weight = theirs.get_submodule(path).weight
        if hasattr(weight, "quant_state"):
            wanted = functional.dequantize_4bit(weight.data, weight.quant_state)
        else:
            wanted = torch.ops.bitsandbytes.int8_vectorwise_dequant(weight.data, weight.SCB)
        own = layer.dequantized()
        own = own.t() if type(layer).__name__ == "QuantizedConv1D" else own
        np.testing.assert_array_equal(own.numpy(), wanted.numpy().reshape(own.shape))


@pytest.mark.parametrize("to", ["nf4", "int8"])
@pytest.mark.parametrize(("name", "layers"), [("llama-tiny", 14), ("tiny", 8)])
def test_transformers_reads_our_folders(name: str, layers: int, to: str, tmp_path: Path) -> None:
    place = sg.models.quantize(_base(tmp_path, name), to, tmp_path / "small")
    _require_equal(_theirs(place), sg.models.from_pretrained(place), layers)


@pytest.mark.parametrize(
    "options",
    [
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        {"load_in_8bit": True},
    ],
    ids=["nf4", "nf4 with float32 scales", "int8"],
)
def test_we_read_folders_of_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BitsAndBytesConfig(**options)
    theirs = _theirs(_base(tmp_path, "llama-tiny"), quantization_config=config)
    theirs.save_pretrained(tmp_path / "theirs")
    _require_equal(theirs, sg.models.from_pretrained(tmp_path / "theirs"), 14)
