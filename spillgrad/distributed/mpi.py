"""Run the protocol over MPI, by mpi4py: one thread makes every call of MPI.

MPI moves bytes only; what is added to what, `collective_steps` says. MPI's own waits keep a core busy, so this thread
looks again and again, and sleeps in between.
"""

import atexit
import collections
import contextlib
import faulthandler
import importlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from spillgrad.bell import Bell
from spillgrad.distributed import collective_steps
from spillgrad.distributed.link import LOOK_S
from spillgrad.distributed.peers import GONE_AFTER_S, LETTER, Departed, Kind, Peers
from spillgrad.distributed.protocol import GroupProtocol
from spillgrad.errors import ArgumentError, DistributedError

# Open MPI 5.0 is reported to lose messages in shared memory now and then, and to lose none by TCP, also within a
# machine: issues 12816 and 12979 of github.com/open-mpi/ompi.
_TRANSPORT = "OMPI_MCA_btl"
_INTERFACES = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude")
# Open MPI sends a large message in pieces of up to 2 GiB once the receiver has agreed to it, and what it says to agree
# waits behind the pieces on their way back. So two ranks of which one began a little later take turns to send, at half
# of the network's speed, until a collective makes them begin together again. Smaller pieces let answers through; within
# a machine, where they take a sixth more time, this does not happen.
_PIECES, _PIECE_BYTES = "OMPI_MCA_btl_tcp_rdma_pipeline_frag_size", 256 << 10
# How long the thread sleeps while messages are under way and the program computes. Where the program waits for them, it
# is LOOK_S. A look takes 0.15 ms from a core that computes, mostly as both then find cold caches.
_LOOK_BESIDE_S = 0.002
# While no messages are under way, the thread sleeps twice as long each time, up to this: MPI may still have to pass on
# what it calls sent, and does so only when it is called.
_LOOK_IDLE_S = 0.05
# How long a process waits for others to say what went wrong, before it ends them.
_LAST_WORDS_S = 1.0
# How long MPI may take to end all processes.
_ABORT_S = 5.0
# Every group has tags of its own. MPI promises tags up to 32767; both implementations have more than 2^20.
_TAGS_OF_GROUP, _MOST_TAGS = 1 << 12, 1 << 20
# Messages between two processes have further ones, by their own tag and direction.
_MESSAGE_TAGS = 1 << 15
_LETTERS_TAG = _MOST_TAGS + 2 * _MESSAGE_TAGS
# How long a process may be silent until the others end, in seconds.
_GONE_AFTER = "SPILLGRAD_GONE_AFTER_S"


class _Message:
    """A message that MPI carries."""

    __slots__ = ("array", "done")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # MPI reads or fills it until the message is done
        self.done = False


class _MpiNetwork:
    """Messages of MPI's world; used in MPI's thread alone."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD.Dup()
        self._messages: list[_Message] = []
        self._requests: list[Any] = []

    @property
    def is_idle(self) -> bool:
        """Whether no message is under way."""
        return not self._requests

    def send(self, rank: int, tag: int, array: np.ndarray) -> _Message:
        array = np.ascontiguousarray(array)
        return self._add(array, self._world.Isend(self._bytes(array), rank, tag))

    def receive(self, rank: int, tag: int, array: np.ndarray) -> _Message:
        return self._add(array, self._world.Irecv(self._bytes(array), rank, tag))

    def letters(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the letters that have arrived, and their senders.

        MPI goes on when it looks for one in vain, so the last look lets it.
        """
        status = self._mpi.Status()
        while self._world.Iprobe(self._mpi.ANY_SOURCE, _LETTERS_TAG, status):
            letter = np.zeros(1, LETTER)
            self._world.Recv(self._bytes(letter), status.source, _LETTERS_TAG)
            yield status.source, letter

    def poll(self) -> None:
        """Mark the messages that are done."""
        done = self._mpi.Request.Testsome(self._requests) if self._requests else None
        if done:
            for place in done:
                self._messages[place].done = True
            left = [place for place, message in enumerate(self._messages) if not message.done]
            self._messages = [self._messages[place] for place in left]
            self._requests = [self._requests[place] for place in left]

    def _add(self, array: np.ndarray, request: Any) -> _Message:
        message = _Message(array)
        self._messages.append(message)
        self._requests.append(request)
        return message

    def _bytes(self, array: np.ndarray) -> list[Any]:
        return [array.view(np.uint8), self._mpi.BYTE]


