"""Add up the gradients of all processes while backward runs, bucket by bucket, by `gradient_sums`."""

import collections
import functools
import weakref
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import xxhash

from spillgrad.autograd.core.engine import Run, outermost_run
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.core.node import HookDict, RemovableHandle
from spillgrad.device.device import CPU, moved
from spillgrad.distributed.collective_steps import broadcast, cut
from spillgrad.distributed.process_group import ProcessGroup, begin, run
from spillgrad.distributed.protocol import Steps
from spillgrad.distributed.wires import Wire
from spillgrad.errors import GraphError
from spillgrad.nn.parallel.gradient_buckets import Bucket, buckets_of
from spillgrad.nn.parallel.gradient_sums import Former, reduce_gradients
from spillgrad.tensor import Tensor

# In a later backward of a step, the sums of buckets under way are copies, of which there are at most so many bytes.
MOST_COPIES_BYTES = 64 << 20


class BackwardBuckets:
    """Sends the gradients of one backward after `arm` in buckets, whose order all processes of a group share.

    What other backwards add to a gradient stays in this process, until it is sent with the rest. A backward that fails
    leaves no gradient that it has touched. Subclasses define `_hold`, `_send` and `_finish`.

    Parameters
    ----------
    who : str
        Name of the user's object, for errors.
    group : ProcessGroup
        The processes.
    named : sequence of (str, Tensor)
        Parameters that require gradients, and their names, the same in all processes.
    bucket_bytes : int
        The most bytes that are sent together, but for larger gradients.
    wire : Wire
        The format in which gradients travel.
    goes_alone : callable, optional
        Returns whether the gradient of a parameter is in a bucket of its own.
    """

    def __init__(
        self, who: str, group: ProcessGroup, named: Sequence[tuple[str, Tensor]], bucket_bytes: int, wire: Wire,
        goes_alone: Callable[[Tensor], bool] = lambda parameter: False,
    ) -> None:  # fmt: skip
        self.group = group
        self.wire = wire
        self.divisor = float(group.size())
        self._who = who
        self._is_armed = False
        self._names = [name for name, _ in named]
        parameters = [parameter for _, parameter in named]
        self._references = [weakref.ref(parameter) for parameter in parameters]  # the parameters outlive this
        self._buckets = buckets_of(parameters, bucket_bytes, goes_alone)
        self._bucket_of = {place: bucket for bucket in self._buckets for place in bucket.places}
        self._before: dict[int, Tensor | None] = {}  # gradients that were there, the same in all processes
        self._local: set[int] = set()  # gradients that were added up in this process alone
        self._run: Run | None = None
        self._backwards = self._failed = 0  # how many have ended, and how many have failed
        self._next = 0  # buckets are sent in their order, which all ranks share
        self._filled: list[int] = []  # buckets in the order in which this backward has filled them
        self._is_in_order = False  # whether the buckets are in the order in which backward fills them
        handles = []
        reducer = weakref.ref(self)
        for place, parameter in enumerate(parameters):
            for name, act in (("_pre_accumulate_hooks", _set_aside), ("_post_accumulate_hooks", _arrived)):
                hooks = parameter.__dict__.setdefault(name, HookDict())
                handles.append(hooks.add(functools.partial(act, reducer, place)))
        weakref.finalize(self, _remove, handles)

    def _parameter(self, place: int) -> Tensor:
        parameter = self._references[place]()
        assert parameter is not None
        return parameter

    def arm(self) -> None:
        """Have the next backward add up gradients over all processes."""
        self._is_armed = True

    def disarm(self) -> None:
        """Leave what backward adds in this process."""
        self._is_armed = False

    def contribute_nothing(self, filled: Iterable[Bucket] = ()) -> None:
        """Take part in the sums of a backward that other processes run.

        Buckets are sent as early as these processes send them if `filled` yields them when they fill them.
        """
        self._forget()
        ready: set[int] = set()
        for bucket in filled:
            ready.add(id(bucket))
            while self._next < len(self._buckets) and id(self._buckets[self._next]) in ready:
                self._send(self._buckets[self._next], self._next)
                self._next += 1
        self._end()

    def set_aside(self, place: int, parameter: Tensor) -> None:
        """Before backward adds to a gradient: take away what is there, so that backward leaves what it adds."""
        backward = outermost_run()
        if backward is None or not (self._is_armed or backward is self._run):
            if place not in self._local and parameter.grad is not None and self._refuses_more(parameter.grad):
                raise GraphError(
                    f"{self._who}: {self._names[place]} has a sum over all processes, to which no_sync() would add "
                    "what this one has alone; use no_sync() first, or zero_grad()"
                )
            return
        if self._run is not backward:
            self._forget()
            self._run = backward
            backward.at_end.append(self._end)
            backward.at_failure.append(self._fail)
        if place not in self._bucket_of[place].waits_for:
            raise GraphError(
                f"{self._who}: {self._names[place]} got another gradient after the sum over all processes had begun, "
                "as a backward runs inside this one; compute the loss under no_sync() in all but the last"
            )
        if place not in self._local:
            self._before[place], parameter.grad = parameter.grad, None

    def arrived(self, place: int, parameter: Tensor) -> None:
        """After backward has added to a gradient: keep it for its bucket, and send what is full."""
        if self._run is None or outermost_run() is not self._run:
            self._local.add(place)
            self._keep(place)
            return
        bucket = self._bucket_of[place]
        bucket.waits_for.discard(place)
        if not bucket.waits_for:
            self._filled.append(self._buckets.index(bucket))
            self._note_filled(bucket)
        self._hold(bucket, place)
        self._send_ready()

    def _note_filled(self, bucket: Bucket) -> None:
        """No-op hook for subclasses: called when backward has all gradients of a bucket."""

    def _refuses_more(self, grad: Tensor) -> bool:
        """Return whether `grad`, a sum over all processes, cannot be added to in this process alone."""
        raise NotImplementedError

    def _keep(self, place: int) -> None:
        """Keep a gradient that stays in this process for now."""

    def _hold(self, bucket: Bucket, place: int) -> None:
        """Keep a gradient until its bucket is sent."""
        raise NotImplementedError

    def _send(self, bucket: Bucket, number: int) -> None:
        """Begin to send a bucket."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Wait for all buckets, and replace the gradients by the results."""
        raise NotImplementedError

    def _fail(self) -> None:
        """Take away the gradients that a backward which fails has touched: each process may have come to others."""
        touched = {place for bucket in self._buckets for place in bucket.places if place not in bucket.waits_for}
        touched |= {place for bucket in self._buckets[: self._next] for place in bucket.places} | self._before.keys()
        for place in touched:
            self._parameter(place).grad = None
        self._local -= touched
        self._failed += 1  # what it has sent must meet nothing that a later one sends
        self._is_armed = False
        self._forget()

    def _forget(self) -> None:
        """Forget what a backward has done."""
        self._run, self._next = None, 0
        self._filled.clear()
        self._before.clear()
        for bucket in self._buckets:
            bucket.begin()

    def _send_ready(self, all_of_them: bool = False) -> None:
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if bucket.waits_for and not all_of_them:
                return
            self._send(bucket, self._next)
            self._next += 1

    def _former(self, place: int) -> Tensor | None:
        """Return the sum over all processes that was there before; None without one."""
        # A gradient that this backward did not touch is still there.
        return self._before.get(place, None if place in self._local else self._parameter(place).grad)

    def _begin(self, bucket: Bucket, number: int, before: Sequence[Former | None], steps: Steps) -> None:
        """Begin the collective that adds up a bucket on top of what was there `before`."""
        wire = self.wire.of(bucket.dtype)
        format_ = "" if wire.is_exact else f" as {wire.name}"
        after = f" after {self._failed} that failed" if self._failed else ""
        words = (
            f"gradients {number + 1} of {len(self._buckets)} of backward {self._backwards}{after} ({bucket.size} "
            f"{bucket.dtype}{format_}, divided by {self.divisor:g}) on top of {self._words(before)}"
        )
        bucket.work = begin(self.group, words, steps, bucket.take)

    def _words(self, before: Sequence[Former | None]) -> str:
        """Return words that differ if processes have begun with a step at different times."""
        raise NotImplementedError

    def _end(self) -> None:
        """Send what is left, and replace the gradients by the results."""
        self._send_ready(all_of_them=True)
        self._finish()
        if not self._is_in_order:
            self._put_in_order()
        self._forget()
        self._backwards += 1
        self._local.clear()
        self._is_armed = False

    def _put_in_order(self) -> None:
        """Put the buckets into the order in which the first process has filled them; others would wait for their turn.

        If its backward has filled none, as it had no batch, the next one decides.
        """
        others = [number for number in range(len(self._buckets)) if number not in self._filled]
        order = np.array([*self._filled, *others])
        if not self._filled:
            order[:] = -1
        run(self.group, "the order of gradients", broadcast(self.group.rank(), self.group.size(), 0, order))
        if order[0] >= 0:
            self._buckets = [self._buckets[number] for number in order]
            self._is_in_order = True


