"""Batches of documents, whose tokens see their own document only."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spillgrad.data.documents import Documents
from spillgrad.data.epoch_batches import EpochBatches
from spillgrad.data.packing import Packing
from spillgrad.errors import DataError
from spillgrad.ops.losses import IGNORE_INDEX

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


class _Pieces(NamedTuple):
    """Inputs of rows: `lengths` tokens from `starts` on; each predicts the token after it."""

    starts: np.ndarray
    lengths: np.ndarray
    documents: np.ndarray  # the number of each piece's document


class _Order(NamedTuple):
    """The order of an epoch."""

    by_length: np.ndarray  # pieces
    rows: np.ndarray


class DocumentDataset(EpochBatches[_Order, Batch]):
    r"""Make batches of documents for training a language model: inputs x, targets y, and where documents start.

    An epoch covers all documents that are not held out, in random order. A document longer than the context is cut
    into pieces, which are documents of their own. Rows are packed with whole pieces, by best fit decreasing; or each
    document has a row, and ends at the context. The batch of a step depends only on (seed, step), so training resumes
    at any step without replaying earlier ones.

    Batches are int64 arrays x, y and starts of shape (batch, context). y is -100 where the loss does not count: for
    prompts, and for padding at the end of a row. starts has, for each position, the position in the row at which its
    document starts: a token sees those from there to itself, and counts its position from there. The padding of a row
    is a document of its own. The last token of a document that counts is a target only, and those after it are left
    out.

    Parameters
    ----------
    documents : Documents
        The documents.
    context : int
        Number of tokens in a row.
    batch : int
        Number of rows in a batch.
    seed : int
        Seed of the order.
    held_out_fraction : float, default 0.1
        Share of the documents that is held out, at least one; chosen at random, and the same ones for any seed.
    held_out : Documents, optional
        Documents to hold out instead; then all of `documents` are trained on.
    packed : bool, default True
        Whether a row has several documents.

    Attributes
    ----------
    left_out_documents : int
        How many documents have no token to learn from, or none that fits into the context if they are not packed.

    Raises
    ------
    DataError
        When there are too few documents that have tokens to learn from: two, or one of each set.
    ArgumentError
        If `context` or `batch` is less than 1, or `held_out_fraction` is out of its range.

    Notes
    -----
    Source: best fit decreasing, Ding et al. 2024, "Fewer truncations improve language modeling".

    Examples
    --------
    >>> import spillgrad as sg
    >>> documents = sg.data.Documents.from_records([{"text": "abcd"}, {"prompt": "xy", "completion": "z"}])
    >>> held_out = sg.data.Documents.from_records([{"text": "another"}])
    >>> dataset = sg.data.DocumentDataset(documents, context=6, batch=1, seed=0, held_out=held_out)
    >>> x, y, starts = next(dataset.train_batches())
    >>> bytes(x[0].tolist()), y[0].tolist()
    (b'abcxy\x00', [98, 99, 100, -100, 122, -100])
    >>> starts[0].tolist()
    [0, 0, 0, 3, 3, 5]
    """

    def __init__(
        self, documents: Documents, context: int, batch: int, seed: int, held_out_fraction: float = 0.1,
        held_out: Documents | None = None, packed: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(context, batch, seed, held_out_fraction)
        self.packed = packed
        train, learnable = _pieces(documents, context, packed)
        if held_out is None:
            is_held_out = _chosen(learnable, held_out_fraction, len(documents))
            mine = is_held_out[train.documents]
            held_out, held_out_pieces = documents, _Pieces(*(part[mine] for part in train))
            train = _Pieces(*(part[~mine] for part in train))
            self._counts = int(learnable.sum() - is_held_out.sum()), int(is_held_out.sum())
            self.left_out_documents = int((~learnable).sum())
        else:
            held_out_pieces, learnable_held_out = _pieces(held_out, context, packed)
            for name, found in (("train on", learnable), ("hold out", learnable_held_out)):
                if not found.any():
                    raise DataError(
                        f"data: none of {len(found)} documents to {name} has a token to learn from; give more "
                        "documents, or a longer context if prompts fill it"
                    )
            self._counts = int(learnable.sum()), int(learnable_held_out.sum())
            self.left_out_documents = int((~learnable).sum() + (~learnable_held_out).sum())
        self._train, self._held_out = (documents, train), (held_out, held_out_pieces)
        self._train_packing = Packing(train.lengths, context, packed)
        self._held_out_packing = Packing(held_out_pieces.lengths, context, packed)
        self._rows = self._train_packing.count

    @property
    def train_documents(self) -> int:
        """Return how many documents are trained on."""
        return self._counts[0]

    @property
    def held_out_documents(self) -> int:
        """Return how many documents are held out."""
        return self._counts[1]

    @property
    def train_tokens(self) -> int:
        """Return how many tokens the inputs of an epoch have, without padding."""
        return int(self._train[1].lengths.sum())

    @property
    def held_out_tokens(self) -> int:
        """Return how many tokens the inputs of `held_out_batches` have, without padding."""
        return int(self._held_out[1].lengths.sum())

    @property
    def train_rows(self) -> int:
        """Return how many rows an epoch has, of `batch` in each step."""
        return self._rows

    @property
    def held_out_count(self) -> int:
        """Return how many batches `held_out_batches` yields."""
        return -(-self._held_out_packing.count // self.batch)

    def held_out_batches(self) -> Iterator[Batch]:
        """Yield the held-out documents, the same batches every time; the last one may have fewer rows.

        Yields
        ------
        array
            Inputs, int64 of shape (batch, context).
        array
            Targets, of the same shape.
        array
            Positions in the row at which documents start, of the same shape.
        """
        packing = self._held_out_packing
        for first in range(0, packing.count, self.batch):
            numbers = range(first, min(first + self.batch, packing.count))
            yield self._cut(*self._held_out, [packing.row(number, packing.by_length) for number in numbers])

    def _shuffle(self, epoch: int) -> _Order:
        packing = self._train_packing
        words = self._words(epoch, len(packing.by_length) + packing.count)
        pieces, rows = np.split(words, [len(packing.by_length)])
        return _Order(packing.shuffled(pieces), np.argsort(rows, kind="stable"))

    def _join(self, rows: Sequence[tuple[_Order, int]]) -> Batch:
        packing = self._train_packing
        return self._cut(*self._train, [packing.row(order.rows[number], order.by_length) for order, number in rows])

    def _cut(self, documents: Documents, pieces: _Pieces, rows: list[tuple[np.ndarray, np.ndarray]]) -> Batch:
        """Return the batch of rows, each the numbers of its pieces and their places."""
        counts = [len(numbers) for numbers, _ in rows]
        numbers, places = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        lengths = pieces.lengths[numbers]
        shape = (len(rows), self.context)
        x, y = np.zeros(shape, np.int64), np.full(shape, IGNORE_INDEX, np.int64)
        starts = np.empty(shape, np.int64)
        ends = (places + lengths)[np.cumsum(counts) - 1]  # a row is filled from its start, so its last piece ends it
        starts[:] = ends[:, None]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        source = np.repeat(pieces.starts[numbers], lengths) + within
        row_starts = np.repeat(np.arange(len(rows)) * self.context, counts)
        target = np.repeat(row_starts + places, lengths) + within
        x.flat[target] = documents.tokens[source]
        targets = documents.tokens[source + 1].astype(np.int64)
        y.flat[target] = np.where(documents.counted[source + 1], targets, IGNORE_INDEX)
        starts.flat[target] = np.repeat(places, lengths)
        return x, y, starts


def _pieces(documents: Documents, context: int, packed: bool) -> tuple[_Pieces, np.ndarray]:
    """Return the pieces that have targets, and which documents have such a piece."""
    firsts, ends = documents.offsets[:-1], documents.offsets[1:]
    counts = -(-np.maximum(ends - firsts - 1, 0) // context)
    if not packed:
        counts = np.minimum(counts, 1)
    numbers = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = firsts[numbers] + within * context
    lengths = _learned_lengths(documents.counted, starts, np.minimum(ends[numbers] - 1 - starts, context))
    learned = lengths > 0
    is_learnable = np.zeros(len(counts), np.bool_)
    is_learnable[numbers[learned]] = True
    return _Pieces(starts[learned], lengths[learned], numbers[learned]), is_learnable


def _learned_lengths(counted: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return how long each piece is up to its last target that counts; 0 without one."""
    run_ends = np.flatnonzero(counted[:-1] > counted[1:])
    last = starts + lengths
    missed = np.flatnonzero(~counted[last])
    runs = np.searchsorted(run_ends, last[missed]) - 1
    last[missed] = np.where(runs >= 0, run_ends[runs], -1) if len(run_ends) else -1
    learned: np.ndarray = np.maximum(last - starts, 0)
    return learned


def _chosen(learnable: np.ndarray, fraction: float, count: int) -> np.ndarray:
    """Return which documents to hold out. They do not depend on the seed, so that runs can be compared."""
    numbers = np.flatnonzero(learnable)
    if len(numbers) < 2:
        raise DataError(
            f"data: {len(numbers)} of {count} documents have a token to learn from; training needs two, to hold one "
            "out; give more documents, or documents to hold out, or a longer context if prompts fill it"
        )
    words = np.random.Philox(key=np.zeros(2, np.uint64)).random_raw(len(numbers))
    held_out = min(max(int(len(numbers) * fraction), 1), len(numbers) - 1)
    chosen = np.zeros(count, np.bool_)
    chosen[numbers[np.argsort(words, kind="stable")[:held_out]]] = True
    return chosen
