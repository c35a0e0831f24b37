"""Train a model whose parameters, gradients and optimizer state do not fit in RAM: they live in a spill store."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spillgrad.errors import ArgumentError, BudgetError, OperandError, SpillError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.offload.building import built_model, built_optimizer
from spillgrad.spill.offload.needs import DiskNeed, Need, disk_need, needs_of
from spillgrad.spill.offload.residents import Residents
from spillgrad.spill.offload.training import OffloadedTraining
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad.storage.store import StoreStats
from spillgrad.storage.store_owner import StoreOwner
from spillgrad_kernels.memory import buffers

# The number of layers that the default `device_budget` holds: while one is used, the next is copied.
_LAYERS_ON_DEVICE = 2


@dataclass(frozen=True)
class OffloadStats(StoreStats):
    """The counters of a store, and the number of its bytes on a CUDA device: now, and the most so far."""

    device_bytes: int = 0
    peak_device_bytes: int = 0


class disk_offload(StoreOwner):
    """Keep a model's parameters and buffers, their gradients and the optimizer's state on disk.

    At most `ram_budget` bytes of these are in RAM. A tensor is read when something uses it; once a step has shown the
    order of use, tensors are read ahead of time. After a change a tensor is written back. The model, the optimizer and
    the training loop stay as they are, and all values are bit for bit those of training in RAM. The attributes `model`
    and `optimizer` are the offloaded model and optimizer.

    If the model itself is too large for RAM, pass functions. The first takes no arguments and builds the model. Its
    parameters and buffers go to disk one by one, as modules register them in this thread. The second makes the
    optimizer from the list of parameters that require gradients.

        offload = sg.disk_offload(
            lambda: sg.models.build("gpt2-xl"), lambda params: sg.optim.AdamW(params), "spill/", ram_budget="2GiB"
        )

    With `step_in_backward`, the optimizer updates each parameter as soon as backward has its gradient, and frees the
    gradient. `optimizer.step()` then has nothing to do, and each backward pass is a step of its own. Without
    `step_in_backward`, gradients go to disk too.

    `max_grad_norm` clips gradients as `clip_grad_norm_` does, over all parameters that the optimizer updates.
    `optimizer.step()` clips just before each update: it scales a copy, and the gradients on disk stay unchanged.
    With `step_in_backward`, gradients go to disk first, and the updates follow when backward ends. Each gradient is
    read once, because its norm is taken when backward finishes it. `grad_norm` is the norm of all gradients in the last
    step, before they were clipped.

    `with sg.save_on_disk(offload)` puts what operations save for backward into the same store, under the same budget.

    The array that `numpy()` returns for an offloaded tensor may be written to. If it was, its values are stored again
    once no reference to the array is left. Copies and pickles of the model and of the optimizer are in RAM, and
    independent of this object.

    A model on a CUDA device, its gradients and the optimizer's state live on disk too. They are on the device while
    they are used. They are copied through pinned memory, which counts in `ram_budget`, while kernels run. The tensors
    needed soonest stay on the device, up to `device_budget`. By default, `device_budget` is twice what one layer or one
    update needs at once.

    `keep_journal` names a file for the journal, which `spillgrad inspect` reads; see `save_on_disk`.

    Units: `ram_budget` and `device_budget` are bytes, or a size such as "512MiB". `least_budget` and
    `least_device_budget` are bytes: the smallest budgets that hold what one layer or one update needs at once.
    Raises BudgetError if a size does not parse, or is below its least budget. Raises ArgumentError if a parameter
    shares memory with another tensor, or is offloaded already. Raises SpillError if the directory cannot be used, or if
    the disk lacks room for all that will be stored and `on_full` is not "ram".
    """

    def __init__(
        self,
        model: Module | Callable[[], Module],
        optimizer: Optimizer | Callable[[list[Parameter]], Optimizer] | None = None,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str,
        device_budget: int | str | None = None,
        step_in_backward: bool = False,
        max_grad_norm: float | None = None,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
        keep_journal: str | os.PathLike[str] | None = None,
    ) -> None:
        if optimizer is None and (step_in_backward or max_grad_norm is not None):
            given = "step_in_backward=True" if step_in_backward else f"max_grad_norm={max_grad_norm}"
            raise ArgumentError(f"disk_offload: got {given} without an optimizer; give one")
        if max_grad_norm is not None and not (isinstance(max_grad_norm, int | float) and max_grad_norm >= 0):
            raise ArgumentError(f"disk_offload: got max_grad_norm={max_grad_norm!r}; wanted a number, not negative")
        budget_bytes = parse_bytes(ram_budget)

        def residents() -> Residents:
            store = self._kind_of_store(
                directory,
                ram_budget=budget_bytes,
                direct_io=direct_io,
                checksums=checksums,
                on_full=on_full,
                keep_journal=keep_journal,
            )
            return Residents(store)

        found = None if isinstance(model, Module) else residents()
        with contextlib.ExitStack() as undo:
            if found is not None:
                undo.callback(found.store.close)  # nobody else uses it
            self.model = built_model(model, found)
            self.optimizer = built_optimizer(optimizer, self.model)
            copies_gradients = max_grad_norm is not None and not step_in_backward
            needs = needs_of(self.model, self.optimizer, copies_gradients)
            self.least_budget, self.least_device_budget = needs.ram.nbytes, needs.device.nbytes
            _require_enough("ram_budget", budget_bytes, needs.ram)
            if device_budget is None:
                device_budget_bytes = _LAYERS_ON_DEVICE * needs.at_once.nbytes
            else:
                device_budget_bytes = parse_bytes(device_budget)
                _require_enough("device_budget", device_budget_bytes, needs.device)
            self._residents = found or residents()
            self._residents.allow_on_device(device_budget_bytes)
            self._store = self._residents.store
            disk = disk_need(self.model, self.optimizer, gradients=not step_in_backward or max_grad_norm is not None)
            self._store.expect(sum(disk))
            if on_full != "ram":
                self._require_disk(disk)
            self._training = OffloadedTraining(self._residents, step_in_backward, max_grad_norm)
            self._training.take_model(self.model)
            if self.optimizer is not None:
                self._training.take_optimizer(self.optimizer)
            undo.pop_all()
        buffers.pool.keep_to_peak(self._residents)

    def _require_disk(self, need: DiskNeed) -> None:
        left_bytes = sum(need) - self._store.stats().disk_bytes
        place = self._store.directory.parent
        free = free_bytes(place)
        if sum(need) > self._store.ram_budget and left_bytes > free:
            raise SpillError(
                f"disk_offload: {format_bytes(sum(need))} will be stored ({need}), {format_bytes(left_bytes)} of it "
                f"yet to be written, but {place} has {format_bytes(free)} free; free space there, give "
                "another directory, or keep in RAM what the disk refuses with on_full='ram'"
            )

    def __reduce__(self) -> Any:
        raise OperandError(
            "disk_offload: cannot be copied or pickled, as its files are those of this process; copy or pickle the "
            "model and the optimizer, which are in RAM then, or use save_checkpoint()"
        )

    @property
    def grad_norm(self) -> float | None:
        """The norm of the gradients in the last step, before they were clipped; None before the first step."""
        return self._training.grad_norm

    def flush(self) -> None:
        """Wait until all arrays are in the files, except those that a caller is still changing.

        Raises SpillError if an array could not be written.
        """
        self._residents.return_changed(with_last=True)
        self._residents.flush()
        super().flush()

    def stats(self) -> OffloadStats:
        """Return the store's counters, and the bytes of parameters, gradients and state on a device."""
        return OffloadStats(**dataclasses.asdict(super().stats()), **self._residents.device_stats())


def _require_enough(name: str, given_bytes: int, need: Need) -> None:
    if given_bytes < need.nbytes:
        raise BudgetError(
            f"disk_offload: got a {name} of {given_bytes} bytes, but {need.why}; give at least {need.nbytes} bytes "
            f"({format_bytes(need.nbytes)})"
        )
