"""Datasets: samples by index, or one after the other; and datasets made of others."""

import bisect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.generator import Generator
from spillgrad.ops.creation import randperm
from spillgrad.tensor import Tensor

__all__ = [
    "ChainDataset", "ConcatDataset", "Dataset", "IterableDataset", "StackDataset", "Subset", "TensorDataset",
    "random_split",
]  # fmt: skip

T_co = TypeVar("T_co", covariant=True)


class Samples(Protocol):
    """Anything with a length and samples by index; a `Dataset` or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Dataset(Generic[T_co]):
    """The base of datasets: subclasses define ``__getitem__``, and ``__len__`` unless a sampler chooses the indices.

    ``__getitems__(indices)``, where a subclass has it, returns the samples of a batch at once.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__}: Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: "Dataset[T_co]") -> "ConcatDataset[T_co]":
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """The base of datasets whose samples come one after the other: subclasses define ``__iter__``.

    Each worker of a `DataLoader` iterates over a copy; `get_worker_info` tells which part is its own.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__}: an IterableDataset defines __iter__")

    def __add__(self, other: Dataset[T_co]) -> "ChainDataset[T_co]":  # type: ignore[override]  # as in PyTorch
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Samples are tuples of one row of each tensor.

    Parameters
    ----------
    *tensors : Tensor
        Tensors of the same length, one or more.

    Raises
    ------
    ShapeError
        Unless all have the same length.
    """

    def __init__(self, *tensors: Tensor) -> None:
        lengths = [len(tensor) for tensor in tensors]
        if not tensors or len(set(lengths)) != 1:
            raise ShapeError(
                f"TensorDataset: Size mismatch between tensors: got lengths {lengths}; give one or more of the same "
                "length"
            )
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple([tensor[index] for tensor in self.tensors])


