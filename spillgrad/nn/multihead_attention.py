"""Multi-head attention."""

from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.nn import init
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops.multi_head_attention import Masks, Projections, attend
from spillgrad.tensor import Tensor

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attend from queries to keys and values with several heads; each head uses an equal part of the embedding.

    Parameters
    ----------
    embed_dim : int
        Size of queries and results.
    num_heads : int
        Number of heads; it divides `embed_dim`.
    dropout : float, default 0.0
        Probability of dropping an attention weight in training.
    bias : bool, default True
        Whether the projections add biases.
    add_bias_kv : bool, default False
        Whether there is one more key and value, which are trained.
    add_zero_attn : bool, default False
        Whether there is one more key and value of zeros.
    kdim : int, optional
        Size of keys; by default, `embed_dim`.
    vdim : int, optional
        Size of values; by default, `embed_dim`.
    batch_first : bool, default False
        Whether the batch is the first dimension; otherwise, the position is first.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `num_heads` does not divide `embed_dim`.

    Notes
    -----
    Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.MultiheadAttention(8, num_heads=2, batch_first=True)
    >>> x = sg.zeros(3, 5, 8)
    >>> result, weights = layer(x, x, x)
    >>> result.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None,
        batch_first: bool = False, device: Any = None, dtype: Any = None,
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
        self.add_zero_attn = add_zero_attn
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
            bias_k=(1, 1, embed_dim) if add_bias_kv else None,
            bias_v=(1, 1, embed_dim) if add_bias_kv else None,
        )  # fmt: skip
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the input projections by `init.xavier_uniform_`, others by `xavier_normal_`; set biases to zero."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for further in (self.bias_k, self.bias_v):
            if further is not None:
                init.xavier_normal_(further)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Return what the queries attend to, and the attention weights.

        Parameters
        ----------
        query : Tensor
            Of shape (T, N, embed_dim); with `batch_first`, N comes first; without a batch, N is left out.
        key : Tensor
            Of shape (S, N, kdim), likewise.
        value : Tensor
            Of shape (S, N, vdim), likewise.
        key_padding_mask : Tensor, optional
            Of shape (N, S): True means that a key is not attended; numbers are added to the scores.
        need_weights : bool, default True
            Whether to return the weights.
        attn_mask : Tensor, optional
            Of shape (T, S) or (N · num_heads, T, S): True means "not attended"; numbers are added to the scores.
        average_attn_weights : bool, default True
            Whether the weights are averaged over the heads; otherwise, there is one matrix for each head.
        is_causal : bool, default False
            Whether later keys are not attended; ignored if `attn_mask` is given.

        Returns
        -------
        Tensor
            Result of the shape of `query`.
        Tensor or None
            Weights of shape (N, T, S) or (N, num_heads, T, S); None without `need_weights`.
        """
        batched = query.ndim == 3
        self_attention = query is key is value
        if not batched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        if self_attention:
            key = value = query
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        heads, weights = attend(
            query, key, value, self.num_heads,
            Projections(self.in_proj_weight, separate, self.in_proj_bias, self.bias_k, self.bias_v),
            Masks(key_padding_mask, attn_mask, is_causal), self.dropout if self.training else 0.0, need_weights,
            self.add_zero_attn,
        )  # fmt: skip
        result = self.out_proj(heads)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return result.squeeze(0), None if weights is None else weights.squeeze(0)
        return result if self.batch_first else result.transpose(0, 1), weights

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"
