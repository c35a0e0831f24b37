"""Add up the gradients of all processes while backward runs.

The sum of a gradient is made in the order of the ranks, on top of the gradient that was there: the very additions that
one process makes when it runs the batches of all ranks one after the other. So it has the same bits.
"""

import collections
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from spillgrad.autograd.core.engine import Run, outermost_run
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.core.node import HookDict, RemovableHandle
from spillgrad.device.device import CPU, moved
from spillgrad.distributed.collective_steps import all_gather, cut, windows
from spillgrad.distributed.process_group import ProcessGroup, Work, begin
from spillgrad.distributed.protocol import Exchange, Steps
from spillgrad.errors import GraphError
from spillgrad.ops.creation import from_numpy
from spillgrad.tensor import Tensor

# PyTorch's: the first bucket is small, so that sending begins early.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


class _Bucket:
    """Gradients that are sent together: those of some parameters, of one dtype, one behind the other."""

    def __init__(self, places: Sequence[int], parameters: Sequence[Tensor]) -> None:
        self.places = list(places)
        sizes = [parameters[place].numel() for place in places]
        bounds = np.cumsum([0, *sizes]).tolist()
        self.parts = dict(zip(places, map(slice, bounds, bounds[1:]), strict=False))
        self.size = bounds[-1]
        self.dtype = parameters[places[0]].numpy_dtype
        self.begin()

    def begin(self) -> None:
        """Forget what was reduced."""
        self.waits_for = set(self.places)
        self.flat: np.ndarray | None = None
        self.present = np.zeros(len(self.places), bool)
        self.work: Work | None = None
        self.found: np.ndarray = self.present  # which gradients any process has, when the work has ended

    def take(self, found: np.ndarray) -> None:
        """Take the result of a sum."""
        self.found = found


class GradientReducer:
    """Replaces the gradients of parameters by sums over all processes of a group, or by averages.

    It does so in one backward after `arm`; what other backwards add to a gradient stays in this process, until it is
    added up with the rest. A backward that fails loses what was there.

    Parameters
    ----------
    group : ProcessGroup
        The processes.
    named : sequence of (str, Tensor)
        Parameters that require gradients, and their names, the same in all processes.
    bucket_bytes : int
        The most bytes that are sent together, but for larger gradients.
    """

    def __init__(self, group: ProcessGroup, named: Sequence[tuple[str, Tensor]], bucket_bytes: int) -> None:
        self.group = group
        self.divisor = float(group.size())
        self._is_armed = False
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._buckets = _buckets(self._parameters, bucket_bytes)
        self._bucket_of = {place: bucket for bucket in self._buckets for place in bucket.places}
        self._before: dict[int, Tensor | None] = {}  # gradients that were there, the same in all processes
        self._local: set[int] = set()  # gradients that were added up in this process alone
        self._run: Run | None = None
        self._next = 0  # buckets are sent in their order, which all ranks share
        handles = []
        reducer = weakref.ref(self)  # the parameters outlive it
        for place, parameter in enumerate(self._parameters):
            for name, act in (("_pre_accumulate_hooks", _set_aside), ("_post_accumulate_hooks", _arrived)):
                hooks = parameter.__dict__.setdefault(name, HookDict())
                handles.append(hooks.add(functools.partial(act, reducer, place)))
        weakref.finalize(self, _remove, handles)

    def arm(self) -> None:
        """Have the next backward add up gradients over all processes."""
        self._is_armed = True

    def disarm(self) -> None:
        """Leave what backward adds in this process."""
        self._is_armed = False

    def contribute_nothing(self) -> None:
        """Take part in the sums of a backward that other processes run."""
        self._forget()
        self._end()

    def set_aside(self, place: int, parameter: Tensor) -> None:
        """Before backward adds to a gradient: take away what is there, so that backward leaves what it adds."""
        run = outermost_run()
        if run is None or not (self._is_armed or run is self._run):
            if place not in self._local and self.divisor != self.group.size() and parameter.grad is not None:
                raise GraphError(
                    f"DistributedDataParallel: {self._names[place]} has a sum over all processes, to which no_sync() "
                    "would add what this one has alone; with set_gradient_divide_factor, use no_sync() first, or "
                    "zero_grad()"
                )
            return
        if self._run is not run:
            self._forget()
            self._run = run
            run.at_end.append(self._end)
        if place not in self._bucket_of[place].waits_for:
            raise GraphError(
                f"DistributedDataParallel: {self._names[place]} got another gradient after the sum over all processes "
                "had begun, as a backward runs inside this one; compute the loss under no_sync() in all but the last"
            )
        if place not in self._local:
            self._before[place], parameter.grad = parameter.grad, None

    def arrived(self, place: int, parameter: Tensor) -> None:
        """After backward has added to a gradient: put it into its bucket, and send what is full."""
        if self._run is None or outermost_run() is not self._run:
            self._local.add(place)
            return
        bucket = self._bucket_of[place]
        self._copy(bucket, place)
        bucket.waits_for.discard(place)
        self._send_ready()

    def _forget(self) -> None:
        """Forget a backward that failed, whose gradients are lost."""
        self._run, self._next = None, 0
        self._before.clear()
        for bucket in self._buckets:
            bucket.begin()

    def _copy(self, bucket: _Bucket, place: int) -> None:
        grad = self._parameters[place].grad
        if grad is not None:  # an earlier hook may have taken it
            if bucket.flat is None:
                bucket.flat = np.zeros(bucket.size, bucket.dtype)
            bucket.flat[bucket.parts[place]] = moved(grad.array, CPU).reshape(-1)
            bucket.present[bucket.places.index(place)] = True

    def _send_ready(self, all_of_them: bool = False) -> None:
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if bucket.waits_for and not all_of_them:
                return
            self._send(bucket, self._next)
            self._next += 1

    def _send(self, bucket: _Bucket, number: int) -> None:
        for place in bucket.waits_for & self._local:
            self._copy(bucket, place)
        flat = bucket.flat = np.zeros(bucket.size, bucket.dtype) if bucket.flat is None else bucket.flat
        before: list[np.ndarray | None] = []
        for place in bucket.places:
            # A gradient that this backward did not touch is still there.
            grad = self._before.get(place, None if place in self._local else self._parameters[place].grad)
            before.append(None if grad is None else np.ascontiguousarray(moved(grad.array, CPU)).reshape(-1))
        group = self.group
        parts = [bucket.parts[place] for place in bucket.places]
        steps = reduce_gradients(group.rank(), group.size(), flat, parts, bucket.present, before, self.divisor)
        bucket.work = begin(
            group,
            f"gradients {number + 1} of {len(self._buckets)} ({bucket.size} {bucket.dtype}, divided by "
            f"{self.divisor:g}) on top of {_digest(before)}",
            steps,
            bucket.take,
        )

    def _end(self) -> None:
        """Send what is left, and replace the gradients by the results."""
        self._send_ready(all_of_them=True)
        for bucket in self._buckets:
            work, flat = bucket.work, bucket.flat
            assert work is not None and flat is not None
            work.wait()
            for place, is_there in zip(bucket.places, bucket.found, strict=True):
                if is_there:
                    self._put(place, flat[bucket.parts[place]])
                elif place in self._before:
                    self._parameters[place].grad = self._before[place]
        self._forget()
        self._local.clear()
        self._is_armed = False

    def _put(self, place: int, values: np.ndarray) -> None:
        parameter = self._parameters[place]
        grad = self._before.get(place)
        if grad is None:
            grad = parameter.grad
        with no_grad():
            result = from_numpy(values).reshape(parameter.shape)
            if grad is None:
                grad = result.to(parameter.device, copy=True)
            else:
                grad.copy_(result)
        parameter.grad = grad


