"""What `spillgrad bench kernels --device cuda` measures; in Numba's simulator the same, of a size for that."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from spillgrad_kernels.cuda.availability import SIMULATED
from spillgrad_tools.bench.bars import Bar, DeviceCopySpeed, Ratio
from spillgrad_tools.bench.cases import GPT2_WORDS, Case

# The published model of 124 million parameters.
GPT2: dict[str, Any] = {"vocab_size": GPT2_WORDS, "context": 512, "n_layer": 12, "n_head": 12, "n_embd": 768}
_SIMULATED_GPT: dict[str, Any] = {"vocab_size": 11, "context": 3, "n_layer": 1, "n_head": 1, "n_embd": 4}
GPT_CONFIG = _SIMULATED_GPT if SIMULATED else GPT2
# A part of what the spilled step saves stays on the device, the rest goes to pinned memory: copies are measured, not a
# disk. The simulator's step is so small that every byte has to go.
_SIMULATED_SPILL: dict[str, Any] = {"device_budget": 0, "spill_budget": "1MiB", "min_bytes": 1}
SPILL_OPTIONS = _SIMULATED_SPILL if SIMULATED else {"device_budget": "512MiB", "spill_budget": "8GiB"}
# The largest of these whose elementwise rows fit the GPU is measured.
FLOATS_LOG2 = range(6, 7) if SIMULATED else range(20, 29)

_STEP = "GPT-2 124M step, batch 4 × 512"


def _elementwise_cases(log2_floats: int) -> Iterator[Case]:
    floats = 1 << log2_floats
    shape, period, size = (floats,), min(floats, 1 << 22), f"2^{log2_floats} floats"
    for name, inputs in (("copy", 1), ("add", 2), ("mul", 2), ("exp", 1), ("gelu_tanh", 1)):
        bars = (Ratio("torch", 0.9), DeviceCopySpeed(inputs + 1, 4 * floats))
        group = "elementwise and copy"
        yield Case(f"{name}, {size}", group, name, (shape,) * inputs, "n" * inputs, bars, period=period)
    for name, inputs in (("chain of 5", 1), ("chain of 7", 2), ("chain of 7+", 3)):
        words = f"{name.removesuffix('+')} operations, {size}" + (", forward and backward" if "+" in name else "")
        kinds = "NNn" if "+" in name else "n" * inputs
        yield Case(words, "fused chains", name, (shape,) * inputs, kinds, (Ratio("torch", 2),), period=period)


def _row_cases(sizes: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    bars = (Ratio("torch", 1),)
    for rows, columns in sizes:
        shape, vector, group = (rows, columns), (columns,), "softmax and layer_norm, forward + backward"
        yield Case(f"softmax {rows}x{columns}", group, "softmax+", (shape, shape), "Nn", bars)
        yield Case(f"layer_norm {rows}x{columns}", group, "layer_norm+", (shape, vector, vector, shape), "NNNn", bars)


def _matmul(dtype: str, size: int, bars: tuple[Bar, ...]) -> Case:
    return Case(
        f"matmul {dtype} {size}", f"matmul {dtype}", "matmul", ((size, size),) * 2, "nn", bars, dtype, heavy=size > 4096
    )


def cuda_cases(simulated: bool, log2_floats: int) -> tuple[Case, ...]:
    """Return the rows for a GPU, or those for the simulator; elementwise ones have 2 to so many numbers."""
    heads = (1, 2, 5, 4) if simulated else (4, 12, 1024, 64)
    config = _SIMULATED_GPT if simulated else GPT2
    tokens = ((1 if simulated else 4, config["context"] + 1),)
    words = config["vocab_size"]
    return (
        *_elementwise_cases(log2_floats),
        *_row_cases(((3, 17),) if simulated else ((8192, 1024), (2048, GPT2_WORDS))),
        *(_matmul("float32", size, (Ratio("torch", 0.8),)) for size in ((8,) if simulated else (4096, 8192))),
        *(_matmul("bfloat16", size, (Ratio("torch", 0.7),)) for size in ((8,) if simulated else (4096, 8192))),
        Case(f"causal attention {'x'.join(map(str, heads))}", "attention", "attention+", (heads,) * 4, "NNNn", ()),
        Case(_STEP, "GPT-2 124M step", "gpt step", tokens, "i", (Ratio("torch", 0.6),), classes=words, heavy=True),
        Case(
            f"{_STEP}, spilled to RAM but 512 MiB", "GPT-2 124M step", "gpt step spilled", tokens, "i",
            (Ratio("unspilled", 0.9),), classes=words, heavy=True, beside=("unspilled", _STEP),
        ),
    )  # fmt: skip


CUDA_BY_NAME = {case.name: case for log2 in FLOATS_LOG2 for case in cuda_cases(SIMULATED, log2)}


def gpt_weights(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return parameters of a GPT-2 by Hugging Face's names, the same in every process."""
    width, random = config["n_embd"], np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], width), "wpe.weight": (config["context"], width),
    }  # fmt: skip
    for layer in range(config["n_layer"]):
        for name, rows, columns in (
            ("ln_1", 0, 1), ("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("ln_2", 0, 1), ("mlp.c_fc", 1, 4),
            ("mlp.c_proj", 4, 1),
        ):  # fmt: skip
            shapes[f"h.{layer}.{name}.weight"] = (rows * width, columns * width) if rows else (width,)
            shapes[f"h.{layer}.{name}.bias"] = (columns * width,)
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    weights = {}
    for name, shape in shapes.items():
        drawn = random.standard_normal(shape, np.float32) * np.float32(0.02)
        weights[f"transformer.{name}"] = drawn + 1 if "ln_" in name and name.endswith("weight") else drawn
    return weights
