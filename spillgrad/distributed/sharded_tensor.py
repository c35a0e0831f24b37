"""Tensors of which each process of a group holds a part.

Source: the names are those of torch.distributed.tensor.DTensor.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.data_type import BY_NUMPY
from spillgrad.distributed import collective_steps
from spillgrad.distributed.process_group import ProcessGroup, run
from spillgrad.errors import CheckpointError, DistributedError, GraphError, SpillError
from spillgrad.tensor import Tensor

_SAVED = -1  # what the first process says in place of a tensor's number when it has all


class ShardedTensor(Tensor):
    """A tensor of which each process of a group holds a part.

    Its shape and dtype are those of the whole. The whole is in no process: operations raise GraphError.
    """

    group: ProcessGroup
    parts: Sequence[slice]
    shard: Tensor
    _shape: tuple[int, ...]
    _asks: "Asked | None" = None

    @staticmethod
    def of(group: ProcessGroup, parts: Sequence[slice], shard: Tensor, shape: tuple[int, ...]) -> "ShardedTensor":
        """Return a tensor of which `shard`, of one dimension, is this process's part.

        `parts` are the elements that each process holds.
        """
        tensor: ShardedTensor = object.__new__(ShardedTensor)
        tensor.group, tensor.parts, tensor.shard, tensor._shape = group, parts, shard, shape
        tensor._storage = shard._storage
        return tensor

    shape = property(lambda self: self._shape)
    ndim = property(lambda self: len(self._shape))
    dtype = property(lambda self: BY_NUMPY[self.shard.numpy_dtype])
    numpy_dtype = property(lambda self: self.shard.numpy_dtype)
    itemsize = property(lambda self: self.shard.numpy_dtype.itemsize)
    nbytes = property(lambda self: math.prod(self._shape) * self.itemsize)
    device = property(lambda self: self.shard.device)

    @property
    def _array(self) -> np.ndarray:  # type: ignore[override]
        raise GraphError(
            f"a tensor of shape {self._shape} is in {self.group.size()} parts, one in each process; call "
            "full_tensor() in all processes, or use the part of this one, shard; an optimizer for parameters in parts "
            "is made after fully_shard()"
        )

    def __repr__(self) -> str:
        rank, size = self.group.rank(), self.group.size()
        return f"ShardedTensor(shape={self._shape}, dtype={self.dtype}, part {rank} of {size})"

    def host_array(self) -> np.ndarray:
        if self._asks is None:
            return super().host_array()
        return self._asks.for_array(self)

    def detach(self) -> "ShardedTensor":
        """Return the tensor, which is in no graph.

        Returns
        -------
        ShardedTensor
            The tensor itself.
        """
        return self

    def clone(self, *, memory_format: object = None) -> "ShardedTensor":
        """Return a copy, of which each process has its part in RAM.

        Parameters
        ----------
        memory_format : object, optional
            Accepted for PyTorch's programs.

        Returns
        -------
        ShardedTensor
            The copy.
        """
        return ShardedTensor.of(self.group, self.parts, self.shard.detach().clone(), self._shape)

    def known_squares(self) -> np.ndarray | None:
        """Return the sums of squares of this process's part, as `clip_grad` takes them, if they are known."""
        return None

    def zero_(self) -> "ShardedTensor":
        """Fill this process's part with zeros.

        Returns
        -------
        ShardedTensor
            The tensor itself.
        """
        with no_grad():
            self.shard.zero_()
        return self

    def full_tensor(self) -> Tensor:
        """Return the whole tensor, in RAM. All processes of the group call it.

        Returns
        -------
        Tensor
            A copy.

        Raises
        ------
        DistributedError
            If the processes do not call it together.
        """
        whole = np.empty(math.prod(self._shape), self.numpy_dtype)
        steps = collective_steps.all_gather(self._part(), [whole[part] for part in self.parts])
        run(self.group, f"full_tensor of shape {self._shape}", steps)
        return Tensor.wrap(whole.reshape(self._shape))

    def _part(self) -> np.ndarray:
        return np.ascontiguousarray(self.shard.host_array()).reshape(-1)


class Asked:
    """What the first process brings together, tensor by tensor, while the others answer."""

    def __init__(self, group: ProcessGroup, tensors: Sequence[ShardedTensor]) -> None:
        self.result = ""  # what the others learn at the end
        self._group = group
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors)}

    def for_array(self, tensor: ShardedTensor) -> np.ndarray:
        """Return the whole tensor."""
        whole = np.empty(math.prod(tensor.shape), tensor.numpy_dtype)
        _next(self._group, self._numbers[id(tensor)])
        _bring(tensor, [whole[part] for part in tensor.parts])
        return whole.reshape(tensor.shape)


@contextlib.contextmanager
def asking(group: ProcessGroup, tensors: Sequence[ShardedTensor]) -> Iterator[Asked]:
    """Context manager for the first process: `host_array` of these tensors returns the whole; the others `answer`.

    An error that the block raises is theirs, too.
    """
    asked = Asked(group, tensors)
    for tensor in tensors:
        tensor._asks = asked
    error: BaseException | None = None
    try:
        yield asked
    except BaseException as raised:
        error = raised
        raise
    finally:
        for tensor in tensors:
            tensor._asks = None
        if not isinstance(error, DistributedError):  # else nobody would hear it
            _next(group, _SAVED)
            _told(group, (None if error is None else str(error) or repr(error), asked.result))


def answer(group: ProcessGroup, tensors: Sequence[ShardedTensor]) -> str:
    """Give the first process the parts of these tensors, as long as it asks for some; return its result.

    Raises CheckpointError if the first process could not use them.
    """
    while (number := _next(group, 0)) != _SAVED:
        _bring(tensors[number], None)
    error, result = _told(group, (None, ""))
    if error is not None:
        raise CheckpointError(error)
    return result


def _next(group: ProcessGroup, number: int) -> int:
    """Return the number that the first process gives."""
    given = np.array([number])
    run(group, "what to save next", collective_steps.broadcast(group.rank(), group.size(), 0, given))
    return int(given[0])


def _told(group: ProcessGroup, mine: tuple[str | None, str]) -> tuple[str | None, str]:
    """Return what the first process says of its error, and its result."""
    steps = collective_steps.all_gather_object(group.size(), collective_steps.pickled(mine))
    return run(group, "whether all is saved", steps)[0]  # type: ignore[no-any-return]


def _bring(tensor: ShardedTensor, arrays: Sequence[np.ndarray] | None) -> None:
    """Copy the parts of all processes to the first one, into `arrays`.

    Raises SpillError in the first process if another one cannot read its part, which that learns with the result.
    """
    group = tensor.group
    part = np.empty(0, tensor.numpy_dtype)
    own_error: str | None = None
    try:
        part = tensor._part()
    except SpillError as error:
        own_error = str(error)
    pickled = collective_steps.pickled(own_error)
    steps = collective_steps.all_gather_object(group.size(), pickled)
    errors = run(group, f"whether all have their parts of a tensor of shape {tensor.shape}", steps)
    failed = [f"rank {rank}: {told}" for rank, told in zip(group.ranks, errors, strict=True) if told is not None]
    if failed and arrays is not None:
        raise SpillError(failed[0])
    if failed:
        return
    longest = max(piece.stop - piece.start for piece in tensor.parts)
    steps = collective_steps.gather(group.size(), 0, part, arrays, longest)
    run(group, f"a tensor of shape {tensor.shape} to save", steps)
