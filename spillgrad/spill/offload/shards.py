"""Gradients and optimizer state that the processes of a group share: each keeps a part of every tensor.

A backward sends each gradient's parts to the processes that keep them, which add them up in the order of the ranks. So
a gradient has the bits that one process computes which runs the batches of all ranks one after the other.
"""

import collections
import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from spillgrad.distributed.collective_steps import all_gather
from spillgrad.distributed.process_group import ProcessGroup, Work, begin
from spillgrad.distributed.sharded_tensor import ShardedTensor, parts_of
from spillgrad.distributed.wires import Wire
from spillgrad.nn.parallel.gradient_buckets import Bucket
from spillgrad.nn.parallel.gradient_reducer import BackwardBuckets
from spillgrad.nn.parallel.gradient_sums import Former, sum_runs
from spillgrad.nn.utils import clip_grad
from spillgrad.spill.offload.needs import Sharing, reduced_bytes
from spillgrad.spill.offload.residents import Residents
from spillgrad.spill.offload.tensors import OffloadedStorage
from spillgrad.tensor import Tensor
from spillgrad_kernels.memory import buffers

# Buckets that travel while backward computes the next: more would only take memory.
_MOST_UNDER_WAY = 1


class _UnderWay(NamedTuple):
    """A bucket that is being added up: the memory for this rank's part of the sum, and the room in the store.

    `nbytes` counts what is `held` besides, too.
    """

    bucket: Bucket
    total: np.ndarray
    room: contextlib.ExitStack
    nbytes: int
    held: object


class ShardedGradient(ShardedTensor):
    """The sum of a gradient over all processes."""

    sums: int  # how many sums over all processes it has been through

    def known_squares(self) -> np.ndarray | None:
        storage = self.shard._storage
        return storage.squares if isinstance(storage, OffloadedStorage) else None


def ranges(bucket: Bucket, ranks: int) -> tuple[list[slice], list[list[slice]]]:
    """Cut a bucket into a run of elements for each rank; return these, and each tensor's parts by rank."""
    parts = parts_of(bucket.sizes, ranks)
    runs = []
    for of_rank in zip(*parts, strict=True):
        placed = zip(bucket.parts, of_rank, strict=True)
        filled = [slice(at.start + part.start, at.start + part.stop) for at, part in placed if part.start < part.stop]
        runs.append(slice(filled[0].start, filled[-1].stop) if filled else slice(0, 0))
    return runs, parts


def _is_in_parts(parameter: Tensor) -> bool:
    return parameter._storage.in_parts is not None


