"""Groups of processes, which a program shares with those that a launcher started beside it, or is alone in.

Source: torch.distributed.distributed_c10d.
"""

import datetime
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from spillgrad import communication, user_line
from spillgrad.distributed.mpi import world as launched_world
from spillgrad.distributed.protocol import Call, GroupProtocol, Steps, alone
from spillgrad.errors import ArgumentError, DistributedError
from spillgrad_kernels.threads.dispatch import get_num_threads, set_num_threads

__all__ = [
    "GroupMember", "ProcessGroup", "ReduceOp", "Work", "destroy_process_group", "get_backend", "get_global_rank",
    "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size", "group", "init_process_group",
    "is_available", "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available",
    "is_torchelastic_launched", "new_group",
]  # fmt: skip

_BACKENDS = ("gloo", "mpi", "nccl", "ucc")
# What MPI's launchers set in the environment of the processes that they start: the number of these processes.
_MPI_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_LAUNCHERS = ("WORLD_SIZE", *_MPI_LAUNCHERS)
# How many of them are on this machine.
_BESIDE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_TIMEOUT_S = 1800.0  # PyTorch's for all backends but one


class ReduceOp(Enum):
    """The ways to reduce the tensors of several processes; those of one process stay as they are."""

    SUM = "SUM"
    AVG = "AVG"
    PRODUCT = "PRODUCT"
    MIN = "MIN"
    MAX = "MAX"
    BAND = "BAND"
    BOR = "BOR"
    BXOR = "BXOR"


class Work:
    """A collective that was asked for with `async_op`.

    Parameters
    ----------
    call : Call, optional
        What is under way; a collective of one process has ended.
    finish : callable, optional
        What `wait` does with the result: it copies arrays into tensors.
    """

    def __init__(self, call: Call | None = None, finish: Callable[[Any], Any] | None = None) -> None:
        self._call, self._finish = call, finish

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the collective has ended; only then are its results in the tensors.

        Parameters
        ----------
        timeout : timedelta, optional
            How long to wait at most; by default, as long as it takes.

        Returns
        -------
        bool
            Always True.

        Raises
        ------
        DistributedError
            If the collective failed, or has not ended in that time.
        """
        self._result(timeout)
        return True

    def _result(self, timeout: Any = None) -> Any:
        call, finish = self._call, self._finish
        result = None
        if call is not None:
            result = call.wait(None if timeout is None else _seconds(timeout))
            self._call = None
        self._finish = None
        return result if finish is None else finish(result)

    def is_completed(self) -> bool:
        """Return whether the collective has ended.

        Returns
        -------
        bool
            After it is True, its results are in the tensors, and `wait` returns at once.
        """
        if self._call is not None and not self._call.is_done:
            return False
        if self.is_success():
            self._result()
        return True

    def is_success(self) -> bool:
        """Return whether the collective has ended without an error.

        Returns
        -------
        bool
            False while it is under way, too.
        """
        return self._call is None or (self._call.is_done and self._call.error is None)


class ProcessGroup:
    """A group of processes.

    Parameters
    ----------
    backend : str
        Name that `get_backend` returns.
    ranks : sequence of int, default (0,)
        The numbers of its processes among all.
    protocol : GroupProtocol, optional
        Speaks to the other processes; None if there are none.
    """

    def __init__(self, backend: str, ranks: Sequence[int] = (0,), protocol: GroupProtocol | None = None) -> None:
        self.backend = backend
        self.ranks = tuple(ranks)
        self._protocol = protocol

    def rank(self) -> int:
        """Return the number of this process in the group.

        Returns
        -------
        int
            From 0 on.
        """
        return 0 if self._protocol is None else self._protocol.rank

    def size(self) -> int:
        """Return the number of processes in the group.

        Returns
        -------
        int
            At least 1.
        """
        return len(self.ranks)

    def name(self) -> str:
        """Return the name of the group's backend.

        Returns
        -------
        str
            Such as "gloo".
        """
        return self.backend


def begin(group: ProcessGroup, what: str, steps: Steps, finish: Callable[[Any], Any] | None = None) -> Work:
    """Begin a collective that `what` describes in the same words on all ranks; the user's line called it."""
    if group._protocol is None:
        result = alone(steps)
        return Work(None, None if finish is None else lambda _: finish(result))
    call = group._protocol.begin(what, user_line.place(), steps)
    launched_world().wake()
    return Work(call, finish)


def run(group: ProcessGroup, what: str, steps: Steps) -> Any:
    """Run a collective, and return its result. Raises DistributedError if it fails."""
    return begin(group, what, steps, lambda result: result)._result()


def begin_message(
    group: ProcessGroup, source: int, target: int, tag: int, what: str, steps: Steps, finish: Callable[[Any], Any]
) -> Work:
    """Begin to send or receive between two different processes, which have these numbers in the group."""
    world = launched_world()
    call = world.channel(group.ranks[source], group.ranks[target], tag).begin(what, user_line.place(), steps)
    world.wake()
    return Work(call, finish)


def _seconds(timeout: Any) -> float:
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)


