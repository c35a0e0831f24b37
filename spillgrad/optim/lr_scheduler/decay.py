"""Schedules that multiply the learning rate by a factor: at some steps, at each, or by a function of the step."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from spillgrad.errors import ArgumentError
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler, numbers_for_groups
from spillgrad.optim.optimizer import Optimizer

__all__ = [
    "ConstantLR", "ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "PolynomialLR", "StepLR",
]  # fmt: skip

Rule = Callable[[int], float]


class _FunctionLR(LRScheduler):
    """A schedule by a function of the step: one for all groups, or one for each."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Rule | Sequence[Rule], last_epoch: int = -1) -> None:
        groups = optimizer.param_groups
        self.lr_lambdas = numbers_for_groups(type(self).__name__, "lr_lambda", lr_lambda, groups)
        super().__init__(optimizer, last_epoch)


class LambdaLR(_FunctionLR):
    """The initial learning rate times a function of the step."""

    def get_lr(self) -> list[float]:
        self._warn_unless_in_step()
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base_lr * factor(self.last_epoch) for base_lr, factor in pairs]


class MultiplicativeLR(_FunctionLR):
    """At each step after the first, the present learning rate times a function of the step."""

    def get_lr(self) -> list[float]:
        self._warn_unless_in_step()
        present = [group["lr"] for group in self.optimizer.param_groups]
        if self._is_initial:
            return present
        return [lr * factor(self.last_epoch) for lr, factor in zip(present, self.lr_lambdas, strict=True)]


class _FactorLR(LRScheduler):
    """A schedule whose rate at any step is the initial one times `factor_at(step)`."""

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one."""
        raise NotImplementedError(f"{type(self).__name__}: defines no factor_at")

    def _get_closed_form_lr(self) -> list[float]:
        return [base_lr * self.factor_at(self.last_epoch) for base_lr in self.base_lrs]


class StepLR(_FactorLR):
    """Multiply the learning rate by `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ArgumentError(f"StepLR: got step_size {step_size}; at least 1 step is needed")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def next_rate(self, lr: float, base_lr: float) -> float:
        return lr if self.last_epoch == 0 or self.last_epoch % self.step_size else lr * self.gamma

    def factor_at(self, step: int) -> float:
        return self.gamma ** (step // self.step_size)


class MultiStepLR(_FactorLR):
    """Multiply the learning rate by `gamma` at each of the steps `milestones`."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def next_rate(self, lr: float, base_lr: float) -> float:
        times = self.milestones[self.last_epoch]
        return lr * self.gamma**times if times else lr

    def factor_at(self, step: int) -> float:
        return self.gamma ** sum(times for milestone, times in self.milestones.items() if milestone <= step)


class ConstantLR(_FactorLR):
    """Multiply the learning rate by `factor` until step `total_iters`."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:  # fmt: skip
        if not 0 < factor <= 1:
            raise ArgumentError(
                f"ConstantLR: got factor {factor}; Constant multiplicative factor expected to be between 0 and 1, and "
                "not 0, from which no rate comes back"
            )
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def next_rate(self, lr: float, base_lr: float) -> float:
        if self.last_epoch == 0:
            return lr * self.factor
        return lr * (1 / self.factor) if self.last_epoch == self.total_iters else lr

    def factor_at(self, step: int) -> float:
        return self.factor if step < self.total_iters else 1


class LinearLR(_FactorLR):
    """Multiply the learning rate by a factor that goes linearly from one value to another over `total_iters` steps."""

    _keeps_present_rate = True

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not 0 < start_factor <= 1:
            raise ArgumentError(
                f"LinearLR: got start_factor {start_factor}; Starting multiplicative factor expected to be greater "
                "than 0 and less or equal to 1."
            )
        if not 0 <= end_factor <= 1:
            raise ArgumentError(
                f"LinearLR: got end_factor {end_factor}; Ending multiplicative factor expected to be between 0 and 1."
            )
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def next_rate(self, lr: float, base_lr: float) -> float:
        if self.last_epoch == 0:
            return lr * self.start_factor
        if self.last_epoch > self.total_iters:
            return lr
        change = self.end_factor - self.start_factor
        return lr * (1.0 + change / (self.total_iters * self.start_factor + (self.last_epoch - 1) * change))

    def factor_at(self, step: int) -> float:
        done = min(self.total_iters, step) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done


class ExponentialLR(_FactorLR):
    """Multiply the learning rate by `gamma` at each step."""

    _keeps_present_rate = True

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def next_rate(self, lr: float, base_lr: float) -> float:
        return lr if self._is_initial else lr * self.gamma

    def factor_at(self, step: int) -> float:
        return self.gamma**step


class PolynomialLR(_FactorLR):
    """Let the learning rate fall to 0 at step `total_iters`, as a power of the share of steps that are left."""

    _keeps_present_rate = True

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:  # fmt: skip
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def next_rate(self, lr: float, base_lr: float) -> float:
        if self._is_initial or self.last_epoch > self.total_iters:
            return lr
        left, left_before = (1.0 - step / self.total_iters for step in (self.last_epoch, self.last_epoch - 1))
        return lr * math.pow(left / left_before, self.power)

    def factor_at(self, step: int) -> float:
        return math.pow(1.0 - min(self.total_iters, step) / self.total_iters, self.power)
