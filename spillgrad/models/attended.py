"""What queries see of a sequence, and the keys and values that generation keeps."""

import math

import numpy as np

from spillgrad.errors import ShapeError
from spillgrad.ops import attention, creation
from spillgrad.ops.dropout_masks import dropout
from spillgrad.ops.indexing import masked_fill
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.normalization import softmax
from spillgrad.ops.shape import reshape, transpose
from spillgrad.ops.trigonometry import tanh
from spillgrad.tensor import Tensor


def visible_keys(
    queries: int, keys: int, window: int | None = None, starts: np.ndarray | None = None
) -> np.ndarray | None:  # fmt: skip
    """Return which keys each of the last `queries` positions sees; None if it sees all up to itself.

    A query sees the last `window` keys, itself included, from its document's first one on.
    Shapes: starts (B, queries), the place of the first key of each query's document; result (queries, keys) or, with
    starts, (B, 1, queries, keys), bool.
    """
    if starts is None and (window is None or keys <= window):
        return None
    key, query = np.arange(keys), np.arange(keys - queries, keys)[:, np.newaxis]
    seen: np.ndarray = key <= query
    if window is not None:
        seen = seen & (key > query - window)
    return seen if starts is None else seen & (key >= starts[:, np.newaxis, :, np.newaxis])


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float | None = None, dropout_p: float = 0.0,
    softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """Return attention of the last positions of a sequence to the keys that are `visible`, or to all former ones.

    Neighbouring heads of the queries may share a head of keys and values. With `softcap`, all scores exist at once.
    Shapes: q (B, heads, T, E), k and v (B, shared, S, E), result (B, heads, T, E).
    """
    queries, keys = q.shape[-2], k.shape[-2]
    is_grouped = q.shape[1] != k.shape[1]
    if visible is None and 1 < queries < keys:
        visible = creation.tensor(np.tri(queries, keys, keys - queries, dtype=np.bool_), device=q.device)
    is_causal = visible is None and queries == keys
    if softcap is None:
        return attention.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
        )
    batch, heads, _, width = q.shape
    shared = k.shape[1]
    grouped = reshape(q, (batch, shared, heads // shared, queries, width))
    k, v = (reshape(x, (batch, shared, 1, keys, width)) for x in (k, v))
    scores = matmul(grouped, transpose(k, -2, -1)) * (1 / math.sqrt(width) if scale is None else scale)
    scores = tanh(scores / softcap) * softcap
    if is_causal:
        visible = creation.tensor(np.tri(queries, dtype=np.bool_), device=q.device)
    if visible is not None:
        seen = visible if visible.ndim == 2 else reshape(visible, (batch, 1, 1, queries, keys))
        scores = masked_fill(scores, ~seen, -math.inf)
    result = matmul(dropout(softmax(scores, -1), dropout_p), v)
    return reshape(result, (batch, heads, queries, width))


class LayerCache:
    """The keys and values of a layer, for the positions seen so far; room for further ones is made ahead."""

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Tensor] | None = None
        self.length = 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of further positions; return those of all positions.

        Shapes: k and v (B, heads, T, E), results (B, heads, positions, E).
        """
        before, self.length = self.length, self.length + k.shape[-2]
        if self._kept is None or self._kept[0].shape[-2] < self.length:
            # Twice as many: then each position is copied less than twice, whatever the length.
            self._kept = tuple(  # type: ignore[assignment]
                _with_room(new, None if self._kept is None else self._kept[number], before, 2 * self.length)
                for number, new in enumerate((k, v))
            )
        assert self._kept is not None
        for kept, new in zip(self._kept, (k, v), strict=True):
            kept[:, :, before : self.length] = new
        keys, values = (kept[:, :, : self.length] for kept in self._kept)
        return keys, values


def _with_room(like: Tensor, kept: Tensor | None, length: int, room: int) -> Tensor:
    batch, heads, _, width = like.shape
    made = creation.empty(batch, heads, room, width, dtype=like.dtype, device=like.device)
    if kept is not None:
        made[:, :, :length] = kept[:, :, :length]
    return made


class KeyValueCache:
    """The keys and values of each layer of a model, so that the next token needs a pass of one position alone.

    It is for `no_grad`: what it returns is overwritten by later passes.

    Parameters
    ----------
    layers : int
        Number of layers: `LanguageModel.layers`.
    """

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]

    @property
    def length(self) -> int:
        """The number of positions seen."""
        return self.layers[0].length


def require_starts(name: str, starts: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ShapeError unless `starts` has the shape of the tokens, and no document starts after its tokens."""
    if starts.shape != shape or (starts < 0).any() or (starts > np.arange(shape[-1])).any():
        raise ShapeError(
            f"{name}: got starts of shape {starts.shape} for tokens of shape {shape}; wanted, for each token, the "
            "place of its document's first token, which is not after it"
        )
