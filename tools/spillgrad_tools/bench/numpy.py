"""The benchmarked operations in NumPy: times to beat, and references for what NumPy itself does not have."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from spillgrad_tools.bench.cuda_cases import GPT_CONFIG, gpt_weights
from spillgrad_tools.bench.operations import release_memory, seconds_of

__all__ = [
    "OPERATIONS", "REFERENCES", "VERSION", "as_numpy", "no_grad", "prepare", "release_memory", "seconds_of",
    "set_num_threads",
]  # fmt: skip

VERSION = f"NumPy {np.__version__}"


def set_num_threads(count: int) -> None:
    """Do nothing: the worker's environment has told the BLAS library before it was loaded."""


def no_grad() -> Any:
    """Return a context in which no graph is recorded."""
    return nullcontext()


def prepare(operand: np.ndarray, requires_grad: bool) -> np.ndarray:
    """Return the operand as this library takes it."""
    return operand


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array."""
    return np.asarray(result)


def _call(function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    return lambda *operands: partial(function, *operands)


def _copy_into(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    np.copyto(out, x)
    return out


# Given the operands, what is timed. What NumPy would have to compose is no fair peer, and not here.
OPERATIONS: dict[str, Callable[..., Callable[[], Any]]] = {
    "matmul": _call(np.matmul),
    "exp": _call(np.exp),
    "tanh": _call(np.tanh),
    "add": _call(np.add),
    "mul": _call(np.multiply),
    "copy": _call(np.copy),
    "exp out=": _call(np.exp),
    "tanh out=": _call(np.tanh),
    "add out=": _call(np.add),
    "mul out=": _call(np.multiply),
    "copy out=": _call(_copy_into),
}


def _erf(x: np.ndarray) -> np.ndarray:
    return np.fromiter(map(math.erf, x.ravel()), np.float64, x.size).reshape(x.shape)


def _gelu_tanh(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _softmax(x: np.ndarray) -> Any:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _softmax_gradient(y: np.ndarray, g: np.ndarray) -> Any:
    return y * (g - (g * y).sum(-1, keepdims=True))


def _softmax_and_gradient(x: np.ndarray, g: np.ndarray) -> Any:
    y = _softmax(x)
    return y, _softmax_gradient(y, g)


def _layer_norm_and_gradients(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, g: np.ndarray) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    normal, scaled = centred * rstd, g * weight
    means = scaled.mean(-1, keepdims=True) + normal * (scaled * normal).mean(-1, keepdims=True)
    return normal * weight + bias, rstd * (scaled - means), (g * normal).sum(0), g.sum(0)


def _layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> Any:
    return _layer_norm_and_gradients(x, weight, bias, x)[0]


def _cross_entropy_and_gradient(logits: np.ndarray, target: np.ndarray) -> Any:
    rows, probabilities = np.arange(len(target)), _softmax(logits)
    loss = -np.log(probabilities[rows, target]).mean()
    probabilities[rows, target] -= 1
    return loss, probabilities / len(target)


def _cross_entropy(logits: np.ndarray, target: np.ndarray) -> Any:
    return _cross_entropy_and_gradient(logits, target)[0]


def _attention_and_gradients(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> Any:
    results = tuple(np.empty_like(x) for x in (q, q, k, v))
    length, width = q.shape[-2:]
    masked = np.triu(np.full((length, length), -np.inf), 1)
    # Head by head: all scores at once would take 1.6 GB.
    for head in np.ndindex(q.shape[:-2]):
        p = _softmax(q[head] @ k[head].T / math.sqrt(width) + masked)
        scores = _softmax_gradient(p, g[head] @ v[head].T) / math.sqrt(width)
        for result, value in zip(
            results, (p @ v[head], scores @ k[head], scores.T @ q[head], p.T @ g[head]), strict=True
        ):
            result[head] = value
    return results


def _adamw_first_step(param: np.ndarray, grad: np.ndarray) -> Any:
    return param * (1 - 1e-3 * 1e-2) - 1e-3 * grad / (np.abs(grad) + 1e-8)


def _chain_of_7(x: np.ndarray, y: np.ndarray) -> Any:
    return np.maximum(np.tanh(x * y + x) / (1 + np.exp(-y)) - x, 0)


def _chain_of_7_and_gradients(x: np.ndarray, y: np.ndarray, g: np.ndarray) -> Any:
    t, s, result = np.tanh(x * y + x), 1 / (1 + np.exp(-y)), _chain_of_7(x, y)
    g = g * (result > 0)
    inner = g * s * (1 - t * t)
    return result, inner * (y + 1) - g, inner * x + g * t * s * (1 - s)


def gpt_loss(config: Mapping[str, Any], weights: Mapping[str, np.ndarray], tokens: np.ndarray) -> float:
    """Return the loss of a GPT-2 whose parameters have Hugging Face's names, sequence by sequence: few fit at once."""
    width, heads = config["n_embd"], config["n_head"]
    length = tokens.shape[1] - 1
    masked = np.triu(np.full((length, length), -np.inf), 1)
    layers = [
        {
            name.removeprefix(f"transformer.h.{n}."): x.astype(np.float64)
            for name, x in weights.items()
            if f".h.{n}." in name
        }
        for n in range(config["n_layer"])
    ]
    words, places, scale, shift = (
        weights[f"transformer.{name}"].astype(np.float64)
        for name in ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")
    )
    losses = []
    for sequence in tokens:
        x = words[sequence[:-1]] + places[:length]
        for layer in layers:
            y = _layer_norm(x, layer["ln_1.weight"], layer["ln_1.bias"]) @ layer["attn.c_attn.weight"]
            y = (y + layer["attn.c_attn.bias"]).reshape(length, 3, heads, width // heads)
            q, k, v = y.transpose(1, 2, 0, 3)
            p = _softmax(q @ k.swapaxes(1, 2) / math.sqrt(width // heads) + masked)
            y = (p @ v).transpose(1, 0, 2).reshape(length, width)
            x = x + y @ layer["attn.c_proj.weight"] + layer["attn.c_proj.bias"]
            y = _layer_norm(x, layer["ln_2.weight"], layer["ln_2.bias"]) @ layer["mlp.c_fc.weight"]
            y = _gelu_tanh(y + layer["mlp.c_fc.bias"])
            x = x + y @ layer["mlp.c_proj.weight"] + layer["mlp.c_proj.bias"]
        losses.append(_cross_entropy(_layer_norm(x, scale, shift) @ words.T, sequence[1:]))
    return float(np.mean(losses))


def _gpt_step(tokens: np.ndarray) -> Any:
    return np.asarray(gpt_loss(GPT_CONFIG, gpt_weights(GPT_CONFIG), tokens))


REFERENCES: dict[str, Callable[..., Any]] = {
    "matmul": np.matmul,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "erf": _erf,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "add": np.add,
    "mul": np.multiply,
    "copy": np.copy,
    "add number": lambda x: x + 1,
    "relu": lambda x: np.maximum(x, 0),
    "sum": np.sum,
    "linear": lambda x, weight, bias: x @ weight.T + bias,
    "reshape": np.ravel,
    "select": lambda x: x[3],
    "softmax": _softmax,
    "softmax+": _softmax_and_gradient,
    "layer_norm": _layer_norm,
    "layer_norm+": _layer_norm_and_gradients,
    "cross_entropy": _cross_entropy,
    "cross_entropy+": _cross_entropy_and_gradient,
    "attention+": _attention_and_gradients,
    "adamw": _adamw_first_step,
    "chain of 5": lambda x: np.maximum(1 / (1 + np.exp(-(x * 2 + 1))) * x, 0.1),
    "chain of 7": _chain_of_7,
    "chain of 7+": _chain_of_7_and_gradients,
    "gpt step": _gpt_step,
    "gpt step spilled": _gpt_step,
}
