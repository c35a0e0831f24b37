"""Learning rates as functions of the step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spillgrad.errors import ArgumentError, StateDictError
from spillgrad.optim.optimizer import Optimizer


class LRScheduler:
    """Sets each group's learning rate from its initial rate and the number of steps, on construction and `step()`.

    Rates are functions of the step alone, so a resumed run gets the same rates bit for bit.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        self.last_epoch = last_epoch
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    def rate(self, group: int, base_lr: float, step: int) -> float:
        """Return the learning rate of a group at a step."""
        raise NotImplementedError(f"{type(self).__name__}: defines no rate")

    def step(self) -> None:
        """Count a step and set the learning rates."""
        self.last_epoch += 1
        self._set_rates()

    def _set_rates(self) -> None:
        for index, group in enumerate(self.optimizer.param_groups):
            group["lr"] = self.rate(index, self.base_lrs[index], self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """Return the current learning rates."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that determine the schedule's position; functions are left out."""
        return {key: value for key, value in vars(self).items() if key != "optimizer" and not _is_code(value)}

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise StateDictError when the state is of another schedule."""
        own = self.state_dict()
        if own.keys() != state_dict.keys() or len(state_dict["base_lrs"]) != len(self.base_lrs):
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: got {sorted(state_dict)}, wanted {sorted(own)} of "
                f"{len(self.base_lrs)} groups; give the state of the same schedule"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, and set the learning rates.

        Raises StateDictError when it is of another schedule.
        """
        self.check_state_dict(state_dict)
        vars(self).update(state_dict)
        self._set_rates()


def _is_code(value: object) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(item) for item in value))


class LambdaLR(LRScheduler):
    """Multiply the initial learning rate by a function of the step: one for all groups, or one for each."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ArgumentError(f"LambdaLR: got {len(self.lr_lambdas)} functions for {groups} groups; give one each")
        super().__init__(optimizer, last_epoch)

    def rate(self, group: int, base_lr: float, step: int) -> float:
        return base_lr * self.lr_lambdas[group](step)


class CosineAnnealingLR(LRScheduler):
    """Go from the initial learning rate to `eta_min` and back along a cosine of half-period `T_max` steps.

    Source: Loshchilov, Hutter 2016, "SGDR: stochastic gradient descent with warm restarts", eq. 5.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ArgumentError(f"CosineAnnealingLR: got T_max {T_max}; at least 1 step is needed")
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, group: int, base_lr: float, step: int) -> float:
        return self.eta_min + (base_lr - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class CosineWithWarmup(LRScheduler):
    """Rise linearly over `warmup_steps`, then fall along a half cosine to `min_ratio` of the peak at `total_steps`."""

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
                f"CosineWithWarmup: got {warmup_steps} warm-up steps of {total_steps}; wanted 0 to the total"
            )
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.min_ratio = min_ratio
        super().__init__(optimizer, last_epoch)

    def rate(self, group: int, base_lr: float, step: int) -> float:
        if step < self.warmup_steps:
            return base_lr * (step + 1) / (self.warmup_steps + 1)
        done = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return base_lr * (self.min_ratio + (1 - self.min_ratio) * (1 + math.cos(math.pi * done)) / 2)
