"""The exchanges by which processes add up gradients, as generators for `protocol`.

The sum of a gradient is made in the order of the ranks, on top of the gradient that was there: the very additions that
one process makes when it runs the batches of all ranks one after the other. So it has the same bits. Where gradients
travel in fewer bits, each is rounded before it is added; what is added up stays exact.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spillgrad.distributed.collective_steps import all_gather, windows_of_runs
from spillgrad.distributed.protocol import Exchange, Steps
from spillgrad.distributed.wires import EXACT, Wire, arriving_bytes
from spillgrad_kernels.memory import buffers


class Former(NamedTuple):
    """A gradient, or a part of one, that was there before: its array, and where it begins in a bucket."""

    start: int
    array: np.ndarray


def sum_runs(
    rank: int, flat: np.ndarray, runs: Sequence[slice], total: np.ndarray, parts: Sequence[slice],
    present: np.ndarray, before: Sequence[Former | None], divisor: float, wire: Wire = EXACT,
) -> Steps:  # fmt: skip
    """Add up this rank's run of the gradients of all ranks, on top of those `before`; return which gradients there are.

    What a rank does not have, adds nothing. Each rank's gradients are divided by the `divisor` first.

    Parameters
    ----------
    rank : int
        Number of this process.
    flat : numpy.ndarray
        This process's gradients, one behind the other.
    runs : sequence of slice
        The elements of `flat` that each rank adds up.
    total : numpy.ndarray
        The sum: as many elements as this rank's run, which it may be.
    parts : sequence of slice
        The gradients' places in `flat`.
    present : numpy.ndarray
        Which of the gradients this rank has.
    before : sequence of Former or None
        What each gradient is added to; its elements in this rank's run at least.
    divisor : float
        The number.
    wire : Wire
        The format in which gradients travel; that of `flat` only if it is float32.
    """
    size, own = len(runs), runs[rank]
    table = np.empty((size, len(parts)), bool)
    yield from all_gather(present, list(table))
    wire = wire.of(flat.dtype)
    with np.errstate(all="ignore"):  # infinities and NaNs are results, as in PyTorch
        packed = wire.pack(flat, parts)
    scales = yield from packed.exchange_scales(rank, runs)
    for window in windows_of_runs(runs, arriving_bytes(wire, flat.itemsize)):
        mine = total[window]
        arrived = [buffers.empty((mine.size,), packed.values.dtype) for _ in range(size)]
        yield Exchange([packed.values[each][window] for each in runs], arrived)
        begin = own.start + window.start
        part = slice(begin, begin + mine.size)
        with np.errstate(all="ignore"):
            terms = [
                wire.unpack(values, packed.scales_in(of_rank, own, part))
                for values, of_rank in zip(arrived, scales, strict=True)
            ]
            del arrived
            add_up(mine, begin, terms, table, parts, before, divisor)
    return table.any(0)


def gather_runs(rank: int, flat: np.ndarray, runs: Sequence[slice], total: np.ndarray, wire: Wire = EXACT) -> Steps:
    """Copy the sum that each rank has of its run into `flat`, as it travels back: `total` itself stays exact."""
    size, back = len(runs), wire.of(flat.dtype).back
    for window in windows_of_runs(runs, arriving_bytes(back, flat.itemsize)):
        pieces = [flat[each][window] for each in runs]
        mine = total[window]
        with np.errstate(all="ignore"):
            sent = back.pack(mine, [slice(0, mine.size)]).values
        arrived = pieces if back.is_exact else [buffers.empty((piece.size,), sent.dtype) for piece in pieces]
        yield Exchange([sent] * size, arrived)
        for piece, values in zip(pieces, arrived, strict=True):
            if piece is not values:
                np.copyto(piece, back.unpack(values, None))


def reduce_gradients(
    rank: int, flat: np.ndarray, runs: Sequence[slice], total: np.ndarray, parts: Sequence[slice],
    present: np.ndarray, before: Sequence[Former | None], divisor: float, wire: Wire = EXACT,
) -> Steps:  # fmt: skip
    """Add up the gradients of all ranks, and bring the sums back to `flat`; return which gradients there are.

    The arguments are those of `sum_runs`.
    """
    found = yield from sum_runs(rank, flat, runs, total, parts, present, before, divisor, wire)
    yield from gather_runs(rank, flat, runs, total, wire)
    return found


def add_up(
    total: np.ndarray, begin: int, arrived: Sequence[np.ndarray], table: np.ndarray, parts: Sequence[slice],
    before: Sequence[Former | None], divisor: float,
) -> None:  # fmt: skip
    """Add up what arrived for the elements of a bucket from `begin` on into `total`.

    `table` says which ranks have which of the gradients at `parts`.
    """
    if divisor != 1:
        for array in arrived:
            np.divide(array, array.dtype.type(divisor), out=array)
    for number, part in enumerate(parts):
        start, stop = max(part.start, begin), min(part.stop, begin + total.size)
        if start >= stop:
            continue
        inside = slice(start - begin, stop - begin)
        terms = [array[inside] for array, has in zip(arrived, table[:, number], strict=True) if has]
        former = before[number]
        if former is not None:
            terms.insert(0, former.array[start - former.start : stop - former.start])
        if terms:
            np.copyto(total[inside], terms[0])
            for term in terms[1:]:
                np.add(total[inside], term, out=total[inside])