# What the hooks of parameters call, as long as the reducer lives.
def _set_aside(reducer: "weakref.ref[GradientReducer]", place: int, parameter: Tensor) -> None:
    alive = reducer()
    if alive is not None:
        alive.set_aside(place, parameter)


def _arrived(reducer: "weakref.ref[GradientReducer]", place: int, parameter: Tensor) -> None:
    alive = reducer()
    if alive is not None:
        alive.arrived(place, parameter)


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _digest(before: Sequence[np.ndarray | None]) -> str:
    """Return words that differ if processes have different gradients, or have begun with a step at different times."""
    if all(array is None for array in before):
        return "nothing"
    digest = xxhash.xxh3_64()
    for array in before:
        digest.update(b"-" if array is None else array.view(np.uint8).data)
    return f"gradients {digest.hexdigest()}"


def _buckets(parameters: Sequence[Tensor], bucket_bytes: int) -> list[_Bucket]:
    kinds = [(parameter.numpy_dtype, parameter.nbytes) for parameter in parameters]
    return [_Bucket(places, parameters) for places in bucket_places(kinds, bucket_bytes)]


def bucket_places(kinds: Sequence[tuple[np.dtype, int]], bucket_bytes: int = BUCKET_BYTES) -> list[list[int]]:
    """Put parameters, given by their dtypes and bytes, into buckets, the last one first, as backward reaches it first.

    Return the parameters' numbers, bucket by bucket.
    """
    buckets: list[list[int]] = []
    filling: dict[Any, list[int]] = collections.defaultdict(list)
    for place in reversed(range(len(kinds))):
        dtype, nbytes = kinds[place]
        places = filling[dtype]
        limit_bytes = bucket_bytes if buckets else min(FIRST_BUCKET_BYTES, bucket_bytes)
        if places and sum(kinds[other][1] for other in places) + nbytes > limit_bytes:
            buckets.append(places)
            places = filling[dtype] = []
        places.append(place)
    return [*buckets, *(places for places in filling.values() if places)]


def reduce_gradients(
    rank: int, size: int, flat: np.ndarray, parts: Sequence[slice], present: np.ndarray,
    before: Sequence[np.ndarray | None], divisor: float,
) -> Steps:  # fmt: skip
    """Add up the gradients in `flat` of all ranks, in their order, on top of those `before`; return which there are.

    `parts` are the gradients' places in `flat`; `present` says which of them this rank has. What a rank does not have,
    adds nothing. With a `divisor`, each rank's gradients are divided by it first.
    """
    table = np.empty((size, len(parts)), bool)
    yield from all_gather(present, list(table))
    for window in windows(flat.size, flat.itemsize):
        view = flat[window]
        pieces = cut(view.size, size)
        own = pieces[rank]
        arrived = [np.empty_like(view[own]) for _ in range(size)]
        yield Exchange([view[piece] for piece in pieces], arrived)
        begin = window.start + own.start
        with np.errstate(all="ignore"):  # infinities and NaNs are results, as in PyTorch
            _add(view[own], begin, arrived, table, parts, before, divisor)
        yield from all_gather(view[own], [view[piece] for piece in pieces])
    return table.any(0)


def _add(
    total: np.ndarray, begin: int, arrived: Sequence[np.ndarray], table: np.ndarray, parts: Sequence[slice],
    before: Sequence[np.ndarray | None], divisor: float,
) -> None:  # fmt: skip
    """Add up what arrived for the elements from `begin` on into `total`."""
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
            terms.insert(0, former[start - part.start : stop - part.start])
        if terms:
            np.copyto(total[inside], terms[0])
            for term in terms[1:]:
                np.add(total[inside], term, out=total[inside])
