"""The machines that processes are started on, and those that are left when some were lost."""

import dataclasses
import socket
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Lost:
    """A process that was lost, as far as is known: its rank, its machine, and whether that is lost, too."""

    rank: int | None = None
    host: str | None = None
    with_host: bool = False


@dataclasses.dataclass(frozen=True)
class Placement:
    """So many processes, in the order of their ranks on these hosts, each with its slots; None means this machine."""

    processes: int
    hosts: tuple[tuple[str, int], ...] | None = None

    @classmethod
    def of(cls, processes: int, hosts: str | None) -> "Placement":
        """Return the placement of the command line; hosts without a number of slots get equally many."""
        if hosts is None:
            return cls(processes)
        named = hosts.split(",")
        each = -(-processes // len(named))
        pairs = [host.rpartition(":") if host.rpartition(":")[2].isdecimal() else (host, "", each) for host in named]
        return cls(processes, tuple((host, int(slots)) for host, _, slots in pairs))

    @property
    def slots(self) -> str | None:
        """The hosts with their slots, in the words of mpiexec."""
        return None if self.hosts is None else ",".join(f"{host}:{slots}" for host, slots in self.hosts)

    def __str__(self) -> str:
        noun = "process" if self.processes == 1 else "processes"
        where = "" if self.hosts is None else f" on {', '.join(host for host, _ in self.hosts)}"
        return f"{self.processes} {noun}{where}"

    def without(self, lost: Sequence[Lost]) -> "Placement":
        """Return what is left: one process fewer for each that was lost, and no process on a lost machine."""
        processes = self.processes - len(lost)
        if self.hosts is None:
            return Placement(processes)
        slots = dict(self.hosts)
        for each in lost:
            place = self._host_of(each)
            if place is None:  # by another name than the command line's
                continue
            slots[place] = 0 if each.with_host else slots[place] - 1
        left = tuple((host, count) for host, count in slots.items() if count > 0)
        return Placement(max(0, min(processes, sum(count for _, count in left))), left)

    def _host_of(self, lost: Lost) -> str | None:
        names = [host for host, slots in self.hosts or () for _ in range(slots)]
        if lost.rank is not None:
            return names[lost.rank % len(names)]
        return next((name for name in names if lost.host and _is_same_machine(name, lost.host)), None)


def _is_same_machine(one: str, other: str) -> bool:
    return one == other or bool(_addresses(one) & _addresses(other))


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:  # a name that is not known here is its machine's own
        return set()
