"""Compare the modules of several processes."""

from collections.abc import Sequence

from spillgrad.distributed import collective_steps
from spillgrad.distributed.process_group import ProcessGroup, run
from spillgrad.errors import DistributedError
from spillgrad.tensor import Tensor


def require_same_modules(
    who: str, group: ProcessGroup, trained: Sequence[tuple[str, Tensor]], tensors: Sequence[tuple[str, Tensor]]
) -> None:
    """Raise DistributedError if the processes have different parameters or buffers; the message tells the first."""
    mine = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
    mine += [("trained", (), name) for name, _ in trained]
    steps = collective_steps.all_gather_object(group.size(), collective_steps.pickled(mine))
    found = run(group, f"{who}, comparing modules", steps)
    for rank, other in zip(group.ranks, found, strict=True):
        if other != found[0]:
            differing = next((pair for pair in zip(found[0], other, strict=False) if pair[0] != pair[1]), None)
            how = f"{differing[0]} and {differing[1]}" if differing else f"{len(found[0])} and {len(other)} tensors"
            raise DistributedError(
                f"{who}: ranks {group.ranks[0]} and {rank} have different modules: {how}; build the same one in all "
                "processes"
            )
