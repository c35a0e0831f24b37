"""Count what a rank sent to others, and how long its program stood still for it."""

import dataclasses

# Collectives that are under way at the same time overlap with no more stretches than these.
_STRETCHES_MAX = 64


@dataclasses.dataclass(slots=True)
class CommunicationCounters:
    """What the collectives of a rank came to, in bytes and seconds.

    Parameters
    ----------
    collectives : int
        Number of collectives that have ended.
    sent_bytes : int
        Bytes sent to other ranks.
    received_bytes : int
        Bytes received from other ranks.
    busy_s : float
        Seconds in which at least one collective was under way.
    exposed_s : float
        Seconds in which the program stood still until a collective ended.
    waited_for_s : dict
        Maps a rank to the seconds in which the program stood still for it: its messages came last.
    """

    collectives: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    busy_s: float = 0.0
    exposed_s: float = 0.0
    waited_for_s: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def hidden_s(self) -> float:
        """Seconds in which a collective was under way while the program went on."""
        return max(self.busy_s - self.exposed_s, 0.0)


class CommunicationSum:
    """Adds up collectives in `counters`."""

    def __init__(self, counters: CommunicationCounters | None = None) -> None:
        self.counters = counters or CommunicationCounters()
        # The last stretches of time in which collectives were under way, in their order.
        self._stretches: list[tuple[float, float]] = []

    def add(
        self, ended_s: float, took_s: float, waited_s: float, sent_bytes: int, received_bytes: int,
        slowest: int | None, behind_s: float,
    ) -> None:  # fmt: skip
        """Count a collective that ended at `ended_s`, after those counted before.

        For `waited_s` of the `took_s` seconds, the program stood still. The messages of the rank `slowest` came last,
        and were awaited for `behind_s`.
        """
        counters = self.counters
        counters.collectives += 1
        counters.sent_bytes += sent_bytes
        counters.received_bytes += received_bytes
        counters.exposed_s += waited_s
        if slowest is not None and waited_s:
            counters.waited_for_s[slowest] = counters.waited_for_s.get(slowest, 0.0) + min(waited_s, behind_s)
        began_s = ended_s - took_s
        while self._stretches and self._stretches[-1][1] >= began_s:
            former_s, until_s = self._stretches.pop()
            counters.busy_s -= until_s - former_s
            began_s, ended_s = min(began_s, former_s), max(ended_s, until_s)
        counters.busy_s += ended_s - began_s
        self._stretches.append((began_s, ended_s))
        del self._stretches[:-_STRETCHES_MAX]
