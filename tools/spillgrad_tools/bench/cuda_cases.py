"""The cases of `spillgrad bench kernels --device cuda`; in Numba's simulator, their operands are small."""

from collections.abc import Iterator

from spillgrad_kernels.cuda.driver.availability import SIMULATED
from spillgrad_tools.bench.bars import Bar, DeviceCopySpeed, Ratio
from spillgrad_tools.bench.cases import Case
from spillgrad_tools.bench.gpt import GPT2, GPT2_WORDS, SIMULATED_GPT

# Logarithms of the sizes of elementwise cases; the largest size that fits the GPU is measured.
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
    shapes, group = ((size, size),) * 2, f"matmul {dtype}"
    return Case(f"{group} {size}", group, "matmul", shapes, "nn", bars, dtype, heavy=size > 4096)


def cuda_cases(simulated: bool, log2_floats: int) -> tuple[Case, ...]:
    """Return the cases for a GPU, or for the simulator; the elementwise cases have 2 ** `log2_floats` numbers."""
    heads = (1, 2, 5, 4) if simulated else (4, 12, 1024, 64)
    config = SIMULATED_GPT if simulated else GPT2
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
