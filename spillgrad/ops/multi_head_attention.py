"""Attention with several heads, the projections before it, and the masks that PyTorch's layer takes.

Source: Vaswani et al. 2017, "Attention is all you need", section 3.2; torch.nn.functional.multi_head_attention_forward.
"""

import math
from typing import NamedTuple

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.attention import scaled_dot_product_attention
from spillgrad.ops.creation import ones, zeros
from spillgrad.ops.dropout_masks import dropout
from spillgrad.ops.indexing import masked_fill
from spillgrad.ops.join_split import cat
from spillgrad.ops.matrix_products import linear, matmul
from spillgrad.ops.normalization import softmax
from spillgrad.ops.padding import pad
from spillgrad.tensor import Tensor

__all__ = ["multi_head_attention_forward"]


class Projections(NamedTuple):
    """The weights before attention: `joint` of query, key and value in one matrix, or `separate` for each.

    `bias` is that of all three in one vector; `bias_k` and `bias_v` (1, 1, E) are one more key and value.
    """

    joint: Tensor | None
    separate: tuple[Tensor | None, Tensor | None, Tensor | None]
    bias: Tensor | None
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None

    def of(self, query: Tensor, key: Tensor, value: Tensor, embed_dim: int) -> tuple[Tensor, ...]:
        """Return query, key and value, projected."""
        if self.joint is not None and query is key is value:
            return linear(query, self.joint, self.bias).split(embed_dim, -1)  # type: ignore[no-any-return]
        bias = (None, None, None) if self.bias is None else self.bias.split(embed_dim)
        weight = self.separate if self.joint is None else self.joint.split(embed_dim)
        return tuple(map(linear, (query, key, value), weight, bias))


class Masks(NamedTuple):
    """What queries do not see: True in a mask means "not attended"; a mask of numbers is added to the scores."""

    key_padding: Tensor | None
    attn: Tensor | None
    is_causal: bool

    def with_further_key(self) -> "Masks":
        """Return the masks for one more key, the last one, which all queries see."""
        key_padding, attn = (None if mask is None else pad(mask, (0, 1)) for mask in (self.key_padding, self.attn))
        return Masks(key_padding, attn, self.is_causal)


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int, projections: Projections, masks: Masks, dropout_p: float,
    need_weights: bool, add_zero_attn: bool = False, static: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return what all heads attend to, side by side, and the weights of each head if they are needed.

    Shapes: query (N, T, E), key and value (N, S, …), result (N, T, E), weights (N, heads, T, S).
    Raises ShapeError if the batches, or the lengths of key and value, differ.
    """
    if key.shape[:2] != value.shape[:2] or key.shape[0] != query.shape[0]:
        raise ShapeError(
            f"MultiheadAttention: got query {tuple(query.shape)}, key {tuple(key.shape)} and value"
            f" {tuple(value.shape)} as (batch, length, width); batches must match, and the lengths of key and value"
        )
    batch, queries, embed_dim = query.shape
    q, k, v = projections.of(query, key, value, embed_dim)
    if projections.bias_k is not None and projections.bias_v is not None:
        k = cat([k, projections.bias_k.expand(batch, 1, embed_dim)], 1)
        v = cat([v, projections.bias_v.expand(batch, 1, embed_dim)], 1)
        masks = masks.with_further_key()
    q, k, v = (x.reshape(*x.shape[:2], heads, embed_dim // heads).transpose(1, 2) for x in (q, k, v))
    k, v = (
        own if given is None else given.reshape(batch, heads, *given.shape[1:])
        for own, given in zip((k, v), static, strict=True)
    )
    if add_zero_attn:
        k, v = (cat([x, zeros(*x.shape[:2], 1, x.shape[-1], dtype=x.dtype, device=x.device)], 2) for x in (k, v))
        masks = masks.with_further_key()
    # Attention takes the causal flag or a mask, so beside a mask the flag becomes a mask of numbers too.
    flagged = not need_weights and masks.key_padding is None and masks.attn is None
    mask = None if flagged else _added(masks, q, k)
    weights = None
    if need_weights:
        scores = matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
        weights = softmax(scores if mask is None else scores + mask, -1)
        weights = dropout(weights, dropout_p)
        found = matmul(weights, v)
    else:
        found = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=flagged and masks.is_causal
        )
    return found.transpose(1, 2).reshape(batch, queries, embed_dim), weights


def _added(masks: Masks, q: Tensor, k: Tensor) -> Tensor | None:
    """Return the sum of all masks, to add to scores of shape (N, heads, T, S); None if there is no mask."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    total = None
    if masks.attn is not None:
        total = _numbers(masks.attn, q)
        total = total.reshape(batch, heads, queries, keys) if total.ndim == 3 else total
    elif masks.is_causal:
        total = _numbers(ones(queries, keys, dtype="bool", device=q.device).triu(1), q)
    if masks.key_padding is not None:
        padding = _numbers(masks.key_padding, q).reshape(batch, 1, 1, keys)
        total = padding if total is None else total + padding
    return total


