"""Shorten what MPI's launchers print, in many lines, when a process has failed, which has mostly said why in one."""

import re
from collections.abc import Iterable, Iterator

# A banner stands between two such lines: of Open MPI, and of MPICH, which puts three lines below it.
_RULE = re.compile(r"(-{60,}|={60,})\s*")
_FIRST = re.compile(r"MPI_ABORT was invoked|prterun |An MPI communication peer|=   BAD TERMINATION")
_BELOW = ("YOUR APPLICATION TERMINATED", "This typically refers to a problem", "Please see the FAQ page")
_BY_US = "application called MPI_Abort"
# They follow a process's own error, or its exit status.
_KNOWN = re.compile(r"MPI_ABORT was invoked|has exited due to process|exited with non-zero status|EXIT CODE: 1\s")
# These are all that is said of a process that was killed.
_KILLED = re.compile(r"process rank (?P<rank>\d+) .*on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)", re.S)
_LOST = re.compile(r"unexpectedly disconnected.*Peer host:\s+(?P<host>\S+)", re.S)
_ENDED = re.compile(r"RUNNING AT (?P<host>\S+)\s.*EXIT CODE: (?P<code>\d+)\s", re.S)


# What Open MPI says in other processes when one has ended: each line has the machine and a number before the stars.
_CLOSED = re.compile(r"\[[^]]*\] \*\*\* An error occurred in Socket closed")
_STARS = re.compile(r"\[[^]]*\] \*\*\*")


def without_banners(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, and one line in place of each banner that tells what no process has told."""
    lost: list[str] = []
    has_told = False
    for line in _shortened_banners(lines, lost):
        yield line
        has_told = has_told or bool(line.strip())
    if not has_told:
        yield from (f"spillgrad: launch: a process on {host} was lost; probably it was killed\n" for host in lost[:1])


def _shortened_banners(lines: Iterable[str], lost: list[str]) -> Iterator[str]:
    block: list[str] = []
    is_closed = False
    for line in (line.replace("\0", "") for line in lines):  # which ends Open MPI's banner
        is_closed = bool(_CLOSED.match(line) or (is_closed and _STARS.match(line)))
        if is_closed:
            continue
        is_rule = _RULE.fullmatch(line) is not None
        if not block:
            if is_rule:
                block = [line]
            elif not line.startswith(_BELOW) and _BY_US not in line:
                yield line
        elif len(block) == 1 and not _FIRST.match(line):  # the program's own rule
            yield block[0]
            block = [line] if is_rule else []
            if not is_rule:
                yield line
        else:
            block.append(line)
            if is_rule:
                yield from _shortened("".join(block), lost)
                block = []
    yield from block


def _shortened(banner: str, lost: list[str]) -> Iterator[str]:
    killed, ended, gone = _KILLED.search(banner), _ENDED.search(banner), _LOST.search(banner)
    if gone:  # its process may have said why
        lost.append(gone["host"])
    elif killed:
        yield f"spillgrad: launch: rank {killed['rank']} on {killed['host']} was ended by signal {killed['signal']}\n"
    elif _KNOWN.search(banner):
        return
    elif ended:
        yield f"spillgrad: launch: a process on {ended['host']} ended with status {ended['code']}\n"
    else:
        yield banner