class StackDataset(Dataset[Any]):
    """Samples are tuples, or with names dicts, of one sample of each dataset.

    Parameters
    ----------
    *datasets : Dataset or sequence
        Datasets of the same length.
    **named : Dataset or sequence
        Datasets of the same length, by name; instead of `datasets`.

    Raises
    ------
    ArgumentError
        If there is no dataset, or some have names and others do not.
    ShapeError
        Unless all have the same length.
    """

    def __init__(self, *datasets: Samples, **named: Samples) -> None:
        if not datasets and not named:
            raise ArgumentError("StackDataset: At least one dataset should be passed")
        if datasets and named:
            raise ArgumentError(
                "StackDataset: Supported either tuple- (via args) or dict- (via kwargs) like input/output, but both "
                f"types are given: {len(datasets)} datasets and {len(named)} with names"
            )
        self.datasets: Any = named or datasets
        lengths = [len(dataset) for dataset in (named.values() if named else datasets)]
        if len(set(lengths)) != 1:
            raise ShapeError(f"StackDataset: Size mismatch between datasets: got lengths {lengths}; give equal ones")
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple([dataset[index] for dataset in self.datasets])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples."""
        if isinstance(self.datasets, dict):
            columns = [_several(dataset, indices) for dataset in self.datasets.values()]
            return [dict(zip(self.datasets, sample, strict=True)) for sample in zip(*columns, strict=True)]
        return list(zip(*[_several(dataset, indices) for dataset in self.datasets], strict=True))


def _several(dataset: Any, indices: Sequence[int]) -> Sequence[Any]:
    """Return samples of a dataset, at once if it can. Raises ShapeError where it gives more or fewer."""
    at_once = getattr(dataset, "__getitems__", None)
    if not callable(at_once):
        return [dataset[index] for index in indices]
    found: Sequence[Any] = at_once(indices)
    if len(found) != len(indices):
        raise ShapeError(
            f"{type(dataset).__name__}: Nested dataset's output size mismatch. Expected {len(indices)}, got "
            f"{len(found)}"
        )
    return found


class ConcatDataset(Dataset[T_co]):
    """The samples of several datasets, one dataset after the other.

    Parameters
    ----------
    datasets : iterable of Dataset
        One or more datasets.

    Raises
    ------
    ArgumentError
        If there is no dataset, or one is an `IterableDataset`.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError("ConcatDataset: datasets should not be an empty iterable; give one or more")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise ArgumentError("ConcatDataset does not support IterableDataset; use ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        if index < -len(self):
            raise ArgumentError(
                f"ConcatDataset: got index {index}; absolute value of index should not exceed dataset length "
                f"{len(self)}"
            )
        place = index + len(self) if index < 0 else index
        if place >= len(self):
            raise IndexError(f"ConcatDataset: index {index} is out of range for {len(self)} samples")
        number = bisect.bisect_right(self.cumulative_sizes, place)
        return self.datasets[number][place - (self.cumulative_sizes[number - 1] if number else 0)]


class ChainDataset(IterableDataset[T_co]):
    """The samples of several iterable datasets, one dataset after the other.

    Parameters
    ----------
    datasets : iterable of IterableDataset
        The datasets.

    Raises
    ------
    ArgumentError
        In an iteration, if a dataset is no `IterableDataset`.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        super().__init__()
        self.datasets = datasets

    def _iterable(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise ArgumentError(
                    f"ChainDataset: got {type(dataset).__name__}; ChainDataset only supports IterableDataset; use "
                    "ConcatDataset"
                )
            yield dataset

    def __iter__(self) -> Iterator[T_co]:
        return itertools.chain.from_iterable(self._iterable())

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self._iterable())


class Subset(Dataset[T_co]):
    """The samples of a dataset at some indices.

    A subclass with its own ``__getitem__`` needs its own ``__getitems__``.

    Parameters
    ----------
    dataset : Dataset or sequence
        The dataset.
    indices : sequence of int
        Indices of the samples.

    Raises
    ------
    NotImplementedError
        For a subclass with its own ``__getitem__`` and without its own ``__getitems__``.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        own = type(self)
        if own.__getitem__ is not Subset.__getitem__ and own.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{own.__name__} overrides __getitem__ but not __getitems__. When subclassing Subset and overriding "
                "__getitem__, you must also override __getitems__ to ensure DataLoader works correctly: def "
                "__getitems__(self, indices): return [self.__getitem__(idx) for idx in indices]"
            )
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[[self.indices[i] for i in index] if isinstance(index, list) else self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples."""
        chosen = [self.indices[index] for index in indices]
        return list(_several(self.dataset, chosen))


def random_split(
    dataset: Samples, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[Any]]:  # fmt: skip
    """Split a dataset at random into subsets.

    Parameters
    ----------
    dataset : Dataset or sequence
        The dataset.
    lengths : sequence of int or sequence of float
        Lengths of the subsets, or their shares of the dataset, which sum to 1.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    list of Subset
        The subsets.

    Raises
    ------
    ArgumentError
        If the lengths do not sum to the dataset's, or a share is not between 0 and 1.

    Warns
    -----
    UserWarning
        If a share gives an empty subset.

    Examples
    --------
    >>> import spillgrad as sg
    >>> train, test = sg.utils.data.random_split(range(10), [0.8, 0.2])
    >>> len(train), len(test)
    (8, 2)
    """
    size = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        for index, share in enumerate(lengths):
            if not 0 <= share <= 1:
                raise ArgumentError(f"random_split: Fraction at index {index} is not between 0 and 1: got {share}")
        counts = [math.floor(size * share) for share in lengths]
        for index in range(size - sum(counts)):  # what rounding leaves goes to one subset after the other
            counts[index % len(counts)] += 1
        for index, count in enumerate(counts):
            if not count:
                warnings.warn(
                    f"Length of split at index {index} is 0. This might result in an empty dataset.", stacklevel=2
                )
    else:
        counts = [int(length) for length in lengths]
    if sum(counts) != size:
        raise ArgumentError(
            f"random_split: got lengths {list(lengths)} for {size} samples; Sum of input lengths does not equal the "
            "length of the input dataset!"
        )
    order = randperm(size, generator=generator).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)]
