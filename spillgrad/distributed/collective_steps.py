"""The exchanges of each collective, as generators for `protocol`. Arrays are flat; ranks are numbers in the group.

Sums are made in the order of the ranks, each element by one rank, so every rank gets the same bits, whatever arrives
first. Bytes travel as in a ring: of S bytes, each of N ranks sends S (N - 1) / N to sum, and as many to gather.
"""

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from spillgrad.distributed.protocol import Exchange, Steps
from spillgrad.errors import DistributedError
from spillgrad_kernels.memory import buffers

# `function(a, b, out=a)` reduces b into a.
Function = Callable[..., Any]

# The most bytes that are on their way in one exchange, which bounds the memory that a collective takes for itself. With
# hundreds of ranks, messages would be too small to be worth sending: then there are so many bytes for each rank.
AT_ONCE_BYTES = 32 << 20
_AT_ONCE_OF_RANK = 128 << 10
# Smaller arrays are sent whole to every rank, in one exchange instead of two.
_SMALL_BYTES = 16 << 10
_NOTHING = np.empty(0, np.uint8)


def cut(count: int, parts: int) -> list[slice]:
    """Cut `count` elements into `parts` runs of equal length, but for one element."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def windows(count: int, itemsize: int) -> Iterator[slice]:
    """Cut `count` elements into runs that are exchanged one after the other."""
    step = max(1, AT_ONCE_BYTES // itemsize)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def at_once_bytes(ranks: int) -> int:
    """Return the most bytes that are on their way in one exchange of sums."""
    return max(AT_ONCE_BYTES, ranks * _AT_ONCE_OF_RANK)


def windows_of_runs(runs: Sequence[slice], itemsize: int) -> Iterator[slice]:
    """Cut the runs of all ranks, of elements that take so many bytes each, into parts that are exchanged together."""
    longest = max(run.stop - run.start for run in runs)
    step = max(1, at_once_bytes(len(runs)) // (itemsize * len(runs)))
    return (slice(start, min(start + step, longest)) for start in range(0, longest, step))


def barrier() -> Steps:
    """Send nothing: the headers have made all ranks wait for each other."""
    return None
    yield


def all_gather(mine: np.ndarray, arrays: Sequence[np.ndarray]) -> Steps:
    """Copy the array of each rank into one of `arrays`."""
    for window in windows(max(array.size for array in arrays), mine.itemsize):
        yield Exchange([mine[window]] * len(arrays), [array[window] for array in arrays])


def all_to_all(sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> Steps:
    """Send an array to each rank, and receive one from each."""
    longest = max(array.size for array in (*sent, *received))
    for window in windows(longest, sent[0].itemsize):
        yield Exchange([array[window] for array in sent], [array[window] for array in received])


def message(array: np.ndarray, sends: bool) -> Steps:
    """Send the array of one rank into that of the other, in a group of two; the sender is the first."""
    empty = array[:0]
    for window in windows(array.size, array.itemsize):
        view = array[window]
        yield Exchange([empty, view], [empty, empty]) if sends else Exchange([empty, empty], [view, empty])


def gather(
    size: int, to: int, mine: np.ndarray, arrays: Sequence[np.ndarray] | None, longest: int | None = None
) -> Steps:
    """Copy the array of each rank into one of `arrays`, which rank `to` has.

    All have the same number of elements; otherwise, `longest` is the largest of them.
    """
    empty = mine[:0]
    for window in windows(mine.size if longest is None else longest, mine.itemsize):
        sent = [mine[window] if other == to else empty for other in range(size)]
        yield Exchange(sent, [empty] * size if arrays is None else [array[window] for array in arrays])


def scatter(size: int, source: int, mine: np.ndarray, arrays: Sequence[np.ndarray] | None) -> Steps:
    """Copy one of `arrays`, which rank `source` has, into the array of each rank; all have the same size."""
    empty = mine[:0]
    for window in windows(mine.size, mine.itemsize):
        received = [mine[window] if other == source else empty for other in range(size)]
        yield Exchange([empty] * size if arrays is None else [array[window] for array in arrays], received)


def broadcast(rank: int, size: int, source: int, array: np.ndarray) -> Steps:
    """Copy the array of rank `source` into that of each rank."""
    empty = array[:0]
    for window in windows(array.size, array.itemsize):
        view = array[window]
        if view.nbytes <= _SMALL_BYTES or size <= 2:
            received = [view if other == source != rank else empty for other in range(size)]
            sent = [view if rank == source != other else empty for other in range(size)]
            yield Exchange(sent, received)
            continue
        # Each rank gets a part, and gives it to the others: the source sends twice the bytes instead of N - 1 times.
        parts = [view[part] for part in cut(view.size, size)]
        own = parts[rank]
        sent = [part if rank == source != other else empty for other, part in enumerate(parts)]
        yield Exchange(sent, [own if other == source != rank else empty for other in range(size)])
        sent = [own if other not in (rank, source) else empty for other in range(size)]
        received = [part if other != rank != source else empty for other, part in enumerate(parts)]
        yield Exchange(sent, received)


def reduce_scatter(parts: Sequence[np.ndarray], out: np.ndarray, function: Function) -> Steps:
    """Reduce each rank's part `r` of all ranks into `out` of rank `r`."""
    size = len(parts)
    for window in windows(max(part.size for part in parts), out.itemsize * size):
        own = out[window]
        arrived = [buffers.empty(own.shape, own.dtype) for _ in range(size)]
        yield Exchange([part[window] for part in parts], arrived)
        _fold(own, arrived, function)


