"""Parameters, gradients and optimizer state in parts, in RAM: what `fully_shard` makes of `disk_offload`'s parts."""

import contextlib
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from spillgrad.distributed.process_group import ProcessGroup
from spillgrad.errors import ArgumentError
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.offload.gathered import GatheredStorage, GatheringResidents
from spillgrad.spill.offload.needs import Sharing
from spillgrad.spill.offload.sharded_training import ShardedTraining
from spillgrad.spill.offload.tensors import TensorResidents
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.memory import buffers


class Ram:
    """Stands in for a store where all is in RAM: nothing is moved, and nothing counts."""

    ram_budget = budget_bytes = 1 << 62

    def room(self, nbytes: int) -> contextlib.AbstractContextManager[None]:
        """Return a context manager; there is room."""
        return contextlib.nullcontext()

    def counted_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array."""
        return buffers.empty(shape, dtype)

    def begin_step(self) -> None:
        """Do nothing: no order of uses is to be learnt."""

    def begin_phase(self, name: str | None) -> None:
        """Do nothing: nothing is counted by phases."""


class RamResidents(GatheringResidents):
    """Decides which wholes of large parameters are in RAM. All else stays there."""

    def __init__(self, group: ProcessGroup, sharing: Sharing) -> None:
        super().__init__(cast(DiskStore, Ram()), group, sharing)

    def offload(self, tensor: Tensor, label: Label) -> None:
        if not tensor._array.flags.c_contiguous:  # parts are runs of elements
            tensor.data = Tensor.wrap(np.ascontiguousarray(tensor._array))

    def cut(self, tensor: Tensor, label: Label) -> None:
        storage = tensor._storage
        if isinstance(storage, GatheredStorage):  # by a call of `fully_shard` for a layer
            storage.move_to(self)
        elif self.cuts(tensor):
            TensorResidents.offload(self, tensor, label)

    def _keep_part(self, shard: Tensor, label: Label) -> None:
        """Do nothing: it is in RAM."""

    def _offload(self, storage: Storage, array: np.ndarray, label: Label) -> None:
        handle = self._parts_of(array, label)
        storage.__class__ = GatheredStorage
        cast(GatheredStorage, storage).place(self, self.gathering, handle, array)


class RamTraining(ShardedTraining):
    """The hooks on a model whose parameters, gradients and state are in parts, in RAM."""

    who = "fully_shard"
    _or_alone = ""

    def take_optimizer(self, optimizer: Optimizer) -> None:
        """Share the updates of an optimizer that was made after `fully_shard`; raise ArgumentError for a second one."""
        other = self._optimizer()
        context = optimizer.step_context
        if (other is not None and other is not optimizer) or context not in (Optimizer.step_context, self):
            raise ArgumentError(
                "fully_shard: got parameters in two optimizers, or of two models; give the parameters of one model to "
                "one optimizer, in groups, and call fully_shard on the model itself, too"
            )
        super().take_optimizer(optimizer)

    def keep_until_backward(self, keeps: bool) -> None:
        """Choose whether the wholes that forward uses stay until backward has ended."""
        assert self._gathering is not None
        self._gathering.keeps_until_backward = keeps

    def keep(self, owner: object, parameters: Sequence[Tensor]) -> None:
        """Keep the wholes of parameters in place of those that `owner` has kept."""
        assert self._gathering is not None
        kept = [parameter._storage.array for parameter in parameters if parameter._storage.in_parts is not None]
        self._gathering.kept[id(owner)] = kept

    def release(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
