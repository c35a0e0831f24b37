"""Tensors of which each process of a group holds a part.

Source: the names are those of torch.distributed.tensor.DTensor.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.data_type import BY_NUMPY
from spillgrad.distributed import collective_steps
from spillgrad.distributed.process_group import ProcessGroup, run
from spillgrad.errors import GraphError
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu.optim import CHUNK


class ShardedTensor(Tensor):
    """A tensor of which each process of a group holds a part.

    Its shape and dtype are those of the whole. The whole is in no process: operations raise GraphError.
    """

    group: ProcessGroup
    parts: Sequence[slice]
    shard: Tensor
    _shape: tuple[int, ...]
    whole: "Callable[[ShardedTensor], np.ndarray] | None" = None  # returns the whole, while processes save together

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
        return super().host_array() if self.whole is None else self.whole(self)

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
        steps = collective_steps.all_gather(self.part(), [whole[part] for part in self.parts])
        run(self.group, f"full_tensor of shape {self._shape}", steps)
        return Tensor.wrap(whole.reshape(self._shape))

    def part(self) -> np.ndarray:
        """Return the elements of this process's part, in RAM, as an array of one dimension."""
        return np.ascontiguousarray(self.shard.host_array()).reshape(-1)


def parts_of(sizes: Sequence[int], ranks: int) -> list[list[slice]]:
    """Cut tensors of so many elements, one behind the other, into a run for each rank; return their parts by rank.

    The cuts are at multiples of `CHUNK` elements of a tensor, so that norms can be taken by parts.
    """
    chunks = [0, *itertools.accumulate(-(-size // CHUNK) for size in sizes)]
    runs = collective_steps.cut(chunks[-1], ranks)
    return [
        [slice(*(min(max(edge - first, 0) * CHUNK, size) for edge in (run.start, run.stop))) for run in runs]
        for size, first in zip(sizes, chunks, strict=False)
    ]
