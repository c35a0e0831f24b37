"""Transformer layers, and stacks of them.

Source: Vaswani et al. 2017, "Attention is all you need"; with `norm_first` Xiong et al. 2020.
"""

import copy
from collections.abc import Callable
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.nn import init
from spillgrad.nn.containers import ModuleList
from spillgrad.nn.dropout import Dropout
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.nn.multihead_attention import MultiheadAttention
from spillgrad.nn.normalization import LayerNorm
from spillgrad.ops import activations, arithmetic, creation
from spillgrad.tensor import Tensor

__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip

Activation = str | Callable[[Tensor], Tensor]


def _activation(name: str, activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    known: dict[str, Any] = {"relu": activations.relu, "gelu": activations.gelu}
    if activation not in known:
        raise ArgumentError(f"{name}: activation should be relu/gelu, not {activation}; or give a function")
    return known[activation]  # type: ignore[no-any-return]


def _attended(
    attention: Module, query: Tensor, source: Tensor, mask: Tensor | None, key_padding_mask: Tensor | None,
    is_causal: bool,
) -> Tensor:  # fmt: skip
    result: Tensor
    result, _ = attention(
        query, source, source, key_padding_mask=key_padding_mask, need_weights=False, attn_mask=mask,
        is_causal=is_causal,
    )  # fmt: skip
    return result


class _Layer(Module):
    """The base of encoder and decoder layers: the feed-forward network, and the residual connections of sublayers."""

    _attentions: tuple[str, ...]

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **options))
        self.linear1 = Linear(d_model, dim_feedforward, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **options)
        self.norm_first = norm_first
        parts = range(1, len(self._attentions) + 2)
        for number in parts:
            setattr(self, f"norm{number}", LayerNorm(d_model, layer_norm_eps, **options))
        for number in parts:
            setattr(self, f"dropout{number}", Dropout(dropout))
        self.activation = _activation(type(self).__name__, activation)

    def _with(self, number: int, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x + dropout(part(norm(x))) if `norm_first`, else norm(x + dropout(part(x))), for sublayer `number`."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return arithmetic.add(x, dropout(part(norm(x))))
        return norm(arithmetic.add(x, dropout(part(x))))  # type: ignore[no-any-return]

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))  # type: ignore[no-any-return]


