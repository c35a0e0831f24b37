"""Batches whose order depends only on a seed and the step."""

import abc
import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from spillgrad.errors import ArgumentError

Order = TypeVar("Order")
Batch = TypeVar("Batch")


class EpochBatches(abc.ABC, Generic[Order, Batch]):
    """Make the batch of any step from rows, which each epoch takes in an order of its own.

    The batch of a step depends only on (seed, step), so training resumes at any step without replaying earlier ones.
    """

    # How many rows an epoch has; the same for all epochs.
    _rows: int

    def __init__(self, context: int, batch: int, seed: int, held_out_fraction: float) -> None:
        name = type(self).__name__
        if context < 1 or batch < 1:
            raise ArgumentError(f"{name}: got context {context} and batch {batch}; both must be at least 1")
        if not 0 < held_out_fraction < 1:
            raise ArgumentError(f"{name}: got held_out_fraction {held_out_fraction}; it must lie between 0 and 1")
        self.context = context
        self.batch = batch
        self.seed = seed
        self._latest: tuple[int, Order] | None = None

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Yield training batches without end.

        Parameters
        ----------
        start_step : int, default 0
            Step whose batch comes first.

        Returns
        -------
        iterator of tuple of array
            The batches: arrays of int64 of shape (batch, context).
        """
        return (self._train_batch(step) for step in itertools.count(start_step))

    def _train_batch(self, step: int) -> Batch:
        numbers = range(step * self.batch, (step + 1) * self.batch)
        return self._join([(self._order(number // self._rows), number % self._rows) for number in numbers])

    def _order(self, epoch: int) -> Order:
        if self._latest is None or self._latest[0] != epoch:
            self._latest = (epoch, self._shuffle(epoch))
        return self._latest[1]

    def _words(self, epoch: int, count: int) -> np.ndarray:
        """Return random numbers of an epoch, to be sorted.

        Source: raw Philox words (Salmon et al. 2011): unlike `Generator.permutation` the same in every NumPy.
        """
        return np.random.Philox(key=np.array([self.seed % 2**64, epoch], np.uint64)).random_raw(count)

    @abc.abstractmethod
    def _shuffle(self, epoch: int) -> Order:
        """Return the order of an epoch's rows, and what else changes between epochs."""

    @abc.abstractmethod
    def _join(self, rows: Sequence[tuple[Order, int]]) -> Batch:
        """Return the batch of rows, each the order of its epoch and its number in that order."""
