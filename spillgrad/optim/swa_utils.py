"""Stochastic weight averaging: the schedule that leads to its learning rate."""

import math
from collections.abc import Sequence

from spillgrad.errors import ArgumentError
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler, numbers_for_groups
from spillgrad.optim.optimizer import Optimizer

__all__ = ["SWALR"]


class SWALR(LRScheduler):
    """Go from the present learning rate to `swa_lr` in `anneal_epochs` steps, and stay there.

    `anneal_strategy` is "cos" or "linear". Source: Izmailov et al. 2018, "Averaging weights leads to wider optima and
    better generalization".
    """

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10,
        anneal_strategy: str = "cos", last_epoch: int = -1,
    ) -> None:  # fmt: skip
        rates = numbers_for_groups("SWALR", "swa_lr", swa_lr, optimizer.param_groups)
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                f"SWALR: anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError(f"SWALR: anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self.anneal_epochs, self._anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """Return the share of `swa_lr` in the rate at a step; the rest is of the rate at the beginning."""
        done = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return done if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * done)) / 2

    def get_lr(self) -> list[float]:
        self._warn_unless_in_step()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        share, share_before = self._share(step), self._share(step - 1)
        rates = []
        for group in self.optimizer.param_groups:
            swa_lr, present = group["swa_lr"], group["lr"]
            first = swa_lr if share_before == 1 else (present - share_before * swa_lr) / (1 - share_before)
            rates.append(swa_lr * share + first * (1 - share))
        return rates
