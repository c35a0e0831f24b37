"""Schedules along cosines."""

import math

from spillgrad.errors import ArgumentError
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler
from spillgrad.optim.optimizer import Optimizer

__all__ = ["CosineAnnealingLR", "CosineAnnealingWarmRestarts"]


def _between(low: float, high: float, done: float) -> float:
    """Return the rate at the share `done` of a half cosine that falls from `high` to `low`."""
    return low + (high - low) * (1 + math.cos(math.pi * done)) / 2


class CosineAnnealingLR(LRScheduler):
    """Go from the initial learning rate to `eta_min` and back along a cosine.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    T_max : int
        Half of the cosine's period, in steps, from 1 on.
    eta_min : float, default 0.0
        Least rate.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If `T_max` is less than 1.

    Notes
    -----
    Source: Loshchilov, Hutter 2016, "SGDR: stochastic gradient descent with warm restarts", eq. 5.
    """

    _keeps_present_rate = True

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ArgumentError(f"CosineAnnealingLR: got T_max {T_max}; at least 1 step is needed")
        self.T_max = T_max
        self.eta_min = eta_min
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
        step, period = self.last_epoch, self.T_max
        if self._is_initial:
            return lr
        if self._step_count == 1 and step > 0:  # a schedule in another one, which has not counted its steps
            return _between(self.eta_min, base_lr, step / period)
        if (step - 1 - period) % (2 * period) == 0:  # from the lowest rate, which tells nothing of others
            return lr + (base_lr - self.eta_min) * (1 - math.cos(math.pi / period)) / 2
        now, before = (1 + math.cos(math.pi * s / period) for s in (step, step - 1))
        return now / before * (lr - self.eta_min) + self.eta_min

    def _get_closed_form_lr(self) -> list[float]:
        return [_between(self.eta_min, base_lr, self.last_epoch / self.T_max) for base_lr in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Lower the learning rate along a half cosine to `eta_min`, then restart at the initial rate.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    T_0 : int
        Number of steps of the first cycle.
    T_mult : int, default 1
        How many times as many steps each later cycle has as the one before.
    eta_min : float, default 0.0
        Least rate.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If `T_0` or `T_mult` is no integer from 1 on.

    Notes
    -----
    Source: Loshchilov, Hutter 2016, "SGDR: stochastic gradient descent with warm restarts", eq. 5.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:  # fmt: skip
        if not isinstance(T_0, int) or T_0 < 1:
            raise ArgumentError(f"CosineAnnealingWarmRestarts: Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ArgumentError(f"CosineAnnealingWarmRestarts: Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.T_i: int = T_0  # the length of this fall
        self.T_cur: float = last_epoch  # the steps since it began
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
        return _between(self.eta_min, base_lr, self.T_cur / self.T_i)

    def step(self, epoch: float | None = None) -> None:
        """Count a step, or go to another one, and set the learning rates.

        Parameters
        ----------
        epoch : float, optional
            Step to go to, which may be a fraction, such as ``epoch + batch / batches``; by default, the next one.

        Raises
        ------
        ArgumentError
            If `epoch` is negative.
        """
        if epoch is not None and epoch < 0:
            raise ArgumentError(f"CosineAnnealingWarmRestarts: Expected non-negative epoch, but got {epoch}")
        self._update_lr(epoch)

    def _update_lr(self, epoch: float | None = None) -> None:
        if epoch is None and self.last_epoch >= 0 and not self._is_initial:
            epoch, self.T_cur = self.last_epoch + 1, self.T_cur + 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur - self.T_i, self.T_i * self.T_mult
        else:
            epoch = max(0, self.last_epoch + 1) if epoch is None else epoch
            falls = 0
            if epoch >= self.T_0:  # whole falls before: T_0 (1 + T_mult + T_mult² + …) steps
                ratio = epoch / self.T_0
                falls = int(ratio if self.T_mult == 1 else math.log(ratio * (self.T_mult - 1) + 1, self.T_mult))
            before = falls if self.T_mult == 1 else (self.T_mult**falls - 1) // (self.T_mult - 1)
            self.T_i, self.T_cur = self.T_0 * self.T_mult**falls, epoch - self.T_0 * before
        self.last_epoch = math.floor(epoch)
        self._set(self._rates())
