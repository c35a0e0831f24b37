"""Optimizers and learning-rate schedules."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spillgrad.optim import lr_scheduler, swa_utils
from spillgrad.optim.adafactor import Adafactor
from spillgrad.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from spillgrad.optim.adaptive import ASGD, Adadelta, Adagrad, RMSprop, Rprop
from spillgrad.optim.apollo import APOLLOAdamW
from spillgrad.optim.lbfgs import LBFGS
from spillgrad.optim.lion import Lion
from spillgrad.optim.muon import Muon
from spillgrad.optim.optimizer import Optimizer
from spillgrad.optim.sgd import SGD

if TYPE_CHECKING:
    from spillgrad.optim import adadelta, adagrad, adamax, adamw, asgd, nadam, radam, rmsprop, rprop
    from spillgrad.optim.sparse_adam import SparseAdam

# PyTorch's modules of one optimizer, of which two others here define several.
_MODULES = ("adadelta", "adagrad", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop")

__all__ = [
    "APOLLOAdamW", "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion",
    "Muon", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "SparseAdam", "lr_scheduler", "swa_utils", *_MODULES,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a module that has PyTorch's name of it on first use."""
    if name == "SparseAdam":
        return import_module(f"{__name__}.sparse_adam").SparseAdam
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
