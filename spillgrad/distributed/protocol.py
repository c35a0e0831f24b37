"""The protocol of a group of ranks: in which order they send which bytes. It does no input or output itself.

A collective is a generator (see `collective_steps`) that yields what it sends and receives next, an `Exchange`. Before
its first exchange, the ranks exchange headers that say what each of them called, and where. If the headers differ,
every rank raises the same error. A digest goes with all bytes: damaged bytes raise, and are never added to anything.

A driver calls `Protocol.advance` again and again: `mpi.py` does so in the thread that owns MPI.
"""

import collections
import itertools
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash

from spillgrad import communication
from spillgrad.errors import DistributedError
from spillgrad.fork_safe_lock import ForkSafeLock

# What a rank called, and at which line of the user's program. The texts are cut; the digest is that of the whole text.
HEADER = np.dtype([("number", "<u8"), ("digest", "<u8"), ("what", "S200"), ("place", "S200")])
DIGEST_BYTES = 8
# Arrays up to this size are copied to be sent with their digest at the end: a message of its own would take longer.
SEALED_BYTES = 64 << 10
_NOTHING = np.empty(0, np.uint8)
# How long a rank waits for others before it says so, and how often it says it again.
_NOTICE_AFTER_S, _NOTICE_EVERY_S = 30.0, 300.0
# What a rank sent before it left may be heard of a little later.
_LATE_S = 1.0


class Exchange(NamedTuple):
    """What a rank sends to each rank of the group, and where it receives what each sends: flat arrays, by rank.

    Each rank knows the sizes of what it receives. The rank's own array is copied.
    """

    send: Sequence[np.ndarray]
    receive: Sequence[np.ndarray]


Steps = Generator[Exchange, None, Any]


class Message(Protocol):
    """A message under way: it is `done` when it was sent, or has arrived."""

    done: bool


class Network(Protocol):
    """Carries the bytes of flat arrays between ranks. Messages with the same tag between two ranks keep their order."""

    def send(self, rank: int, tag: int, array: np.ndarray) -> Message:
        """Begin to send an array, which must not change until the message is done."""

    def receive(self, rank: int, tag: int, array: np.ndarray) -> Message:
        """Begin to fill an array."""


class Call:
    """A collective that this rank has called: what others wait for, and what it waits for itself."""

    def __init__(
        self, number: int, what: str, place: str, steps: Steps, is_quiet: bool, now_s: Callable[[], float]
    ) -> None:
        self.number, self.what, self.place = number, what, place
        self.result: Any = None
        self.error: BaseException | None = None
        self._steps = steps
        self._is_quiet = is_quiet
        self._done = threading.Event()
        self._now_s = now_s
        self._began_s = self._told_s = now_s()
        self._headers = np.zeros(0, HEADER)
        self._messages: list[tuple[int, Message]] = []  # by the rank of the other side
        self._exchange: Exchange | None = None
        self._arriving: dict[int, list[np.ndarray]] = {}  # by rank: memory for the messages of the exchange
        self._posted_s = self._began_s  # when the present messages were sent
        self._awaited_s: dict[int, float] = {}  # by the rank whose messages came last
        self._sent_bytes = self._received_bytes = 0
        self._waits_since_s: float | None = None  # a thread of the program waits
        self._waited_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether the collective has ended, with a result or an error."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait for the end, and return the result. Raises DistributedError if the collective failed."""
        if not self.is_done:
            self._waits_since_s = self._now_s()
        if not self._done.wait(timeout_s):
            self._has_waited()
            raise DistributedError(f"{self.what}: it is not done after {timeout_s} s; wait longer")
        if self.error is not None:
            if isinstance(self.error, DistributedError):
                raise DistributedError(str(self.error))  # each thread that waits gets one of its own
            raise DistributedError(f"{self.what}: {self.error!r}") from self.error
        return self.result

    def _end(self, result: Any = None, error: BaseException | None = None) -> None:
        self.result, self.error = result, error
        self._steps.close()
        self._messages, self._exchange = [], None
        self._arriving = {}  # whoever waits may ask who holds the memory
        self._has_waited()
        try:
            if not self._is_quiet:
                self._tell()
        finally:
            self._done.set()

    def _tell(self) -> None:
        slowest: tuple[int | None, float] = max(self._awaited_s.items(), key=lambda each: each[1], default=(None, 0.0))
        what = self.what.partition(" (")[0]  # sizes are known from the bytes
        took_s = self._now_s() - self._began_s
        communication.tell(
            communication.Collective(what, self._sent_bytes, self._received_bytes, took_s, self._waited_s, *slowest)
        )

    def _has_waited(self) -> None:
        since_s, self._waits_since_s = self._waits_since_s, None
        if since_s is not None:
            self._waited_s += self._now_s() - since_s

    def _have_arrived(self, ranks: Sequence[int]) -> bool:
        """Return whether all messages are done. If they are, the last one's rank was awaited since they were sent."""
        waiting = [each for each in self._messages if not each[1].done]
        if not waiting and self._messages:
            last = ranks[self._messages[-1][0]]
            self._awaited_s[last] = self._awaited_s.get(last, 0.0) + self._now_s() - self._posted_s
        self._messages = waiting
        return not waiting


