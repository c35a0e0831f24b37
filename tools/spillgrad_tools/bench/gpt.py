"""The GPT-2 that benchmarks train, the same in every process and library: sizes, parameters, tokens and the loss.

Source: Radford et al. 2019, "Language models are unsupervised multitask learners"; parameter names of Hugging Face's
`GPT2LMHeadModel`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import spillgrad as sg
from spillgrad.nn import init
from spillgrad.storage.store import StoreStats
from spillgrad_kernels.cuda.driver.availability import SIMULATED

GPT2_WORDS = 50257
# The published model of 124 million parameters, and its substitute in Numba's simulator.
GPT2: dict[str, Any] = {"vocab_size": GPT2_WORDS, "context": 512, "n_layer": 12, "n_head": 12, "n_embd": 768}
SIMULATED_GPT: dict[str, Any] = {"vocab_size": 11, "context": 3, "n_layer": 1, "n_head": 1, "n_embd": 4}
GPT_CONFIG = SIMULATED_GPT if SIMULATED else GPT2

LR = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


def gpt_weights(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return a GPT-2's initial parameters, by the names that Hugging Face gives them."""
    with init.skipped():
        model = sg.models.GPT(sg.models.GPTConfig(**config))
    random = np.random.default_rng(1)
    weights = {}
    for name, parameter in model.named_parameters():
        drawn = random.standard_normal(parameter.shape, np.float32) * np.float32(0.02)
        weights[name] = drawn + 1 if "ln_" in name and name.endswith("weight") else drawn
    return weights


def tokens(vocabulary: int, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of random tokens, and for each token the one that follows it."""
    return inputs_and_targets(np.random.default_rng(seed).integers(0, vocabulary, (shape[0], shape[1] + 1)))


def inputs_and_targets(sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split sequences into inputs, all tokens but the last, and targets, all tokens but the first."""
    return np.ascontiguousarray(sequences[:, :-1]), np.ascontiguousarray(sequences[:, 1:])


class GPTFunctions(NamedTuple):
    """A library's functions for a GPT-2.

    Shapes: `attention` takes queries, keys and values as one array (sequences, tokens, 3, heads, width).
    """

    embedding: Callable[..., Any]
    layer_norm: Callable[..., Any]
    linear: Callable[..., Any]
    gelu: Callable[..., Any]
    attention: Callable[..., Any]
    logits: Callable[..., Any]
    cross_entropy: Callable[..., Any]


def gpt_loss(
    functions: GPTFunctions, config: Mapping[str, Any], weights: Mapping[str, Any], inputs: Any, targets: Any
) -> Any:
    """Return the mean cross-entropy of a GPT-2, computed by `functions`.

    `weights` holds the library's parameters under the names of `gpt_weights`, in the layout that `functions` take.
    """
    batch, length = inputs.shape
    width, heads = config["n_embd"], config["n_head"]

    def layer_norm(x: Any, name: str) -> Any:
        return functions.layer_norm(x, weights[f"transformer.{name}.weight"], weights[f"transformer.{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return functions.linear(x, weights[f"transformer.{name}.weight"], weights[f"transformer.{name}.bias"])

    words = weights["transformer.wte.weight"]
    x = functions.embedding(inputs, words) + weights["transformer.wpe.weight"][:length]
    for block in (f"h.{layer}" for layer in range(config["n_layer"])):
        qkv = linear(layer_norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn")
        mixed = functions.attention(qkv.reshape((batch, length, 3, heads, width // heads)))
        x = x + linear(mixed.reshape((batch, length, width)), f"{block}.attn.c_proj")
        wide = functions.gelu(linear(layer_norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc"))
        x = x + linear(wide, f"{block}.mlp.c_proj")
    logits = functions.logits(layer_norm(x, "ln_f"), words)
    return functions.cross_entropy(logits.reshape((batch * length, config["vocab_size"])), targets.reshape((-1,)))


class Spilling:
    """Context manager for a forward pass under `hooks` that spill.

    `left_in_ram_bytes` is the number of bytes that the store holds in RAM at the end of the last pass.
    """

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks
        self.left_in_ram_bytes = 0

    def __enter__(self) -> None:
        self.hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)
        self.left_in_ram_bytes = self.hooks.stats().ram_bytes

    def traffic(self) -> dict[str, float]:
        """Return the bytes saved, written and read so far, and the seconds that training waited for the disk."""
        stats: StoreStats = self.hooks.stats()
        return {
            "saved_bytes": stats.packed_bytes - stats.deduplicated_bytes, "left_in_ram_bytes": self.left_in_ram_bytes,
            "written_bytes": stats.written_bytes, "read_bytes": stats.read_bytes,
            "waited_s": stats.wait_write_s + stats.wait_read_s,
        }  # fmt: skip


class GPTTraining:
    """A GPT-2 in training, written for PyTorch's interface; subclasses provide a library's functions."""

    functions: GPTFunctions
    parameters: dict[str, Any]
    optimizer: Any
    spill: Spilling | None = None
    autocast: Callable[[], Any] | None = None  # makes the library's context for products in bfloat16

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def tensor(self, array: np.ndarray) -> Any:
        """Return an array as a tensor on the model's device."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        self.optimizer.zero_grad()

    def saving(self) -> Any:
        """Return the context manager that spills in a forward pass."""
        return self.spill or contextlib.nullcontext()

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        """Context manager for a forward pass: it spills, and computes in bfloat16, where the training asks for it."""
        with self.saving(), contextlib.nullcontext() if self.autocast is None else self.autocast():
            yield

    def loss(self, inputs: Any, targets: Any) -> Any:
        """Return the loss of a batch."""
        return gpt_loss(self.functions, self.config, self.parameters, inputs, targets)

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """Run forward, backward and the optimizer's step; return the loss."""
        self.zero_grad()
        given = self.tensor(inputs), self.tensor(targets)
        with self.forward_context():
            loss = self.loss(*given)
        loss.backward()
        self.optimizer.step()
        value: float = loss.item()
        return value

    def weights(self) -> Iterator[np.ndarray]:
        """Yield the values of each parameter."""
        for parameter in self.parameters.values():
            yield parameter.detach().numpy()
