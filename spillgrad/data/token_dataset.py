"""Windows of a text, as tokens or bytes, for training a language model."""

from collections.abc import Iterator, Sequence

import numpy as np

from spillgrad.data.epoch_batches import EpochBatches
from spillgrad.errors import ArgumentError, DataError

Batch = tuple[np.ndarray, np.ndarray]


class TokenDataset(EpochBatches[np.ndarray, Batch]):
    """Cut token numbers into batches: inputs x, windows of tokens, and targets y, one token later.

    An epoch covers the tokens that are not held out in windows that do not overlap, in random order; each epoch cuts
    them from another start. The windows of a step depend only on (seed, step), so training resumes at any step without
    replaying earlier ones. Batches are int64 arrays x, y of shape (batch, context).

    Parameters
    ----------
    tokens : array
        Integers of shape (N,).
    context : int
        Number of tokens in a window.
    batch : int
        Number of windows in a batch.
    seed : int
        Seed of the order.
    held_out_fraction : float, default 0.1
        Share of the tokens that is held out, the last ones; at least one window.

    Raises
    ------
    DataError
        When there are too few tokens for one training and one held-out window.
    ArgumentError
        If `context` or `batch` is less than 1, or another argument is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> import spillgrad as sg
    >>> dataset = sg.data.TokenDataset(np.arange(100), context=8, batch=4, seed=0)
    >>> x, y = next(dataset.train_batches())
    >>> x.shape, bool((y == x + 1).all())
    ((4, 8), True)
    """

    _unit = "tokens"

    def __init__(self, tokens: np.ndarray, context: int, batch: int, seed: int, held_out_fraction: float = 0.1) -> None:
        super().__init__(context, batch, seed, held_out_fraction)
        data = np.asarray(tokens)
        if data.ndim != 1 or data.dtype.kind not in "iu":
            raise ArgumentError(
                f"{type(self).__name__}: got {data.dtype} tokens of shape {data.shape}; wanted integers (N,)"
            )
        window = context + 1
        if len(data) < 2 * window:
            raise DataError(
                f"data: got {len(data)} {self._unit} of text; context {context} needs at least {2 * window} "
                "(a window to train on and one to hold out); use more text or a smaller context"
            )
        held_out = min(max(int(len(data) * held_out_fraction), window), len(data) - window)
        self._train = data[: len(data) - held_out]
        self._held_out = data[len(data) - held_out :]
        # A start between 0 and context - 1 is skipped in each epoch; every start leaves this many windows.
        self._rows = max(1, (len(self._train) - context) // context)

    @property
    def train_tokens(self) -> int:
        """Return how many tokens are trained on."""
        return len(self._train)

    @property
    def held_out_tokens(self) -> int:
        """Return how many tokens are held out."""
        return len(self._held_out)

    @property
    def held_out_count(self) -> int:
        """Return how many batches `held_out_batches` yields."""
        return max(1, (len(self._held_out) - 1) // self.context // self.batch)

    def held_out_batches(self) -> Iterator[Batch]:
        """Yield the held-out windows in order, in full batches, or one smaller batch if there are too few windows.

        Yields
        ------
        array
            Inputs, int64 of shape (batch, context).
        array
            Targets, of the same shape.
        """
        starts = np.arange((len(self._held_out) - 1) // self.context) * self.context
        for index in range(self.held_out_count):
            yield self._cut(self._held_out, starts[index * self.batch : (index + 1) * self.batch])

    def _shuffle(self, epoch: int) -> np.ndarray:
        """Return the starts of an epoch's windows in the order of their use."""
        words = self._words(epoch, self._rows + 1)
        slack = len(self._train) - 1 - self._rows * self.context
        first = int(words[-1] % np.uint64(min(self.context, slack + 1)))
        return first + np.argsort(words[:-1], kind="stable") * self.context

    def _join(self, rows: Sequence[tuple[np.ndarray, int]]) -> Batch:
        return self._cut(self._train, np.array([starts[number] for starts, number in rows]))

    def _cut(self, data: np.ndarray, starts: np.ndarray) -> Batch:
        windows = data[starts[:, None] + np.arange(self.context + 1)].astype(np.int64)
        return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])


class ByteDataset(TokenDataset):
    """A `TokenDataset` whose tokens are the bytes of a text.

    Parameters
    ----------
    text : bytes
        The text.
    context : int
        Number of tokens in a window.
    batch : int
        Number of windows in a batch.
    seed : int
        Seed of the order.
    held_out_fraction : float, default 0.1
        Share of the tokens that is held out, the last ones; at least one window.

    Raises
    ------
    DataError
        When the text is too short.
    """

    _unit = "bytes"

    def __init__(self, text: bytes, context: int, batch: int, seed: int, held_out_fraction: float = 0.1) -> None:
        super().__init__(np.frombuffer(text, np.uint8), context, batch, seed, held_out_fraction)

    @property
    def train_bytes(self) -> int:
        """Return how many bytes are trained on."""
        return self.train_tokens

    @property
    def held_out_bytes(self) -> int:
        """Return how many bytes are held out."""
        return self.held_out_tokens
