"""Own the store of an offloaded model: the base of every framework's `disk_offload`."""

import contextlib
import os
import weakref
from typing import Any, ClassVar

from spillgrad.errors import ArgumentError, BudgetError, OperandError, SpillError
from spillgrad.optim.state_formats import require_format
from spillgrad.spill.offload.needs import (
    ALONE,
    DiskNeed,
    Framework,
    Need,
    Needs,
    Sharing,
    disk_need,
    in_place_bytes,
    needs_of,
)
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.disk.direct_io import speeds
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad.storage.store_owner import StoreOwner
from spillgrad_kernels.memory import buffers

# A guess of the bytes that training uses, activations included, for each byte of the model, its gradients and state.
_USED_PER_STORED = 2

# By model: its optimizer, which nothing else need refer to, because backward calls it.
_stepped_in_backward: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class OffloadOwner(StoreOwner):
    """Owns a store, and keeps in it a model, its gradients and its optimizer's state.

    A framework's `disk_offload` derives from this, and says how the framework builds a model and trains it.
    """

    _framework: Framework
    _optimizer_class: ClassVar[type]
    # Whether an update clips a copy of the gradient, and not the gradient itself.
    _clips_copies: ClassVar[bool] = True
    # Whether a gradient that backward uses up is beside the memory that the store counts.
    _hands_gradients_over: ClassVar[bool] = False
    _sharing = ALONE

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str,
        step_in_backward: bool = False,
        max_grad_norm: float | None = None,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
        keep_journal: str | os.PathLike[str] | None = None,
        state: str | None = None,
    ) -> None:
        """Offload a model. A framework's `disk_offload` explains the arguments."""
        self._step_in_backward, self._max_grad_norm, self._state_format = step_in_backward, max_grad_norm, state
        self._require_options(has_optimizer=optimizer is not None)
        budget_bytes = parse_bytes(ram_budget)

        def residents() -> Any:
            store = self._made_store(
                "disk_offload",
                directory,
                ram_budget=budget_bytes,
                direct_io=direct_io,
                checksums=checksums,
                on_full=on_full,
                keep_journal=keep_journal,
            )
            made = self._residents_of(store)
            buffers.pool.keep_to_peak(made)
            return made

        found = None if isinstance(model, self._framework.module) else residents()
        with contextlib.ExitStack() as undo:
            if found is not None:
                undo.callback(found.store.close)  # nobody else uses it
            self.model = self._built_model(model, found)
            self.optimizer = self._built_optimizer(optimizer)
            self._require_budgets(budget_bytes)
            self._residents = found or residents()
            self._store = self._residents.store
            gradients = not self._uses_gradients_up
            disk = disk_need(self._framework, self.model, self.optimizer, gradients, self._sharing)
            used_bytes = sum(disk) + in_place_bytes(self._framework, self.model)
            self._store.expect(used_bytes)
            if on_full != "ram":
                self._require_disk(disk)
            self._training = self._begin_training()
            if step_in_backward:
                _stepped_in_backward[self.model] = self.optimizer
            undo.pop_all()
        buffers.release_if_scarce(_USED_PER_STORED * used_bytes)

    def _require_options(self, has_optimizer: bool) -> None:
        """Raise ArgumentError if arguments exclude each other, or a number is out of range."""
        if not has_optimizer and (self._step_in_backward or self._max_grad_norm is not None):
            given = "step_in_backward=True" if self._step_in_backward else f"max_grad_norm={self._max_grad_norm}"
            raise ArgumentError(f"disk_offload: got {given} without an optimizer; give one")
        if self._state_format is not None:
            require_format("disk_offload", self._state_format)
            if not has_optimizer:
                raise ArgumentError(f"disk_offload: got state={self._state_format!r} without an optimizer; give one")
        norm = self._max_grad_norm
        if norm is not None and not (isinstance(norm, int | float) and norm >= 0):
            raise ArgumentError(f"disk_offload: got max_grad_norm={norm!r}; wanted a number, not negative")

    def _residents_of(self, store: DiskStore) -> Any:
        """Return the object that decides which arrays of the store are in RAM."""
        return Residents(store)

    def _offloading_what_is_registered(self, residents: Any) -> contextlib.AbstractContextManager[None]:
        """Context manager: offload parameters as soon as this thread's modules register them."""
        raise NotImplementedError

    def _require_free(self, model: Any, residents: Any) -> None:
        """Raise ArgumentError or OperandError if the model, or a part of it, cannot be offloaded to `residents`."""
        raise NotImplementedError

    def _require_free_optimizer(self, optimizer: Any) -> None:
        """Raise ArgumentError or OperandError if the optimizer's state cannot be offloaded."""
        raise NotImplementedError

    def _set_state_format(self, optimizer: Any, state_format: str) -> None:
        """Keep the optimizer's state in a format. Raises ArgumentError for an optimizer whose state has no other."""
        raise NotImplementedError

    def _begin_training(self) -> Any:
        """Move the model and the optimizer's state to the store, add the hooks, and return the object that they use."""
        raise NotImplementedError

    def _built_model(self, given: Any, residents: Any) -> Any:
        """Return the model `given`; with `residents`, call `given` to build it, and move its parameters to the store.

        Raises ArgumentError if there is no model, or the errors of `_require_free`.
        """
        kind = self._framework.module
        model = given
        if residents is not None:
            if not callable(given):
                raise ArgumentError(
                    f"disk_offload: got {type(given).__name__} as model; wanted a {public_name(kind)}, or a function "
                    "that returns one"
                )
            with self._offloading_what_is_registered(residents):
                model = given()
            if not isinstance(model, kind):
                raise ArgumentError(
                    f"disk_offload: the function returned {type(model).__name__}; it must return a {public_name(kind)}"
                )
        self._require_free(model, residents)
        return model

    def _built_optimizer(self, given: Any) -> Any:
        """Return the optimizer `given`, or call `given` with the parameters that require gradients to make it.

        Return None for None. Raises ArgumentError if there is no optimizer, or the errors of `_require_free_optimizer`
        and of `_set_state_format`.
        """
        kind = self._optimizer_class
        optimizer = given
        if given is not None and not isinstance(given, kind):
            if not callable(given):
                raise ArgumentError(
                    f"disk_offload: got {type(given).__name__} as optimizer; wanted a {public_name(kind)}, or a "
                    "function from parameters to one, or None; the directory comes after it"
                )
            optimizer = given([parameter for parameter in self.model.parameters() if parameter.requires_grad])
            if not isinstance(optimizer, kind):
                raise ArgumentError(
                    f"disk_offload: the function returned {type(optimizer).__name__}; it must return a "
                    f"{public_name(kind)}"
                )
        if optimizer is not None:
            self._require_free_optimizer(optimizer)
            if self._state_format is not None:
                self._set_state_format(optimizer, self._state_format)
        return optimizer

    @property
    def _uses_gradients_up(self) -> bool:
        """Whether backward updates each parameter as soon as it has the gradient, which goes to no store."""
        return self._step_in_backward and self._max_grad_norm is None and not self._sharing.sums

    def _needs(self, sharing: Sharing) -> Needs:
        """Return the needs if so many processes shared this training."""
        clips = self._clips_copies and self._max_grad_norm is not None
        copies = clips and not self._step_in_backward
        uses_up = self._uses_gradients_up and not sharing.sums
        gradients = 0 if uses_up and self._hands_gradients_over else 2 if copies else 1
        return needs_of(self._framework, self.model, self.optimizer, gradients, sharing, clips)

    def _require_budgets(self, ram_budget_bytes: int) -> Needs:
        """Set the least budget, and return the needs. Raises BudgetError if a budget is below its least."""
        needs = self._needs(self._sharing)
        self.least_budget = needs.ram.nbytes
        require_enough("ram_budget", ram_budget_bytes, needs.ram)
        return needs

    def _require_disk(self, need: DiskNeed) -> None:
        place = self._store.directory.parent
        if sum(need) > free_bytes(place):
            speeds(place)  # another thread may be measuring the disk, with a file that fills a small one
        left_bytes, free = sum(need) - self._store.stats().disk_bytes, free_bytes(place)
        if sum(need) > self._store.ram_budget and left_bytes > free:
            raise SpillError(
                f"disk_offload: {format_bytes(sum(need))} will be stored ({need.listed(self._framework)}), "
                f"{format_bytes(left_bytes)} of it yet to be written, but {place} has {format_bytes(free)} free; free "
                "space there, give another directory, or keep in RAM what the disk refuses with on_full='ram'"
            )

    def __reduce__(self) -> Any:
        raise OperandError(
            "disk_offload: cannot be copied or pickled, as its files are those of this process; copy or pickle "
            f"{self._copied_instead}"
        )

    _copied_instead: ClassVar[str]

    @property
    def grad_norm(self) -> float | None:
        """The norm of the gradients in the last step, before they were clipped; None before gradients are clipped."""
        return self._training.grad_norm  # type: ignore[no-any-return]

    def flush(self) -> None:
        """Wait until all arrays are in the files, except those that a caller is still changing.

        Raises
        ------
        SpillError
            If an array could not be written.
        """
        self._residents.flush()
        super().flush()


def public_name(kind: type) -> str:
    """Return the name by which users know a class: torch.nn.Module, for torch.nn.modules.module.Module."""
    return ".".join([*kind.__module__.split(".")[:2], kind.__name__])


def require_enough(name: str, given_bytes: int, need: Need) -> None:
    """Raise BudgetError if the budget `name` is below a need."""
    if given_bytes < need.nbytes:
        error = BudgetError(
            f"disk_offload: got a {name} of {given_bytes} bytes, but {need.why}; give at least {need.nbytes} bytes "
            f"({format_bytes(need.nbytes)})"
        )
        error.least_bytes = need.nbytes
        raise error
