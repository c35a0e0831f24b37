"""Optimizers and learning-rate schedules."""

from spillgrad.optim import lr_scheduler, swa_utils
from spillgrad.optim.adafactor import Adafactor
from spillgrad.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from spillgrad.optim.adaptive import ASGD, Adadelta, Adagrad, RMSprop, Rprop
from spillgrad.optim.lbfgs import LBFGS
from spillgrad.optim.lion import Lion
from spillgrad.optim.muon import Muon
from spillgrad.optim.optimizer import Optimizer
from spillgrad.optim.sgd import SGD

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Muon", "NAdam",
    "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip
