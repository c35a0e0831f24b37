"""Run the protocol of many ranks in this process, over a simulated network, and tell how long it would take.

Each rank is a host with a network card, which sends and receives at once. A card sends its messages one after the
other, in the order in which they were given to it. It receives them one after the other, in the order in which their
first bytes arrive; a switch between the cards keeps what a card cannot receive yet. Between first byte sent and first
byte received lies the latency. Before a message is sent, the rank's thread is busy with it. A rank notices the end of
an exchange a look later.
"""

import collections
import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.distributed.link import Link
from spillgrad.distributed.protocol import Call, Exchange, GroupProtocol, Steps

_TAGS = range(1 << 12)


class _End:
    """One end of a message."""

    __slots__ = ("array", "done")

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.done = array, False


class _Port:
    """What one rank sees of the network."""

    def __init__(self, simulation: "Simulation", rank: int) -> None:
        self._simulation, self._rank = simulation, rank

    def send(self, rank: int, tag: int, array: np.ndarray) -> _End:
        return self._simulation.send(self._rank, rank, tag, array)

    def receive(self, rank: int, tag: int, array: np.ndarray) -> _End:
        return self._simulation.receive(rank, self._rank, tag, array)


class Simulation:
    """A group of ranks on a simulated network, with a clock of its own.

    Parameters
    ----------
    size : int
        Number of ranks.
    link : Link
        What connects them.
    """

    def __init__(self, size: int, link: Link) -> None:
        self.size, self.link = size, link
        self.now_s = 0.0
        self.sent_messages, self.sent_bytes = [0] * size, [0] * size
        self.protocols = [
            GroupProtocol(rank, range(size), _Port(self, rank), _TAGS, float("inf"), lambda: self.now_s)
            for rank in range(size)
        ]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        # Until when a rank's thread works, and its card sends and receives what it has been given.
        self._thread_s, self._out_s, self._in_s = [0.0] * size, [0.0] * size, [0.0] * size
        # Ends that wait for each other, by sender, receiver and tag.
        self._arrived: dict[Any, collections.deque[_End]] = collections.defaultdict(collections.deque)
        self._awaited: dict[Any, collections.deque[_End]] = collections.defaultdict(collections.deque)
        self._open: collections.Counter[tuple[int, int]] = collections.Counter()  # messages by rank and tag

    def begin(self, at_s: float, what: str, steps: Callable[[int], Steps]) -> list[Call]:
        """Have all ranks begin a collective at a time; return their calls, which exist once `run` has come to it."""
        calls: list[Call] = []

        def start(rank: int) -> None:
            calls.append(self.protocols[rank].begin(what, "", steps(rank)))
            self.protocols[rank].advance()

        for rank in range(self.size):
            self._at(at_s, lambda rank=rank: start(rank))  # type: ignore[misc]
        return calls

    def run(self) -> float:
        """Let all happen that is to happen, and return the time then."""
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        return self.now_s

    def send(self, source: int, target: int, tag: int, array: np.ndarray) -> _End:
        """Give a message to the card of its sender."""
        end = _End(array)
        self._open[source, tag] += 1
        self.sent_messages[source] += 1
        self.sent_bytes[source] += array.nbytes
        link, takes_s = self.link, array.nbytes / self.link.bytes_per_s
        busy_s = link.busy_s_per_message + array.nbytes * link.busy_s_per_byte
        self._thread_s[source] = max(self.now_s, self._thread_s[source]) + busy_s
        begins_s = max(self._thread_s[source], self._out_s[source])
        self._out_s[source] = begins_s + takes_s
        self._at(begins_s + takes_s, lambda: self._end(end, source, tag))
        self._at(begins_s + link.latency_s, lambda: self._arrive(end, source, target, tag, takes_s))
        return end

    def receive(self, source: int, target: int, tag: int, array: np.ndarray) -> _End:
        """Wait for a message."""
        end = _End(array)
        self._open[target, tag] += 1
        self._awaited[source, target, tag].append(end)
        self._match((source, target, tag))
        return end

    def _arrive(self, end: _End, source: int, target: int, tag: int, takes_s: float) -> None:
        """Receive a message whose first byte is there, once the card has received those before."""
        ends_s = max(self.now_s, self._in_s[target]) + takes_s
        self._in_s[target] = ends_s
        key = source, target, tag

        def deliver() -> None:
            self._arrived[key].append(end)
            self._match(key)

        self._at(ends_s, deliver)

    def _match(self, key: tuple[int, int, int]) -> None:
        """Hand over a message that has arrived and is awaited. Messages with one key keep their order."""
        if self._arrived[key] and self._awaited[key]:
            sent, received = self._arrived[key].popleft(), self._awaited[key].popleft()
            received.array.view(np.uint8)[...] = sent.array.view(np.uint8)
            self._end(received, key[1], key[2])

    def _end(self, end: _End, rank: int, tag: int) -> None:
        end.done = True
        self._open[rank, tag] -= 1
        if not self._open[rank, tag]:
            self._at(max(self.now_s, self._thread_s[rank]) + self.link.look_s, self.protocols[rank].advance)

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, act))


def run_together(steps: Sequence[Steps]) -> list[Any]:
    """Run the steps of a collective of all ranks, exchange by exchange, and return their results.

    There are no headers, digests or times. So a thousand ranks, which send a million messages in each exchange, take
    seconds.
    """
    results: list[Any] = [None] * len(steps)
    while True:
        exchanges: list[Exchange] = []
        for rank, of_rank in enumerate(steps):
            try:
                exchanges.append(next(of_rank))
            except StopIteration as stop:
                results[rank] = stop.value
        if not exchanges:
            return results
        for rank, mine in enumerate(exchanges):
            for other, place in enumerate(mine.receive):
                if place.nbytes:
                    np.copyto(place, exchanges[other].send[rank])
