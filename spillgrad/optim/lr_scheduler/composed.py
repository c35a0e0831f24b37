"""Schedules made of others: one after the other, or all at once."""

import bisect
from collections.abc import Iterable, Sequence

from spillgrad.errors import ArgumentError
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
            if scheduler.optimizer is not optimizer:
                raise ArgumentError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{type(scheduler).__name__} at index {index} has {scheduler.optimizer}, which is different from "
                    f"{optimizer}."
                )
        self._schedulers = list(schedulers)


class SequentialLR(_ComposedLR):
    """Follow the first schedule until step `milestones[0]`, then the second one from its beginning, and so on."""

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
        for scheduler in self._schedulers:
            scheduler.last_epoch -= 1
        self._schedulers[0]._begin()
        self._last_lr = self._schedulers[0].get_last_lr()

    def step(self) -> None:  # type: ignore[override]  # as in PyTorch
        """Count a step of the present schedule, or begin the next one, and set the learning rates."""
        self.last_epoch += 1
        number = bisect.bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            scheduler._advance(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_ComposedLR):
    """Follow all schedules at once: each changes the learning rate that those before it set."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        super().__init__(schedulers, optimizer)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> None:  # type: ignore[override]  # as in PyTorch
        """Count a step of each schedule."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]
