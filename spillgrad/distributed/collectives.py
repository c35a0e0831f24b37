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
    """Wait for all processes of the group: this one is there."""
    member(group)
    return _done(async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Wait for all processes of the group: this one is there."""
    member(group)


def broadcast(
    tensor: Tensor, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """Give all processes the tensor of process `src`, in place; that of one process stays as it is."""
    require_rank("broadcast", group_src if src is None else src, group)
    return _done(async_op)


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Reduce the tensors of all processes, in place; that of one process stays as it is."""
    member(group)
    return _done(async_op)


def reduce(
    tensor: Tensor, dst: int | None = None, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """Reduce the tensors of all processes to process `dst`, in place; that of one process stays as it is."""
    require_rank("reduce", group_dst if dst is None else dst, group)
    return _done(async_op)


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Work | None:
    """Copy the tensor of each process into one of the list."""
    _copy(_require_one("all_gather", tensor_list, group), tensor)
    return _done(async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Copy the tensors of all processes, one behind the other, into `output_tensor`."""
    member(group)
    _copy(output_tensor, input_tensor)
    return _done(async_op)


def gather(
    tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int | None = None, group: Any = None,
    async_op: bool = False, group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """Copy the tensor of each process into one of the list, at process `dst`."""
    require_rank("gather", group_dst if dst is None else dst, group)
    _copy(_require_one("gather", gather_list or (), group), tensor)
    return _done(async_op)


def scatter(
    tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int | None = None, group: Any = None,
    async_op: bool = False, group_src: int | None = None,
) -> Work | None:  # fmt: skip
    """Copy one tensor of the list of process `src` into the tensor of each process."""
    require_rank("scatter", group_src if src is None else src, group)
    _copy(tensor, _require_one("scatter", scatter_list or (), group))
    return _done(async_op)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce the lists of all processes, and copy one tensor of the result into the tensor of each process."""
    _copy(output, _require_one("reduce_scatter", input_list, group))
    return _done(async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce the tensors of all processes, and copy one part of the result into the tensor of each process."""
    member(group)
    _copy(output, input)
    return _done(async_op)


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Send one tensor of the list to each process, and receive one from each."""
    received = _require_one("all_to_all", output_tensor_list, group)
    _copy(received, _require_one("all_to_all", input_tensor_list, group))
    return _done(async_op)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Send one part of the tensor to each process, and receive one part from each."""
    member(group)
    _copy(output, input)
    return _done(async_op)


def _alone(name: str) -> DistributedError:
    member()
    return DistributedError(f"{name}: got one process; a message needs another one, which this version does not start")


def send(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Raise DistributedError: there is no other process."""
    raise _alone("send")


def recv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Raise DistributedError: there is no other process."""
    raise _alone("recv")


isend, irecv = send, recv
