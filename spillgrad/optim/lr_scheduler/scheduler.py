"""The base of schedules of the learning rate."""

import types
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from spillgrad.errors import ArgumentError, MissingOptionError, OperandError, StateDictError
from spillgrad.optim.optimizer import Group, Optimizer

__all__ = ["LRScheduler", "_LRScheduler"]

_T = TypeVar("_T")

# Entries that position no schedule, and that a state dict may lack or have.
_BOOKKEEPING = {"_get_lr_called_within_step", "_is_initial", "verbose"}


class LRScheduler:
    """Sets each group's learning rate on construction and on each ``step()``, which follows the optimizer's step.

    A subclass defines `next_rate`, or `get_lr` for all groups at once. The next rate follows from the present one, as
    in PyTorch, so that several schedules of one optimizer multiply.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Attributes
    ----------
    last_epoch : int
        Number of the step.

    Raises
    ------
    OperandError
        For what is no optimizer.
    MissingOptionError
        If it goes on from `last_epoch` and a group has no "initial_lr".
    """

    # Whether a schedule begins with the present rate even if it goes on from `last_epoch`, as these do in PyTorch.
    _keeps_present_rate = False
    # Schedules of one's own may read these, as in PyTorch.
    _is_initial = False  # whether this is the step of the constructor
    _get_lr_called_within_step = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = an_optimizer(optimizer)
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise MissingOptionError(
                    f"{type(self).__name__}: param 'initial_lr' is not specified in param_groups[{index}] when "
                    f"resuming scheduler with last_epoch={last_epoch}; load the optimizer's state first, or give "
                    "last_epoch=-1"
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr: list[float] = []
        self._initial_step()

    def _initial_step(self) -> None:
        """Begin to count, and set the first learning rates."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

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
        raise NotImplementedError(f"{type(self).__name__}: defines no next_rate, and no get_lr")

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at step `last_epoch`; users call `get_last_lr`.

        Returns
        -------
        list of float
            A rate for each group.
        """
        self._warn_unless_in_step()
        present = [group["lr"] for group in self.optimizer.param_groups]
        if self._keeps_present_rate and self._is_initial and self.last_epoch != 0:
            return present
        return [self.next_rate(lr, base_lr) for lr, base_lr in zip(present, self.base_lrs, strict=True)]

    def _warn_unless_in_step(self) -> None:
        """Warn where `get_lr` is called by a user."""
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def step(self, epoch: int | None = None) -> None:
        """Count a step and set the learning rates.

        Parameters
        ----------
        epoch : int, optional
            Step to go to, which PyTorch has deprecated; by default, the next one.

        Warns
        -----
        UserWarning
            If the optimizer has not stepped before the first step, or `epoch` is given.
        """
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. You should call them in the "
                "opposite order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise the first value of the "
                "learning rate schedule is skipped.",
                UserWarning,
                stacklevel=2,
            )
        if epoch is not None:
            self.warn_of_epoch()
        self._step_count += 1
        self._update_lr(epoch)

    def warn_of_epoch(self) -> None:
        """Warn the caller of `step` that its argument `epoch` is deprecated."""
        warnings.warn(
            "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. "
            "Please use `scheduler.step()` to step the scheduler.",
            UserWarning,
            stacklevel=3,
        )

    def _update_lr(self, epoch: int | None = None) -> None:
        """Go to the next step, or to step `epoch`, and set the learning rates."""
        for group in self.optimizer.param_groups[len(self.base_lrs) :]:  # groups added since
            group.setdefault("initial_lr", group["lr"])
            self.base_lrs.append(group["initial_lr"])
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed_form = None if epoch is None else getattr(self, "_get_closed_form_lr", None)
        self._set(self._rates() if closed_form is None else closed_form())

    def _rates(self) -> Sequence[float]:
        """Return what `get_lr` returns, without its warning."""
        self._get_lr_called_within_step = True
        try:
            return self.get_lr()
        finally:
            self._get_lr_called_within_step = False

    def _set(self, rates: Sequence[float]) -> None:
        """Set the groups' learning rates."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = list(rates)

    def get_last_lr(self) -> list[float]:
        """Return the learning rates that the schedule set last.

        Returns
        -------
        list of float
            A rate for each group.
        """
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that determine the schedule's position.

        Returns
        -------
        dict
            The state. Of a function, only attributes are kept.
        """
        return {key: _plain(value) for key, value in vars(self).items() if key != "optimizer"}

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise an error when the state is of another schedule.

        Parameters
        ----------
        state_dict : mapping
            State of a schedule.

        Raises
        ------
        StateDictError
            If it is of another schedule.
        """
        own, given = self.state_dict(), state_dict.keys() - _BOOKKEEPING
        wanted = own.keys() - _BOOKKEEPING
        lists_fit = all(
            isinstance(state_dict[key], list | tuple) and len(state_dict[key]) == len(value)
            for key, value in own.items()
            if key in given and isinstance(value, list) and value
        )
        if wanted != given or not lists_fit:
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: got {sorted(given)}, wanted {sorted(wanted)} of "
                f"{len(self.optimizer.param_groups)} groups; give the state of the same schedule"
            )
        for key, value in own.items():
            if isinstance(value, Counter):
                _counts(state_dict[key])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, here or in PyTorch.

        The optimizer's state has the learning rates: load it, too.

        Parameters
        ----------
        state_dict : mapping
            State of a schedule of this kind.

        Raises
        ------
        StateDictError
            If the state is of another schedule.
        """
        self.check_state_dict(state_dict)
        for key in self.state_dict().keys() & state_dict.keys():
            setattr(self, key, _restored(getattr(self, key), state_dict[key]))


