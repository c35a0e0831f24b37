"""Scaled dot-product attention: a fused kernel, or matrix products and softmax where the kernel does not apply."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import Device, filled, moved
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.generator import default_generator
from spillgrad.ops.arithmetic import div, mul
from spillgrad.ops.array_casts import on_floats
from spillgrad.ops.autocast import product_dtype
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.clamp_where import where
from spillgrad.ops.comparison import ge
from spillgrad.ops.dropout_masks import dropout
from spillgrad.ops.indexing import masked_fill
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.normalization import run_on_tensors, softmax
from spillgrad.ops.operation import Composed, operation
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape, transpose, unsqueeze
from spillgrad.ops.trigonometry import tanh
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu.attention import attention_forward
from spillgrad_kernels.cpu.attention_backward import attention_backward
from spillgrad_kernels.cpu.random import dropout as zero_some
from spillgrad_kernels.device_array import is_on_device
from spillgrad_kernels.tables.attention import Dropout
from spillgrad_kernels.tables.random import counters_needed

__all__ = ["scaled_dot_product_attention"]


class Seen(NamedTuple):
    """What queries see of the keys, at most one of three: a mask, the keys up to their number, or from their first key.

    With `first_keys`, int32, the queries are the last positions of the keys, and see the keys up to themselves.
    """

    attn_mask: Tensor | None = None
    is_causal: bool = False
    first_keys: Tensor | None = None


def _attention_forward(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, attn_mask: np.ndarray | None, scale: float,
    is_causal: bool, dropout: Dropout | None, first_keys: np.ndarray | None, softcap: float | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    def attend(*arrays: Any) -> tuple[np.ndarray, np.ndarray]:
        q, k, v, mask, starts = arrays
        return attention_forward(q, k, v, scale, is_causal, mask, dropout, starts, softcap)

    return on_floats(attend, query, key, value, attn_mask, first_keys, exact_aux=True, device_takes_half=True)


def _attention_fused(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float, is_causal: bool,
    dropout: Dropout | None, first_keys: Tensor | None, softcap: float | None, result: Tensor, lse: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    def gradients(*arrays: Any) -> tuple[np.ndarray, ...]:
        g, q, k, v, mask, starts, out, lse = arrays
        return attention_backward(g, q, k, v, out, lse, scale, is_causal, mask, dropout, starts, softcap)

    return run_on_tensors(  # type: ignore[no-any-return]
        gradients, g, query, key, value, attn_mask, first_keys, result, lse, device_takes_half=True
    )


def _attention_composed(
    g: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float, is_causal: bool,
    dropout: Dropout | None, first_keys: Tensor | None, softcap: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    scores: Any = _scores(query, key, scale, softcap)
    weights: Any = _weights(scores, Seen(attn_mask, is_causal, first_keys))
    by_weights: Any = matmul(g, transpose(value, -2, -1))
    kept: Any = weights
    if dropout is not None:
        factors = Tensor.wrap(_dropout_factors(weights.shape, weights.dtype, weights.device, dropout))
        by_weights, kept = by_weights * factors, weights * factors
    by_scores = weights * (by_weights - sum(by_weights * weights, -1, True)) * scale
    if softcap is not None:
        share = scores / softcap
        by_scores = by_scores * (1 - share * share)
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


def _scores(query: Tensor, key: Tensor, scale: float, softcap: float | None) -> Tensor:
    scores = mul(matmul(query, transpose(key, -2, -1)), scale)
    return scores if softcap is None else mul(tanh(div(scores, softcap)), softcap)


def _mask_of(first_keys: Tensor, queries: int, keys: int) -> Tensor:
    """Return which keys each of the last `queries` positions sees. Shapes: first_keys (..., T), result (..., T, S)."""
    key, query = np.arange(keys), np.arange(keys - queries, keys)[:, np.newaxis]
    places, former = (Tensor.wrap(moved(array, first_keys.device)) for array in (key, key <= query))
    return ge(places, unsqueeze(first_keys, -1)) & former


def _weights(scores: Tensor, seen: Seen) -> Tensor:
    """Return the attention weights: the softmax of the scores, or 0 for a query that sees no key."""
    attn_mask = seen.attn_mask
    if seen.first_keys is not None:
        attn_mask = _mask_of(seen.first_keys, *scores.shape[-2:])
    elif seen.is_causal:
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
    name = "scaled_dot_product_attention"
    if enable_gqa:
        query, key, value = grouped(f"{name} with enable_gqa", query, key, value)
        if attn_mask is not None:
            attn_mask = _grouped_mask(attn_mask, query.shape[-4:-2])
    batch = checked_batch(name, query, key, value)
    if attn_mask is not None:
        _check_mask(attn_mask, query.numpy_dtype, (*batch, query.shape[-2], key.shape[-2]))
    result = attend(name, query, key, value, Seen(attn_mask, bool(is_causal)), dropout_p, scale)
    return ungrouped(result) if enable_gqa else result


def attend(
    name: str, query: Tensor, key: Tensor, value: Tensor, seen: Seen, dropout_p: float, scale: float | None,
    softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """Return attention of operands that `checked_batch` accepts. Raises ArgumentError if `dropout_p` is no probability.

    The kernels of devices take neither first keys nor a cap. There, first keys become a mask, of one number for each
    query and key, and with a cap all scores exist at once.
    """
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"{name}: got dropout_p={dropout_p}; wanted a probability, 0 to 1")
    queries, keys, width = query.shape[-2], key.shape[-2], query.shape[-1]
    scale = 1 / math.sqrt(max(width, 1)) if scale is None else float(scale)
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (expand_to(x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    on_device = is_on_device(query.array)
    if dropout_p == 1 or not width or (on_device and softcap is not None) or (
        seen.attn_mask is not None and seen.attn_mask.requires_grad
    ):  # fmt: skip
        weights = _weights(_scores(query, key, scale, softcap), seen)
        return matmul(dropout(weights, dropout_p), value)
    if on_device and seen.first_keys is not None:
        seen = Seen(_mask_of(seen.first_keys, queries, keys))
    drawn = None
    if dropout_p:
        count = math.prod(query.shape[:-1]) * counters_needed(keys)
        drawn = Dropout(float(dropout_p), *default_generator.take(count))
    return _attention(query, key, value, seen.attn_mask, scale, seen.is_causal, drawn, seen.first_keys, softcap)


def grouped(name: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the operands with the heads split in two dimensions: (heads of the key, query heads that share one)."""
    heads, shared = (x.shape[-3] if x.ndim > 2 else 0 for x in (query, key))
    if not shared or heads % shared or value.ndim < 3 or value.shape[-3] != shared:
        raise ShapeError(
            f"{name}: got query {query.shape}, key {key.shape} and value {value.shape}; heads (the dimension before "
            "positions) of key and value must be equal and divide the query's"
        )
    return _split(query, (shared, heads // shared)), _split(key, (shared, 1)), _split(value, (shared, 1))


def ungrouped(result: Tensor) -> Tensor:
    """Return the result for operands that `grouped` returned with one dimension of heads."""
    *lead, shared, group, queries, width = result.shape
    return reshape(result, (*lead, shared * group, queries, width))


def _grouped_mask(mask: Tensor, groups: tuple[int, ...]) -> Tensor:
    heads = math.prod(groups)
    if mask.ndim > 2 and mask.shape[-3] not in (1, heads):
        raise ShapeError(f"scaled_dot_product_attention: got a mask of {mask.shape}; wanted 1 or {heads} heads")
    return mask if mask.ndim <= 2 else _split(mask, (1, 1) if mask.shape[-3] == 1 else groups)


def _split(tensor: Tensor, groups: tuple[int, ...]) -> Tensor:
    return reshape(tensor, (*tensor.shape[:-3], *groups, *tensor.shape[-2:]))


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


def checked_batch(name: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """Check the operands, and return the leading dimensions that they broadcast to. Raises ShapeError, DtypeError."""
    shapes = f"{name}: got query {query.shape}, key {key.shape} and value {value.shape}"
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
            f"{name}: got query {query.dtype}, key {key.dtype} and value {value.dtype}; "
            "wanted one floating-point dtype: convert with .to(dtype)"
        )
    return batch