class TransformerEncoderLayer(_Layer):
    """Compute self-attention and a feed-forward network, each added to its input and normalised.

    Parameters
    ----------
    d_model : int
        Size of the model.
    nhead : int
        Number of heads of attention; it divides `d_model`.
    dim_feedforward : int, default 2048
        Size of the feed-forward network's hidden layer.
    dropout : float, default 0.1
        Probability of dropping an element in training.
    activation : {"relu", "gelu"} or callable, default "relu"
        Function in the feed-forward network.
    layer_norm_eps : float, default 1e-5
        Added to variances by the normalisations.
    batch_first : bool, default False
        Whether the batch is the first dimension; otherwise, the position is first.
    norm_first : bool, default False
        Whether to normalise before attention and feed-forward network instead of after.
    bias : bool, default True
        Whether linear layers and normalisations add biases.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        For another name of an activation, or a number of heads that does not divide `d_model`.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> layer(sg.zeros(3, 5, 8)).shape
    (3, 5, 8)
    """

    _attentions = ("self_attn",)

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return the layer's result.

        Parameters
        ----------
        src : Tensor
            Of shape (S, N, d_model); with `batch_first`, N comes first; without a batch, N is left out.
        src_mask : Tensor, optional
            Of shape (S, S), a mask of self-attention, as `attn_mask` in `MultiheadAttention`.
        src_key_padding_mask : Tensor, optional
            Of shape (N, S), the padding of `src`.
        is_causal : bool, default False
            Whether later positions are not attended; ignored if `src_mask` is given.

        Returns
        -------
        Tensor
            Of the shape of `src`.
        """
        masks = src_mask, src_key_padding_mask, is_causal
        x = self._with(1, src, lambda y: _attended(self.self_attn, y, y, *masks))
        return self._with(2, x, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Compute self-attention, attention to an encoder's result, and a feed-forward network.

    Each of the three is added to its input and normalised.

    Parameters
    ----------
    d_model : int
        Size of the model.
    nhead : int
        Number of heads of attention; it divides `d_model`.
    dim_feedforward : int, default 2048
        Size of the feed-forward network's hidden layer.
    dropout : float, default 0.1
        Probability of dropping an element in training.
    activation : {"relu", "gelu"} or callable, default "relu"
        Function in the feed-forward network.
    layer_norm_eps : float, default 1e-5
        Added to variances by the normalisations.
    batch_first : bool, default False
        Whether the batch is the first dimension; otherwise, the position is first.
    norm_first : bool, default False
        Whether to normalise before attention and feed-forward network instead of after.
    bias : bool, default True
        Whether linear layers and normalisations add biases.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        For another name of an activation, or a number of heads that does not divide `d_model`.
    """

    _attentions = ("self_attn", "multihead_attn")

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return the layer's result.

        Parameters
        ----------
        tgt : Tensor
            Of shape (T, N, d_model); with `batch_first`, N comes first; without a batch, N is left out.
        memory : Tensor
            Of shape (S, N, d_model), likewise: the encoder's result.
        tgt_mask : Tensor, optional
            Of shape (T, T), a mask of self-attention, as `attn_mask` in `MultiheadAttention`.
        memory_mask : Tensor, optional
            Of shape (T, S), a mask of attention to `memory`.
        tgt_key_padding_mask : Tensor, optional
            Of shape (N, T), the padding of `tgt`.
        memory_key_padding_mask : Tensor, optional
            Of shape (N, S), the padding of `memory`.
        tgt_is_causal : bool, default False
            Whether later positions of `tgt` are not attended; ignored if `tgt_mask` is given.
        memory_is_causal : bool, default False
            Whether later positions of `memory` are not attended; ignored if `memory_mask` is given.

        Returns
        -------
        Tensor
            Of the shape of `tgt`.
        """
        own = tgt_mask, tgt_key_padding_mask, tgt_is_causal
        others = memory_mask, memory_key_padding_mask, memory_is_causal
        x = self._with(1, tgt, lambda y: _attended(self.self_attn, y, y, *own))
        x = self._with(2, x, lambda y: _attended(self.multihead_attn, y, memory, *others))
        return self._with(3, x, self._feed_forward)


class _Stack(Module):
    def __init__(self, layer: Module, num_layers: int, norm: Module | None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def _run(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *arguments, **options)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Run copies of an encoder layer one after the other, then a normalisation if it is given.

    Parameters
    ----------
    encoder_layer : Module
        Layer to copy.
    num_layers : int
        Number of copies.
    norm : Module, optional
        Layer that runs last.
    enable_nested_tensor : bool, default True
        Accepted for PyTorch's programs.
    mask_check : bool, default True
        Accepted for PyTorch's programs.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the result of the last layer, or of `norm` if it is given.

        Parameters
        ----------
        src : Tensor
            Of shape (S, N, d_model); with `batch_first`, N comes first; without a batch, N is left out.
        mask : Tensor, optional
            Of shape (S, S), a mask of self-attention, as `attn_mask` in `MultiheadAttention`.
        src_key_padding_mask : Tensor, optional
            Of shape (N, S), the padding of `src`.
        is_causal : bool, optional
            Whether later positions are not attended; ignored if `mask` is given.

        Returns
        -------
        Tensor
            Of the shape of `src`.
        """
        return self._run(src, mask, src_key_padding_mask, is_causal=bool(is_causal))


class TransformerDecoder(_Stack):
    """Run copies of a decoder layer one after the other, then a normalisation if it is given.

    Parameters
    ----------
    decoder_layer : Module
        Layer to copy.
    num_layers : int
        Number of copies.
    norm : Module, optional
        Layer that runs last.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return the result of the last layer, or of `norm` if it is given.

        Parameters
        ----------
        tgt : Tensor
            Of shape (T, N, d_model); with `batch_first`, N comes first; without a batch, N is left out.
        memory : Tensor
            Of shape (S, N, d_model), likewise: the encoder's result.
        tgt_mask : Tensor, optional
            Of shape (T, T), a mask of self-attention, as `attn_mask` in `MultiheadAttention`.
        memory_mask : Tensor, optional
            Of shape (T, S), a mask of attention to `memory`.
        tgt_key_padding_mask : Tensor, optional
            Of shape (N, T), the padding of `tgt`.
        memory_key_padding_mask : Tensor, optional
            Of shape (N, S), the padding of `memory`.
        tgt_is_causal : bool, optional
            Whether later positions of `tgt` are not attended; ignored if `tgt_mask` is given.
        memory_is_causal : bool, default False
            Whether later positions of `memory` are not attended; ignored if `memory_mask` is given.

        Returns
        -------
        Tensor
            Of the shape of `tgt`.
        """
        return self._run(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, bool(tgt_is_causal),
            memory_is_causal,
        )  # fmt: skip


