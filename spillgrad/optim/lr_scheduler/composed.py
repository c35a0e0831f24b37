"""Schedules made of others: one after the other, or all at once."""

import bisect
from collections.abc import Iterable, Iterator, Sequence

from spillgrad.errors import ArgumentError, OperandError
from spillgrad.optim.lr_scheduler.plateau import ReduceLROnPlateau
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler
from spillgrad.optim.optimizer import Optimizer

__all__ = ["ChainedScheduler", "SequentialLR"]


class _ComposedLR(LRScheduler):
    """A schedule made of others of one optimizer."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> None:
        name = type(self).__name__
        if not schedulers:
            raise ArgumentError(f"{name} expects at least one scheduler to be chained, but got no scheduler.")
        self.optimizer = optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        for index, scheduler in enumerate(schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ArgumentError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs to be "
                    f"specified when calling `step`, but got one at index {index} in the given schedulers sequence; "
                    "step it by itself"
                )
            if not hasattr(scheduler, "optimizer"):
                raise OperandError(f"{name} at index {index} should have `optimizer` as its attribute; give schedules")
            if scheduler.optimizer is not optimizer:
                raise ArgumentError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{type(scheduler).__name__} at index {index} has {scheduler.optimizer}, which is different from "
                    f"{optimizer}."
                )
        self._schedulers = list(schedulers)

    def _initial_step(self) -> None:
        """Count a step, as in PyTorch. It is the first one of the schedules in this one, and not before its time."""
        for scheduler in self._simple():
            scheduler._step_count = 0
        super()._initial_step()

    def _simple(self) -> Iterator[LRScheduler]:
        """Yield the schedules in this one, at any depth, that are no composed ones."""
        for scheduler in self._schedulers:
            if isinstance(scheduler, _ComposedLR):
                yield from scheduler._simple()
            else:
                yield scheduler

    def _restart(self) -> None:
        """Begin again at step 0, with the optimizer's present rates."""
        raise NotImplementedError(f"{type(self).__name__}: defines no _restart")

    def _update_lr(self, epoch: int | None = None) -> None:
        """Begin again, as the schedule around this one goes to it (where PyTorch raises NotImplementedError)."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        self._restart()
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


class SequentialLR(_ComposedLR):
    """Follow the first schedule until step ``milestones[0]``, then the second one from its beginning, and so on.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    schedulers : sequence of LRScheduler
        Schedules of this optimizer.
    milestones : iterable of int
        Steps at which the second schedule and each later one begin.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If there is no schedule, one is of another optimizer or a `ReduceLROnPlateau`, or the number of milestones does
        not fit.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Iterable[int], last_epoch: int = -1
    ) -> None:
        super().__init__(schedulers, optimizer)
        self._milestones = list(milestones)
        if len(self._milestones) != len(schedulers) - 1:
            raise ArgumentError(
                "SequentialLR: Sequential Schedulers expects number of schedulers provided to be one more than the "
                f"number of milestone points, but got number of schedulers {len(schedulers)} and the number of "
                f"milestones to be equal to {len(self._milestones)}"
            )
        self.last_epoch = last_epoch + 1
        # Each schedule has set its first rates. Only those of the first one hold.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in self._simple():
            scheduler.last_epoch -= 1
        first = self._schedulers[bisect.bisect_right(self._milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def _restart(self) -> None:
        self.last_epoch = 0
        _begin(self._schedulers[bisect.bisect_right(self._milestones, 0)])

    def step(self) -> None:  # type: ignore[override]  # as in PyTorch
        """Count a step of the present schedule, or begin the next one, and set the learning rates."""
        self.last_epoch += 1
        number = bisect.bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_ComposedLR):
    """Follow all schedules at once: each changes the learning rate that those before it set.

    Parameters
    ----------
    schedulers : sequence of LRScheduler
        Schedules of one optimizer.
    optimizer : Optimizer, optional
        The optimizer; by default, that of the first schedule.

    Raises
    ------
    ArgumentError
        If there is no schedule, or one is of another optimizer or a `ReduceLROnPlateau`.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        super().__init__(schedulers, optimizer)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _restart(self) -> None:
        for scheduler in self._schedulers:
            _begin(scheduler)

    def step(self) -> None:  # type: ignore[override]  # as in PyTorch
        """Count a step of each schedule."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


def _begin(scheduler: LRScheduler) -> None:
    """Let a schedule begin at step 0, with the optimizer's present rates."""
    if isinstance(scheduler, _ComposedLR):
        scheduler._restart()
    else:
        scheduler.last_epoch = -1
        scheduler._initial_step()
