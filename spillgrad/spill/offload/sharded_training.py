"""The hooks by which the processes of a group train an offloaded model together.

Of a gradient and of the optimizer's state, each process has a part, and it updates that part of the parameter. Then it
gets the other parts from the other processes; of parameters that are in parts, too (`gathered`), when it uses them.
"""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from spillgrad.autograd.core.grad_mode import is_grad_enabled
from spillgrad.autograd.core.node import OwnHook
from spillgrad.distributed import collective_steps
from spillgrad.distributed.process_group import ProcessGroup, run
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.distributed.wires import Wire
from spillgrad.errors import DistributedError, GraphError, UnsupportedError
from spillgrad.nn.module import Module
from spillgrad.nn.parallel.gradient_buckets import Bucket, default_bucket_bytes
from spillgrad.nn.parallel.same_modules import require_same_modules
from spillgrad.nn.utils import clip_grad
from spillgrad.optim.formula_optimizer import FormulaOptimizer
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.offload.gathered import BACKWARD, GatheringResidents
from spillgrad.spill.offload.needs import members
from spillgrad.spill.offload.shards import Gatherer, ShardedGradient, ShardReducer
from spillgrad.spill.offload.tensors import TensorResidents
from spillgrad.spill.offload.training import OffloadedTraining
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor

# A bucket of gradients, what arrives for it, and the sum must fit into a budget, and so must an update in it.
_BUCKETS_IN_BUDGET = 8


