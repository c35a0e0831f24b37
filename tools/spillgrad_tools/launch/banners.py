"""Shorten what MPI's launchers print, in many lines, when a process has failed, which has mostly said why in one."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from spillgrad_tools.launch.placement import Lost

# How lines of this command begin.
OURS = "spillgrad: launch: "
# A banner stands between two such lines: of Open MPI, and of MPICH, which puts three lines below it.
_RULE = re.compile(r"(-{60,}|={60,})\s*")
_FIRST = re.compile(r"MPI_ABORT was invoked|prterun |PRTE has lost|An MPI communication peer|=   BAD TERMINATION")
_EXIT_STRING = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING:"
_BELOW = (_EXIT_STRING, "This typically refers to a problem", "Please see the FAQ page")
# Lines that say nothing new: of our own end, and that more processes have printed the same.
_ASIDE = re.compile(r"application called MPI_Abort|^\d+ more process(es)? ha(s|ve) sent help message")
# They follow a process's own error, or its exit status.
_KNOWN = re.compile(r"MPI_ABORT was invoked|has exited due to process|exited with non-zero status")
# These are all that is said of a process that was killed.
_KILLED = re.compile(r"process rank (?P<rank>\d+) .*on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)", re.S)
_HOST_LOST = re.compile(r"PRTE has lost communication.*Remote daemon:\s[^\n]* on node (?P<host>\S+)", re.S)
_LOST = re.compile(r"unexpectedly disconnected.*Peer host:\s+(?P<host>\S+)", re.S)
_ENDED = re.compile(r"RUNNING AT (?P<host>\S+)\s.*EXIT CODE: (?P<code>\d+)\s", re.S)
# MPICH says below its banner whether a signal has ended the process.
_SIGNAL = re.compile(rf"{_EXIT_STRING} .*\(signal (?P<signal>\d+)\)")
# What the process says that watches one which is gone (`spillgrad/distributed/peers.py`).
_GONE = re.compile(r"spillgrad: rank (?P<rank>\d+) on (?P<host>.+) is gone: ")

# What Open MPI says in other processes when one has ended: each line has the machine and a number before the stars.
_CLOSED = re.compile(r"\[[^]]*\] \*\*\* An error occurred in Socket closed")
_STARS = re.compile(r"\[[^]]*\] \*\*\*")


@dataclasses.dataclass
class Seen:
    """What lines have told: processes that were lost, and those of whom it is only known that others miss them.

    A process whose program has failed is missed, too, by those that do not know it yet.
    """

    lost: list[Lost] = dataclasses.field(default_factory=list)
    missed: list[Lost] = dataclasses.field(default_factory=list)


def without_banners(lines: Iterable[str], seen: Seen | None = None) -> Iterator[str]:
    """Yield lines, and one line in place of each banner that tells what no process has told; note what is `seen`."""
    seen = Seen() if seen is None else seen
    block: list[str] = []
    is_closed = False
    ended: tuple[str, str] | None = None  # the host and the status in MPICH's banner, until the line below it has come
    for line in (line.replace("\0", "") for line in lines):  # which ends Open MPI's banner
        if _CLOSED.match(line):
            seen.missed.append(Lost())
        is_closed = bool(_CLOSED.match(line) or (is_closed and _STARS.match(line)))
        if is_closed:
            continue
        if gone := _GONE.match(line):
            seen.lost.append(Lost(int(gone["rank"]), gone["host"], with_host=True))
        is_rule = _RULE.fullmatch(line) is not None
        if not block:
            if ended and line.startswith(_EXIT_STRING):
                yield from _ended(*ended, _SIGNAL.match(line), seen)
                ended = None
            elif is_rule:
                block = [line]
            elif not line.startswith(_BELOW) and not _ASIDE.search(line):
                yield line
        elif len(block) == 1 and not _FIRST.match(line):  # the program's own rule
            yield block[0]
            block = [line] if is_rule else []
            if not is_rule:
                yield line
        else:
            block.append(line)
            if is_rule:
                banner = "".join(block)
                block = []
                if found := _ENDED.search(banner):
                    ended = found["host"], found["code"]
                else:
                    yield from _shortened(banner, seen)
    if ended:
        yield from _ended(*ended, None, seen)
    yield from block


def _ended(host: str, status: str, killed: re.Match[str] | None, seen: Seen) -> Iterator[str]:
    """Yield the line for MPICH's banner: a process was ended by a signal, or has ended with a status."""
    if killed:
        seen.lost.append(Lost(host=host))
        yield f"{OURS}a process on {host} was ended by signal {killed['signal']}\n"
    elif status != "1":  # that of a process which has said why
        yield f"{OURS}a process on {host} ended with status {status}\n"


def _shortened(banner: str, seen: Seen) -> Iterator[str]:
    killed, host, gone = _KILLED.search(banner), _HOST_LOST.search(banner), _LOST.search(banner)
    if gone:  # its process may have said why
        seen.missed.append(Lost(host=gone["host"]))
    elif killed:
        seen.lost.append(Lost(int(killed["rank"]), killed["host"]))
        yield f"{OURS}rank {killed['rank']} on {killed['host']} was ended by signal {killed['signal']}\n"
    elif host:
        seen.lost.append(Lost(host=host["host"], with_host=True))
        yield f"{OURS}{host['host']} cannot be reached any more\n"
    elif not _KNOWN.search(banner):
        yield banner
