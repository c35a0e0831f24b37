"""Collectives of Python objects, which travel as pickles: only among processes that trust each other."""

from collections.abc import Sequence
from typing import Any

from spillgrad.distributed import collective_steps as steps
from spillgrad.distributed.process_group import member, named_rank, run
from spillgrad.errors import DistributedError

__all__ = ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"]


def _require_length(name: str, objects: Sequence[Any], group: Any) -> None:
    size = member(group).size()
    if len(objects) != size:
        raise DistributedError(
            f"{name}: got a list of {len(objects)} for a group of {size} process{'es' * (size > 1)}; give one for each"
        )


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Put the object of each process into the list.

    Parameters
    ----------
    object_list : list
        List to fill, with one place for each process.
    obj : object
        What this process gives.
    group : ProcessGroup, optional
        Processes that take part; all, by default.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if the list has not one place for each process.
    """
    present = member(group)
    _require_length("all_gather_object", object_list, group)
    object_list[:] = run(present, "all_gather_object", steps.all_gather_object(present.size(), steps.pickled(obj)))


def broadcast_object_list(
    object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None, group_src: int | None = None
) -> None:
    """Give all processes the list of one process.

    Parameters
    ----------
    object_list : list
        What is sent, or overwritten.
    src : int, optional
        Number of the process that sends; 0, by default.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    device : device, optional
        Accepted, as in PyTorch; it changes nothing.
    group_src : int, optional
        Number in the group, where `src` is None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, or if there is no such process.
    """
    present, source = member(group), named_rank("broadcast_object_list", src, group_src, group)
    items = [steps.pickled(list(object_list))] * present.size() if present.rank() == source else None
    what = f"broadcast_object_list of {len(object_list)} from {source}"
    found = run(present, what, steps.scatter_object(present.size(), source, items))
    if present.rank() != source:
        object_list[:] = found


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None,
    group_dst: int | None = None,
) -> None:  # fmt: skip
    """Put the object of each process into the list of one process.

    Parameters
    ----------
    obj : object
        What this process gives.
    object_gather_list : list
        List to fill, with one place for each process.
    dst : int, optional
        Number of the process that has the list; 0, by default.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    group_dst : int, optional
        Number in the group, where `dst` is None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, if there is no such process, or if the list has not one place for each process.
    """
    present, to = member(group), named_rank("gather_object", dst, group_dst, group)
    if present.rank() == to:
        _require_length("gather_object", object_gather_list or (), group)
    found = run(
        present, f"gather_object to {to}", steps.gather_object(present.rank(), present.size(), to, steps.pickled(obj))
    )
    if object_gather_list is not None and found is not None:
        object_gather_list[:] = found


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, src: int | None = None,
    group: Any = None, group_src: int | None = None,
) -> None:  # fmt: skip
    """Put one object of the list of one process into the list of each process.

    Parameters
    ----------
    scatter_object_output_list : list
        List whose first element is overwritten.
    scatter_object_input_list : list
        Objects to send, one for each process.
    src : int, optional
        Number of the process that has the list; 0, by default.
    group : ProcessGroup, optional
        Processes that take part; all, by default.
    group_src : int, optional
        Number in the group, where `src` is None.

    Raises
    ------
    DistributedError
        Before `init_process_group`, if there is no such process, or if the list has not one object for each process.
    """
    present, source = member(group), named_rank("scatter_object_list", src, group_src, group)
    items = scatter_object_input_list if present.rank() == source else None
    if present.rank() == source:
        _require_length("scatter_object_list", items or (), group)
    pickled = None if items is None else [steps.pickled(item) for item in items]
    made = steps.scatter_object(present.size(), source, pickled)
    scatter_object_output_list[0] = run(present, f"scatter_object_list from {source}", made)
