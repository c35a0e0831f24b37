"""`gradient` is NumPy's, and refuses what has no neighbours."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError


@pytest.mark.parametrize("edge_order", [1, 2])
def test_derivatives_are_numpys(edge_order):
    values, coordinates = np.random.default_rng(3).normal(size=(4, 5)), np.array([0.0, 1, 1.5, 3, 7])
    found = sg.gradient(sg.tensor(values), spacing=[0.5, sg.tensor(coordinates)], edge_order=edge_order)
    for mine, wanted in zip(found, np.gradient(values, 0.5, coordinates, edge_order=edge_order), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: sg.gradient(x, edge_order=3), ArgumentError, "only supports edge_order=1 and edge_order=2"),
        (lambda x: sg.gradient(x, edge_order=2), ArgumentError, "at least edge_order\\+1, but dimension 0 has 2"),
        (lambda x: sg.gradient(x, spacing=[1.0, 2, 3]), ArgumentError, "but got a list of length 3"),
        (lambda x: sg.gradient(x, dim=0, spacing=[x[0]]), ArgumentError, r"of size 2 for dimension 0, but got shape"),
        (lambda x: sg.gradient(x > 0), DtypeError, "does not support"),
        (lambda x: sg.frexp(x.long()), DtypeError, "only supports floating-point dtypes"),
    ],
)
def test_what_has_no_derivative_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call(sg.ones(2, 3))
