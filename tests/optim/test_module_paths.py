"""Optimizers are found under the paths of PyTorch's modules `torch.optim.<name>`."""

import importlib

import pytest

from spillgrad import optim

# The modules of PyTorch 2.13 that programs import, and what each defines.
PATHS = {
    "adadelta": "Adadelta",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamax": "Adamax",
    "adamw": "AdamW",
    "asgd": "ASGD",
    "lbfgs": "LBFGS",
    "nadam": "NAdam",
    "optimizer": "Optimizer",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "rprop": "Rprop",
    "sgd": "SGD",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_module_has_its_optimizer(path):
    module = importlib.import_module(f"spillgrad.optim.{path}")
    assert getattr(optim, path) is module
    assert getattr(module, PATHS[path]) is getattr(optim, PATHS[path])


def test_other_modules_are_missed():
    with pytest.raises(AttributeError, match="no attribute 'adamz'"):
        optim.adamz  # noqa: B018
