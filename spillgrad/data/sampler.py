"""Samplers choose the indices of the samples, or of the batches, of one pass over a dataset."""

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from spillgrad.errors import ArgumentError
from spillgrad.generator import Generator
from spillgrad.ops.creation import as_tensor, randint, randperm
from spillgrad.ops.sampling import multinomial
from spillgrad.tensor import Tensor

__all__ = [
    "BatchSampler", "RandomSampler", "Sampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler",
]  # fmt: skip

T_co = TypeVar("T_co", covariant=True)

# Indices that are drawn at once, where there may be millions.
_DRAWN = 1 << 16


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


class Sampler(Generic[T_co]):
    """The base of samplers: subclasses define ``__iter__``, and ``__len__`` if the number of indices is known.

    Parameters
    ----------
    data_source : sized, optional
        Accepted for PyTorch's programs.
    """

    def __init__(self, data_source: Sized | None = None) -> None:
        pass

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__}: a Sampler defines __iter__")


class SequentialSampler(Sampler[int]):
    """All indices in order.

    Parameters
    ----------
    data_source : sized
        Its length is the number of indices.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """All indices in random order.

    Parameters
    ----------
    data_source : sized
        Its length is the number of indices.
    replacement : bool, default False
        Whether any index may come at any time.
    num_samples : int, optional
        Number of indices of a pass; by default, all.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Raises
    ------
    ArgumentError
        If `num_samples` is no positive integer.
    TypeError
        If `replacement` is no bool.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(replacement, bool):
            raise TypeError(f"RandomSampler: replacement should be a boolean value, but got replacement={replacement}")
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples
        if not _is_count(self.num_samples):
            raise ArgumentError(
                f"RandomSampler: num_samples should be a positive integer value, but got num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        """The number of indices of a pass."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size, left = len(self.data_source), self.num_samples
        while left > 0 and size > 0:
            if self.replacement:
                drawn = randint(0, size, (min(left, _DRAWN),), generator=self.generator).tolist()
            else:
                drawn = randperm(size, generator=self.generator).tolist()[:left]
            yield from drawn
            left -= len(drawn)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """Some indices, in random order.

    Parameters
    ----------
    indices : sequence of int
        The indices.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for place in randperm(len(self.indices), generator=self.generator).tolist():
            yield self.indices[place]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices from 0 on, drawn with probabilities proportional to weights.

    Parameters
    ----------
    weights : Tensor or sequence of float
        Weights of the indices, of shape (N,).
    num_samples : int
        Number of indices of a pass.
    replacement : bool, default True
        Whether an index may come again.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Raises
    ------
    ArgumentError
        If `num_samples` is no positive integer, `replacement` no bool, or `weights` no vector.
    """

    def __init__(
        self, weights: Sequence[float] | Tensor, num_samples: int, replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(replacement, bool):
            raise ArgumentError(
                f"WeightedRandomSampler: replacement should be a boolean value, but got replacement={replacement}"
            )
        if not _is_count(num_samples):
            raise ArgumentError(
                f"WeightedRandomSampler: num_samples should be a positive integer value, but got {num_samples}"
            )
        self.weights: Tensor = as_tensor(weights, dtype="float64")
        if self.weights.ndim != 1:
            raise ArgumentError(
                "WeightedRandomSampler: weights should be a 1d sequence but given weights have shape "
                f"{tuple(self.weights.shape)}"
            )
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        drawn = multinomial(self.weights, self.num_samples, self.replacement, generator=self.generator)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """The indices of another sampler, several at a time.

    Parameters
    ----------
    sampler : iterable
        Indices.
    batch_size : int
        Number of indices of a batch.
    drop_last : bool
        Whether to leave out a last batch that is smaller.

    Raises
    ------
    ArgumentError
        If `batch_size` is no positive integer, or `drop_last` no bool.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if not isinstance(drop_last, bool):
            raise ArgumentError(f"BatchSampler: drop_last should be a boolean value, but got drop_last={drop_last}")
        if not _is_count(batch_size):
            raise ArgumentError(
                f"BatchSampler: batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]  # raises TypeError where the sampler has no length
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
