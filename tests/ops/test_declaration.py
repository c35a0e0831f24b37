"""Declarations: the names that functions of tensors have elsewhere."""

import collections
import importlib
import pkgutil

import numpy as np
import pytest

import spillgrad as sg
import spillgrad.ops
from spillgrad.interop.numpy import functions  # declares NumPy's names that are not those of `sg`
from spillgrad.ops.declaration import Declaration, declarations, declare

FAMILIES = [
    module
    for info in pkgutil.iter_modules(spillgrad.ops.__path__)
    if hasattr(module := importlib.import_module(f"spillgrad.ops.{info.name}"), "__all__")
]


@pytest.fixture
def undone():
    kept = len(declarations)
    yield
    del declarations[kept:]


def test_a_declared_function_is_itself_and_an_alias_is_an_assignment(undone):
    def twice(x):
        return x + x

    assert declare(method="double twice", in_place="twice", numpy=True, standard=True)(twice) is twice
    declared = declarations[-1]
    assert declared.method_names() == ("double", "twice")
    assert declared.in_place_names() == ("twice",)
    assert declared.standard_names() == ("twice",)
    assert Declaration(sg.asin, False, True, True, True).in_place_names() == ("asin", "arcsin")
    assert Declaration(sg.asin, False, False, True, True).numpy_names() == ("asin", "arcsin")
    assert Declaration(sg.asin, False, False, True, True).method_names() == ()


@pytest.mark.parametrize("names", ["method_names", "in_place_names", "numpy_names", "standard_names"])
def test_no_two_functions_declare_one_name(names):
    owners = collections.Counter(name for declared in declarations for name in getattr(declared, names)())
    assert owners["sinh"] == 1
    assert [name for name, count in owners.items() if count > 1] == []


def is_numpys(name):
    room, _, of = name.rpartition(".")
    return hasattr(getattr(np, room) if room else np, of)


@pytest.mark.parametrize("declared", [d for d in declarations if d.numpy], ids=lambda d: d.function.__name__)
def test_a_function_for_numpys_is_declared_by_a_name_that_numpy_has(declared):
    found = [is_numpys(name) for name in declared.numpy_names()]
    assert all(found) if isinstance(declared.numpy, str) else any(found)
    assert [functions._functions()[name] for name in declared.numpy_names()] == [declared.function] * len(found)


@pytest.mark.parametrize("module", FAMILIES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_what_a_family_shows_is_its_own_and_public(module):
    facades = (sg, sg.nn.functional, sg.linalg, sg.fft, sg.special)
    for name in module.__all__:
        function = getattr(module, name)
        assert any(getattr(facade, name, None) is function for facade in facades)
