"""Schedules that raise the learning rate and lower it again, and the momentum the other way."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler, an_optimizer, numbers_for_groups
from spillgrad.optim.optimizer import Group, Optimizer

__all__ = ["CyclicLR", "OneCycleLR"]

Rates = float | Sequence[float]


class _MomentumSchedule(LRScheduler):
    """A schedule that sets the momentum, too, if `cycle_momentum`: "momentum", or the first of "betas"."""

    cycle_momentum: bool
    use_beta1: bool

    def _choose_momentum(self, optimizer: Optimizer, cycle_momentum: bool) -> None:
        """Find which option is the momentum. Raises ArgumentError for an optimizer that has none."""
        self.cycle_momentum = cycle_momentum
        if not cycle_momentum:
            return
        self.use_beta1 = "betas" in optimizer.defaults
        if not self.use_beta1 and "momentum" not in optimizer.defaults:
            raise ArgumentError(
                f"{type(self).__name__}: optimizer must support momentum or beta1 with `cycle_momentum` option "
                "enabled; give cycle_momentum=False"
            )

    def _set_momentum(self, group: Group, momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class CyclicLR(_MomentumSchedule):
    """Raise the learning rate from `base_lr` to `max_lr` and lower it again, in cycles.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    base_lr : float or sequence of float
        Least rate, or one for each group.
    max_lr : float or sequence of float
        Largest rate of the first cycle, or one for each group.
    step_size_up : int, default 2000
        Number of steps of a rise.
    step_size_down : int, optional
        Number of steps of a fall; by default, that of a rise.
    mode : {"triangular", "triangular2", "exp_range"}, default "triangular"
        How the height of cycles changes: not at all, by half each cycle, or by `gamma` each step.
    gamma : float, default 1.0
        Factor of the height at each step in the mode "exp_range".
    scale_fn : callable, optional
        Returns the height as a share of the first one, in place of `mode`.
    scale_mode : {"cycle", "iterations"}, default "cycle"
        Whether `scale_fn` takes the number of the cycle or that of the step.
    cycle_momentum : bool, default True
        Whether to set the momentum, too: from `max_momentum` down to `base_momentum` and up again.
    base_momentum : float or sequence of float, default 0.8
        Least momentum, or one for each group.
    max_momentum : float or sequence of float, default 0.9
        Largest momentum, or one for each group.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        For an unknown mode, a number of steps below 1, or an optimizer without momentum, with `cycle_momentum`.

    Notes
    -----
    Source: Smith 2015, "Cyclical learning rates for training neural networks".
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: Rates, max_lr: Rates, step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
        base_momentum: Rates = 0.8, max_momentum: Rates = 0.9, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        groups, who = an_optimizer(optimizer).param_groups, "CyclicLR"
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ArgumentError(
                f"{who}: got mode {mode!r}; mode is invalid and scale_fn is None; wanted triangular, triangular2 or "
                "exp_range"
            )
        if step_size_up < 1 or (step_size_down is not None and step_size_down < 1):
            raise ArgumentError(f"{who}: got {step_size_up} steps up and {step_size_down} down; wanted 1 or more")
        rates = numbers_for_groups(who, "base_lr", base_lr, groups)
        for group, rate in zip(groups, rates, strict=True):
            if last_epoch == -1:
                group["lr"] = rate
        self.max_lrs = numbers_for_groups(who, "max_lr", max_lr, groups)
        self.total_size = float(step_size_up + (step_size_up if step_size_down is None else step_size_down))
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self._scale_fn_custom, self.scale_mode = mode, gamma, scale_fn, scale_mode
        if scale_fn is None:  # the modes have theirs
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self._choose_momentum(optimizer, cycle_momentum)
        if cycle_momentum:
            self.base_momentums = numbers_for_groups(who, "base_momentum", base_momentum, groups)
            self.max_momentums = numbers_for_groups(who, "max_momentum", max_momentum, groups)
            for group, low, high in zip(groups, self.base_momentums, self.max_momentums, strict=True):
                if last_epoch == -1:
                    self._set_momentum(group, high)
                    group["max_momentum"], group["base_momentum"] = high, low
        super().__init__(optimizer, last_epoch)
        self.base_lrs = rates

    def _height(self) -> float:
        """Return how far the rate is between the lowest and the highest of all cycles."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        done = 1.0 + self.last_epoch / self.total_size - cycle
        share = done / self.step_ratio if done <= self.step_ratio else (done - 1) / (self.step_ratio - 1)
        return share * self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)

    def scale_fn(self, x: float) -> float:
        """Return the height of the cycles as a share of the first one's.

        Parameters
        ----------
        x : float
            Number of the cycle, from 1 on, or of the step.

        Returns
        -------
        float
            The share.
        """
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return math.pow(0.5, x - 1) if self.mode == "triangular2" else math.pow(self.gamma, x)

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at step `last_epoch`, and set the momentums.

        Returns
        -------
        list of float
            A rate for each group.
        """
        self._warn_unless_in_step()
        height = self._height()
        if self.cycle_momentum:
            ranges = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True)
            for group, low, high in ranges:
                self._set_momentum(group, high - (high - low) * height)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]


def _phase(end: float, start_lr: str, end_lr: str, start_momentum: str, end_momentum: str) -> dict[str, Any]:
    """Return the step at which a part of the cycle ends, and the groups' entries between which rate and momentum go."""
    return {
        "end_step": end, "start_lr": start_lr, "end_lr": end_lr, "start_momentum": start_momentum,
        "end_momentum": end_momentum,
    }  # fmt: skip