class ShardReducer(BackwardBuckets):
    """Replaces the gradients of offloaded parameters by sums over all processes, of which each process keeps a part.

    Parameters
    ----------
    residents : Residents
        They have the parameters, and get the gradients.
    group : ProcessGroup
        The processes.
    named : sequence of (str, Tensor)
        Parameters that require gradients, and their names.
    bucket_bytes : int
        The most bytes that are sent together, but for larger gradients.
    wire : Wire
        The format in which gradients travel.
    spare_bytes : int
        The most bytes that may be under way while backward computes.
    ahead_bytes : int
        The bytes of the store's budget that are for other things meanwhile.
    who : str
        Name of the user's object, for errors.
    put_away : callable
        Moves the gradient of a parameter, whole or a part, to the store.
    needs_squares : bool
        Whether norms will be taken.
    ended : callable
        Called when a backward has ended, and all gradients are there. Both callables are methods of an object that
        holds this one.
    """

    def __init__(
        self, residents: Residents, group: ProcessGroup, named: Sequence[tuple[str, Tensor]], bucket_bytes: int,
        wire: Wire, spare_bytes: int, ahead_bytes: int, who: str, put_away: Callable[[Tensor, str], None],
        needs_squares: bool, ended: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(who, group, named, bucket_bytes, wire, _is_in_parts)
        self._spare_bytes = spare_bytes
        self._budget_bytes = residents.store.ram_budget - ahead_bytes
        self.record: list[Any] | None = None  # buckets in the order in which backward fills them, if somebody asks
        self._residents, self._needs_squares = residents, needs_squares
        # The model holds whoever holds this: a cycle would keep the store beyond the model.
        self._methods = weakref.WeakMethod(put_away), weakref.WeakMethod(ended)
        self._runs: dict[int, list[slice]] = {}
        self.parts: dict[int, list[slice]] = {}  # by the id of a parameter: the elements that each rank keeps
        for bucket in self._buckets:
            runs, parts = ranges(bucket, group.size())
            self._runs[id(bucket)] = runs
            for place, of_ranks in zip(bucket.places, parts, strict=True):
                self.parts[id(self._parameter(place))] = of_ranks
        self._under_way: collections.deque[_UnderWay] = collections.deque()

    def _note_filled(self, bucket: Bucket) -> None:
        if self.record is not None:
            self.record.append(bucket)

    def _refuses_more(self, grad: Tensor) -> bool:
        return isinstance(grad, ShardedGradient)  # it is in parts

    def _put_away(self, grad: Tensor, name: str) -> None:
        method = self._methods[0]()
        assert method is not None
        method(grad, name)

    def _keep(self, place: int) -> None:
        self._put_grad_away(place)

    def _hold(self, bucket: Bucket, place: int) -> None:
        if bucket.waits_for or bucket is not self._buckets[self._next]:  # it is not sent now
            self._put_grad_away(place)

    def _put_grad_away(self, place: int) -> None:
        grad = self._parameter(place).grad
        if grad is not None:
            self._put_away(grad, self._names[place])

    def _send(self, bucket: Bucket, number: int) -> None:
        self._residents.return_changed(with_last=True)
        group, runs = self.group, self._runs[id(bucket)]
        own = runs[group.rank()]
        count, itemsize = own.stop - own.start, bucket.dtype.itemsize
        alone = self._alone(bucket)
        whole_bytes = bucket.size * itemsize
        sharing = Sharing(group.size(), self.wire.of(bucket.dtype))
        made_bytes = sum(reduced_bytes(whole_bytes, count * itemsize, sharing, len(bucket.places)))
        used_bytes = made_bytes + count * itemsize  # with the sum that was there
        self._finish_all_but(_MOST_UNDER_WAY, max(0, self._budget_bytes - used_bytes))
        if alone is not None and alone.storage.offloaded:  # the store counts it
            made_bytes -= whole_bytes
        before = self._parts_before(bucket)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._residents.store.room(made_bytes))
            held = self._fill(bucket, alone)
            assert bucket.flat is not None
            total = buffers.empty((count,), bucket.dtype)
            steps = sum_runs(
                group.rank(), bucket.flat, runs, total, bucket.parts, bucket.present, before, self.divisor, self.wire
            )
            self._begin(bucket, number, before, steps)
            self._under_way.append(_UnderWay(bucket, total, stack.pop_all(), used_bytes, held))
        del held, before
        self._finish_all_but(_MOST_UNDER_WAY, self._spare_bytes)

    def _parts_before(self, bucket: Bucket) -> list[Former | None]:
        """Return this process's parts of the sums that were there before."""
        before: list[Former | None] = []
        for place, part in zip(bucket.places, bucket.parts, strict=True):
            former = self._former(place)
            own = self.parts[id(self._parameter(place))][self.group.rank()]
            if former is None:
                before.append(None)
            elif isinstance(former, ShardedGradient):
                before.append(Former(part.start + own.start, former.shard.array))
            else:  # a user has set it
                before.append(Former(part.start + own.start, np.ascontiguousarray(former.array).reshape(-1)[own]))
        return before

    def _is_sent(self, bucket: Bucket, place: int) -> bool:
        """Return whether a parameter's gradient, if there is one, is of this process alone."""
        return place not in bucket.waits_for or place in self._local

    def _alone(self, bucket: Bucket) -> Tensor | None:
        """Return the gradient of a bucket that has no other, and need not be copied."""
        (place, *others) = bucket.places
        return self._parameter(place).grad if not others and self._is_sent(bucket, place) else None

    def _fill(self, bucket: Bucket, alone: Tensor | None) -> object:
        """Move the gradients that this process has into the bucket; return what holds its memory."""
        held: object = None
        if alone is not None:
            array = alone.array
            bucket.flat = np.ascontiguousarray(array).reshape(-1)
            bucket.present[0] = True
            held = (alone, array)  # of which the store counts what it has
        for place in bucket.places:
            grad = self._parameter(place).grad
            if grad is not None and self._is_sent(bucket, place):  # an earlier hook may have taken it
                if alone is None:
                    bucket.put(place, grad.array)
                self._parameter(place).grad = None
        bucket.complete()
        return held

    def _words(self, before: Sequence[Former | None]) -> str:
        if all(former is None for former in before):
            return "nothing"
        digest = xxhash.xxh3_64()
        bucket = self._buckets[self._next]
        for place in bucket.places:
            former = self._former(place)
            if isinstance(former, ShardedGradient):
                digest.update(b"%d," % former.sums)
            elif former is None:
                digest.update(b"-,")
            else:
                digest.update(np.ascontiguousarray(former.array).reshape(-1).view(np.uint8).data)
        return f"earlier gradients {digest.hexdigest()}"

    def _finish(self) -> None:
        self._finish_all_but(0, 0)

    def _finish_all_but(self, count: int, nbytes: int) -> None:
        """Wait for the first buckets, until at most so many with so many bytes are under way; keep the results."""
        while len(self._under_way) > count or sum(sent.nbytes for sent in self._under_way) > nbytes:
            sent = self._under_way.popleft()
            bucket, total = sent.bucket, sent.total
            with sent.room:
                assert bucket.work is not None
                bucket.work.wait()
                bucket.flat = None
            del sent
            self._take(bucket, total)

    def _take(self, bucket: Bucket, total: np.ndarray) -> None:
        rank = self.group.rank()
        start = self._runs[id(bucket)][rank].start
        for place, part, is_there in zip(bucket.places, bucket.parts, bucket.found, strict=True):
            parameter = self._parameter(place)
            former = self._former(place)
            if not is_there and (former is None or isinstance(former, ShardedGradient)):
                parameter.grad = former
                continue
            parts = self.parts[id(parameter)]
            own = parts[rank]
            begin = part.start + own.start - start
            values = total[begin : begin + own.stop - own.start]
            if not values.size:  # a view would hold the memory of all
                values = np.empty(0, total.dtype)
            shard = Tensor.wrap(total if values.size == total.size else values)
            sums = former.sums + 1 if isinstance(former, ShardedGradient) else 1
            grad = ShardedTensor.of(self.group, parts, shard, tuple(parameter.shape))
            grad.__class__ = ShardedGradient
            assert isinstance(grad, ShardedGradient)
            grad.sums = sums
            squares = clip_grad.squares(shard) if self._needs_squares else None  # while it is in RAM
            parameter.grad = grad
            self._put_away(shard, self._names[place])
            if isinstance(shard._storage, OffloadedStorage):
                shard._storage.squares = squares

    def _forget(self) -> None:
        for sent in self._under_way:
            sent.room.close()
        self._under_way.clear()
        super()._forget()

    def _end(self) -> None:
        super()._end()
        method = self._methods[1]()
        assert method is not None
        method()


class Gatherer:
    """Brings the parts of updated parameters from all processes together, while the next ones are updated."""

    def __init__(self, group: ProcessGroup, residents: Residents) -> None:
        self._group, self._residents = group, residents
        self._under_way: collections.deque[tuple[Work, np.ndarray]] = collections.deque()  # with the whole array

    def begin(self, name: str, array: np.ndarray, parts: Sequence[slice]) -> None:
        """Begin to fill an array, of which this process has its part; the caller has begun to change it."""
        flat = array.reshape(-1)
        pieces = [flat[part] for part in parts]
        steps = all_gather(pieces[self._group.rank()], pieces)
        self._under_way.append((begin(self._group, f"{name} ({flat.size} {flat.dtype})", steps), array))

    def finish(self, but_bytes: int = -1) -> None:
        """Wait for the first ones, until at most so many bytes are under way."""
        while self._under_way and sum(array.nbytes for _, array in self._under_way) > but_bytes:
            work, array = self._under_way.popleft()
            work.wait()
            del array
            self._residents.return_changed()