class ShardedTraining(OffloadedTraining):
    """The hooks on a model, its parameters and its optimizer, where several processes train together."""

    group: ProcessGroup
    _or_alone = ', or shard=None and wire="float32"'

    def __init__(
        self, residents: TensorResidents, step_in_backward: bool, max_grad_norm: float | None, group: ProcessGroup,
        wire: Wire, spare_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(residents, step_in_backward, max_grad_norm)
        self.group = group
        self._wire = wire
        self._spare_bytes = spare_bytes  # what the budget allows besides what a layer and an update need
        self._gathering = residents.gathering if isinstance(residents, GatheringResidents) else None
        self._last_round: list[Any] = []  # the arrays gathered and the buckets filled in it
        self.is_in_step = True  # False under no_sync()
        self._gatherer = Gatherer(group, residents)
        self._is_updating = False
        self._updated: list[Tensor] = []  # of which the other parts are to be brought together
        self.reducer: ShardReducer

    def take_model(self, model: Module) -> None:
        super().take_model(model)
        tensors = [*model.named_parameters(), *model.named_buffers()]
        trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        if not trained:
            raise DistributedError(
                f"{self.who}: got a model without parameters that require gradients, of which there is nothing to share"
            )
        require_same_modules(self.who, self.group, trained, tensors)
        self._share_first_values([tensor for _, tensor in tensors if tensor._storage.in_parts is None])
        budget_bytes = self._least(self.residents.store.ram_budget, "budgets")
        most_bytes = default_bucket_bytes(sum(param.nbytes for _, param in trained), self.group.size())
        ahead_bytes = 0
        if isinstance(self.residents, GatheringResidents):
            for name, tensor in tensors:
                self.residents.cut(tensor, Label("parameter", None, name))
            ahead_bytes = self.residents.gathering.ahead_bytes = self._least(self._spare_bytes, "spare memory") // 2
        self.reducer = ShardReducer(
            self.residents, self.group, trained, min(most_bytes, budget_bytes // _BUCKETS_IN_BUDGET), self._wire,
            self._spare_bytes - ahead_bytes, ahead_bytes, self.who, self._put_gradient_in_store,
            self._max_grad_norm is not None, self._gradients_are_there,
        )  # fmt: skip
        self._buffers = [weakref.ref(buffer) for _, buffer in model.named_buffers()]
        self._handles.append(model.register_forward_pre_hook(OwnHook(self._begin_forward), with_kwargs=True))

    def _begin_forward(self, module: Module, args: object, kwargs: object) -> None:
        self._share_buffers()
        if is_grad_enabled() and self.is_in_step:
            self.reducer.arm()
            self._begin_round()
        elif is_grad_enabled():
            self.reducer.disarm()

    def _share_buffers(self) -> None:
        """Give all processes the first one's buffers before each forward, as `DistributedDataParallel` does."""
        for known in self._buffers if self.is_in_step else ():
            buffer = known()
            if buffer is not None:
                self._broadcast(buffer)

    def _begin_round(self) -> None:
        """Begin to record what a forward and its backward gather and fill."""
        if self._gathering is not None and self._gathering.record is None:  # else one backward follows several forwards
            self._gathering.record = self.reducer.record = self._last_round = []

    def _end_round(self) -> None:
        if self._gathering is not None:
            self._gathering.kept.pop(BACKWARD, None)
            self._gathering.record = self.reducer.record = None

    def _repeat_round(self) -> Iterator[Bucket]:
        """Gather what this process's last round has gathered, and yield the buckets when it has filled them."""
        self._end_round()
        if self._gathering is None:
            return
        if not self._last_round:
            raise DistributedError(
                'contribute_nothing: this process has had no batch yet, and with shard="all" it repeats which '
                "parameters its last one used; give each process at least one batch first"
            )
        for event in self._last_round:
            if isinstance(event, Bucket):
                yield event
            else:
                self._gathering.gather_again(event)

    def _least(self, mine: int, what: str) -> int:
        """Return the least number of all processes."""
        numbers = np.empty(self.group.size(), np.int64)
        steps = collective_steps.all_gather(
            np.array([mine]), [numbers[rank : rank + 1] for rank in range(self.group.size())]
        )
        run(self.group, f"{self.who}, comparing {what}", steps)
        return int(numbers.min())

    def _share_first_values(self, tensors: Sequence[Tensor]) -> None:
        """Give all processes the values of the first one, where they differ."""
        mine = [xxhash.xxh3_64_intdigest(_flat(tensor.array).view(np.uint8).data) for tensor in tensors]
        digests = np.empty((self.group.size(), len(mine)), np.uint64)
        steps = collective_steps.all_gather(np.array(mine, np.uint64), list(digests))
        run(self.group, f"{self.who}, comparing values", steps)
        for tensor, column in zip(tensors, digests.T, strict=True):
            if (column != column[0]).any():
                self._broadcast(tensor)

    def _broadcast(self, tensor: Tensor) -> None:
        tensor._storage.begin_change()
        group, flat = self.group, _flat(tensor.array)
        what = f"broadcast of {flat.size} {flat.dtype} of a module"
        run(group, what, collective_steps.broadcast(group.rank(), group.size(), 0, flat))
        del flat
        self.residents.return_changed(with_last=True)

    def take_optimizer(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, FormulaOptimizer):
            raise UnsupportedError(
                f"{self.who}: got {type(optimizer).__name__}, whose updates need whole parameters, where each of "
                f"{self.group.size()} processes updates a part; give another optimizer, such as AdamW{self._or_alone}"
            )
        super().take_optimizer(optimizer)

    def contribute_nothing(self) -> None:
        """Take part in the sums of a backward that other processes run."""
        self._share_buffers()
        self.reducer.contribute_nothing(self._repeat_round())

    def _accumulated(self, param: Tensor) -> None:
        """After backward has added to a gradient: the reducer takes it."""
        if id(param) not in self.reducer.parts:
            raise GraphError(
                f"{self.who}: {self._names[id(param)]} got a gradient, but required none when {self.who} got the "
                "model; call requires_grad_() before, in all processes"
            )
        if isinstance(self.residents, GatheringResidents):
            self.residents.forget_last()
        self.residents.store.begin_phase("backward")

    def _put_gradient_in_store(self, grad: Tensor, name: str) -> None:
        if grad.numel():
            self.residents.offload(grad, Label("gradient", None, name))
        self.residents.return_changed()

    def _gradients_are_there(self) -> None:
        """At the end of a backward: update all parameters, if backward is to do so."""
        self._end_round()
        optimizer = self._optimizer()
        if optimizer is None:
            return
        if self._step_in_backward:
            self._update_all()
            return
        for param, _ in members(optimizer):
            if param.grad is not None:
                self._wait_for_update(param)
                return

    def _norms(self, optimizer: Optimizer) -> list[float]:
        gradients = [param.grad for param, _ in members(optimizer) if param.grad is not None]
        return clip_grad.norms([grad for grad in gradients if isinstance(grad, ShardedGradient)])

    @contextlib.contextmanager
    def around_step(self) -> Iterator[None]:
        optimizer = self._optimizer()
        if optimizer is not None:
            self._require_sums(optimizer)
        if isinstance(self.residents, GatheringResidents):
            self.residents.begin_updates()
        with super().around_step():
            self._is_updating = True
            try:
                yield
            except BaseException:
                with contextlib.suppress(DistributedError):  # whoever sees the error need not see what follows from it
                    self._gatherer.finish()
                raise
            else:
                for param in self._updated:
                    self._begin_gathering(param, param._storage.array)
                self._gatherer.finish()
            finally:
                self._is_updating = False
                self._updated.clear()

    def _require_sums(self, optimizer: Optimizer) -> None:
        for param, _ in members(optimizer):
            if param.grad is None or isinstance(param.grad, ShardedGradient):
                continue
            if id(param) not in self.reducer.parts:
                raise GraphError(
                    f"{self.who}: the optimizer has a parameter that the model did not have when {self.who} got it; "
                    "several processes update the model's alone"
                )
            raise GraphError(
                f"{self.who}: {self._names[id(param)]} has a gradient of this process alone when it is to be "
                "updated; run the last backward of a step outside no_sync()"
            )

    def gradient(self, param: Tensor) -> Tensor | None:
        grad = param.grad
        if not isinstance(grad, ShardedGradient):
            return None
        shard = grad.shard
        if self._uses_up:
            param.grad = None
        if self._factor is not None:
            if not self._uses_up:
                shard = shard.detach().clone()
            clip_grad.scale([shard], self._factor)
        return shard

    def updated(self, param: Tensor) -> Tensor:
        in_parts: ShardedTensor | None = param._storage.in_parts
        if in_parts is not None:
            param._storage.count_change()
            return in_parts.shard
        part: Tensor = param.detach().reshape(-1)[self._own(param)]
        return part

    def _own(self, param: Tensor) -> slice:
        return self.reducer.parts[id(param)][self.group.rank()]

    @contextlib.contextmanager
    def around_update(self, param: Tensor) -> Iterator[None]:
        optimizer = self._optimizer()
        parts = self.reducer.parts.get(id(param))
        has_part_alone = param._storage.in_parts is not None
        if parts is not None and not has_part_alone:
            self._gatherer.finish(self._idle_bytes(param))
        with super().around_update(param):
            state: dict[str, Any] = {} if optimizer is None else optimizer.state.get(param, {})
            for key, value in state.items():
                if isinstance(value, ShardedTensor):
                    state[key] = value.shard
            is_updated = self._is_updating and isinstance(param.grad, ShardedGradient) and not has_part_alone
            # The update has a view, which does not hold the array: without this, the store could take it back.
            array = param._storage.array if is_updated else None
            try:
                yield
            except BaseException:
                if optimizer is not None:
                    self._put_state_away(optimizer, param)
                raise
            if array is not None and parts is not None:
                if param._storage.offloaded:
                    self._begin_gathering(param, array)
                else:  # updates of parameters in RAM are made together, later
                    self._updated.append(param)
            del array

    def _begin_gathering(self, param: Tensor, array: np.ndarray) -> None:
        param._storage.begin_change()  # by what arrives: this process may have no part of its own
        self._gatherer.begin(self._names[id(param)], array, self.reducer.parts[id(param)])

    def _idle_bytes(self, param: Tensor) -> int:
        """Return how many bytes of parameters may be under way while a parameter is updated."""
        optimizer = self._optimizer()
        used = param.nbytes
        if optimizer is not None:
            group = self._groups.of(optimizer, param)
            own_bytes = self._own_bytes(param, param.nbytes)
            used += 2 * own_bytes
            used += 0 if group is None else self._own_bytes(param, optimizer.state_bytes(param, group))
        return max(0, self.residents.store.ram_budget - used)

    def _made_in_update(self, optimizer: Optimizer | None, param: Tensor) -> int:
        group = None if optimizer is None else self._groups.of(optimizer, param)
        if optimizer is None or group is None or param.grad is None:
            return 0
        scaled_bytes = self._own_bytes(param, param.nbytes) if self._factor is not None and not self._uses_up else 0
        if optimizer.state.get(param):
            return scaled_bytes
        return scaled_bytes + self._own_bytes(param, optimizer.state_bytes(param, group))

    def _own_bytes(self, param: Tensor, nbytes: int) -> int:
        """Return this process's part of the bytes of a parameter, its gradient or its state."""
        own = self._own(param)
        return int(-(-nbytes * (own.stop - own.start) // max(1, param.numel())))

    def _put_state_away(self, optimizer: Optimizer, param: Tensor) -> None:
        parts = self.reducer.parts.get(id(param))
        state: dict[str, Any] = optimizer.state.get(param, {})
        for key, value in state.items():
            if not isinstance(value, Tensor) or parts is None or (param.ndim and not value.ndim):  # a number
                continue
            shard = value.shard if isinstance(value, ShardedTensor) else value
            shape, each = optimizer.state_shape(key, param), optimizer.elements_each(key)
            parts_here = [slice(-(-part.start // each), -(-part.stop // each)) for part in parts]
            if shard is value and value.shape == shape and not value.storage.offloaded:
                own, shard = parts_here[self.group.rank()], value.detach().reshape(-1)
                if own.stop - own.start < shard.numel():  # it was loaded; a pending update may still fill a whole part
                    shard = shard[own].clone()
            if shard.numel():
                self.residents.offload(shard, Label("state", key, self._names.get(id(param))))
            state[key] = ShardedTensor.of(self.group, parts_here, shard, shape)
        self.residents.return_changed()


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1)
