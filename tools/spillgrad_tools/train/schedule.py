"""The learning rate of a run, step by step, as its settings say; and which settings go together."""

import math

import spillgrad as sg
from spillgrad.errors import ArgumentError
from spillgrad_tools.train.options import TrainSettings


def schedule_of(optimizer: sg.optim.Optimizer, settings: TrainSettings) -> sg.optim.lr_scheduler.LRScheduler:
    """Return the schedule of a run's learning rate. Raises ArgumentError if the warm-up is longer than the run."""
    kind = sg.optim.lr_scheduler.CosineWithWarmup
    if settings.schedule != "cosine":
        kind = sg.optim.lr_scheduler.LinearWithWarmup  # type: ignore[assignment]  # with the same parameters
    last = 1.0 if settings.schedule == "constant" else settings.final_lr_share
    return kind(optimizer, warmup_steps(settings), settings.steps, last)


def warmup_steps(settings: TrainSettings) -> int:
    """Return the number of steps in which the learning rate rises.

    Raises ArgumentError if they are more than those of the run, or no whole number.
    """
    given = settings.warmup
    if not (0 <= given < 1 or (given == given // 1 and 1 <= given <= settings.steps)):
        raise ArgumentError(
            f"train: got --warmup {given:g}; wanted a share of the steps below 1, or a number of steps up to "
            f"{settings.steps}"
        )
    return round(settings.steps * given) if given < 1 else int(given)


def require_consistent(settings: TrainSettings) -> None:
    """Raise ArgumentError if settings are out of their range, or contradict each other."""
    warmup_steps(settings)
    for name, least in (("weight_decay", 0), ("clip", 0), ("eval_every", 1), ("eval_batches", 1), ("patience", 1)):
        value = getattr(settings, name)
        if value is not None and not least <= value < math.inf:
            option = name.replace("_", "-")
            raise ArgumentError(f"train: got --{option} {value}; wanted a number from {least} on")
    if not 0 <= settings.final_lr_share <= 1:
        raise ArgumentError(f"train: got --final-lr-share {settings.final_lr_share}; wanted a share from 0 to 1")
    if settings.schedule == "constant" and settings.final_lr_share != TrainSettings.final_lr_share:
        raise ArgumentError(
            f"train: got --final-lr-share {settings.final_lr_share} with --schedule constant, which does not fall; "
            "leave one out"
        )
    if settings.master != "whole" and not settings.autocast:
        raise ArgumentError(
            f"train: got --master {settings.master} without --autocast, whose products read bfloat16; give both"
        )
    if settings.patience is not None and settings.eval_every is None:
        raise ArgumentError(
            f"train: got --patience {settings.patience} without --eval-every; say after how many steps to evaluate"
        )