def _fold(out: np.ndarray, arrays: Sequence[np.ndarray], function: Function) -> None:
    """Reduce arrays in their order."""
    np.copyto(out, arrays[0])
    with np.errstate(all="ignore"):  # infinities and NaNs are results, as in PyTorch
        for array in arrays[1:]:
            function(out, array, out=out)


def all_reduce(rank: int, size: int, array: np.ndarray, function: Function) -> Steps:
    """Reduce the arrays of all ranks in place."""
    if array.nbytes <= _SMALL_BYTES:
        arrived = [np.empty_like(array) for _ in range(size)]
        yield Exchange([array] * size, arrived)
        _fold(array, arrived, function)
        return
    for window in windows(array.size, array.itemsize):
        parts = [array[window][part] for part in cut(array[window].size, size)]
        total = buffers.empty(parts[rank].shape, array.dtype)
        yield from reduce_scatter(parts, total, function)
        yield from all_gather(total, parts)


def reduce(rank: int, size: int, to: int, array: np.ndarray, function: Function) -> Steps:
    """Reduce the arrays of all ranks into that of rank `to`; those of the others stay as they are."""
    empty = array[:0]
    for window in windows(array.size, array.itemsize):
        parts = [array[window][part] for part in cut(array[window].size, size)]
        total = buffers.empty(parts[rank].shape, array.dtype)
        yield from reduce_scatter(parts, total, function)
        sent = [total if other == to else empty for other in range(size)]
        yield Exchange(sent, parts if rank == to else [empty] * size)


def pickled(item: Any) -> np.ndarray:
    """Return an object as bytes. Called before a collective begins: an object that cannot be pickled stops nobody."""
    return np.frombuffer(pickle.dumps(item), np.uint8)


def all_gather_object(size: int, mine: np.ndarray) -> Steps:
    """Return the objects of all ranks, of which `mine` is one, pickled."""
    lengths = np.empty(size, np.int64)
    yield from all_gather(np.array([mine.size]), [lengths[other : other + 1] for other in range(size)])
    arrays = [np.empty(length, np.uint8) for length in lengths]
    yield from all_gather(mine, arrays)
    return [pickle.loads(array.data) for array in arrays]


def scatter_object(size: int, source: int, items: Sequence[np.ndarray] | None) -> Steps:
    """Return the object that rank `source` has for this rank among its pickled `items`."""
    length = np.zeros(1, np.int64)
    yield from scatter(size, source, length, None if items is None else [np.array([item.size]) for item in items])
    mine = np.empty(length[0], np.uint8)
    yield Exchange(items or [_NOTHING] * size, [mine if other == source else _NOTHING for other in range(size)])
    return pickle.loads(mine.data)


def gather_object(rank: int, size: int, to: int, mine: np.ndarray) -> Steps:
    """Return the objects of all ranks, of which `mine` is one, pickled, on rank `to`; None on the others."""
    lengths = np.zeros(size, np.int64)
    places = [lengths[other : other + 1] for other in range(size)] if rank == to else None
    yield from gather(size, to, np.array([mine.size]), places)
    received = [np.empty(length, np.uint8) for length in lengths]
    yield Exchange([mine if other == to else _NOTHING for other in range(size)], received)
    return [pickle.loads(array.data) for array in received] if rank == to else None


def require_same_splits(size: int, sent: Sequence[np.ndarray], received: Sequence[np.ndarray], name: str) -> Steps:
    """Raise DistributedError, on all ranks, if a rank sends to another one what that does not expect."""
    mine = np.array([array.size for array in (*sent, *received)], np.int64)
    table = np.empty((size, 2, size), np.int64)
    yield from all_gather(mine, [row.reshape(-1) for row in table])
    for source in range(size):
        for target in range(size):
            if table[source, 0, target] != table[target, 1, source]:
                raise DistributedError(
                    f"{name}: rank {source} sends {table[source, 0, target]} elements to rank {target}, which wants "
                    f"{table[target, 1, source]}; give both the same sizes"
                )
