"""Optimizers and learning-rate schedules."""

from spillgrad.optim import lr_scheduler, swa_utils
from spillgrad.optim.adam import Adam, AdamW
from spillgrad.optim.lion import Lion
from spillgrad.optim.optimizer import Optimizer
from spillgrad.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Lion", "Optimizer", "lr_scheduler", "swa_utils"]
