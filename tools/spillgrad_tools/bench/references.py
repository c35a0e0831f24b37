"""References in NumPy for benchmarked operations that NumPy lacks."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from spillgrad_tools.bench import gpt
from spillgrad_tools.bench.gpt import GPT_CONFIG, GPTFunctions, gpt_weights


def sigmoid(x: np.ndarray) -> Any:
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function of each number."""
    return np.fromiter(map(math.erf, x.ravel()), np.float64, x.size).reshape(x.shape)


def gelu(x: np.ndarray) -> Any:
    """Return GELU."""
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> Any:
    """Return the approximation of GELU by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> Any:
    """Return the softmax of each row."""
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _softmax_gradient(y: np.ndarray, g: np.ndarray) -> Any:
    return y * (g - (g * y).sum(-1, keepdims=True))


def softmax_and_gradient(x: np.ndarray, g: np.ndarray) -> Any:
    """Return the softmax of each row, and the gradient of `x` from the result's gradient `g`."""
    y = softmax(x)
    return y, _softmax_gradient(y, g)


def layer_norm_and_gradients(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, g: np.ndarray) -> Any:
    """Return each row normalised, scaled and shifted, and the gradients of `x`, `weight` and `bias`."""
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    normal, scaled = centred * rstd, g * weight
    means = scaled.mean(-1, keepdims=True) + normal * (scaled * normal).mean(-1, keepdims=True)
    return normal * weight + bias, rstd * (scaled - means), (g * normal).sum(0), g.sum(0)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> Any:
    """Return each row normalised, scaled and shifted."""
    return layer_norm_and_gradients(x, weight, bias, x)[0]


def cross_entropy_and_gradient(logits: np.ndarray, target: np.ndarray) -> Any:
    """Return the mean cross-entropy, and the gradient of the logits."""
    rows, probabilities = np.arange(len(target)), softmax(logits)
    loss = -np.log(probabilities[rows, target]).mean()
    probabilities[rows, target] -= 1
    return loss, probabilities / len(target)


def cross_entropy(logits: np.ndarray, target: np.ndarray) -> Any:
    """Return the mean cross-entropy."""
    return cross_entropy_and_gradient(logits, target)[0]


def attention_and_gradients(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> Any:
    """Return causal attention, and the gradients of queries, keys and values."""
    results = tuple(np.empty_like(x) for x in (q, q, k, v))
    # Head by head: all scores at once would take 1.6 GB.
    for head in np.ndindex(q.shape[:-2]):
        p = _attention_weights(q[head], k[head])
        scores = _softmax_gradient(p, g[head] @ v[head].T) / math.sqrt(q.shape[-1])
        found = p @ v[head], scores @ k[head], scores.T @ q[head], p.T @ g[head]
        for result, value in zip(results, found, strict=True):
            result[head] = value
    return results


def _attention_weights(q: np.ndarray, k: np.ndarray) -> Any:
    """Return the softmax of each query's scores with the keys up to its own position."""
    length, width = q.shape[-2:]
    masked = np.triu(np.full((length, length), -np.inf), 1)
    return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(width) + masked)


def adamw_first_step(param: np.ndarray, grad: np.ndarray) -> Any:
    """Return a parameter after the first step of AdamW."""
    return param * (1 - 1e-3 * 1e-2) - 1e-3 * grad / (np.abs(grad) + 1e-8)


def chain_of_5(x: np.ndarray) -> Any:
    """Return the result of the benchmark's chain of five elementwise operations."""
    return np.maximum(sigmoid(x * 2 + 1) * x, 0.1)


def chain_of_7(x: np.ndarray, y: np.ndarray) -> Any:
    """Return the result of the benchmark's chain of seven elementwise operations."""
    return np.maximum(np.tanh(x * y + x) * sigmoid(y) - x, 0)


def chain_of_7_and_gradients(x: np.ndarray, y: np.ndarray, g: np.ndarray) -> Any:
    """Return the result of `chain_of_7`, and the gradients of `x` and `y`."""
    t, s, result = np.tanh(x * y + x), sigmoid(y), chain_of_7(x, y)
    g = g * (result > 0)
    inner = g * s * (1 - t * t)
    return result, inner * (y + 1) - g, inner * x + g * t * s * (1 - s)


def _causal_attention(qkv: np.ndarray) -> Any:
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    return (_attention_weights(q, k) @ v).swapaxes(1, 2)


_GPT_FUNCTIONS = GPTFunctions(
    embedding=lambda index, table: table[index], layer_norm=layer_norm,
    linear=lambda x, weight, bias: x @ weight + bias, gelu=gelu_tanh, attention=_causal_attention,
    logits=lambda x, table: x @ table.T, cross_entropy=cross_entropy,
)  # fmt: skip


def gpt_loss(config: Mapping[str, Any], weights: Mapping[str, np.ndarray], tokens: np.ndarray) -> float:
    """Return the loss of a GPT-2 in float64, one sequence at a time: all at once would take gigabytes."""
    exact = {name: array.astype(np.float64) for name, array in weights.items()}
    losses = [gpt.gpt_loss(_GPT_FUNCTIONS, config, exact, one[:, :-1], one[:, 1:]) for one in tokens[:, np.newaxis]]
    return float(np.mean(losses))


def gpt_step(tokens: np.ndarray) -> Any:
    """Return the loss of a GPT-2 with the benchmark's parameters."""
    return np.asarray(gpt_loss(GPT_CONFIG, gpt_weights(GPT_CONFIG), tokens))
