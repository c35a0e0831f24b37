"""The cases of `spillgrad bench kernels`: operations, their operands, and the bars of each row.

A GPU has cases of its own; in Numba's simulator, their operands are small.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad_kernels.cuda.driver.availability import SIMULATED
from spillgrad_tools.bench.bars import (
    LIMIT,
    PEER_NAMES,
    TWO_THREADS,
    Bar,
    BestPeer,
    ComputeOrCopy,
    CopySpeed,
    Microseconds,
    OfLimit,
    Ratio,
    UnlessAtLimit,
    Verdict,
    device_copy_speed,
)
from spillgrad_tools.bench.gpt import GPT2, GPT2_WORDS, SIMULATED_GPT
from spillgrad_tools.bench.operations import COMPUTING, MOVING

LAYOUTS = ("NN", "NT", "TN", "TT")
FLOATS = 1 << 24
# Logarithms of the sizes of elementwise cases on a GPU; the largest size that fits the GPU is measured.
FLOATS_LOG2 = range(6, 7) if SIMULATED else range(20, 29)
TOKENS = 2048
# Inputs and outputs of GPT-2's linear layers: queries, keys and values; the projections of attention and the MLP.
GPT2_LAYERS = ((768, 2304), (768, 768), (768, 3072), (3072, 768))

_DTYPES: dict[str, Any] = {"float32": np.float32, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16}

# A call of more floating-point operations takes about a second: its case is heavy.
HEAVY_FLOP = 5e10

# How many arrays of the first operand's size an operation reads and writes, in the backward pass too: "softmax+" reads
# its input and writes its result, then reads the result and a gradient and writes one. Other operations read each
# operand and write a result.
_ARRAYS = {
    "softmax": 2, "softmax+": 5, "layer_norm": 2, "layer_norm+": 5, "cross_entropy": 1, "cross_entropy+": 3,
    "attention+": 8, "adamw": 7,
}  # fmt: skip

NOT_SLOWER = (BestPeer(),)
LARGE_PRODUCT = (OfLimit(0.93), BestPeer())
ROW_OF_MEMORY = (OfLimit(), UnlessAtLimit(1.5))


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: an operation and its operands.

    `kinds` has a letter for each operand: "n" for normal numbers; "t" for normal numbers whose last two axes are
    transposed in memory; "i" for integers below `classes` or, if that is 0, below the first operand's number of
    columns; "o" for an array to write the result to. A capital letter asks for the operand's gradient.

    With a `period`, operands and results repeat after `period` numbers, and the reference covers one period. `beside`
    holds the names of a contender and of another case: our time of that case counts as the contender's time.
    """

    name: str
    group: str
    operation: str
    shapes: tuple[tuple[int, ...], ...]
    kinds: str
    bars: tuple[Bar, ...]
    dtype: str = "float32"
    heavy: bool = False
    classes: int = 0
    period: int = 0
    beside: tuple[str, str] | None = None

    @property
    def wants_gradient(self) -> bool:
        """Return whether the case asks for a gradient, so that a graph is recorded."""
        return not self.kinds.islower()

    @property
    def flop(self) -> int:
        """Return the floating-point operations of matrix products; 0 for other operations."""
        if self.operation == "attention+":
            # Two products in the forward pass and five in the backward pass; causality halves each.
            return 7 * math.prod(self.shapes[0]) * self.shapes[1][-2]
        if self.operation != "matmul":
            return 0
        return 2 * math.prod(self.shapes[0]) * self.shapes[1][-1]

    @property
    def nbytes(self) -> int:
        """Return the bytes that must be read and written at least: each operand and result once in a pass.

        Return 0 for small operations, whose time is that of the call.
        """
        itemsize: int = np.dtype(_DTYPES[self.dtype]).itemsize
        if self.operation == "matmul":
            rows, columns = math.prod(self.shapes[0][:-1]), self.shapes[1][-1]
            return (math.prod(self.shapes[0]) + math.prod(self.shapes[1]) + rows * columns) * itemsize
        if self.group == "small, recorded":
            return 0
        arrays = _ARRAYS.get(self.operation, len(self.kinds.rstrip("o")) + 1)
        return arrays * math.prod(self.shapes[0]) * itemsize

    @property
    def computes(self) -> tuple[object, ...]:
        """Return a key that determines the result: cases with equal keys share a reference."""
        inputs = len(self.kinds.rstrip("o"))
        return self.operation.removesuffix(" out="), self.shapes[:inputs], self.kinds[:inputs], self.dtype

    def operands(self, whole: bool = True) -> Iterator[np.ndarray]:
        """Yield the operands, which are equal in every process; unless `whole`, yield only one period of each."""
        random, dtype = np.random.default_rng(0), _DTYPES[self.dtype]
        drawn = np.float32 if self.dtype == "bfloat16" else dtype
        for shape, kind in zip(self.shapes, self.kinds.lower(), strict=True):
            if kind == "i":
                yield random.integers(0, self.classes or self.shapes[0][-1], shape)
            elif kind == "t":
                turned = random.standard_normal((*shape[:-2], shape[-1], shape[-2]), drawn)
                yield turned.astype(dtype, copy=False).swapaxes(-1, -2)
            elif kind == "o":
                yield np.zeros(shape, dtype)
            elif self.period:
                numbers = random.standard_normal(self.period, drawn).astype(dtype, copy=False)
                yield np.resize(numbers, shape) if whole else numbers
            else:
                yield random.standard_normal(shape, drawn).astype(dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one case: `seconds` by contender, and `failures`, the reasons why contenders were not timed.

    `seconds` are medians; `spread` has the quartiles below and above each. `limit_s` are the seconds that the
    processor's arithmetic and memory need at least; 0 if they were not measured.
    """

    case: Case
    seconds: dict[str, float]
    rounds: int
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    spread: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    limit_s: float = 0.0

    @property
    def verdicts(self) -> list[Verdict]:
        """Return the verdicts of the bars whose contenders were timed; none if ours was not timed."""
        if "ours" not in self.seconds:
            return []
        seconds = {**self.seconds, **({LIMIT: self.limit_s} if self.limit_s else {})}
        return [verdict for bar in self.case.bars if (verdict := bar.judge(seconds))]

    @property
    def comparisons(self) -> list[str]:
        """Return our speed in that of each peer, of the machine's own copy where the bars take it, and of the limit."""
        if "ours" not in self.seconds:
            return []
        ratios = {name: self.seconds[name] / self.seconds["ours"] for name in PEER_NAMES if name in self.seconds}
        copies = (bar.judge(self.seconds) for bar in self.case.bars if isinstance(bar, CopySpeed))
        return [
            *(f"× {PEER_NAMES[name]} {ratio:.2f}" for name, ratio in ratios.items() if name != "ours"),
            *(verdict.measured for verdict in copies if verdict),
            *([f"of limit {self.limit_s / self.seconds['ours']:.2f}"] if self.limit_s else []),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        plain = {"case": self.case.name, "group": self.case.group, "rounds": self.rounds, "seconds": self.seconds}
        spread = {"spread": self.spread} if self.spread else {}
        flop = {"flop": self.case.flop} if self.case.flop else {}
        rates: dict[str, Any] = {}
        for bar in self.case.bars if "ours" in self.seconds else ():
            if isinstance(bar, CopySpeed):
                ours, copy = bar.rates(self.seconds)
                rates = {"bytes_per_s": ours, "copy_bytes_per_s": copy}
        limit = {"limit_s": self.limit_s} if self.limit_s else {}
        failures = {"failures": self.failures} if self.failures else {}
        return {
            **plain,
            **flop,
            **rates,
            **limit,
            **spread,
            **failures,
            "bars": [verdict.as_json() for verdict in self.verdicts],
        }


def _matmul(
    group: str, sizes: tuple[int, int, int], bars: tuple[Bar, ...], layout: str = "NN", dtype: str = "float32",
    batch: int | None = None,
) -> Case:  # fmt: skip
    rows, inner, columns = sizes
    lead = () if batch is None else (batch,)
    name = f"matmul {dtype} {'' if batch is None else f'{batch} of '}{rows}x{inner}x{columns} {layout}"
    shapes = (*lead, rows, inner), (*lead, inner, columns)
    heavy = 2 * rows * inner * columns * (batch or 1) > HEAVY_FLOP
    return Case(name, group, "matmul", shapes, layout.lower(), bars, dtype, heavy)


def _matmul_cases() -> Iterator[Case]:
    for size, layout in itertools.product((512, 1024, 2048, 4096), LAYOUTS):
        bars = LARGE_PRODUCT if size >= 1024 else NOT_SLOWER
        threads = (TWO_THREADS,) if layout == "NN" and size in (1024, 2048) else ()
        yield _matmul("matmul float32, squares from 512", (size,) * 3, (*bars, *threads), layout)
    group = "matmul float32, GPT-2's layers"
    for inputs, outputs in GPT2_LAYERS:
        yield _matmul(group, (TOKENS, inputs, outputs), LARGE_PRODUCT)
        yield _matmul(group, (TOKENS, outputs, inputs), LARGE_PRODUCT, "NT")
        yield _matmul(group, (inputs, TOKENS, outputs), LARGE_PRODUCT, "TN")
    # The last layer multiplies by the weight of the embedding, transposed.
    group = "matmul float32, GPT-2's words"
    yield _matmul(group, (TOKENS, 768, GPT2_WORDS), LARGE_PRODUCT, "NT")
    yield _matmul(group, (TOKENS, GPT2_WORDS, 768), LARGE_PRODUCT)
    yield _matmul(group, (GPT2_WORDS, TOKENS, 768), LARGE_PRODUCT, "TN")
    for size, layout in itertools.product((256, 128), LAYOUTS):
        yield _matmul(f"matmul float32, {size}", (size,) * 3, NOT_SLOWER, layout)
    for sizes, layouts in (
        ((1000, 333, 77), ("NN", "TT")), ((511, 513, 515), ("NN",)), ((1, 4096, 4096), ("NN", "NT")),
        ((4096, 4096, 1), ("NN", "TN")), ((8, 4096, 4096), ("NN", "NT")), ((2048, 1, 2048), ("NN",)),
    ):  # fmt: skip
        for layout in layouts:
            yield _matmul("matmul float32, odd and skinny", sizes, NOT_SLOWER, layout)
    for batch, sizes, layout in ((96, (64, 64, 64), "NN"), (48, (512, 64, 512), "NT"), (48, (512, 512, 64), "NN")):
        yield _matmul("matmul float32, batches", sizes, NOT_SLOWER, layout, batch=batch)
    for dtype, size in itertools.product(("float32", "float64"), (16, 32, 64)):
        yield _matmul("matmul, below 128", (size,) * 3, (Microseconds(4, beside="numpy"),), dtype=dtype)
    for size, layout in itertools.product((256, 512, 1024), LAYOUTS):
        bars = LARGE_PRODUCT if size >= 1024 else NOT_SLOWER
        yield _matmul("matmul float64", (size,) * 3, bars, layout, "float64")
    for size, bars in ((2048, LARGE_PRODUCT), (4096, LARGE_PRODUCT), (128, NOT_SLOWER)):
        yield _matmul("matmul float64", (size,) * 3, bars, dtype="float64")


def _elementwise_cases() -> Iterator[Case]:
    size = ((FLOATS,),)
    for operation in COMPUTING:
        name, extra = operation.name, (Ratio("numpy", 0.9),) if operation.numpy_function() else ()
        yield Case(name, "elementwise", name, size, "n", (Ratio("torch", 3), *extra))
        yield Case(f"{name} out=", "elementwise, out=", f"{name} out=", size * 2, "no", (ComputeOrCopy(), *extra))
    for operation in MOVING:
        name, inputs = operation.name, 1 if operation.name == "copy" else 2
        bars = (Ratio("torch", 0.95), CopySpeed(inputs + 1, 4 * FLOATS))
        yield Case(name, "add, mul, copy", name, size * inputs, "n" * inputs, (Ratio("torch", 3),))
        shapes, kinds = size * (inputs + 1), "n" * inputs + "o"
        yield Case(f"{name} out=", "add, mul, copy, out=", f"{name} out=", shapes, kinds, bars)


def _attention(length: int) -> Case:
    name = f"causal attention 4x12x{length}x64, forward and backward"
    case = Case(name, "attention", "attention+", ((4, 12, length, 64),) * 4, "NNNn", (Ratio("torch", 1.6),))
    return dataclasses.replace(case, heavy=case.flop > HEAVY_FLOP)


def _structured_cases() -> Iterator[Case]:
    group, bars = "softmax, layer_norm, cross_entropy", ROW_OF_MEMORY
    for rows, columns in ((4096, 1024), (TOKENS, 512)):
        shape = (rows, columns)
        yield Case(f"softmax {rows}x{columns}", group, "softmax", (shape,), "n", bars)
        yield Case(f"softmax {rows}x{columns}, forward and backward", group, "softmax+", (shape, shape), "Nn", bars)
    shape = (TOKENS, 768)
    yield Case(f"layer_norm {TOKENS}x768", group, "layer_norm", (shape, (768,), (768,)), "nnn", bars)
    shapes = (shape, (768,), (768,), shape)
    yield Case(f"layer_norm {TOKENS}x768, forward and backward", group, "layer_norm+", shapes, "NNNn", bars)
    logits = ((512, GPT2_WORDS), (512,))
    yield Case(f"cross_entropy 512x{GPT2_WORDS}", group, "cross_entropy", logits, "ni", bars)
    yield Case(f"cross_entropy 512x{GPT2_WORDS}, forward and backward", group, "cross_entropy+", logits, "Ni", bars)
    yield _attention(512)
    yield _attention(2048)
    yield Case("adamw", "adamw", "adamw", ((FLOATS,),) * 2, "Nn", ROW_OF_MEMORY)
    group, small = "small, recorded", (Microseconds(5),)
    for name, inputs in (("add", 2), ("mul", 2), ("add number", 1), ("relu", 1), ("tanh", 1), ("sum", 1)):
        yield Case(f"{name} 1000, recorded", group, name, ((1000,),) * inputs, "N" * inputs, small)
    yield Case("matmul 32x32, recorded", group, "matmul", ((32, 32),) * 2, "NN", small)
    yield Case("linear 32x32, recorded", group, "linear", ((32, 32), (32, 32), (32,)), "NNN", small)
    for name in ("reshape", "select"):
        yield Case(f"{name} 32x32, recorded", group, name, ((32, 32),), "N", small)


CASES = (*_matmul_cases(), *_elementwise_cases(), *_structured_cases())

_STEP = "GPT-2 124M step, batch 4 × 512"


def _cuda_elementwise_cases(log2_floats: int) -> Iterator[Case]:
    floats = 1 << log2_floats
    shape, period, size = (floats,), min(floats, 1 << 22), f"2^{log2_floats} floats"
    for name, inputs in (("copy", 1), ("add", 2), ("mul", 2), ("exp", 1), ("gelu_tanh", 1)):
        bars = (Ratio("torch", 0.9), device_copy_speed(inputs + 1, 4 * floats))
        group = "elementwise and copy"
        yield Case(f"{name}, {size}", group, name, (shape,) * inputs, "n" * inputs, bars, period=period)
    for name, inputs in (("chain of 5", 1), ("chain of 7", 2), ("chain of 7+", 3)):
        words = f"{name.removesuffix('+')} operations, {size}" + (", forward and backward" if "+" in name else "")
        kinds = "NNn" if "+" in name else "n" * inputs
        yield Case(words, "fused chains", name, (shape,) * inputs, kinds, (Ratio("torch", 2),), period=period)


def _cuda_row_cases(sizes: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    bars = (Ratio("torch", 1),)
    for rows, columns in sizes:
        shape, vector, group = (rows, columns), (columns,), "softmax and layer_norm, forward + backward"
        yield Case(f"softmax {rows}x{columns}", group, "softmax+", (shape, shape), "Nn", bars)
        yield Case(f"layer_norm {rows}x{columns}", group, "layer_norm+", (shape, vector, vector, shape), "NNNn", bars)


def _cuda_matmul_cases(sizes: tuple[int, ...]) -> Iterator[Case]:
    for dtype, least in (("float32", 0.8), ("bfloat16", 0.7)):
        for size in sizes:
            shapes, group, bars = ((size, size),) * 2, f"matmul {dtype}", (Ratio("torch", least),)
            yield Case(f"{group} {size}", group, "matmul", shapes, "nn", bars, dtype, heavy=size > 4096)


def cuda_cases(simulated: bool, log2_floats: int) -> tuple[Case, ...]:
    """Return the cases for a GPU, or for the simulator. Elementwise cases have 2 ** `log2_floats` numbers."""
    heads = (1, 2, 5, 4) if simulated else (4, 12, 1024, 64)
    config = SIMULATED_GPT if simulated else GPT2
    tokens = ((1 if simulated else 4, config["context"] + 1),)
    words = config["vocab_size"]
    return (
        *_cuda_elementwise_cases(log2_floats),
        *_cuda_row_cases(((3, 17),) if simulated else ((8192, 1024), (2048, GPT2_WORDS))),
        *_cuda_matmul_cases((8,) if simulated else (4096, 8192)),
        Case(f"causal attention {'x'.join(map(str, heads))}", "attention", "attention+", (heads,) * 4, "NNNn", ()),
        Case(_STEP, "GPT-2 124M step", "gpt step", tokens, "i", (Ratio("torch", 0.6),), classes=words, heavy=True),
        Case(
            f"{_STEP}, spilled to RAM but 512 MiB", "GPT-2 124M step", "gpt step spilled", tokens, "i",
            (Ratio("unspilled", 0.9),), classes=words, heavy=True, beside=("unspilled", _STEP),
        ),
    )  # fmt: skip


CUDA_BY_NAME = {case.name: case for log2 in FLOATS_LOG2 for case in cuda_cases(SIMULATED, log2)}
CASES_ON = {"cpu": {case.name: case for case in CASES}, "cuda": CUDA_BY_NAME}
