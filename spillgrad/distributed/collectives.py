"""Collectives of tensors. In a group of one process, what arrives is what was sent.

Every process of the group calls the same collective with tensors of the same size; sums are made in the order of the
ranks, and are the same bits in all processes. Until a collective has ended, its tensors must not be used; if it fails,
those that it overwrites may have a part of its results. Source: torch.distributed.distributed_c10d.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.device.device import CPU, moved
from spillgrad.distributed import collective_steps as steps
from spillgrad.distributed.process_group import ProcessGroup, ReduceOp, Work, begin, member, named_rank
from spillgrad.distributed.protocol import Steps
from spillgrad.errors import DistributedError
from spillgrad.ops.complex_numbers import is_conj, is_neg
from spillgrad.ops.creation import from_numpy
from spillgrad.ops.inplace import begin_write
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.memory import buffers

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
]  # fmt: skip

_FUNCTIONS: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip


def _flat(tensor: Tensor) -> np.ndarray:
    """Return the tensor's elements in memory of the host, as a flat array, which may be the tensor's own memory."""
    return np.ascontiguousarray(moved(tensor.detach().resolve_conj().resolve_neg().array, CPU)).reshape(-1)


def flat_copy(tensor: Tensor) -> np.ndarray:
    """Return a copy of the tensor's elements in memory of the host, as a flat array."""
    flat = _flat(tensor)
    copy = buffers.empty(flat.shape, flat.dtype)
    np.copyto(copy, flat)
    return copy


def put(tensor: Tensor, flat: np.ndarray) -> None:
    """Overwrite a tensor with the elements of a flat array."""
    with no_grad():
        tensor.copy_(from_numpy(flat).reshape(tensor.shape))


class _Room(NamedTuple):
    """A flat array that a collective fills with new elements of a tensor: the tensor's own memory, or other."""

    tensor: Tensor
    flat: np.ndarray
    is_own: bool


def _room(name: str, tensor: Tensor, sent: Sequence[np.ndarray] = (), is_read: bool = False) -> _Room:
    """Return an array to be filled with new elements of a tensor; it has the present ones if the collective reads them.

    It is the tensor's memory where that is of the host, has the elements one behind the other, and is not `sent`.
    """
    is_plain = type(tensor._storage) is Storage and tensor.device is CPU and tensor.is_contiguous()
    if is_plain and not (is_conj(tensor) or is_neg(tensor)):
        own = tensor.array.reshape(-1)
        if not any(np.may_share_memory(own, array) for array in sent):
            begin_write(tensor, name, tensor.shape, tensor.numpy_dtype)
            return _Room(tensor, own, True)
    flat = flat_copy(tensor) if is_read else buffers.empty((tensor.numel(),), tensor.numpy_dtype)
    return _Room(tensor, flat, False)


def _rooms(name: str, tensors: Sequence[Tensor], sent: Sequence[np.ndarray]) -> list[_Room]:
    return [_room(name, tensor, sent) for tensor in tensors]


def _begin(group: ProcessGroup, what: str, made: Steps, into: Sequence[_Room], async_op: bool) -> Work | None:
    """Begin a collective whose results are arrays, which are in tensors when it ends."""

    def finish(_: Any) -> None:
        for room in into:
            if not room.is_own:
                put(room.tensor, room.flat)

    work = begin(group, what, made, finish)
    if async_op:
        return work
    work.wait()
    return None


def described(name: str, tensors: Sequence[Tensor], *rest: Any) -> str:
    """Return the words that must be the same on all ranks."""
    shapes = {f"{tuple(tensor.shape)}" for tensor in tensors}
    sizes = "+".join(sorted(shapes)) if len(tensors) > 1 else "".join(shapes)
    return " ".join(map(str, (f"{name} of {tensors[0].numpy_dtype} {sizes}", *rest)))


def _operation(name: str, op: Any, tensor: Tensor) -> tuple[ReduceOp, Callable[..., Any]]:
    if not isinstance(op, ReduceOp):
        raise DistributedError(f"{name}: got op={op!r}; wanted one of {', '.join(str(known) for known in ReduceOp)}")
    kind = tensor.numpy_dtype.kind
    is_bitwise = op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
    is_ordering = op in (ReduceOp.MIN, ReduceOp.MAX)
    if (is_bitwise and kind not in "biu") or (op is ReduceOp.AVG and kind in "biu") or (is_ordering and kind == "c"):
        raise DistributedError(f"{name}: got {op} of {tensor.numpy_dtype}; give a tensor of another dtype")
    return op, _FUNCTIONS[op]