class Transformer(Module):
    """An encoder and a decoder.

    Matrices are drawn by `init.xavier_uniform_`.

    Parameters
    ----------
    d_model : int, default 512
        Size of the model.
    nhead : int, default 8
        Number of heads of attention; it divides `d_model`.
    num_encoder_layers : int, default 6
        Number of the encoder's layers.
    num_decoder_layers : int, default 6
        Number of the decoder's layers.
    dim_feedforward : int, default 2048
        Size of the feed-forward network's hidden layer.
    dropout : float, default 0.1
        Probability of dropping an element in training.
    activation : {"relu", "gelu"} or callable, default "relu"
        Function in the feed-forward network.
    custom_encoder : Module, optional
        Encoder to use instead.
    custom_decoder : Module, optional
        Decoder to use instead.
    layer_norm_eps : float, default 1e-5
        Added to variances by the normalisations.
    batch_first : bool, default False
        Whether the batch is the first dimension; otherwise, the position is first.
    norm_first : bool, default False
        Whether to normalise before attention and feed-forward network instead of after.
    bias : bool, default True
        Whether linear layers and normalisations add biases.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        For another name of an activation, or a number of heads that does not divide `d_model`.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
        custom_encoder: Module | None = None, custom_decoder: Module | None = None, layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        layer: Any = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device,
            dtype,
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(TransformerEncoderLayer(*layer), num_encoder_layers, norm())
        self.decoder = custom_decoder or TransformerDecoder(TransformerDecoderLayer(*layer), num_decoder_layers, norm())
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return the decoder's result for `tgt`; the decoder attends to the encoder's result for `src`.

        Parameters
        ----------
        src : Tensor
            Of shape (S, N, d_model); with `batch_first`, N comes first; without a batch, N is left out.
        tgt : Tensor
            Of shape (T, N, d_model), likewise.
        src_mask : Tensor, optional
            Of shape (S, S), a mask of the encoder's self-attention, as `attn_mask` in `MultiheadAttention`.
        tgt_mask : Tensor, optional
            Of shape (T, T), a mask of the decoder's self-attention.
        memory_mask : Tensor, optional
            Of shape (T, S), a mask of attention to the encoder's result.
        src_key_padding_mask : Tensor, optional
            Of shape (N, S), the padding of `src` in the encoder.
        tgt_key_padding_mask : Tensor, optional
            Of shape (N, T), the padding of `tgt`.
        memory_key_padding_mask : Tensor, optional
            Of shape (N, S), the padding of `src` in the decoder.
        src_is_causal : bool, optional
            Whether later positions of `src` are not attended; ignored if `src_mask` is given.
        tgt_is_causal : bool, optional
            Whether later positions of `tgt` are not attended; ignored if `tgt_mask` is given.
        memory_is_causal : bool, default False
            Whether the decoder does not attend to later positions of `src`; ignored if `memory_mask` is given.

        Returns
        -------
        Tensor
            Of the shape of `tgt`.
        """
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
            memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """Return a mask to add to scores that hides later positions: minus infinity above the diagonal, 0 elsewhere.

        Parameters
        ----------
        sz : int
            Number of positions.
        device : device, optional
            Where the result is; by default, the default device.
        dtype : dtype, optional
            Data type of the result; by default, the default data type.

        Returns
        -------
        Tensor
            Of shape (sz, sz).
        """
        return creation.full((sz, sz), float("-inf"), dtype=dtype, device=device).triu(1)  # type: ignore[no-any-return]