class _Exact:
    """The exact sums of this rank's part of a bucket, where sums travel back rounded: a later backward adds to these.

    They count as long as the parameters' gradients are the rounded sums.
    """

    def __init__(self, count: int, dtype: np.dtype) -> None:
        self.total = np.zeros(count, dtype)
        self._digests: dict[int, int] = {}

    def keep(self, place: int, rounded: np.ndarray) -> None:
        """Note what the rounded sum of a parameter is."""
        self._digests[place] = _digest(rounded)

    def has(self, place: int, grad: np.ndarray) -> bool:
        """Return whether a gradient is the rounded sum. Versions would miss what is written to `grad.numpy()`."""
        return place in self._digests and self._digests[place] == _digest(grad)

    def forget(self) -> None:
        """Note that the sums are about to change."""
        self._digests.clear()


class GradientReducer(BackwardBuckets):
    """Replaces the gradients of parameters by sums over all processes of a group, or by averages."""

    def __init__(self, group: ProcessGroup, named: Sequence[tuple[str, Tensor]], bucket_bytes: int, wire: Wire) -> None:
        super().__init__("DistributedDataParallel", group, named, bucket_bytes, wire)
        self._exact: dict[int, _Exact] = {}  # by the id of the bucket
        self._under_way: collections.deque[Bucket] = collections.deque()

    def _refuses_more(self, grad: Tensor) -> bool:
        return self.divisor != self.group.size() or not self.wire.is_exact

    def _hold(self, bucket: Bucket, place: int) -> None:
        parameter = self._parameter(place)
        grad = parameter.grad
        if grad is None:  # an earlier hook has taken it
            return
        # If nothing else sees this gradient, the sum may be made in its memory, or in a copy that takes its place.
        is_own = grad.device is CPU and not grad.requires_grad and grad._storage.keeper is None
        is_own = is_own and len(parameter.__dict__["_post_accumulate_hooks"]) == 1
        if is_own and bucket.places == [place] and grad.array.flags.c_contiguous:
            bucket.lend(grad.array)
        else:
            copy = bucket.put(place, grad.array)
            if is_own:
                parameter.grad = Tensor.wrap(copy.reshape(parameter.shape))
        if is_own:
            bucket.own.add(place)

    def _send(self, bucket: Bucket, number: int) -> None:
        for place in bucket.waits_for & self._local:
            self._hold(bucket, place)
        group, flat = self.group, bucket.complete()
        for place in bucket.own:  # until the sum is there, nobody may see it, even if backward fails
            self._parameter(place).grad = None
        runs = cut(bucket.size, group.size())
        own = runs[group.rank()]
        exact = self._exact.get(id(bucket))
        if exact is None and not self.wire.of(bucket.dtype).is_exact:
            exact = self._exact[id(bucket)] = _Exact(own.stop - own.start, bucket.dtype)
        formers = [self._former(place) for place in bucket.places]
        shown = [
            None if grad is None else Former(part.start, _flat_on_host(grad))
            for grad, part in zip(formers, bucket.parts, strict=True)
        ]
        before = list(shown)
        if exact is not None:
            for index, (place, former, part) in enumerate(zip(bucket.places, shown, bucket.parts, strict=True)):
                if former is not None and exact.has(place, former.array):
                    start, stop = max(part.start, own.start), min(part.stop, own.stop)
                    before[index] = Former(start, exact.total[start - own.start : max(start, stop) - own.start])
            exact.forget()
        total = flat[own] if exact is None else exact.total
        steps = reduce_gradients(
            group.rank(), flat, runs, total, bucket.parts, bucket.present, before, self.divisor, self.wire
        )
        self._begin(bucket, number, shown, steps)
        self._under_way.append(bucket)
        del flat, total, shown, before, formers, steps
        self._finish_all_but(MOST_COPIES_BYTES)

    def _words(self, before: Sequence[Former | None]) -> str:
        """Return words that differ if processes have different gradients, too."""
        if all(former is None for former in before):
            return "nothing"
        digest = xxhash.xxh3_64()
        for former in before:
            digest.update(b"-" if former is None else former.array.view(np.uint8).data)
        return f"gradients {digest.hexdigest()}"

    def _finish(self) -> None:
        while self._under_way:
            self._finish_first()

    def _forget(self) -> None:
        for bucket in self._under_way:  # the exact sums of these still change
            self._exact.pop(id(bucket), None)
        self._under_way.clear()
        super()._forget()

    def _finish_all_but(self, nbytes: int) -> None:
        """Take the results that are there; wait for more if sums that are no gradients yet take more than `nbytes`."""
        while self._under_way:
            work = self._under_way[0].work
            assert work is not None
            if not work.is_completed() and self._copies_bytes() <= nbytes:
                return
            self._finish_first()

    def _copies_bytes(self) -> int:
        """Return the bytes of sums under way that will be copied to gradients that were there."""
        return sum(
            size * bucket.dtype.itemsize
            for bucket in self._under_way
            for place, size in zip(bucket.places, bucket.sizes, strict=True)
            if self._before.get(place) is not None or self._parameter(place).grad is not None
        )

    def _finish_first(self) -> None:
        bucket = self._under_way.popleft()
        work, flat = bucket.work, bucket.flat
        assert work is not None and flat is not None
        work.wait()
        bucket.flat = None
        for place, part, is_there in zip(bucket.places, bucket.parts, bucket.found, strict=True):
            if is_there:
                self._put(place, flat[part])
            elif place in self._before:
                self._parameter(place).grad = self._before[place]
            grad, exact = self._parameter(place).grad, self._exact.get(id(bucket))
            if grad is not None and exact is not None:
                exact.keep(place, _flat_on_host(grad))

    def _put(self, place: int, values: np.ndarray) -> None:
        parameter = self._parameter(place)
        grad = self._before.get(place)
        if grad is None:
            grad = parameter.grad
        with no_grad():
            result = Tensor.wrap(values.reshape(parameter.shape))
            if grad is None:
                grad = result.to(parameter.device)
            else:
                grad.copy_(result)
        parameter.grad = grad


def _flat_on_host(grad: Tensor) -> np.ndarray:
    return np.ascontiguousarray(moved(grad.array, CPU)).reshape(-1)


def _digest(array: np.ndarray) -> int:
    return xxhash.xxh3_64_intdigest(array.view(np.uint8).data)


# What the hooks of parameters call, as long as the reducer lives.
def _set_aside(reducer: "weakref.ref[BackwardBuckets]", place: int, parameter: Tensor) -> None:
    alive = reducer()
    if alive is not None:
        alive.set_aside(place, parameter)


def _arrived(reducer: "weakref.ref[BackwardBuckets]", place: int, parameter: Tensor) -> None:
    alive = reducer()
    if alive is not None:
        alive.arrived(place, parameter)


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