def _averaged(op: ReduceOp, size: int, made: Steps, flat: np.ndarray) -> Steps:
    """Run the steps, and then divide the sums in `flat` by the number of ranks, if `op` is the average."""
    yield from made
    if op is ReduceOp.AVG:
        np.divide(flat, size, out=flat)


def _require_one_each(name: str, tensors: Sequence[Tensor] | None, group: ProcessGroup) -> Sequence[Tensor]:
    given = tensors or ()
    if len(given) != group.size():
        raise DistributedError(
            f"{name}: got {len(given)} tensors for a group of {group.size()} process{'es' * (group.size() > 1)}; give "
            "one for each"
        )
    return given


def _require_elements(name: str, tensor: Tensor, wanted: int, like: Tensor) -> None:
    if tensor.numel() != wanted or tensor.numpy_dtype != like.numpy_dtype:
        raise DistributedError(
            f"{name}: got a tensor of {tensor.numel()} {tensor.numpy_dtype}; wanted one of {wanted} {like.numpy_dtype}"
        )


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
    present = member(group)
    return _begin(present, "barrier", steps.barrier(), [], async_op)


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
    barrier(group)


def broadcast(
    tensor: Tensor, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """Give all processes the tensor of one process, in place.

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
    present, source = member(group), named_rank("broadcast", src, group_src, group)
    into = [_room("broadcast", tensor)] if present.rank() != source else []
    flat = into[0].flat if into else _flat(tensor)
    made = steps.broadcast(present.rank(), present.size(), source, flat)
    return _begin(present, described("broadcast", [tensor], "from", source), made, into, async_op)


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Reduce the tensors of all processes, in place.

    Parameters
    ----------
    tensor : Tensor
        What is reduced.
    op : ReduceOp, default ReduceOp.SUM
        How to reduce; a process alone keeps its values.
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
    present, (op, function) = member(group), _operation("all_reduce", op, tensor)
    room = _room("all_reduce", tensor, is_read=True)
    made = steps.all_reduce(present.rank(), present.size(), room.flat, function)
    made = _averaged(op, present.size(), made, room.flat)
    return _begin(present, described("all_reduce", [tensor], op.name), made, [room], async_op)


def reduce(
    tensor: Tensor, dst: int | None = None, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """Reduce the tensors of all processes to one process, in place.

    Parameters
    ----------
    tensor : Tensor
        What is reduced.
    dst : int, optional
        Number of the process that gets the result; 0, by default.
    op : ReduceOp, default ReduceOp.SUM
        How to reduce; a process alone keeps its values.
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
    present, (op, function) = member(group), _operation("reduce", op, tensor)
    to = named_rank("reduce", dst, group_dst, group)
    into = [_room("reduce", tensor, is_read=True)] if present.rank() == to else []
    flat = into[0].flat if into else _flat(tensor)
    made = steps.reduce(present.rank(), present.size(), to, flat, function)
    what = described("reduce", [tensor], op.name, "to", to)
    # Elsewhere `flat` may be the tensor's memory, which stays as it is.
    made = _averaged(op, present.size(), made, flat) if into else made
    return _begin(present, what, made, into, async_op)


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
    present = member(group)
    mine = _flat(tensor)
    for other in _require_one_each("all_gather", tensor_list, present):
        _require_elements("all_gather", other, mine.size, tensor)
    into = _rooms("all_gather", tensor_list, [mine])
    made = steps.all_gather(mine, [room.flat for room in into])
    return _begin(present, described("all_gather", tensor_list), made, into, async_op)


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
    present = member(group)
    _require_elements("all_gather_into_tensor", output_tensor, input_tensor.numel() * present.size(), input_tensor)
    mine = _flat(input_tensor)
    room = _room("all_gather_into_tensor", output_tensor, [mine])
    made = steps.all_gather(mine, np.split(room.flat, present.size()))
    return _begin(present, described("all_gather_into_tensor", [input_tensor]), made, [room], async_op)


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
    present, to = member(group), named_rank("gather", dst, group_dst, group)
    has_list = present.rank() == to
    tensors = _require_one_each("gather", gather_list, present) if has_list else ()
    mine = _flat(tensor)
    for other in tensors:
        _require_elements("gather", other, mine.size, tensor)
    into = _rooms("gather", tensors, [mine])
    made = steps.gather(present.size(), to, mine, [room.flat for room in into] if has_list else None)
    return _begin(present, described("gather", [tensor], "to", to), made, into, async_op)


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
    present, source = member(group), named_rank("scatter", src, group_src, group)
    has_list = present.rank() == source
    arrays = [_flat(other) for other in _require_one_each("scatter", scatter_list, present)] if has_list else None
    for other in scatter_list or () if has_list else ():
        _require_elements("scatter", other, tensor.numel(), tensor)
    room = _room("scatter", tensor, arrays or ())
    made = steps.scatter(present.size(), source, room.flat, arrays)
    return _begin(present, described("scatter", [tensor], "from", source), made, [room], async_op)


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
        How to reduce; a process alone keeps its values.
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
    present, (op, function) = member(group), _operation("reduce_scatter", op, output)
    parts = [_flat(part) for part in _require_one_each("reduce_scatter", input_list, present)]
    return _begin_reduce_scatter("reduce_scatter", present, output, parts, input_list, op, function, async_op)


def _begin_reduce_scatter(
    name: str, group: ProcessGroup, output: Tensor, parts: Sequence[np.ndarray], inputs: Sequence[Tensor], op: ReduceOp,
    function: Callable[..., Any], async_op: bool,
) -> Work | None:  # fmt: skip
    _require_elements(name, output, parts[group.rank()].size, inputs[0])
    room = _room(name, output, parts)
    made = _averaged(op, group.size(), steps.reduce_scatter(parts, room.flat, function), room.flat)
    return _begin(group, described(name, inputs, op.name), made, [room], async_op)


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
        How to reduce; a process alone keeps its values.
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
    present, (op, function) = member(group), _operation("reduce_scatter_tensor", op, output)
    _require_elements("reduce_scatter_tensor", input, output.numel() * present.size(), output)
    parts = np.split(_flat(input), present.size())
    return _begin_reduce_scatter("reduce_scatter_tensor", present, output, parts, [input], op, function, async_op)


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
    present = member(group)
    outputs = _require_one_each("all_to_all", output_tensor_list, present)
    sent = [_flat(other) for other in _require_one_each("all_to_all", input_tensor_list, present)]
    for other in (*output_tensor_list, *input_tensor_list):
        _require_elements("all_to_all", other, other.numel(), input_tensor_list[0])
    into = _rooms("all_to_all", outputs, sent)
    made = _checked_all_to_all("all_to_all", sent, [room.flat for room in into])
    return _begin(present, f"all_to_all of {input_tensor_list[0].numpy_dtype}", made, into, async_op)


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
        Rows in the part of each process; equal parts, by default.
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
    present = member(group)
    mine = _flat(input)
    edges = [_edges(*given, present) for given in ((input, input_split_sizes), (output, output_split_sizes))]
    _require_elements("all_to_all_single", output, output.numel(), input)
    room = _room("all_to_all_single", output, [mine])
    made = _checked_all_to_all("all_to_all_single", *map(np.split, (mine, room.flat), edges))
    return _begin(present, f"all_to_all_single of {input.numpy_dtype}", made, [room], async_op)


def _checked_all_to_all(name: str, sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> Steps:
    yield from steps.require_same_splits(len(sent), sent, received, name)
    yield from steps.all_to_all(sent, received)


def _edges(tensor: Tensor, sizes: Any, group: ProcessGroup) -> np.ndarray:
    """Return where the elements of a tensor are cut into parts for the ranks: equal ones, or of `sizes` rows."""
    rows = tensor.shape[0] if tensor.ndim else 1
    given = [int(size) for size in sizes] if sizes else [rows // group.size()] * group.size()
    if len(given) != group.size() or sum(given) != rows:
        raise DistributedError(
            f"all_to_all_single: got parts of {given} rows; wanted {group.size()} parts that have {rows} rows together"
        )
    return np.cumsum(given[:-1], dtype=np.int64) * (tensor.numel() // max(1, rows))