class _Default:
    """The group of all processes, once `init_process_group` has made it."""

    group: ProcessGroup | None = None


class group:
    """PyTorch's names of the group of all processes, and of a group that this process is not in."""

    WORLD: ProcessGroup | None = None
    NON_GROUP_MEMBER = object()


GroupMember = group


def is_available() -> bool:
    """Return whether this package works.

    Returns
    -------
    bool
        Always True: without MPI, a process works as a group of its own.
    """
    return True


def is_initialized() -> bool:
    """Return whether `init_process_group` was called.

    Returns
    -------
    bool
        False after `destroy_process_group`.
    """
    return _Default.group is not None


def is_mpi_available() -> bool:
    """Return whether several processes can work together: whether mpi4py is installed.

    Returns
    -------
    bool
        It carries what PyTorch's other backends carry there.
    """
    return importlib.util.find_spec("mpi4py") is not None


def is_gloo_available() -> bool:
    """Return whether PyTorch's backend is there.

    Returns
    -------
    bool
        Always False: MPI is the only one.
    """
    return False


is_nccl_available = is_gloo_available


def is_torchelastic_launched() -> bool:
    """Return whether ``torchrun`` started this process.

    Returns
    -------
    bool
        True if the environment has ``TORCHELASTIC_RUN_ID``.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: Any = None, world_size: int = -1,
    rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None, device_id: Any = None,
) -> None:  # fmt: skip
    """Make the group of all processes that an MPI launcher started: of this process alone, without a launcher.

    Parameters
    ----------
    backend : str, optional
        "gloo", "mpi", "nccl" or "ucc", a name that is kept for `get_backend`; "gloo", by default. MPI carries all.
    init_method : str, optional
        How processes find each other; "env://", by default, reads the environment. MPI's launcher knows it.
    timeout : timedelta, optional
        How long a collective may take until it raises; 30 minutes, by default.
    world_size : int, default -1
        Number of processes; -1 takes what the environment says.
    rank : int, default -1
        Number of this process; -1 takes what the environment says.
    store : object, optional
        If it is given, the environment need not be complete.
    group_name : str, default ""
        Accepted, as in PyTorch; it changes nothing.
    pg_options : object, optional
        Accepted, as in PyTorch; it changes nothing.
    device_id : device, optional
        Accepted, as in PyTorch; it changes nothing.

    Raises
    ------
    DistributedError
        For several processes that no MPI launcher started, if mpi4py is missing or uses another MPI than the launcher,
        if the environment of "env://" is not complete, and if the group was made before.
    ArgumentError
        For an unknown backend.
    """
    if is_initialized():
        raise DistributedError("init_process_group: trying to initialize the default process group twice!")
    named = "gloo" if backend is None else str(backend).lower()
    if not {part.rpartition(":")[2] for part in named.split(",")} <= {*_BACKENDS}:
        raise ArgumentError(f"init_process_group: got backend {backend!r}; wanted one of {', '.join(_BACKENDS)}")
    if is_launched():
        _Default.group = group.WORLD = _of_launched(named, launched(_MPI_LAUNCHERS), world_size, rank, timeout)
        return
    size = max(world_size, launched(), rank + 1)
    if size > 1:
        raise DistributedError(
            f"init_process_group: got {size} processes; MPI starts those: use spillgrad launch -n {size} program.py, "
            f"or mpiexec -n {size} python program.py, in place of torchrun"
        )
    if store is None and named != "mpi" and (init_method or "env://").startswith("env://"):
        for variable, given in (("RANK", rank), ("WORLD_SIZE", world_size)):
            if given == -1 and variable not in os.environ:
                raise DistributedError(
                    f"init_process_group: Error initializing torch.distributed using env:// rendezvous: environment "
                    f"variable {variable} expected, but not set; give rank=0 and world_size=1"
                )
    _Default.group = group.WORLD = ProcessGroup(named)


def is_under_mpi() -> bool:
    """Return whether an MPI launcher started this process, alone or with others."""
    return any(name in os.environ for name in _MPI_LAUNCHERS)


def is_launched() -> bool:
    """Return whether an MPI launcher started this process and others."""
    return launched(_MPI_LAUNCHERS) > 1


def launched(variables: Iterable[str] = _LAUNCHERS) -> int:
    """Return how many processes a launcher, by default any, says that it started."""
    return max((int(os.environ[name]) for name in variables if os.environ.get(name, "").isdecimal()), default=1)


def _of_launched(backend: str, count: int, world_size: int, rank: int, timeout: Any) -> ProcessGroup:
    world = launched_world()
    if world.size != count:
        raise DistributedError(
            f"init_process_group: the launcher started {count} processes, but mpi4py uses {world.library}, which "
            f"knows of {world.size}; start the program with the mpiexec of that MPI"
        )
    for what, given, found in (("world_size", world_size, world.size), ("rank", rank, world.rank)):
        if given not in (-1, found):
            raise DistributedError(f"init_process_group: got {what}={given}; the launcher says {found}: leave it out")
    _share_cores()
    communication.join(communication.Member(world.rank, world.size))
    ranks = range(world.size)
    return ProcessGroup(backend, ranks, world.group(ranks, _TIMEOUT_S if timeout is None else _seconds(timeout)))


def _share_cores() -> None:
    """Use this process's share of the machine's cores, unless the program has chosen a number of threads."""
    cores = len(os.sched_getaffinity(0))
    if get_num_threads() == cores == os.cpu_count():  # the launcher has not bound it to some of them
        set_num_threads(max(1, cores // launched(_BESIDE)))


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Forget a group.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; that of all processes, by default.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    present = member(group)
    if present._protocol is not None:
        launched_world().forget(present._protocol)
    if present is _Default.group:
        _Default.group = GroupMember.WORLD = None


def member(group: Any = None) -> ProcessGroup:
    """Return a group, by default that of all processes. Raises DistributedError before `init_process_group`."""
    if group is None:
        if _Default.group is None:
            raise DistributedError(
                "Default process group has not been initialized, please make sure to call init_process_group."
            )
        return _Default.group
    if group is GroupMember.NON_GROUP_MEMBER:
        raise DistributedError("group: got one that this process is not in; only its members call its collectives")
    if not isinstance(group, ProcessGroup):
        raise DistributedError(f"group: got {type(group).__name__}; wanted a group of new_group() or None")
    return group


def get_rank(group: ProcessGroup | None = None) -> int:
    """Return the number of this process in a group.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; that of all processes, by default.

    Returns
    -------
    int
        From 0 on; -1 for a group that this process is not in.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    return -1 if group is GroupMember.NON_GROUP_MEMBER else member(group).rank()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of processes in a group.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; that of all processes, by default.

    Returns
    -------
    int
        At least 1; -1 for a group that this process is not in.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    return -1 if group is GroupMember.NON_GROUP_MEMBER else member(group).size()


