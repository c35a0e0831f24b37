"""Fetching batches: in the process of the training, or in the workers of a `DataLoader`."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from spillgrad.data.dataset import IterableDataset


class Source(NamedTuple):
    """A dataset and how its samples become batches."""

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool
    drop_last: bool


class End:
    """Sent in place of a batch by a worker whose dataset has ended."""


class Fetcher:
    """Fetches batches of one pass.

    A request is the indices of a batch, or one index where samples are not batched; of an iterable dataset it is the
    number of samples.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        is_iterable = isinstance(source.dataset, IterableDataset)
        self._samples: Iterator[Any] | None = iter(source.dataset) if is_iterable else None

    def fetch(self, request: Any) -> Any:
        """Return a batch; `End` where an iterable dataset has no more."""
        dataset, collate, batched, drop_last = self._source
        if self._samples is not None:
            samples = list(itertools.islice(self._samples, request))
            if not samples or (drop_last and len(samples) < request):
                return End()
            return collate(samples if batched else samples[0])
        if not batched:
            return collate(dataset[request])
        at_once = getattr(dataset, "__getitems__", None)
        return collate([dataset[index] for index in request] if at_once is None else at_once(request))


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The description of a worker of a `DataLoader`.

    Parameters
    ----------
    id : int
        Number of the worker, from 0 on.
    num_workers : int
        Number of workers of its loader.
    seed : int
        Seed of its random numbers.
    dataset : Dataset
        Its dataset.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return the description of this worker of a `DataLoader`.

    Returns
    -------
    WorkerInfo or None
        The description; None in any other process.
    """
    return _info


def set_worker_info(info: WorkerInfo) -> None:
    """Tell datasets that this process is a worker."""
    global _info
    _info = info