class GroupProtocol:
    """The calls of one rank in one group. Other threads call `begin`; one thread, the driver, calls the rest.

    Parameters
    ----------
    rank : int
        This rank's number in the group.
    ranks : sequence of int
        The group's ranks, by their numbers in the network.
    network : Network
        It carries the messages.
    tags : range
        Tags that no other group uses.
    timeout_s : float
        How long a call may take until it fails.
    clock : callable, optional
        Returns the time in seconds; by default, that of this machine.
    """

    def __init__(
        self, rank: int, ranks: Sequence[int], network: Network, tags: range, timeout_s: float,
        clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.ranks = rank, tuple(ranks)
        # Each rank begins with another one: if all sent to rank 0 first, it would receive while others wait.
        self._others = [(rank + shift) % len(self.ranks) for shift in range(1, len(self.ranks))]
        self._clock = clock
        self._network, self._tags, self.timeout_s = network, tags, timeout_s
        self._begun: collections.deque[Call] = collections.deque()
        self._lock = ForkSafeLock()
        self._count = 0
        self._running: list[Call] = []
        self.failure: BaseException | None = None
        self.last: tuple[float, str] = (0.0, "")  # when the last call began, and what it was

    def begin(self, what: str, place: str, steps: Steps, is_quiet: bool = False) -> Call:
        """Begin a collective that `what` describes, in the same words on all ranks; `place` is the line that called it.

        With `is_quiet`, others may take as long as they like. Raises DistributedError if the group has failed.
        """
        with self._lock:
            if self.failure is not None:
                raise DistributedError(str(self.failure))
            call = Call(self._count, what, place, steps, is_quiet, self._now_s)
            self._count += 1
            self.last = call._began_s, ", ".join(filter(None, (what, place)))
            self._begun.append(call)
        return call

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._begun and not self._running

    @property
    def is_awaited(self) -> bool:
        """Whether a thread of the program waits for a call."""
        return any(call._waits_since_s is not None for call in self._running)

    def advance(self) -> None:
        """Start the calls that were begun, and go on with those whose messages are done."""
        while self._begun:
            call = self._begun.popleft()
            self._running.append(call)
            self._send_header(call)
        for call in list(self._running):
            try:
                while not call.is_done and call._have_arrived(self.ranks):
                    self._go_on(call)
                if not call.is_done:
                    self._look_at_the_clock(call)
            except Exception as error:
                self.fail(error)
        self._running = [call for call in self._running if not call.is_done]

    def fail(self, error: BaseException) -> None:
        """End all calls, and all later ones, with an error; the first error stays."""
        with self._lock:  # no call begins meanwhile
            self.failure = error = self.failure or error
            for call in (*self._running, *self._begun):
                if not call.is_done:
                    call._end(error=error)
            self._begun.clear()

    def _now_s(self) -> float:
        return time.monotonic() if self._clock is None else self._clock()

    def require_present(self, left: Mapping[int, tuple[str, float]]) -> None:
        """Fail if a call waits for ranks that have left before they called it: their hosts, and when they left."""
        now_s = self._now_s()
        for call in self._running:
            if call._exchange is not None:  # all have called it, and whoever has called takes part to the end
                continue
            awaited = {self.ranks[other] for other, message in call._messages if not message.done}
            gone = sorted(awaited & left.keys())
            if gone and now_s - max(call._began_s, *(left[rank][1] for rank in gone)) > _LATE_S:
                hosts = ", ".join(sorted({left[rank][0] for rank in gone}))
                have = "has" if len(gone) == 1 else "have"
                error = DistributedError(
                    f"{call.what}, {call.place}: {_ranks(gone)} on {hosts} {have} ended without it; call the same "
                    "collectives on all ranks"
                )
                self.fail(error)
                return

    def _tag(self, call: Call) -> int:
        # Exchanges of a call follow each other, and messages with one tag keep their order.
        return self._tags[call.number % len(self._tags)]

    def _post_one(self, call: Call, other: int, sent: np.ndarray, received: np.ndarray) -> None:
        tag, rank = self._tag(call), self.ranks[other]
        call._sent_bytes += sent.nbytes
        call._received_bytes += received.nbytes
        if received.nbytes:
            call._messages.append((other, self._network.receive(rank, tag, received)))
        if sent.nbytes:
            call._messages.append((other, self._network.send(rank, tag, sent)))

    def _send_header(self, call: Call) -> None:
        size = len(self.ranks)
        call._headers = np.zeros(size, HEADER)
        own = call._headers[self.rank : self.rank + 1]
        own["number"], own["digest"] = call.number, xxhash.xxh3_64_intdigest(call.what.encode())
        own["what"], own["place"] = call.what.encode(), call.place.encode()
        call._posted_s = self._now_s()
        for other in self._others:
            self._post_one(call, other, own, call._headers[other : other + 1])

    def _go_on(self, call: Call) -> None:
        """Check what has arrived, and begin the next exchange, or end the call."""
        if call._exchange is None:
            self._require_same(call)
        else:
            self._require_whole(call, call._exchange)
        try:
            call._exchange = exchange = next(call._steps)
        except StopIteration as stop:
            call._end(stop.value)
            return
        if exchange.send[self.rank].nbytes:
            np.copyto(exchange.receive[self.rank], exchange.send[self.rank])
        call._posted_s = self._now_s()
        call._arriving = {other: _rooms(exchange.receive[other]) for other in self._others}
        for other in self._others:
            messages = itertools.zip_longest(_sealed(exchange.send[other]), call._arriving[other], fillvalue=_NOTHING)
            for sent, received in messages:
                self._post_one(call, other, sent, received)

    def _require_same(self, call: Call) -> None:
        headers = call._headers
        if (headers["number"] == call.number).all() and (headers["digest"] == headers["digest"][self.rank]).all():
            return
        found: dict[tuple[bytes, bytes], list[int]] = {}
        for rank, header in enumerate(headers):
            found.setdefault((header["what"], header["place"]), []).append(self.ranks[rank])
        told = "; ".join(
            f"{_ranks(ranks)}: {b', '.join(filter(None, texts)).decode(errors='replace')}"
            for texts, ranks in found.items()
        )
        raise DistributedError(
            f"collective {call.number + 1} differs between ranks: {told}. Call the same ones in the same order on all "
            "ranks"
        )

    def _require_whole(self, call: Call, exchange: Exchange) -> None:
        """Compare the digests of what has arrived, and copy small arrays to where they belong."""
        for other, rooms in call._arriving.items():
            if rooms and not _is_whole(rooms, exchange.receive[other]):
                raise DistributedError(
                    f"{call.what}, {call.place}: rank {self.ranks[self.rank]} received damaged bytes from rank "
                    f"{self.ranks[other]}; check the network between them, and go on from the last checkpoint"
                )

    def _look_at_the_clock(self, call: Call) -> None:
        """Say which ranks are awaited for long. Raises DistributedError after the time-out."""
        now_s = self._now_s()
        if call._is_quiet or now_s - call._told_s < min(_NOTICE_AFTER_S, self.timeout_s):
            return
        missing = sorted({self.ranks[other] for other, message in call._messages if not message.done})
        waited_s = now_s - call._began_s
        me = f"rank {self.ranks[self.rank]}"
        told = f"{me} has waited for {_ranks(missing)} for {waited_s:.0f} s: {call.what}, {call.place}"
        if waited_s >= self.timeout_s:
            raise DistributedError(f"{told}; the time-out of the group is {self.timeout_s:g} s")
        call._told_s = now_s + _NOTICE_EVERY_S - _NOTICE_AFTER_S
        print(f"spillgrad: {told}", file=sys.stderr, flush=True)


def alone(steps: Steps) -> Any:
    """Run a collective of a group of one rank, and return its result."""
    try:
        while True:
            exchange = next(steps)
            np.copyto(exchange.receive[0], exchange.send[0])
    except StopIteration as stop:
        return stop.value


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


def _digest(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(xxhash.xxh3_64_digest(_bytes(array).data), np.uint8)


def _sealed(array: np.ndarray) -> list[np.ndarray]:
    """Return the messages that carry an array: with its digest at its end if that is quicker than one more message."""
    if not array.nbytes:
        return []
    parts = [_bytes(array), _digest(array)]
    return [np.concatenate(parts)] if array.nbytes <= SEALED_BYTES else parts


def _rooms(array: np.ndarray) -> list[np.ndarray]:
    """Return the memory for the messages that carry an array to be filled."""
    if not array.nbytes:
        return []
    if array.nbytes <= SEALED_BYTES:
        return [np.empty(array.nbytes + DIGEST_BYTES, np.uint8)]
    return [_bytes(array), np.empty(DIGEST_BYTES, np.uint8)]


def _is_whole(rooms: Sequence[np.ndarray], array: np.ndarray) -> bool:
    """Return whether the digest of what has arrived is right; copy what has arrived with its digest to the array."""
    data, digest = rooms if len(rooms) == 2 else (rooms[0][:-DIGEST_BYTES], rooms[0][-DIGEST_BYTES:])
    if not np.array_equal(_digest(data), digest):
        return False
    if len(rooms) == 1:
        np.copyto(_bytes(array), data)
    return True


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks as words, such as "rank 3" and "ranks 0, 1 and 5 others"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" if len(ranks) <= 8 else f"ranks {shown} and {len(ranks) - 8} others"
