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
    """Set the initial learning rate times a function of the step.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    lr_lambda : callable or sequence of callable
        Function of the step that returns the factor: one for all groups, or one for each.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Examples
    --------
    >>> import spillgrad as sg
    >>> optimizer = sg.optim.SGD([sg.nn.Parameter(sg.zeros(1))], lr=1.0)
    >>> schedule = sg.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    >>> optimizer.step()
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at step `last_epoch`; users call `get_last_lr`.

        Returns
        -------
        list of float
            A rate for each group.
        """
        self._warn_unless_in_step()
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base_lr * factor(self.last_epoch) for base_lr, factor in pairs]


class MultiplicativeLR(_FunctionLR):
    """Multiply the present learning rate by a function of the step, at each step after the first.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    lr_lambda : callable or sequence of callable
        Function of the step that returns the factor: one for all groups, or one for each.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.
    """

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at step `last_epoch`; users call `get_last_lr`.

        Returns
        -------
        list of float
            A rate for each group.
        """
        self._warn_unless_in_step()
        present = [group["lr"] for group in self.optimizer.param_groups]
        if self._is_initial:
            return present
        return [lr * factor(self.last_epoch) for lr, factor in zip(present, self.lr_lambdas, strict=True)]


class _FactorLR(LRScheduler):
    """A schedule whose rate at any step is the initial one times `factor_at(step)`."""

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one.

        Parameters
        ----------
        step : int
            Number of the step.

        Returns
        -------
        float
            The factor.
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no factor_at")

    def _get_closed_form_lr(self) -> list[float]:
        return [base_lr * self.factor_at(self.last_epoch) for base_lr in self.base_lrs]


class StepLR(_FactorLR):
    """Multiply the learning rate by `gamma` every `step_size` steps.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    step_size : int
        Number of steps, from 1 on.
    gamma : float, default 0.1
        Factor.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If `step_size` is less than 1.

    Examples
    --------
    >>> import spillgrad as sg
    >>> optimizer = sg.optim.SGD([sg.nn.Parameter(sg.zeros(1))], lr=8.0)
    >>> schedule = sg.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> for _ in range(4):
    ...     optimizer.step()
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [2.0]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ArgumentError(f"StepLR: got step_size {step_size}; at least 1 step is needed")
        self.step_size, self.gamma = step_size, gamma
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
        return lr if self.last_epoch == 0 or self.last_epoch % self.step_size else lr * self.gamma

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one.

        Parameters
        ----------
        step : int
            Number of the step.

        Returns
        -------
        float
            The factor.
        """
        return self.gamma ** (step // self.step_size)


class MultiStepLR(_FactorLR):
    """Multiply the learning rate by `gamma` at some steps.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    milestones : iterable of int
        The steps; one that is given twice counts twice.
    gamma : float, default 0.1
        Factor.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
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
        times = self.milestones[self.last_epoch]
        return lr * self.gamma**times if times else lr

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one.

        Parameters
        ----------
        step : int
            Number of the step.

        Returns
        -------
        float
            The factor.
        """
        return self.gamma ** sum(times for milestone, times in self.milestones.items() if milestone <= step)


class ConstantLR(_FactorLR):
    """Multiply the learning rate by `factor` until step `total_iters`.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    factor : float, default 1/3
        Factor, above 0 and up to 1.
    total_iters : int, default 5
        Step from which the rate is the initial one.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If `factor` is out of its range.
    """

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
        if self.last_epoch == 0:
            return lr * self.factor
        return lr * (1 / self.factor) if self.last_epoch == self.total_iters else lr

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one.

        Parameters
        ----------
        step : int
            Number of the step.

        Returns
        -------
        float
            The factor.
        """
        return self.factor if step < self.total_iters else 1


class LinearLR(_FactorLR):
    """Multiply the learning rate by a factor that goes linearly from one value to another.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    start_factor : float, default 1/3
        First factor, above 0 and up to 1.
    end_factor : float, default 1.0
        Last factor, from 0 to 1.
    total_iters : int, default 5
        Number of steps until the last factor.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If a factor is out of its range.
    """

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
        if self.last_epoch == 0:
            return lr * self.start_factor
        if self.last_epoch > self.total_iters:
            return lr
        change = self.end_factor - self.start_factor
        return lr * (1.0 + change / (self.total_iters * self.start_factor + (self.last_epoch - 1) * change))

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one.

        Parameters
        ----------
        step : int
            Number of the step.

        Returns
        -------
        float
            The factor.
        """
        done = min(self.total_iters, step) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done


class ExponentialLR(_FactorLR):
    """Multiply the learning rate by `gamma` at each step.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    gamma : float
        Factor.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.
    """

    _keeps_present_rate = True

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
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
        return lr if self._is_initial else lr * self.gamma

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one.

        Parameters
        ----------
        step : int
            Number of the step.

        Returns
        -------
        float
            The factor.
        """
        return self.gamma**step


class PolynomialLR(_FactorLR):
    """Let the learning rate fall to 0, as a power of the share of steps that are left.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    total_iters : int, default 5
        Step at which the rate is 0.
    power : float, default 1.0
        Exponent.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.
    """

    _keeps_present_rate = True

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:  # fmt: skip
        self.total_iters, self.power = total_iters, power
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
        if self._is_initial or self.last_epoch > self.total_iters:
            return lr
        left, left_before = (1.0 - step / self.total_iters for step in (self.last_epoch, self.last_epoch - 1))
        return lr * math.pow(left / left_before, self.power)

    def factor_at(self, step: int) -> float:
        """Return the rate at a step, as a multiple of the initial one.

        Parameters
        ----------
        step : int
            Number of the step.

        Returns
        -------
        float
            The factor.
        """
        return math.pow(1.0 - min(self.total_iters, step) / self.total_iters, self.power)
