"""The group of processes of a program. This version has groups of one process.

Source: torch.distributed.distributed_c10d.
"""

import os
from collections.abc import Iterable
from enum import Enum
from typing import Any

from spillgrad.errors import ArgumentError, DistributedError

__all__ = [
    "GroupMember", "ProcessGroup", "ReduceOp", "Work", "destroy_process_group", "get_backend", "get_global_rank",
    "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size", "group", "init_process_group",
    "is_available", "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available",
    "is_torchelastic_launched", "new_group",
]  # fmt: skip

_BACKENDS = ("gloo", "mpi", "nccl", "ucc")
# What launchers set in the environment of the processes that they start: the number of these processes.
_LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


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
    """A collective that was asked for with `async_op`; it has finished."""

    def wait(self, timeout: Any = None) -> bool:
        """Return at once: the collective has finished.

        Parameters
        ----------
        timeout : timedelta, optional
            Accepted, as in PyTorch; it changes nothing.

        Returns
        -------
        bool
            Always True.
        """
        return True

    def is_completed(self) -> bool:
        """Return True: the collective has finished.

        Returns
        -------
        bool
            Always True.
        """
        return True

    def is_success(self) -> bool:
        """Return True: the collective has finished.

        Returns
        -------
        bool
            Always True.
        """
        return True


class ProcessGroup:
    """A group of processes; here, this process alone.

    Parameters
    ----------
    backend : str
        Name that `get_backend` returns.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def rank(self) -> int:
        """Return the number of this process in the group.

        Returns
        -------
        int
            Always 0.
        """
        return 0

    def size(self) -> int:
        """Return the number of processes in the group.

        Returns
        -------
        int
            Always 1.
        """
        return 1

    def name(self) -> str:
        """Return the name of the group's backend.

        Returns
        -------
        str
            Such as "gloo".
        """
        return self.backend


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
        Always True: one process works as a group of its own.
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


def is_gloo_available() -> bool:
    """Return whether a backend is available.

    Returns
    -------
    bool
        Always False: nothing is sent to other processes.
    """
    return False


is_mpi_available = is_nccl_available = is_gloo_available


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
    """Make the group of all processes, which is this process alone.

    Parameters
    ----------
    backend : str, optional
        "gloo", "mpi", "nccl" or "ucc", a name that is kept for `get_backend`; "gloo", by default.
    init_method : str, optional
        How processes find each other; "env://", by default, reads the environment.
    timeout : timedelta, optional
        Accepted, as in PyTorch; it changes nothing.
    world_size : int, default -1
        Number of processes; -1 takes what the environment says as ``WORLD_SIZE``.
    rank : int, default -1
        Number of this process; -1 takes what the environment says as ``RANK``.
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
        For more than one process, if the environment of "env://" is not complete, and if the group was made before.
    ArgumentError
        For an unknown backend.
    """
    if is_initialized():
        raise DistributedError("init_process_group: trying to initialize the default process group twice!")
    named = "gloo" if backend is None else str(backend).lower()
    if not {part.rpartition(":")[2] for part in named.split(",")} <= {*_BACKENDS}:
        raise ArgumentError(f"init_process_group: got backend {backend!r}; wanted one of {', '.join(_BACKENDS)}")
    launched = max((int(os.environ[name]) for name in _LAUNCHERS if os.environ.get(name, "").isdecimal()), default=1)
    size = world_size if world_size != -1 else launched
    if max(size, launched) > 1 or rank > 0:
        raise DistributedError(
            f"init_process_group: got {max(size, launched, rank + 1)} processes; this version trains with one: start "
            "the program once, without torchrun or mpiexec, and with world_size=1"
        )
    if store is None and named != "mpi" and (init_method or "env://").startswith("env://"):
        for variable, given in (("RANK", rank), ("WORLD_SIZE", world_size)):
            if given == -1 and variable not in os.environ:
                raise DistributedError(
                    f"init_process_group: Error initializing torch.distributed using env:// rendezvous: environment "
                    f"variable {variable} expected, but not set; give rank=0 and world_size=1"
                )
    _Default.group = group.WORLD = ProcessGroup(named)


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
    if present is _Default.group:
        _Default.group = GroupMember.WORLD = None


def member(group: Any = None) -> ProcessGroup:
    """Return a group, by default that of all processes. Raises DistributedError before `init_process_group`."""
    if _Default.group is None:
        raise DistributedError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    if group is None:
        return _Default.group
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
        Always 0.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    return member(group).rank()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of processes in a group.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; that of all processes, by default.

    Returns
    -------
    int
        Always 1.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    return member(group).size()


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
    """Return a new group of processes.

    Parameters
    ----------
    ranks : iterable of int, optional
        Numbers of the processes; all, by default.
    timeout : timedelta, optional
        Accepted, as in PyTorch; it changes nothing.
    backend : str, optional
        Name that `get_backend` returns; that of the group of all processes, by default.
    **options : object
        PyTorch's other options, which change nothing.

    Returns
    -------
    ProcessGroup
        Or ``GroupMember.NON_GROUP_MEMBER``, if `ranks` is empty, so that this process is not among them.

    Raises
    ------
    DistributedError
        Before `init_process_group`, and for processes that do not exist.
    """
    world = member()
    wanted = [0] if ranks is None else list(ranks)
    if any(rank != 0 for rank in wanted):
        raise DistributedError(f"new_group: got ranks {wanted}; this process, 0, is the only one")
    return ProcessGroup(world.backend if backend is None else backend) if wanted else GroupMember.NON_GROUP_MEMBER


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """Return the numbers of a group's processes in the group of all.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; that of all processes, by default.

    Returns
    -------
    list of int
        Always ``[0]``.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    return list(range(member(group).size()))


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
        Always 0.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such process.
    """
    return require_rank("get_global_rank", group_rank, group)


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
        Always 0.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such process.
    """
    return require_rank("get_group_rank", global_rank, group)


def require_rank(name: str, rank: int | None, group: Any = None) -> int:
    """Return the number of a process in a group; None means 0. Raises DistributedError if there is no such process."""
    size = member(group).size()
    if rank is not None and not 0 <= rank < size:
        raise DistributedError(f"{name}: got rank {rank}; the group has {size} process, whose rank is 0")
    return 0 if rank is None else rank
