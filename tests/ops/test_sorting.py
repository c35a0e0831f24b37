"""Medians, quantiles and running extremes where values are equal, missing, or no floats."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, ShapeError
from tests.ops.checks import leaf

NAN = math.nan


def test_indices_say_where_the_values_were():
    a = np.random.default_rng(0).normal(size=(4, 5))
    x = sg.tensor(a)
    for result in (x.median(1), x.nanmedian(1), x.kthvalue(2, 1), x.mode(1)):
        np.testing.assert_array_equal(
            np.take_along_axis(a, result.indices.numpy()[:, None], 1)[:, 0], result.values.numpy()
        )
    for result in (x.cummax(1), x.cummin(1)):
        np.testing.assert_array_equal(np.take_along_axis(a, result.indices.numpy(), 1), result.values.numpy())


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16"])
def test_other_dtypes_have_an_order_too(dtype):
    x = sg.tensor([3, 0, 2, 0]).to(dtype)
    wanted = np.sort(x.numpy())
    assert x.median().item() == wanted[1]
    assert x.kthvalue(3).values.item() == wanted[2]
    assert x.mode().values.item() == wanted[0]
    assert x.cummax(0).values.dtype == x.dtype
    assert sg.msort(x).tolist() == wanted.tolist()


def test_equal_values_are_those_that_pytorch_takes():
    assert sg.tensor([1.0, 1.0, NAN, 2.0, NAN]).cummax(0).indices.tolist() == [0, 1, 2, 2, 4]
    assert sg.tensor([2, 1, 1, 2, 3]).mode() == (1, 2)
    x = leaf([3.0, 1.0, 1.0, 2.0])
    x.median().backward()
    assert x.grad.tolist() == [0, 0.5, 0.5, 0]
    x.grad = None
    x.median(0).values.backward()
    assert x.grad.tolist() == [0, 0, 1, 0]


def test_what_is_no_number_is_the_median_or_left_out():
    x = sg.tensor([[1.0, NAN, 0.0, 5.0], [4.0, 3.0, 2.0, 1.0], [NAN, NAN, NAN, NAN]])
    np.testing.assert_array_equal(x.median(1).values.numpy(), [NAN, 2, NAN])
    assert x.median(1).indices.tolist()[:2] == [1, 2]
    np.testing.assert_array_equal(x.nanmedian(1).values.numpy(), [1, 2, NAN])
    np.testing.assert_array_equal(x.quantile(0.5, 1).numpy(), [NAN, 2.5, NAN])
    np.testing.assert_array_equal(x.nanquantile(0.5, 1).numpy(), [1, 2.5, NAN])
    assert math.isnan(x.median().item())
    assert x.nanmedian().item() == 2
    assert math.isnan(sg.median(sg.zeros(0)).item())
    np.testing.assert_array_equal(x.nansum(1).numpy(), [6, 10, 0])
    np.testing.assert_array_equal(x.nanmean(1).numpy(), [2, 2.5, NAN])


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_between_two_values_are_numpys(interpolation):
    a, q = np.array([1.0, 2.0, 4.0, 8.0]), [0.0, 0.1, 0.5, 0.83, 1.0]
    got = sg.quantile(sg.tensor(a), sg.tensor(q, dtype="float64"), interpolation=interpolation)
    np.testing.assert_allclose(got.numpy(), np.quantile(a, q, method=interpolation), 1e-14)


def test_running_products_of_integers_are_int64():
    x = sg.tensor([100, 100], dtype="uint8")
    assert x.cumprod(0).tolist() == [100, 10000]
    assert sg.diff(sg.tensor([True, False, False])).tolist() == [True, False]
    y = sg.tensor([2.0, 3.0])
    assert y.cumprod_(0) is y
    assert y.tolist() == [2, 6]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.kthvalue(5), ArgumentError, r"kthvalue: got k=5; dimension 1 of a tensor of shape \(3, 4\) has 4"),
        (lambda x: x.kthvalue(0), ArgumentError, "kthvalue: got k=0"),
        (lambda x: sg.zeros(3, 0).median(1), DimensionError, "there are no elements to choose from"),
        (lambda x: sg.zeros(0, dtype="int64").median(), ArgumentError, "there is no such integer"),
        (lambda x: x.quantile(1.5), ArgumentError, "got q=1.5; wanted numbers from 0 to 1"),
        (lambda x: x.quantile(0.5, interpolation="cubic"), ArgumentError, "got interpolation='cubic'; accepted are"),
        (lambda x: x.quantile(sg.ones(1, 1)), ShapeError, r"got q of shape \(1, 1\)"),
        (lambda x: x.to("int64").quantile(0.5), DtypeError, "quantile: got a tensor of int64"),
        (lambda x: x.cumprod(), ArgumentError, "cumprod: got no dim"),
        (lambda x: sg.diff(x, -1), ArgumentError, "diff: got n=-1"),
        (lambda x: sg.trapezoid(x, x, dx=1), ArgumentError, "got both x and dx"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.zeros(3, 4))


@pytest.mark.parametrize("function", [sg.median, sg.nanmedian, sg.mode, lambda x, dim: sg.kthvalue(x, 1, dim)])
def test_a_dimension_without_elements_has_none_to_choose(function):
    with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
        function(sg.zeros(0, 3), 0)
