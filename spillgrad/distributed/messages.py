"""Messages from one process to another.

Source: torch.distributed.distributed_c10d.
"""

from typing import Any

from spillgrad.distributed import collective_steps as steps
from spillgrad.distributed.collectives import described, flat_copy, put
from spillgrad.distributed.process_group import ProcessGroup, Work, begin_message, member, named_rank
from spillgrad.errors import DistributedError
from spillgrad.tensor import Tensor

__all__ = ["irecv", "isend", "recv", "send"]


def _begin_message(name: str, tensor: Tensor, other: int, sends: bool, tag: int, group: ProcessGroup) -> Work:
    """Begin to send a tensor to the process that has the number `other` in a group, or to receive one from it."""
    if other == group.rank():
        raise DistributedError(f"{name}: got rank {other}, which is this process; give another one")
    flat = flat_copy(tensor)
    source, target = (group.rank(), other) if sends else (other, group.rank())
    what = described(f"message {tag} from rank {source} to {target}", [tensor])
    made = steps.message(flat, sends)
    return begin_message(group, source, target, tag, what, made, lambda _: None if sends else put(tensor, flat))


def send(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send a tensor to one process, which receives it by `recv`.

    Parameters
    ----------
    tensor : Tensor
        What is sent.
    dst : int, optional
        Number of the process that gets the tensor; 0, by default.
    group : ProcessGroup, optional
        Processes among which `group_dst` counts; all, by default.
    tag : int, default 0
        Number by which the two processes match messages.
    group_dst : int, optional
        Number in the group, where `dst` is None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, if there is no such other process, or if it receives something else.
    """
    isend(tensor, dst, group, tag, group_dst).wait()


def isend(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work:
    """Begin to send a tensor to one process, and go on.

    Parameters
    ----------
    tensor : Tensor
        What is sent; it may be changed at once.
    dst : int, optional
        Number of the process that gets the tensor; 0, by default.
    group : ProcessGroup, optional
        Processes among which `group_dst` counts; all, by default.
    tag : int, default 0
        Number by which the two processes match messages.
    group_dst : int, optional
        Number in the group, where `dst` is None.

    Returns
    -------
    Work
        Its `wait` returns when the tensor has been sent.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such other process.
    """
    return _begin_message("send", tensor, named_rank("send", dst, group_dst, group), True, tag, member(group))


def recv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Receive a tensor that one process sends by `send`.

    Parameters
    ----------
    tensor : Tensor
        Tensor to overwrite.
    src : int, optional
        Number of the process that sends the tensor; 0, by default. PyTorch takes a message of any process then.
    group : ProcessGroup, optional
        Processes among which `group_src` counts; all, by default.
    tag : int, default 0
        Number by which the two processes match messages.
    group_src : int, optional
        Number in the group, where `src` is None.

    Returns
    -------
    int
        Number of the sender.

    Raises
    ------
    DistributedError
        Before `init_process_group`, if there is no such other process, or if it sends something else.
    """
    irecv(tensor, src, group, tag, group_src).wait()
    return member(group).ranks[named_rank("recv", src, group_src, group)]


def irecv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work:
    """Begin to receive a tensor from one process, and go on.

    Parameters
    ----------
    tensor : Tensor
        Tensor to overwrite.
    src : int, optional
        Number of the process that sends the tensor; 0, by default. PyTorch takes a message of any process then.
    group : ProcessGroup, optional
        Processes among which `group_src` counts; all, by default.
    tag : int, default 0
        Number by which the two processes match messages.
    group_src : int, optional
        Number in the group, where `src` is None.

    Returns
    -------
    Work
        Its `wait` returns when the tensor is there.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such other process.
    """
    return _begin_message("recv", tensor, named_rank("recv", src, group_src, group), False, tag, member(group))
