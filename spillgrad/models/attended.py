"""What queries see of a sequence, and the keys and values that generation keeps."""

import numpy as np

from spillgrad.errors import GraphError, ShapeError
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import empty_beside


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


class LayerCache:
    """The keys and values of a layer, for the positions seen so far; room for further ones is made ahead."""

    def __init__(self) -> None:
        # Arrays, as nothing here is differentiated: operations would take longer than the copies.
        self._kept: list[np.ndarray] | None = None
        self.length = 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of further positions; return those of all positions.

        Shapes: k and v (B, heads, T, E), results (B, heads, positions, E). Raises GraphError if k or v is recorded.
        """
        if k.grad_fn is not None or v.grad_fn is not None:
            raise GraphError("KeyValueCache: got keys with a graph; call the model in no_grad() to give it a cache")
        new = (k.array, v.array)
        before, self.length = self.length, self.length + new[0].shape[-2]
        if self._kept is None or self._kept[0].shape[-2] < self.length:
            # Twice as many: then each position is copied less than twice, whatever the length.
            former = (None, None) if self._kept is None else self._kept
            self._kept = [_with_room(*pair, before, 2 * self.length) for pair in zip(new, former, strict=True)]
        for kept, added in zip(self._kept, new, strict=True):
            kept[:, :, before : self.length] = added
        keys, values = (Tensor.wrap(kept[:, :, : self.length]) for kept in self._kept)
        return keys, values


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
