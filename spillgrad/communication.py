"""What the processes of a group tell the journals of their stores: which rank a process is, and its collectives.

`spillgrad.distributed` tells, and stores listen. Neither imports the other.
"""

import weakref
from typing import NamedTuple, Protocol

from spillgrad.fork_safe_lock import ForkSafeLock


class Member(NamedTuple):
    """The rank of this process among `ranks` processes.

    The processes of one program share the name `group`, if they have agreed on one. `clock_s` plus a time of
    `time.perf_counter` is the time in seconds since 1970 by the first rank's clock, to within `clock_error_s`.
    """

    rank: int
    ranks: int
    group: str | None = None
    clock_s: float | None = None
    clock_error_s: float | None = None


class Collective(NamedTuple):
    """A collective that has ended just now.

    It took `took_s`, from the call of the program on. For `waited_s` of that, a thread of the program stood still. The
    messages of the rank `slowest` came last, and were awaited for `slowest_s`. All bytes of messages count.
    """

    what: str
    sent_bytes: int
    received_bytes: int
    took_s: float
    waited_s: float
    slowest: int | None
    slowest_s: float


class Listener(Protocol):
    """Whoever records collectives."""

    def note_collective(self, collective: Collective) -> None:
        """Record a collective. Called in the thread that speaks for the process."""


class _Present:
    member: Member | None = None
    # A tuple, which is replaced: the thread that tells goes through it without the lock.
    listeners: "tuple[weakref.ref[Listener], ...]" = ()


_lock = ForkSafeLock()


def join(member: Member) -> None:
    """Set the rank of this process."""
    _Present.member = member


def member() -> Member | None:
    """Return the rank of this process; None if it has not joined others."""
    return _Present.member


def listen(listener: Listener) -> None:
    """Have an object record the collectives from now on, for as long as it lives."""
    with _lock:
        _Present.listeners = (*(each for each in _Present.listeners if each() is not None), weakref.ref(listener))


def tell(collective: Collective) -> None:
    """Have all listeners record a collective."""
    for known in _Present.listeners:
        listener = known()
        if listener is not None:
            listener.note_collective(collective)