class OneCycleLR(_MomentumSchedule):
    """Raise the learning rate to `max_lr` in the first part of training, and lower it to almost nothing in the rest.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    max_lr : float or sequence of float
        Largest rate, or one for each group.
    total_steps : int, optional
        Number of steps of the training; by default, ``epochs * steps_per_epoch``.
    epochs : int, optional
        Number of epochs.
    steps_per_epoch : int, optional
        Number of steps of an epoch.
    pct_start : float, default 0.3
        Share of the first part in the training, from 0 to 1.
    anneal_strategy : {"cos", "linear"}, default "cos"
        Curve along which the rate rises and falls.
    cycle_momentum : bool, default True
        Whether to set the momentum, too: from `max_momentum` down to `base_momentum` and up again.
    base_momentum : float or sequence of float, default 0.85
        Least momentum, or one for each group.
    max_momentum : float or sequence of float, default 0.95
        Largest momentum, or one for each group.
    div_factor : float, default 25.0
        The first rate is ``max_lr / div_factor``.
    final_div_factor : float, default 1e4
        The last rate is the first one divided by this.
    three_phase : bool, default False
        Whether the rate falls as it rose, and then to the last rate.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        If the number of steps is not given, an option is out of its range, or the optimizer has no momentum, with
        `cycle_momentum`.

    Notes
    -----
    Source: Smith, Topin 2017, "Super-convergence: very fast training of neural networks using large learning rates".
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: Rates, total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos",
        cycle_momentum: bool = True, base_momentum: Rates = 0.85, max_momentum: Rates = 0.95, div_factor: float = 25.0,
        final_div_factor: float = 1e4, three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError(
                    "OneCycleLR: You must define either total_steps OR (epochs AND steps_per_epoch); give total_steps"
                )
            for name, number in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
                if not isinstance(number, int) or number < 1:
                    raise ArgumentError(f"OneCycleLR: Expected positive integer {name}, but got {number}")
            total_steps = epochs * steps_per_epoch
        if not isinstance(total_steps, int) or total_steps < 1:
            raise ArgumentError(f"OneCycleLR: Expected positive integer total_steps, but got {total_steps}")
        if not 0 <= pct_start <= 1:
            raise ArgumentError(f"OneCycleLR: Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                f"OneCycleLR: anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self.total_steps, self._anneal_func_type = total_steps, anneal_strategy
        self._schedule_phases = self._phases(pct_start, three_phase)
        self._choose_momentum(an_optimizer(optimizer), cycle_momentum)
        if last_epoch == -1:
            self._lay_out(optimizer.param_groups, max_lr, base_momentum, max_momentum, div_factor, final_div_factor)
        super().__init__(optimizer, last_epoch)

    def _lay_out(
        self, groups: Sequence[Group], max_lr: Rates, base_momentum: Rates, max_momentum: Rates, div_factor: float,
        final_div_factor: float,
    ) -> None:  # fmt: skip
        """Write the rates and momentums of the cycle into the groups."""
        for group, highest in zip(groups, numbers_for_groups("OneCycleLR", "max_lr", max_lr, groups), strict=True):
            group["initial_lr"] = highest / div_factor
            group["max_lr"] = highest
            group["min_lr"] = group["initial_lr"] / final_div_factor
        if self.cycle_momentum:
            lowest = numbers_for_groups("OneCycleLR", "base_momentum", base_momentum, groups)
            highest_momentums = numbers_for_groups("OneCycleLR", "max_momentum", max_momentum, groups)
            for group, low, high in zip(groups, lowest, highest_momentums, strict=True):
                self._set_momentum(group, high)
                group["base_momentum"], group["max_momentum"] = low, high

    def _phases(self, pct_start: float, three_phase: bool) -> list[dict[str, Any]]:
        """Return the parts of the cycle."""
        rising, last = float(pct_start * self.total_steps) - 1, self.total_steps - 1
        first = _phase(rising, "initial_lr", "max_lr", "max_momentum", "base_momentum")
        if not three_phase:
            return [first, _phase(last, "max_lr", "min_lr", "base_momentum", "max_momentum")]
        return [
            first,
            _phase(2 * rising, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
            _phase(last, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
        ]

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at step `last_epoch`, and set the momentums.

        Returns
        -------
        list of float
            A rate for each group.

        Raises
        ------
        ArgumentError
            After the last step of the training.
        """
        self._warn_unless_in_step()
        step, phases = self.last_epoch, self._schedule_phases
        if step > self.total_steps:
            raise ArgumentError(
                f"OneCycleLR: Tried to step {step} times. The specified number of total steps is {self.total_steps}"
            )
        number = next((i for i, phase in enumerate(phases) if step <= phase["end_step"]), len(phases) - 1)
        phase, start = phases[number], phases[number - 1]["end_step"] if number else 0.0
        done = (step - start) / (phase["end_step"] - start)
        for group in self.optimizer.param_groups if self.cycle_momentum else ():
            self._set_momentum(group, self._anneal(group[phase["start_momentum"]], group[phase["end_momentum"]], done))
        groups = self.optimizer.param_groups
        return [self._anneal(group[phase["start_lr"]], group[phase["end_lr"]], done) for group in groups]

    def _anneal(self, start: float, end: float, done: float) -> float:
        if self._anneal_func_type == "linear":
            return (end - start) * done + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)