class MpiWorld:
    """All processes that an MPI launcher started together, and the thread that speaks for this one.

    Raises DistributedError if mpi4py or MPI is missing.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.library = ""
        self.failure: BaseException | None = None  # why MPI did not start, or why the program ends
        self._mpi: Any = None
        self._pid = os.getpid()
        self._work: collections.deque[Callable[[], None]] = collections.deque()
        self._bell = Bell()
        self._is_ending = False
        self._groups: list[GroupProtocol] = []
        self._group_count = 0
        self._channels: dict[tuple[int, int, int], GroupProtocol] = {}
        self._failed: BaseException | None = None  # what has failed in a group of this rank, or of another one
        self._gone_after_s = _gone_after_s(os.environ)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spillgrad-mpi", daemon=True)
        self._thread.start()
        self._started.wait()
        if self.failure is not None:
            raise DistributedError(
                f"init_process_group: MPI could not be started ({self.failure}); install it with pip install "
                "'spillgrad[mpi]'"
            ) from self.failure

    def group(self, ranks: Sequence[int], timeout_s: float) -> GroupProtocol | None:
        """Return the protocol of a new group; None if this process is not in it. All processes call it in one order."""
        first = self._group_count * _TAGS_OF_GROUP
        if first >= _MOST_TAGS:
            raise DistributedError(f"new_group: got more than {self._group_count} groups; use some of them again")
        self._group_count += 1
        if self.rank not in ranks:
            return None
        tags = range(first, first + _TAGS_OF_GROUP)
        return self._add(GroupProtocol(list(ranks).index(self.rank), ranks, self._network, tags, timeout_s))

    def channel(self, source: int, target: int, tag: int) -> GroupProtocol:
        """Return the protocol by which one process sends to another the messages with a tag."""
        wanted = (source, target, tag)
        if not 0 <= tag < _MESSAGE_TAGS:
            raise DistributedError(f"message: got tag {tag}; give one from 0 to {_MESSAGE_TAGS - 1}")
        if wanted not in self._channels:
            place = _MOST_TAGS + tag * 2 + (source < target)
            rank = wanted.index(self.rank)
            timeout_s = self._groups[0].timeout_s
            made = GroupProtocol(rank, (source, target), self._network, range(place, place + 1), timeout_s)
            self._channels[wanted] = self._add(made)
        return self._channels[wanted]

    def _add(self, group: GroupProtocol) -> GroupProtocol:
        self._groups.append(group)
        if self._failed is not None:  # after the group is on the list, which the thread goes through when it sets this
            group.fail(self._failed)
        return group

    def forget(self, group: GroupProtocol) -> None:
        """Have nothing more to do with a group, except with the first one, through which processes end together."""

        def remove() -> None:
            group.fail(DistributedError("group: got one that destroy_process_group has ended; make another one"))
            self._groups.remove(group)

        if group is not self._groups[0]:
            self._have_done(remove)

    def wake(self) -> None:
        """Have the thread look at what was begun. Raises DistributedError in a forked process, which has no thread."""
        if os.getpid() != self._pid:
            raise DistributedError("distributed: got a collective in a forked process; call it in its parent")
        self._bell.ring()

    def leave(self) -> None:
        """Wait for the other processes at the program's end, and end MPI."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        if not self._groups:
            self._end()
            return
        world = self._groups[0]
        if world.failure is None:
            self._have_done(self._say_farewell)
            last = world.begin("the end of the program", "", collective_steps.barrier(), is_quiet=True)
            self.wake()
            with contextlib.suppress(DistributedError):  # others failed, and say so
                last.wait()
        if world.failure is None:
            self._end()
        else:
            time.sleep(_LAST_WORDS_S)
            self.abort()

    def abort(self) -> None:
        """End all processes at once, as this one cannot go on."""
        sys.stdout.flush()
        sys.stderr.flush()
        if os.getpid() == self._pid and self._thread.is_alive():
            self._have_done(self._abort)
            self._thread.join()

    def _abort(self) -> None:
        # If MPI hangs, its launcher ends the others when this process is gone. While Python ends, no thread can start
        # that waits for that, but this one, which is none of Python's.
        faulthandler.dump_traceback_later(_ABORT_S, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        self._mpi.COMM_WORLD.Abort(1)

    def _have_done(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._bell.ring()

    def _end(self) -> None:
        self._is_ending = True
        self._bell.ring()
        self._thread.join()

    def _run(self) -> None:
        try:
            settings = importlib.import_module("mpi4py").rc
            settings.initialize = settings.finalize = False
            _choose_transport(os.environ)
            self._mpi = mpi = importlib.import_module("mpi4py.MPI")
            mpi.Init_thread(mpi.THREAD_SERIALIZED)
            self.rank, self.size = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
            self.library = " ".join(re.split(r"[,\n]", mpi.Get_library_version())[0].strip("\0").split())
            self._network = _MpiNetwork(mpi)
        except (ImportError, RuntimeError, OSError) as error:
            self.failure = error
            return
        finally:
            self._started.set()
        self._peers = Peers(self.rank, self.size, socket.gethostname(), time.monotonic(), self._gone_after_s)
        sleep_s, looked_s = LOOK_S, 0.0
        while True:
            is_idle = self._network.is_idle and all(group.is_idle for group in self._groups)
            if is_idle:
                sleep_s = min(2 * sleep_s, _LOOK_IDLE_S)
            else:
                sleep_s = LOOK_S if any(group.is_awaited for group in self._groups) else _LOOK_BESIDE_S
            self._bell.wait(sleep_s)
            if self._is_ending:
                break
            try:
                while self._work:
                    self._work.popleft()()
                now_s = time.monotonic()
                if is_idle or now_s - looked_s >= _LOOK_IDLE_S:
                    looked_s = now_s
                    self._read_letters(now_s)
                self._network.poll()
                for group in list(self._groups):
                    group.advance()
                    if group.failure is not None and self._failed is None:
                        self._tell(Kind.FAILED, self._peers.failed(group.failure))
                        self._fail(group.failure)
            except Departed as error:
                self._end_without(error)
            except Exception as error:  # MPI's own: whoever waits must know
                self._fail(error)
        mpi.Finalize()

    def _read_letters(self, now_s: float) -> None:
        """Hear the other ranks, and tell the one that watches this one that it is there."""
        peers = self._peers
        for source, letter in self._network.letters():
            peers.hear(source, letter, now_s)
        if peers.failure is not None and self._failed is None:
            self._fail(peers.failure)
        if peers.left:
            for group in list(self._groups):
                group.require_present(peers.left)
        _, did = max((group.last for group in self._groups), default=(0.0, ""))
        self._send_letters(peers.letters(now_s, did))

    def _say_farewell(self) -> None:
        for group in list(self._groups):  # headers of what was begun go first: MPI keeps the order
            group.advance()
        self._tell(Kind.LEFT)

    def _tell(self, kind: Kind, text: str = "") -> None:
        self._send_letters(self._peers.to_all(kind, text))

    def _send_letters(self, letters: Sequence[tuple[int, np.ndarray]]) -> None:
        for rank, letter in letters:
            self._network.send(rank, _LETTERS_TAG, letter)

    def _fail(self, error: BaseException) -> None:
        """End what is under way in all groups, and what is begun later: the others have ended it, too."""
        self._failed = self._failed or error
        for group in list(self._groups):
            group.fail(error)

    def _end_without(self, error: Departed) -> None:
        """Say that a process is gone, and end the others at once: their programs may wait for it, or compute long."""
        print(f"spillgrad: {error}", file=sys.stderr, flush=True)
        self._abort()


def _gone_after_s(environment: Mapping[str, str]) -> float:
    """Return how long a process may be silent. Raises ArgumentError for what is no time."""
    given = environment.get(_GONE_AFTER, str(GONE_AFTER_S))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ArgumentError(f"{_GONE_AFTER}: got {given!r}; give seconds, such as 60, or inf for no limit")
    return seconds


def _choose_transport(environment: MutableMapping[str, str]) -> None:
    """Have Open MPI use TCP, and the loopback alone if all processes are on this machine; leave what a user chose."""
    is_one_machine = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment.get("OMPI_COMM_WORLD_SIZE")
    if not is_one_machine:
        environment.setdefault(_PIECES, str(_PIECE_BYTES))
    if _TRANSPORT in environment:
        return
    environment[_TRANSPORT] = "self,tcp"
    if is_one_machine and not any(name in environment for name in _INTERFACES):
        environment[_INTERFACES[0]] = "lo"


class _Started:
    """The processes of this program, once they were asked for. MPI starts once in the life of a process."""

    world: MpiWorld | None = None


def has_started() -> bool:
    """Return whether this process uses MPI."""
    return _Started.world is not None


def world() -> MpiWorld:
    """Return all processes that the launcher started; start MPI if need be."""
    if _Started.world is None:
        _Started.world = started = MpiWorld()
        former = sys.excepthook

        def fail(*raised: Any) -> None:
            former(*raised)
            started.failure = raised[1]

        sys.excepthook = fail
        atexit.register(lambda: started.leave() if started.failure is None else started.abort())
    return _Started.world
