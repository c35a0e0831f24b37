"""A schedule that follows a measured quantity."""

import math
from collections.abc import Sequence
from typing import Any

from spillgrad.errors import ArgumentError, GraphError
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler, an_optimizer, numbers_for_groups
from spillgrad.optim.optimizer import Optimizer

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau(LRScheduler):
    """Multiply the learning rate by `factor` when a quantity has not improved for more than `patience` steps.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    mode : {"min", "max"}, default "min"
        Whether a smaller or a larger value is an improvement.
    factor : float, default 0.1
        Factor, below 1.
    patience : int, default 10
        Number of steps without an improvement that are let pass.
    threshold : float, default 1e-4
        By how much a value must beat the best one.
    threshold_mode : {"rel", "abs"}, default "rel"
        Whether `threshold` is a share of the best value or a difference.
    cooldown : int, default 0
        Number of steps after a change that are not counted.
    min_lr : float or sequence of float, default 0
        Least rate, or one for each group.
    eps : float, default 1e-8
        Least change: rates do not fall by less.

    Raises
    ------
    ArgumentError
        For an unknown mode, or a factor that is not below 1.

    Examples
    --------
    >>> import spillgrad as sg
    >>> optimizer = sg.optim.SGD([sg.nn.Parameter(sg.zeros(1))], lr=1.0)
    >>> schedule = sg.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    >>> for loss in [3.0, 3.0, 3.0]:
    ...     schedule.step(loss)
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
        threshold_mode: str = "rel", cooldown: int = 0, min_lr: float | Sequence[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ArgumentError(f"ReduceLROnPlateau: got factor {factor}; Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ArgumentError(f"ReduceLROnPlateau: mode {mode} is unknown!  Wanted min or max")
        if threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"ReduceLROnPlateau: threshold mode {threshold_mode} is unknown!  Wanted rel or abs")
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.default_min_lr = min_lr if isinstance(min_lr, int | float) else None
        self.min_lrs = numbers_for_groups("ReduceLROnPlateau", "min_lr", min_lr, an_optimizer(optimizer).param_groups)
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.optimizer, self.last_epoch = optimizer, 0
        self._last_lr = [group["lr"] for group in optimizer.param_groups]
        self._reset()

    def _reset(self) -> None:
        """Forget the best value, and count from 0."""
        self.best = self.mode_worse
        self.cooldown_counter = self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]  # as in PyTorch
        """Note the value of the quantity after a step, and lower the learning rates if it has not improved for long.

        Parameters
        ----------
        metrics : float or Tensor
            The value.
        epoch : int, optional
            Number of the step, which PyTorch has deprecated; by default, the next one.
        """
        value = float(metrics)
        if epoch is not None:
            self.warn_of_epoch()
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):  # some were added since
            if self.default_min_lr is None:
                raise GraphError(
                    f"ReduceLROnPlateau: The number of param groups in the `optimizer` ({len(groups)}) differs from "
                    f"when `ReduceLROnPlateau` was initialized ({len(self.min_lrs)}); extend its min_lrs"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, min_lr in zip(groups, self.min_lrs, strict=True):
            reduced = max(group["lr"] * self.factor, min_lr)
            if group["lr"] - reduced > self.eps:
                group["lr"] = reduced

    @property
    def in_cooldown(self) -> bool:
        """Whether steps are not counted yet after a change."""
        return self.cooldown_counter > 0

    def _is_better(self, value: float, best: float) -> bool:
        """Return whether a value is an improvement over the best."""
        if self.threshold_mode == "rel":
            share = self.threshold if self.mode == "max" else -self.threshold
            limit = best * (1.0 + share)
        else:
            limit = best + (self.threshold if self.mode == "max" else -self.threshold)
        return value < limit if self.mode == "min" else value > limit
