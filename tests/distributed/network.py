"""A network inside this process: its messages arrive in an order that a seed decides, and may be damaged."""

import collections
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.distributed.collective_steps import cut
from spillgrad.distributed.protocol import Call, GroupProtocol, Steps
from spillgrad.distributed.wires import EXACT, Wire
from spillgrad.nn.parallel.gradient_sums import Former, reduce_gradients


class Sent:
    """One end of a message."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.done = array, False


class Network:
    """All ranks' messages. A pair of ends with the same ranks and tag is matched in the order of their calls."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.sends: dict[Any, collections.deque[Sent]] = collections.defaultdict(collections.deque)
        self.receives: dict[Any, collections.deque[Sent]] = collections.defaultdict(collections.deque)
        self.sent_bytes: collections.Counter[int] = collections.Counter()
        self.damage: Callable[[int, int, np.ndarray], None] = lambda source, target, array: None

    def end(self, rank: int) -> "End":
        return End(self, rank)

    def deliver(self) -> bool:
        """Deliver one message, any; return False if there is none."""
        ready = [key for key, waiting in self.sends.items() if waiting and self.receives[key]]
        if not ready:
            return False
        key = self.random.choice(ready)
        sent, received = self.sends[key].popleft(), self.receives[key].popleft()
        assert sent.array.nbytes == received.array.nbytes
        received.array.view(np.uint8)[...] = sent.array.view(np.uint8)
        self.damage(key[0], key[1], received.array.view(np.uint8))
        self.sent_bytes[key[0]] += sent.array.nbytes
        sent.done = received.done = True
        return True


class End:
    """What one rank sees of the network."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank = network, rank

    def send(self, rank: int, tag: int, array: np.ndarray) -> Sent:
        self.network.sends[self.rank, rank, tag].append(sent := Sent(array))
        return sent

    def receive(self, rank: int, tag: int, array: np.ndarray) -> Sent:
        self.network.receives[rank, self.rank, tag].append(received := Sent(array))
        return received


def protocols(network: Network, size: int, timeout_s: float = 60) -> list[GroupProtocol]:
    return [GroupProtocol(rank, range(size), network.end(rank), range(64), timeout_s) for rank in range(size)]


def run(network: Network, ranks: Sequence[GroupProtocol]) -> None:
    """Let everything happen that can happen."""
    while True:
        for protocol in network.random.sample(list(ranks), len(ranks)):
            protocol.advance()
        if not network.deliver():
            for protocol in ranks:
                protocol.advance()
            if not any(network.sends[key] and network.receives[key] for key in list(network.sends)):
                return


def call_all(ranks: Sequence[GroupProtocol], what: str, steps: Callable[[int], Steps]) -> list[Call]:
    return [protocol.begin(what, "test", steps(rank)) for rank, protocol in enumerate(ranks)]


def gradient_sums(
    rank: int, size: int, flat: np.ndarray, parts: Sequence[slice], present: np.ndarray,
    before: Sequence[Former | None], divisor: float, wire: Wire = EXACT,
) -> Steps:  # fmt: skip
    """Add up gradients as `DistributedDataParallel` does."""
    runs = cut(flat.size, size)
    own = flat[runs[rank]]
    total = own if wire.is_exact else np.empty_like(own)
    return reduce_gradients(rank, flat, runs, total, parts, present, before, divisor, wire)
