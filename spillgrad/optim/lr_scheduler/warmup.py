"""Schedules that rise linearly, then fall: what language models are trained with."""

import math

from spillgrad.errors import ArgumentError
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler
from spillgrad.optim.optimizer import Optimizer

__all__ = ["CosineWithWarmup", "LinearWithWarmup"]


class _WithWarmup(LRScheduler):
    """A schedule that rises linearly to the initial learning rate, then falls as `_twice_height` says."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        min_ratio: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= warmup_steps <= total_steps:
            raise ArgumentError(
                f"{type(self).__name__}: got {warmup_steps} warm-up steps of {total_steps}; wanted 0 to the total"
            )
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.min_ratio = min_ratio
        super().__init__(optimizer, last_epoch)

    def next_rate(self, lr: float, base_lr: float) -> float:
        """Return the learning rate of a group at step `last_epoch`.

        Parameters
        ----------
        lr : float
            Present rate of the group.
        base_lr : float
            Initial rate of the group.

        Returns
        -------
        float
            The rate.
        """
        step = self.last_epoch
        if step < self.warmup_steps:
            return base_lr * (step + 1) / (self.warmup_steps + 1)
        done = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return base_lr * (self.min_ratio + (1 - self.min_ratio) * self._twice_height(done) / 2)

    def _twice_height(self, done: float) -> float:
        """Return a number from 2 to 0: where the fall is after the share `done` of it."""
        raise NotImplementedError


class CosineWithWarmup(_WithWarmup):
    """Rise linearly to the initial learning rate, then fall along a half cosine.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    warmup_steps : int
        Number of steps of the rise.
    total_steps : int
        Step at which the fall ends.
    min_ratio : float, default 0.1
        Last rate, as a share of the initial one.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If `warmup_steps` is negative, or greater than `total_steps`.
    """

    def _twice_height(self, done: float) -> float:
        return 1 + math.cos(math.pi * done)


class LinearWithWarmup(_WithWarmup):
    """Rise linearly to the initial learning rate, then fall linearly.

    With a `min_ratio` of 1, the rate stays where it is after the rise.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    warmup_steps : int
        Number of steps of the rise.
    total_steps : int
        Step at which the fall ends.
    min_ratio : float, default 0.1
        Last rate, as a share of the initial one.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If `warmup_steps` is negative, or greater than `total_steps`.

    Examples
    --------
    >>> import spillgrad as sg
    >>> optimizer = sg.optim.SGD([sg.nn.Parameter(sg.zeros(1))], lr=1.0)
    >>> schedule = sg.optim.lr_scheduler.LinearWithWarmup(optimizer, 1, 5, min_ratio=0.0)
    >>> rates = []
    >>> for _ in range(6):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def _twice_height(self, done: float) -> float:
        return 2 * (1 - done)
