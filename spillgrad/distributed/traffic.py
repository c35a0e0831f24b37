"""How many messages and bytes the exchanges of `collective_steps` and of the sums of gradients send, without bytes.

The numbers are those of an average rank: all ranks together send exactly as many times as much. Groups of ranks send to
each other in one exchange, so its messages are of one or two sizes.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from spillgrad.distributed.collective_steps import cut, windows, windows_of_runs
from spillgrad.distributed.protocol import DIGEST_BYTES, HEADER, SEALED_BYTES
from spillgrad.distributed.wires import EXACT, Wire, arriving_bytes


@dataclasses.dataclass(frozen=True)
class Messages:
    """Messages of an average rank to others: how many, and how many bytes each of them has."""

    count: float
    nbytes: float


# The messages of an exchange, in the order in which they are sent.
Traffic = list[Messages]


def headers(size: int) -> Traffic:
    """Return what a rank of `size` sends before the first exchange of a collective."""
    return [Messages(size - 1, HEADER.itemsize)]


def exchange(size: int, parts: int, nbytes: int) -> Traffic:
    """Return what a rank of `size` sends if `parts` ranks are to get, or to give, `nbytes` in all, cut evenly."""
    if not nbytes:
        return []
    count, each_bytes = parts * (size - 1) / size, nbytes / parts
    if each_bytes <= SEALED_BYTES:
        return [Messages(count, each_bytes + DIGEST_BYTES)]
    return [Messages(count, each_bytes), Messages(count, DIGEST_BYTES)]


def gather_to_all(size: int, nbytes: int) -> Traffic:
    """Return what a rank sends if each has `nbytes` for all others."""
    return exchange(size, size, size * nbytes)


def objects_to_all(size: int, nbytes: int) -> Iterator[Traffic]:
    """Yield the exchanges of `all_gather_object`, with a pickle of `nbytes` on each rank."""
    yield headers(size)
    yield gather_to_all(size, 8)
    yield gather_to_all(size, nbytes)


def sum_of_gradients(
    size: int, count: int, itemsize: int, parts: int, gathers: bool = True, wire: Wire = EXACT
) -> Iterator[Traffic]:
    """Yield the exchanges of `reduce_gradients`, of `count` elements of `parts` parameters.

    Without `gathers`, each rank keeps the sums of its piece, as where optimizer state is sharded. Only elements of four
    bytes travel in the format `wire`.
    """
    wire = wire if itemsize == 4 else EXACT
    yield headers(size)
    yield gather_to_all(size, parts)
    if wire.value_bytes % 1:
        yield exchange(size, min(size, count), round(count * (wire.value_bytes % 1)))
    for format_ in (wire, wire.back)[: 1 + gathers]:
        value_bytes = itemsize if format_.is_exact else int(format_.value_bytes)
        for elements in _elements(size, count, arriving_bytes(format_, itemsize)):
            yield exchange(size, min(size, elements), elements * value_bytes)


def _elements(size: int, count: int, itemsize: int) -> Iterator[int]:
    """Yield how many elements each exchange of runs of all ranks has."""
    runs = cut(count, size)
    for window in windows_of_runs(runs, itemsize):
        yield sum(max(0, min(run.stop - run.start, window.stop) - window.start) for run in runs)


def pieces_to_all(size: int, count: int, itemsize: int) -> Iterator[Traffic]:
    """Yield the exchanges of an `all_gather` of `count` elements, of which each rank has a piece."""
    yield headers(size)
    for window in windows(count, itemsize):
        elements = window.stop - window.start
        yield exchange(size, min(size, elements), elements * itemsize)


def total(exchanges: Sequence[Traffic]) -> Messages:
    """Return the number of messages of some exchanges, and of their bytes."""
    found = [messages for traffic in exchanges for messages in traffic]
    return Messages(sum(each.count for each in found), sum(each.count * each.nbytes for each in found))
