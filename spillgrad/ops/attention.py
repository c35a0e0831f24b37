"""Scaled dot-product attention: a fused kernel, and the same from products and softmax where that does not apply."""

import math
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.define import Composed, operation
from spillgrad.ops.elementwise import mul, where
from spillgrad.ops.indexing import masked_fill
from spillgrad.ops.linalg import matmul
from spillgrad.ops.normalization import run_on_tensors, softmax
from spillgrad.ops.numeric import on_floats
from spillgrad.ops.random import dropout
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape, transpose
from spillgrad.tensor import Tensor
from spillgrad_kernels import attention as kernels


def _attention_forward(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, is_causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return kernels.attention_forward(q, k, v, scale, is_causal)

    return on_floats(attend, query, key, value, exact_aux=True)  # type: ignore[no-any-return]


def _attention_fused(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float, is_causal: bool, result: Tensor, lse: Tensor
) -> tuple[Tensor, ...]:
    def gradients(*arrays: Any) -> tuple[np.ndarray, ...]:
        g, q, k, v, out, lse = arrays
        return kernels.attention_backward(g, q, k, v, out, lse, scale, is_causal)

    return run_on_tensors(gradients, g, query, key, value, result, lse)  # type: ignore[no-any-return]


def _attention_composed(
    g: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, is_causal: bool
) -> tuple[Tensor, ...]:
    weights: Any = softmax(_scores(query, key, scale, is_causal), -1)
    by_weights: Any = matmul(g, transpose(value, -2, -1))
    by_scores = weights * (by_weights - sum(by_weights * weights, -1, True)) * scale
    by_key = matmul(transpose(by_scores, -2, -1), query)
    return matmul(by_scores, key), by_key, matmul(transpose(weights, -2, -1), g)


_attention: Any = operation(
    "scaled_dot_product_attention", _attention_forward, aux=("lse",),
    joint=(("query", "key", "value"), Composed(fused=_attention_fused, composed=_attention_composed)),
)  # fmt: skip


def _scores(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> Tensor:
    scores = mul(matmul(query, transpose(key, -2, -1)), scale)
    if not is_causal:
        return scores
    return masked_fill(scores, Tensor.wrap(~np.tri(*scores.shape[-2:], dtype=np.bool_)), -math.inf)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Return softmax(scale query keyᵀ + mask) value; `scale` is by default 1 / sqrt(E).

    Shapes: query (..., T, E), key (..., S, E), value (..., S, V), result (..., T, V); leading dimensions broadcast.
    The mask broadcasts to (..., T, S): bool, True where a key takes part, or numbers to add. A query that sees no key
    gives 0. Raises ShapeError, DtypeError, and ArgumentError for a mask beside `is_causal`.
    Source: Vaswani et al. 2017, equation 1.
    """
    batch = _checked_batch(query, key, value)
    if attn_mask is not None and is_causal:
        raise ArgumentError(
            "scaled_dot_product_attention: got both attn_mask and is_causal; put the causal triangle into the mask"
        )
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    query, key, value = (expand_to(x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    if attn_mask is None and dropout_p == 0:
        operands = (_as_heads(x) for x in (query, key, value))
        result: Tensor = _attention(*operands, scale, bool(is_causal))
        shape = (*batch, query.shape[-2], value.shape[-1])
        return result if result.shape == shape else reshape(result, shape)
    scores = _scores(query, key, scale, is_causal)
    if attn_mask is None:
        return matmul(dropout(softmax(scores, -1), dropout_p), value)
    scores, hidden = _masked(scores, attn_mask)
    weights = softmax(scores, -1)
    if hidden.any():
        weights = masked_fill(weights, Tensor.wrap(hidden), 0.0)
    return matmul(dropout(weights, dropout_p), value)


def _as_heads(tensor: Tensor) -> Tensor:
    """Return a tensor as (batch, heads, positions, features)."""
    lead = tensor.shape[:-2]
    shape = (math.prod(lead[:-1]), lead[-1] if lead else 1, *tensor.shape[-2:])
    return tensor if tensor.shape == shape else reshape(tensor, shape)


def _masked(scores: Any, mask: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return the scores under a mask, and which queries see no key: their scores stay finite, so that no NaN arises."""
    is_choice = mask.dtype == dtypes.bool_
    if not is_choice and mask.dtype != scores.dtype:
        raise DtypeError(
            f"scaled_dot_product_attention: got a mask of {mask.dtype} for queries of {scores.dtype}; "
            "wanted bool or the same dtype"
        )
    try:
        mask = expand_to(mask, np.broadcast_shapes(mask.shape, scores.shape[-2:]))
        np.broadcast_shapes(mask.shape, scores.shape)
    except ValueError as error:
        raise ShapeError(
            f"scaled_dot_product_attention: got a mask of {mask.shape}; wanted one that broadcasts to {scores.shape}"
        ) from error
    visible = mask.array if is_choice else np.greater(mask.array, -math.inf)
    hidden: np.ndarray = np.logical_not(visible.any(-1, keepdims=True))
    if is_choice:
        return masked_fill(scores, Tensor.wrap(~(visible | hidden)), -math.inf), hidden
    return scores + (where(Tensor.wrap(hidden), 0.0, mask) if hidden.any() else mask), hidden


def _checked_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """Return the leading dimensions. Raises ShapeError or DtypeError where the operands do not go together."""
    shapes = f"scaled_dot_product_attention: got query {query.shape}, key {key.shape} and value {value.shape}"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(f"{shapes}; each needs at least two dimensions: positions and features")
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"{shapes}; query and key must have the same last dimension")
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"{shapes}; key and value must have the same number of positions (the dimension before the last)"
        )
    try:
        batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except ValueError as error:
        raise ShapeError(f"{shapes}; leading dimensions must broadcast") from error
    if not query.is_floating_point() or not query.dtype == key.dtype == value.dtype:
        raise DtypeError(
            f"scaled_dot_product_attention: got query {query.dtype}, key {key.dtype} and value {value.dtype}; "
            "wanted one floating-point dtype: convert with .to(dtype)"
        )
    return batch
