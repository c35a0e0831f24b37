"""Collectives of tensors in a group of one process: what arrives is what was sent.

Source: torch.distributed.distributed_c10d.
"""

from collections.abc import Sequence
from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributed.process_group import ReduceOp, Work, member, require_rank
from spillgrad.errors import DistributedError
from spillgrad.tensor import Tensor

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "irecv", "isend", "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "send",
]  # fmt: skip


def _done(async_op: bool) -> Work | None:
    return Work() if async_op else None


def _require_one(name: str, tensors: Sequence[Tensor], group: Any) -> Tensor:
    size = member(group).size()
    if len(tensors) != size:
        raise DistributedError(f"{name}: got {len(tensors)} tensors for a group of {size} process; give one for each")
    return tensors[0]


def _copy(target: Tensor, source: Tensor) -> None:
    with no_grad():
        target.copy_(source.reshape(target.shape))


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Wait for all processes of the group: this one is there.

    Parameters
    ----------
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.
    device_ids : list of int, optional
        Accepted, as in PyTorch; it changes nothing.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    member(group)
    return _done(async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Wait for all processes of the group: this one is there.

    Parameters
    ----------
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    timeout : timedelta, optional
        Accepted, as in PyTorch; it changes nothing.
    wait_all_ranks : bool, default False
        Accepted, as in PyTorch; it changes nothing.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    member(group)


def broadcast(
    tensor: Tensor, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """Give all processes the tensor of one process, in place; that of one process stays as it is.

    Parameters
    ----------
    tensor : Tensor
        What is sent, or overwritten.
    src : int, optional
        Number of the process that sends; 0, by default.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.
    group_src : int, optional
        Number in the group, where `src` is None.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such process.
    """
    require_rank("broadcast", group_src if src is None else src, group)
    return _done(async_op)


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Reduce the tensors of all processes, in place; that of one process stays as it is.

    Parameters
    ----------
    tensor : Tensor
        What is reduced.
    op : ReduceOp, default ReduceOp.SUM
        How to reduce; one process leaves values as they are.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    member(group)
    return _done(async_op)


def reduce(
    tensor: Tensor, dst: int | None = None, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """Reduce the tensors of all processes to one process, in place; that of one process stays as it is.

    Parameters
    ----------
    tensor : Tensor
        What is reduced.
    dst : int, optional
        Number of the process that gets the result; 0, by default.
    op : ReduceOp, default ReduceOp.SUM
        How to reduce; one process leaves values as they are.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.
    group_dst : int, optional
        Number in the group, where `dst` is None.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such process.
    """
    require_rank("reduce", group_dst if dst is None else dst, group)
    return _done(async_op)


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Work | None:
    """Copy the tensor of each process into one of the list.

    Parameters
    ----------
    tensor_list : list of Tensor
        Tensors to overwrite, one for each process.
    tensor : Tensor
        What this process gives.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if the list has not one tensor for each process.
    """
    _copy(_require_one("all_gather", tensor_list, group), tensor)
    return _done(async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Copy the tensors of all processes, one behind the other, into one tensor.

    Parameters
    ----------
    output_tensor : Tensor
        Tensor to overwrite, with as many elements as those of all processes.
    input_tensor : Tensor
        What this process gives.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    member(group)
    _copy(output_tensor, input_tensor)
    return _done(async_op)


def gather(
    tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int | None = None, group: Any = None,
    async_op: bool = False, group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """Copy the tensor of each process into one of the list, at one process.

    Parameters
    ----------
    tensor : Tensor
        What this process gives.
    gather_list : list of Tensor
        Tensors to overwrite, one for each process.
    dst : int, optional
        Number of the process that has the list; 0, by default.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.
    group_dst : int, optional
        Number in the group, where `dst` is None.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, if there is no such process, or if the list has not one tensor for each process.
    """
    require_rank("gather", group_dst if dst is None else dst, group)
    _copy(_require_one("gather", gather_list or (), group), tensor)
    return _done(async_op)


def scatter(
    tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int | None = None, group: Any = None,
    async_op: bool = False, group_src: int | None = None,
) -> Work | None:  # fmt: skip
    """Copy one tensor of a list into the tensor of each process.

    Parameters
    ----------
    tensor : Tensor
        Tensor to overwrite.
    scatter_list : list of Tensor
        Tensors to send, one for each process.
    src : int, optional
        Number of the process that has the list; 0, by default.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.
    group_src : int, optional
        Number in the group, where `src` is None.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, if there is no such process, or if the list has not one tensor for each process.
    """
    require_rank("scatter", group_src if src is None else src, group)
    _copy(tensor, _require_one("scatter", scatter_list or (), group))
    return _done(async_op)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce the lists of all processes, and copy one tensor of the result into the tensor of each process.

    Parameters
    ----------
    output : Tensor
        Tensor to overwrite.
    input_list : list of Tensor
        Tensors to reduce, one for each process.
    op : ReduceOp, default ReduceOp.SUM
        How to reduce; one process leaves values as they are.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if the list has not one tensor for each process.
    """
    _copy(output, _require_one("reduce_scatter", input_list, group))
    return _done(async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce the tensors of all processes, and copy one part of the result into the tensor of each process.

    Parameters
    ----------
    output : Tensor
        Tensor to overwrite.
    input : Tensor
        Tensor to reduce, with the parts of all processes one behind the other.
    op : ReduceOp, default ReduceOp.SUM
        How to reduce; one process leaves values as they are.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    member(group)
    _copy(output, input)
    return _done(async_op)


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Send one tensor of the list to each process, and receive one from each.

    Parameters
    ----------
    output_tensor_list : list of Tensor
        Tensors to overwrite, one for each process.
    input_tensor_list : list of Tensor
        Tensors to send, one for each process.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if a list has not one tensor for each process.
    """
    received = _require_one("all_to_all", output_tensor_list, group)
    _copy(received, _require_one("all_to_all", input_tensor_list, group))
    return _done(async_op)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Send one part of the tensor to each process, and receive one part from each.

    Parameters
    ----------
    output : Tensor
        Tensor to overwrite.
    input : Tensor
        Tensor to send.
    output_split_sizes, input_split_sizes : list of int, optional
        Accepted, as in PyTorch; one process has one part.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    async_op : bool, default False
        Whether to return a `Work`.

    Returns
    -------
    Work or None
        A finished `Work` with `async_op`; else None.

    Raises
    ------
    DistributedError
        Before `init_process_group`.
    """
    member(group)
    _copy(output, input)
    return _done(async_op)


def _alone(name: str) -> DistributedError:
    member()
    return DistributedError(f"{name}: got one process; a message needs another one, which this version does not start")


def send(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Raise DistributedError: there is no other process.

    Parameters
    ----------
    tensor : Tensor
        What would be sent.
    dst : int, optional
        Number of the process that gets the tensor.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    tag : int, default 0
        Number by which the two processes match messages.
    group_dst : int, optional
        Number in the group.

    Raises
    ------
    DistributedError
        Always.
    """
    raise _alone("send")


def recv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Raise DistributedError: there is no other process.

    Parameters
    ----------
    tensor : Tensor
        What would be overwritten.
    src : int, optional
        Number of the process that sends the tensor.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    tag : int, default 0
        Number by which the two processes match messages.
    group_src : int, optional
        Number in the group.

    Raises
    ------
    DistributedError
        Always.
    """
    raise _alone("recv")


isend, irecv = send, recv