def _numbers(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as numbers to add to scores; True in a boolean mask becomes minus infinity."""
    if mask.is_floating_point():
        return mask
    return masked_fill(zeros(mask.shape, dtype=like.dtype, device=like.device), mask, -math.inf)


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return what `nn.MultiheadAttention` returns, given its parameters: the result, and the weights or None.

    Without a batch, N is left out of all shapes. S counts keys, T counts queries.

    Parameters
    ----------
    query : Tensor
        Of shape (T, N, E).
    key, value : Tensor
        Of shape (S, N, ...).
    embed_dim_to_check : int
        The width E.
    num_heads : int
        Number of heads; a divisor of E.
    in_proj_weight : Tensor, optional
        The three projections of queries, keys and values, one below the other.
    in_proj_bias : Tensor, optional
        The biases of the three projections.
    bias_k, bias_v : Tensor, optional
        Key and value that are added to all others.
    add_zero_attn : bool
        Whether a key and a value of zeros are added.
    dropout_p : float
        Probability of dropping a weight, in training.
    out_proj_weight : Tensor
        Projection of the result.
    out_proj_bias : Tensor, optional
        Bias of the result.
    training : bool, default True
        Whether to drop weights.
    key_padding_mask : Tensor, optional
        Of shape (N, S): True, or -inf, for keys to ignore.
    need_weights : bool, default True
        Whether to return the weights.
    attn_mask : Tensor, optional
        Of shape (T, S) or (N heads, T, S): True for pairs to ignore, or numbers to add.
    use_separate_proj_weight : bool, default False
        Whether the next three replace `in_proj_weight`.
    q_proj_weight, k_proj_weight, v_proj_weight : Tensor, optional
        Projections of queries, keys and values.
    static_k, static_v : Tensor, optional
        Of shape (N heads, S, E / heads): they take the place of the projected keys and values.
    average_attn_weights : bool, default True
        Whether to average the weights over the heads.
    is_causal : bool, default False
        Whether `attn_mask` is the causal one.

    Returns
    -------
    result : Tensor
        Of shape (T, N, E).
    weights : Tensor or None
        Of shape (N, T, S), or (N, heads, T, S) unless they are averaged.

    Raises
    ------
    ArgumentError
        For another width than `embed_dim_to_check`, one that the heads do not divide, and for `is_causal` without a
        mask.
    """
    if query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        raise ArgumentError(
            f"multi_head_attention_forward: was expecting embedding dimension of {embed_dim_to_check}, but got "
            f"{query.shape[-1]}; {num_heads} heads must divide it"
        )
    if is_causal and attn_mask is None:
        raise ArgumentError(
            "multi_head_attention_forward: Need attn_mask if specifying the is_causal hint; give the causal mask, too"
        )
    batched = query.ndim == 3
    itself = query is key is value
    if batched:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    else:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if itself:
        key = value = query
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    joint = None if use_separate_proj_weight else in_proj_weight
    heads, weights = attend(
        query, key, value, num_heads, Projections(joint, separate, in_proj_bias, bias_k, bias_v),
        Masks(key_padding_mask, attn_mask, False), dropout_p if training else 0.0, need_weights, add_zero_attn,
        (static_k, static_v),
    )  # fmt: skip
    result = linear(heads, out_proj_weight, out_proj_bias)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if not batched:
        return result.squeeze(0), None if weights is None else weights.squeeze(0)
    return result.transpose(0, 1), weights
