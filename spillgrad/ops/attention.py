"""Scaled dot-product attention: a fused kernel, or matrix products and softmax where the kernel does not apply."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import Device, filled, moved
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.generator import default_generator
from spillgrad.ops.arithmetic import mul
from spillgrad.ops.array_casts import on_floats
from spillgrad.ops.autocast import product_dtype
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.clamp_where import where
from spillgrad.ops.dropout_masks import dropout
from spillgrad.ops.indexing import masked_fill
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.normalization import run_on_tensors, softmax
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape, transpose
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu.attention import attention_forward
from spillgrad_kernels.cpu.attention_backward import attention_backward
from spillgrad_kernels.cpu.random import dropout as zero_some
from spillgrad_kernels.tables.attention import Dropout
from spillgrad_kernels.tables.random import counters_needed

__all__ = ["scaled_dot_product_attention"]


def _attention_forward(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, attn_mask: np.ndarray | None, scale: float,
    is_causal: bool, dropout: Dropout | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return attention_forward(q, k, v, scale, is_causal, mask, dropout)

    return on_floats(attend, query, key, value, attn_mask, exact_aux=True, device_takes_half=True)


def _attention_fused(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float, is_causal: bool,
    dropout: Dropout | None, result: Tensor, lse: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    def gradients(*arrays: Any) -> tuple[np.ndarray, ...]:
        g, q, k, v, mask, out, lse = arrays
        return attention_backward(g, q, k, v, out, lse, scale, is_causal, mask, dropout)

    return run_on_tensors(  # type: ignore[no-any-return]
        gradients, g, query, key, value, attn_mask, result, lse, device_takes_half=True
    )


def _attention_composed(
    g: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float, is_causal: bool,
    dropout: Dropout | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    weights: Any = _weights(query, key, attn_mask, scale, is_causal)
    by_weights: Any = matmul(g, transpose(value, -2, -1))
    kept: Any = weights
    if dropout is not None:
        factors = Tensor.wrap(_dropout_factors(weights.shape, weights.dtype, weights.device, dropout))
        by_weights, kept = by_weights * factors, weights * factors
    by_scores = weights * (by_weights - sum(by_weights * weights, -1, True)) * scale
    by_key = matmul(transpose(by_scores, -2, -1), query)
    return matmul(by_scores, key), by_key, matmul(transpose(kept, -2, -1), g)


_attention: Callable[..., Tensor] = operation(
    "scaled_dot_product_attention", _attention_forward, aux=("lse",),
    joint=(("query", "key", "value"), Composed(fused=_attention_fused, composed=_attention_composed)),
)  # fmt: skip


def _dropout_factors(shape: tuple[int, ...], dtype: dtypes.DType, device: Device, dropout: Dropout) -> np.ndarray:
    """Return the factor of each attention weight: 0 for a dropped weight, 1 / (1 - p) for the others."""
    # Each row of random words starts at a new counter: rows are padded to whole counters of 4 words.
    row = 4 * counters_needed(shape[-1])
    ones = filled(device, (*shape[:-1], row), dtypes.float32 if dtype.itemsize < 4 else dtype, 1)
    return zero_some(ones, *dropout)[..., : shape[-1]].astype(dtype)


def _weights(query: Tensor, key: Tensor, attn_mask: Tensor | None, scale: float, is_causal: bool) -> Tensor:
    """Return the attention weights: the softmax of the scores, or 0 for a query that sees no key."""
    scores = mul(matmul(query, transpose(key, -2, -1)), scale)
    if is_causal:
        hidden = moved(~np.tri(*scores.shape[-2:], dtype=np.bool_), scores.device)
        scores = masked_fill(scores, Tensor.wrap(hidden), -math.inf)
    if attn_mask is None:
        return softmax(scores, -1)
    scores, hidden = _masked(scores, attn_mask)
    weights = softmax(scores, -1)
    return masked_fill(weights, Tensor.wrap(hidden), 0.0) if hidden.any() else weights


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return attention: softmax(scale query keyᵀ + mask) value.

    Memory is linear in T and S, unless the mask requires a gradient.

    Parameters
    ----------
    query : Tensor
        Of shape (..., T, E); leading dimensions broadcast.
    key : Tensor
        Of shape (..., S, E).
    value : Tensor
        Of shape (..., S, V).
    attn_mask : Tensor, optional
        Of a shape that broadcasts to (..., T, S). A bool mask is True where a query sees a key; a mask of numbers is
        added to the scores.
    dropout_p : float, default 0.0
        Probability with which a weight is set to 0.
    is_causal : bool, default False
        Whether a query sees no later key; not together with a mask.
    scale : float, optional
        Factor of the scores; by default, ``1 / sqrt(E)``.
    enable_gqa : bool, default False
        Whether neighbouring heads of the query share a head of key and value.

    Returns
    -------
    Tensor
        Of shape (..., T, V); 0 for a query that sees no key.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DtypeError
        If the dtypes differ, or are not of floating-point numbers.
    ArgumentError
        If a mask and `is_causal` are given, or `dropout_p` is no probability.

    Notes
    -----
    Source: Vaswani et al. 2017, equation 1; Ainslie et al. 2023, "GQA".

    Examples
    --------
    >>> import spillgrad as sg
    >>> q, k, v = sg.randn(2, 4, 8), sg.randn(2, 6, 8), sg.randn(2, 6, 3)
    >>> tuple(sg.nn.functional.scaled_dot_product_attention(q, k, v).shape)
    (2, 4, 3)
    """
    if attn_mask is not None and is_causal:
        raise ArgumentError(
            "scaled_dot_product_attention: got both attn_mask and is_causal; put the causal triangle into the mask"
        )
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"scaled_dot_product_attention: got dropout_p={dropout_p}; wanted a probability, 0 to 1")
    if enable_gqa:
        query, key, value, attn_mask = _grouped(query, key, value, attn_mask)
    batch = _checked_batch(query, key, value)
    if attn_mask is not None:
        _check_mask(attn_mask, query.numpy_dtype, (*batch, query.shape[-2], key.shape[-2]))
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    query, key, value = (expand_to(x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    is_causal = bool(is_causal)
    if dropout_p == 1 or not query.shape[-1] or (attn_mask is not None and attn_mask.requires_grad):
        result = matmul(dropout(_weights(query, key, attn_mask, scale, is_causal), dropout_p), value)
    else:
        drawn = None
        if dropout_p:
            count = math.prod(query.shape[:-1]) * counters_needed(key.shape[-2])
            drawn = Dropout(float(dropout_p), *default_generator.take(count))
        result = _attention(query, key, value, attn_mask, scale, is_causal, drawn)
    if not enable_gqa:
        return result
    *lead, shared, group, queries, width = result.shape
    return reshape(result, (*lead, shared * group, queries, width))


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the operands with the heads split in two dimensions: (heads of the key, query heads that share one)."""
    heads, shared = (x.shape[-3] if x.ndim > 2 else 0 for x in (query, key))
    if not shared or heads % shared or value.ndim < 3 or value.shape[-3] != shared:
        raise ShapeError(
            f"scaled_dot_product_attention: got query {query.shape}, key {key.shape} and value {value.shape} with "
            "enable_gqa; heads (the dimension before positions) of key and value must be equal and divide the query's"
        )

    def split(tensor: Tensor) -> Tensor:
        count = tensor.shape[-3]
        groups = (count, 1) if count == 1 else (shared, count // shared)
        return reshape(tensor, (*tensor.shape[:-3], *groups, *tensor.shape[-2:]))

    if mask is not None and mask.ndim > 2:
        if mask.shape[-3] not in (1, heads):
            raise ShapeError(f"scaled_dot_product_attention: got a mask of {mask.shape}; wanted 1 or {heads} heads")
        mask = split(mask)
    return split(query), split(key), split(value), mask


def _masked(scores: Any, mask: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return the masked scores, and a bool array that is True for the queries that see no key.

    The scores of these queries stay finite, so that softmax gives no NaN.
    """
    mask = expand_to(mask, np.broadcast_shapes(mask.shape, scores.shape[-2:]))
    is_choice = mask.numpy_dtype == dtypes.bool_
    visible = mask.array if is_choice else np.greater(mask.array, -math.inf)
    hidden: np.ndarray = np.logical_not(visible.any(-1, keepdims=True))
    if is_choice:
        return masked_fill(scores, Tensor.wrap(~(visible | hidden)), -math.inf), hidden
    return scores + (where(Tensor.wrap(hidden), 0.0, mask) if hidden.any() else mask), hidden


def _check_mask(mask: Tensor, dtype: dtypes.DType, shape: tuple[int, ...]) -> None:
    """Raise DtypeError or ShapeError unless the mask fits scores of this dtype and shape."""
    if mask.dtype != dtypes.bool_ and product_dtype(mask.numpy_dtype) != product_dtype(dtype):
        raise DtypeError(
            f"scaled_dot_product_attention: got a mask of {mask.dtype} for queries of {dtype}; "
            "wanted bool or the same dtype"
        )
    try:
        broadcasts = np.broadcast_shapes(mask.shape, shape) == shape
    except ValueError:
        broadcasts = False
    if not broadcasts:
        raise ShapeError(
            f"scaled_dot_product_attention: got a mask of {mask.shape}; wanted one that broadcasts to {shape}"
        )


def _checked_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """Check the operands, and return the leading dimensions that they broadcast to. Raises ShapeError, DtypeError."""
    shapes = f"scaled_dot_product_attention: got query {query.shape}, key {key.shape} and value {value.shape}"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(f"{shapes}; each needs at least two dimensions: positions and features")
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"{shapes}; query and key must have the same last dimension")
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"{shapes}; key and value must have the same number of positions (the dimension before the last)"
        )
    batch = query.shape[:-2]
    try:
        if not batch == key.shape[:-2] == value.shape[:-2]:
            batch = np.broadcast_shapes(batch, key.shape[:-2], value.shape[:-2])
    except ValueError as error:
        raise ShapeError(f"{shapes}; leading dimensions must broadcast") from error
    dtypes_found = {product_dtype(x.numpy_dtype) for x in (query, key, value)}
    if not query.is_floating_point() or len(dtypes_found) > 1:
        raise DtypeError(
            f"scaled_dot_product_attention: got query {query.dtype}, key {key.dtype} and value {value.dtype}; "
            "wanted one floating-point dtype: convert with .to(dtype)"
        )
    return batch
