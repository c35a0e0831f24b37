"""Indexed samples, and batches of them."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import creation, join_split
from spillgrad.tensor import Tensor


class Dataset(Protocol):
    """Anything with a length and samples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class TensorDataset:
    """Samples are tuples of one row of each tensor."""

    def __init__(self, *tensors: Tensor) -> None:
        lengths = [len(tensor) for tensor in tensors]
        if not tensors or len(set(lengths)) != 1:
            raise ShapeError(f"TensorDataset: got tensors of lengths {lengths}; give one or more of the same length")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)


class DataLoader:
    """Iterate over a dataset in batches; each pass is one epoch, whose order is a pure function of (seed, epoch).

    Samples may be tensors, arrays, numbers, and tuples, lists or dicts of them; a batch has their structure, stacked.
    `epoch` counts the passes begun and may be set; `state_dict` says where the latest one stands, to resume there.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int = 1, shuffle: bool = False, seed: int = 0, drop_last: bool = False
    ) -> None:
        if batch_size < 1:
            raise ArgumentError(f"DataLoader: got batch_size {batch_size}; at least 1 is needed")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._first = 0  # the first batch of the next pass
        self._taken: int | None = None  # batches of the latest pass, unless it has ended

    def __len__(self) -> int:
        """Return how many batches an epoch has."""
        rows = len(self.dataset)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        rows = len(self.dataset)
        order = np.random.default_rng((self.seed, self.epoch)).permutation(rows) if self.shuffle else np.arange(rows)
        self.epoch += 1
        self._taken, self._first = self._first, 0
        return self._batches(order, range(self._taken, len(self)))

    def _batches(self, order: np.ndarray, numbers: range) -> Iterator[Any]:
        for number in numbers:
            rows = order[number * self.batch_size : (number + 1) * self.batch_size]
            samples = [self.dataset[int(row)] for row in rows]
            self._taken = number + 1
            yield collate(samples)
        self._taken = None

    def state_dict(self) -> dict[str, int]:
        """Return the position of the next batch: in the latest pass, or at the start of another if that has ended."""
        if self._taken is None or self._taken >= len(self):
            return {"epoch": self.epoch, "batch": self._first}
        return {"epoch": self.epoch - 1, "batch": self._taken}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Let the next pass begin at a position that `state_dict` returned; later passes begin at their start."""
        self.epoch, self._first, self._taken = state_dict["epoch"], state_dict["batch"], None


def collate(samples: list[Any]) -> Any:
    """Stack samples of the same structure into a batch."""
    first = samples[0]
    if isinstance(first, Tensor):
        return join_split.stack(samples)
    if isinstance(first, dict):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(collate(list(parts)) for parts in zip(*samples, strict=True))
    return creation.tensor(np.stack([np.asarray(sample) for sample in samples]))