class _LRScheduler(LRScheduler):
    """PyTorch's old name of `LRScheduler`."""


def an_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer. Raises OperandError for any other object."""
    if not isinstance(optimizer, Optimizer):
        raise OperandError(f"schedule: {type(optimizer).__name__} is not an Optimizer; give one of sg.optim")
    return optimizer


def _plain(value: Any) -> Any:
    """Return what the state has of an attribute: of schedules their states, of functions what objects have set."""
    if isinstance(value, LRScheduler):
        return value.state_dict()
    if callable(value):
        return _attributes(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _attributes(function: Any) -> dict[str, Any] | None:
    """Return the attributes of an object that is called as a function, those in slots too; None of any function."""
    if isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return None
    state = object.__getstate__(function)  # a dict, or one and another of slots, or None
    parts = state if isinstance(state, tuple) else (state,)
    return {name: value for part in parts if part for name, value in part.items()}


def _restored(present: Any, state: Any) -> Any:
    """Return an attribute's value from its state, which `_plain` returned; schedules and functions stay themselves."""
    if isinstance(present, LRScheduler):
        present.load_state_dict(state)
    elif callable(present):
        for name, value in (state or {}).items():
            setattr(present, name, value)
    elif isinstance(present, Counter):
        return _counts(state)
    elif isinstance(present, list) and present and len(present) == len(state):
        return [_restored(*pair) for pair in zip(present, state, strict=True)]
    else:
        return state
    return present


def _counts(state: Any) -> "Counter[int]":
    """Return how often each number counts. JSON has texts as keys; a list has each as often as it counts."""
    try:
        return Counter({int(key): int(count) for key, count in Counter(state).items()})
    except (TypeError, ValueError) as error:
        raise StateDictError(f"schedule: got {str(state)[:80]}, wanted how often each step counts") from error


def numbers_for_groups(who: str, what: str, value: _T | Sequence[_T], groups: Sequence[Group]) -> list[_T]:
    """Return one value for each group: `value`, or its elements. Raises ArgumentError if there are too few or many."""
    if not isinstance(value, list | tuple):
        return [value] * len(groups)  # type: ignore[list-item]  # a single one
    if len(value) != len(groups):
        raise ArgumentError(f"{who}: got {len(value)} values of {what}, expected {len(groups)}, one for each group")
    return list(value)