def get_backend(group: ProcessGroup | None = None) -> str:
    """Return the name of a group's backend.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; that of all processes, by default.

    Returns
    -------
    str
        What `init_process_group` or `new_group` was given; "gloo", if nothing.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    return member(group).backend


def new_group(
    ranks: Iterable[int] | None = None, timeout: Any = None, backend: str | None = None, **options: Any
) -> Any:
    """Return a new group of processes; all processes call this, in the same order.

    Parameters
    ----------
    ranks : iterable of int, optional
        Numbers of the processes; all, by default.
    timeout : timedelta, optional
        How long a collective may take until it raises; 30 minutes, by default.
    backend : str, optional
        Name that `get_backend` returns; that of the group of all processes, by default.
    **options : object
        PyTorch's other options, which change nothing.

    Returns
    -------
    ProcessGroup
        Or ``GroupMember.NON_GROUP_MEMBER``, if this process is not among `ranks`.

    Raises
    ------
    DistributedError
        Before `init_process_group`, and for processes that do not exist.
    """
    world = member()
    wanted = list(world.ranks) if ranks is None else sorted({*ranks})
    if not {*wanted} <= {*world.ranks}:
        raise DistributedError(f"new_group: got ranks {wanted}; there are {world.size()} processes, from 0 on")
    protocol = None
    if world.size() > 1:
        protocol = launched_world().group(wanted, _TIMEOUT_S if timeout is None else _seconds(timeout))
    if world.ranks[world.rank()] not in wanted:
        return GroupMember.NON_GROUP_MEMBER
    return ProcessGroup(world.backend if backend is None else backend, wanted, protocol)


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """Return the numbers of a group's processes in the group of all.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; that of all processes, by default.

    Returns
    -------
    list of int
        In the order of their numbers in the group.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    return list(member(group).ranks)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Return the number of a process among all processes.

    Parameters
    ----------
    group : ProcessGroup
        The group.
    group_rank : int
        Its number in the group.

    Returns
    -------
    int
        Its number among all.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such process.
    """
    return member(group).ranks[require_rank("get_global_rank", group_rank, group)]


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Return the number of a process in a group.

    Parameters
    ----------
    group : ProcessGroup
        The group.
    global_rank : int
        Its number among all processes.

    Returns
    -------
    int
        Its number in the group.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if the process is not in the group.
    """
    return in_group("get_group_rank", global_rank, group)


def in_group(name: str, rank: int, group: Any = None) -> int:
    """Return the number in a group of the process with a number among all. Raises DistributedError without it."""
    ranks = member(group).ranks
    if rank not in ranks:
        raise DistributedError(
            f"{name}: got rank {rank}; the group has rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        )
    return ranks.index(rank)


def named_rank(name: str, rank: int | None, group_rank: int | None, group: Any = None) -> int:
    """Return the number in a group of the process that a caller names by its number among all, or in the group.

    By default, that is the group's first. Raises DistributedError if there is no such process.
    """
    return require_rank(name, group_rank, group) if rank is None else in_group(name, rank, group)


def require_rank(name: str, rank: int | None, group: Any = None) -> int:
    """Return the number of a process in a group; None means 0. Raises DistributedError if there is no such process."""
    size = member(group).size()
    if rank is not None and not 0 <= rank < size:
        raise DistributedError(f"{name}: got rank {rank} of a group of {size} from 0 on")
    return 0 if rank is None else rank
