"""The time of collectives that all ranks make alike, computed for one rank: what `simulator` finds for all of them.

Every rank sends as many bytes as it receives, to each other rank in turn. So no card waits for another one, and one
rank's thread, card and computation tell the time of all.
"""

import dataclasses
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spillgrad.distributed.link import Link
from spillgrad.distributed.traffic import Traffic


class Collective(NamedTuple):
    """Exchanges that follow each other; the first begins when the rank has computed for so long."""

    ready_s: float
    exchanges: Iterable[Traffic]


@dataclasses.dataclass
class _Running:
    """A collective under way, and when its present exchange arrives."""

    exchanges: Iterator[Traffic]
    arrives_s: float
    has_ended: bool = False


class Lockstep:
    """One of many ranks that do the same at the same time.

    Parameters
    ----------
    link : Link
        What connects the ranks.
    cores : int
        Cores of a rank. Its messages take one of them from its computation.
    """

    def __init__(self, link: Link, cores: int) -> None:
        self._link, self._left = link, 1 - 1 / cores
        self._now_s = self._computed_s = 0.0
        self._thread_s = self._card_s = 0.0

    def run(self, compute_s: float, collectives: Sequence[Collective]) -> float:
        """Compute, make collectives meanwhile, in their order, and return when all has ended."""
        waiting = list(collectives)[::-1]
        running: list[_Running] = []
        arrivals: list[float] = []
        looks: list[float] = []
        while waiting or running:
            ready_s = self._when(waiting[-1].ready_s) if waiting else math.inf
            arrival_s, look_s = arrivals[0] if arrivals else math.inf, looks[0] if looks else math.inf
            if arrival_s <= min(ready_s, look_s):  # the thread looks when it has sent what it is busy with
                self._go_to(heapq.heappop(arrivals))
                heapq.heappush(looks, max(self._now_s, self._thread_s) + self._link.look_s)
                continue
            if look_s <= ready_s:
                self._go_to(heapq.heappop(looks))
            else:
                self._go_to(ready_s)
                begun = _Running(iter(waiting.pop().exchanges), self._now_s)
                self._go_on(begun, arrivals)  # its headers go before what has arrived for others
                running.append(begun)
            for each in running:  # a look sees all that has arrived
                if each.arrives_s <= self._now_s:
                    self._go_on(each, arrivals)
            running = [each for each in running if not each.has_ended]
        return max(self._now_s, self._when(compute_s))

    def _go_on(self, running: _Running, arrivals: list[float]) -> None:
        """Begin the next exchange, and note when it will have arrived; or note that there is none."""
        traffic = next(running.exchanges, None)
        running.arrives_s = math.inf if traffic is None else self._post(traffic)
        running.has_ended = traffic is None
        if traffic is not None:
            heapq.heappush(arrivals, running.arrives_s)

    def _post(self, traffic: Traffic) -> float:
        """Send messages, and receive as many; return when the last one has arrived."""
        link = self._link
        for messages in traffic:
            count = messages.count
            busy_s = link.busy_s_per_message + messages.nbytes * link.busy_s_per_byte
            takes_s = messages.nbytes / link.bytes_per_s
            began_s = max(self._now_s, self._thread_s)
            self._thread_s = began_s + count * busy_s
            # The card waits for its former messages, for the first of these, or for the thread to hand over the last.
            self._card_s = max(
                self._card_s + count * takes_s,
                began_s + min(1, count) * busy_s + count * takes_s,
                self._thread_s + min(1, count) * takes_s,
            )
        return self._card_s + link.latency_s if traffic else self._now_s

    def _when(self, computed_s: float) -> float:
        """Return when the rank will have computed for so long, if nothing more is sent."""
        left_s = max(0.0, computed_s - self._computed_s)
        beside_s = max(0.0, self._thread_s - self._now_s)  # the thread is busy until then
        if left_s <= beside_s * self._left:
            return self._now_s + (left_s / self._left if left_s else 0.0)
        return self._now_s + beside_s + left_s - beside_s * self._left

    def _go_to(self, time_s: float) -> None:
        time_s = max(time_s, self._now_s)
        busy_s = min(max(0.0, self._thread_s - self._now_s), time_s - self._now_s)
        self._computed_s += time_s - self._now_s - busy_s * (1 - self._left)
        self._now_s = time_s
