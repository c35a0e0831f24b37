"""Reductions against NumPy, their gradients against central differences."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, OperandError
from spillgrad.ops import reduce, scan, sorting, truth
from spillgrad.ops.comparison import isnan
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 4, 2))

# name: (function of a tensor, dim and keepdim, NumPy's of an array, axis and keepdims)
TABLE = {
    "sum": (reduce.sum, np.sum),
    "mean": (reduce.mean, np.mean),
    "prod": (reduce.prod, np.prod),
    "amax": (reduce.amax, np.max),
    "amin": (reduce.amin, np.min),
    "logsumexp": (reduce.logsumexp, lambda a, axis, keepdims: np.log(np.sum(np.exp(a), axis=axis, keepdims=keepdims))),
    "var": (
        lambda x, dim, keepdim: reduce.var(x, dim, keepdim=keepdim),
        lambda a, axis, keepdims: np.var(a, axis=axis, keepdims=keepdims, ddof=1),
    ),
    "std": (
        lambda x, dim, keepdim: reduce.std(x, dim, unbiased=False, keepdim=keepdim),
        lambda a, axis, keepdims: np.std(a, axis=axis, keepdims=keepdims),
    ),
    "norm": (
        lambda x, dim, keepdim: reduce.norm(x, 2, dim, keepdim),
        lambda a, axis, keepdims: np.sqrt(np.sum(a * a, axis=axis, keepdims=keepdims)),
    ),
    "norm1": (
        lambda x, dim, keepdim: reduce.norm(x, 1, dim, keepdim),
        lambda a, axis, keepdims: np.sum(np.abs(a), axis=axis, keepdims=keepdims),
    ),
    "norm3": (
        lambda x, dim, keepdim: reduce.norm(x, 3, dim, keepdim),
        lambda a, axis, keepdims: np.sum(np.abs(a) ** 3, axis=axis, keepdims=keepdims) ** (1 / 3),
    ),
    "norm inf": (
        lambda x, dim, keepdim: reduce.norm(x, math.inf, dim, keepdim),
        lambda a, axis, keepdims: np.max(np.abs(a), axis=axis, keepdims=keepdims),
    ),
}
DIMS = [None, 0, -1, (0, 2), (1,)]


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_reduction_agrees_with_numpy(name, dim, keepdim):
    function, oracle = TABLE[name]
    got = function(sg.tensor(A), dim, keepdim).numpy()
    wanted = oracle(A, axis=dim, keepdims=keepdim)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, 1e-12)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dim", DIMS)
def test_both_derivatives_of_a_reduction_agree_with_differences(name, dim):
    function, _ = TABLE[name]
    check_gradients(lambda x: function(x, dim, False), A)


@pytest.mark.parametrize("name", TABLE)
def test_a_reduction_takes_any_strides_and_half_precision(name):
    function, oracle = TABLE[name]
    view = sg.tensor(A).transpose(0, 2)
    np.testing.assert_allclose(function(view, 1, False).numpy(), oracle(A.T, axis=1, keepdims=False), 1e-12)
    check_gradients(lambda x: function(x.transpose(0, 2), 1, True), A[:, :2], second=False)
    check_half_precision(lambda x: function(x, 1, False), A, tolerance=5e-2)


@pytest.mark.parametrize("name", TABLE)
def test_a_reduction_of_a_number_is_that_of_one_element(name):
    function, _ = TABLE[name]
    wanted = {"var": math.nan, "std": 0.0}.get(name, 2.5)
    for dim in (None, 0, -1):
        got = function(sg.tensor(2.5, dtype="float64"), dim, False)
        assert got.shape == ()
        assert got.item() == pytest.approx(wanted, nan_ok=True)


def test_reducing_nothing_gives_the_neutral_element():
    nothing = sg.zeros(0, 3)
    assert reduce.sum(nothing, 0).tolist() == [0, 0, 0]
    assert reduce.prod(nothing, 0).tolist() == [1, 1, 1]
    assert bool(isnan(reduce.mean(nothing, 0)).all())
    assert reduce.logsumexp(nothing, 0).tolist() == [-math.inf] * 3
    assert reduce.sum(nothing, 1).shape == (0,)
    x = leaf(np.zeros((0, 3)))
    reduce.sum(x).backward()
    assert x.grad.shape == (0, 3)


@pytest.mark.parametrize("function", [reduce.amax, reduce.max, reduce.min, reduce.argmax])
def test_the_extreme_of_nothing_is_an_error_that_names_the_shape(function):
    with pytest.raises(DimensionError, match=r"got a tensor of shape \(0, 3\)"):
        function(sg.zeros(0, 3), 0)


def test_integers_and_bool_add_up_to_int64():
    small = sg.tensor([[100, 100], [100, 100]], dtype="uint8")
    assert reduce.sum(small).item() == 400
    assert reduce.sum(small, 0).dtype == sg.int64
    assert reduce.prod(small).item() == 100_000_000
    assert scan.cumsum(small, 1).tolist() == [[100, 200], [100, 200]]
    assert reduce.sum(sg.tensor([True, True])).item() == 2
    assert reduce.amax(small).dtype == sg.uint8
    assert reduce.max(sg.tensor([3, 7, 7]), 0).indices.item() == 1


def test_axis_is_dim():
    x = sg.tensor(A)
    np.testing.assert_array_equal(reduce.sum(x, axis=[0, 1]).numpy(), reduce.sum(x, (0, 1)).numpy())
    np.testing.assert_array_equal(reduce.max(x, axis=1).indices.numpy(), A.argmax(1))


def test_a_numpy_integer_is_a_dim():
    x, one = sg.tensor(A), np.int64(1)
    assert reduce.sum(x, one).tolist() == reduce.sum(x, (one,)).tolist() == reduce.sum(x, 1).tolist()
    assert reduce.max(x, one).indices.tolist() == reduce.max(x, 1).indices.tolist()
    assert reduce.max(x, (0, one)).tolist() == reduce.amax(x, (0, 1)).tolist()
    assert scan.cumsum(x, one).tolist() == scan.cumsum(x, 1).tolist()


def test_dtype_converts_before_the_sum():
    assert reduce.sum(sg.tensor([1, 2]), dtype="float32").dtype == sg.float32
    assert reduce.mean(sg.tensor([1, 2]), dtype="float64").item() == 1.5


def test_the_gradient_of_a_sum_is_a_view_and_saves_nothing():
    x = leaf(A)
    total = reduce.sum(x, 1)
    assert not [slot for slot in dir(total.grad_fn) if slot.startswith("_raw_saved_")]
    (gradient,) = sg.grad(total, x, sg.ones(3, 2, dtype="float64"))
    assert 0 in gradient.stride()


@pytest.mark.parametrize(
    "factors", [[[2.0, 3.0, 4.0, 5.0, 6.0]], [[2.0, 0.0, 4.0]], [[0.0, 0.0, 4.0]], [[7.0]]], ids=str
)
def test_products_with_zeros_have_exact_derivatives(factors):
    check_gradients(lambda x: reduce.prod(x, 1), factors)


def test_correction_and_unbiased_mean_the_same():
    x = sg.tensor(A)
    for got, ddof in (
        (reduce.var(x), 1),
        (reduce.var(x, unbiased=False), 0),
        (reduce.var(x, False), 0),
        (reduce.var(x, correction=2), 2),
    ):
        np.testing.assert_allclose(got.item(), np.var(A, ddof=ddof))
    variance, mean = reduce.var_mean(x, 1)
    np.testing.assert_allclose(variance.numpy(), A.var(1, ddof=1))
    np.testing.assert_allclose(mean.numpy(), A.mean(1))
    with pytest.raises(ArgumentError, match="unbiased=True and correction=0; give one"):
        reduce.var(x, unbiased=True, correction=0)


def test_equal_values_have_no_spread_and_no_gradient():
    x = leaf(np.ones(4))
    reduce.std(x).backward()
    assert x.grad.tolist() == [0, 0, 0, 0]
    y = leaf(np.zeros(3))
    reduce.norm(y).backward()
    assert y.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("function", "arg"), [(reduce.max, np.argmax), (reduce.min, np.argmin)])
def test_an_extreme_along_a_dimension_comes_with_its_place(function, arg):
    result = function(sg.tensor(A), 1)
    np.testing.assert_array_equal(result.indices.numpy(), arg(A, 1))
    np.testing.assert_array_equal(result.values.numpy(), np.take_along_axis(A, arg(A, 1)[:, None], 1)[:, 0])
    values, indices = function(sg.tensor(A), 1, keepdim=True)
    assert values.shape == indices.shape == (3, 1, 2)
    check_gradients(lambda x: function(x, 1).values, A)
    check_gradients(lambda x: function(x, -1, True)[0] ** 2, A)
    check_half_precision(lambda x: function(x, 1).values, A)
    values, indices = function(sg.tensor(4.0), 0)
    assert (values.item(), indices.item(), values.shape) == (4.0, 0, ())


def test_an_extreme_along_a_dimension_saves_its_indices_only():
    values, _ = reduce.max(leaf(A), 1)
    assert {name for name in ("self", "values", "indices") if hasattr(values.grad_fn, f"_saved_{name}")} == {"indices"}


def test_two_tensors_have_an_elementwise_extreme():
    assert reduce.max(sg.tensor([1.0, 5.0]), sg.tensor([3.0, 2.0])).tolist() == [3, 5]
    assert reduce.min(sg.tensor([1.0, 5.0]), sg.tensor([3.0, 2.0])).tolist() == [1, 2]


@pytest.mark.parametrize("function", [reduce.max, reduce.amax])
def test_equal_extremes_share_the_gradient(function):
    x = leaf([1.0, 3.0, 3.0])
    function(x).backward()
    assert x.grad.tolist() == [0, 0.5, 0.5]


def test_nan_is_the_extreme():
    x = sg.tensor([1.0, math.nan, 2.0])
    assert math.isnan(reduce.max(x).item())
    assert reduce.argmax(x).item() == reduce.argmin(x).item() == 1
    for function in (reduce.max, reduce.min):
        values, indices = function(x, 0)
        assert math.isnan(values.item())
        assert indices.item() == 1


@pytest.mark.parametrize(("function", "oracle"), [(reduce.argmax, np.argmax), (reduce.argmin, np.argmin)])
def test_positions_of_extremes_agree_with_numpy(function, oracle):
    for dim in (None, 0, -1):
        for keepdim in (False, True):
            got = function(sg.tensor(A), dim, keepdim).numpy()
            np.testing.assert_array_equal(got, oracle(A, axis=dim, keepdims=keepdim))
    assert function(sg.tensor([4, 4])).dtype == sg.int64


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_sums_agree_with_numpy(dim):
    np.testing.assert_allclose(scan.cumsum(sg.tensor(A), dim).numpy(), np.cumsum(A, dim))
    check_gradients(lambda x: scan.cumsum(x, dim) ** 2, A)
    check_half_precision(lambda x: scan.cumsum(x, dim), A)


@pytest.mark.parametrize("dim", [None, 1, (0, 2)])
def test_truth_and_counts_agree_with_numpy(dim):
    flags = RNG.random((3, 4, 2)) > 0.5
    x = sg.tensor(flags)
    np.testing.assert_array_equal(truth.all(x, dim).numpy(), flags.all(dim))
    np.testing.assert_array_equal(truth.any(x, dim, keepdim=True).numpy(), flags.any(dim, keepdims=True))
    np.testing.assert_array_equal(truth.count_nonzero(x, dim).numpy(), np.count_nonzero(flags, dim))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_agrees_with_numpy(dim, descending):
    values, indices = sorting.sort(sg.tensor(A), dim, descending)
    wanted = np.sort(A, dim)
    np.testing.assert_array_equal(values.numpy(), np.flip(wanted, dim) if descending else wanted)
    np.testing.assert_array_equal(np.take_along_axis(A, indices.numpy(), dim), values.numpy())
    np.testing.assert_array_equal(sorting.argsort(sg.tensor(A), dim, descending).numpy(), indices.numpy())
    check_gradients(lambda x: sorting.sort(x, dim, descending).values ** 2, A)
    check_half_precision(lambda x: sorting.sort(x, dim, descending)[0], A)


def test_sorting_is_stable_in_both_directions_and_puts_nan_above_all():
    x = sg.tensor([2.0, 1.0, 2.0, math.nan, 1.0])
    assert sorting.argsort(x).tolist() == [1, 4, 0, 2, 3]
    assert sorting.argsort(x, descending=True).tolist() == [3, 0, 2, 1, 4]


def test_topk_gives_the_first_of_the_sorted():
    values, indices = sorting.topk(sg.tensor([3.0, 9.0, 5.0, 7.0]), 2)
    assert (values.tolist(), indices.tolist()) == ([9, 7], [1, 3])
    assert sorting.topk(sg.tensor([3, 9, 5]), 1, largest=False).values.tolist() == [3]
    check_gradients(lambda x: sorting.topk(x, 2, 1).values ** 2, A)
    with pytest.raises(ArgumentError, match=r"topk: got k=5; dimension 1 of a tensor of shape \(3, 4, 2\) has 4"):
        sorting.topk(sg.tensor(A), 5, 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: reduce.sum(sg.zeros(2, 3), 2),
            DimensionError,
            "sum: got dim 2; a tensor of 2 dimensions takes -2 to 1",
        ),
        (lambda: reduce.sum(sg.zeros(2, 3), (0, -2)), DimensionError, "a dimension appears twice"),
        (lambda: reduce.mean(sg.tensor([1])), DtypeError, "mean: got a tensor of int64; wanted floating-point"),
        (lambda: reduce.max(sg.zeros(2, dtype="complex64")), DtypeError, "max: does not support complex input"),
        (lambda: reduce.norm(sg.zeros(2), "nuc"), ArgumentError, "norm: got p='nuc'"),
        (lambda: scan.cumsum(sg.zeros(2)), ArgumentError, "cumsum: got no dim"),
        (lambda: reduce.sum(sg.zeros(2), 0.5), OperandError, "sum: got dim 0.5; wanted an integer"),
        (lambda: sorting.sort(sg.zeros(2), 0.0), OperandError, "sort: got dim 0.0; wanted an integer"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
