"""Windows of a text, as tokens or bytes, for training a language model."""

import itertools
from collections.abc import Iterator

import numpy as np

from spillgrad.errors import ArgumentError, DataError

Batch = tuple[np.ndarray, np.ndarray]


class TokenDataset:
    """Cut token numbers into batches: inputs x, `batch` windows of `context` tokens, and targets y, one token later.

    The last `held_out_fraction` of the tokens is held out (at least one window). An epoch covers the others in windows
    that do not overlap, in random order; each epoch cuts them from another start. The windows of a step depend only on
    (seed, step), so training resumes at any step without replaying earlier ones.

    Shapes: tokens integers (N,); batches are int64 arrays x, y of (batch, context).
    Raises DataError when there are too few tokens for one training and one held-out window.
    """

    _unit = "tokens"

    def __init__(self, tokens: np.ndarray, context: int, batch: int, seed: int, held_out_fraction: float = 0.1) -> None:
        name = type(self).__name__
        if context < 1 or batch < 1:
            raise ArgumentError(f"{name}: got context {context} and batch {batch}; both must be at least 1")
        if not 0 < held_out_fraction < 1:
            raise ArgumentError(f"{name}: got held_out_fraction {held_out_fraction}; it must lie between 0 and 1")
        data = np.asarray(tokens)
        if data.ndim != 1 or data.dtype.kind not in "iu":
            raise ArgumentError(f"{name}: got {data.dtype} tokens of shape {data.shape}; wanted integers (N,)")
        window = context + 1
        if len(data) < 2 * window:
            raise DataError(
                f"data: got {len(data)} {self._unit} of text; context {context} needs at least {2 * window} "
                "(a window to train on and one to hold out); use more text or a smaller context"
            )
        held_out = min(max(int(len(data) * held_out_fraction), window), len(data) - window)
        self._train = data[: len(data) - held_out]
        self._held_out = data[len(data) - held_out :]
        self.context = context
        self.batch = batch
        self.seed = seed
        # A start between 0 and context - 1 is skipped in each epoch; every start leaves this many windows.
        self._windows = max(1, (len(self._train) - context) // context)
        self._latest_epoch = (0, self._shuffle(0))

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

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Yield training batches without end, beginning with that of `start_step`."""
        return (self._train_batch(step) for step in itertools.count(start_step))

    def held_out_batches(self) -> Iterator[Batch]:
        """Yield the held-out windows in order, in full batches, or one smaller batch if there are too few windows."""
        starts = np.arange((len(self._held_out) - 1) // self.context) * self.context
        for index in range(self.held_out_count):
            yield self._cut(self._held_out, starts[index * self.batch : (index + 1) * self.batch])

    def _train_batch(self, step: int) -> Batch:
        numbers = range(step * self.batch, (step + 1) * self.batch)
        starts = [self._starts(number // self._windows)[number % self._windows] for number in numbers]
        return self._cut(self._train, np.array(starts))

    def _starts(self, epoch: int) -> np.ndarray:
        latest, starts = self._latest_epoch
        if latest != epoch:
            starts = self._shuffle(epoch)
            self._latest_epoch = (epoch, starts)
        return starts

    def _shuffle(self, epoch: int) -> np.ndarray:
        """Return the starts of an epoch's windows in the order of their use.

        Source: raw Philox words (Salmon et al. 2011), sorted: unlike `Generator.permutation` the same in every NumPy.
        """
        words = np.random.Philox(key=np.array([self.seed % 2**64, epoch], np.uint64)).random_raw(self._windows + 1)
        slack = len(self._train) - 1 - self._windows * self.context
        first = int(words[-1] % np.uint64(min(self.context, slack + 1)))
        return first + np.argsort(words[:-1], kind="stable") * self.context

    def _cut(self, data: np.ndarray, starts: np.ndarray) -> Batch:
        windows = data[starts[:, None] + np.arange(self.context + 1)].astype(np.int64)
        return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])


class ByteDataset(TokenDataset):
    """A `TokenDataset` whose tokens are the bytes of a text. Raises DataError when it is too short."""

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
