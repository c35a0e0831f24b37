"""Multi-head attention."""

import math
from typing import Any

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import init
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import attention, creation, dropout_masks, indexing, matrix_products, normalization
from spillgrad.tensor import Tensor

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attend from queries to keys and values with several heads; each head uses an equal part of the embedding.

    Shapes: query (T, N, embed_dim), key (S, N, kdim), value (S, N, vdim), result (T, N, embed_dim); with `batch_first`
    N comes first; without a batch N is left out.
    Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, *, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim % num_heads:
            raise ArgumentError(
                f"MultiheadAttention: got embed_dim {embed_dim} and num_heads {num_heads}; the heads must share it"
                " evenly"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        joint = self.kdim == self.vdim == embed_dim
        self._new_parameters(
            device, dtype,
            q_proj_weight=None if joint else (embed_dim, embed_dim),
            k_proj_weight=None if joint else (embed_dim, self.kdim),
            v_proj_weight=None if joint else (embed_dim, self.vdim),
            in_proj_weight=(3 * embed_dim, embed_dim) if joint else None,
            in_proj_bias=(3 * embed_dim,) if bias else None,
        )  # fmt: skip
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the input projections by `init.xavier_uniform_`; set biases to zero."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Return (result, attention weights); without `need_weights`, return None as the weights.

        With `average_attn_weights`, the weights are averaged over the heads; otherwise, there is one matrix for each
        head. True in a mask means "not attended"; a mask of numbers is added to the scores. If `attn_mask` is given,
        `is_causal` is ignored.
        Shapes: key_padding_mask (N, S), attn_mask (T, S) or (N · num_heads, T, S), weights (N, T, S) or
        (N, num_heads, T, S).
        """
        batched = query.ndim == 3
        self_attention = query is key is value
        if not batched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        if key.shape[:2] != value.shape[:2] or key.shape[0] != query.shape[0]:
            raise ShapeError(
                f"MultiheadAttention: got query {tuple(query.shape)}, key {tuple(key.shape)} and value"
                f" {tuple(value.shape)} as (batch, length, width); batches must match, and the lengths of key and value"
            )
        q, k, v = self._project(query, key, value, self_attention)
        # Attention takes the causal flag or a mask, so beside a mask the flag becomes a mask of numbers too.
        flagged = not need_weights and key_padding_mask is None and attn_mask is None
        mask = None if flagged else self._mask(q, k, key_padding_mask, attn_mask, is_causal)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = matrix_products.matmul(q * (1 / math.sqrt(self.head_dim)), k.transpose(-2, -1))
            weights = normalization.softmax(scores if mask is None else scores + mask, -1)
            weights = dropout_masks.dropout(weights, dropout, self.training)
            heads = matrix_products.matmul(weights, v)
        else:
            heads = attention.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=flagged and is_causal
            )
        result = self.out_proj(heads.transpose(1, 2).reshape(*query.shape[:2], self.embed_dim))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return result.squeeze(0), None if weights is None else weights.squeeze(0)
        return result if self.batch_first else result.transpose(0, 1), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor, self_attention: bool) -> tuple[Tensor, ...]:
        """Return query, key and value, projected and split into heads: shapes (N, num_heads, length, head_dim)."""
        bias = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.split(self.embed_dim)
        if self.in_proj_weight is not None and self_attention:
            projected = matrix_products.linear(query, self.in_proj_weight, self.in_proj_bias).split(self.embed_dim, -1)
        else:
            weight = (
                (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
                if self.in_proj_weight is None
                else self.in_proj_weight.split(self.embed_dim)
            )
            projected = tuple(map(matrix_products.linear, (query, key, value), weight, bias))
        return tuple(
            tensor.reshape(*tensor.shape[:2], self.num_heads, self.head_dim).transpose(1, 2) for tensor in projected
        )

    def _mask(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool
    ) -> Tensor | None:
        """Return the sum of all masks, to add to scores of shape (N, num_heads, T, S); None if there is no mask."""
        batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
        total = None
        if attn_mask is not None:
            total = _scores_mask(attn_mask, q)
            total = total.reshape(batch, self.num_heads, queries, keys) if total.ndim == 3 else total
        elif is_causal:
            total = _scores_mask(creation.ones(queries, keys, dtype="bool", device=q.device).triu(1), q)
        if key_padding_mask is not None:
            padding = _scores_mask(key_padding_mask, q).reshape(batch, 1, 1, keys)
            total = padding if total is None else total + padding
        return total

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def _scores_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as numbers to add to scores; True in a boolean mask becomes minus infinity."""
    if mask.is_floating_point():
        return mask
    return indexing.masked_fill(creation.zeros(mask.shape, dtype=like.dtype, device=like.device), mask, -math.inf)
