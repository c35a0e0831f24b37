"""What queries see of a sequence, and the keys and values that generation keeps."""

import math

import numpy as np

from spillgrad.errors import GraphError, ShapeError
from spillgrad.ops.autocast import product_dtype
from spillgrad.ops.causal_attention import causal_attention
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu.attention import attention_of_next
from spillgrad_kernels.device_array import empty_beside

_KERNEL_DTYPES = frozenset(map(np.dtype, (np.float32, np.float64)))


def first_keys(
    queries: int, keys: int, window: int | None = None, starts: np.ndarray | None = None
) -> np.ndarray | None:  # fmt: skip
    """Return the first key that each of the last `queries` positions sees; None if it sees all up to itself.

    A query sees the last `window` keys, itself included, from its document's first one on.
    Shapes: starts (B, queries), the place of the first key of each query's document; result int32, (queries,) or, with
    starts, (B, queries).
    """
    if starts is None and (window is None or keys <= window):
        return None
    first = np.arange(keys - queries, keys) - (keys if window is None else window - 1)
    return np.maximum(first, 0 if starts is None else starts).astype(np.int32)


def heads_of(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values for `LayerCache.attend`, which `qkv` has side by side.

    Shapes: qkv (B, T, 3 * heads * E), results (B, heads, T, E). Raises GraphError if `qkv` is recorded.
    """
    _require_no_graph(qkv)
    batch, length, width = qkv.shape
    q, k, v = qkv.array.reshape(batch, length, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)
    return Tensor.wrap(q), Tensor.wrap(k), Tensor.wrap(v)


def _require_no_graph(keys: Tensor) -> None:
    if keys.grad_fn is not None:
        raise GraphError("KeyValueCache: got keys with a graph; call the model in no_grad() to give it a cache")


def _is_for_kernel(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> bool:
    """Return whether the kernel for the next position takes the arrays; in `autocast`, attention rounds float32."""
    dtype = query.dtype
    is_alike = dtype == keys.dtype == values.dtype in _KERNEL_DTYPES and type(query) is np.ndarray
    return is_alike and query.strides[3] == query.itemsize and product_dtype(dtype) == dtype


class LayerCache:
    """The keys and values of a layer, for the positions seen so far; room for further ones is made ahead.

    Nothing here is differentiated: arrays take less time than operations.
    """

    def __init__(self) -> None:
        self._kept: list[np.ndarray] | None = None
        self.length = 0

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, first_keys: Tensor | None, dropout_p: float = 0.0,
        scale: float | None = None, softcap: float | None = None,
    ) -> Tensor:  # fmt: skip
        """Add keys and values of further positions; return attention of their queries to all, as `causal_attention`.

        Shapes: q (B, heads, T, E), k and v (B, shared, T, E), result (B, T, heads * E). Raises GraphError if k or v is
        recorded.
        """
        _require_no_graph(k)
        _require_no_graph(v)
        query = q.array
        keys, values = self._extend(k.array, v.array)
        batch, heads, queries, width = query.shape
        if queries == 1 and q.grad_fn is None and not dropout_p and _is_for_kernel(query, keys, values):
            starts = None if first_keys is None else first_keys.array
            factor = 1 / math.sqrt(width) if scale is None else scale
            of_next = attention_of_next(query, keys, values, factor, starts, softcap)
            return Tensor.wrap(of_next.reshape(batch, 1, heads * width))
        attended = causal_attention(q, Tensor.wrap(keys), Tensor.wrap(values), first_keys, dropout_p, scale, softcap)
        return attended.transpose(1, 2).reshape(batch, queries, heads * width)  # type: ignore[no-any-return]

    def _extend(self, *new: np.ndarray) -> list[np.ndarray]:
        """Add keys and values of further positions; return those of all positions."""
        if self._kept is not None and len(self._kept[0]) != len(new[0]):
            raise ShapeError(
                f"KeyValueCache: got keys of {len(new[0])} sequences; it has those of {len(self._kept[0])}: give "
                "these, or a new cache"
            )
        before, self.length = self.length, self.length + new[0].shape[-2]
        if self._kept is None or self._kept[0].shape[-2] < self.length:
            # Twice as many: then each position is copied less than twice, whatever the length.
            former = (None, None) if self._kept is None else self._kept
            self._kept = [_with_room(*pair, before, 2 * self.length) for pair in zip(new, former, strict=True)]
        for kept, added in zip(self._kept, new, strict=True):
            kept[:, :, before : self.length] = added
        return [kept[:, :, : self.length] for kept in self._kept]


def _with_room(like: np.ndarray, kept: np.ndarray | None, length: int, room: int) -> np.ndarray:
    batch, heads, _, width = like.shape
    made = empty_beside(like, (batch, heads, room, width), like.dtype)
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
