"""Names of the array API standard, against NumPy's functions of those names."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from tests.ops.checks import check_gradients

A = np.random.default_rng(0).normal(size=(2, 3, 4))
INDEX = np.array([[[0, 2, 1, 1]]])
CASES = {
    "permute_dims": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=-2),
    "expand_dims first": lambda xp, x: xp.expand_dims(x, 0),
    "repeat": lambda xp, x: xp.repeat(x, 3, axis=1),
    "repeat all": lambda xp, x: xp.repeat(x, 2),
    "unstack": lambda xp, x: xp.unstack(x, axis=1)[2],
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=1),
    "cumulative_sum from 0": lambda xp, x: xp.cumulative_sum(x, axis=-1, include_initial=True),
    "cumulative_prod": lambda xp, x: xp.cumulative_prod(x[0, 0]),
    "cumulative_prod from 1": lambda xp, x: xp.cumulative_prod(x, axis=0, include_initial=True),
    "vecdot": lambda xp, x: xp.vecdot(x, x[:1]),
    "concat": lambda xp, x: xp.concat([x, x], axis=2),
    "acosh": lambda xp, x: xp.acosh(xp.abs(x) + 2),
    "newaxis": lambda xp, x: x[:, xp.newaxis] * xp.e,
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_numpys_and_differentiable(name):
    function = CASES[name]
    np.testing.assert_allclose(function(sg, sg.tensor(A)).numpy(), function(np, A), 1e-12)
    check_gradients(lambda x: function(sg, x), A[:, :, :2], second=False)


def test_elements_are_taken_along_an_axis():
    got = sg.take_along_axis(sg.tensor(A), sg.tensor(INDEX), axis=1)
    np.testing.assert_array_equal(got.numpy(), np.take_along_axis(A, np.broadcast_to(INDEX, (2, 1, 4)), 1))


def test_arrays_and_shapes_broadcast():
    parts = sg.broadcast_arrays(sg.tensor(A), sg.tensor(A[:1, :, :1]))
    assert [part.shape for part in parts] == [(2, 3, 4)] * 2
    assert sg.broadcast_shapes((2, 1), (3,), 3) == (2, 3)
    with pytest.raises(ShapeError, match="broadcast_shapes: got"):
        sg.broadcast_shapes((2,), (3,))


def test_unique_functions_return_named_parts():
    values = np.array([[3, 1], [3, 2]])
    wanted = np.unique_all(values)
    found = sg.unique_all(sg.tensor(values))
    for part in ("values", "indices", "inverse_indices", "counts"):
        np.testing.assert_array_equal(getattr(found, part).numpy(), getattr(wanted, part))
    assert sg.unique_counts(sg.tensor(values)).counts.tolist() == [1, 1, 2]
    assert sg.unique_inverse(sg.tensor(values)).inverse_indices.tolist() == [[2, 0], [2, 1]]
    assert sg.unique_values(sg.tensor(values)).tolist() == [1, 2, 3]


def test_asarray_copies_as_told():
    array = A.copy()
    x = sg.asarray(array)
    assert np.shares_memory(x.numpy(), array)
    assert sg.asarray(x) is x
    assert not np.shares_memory(sg.asarray(array, copy=True).numpy(), array)
    assert sg.asarray(array, copy=False).dtype == sg.float64
    assert sg.asarray([1, 2]).dtype == sg.int64
    assert sg.asarray(np.ones(2, np.float32), dtype="float64").dtype == sg.float64
    y = sg.ones(2, requires_grad=True)
    copied = sg.asarray(y, copy=True)
    assert copied.storage is not y.storage
    (copied.sum() + sg.asarray(y, dtype="float64").sum() + sg.as_tensor(y, dtype="float64").sum()).backward()
    assert (y.grad.tolist(), sg.as_tensor(y, dtype="float64").dtype) == ([3, 3], sg.float64)
    for data in ([1.0], array.astype(np.int32)):
        with pytest.raises(ArgumentError, match="which must be copied"):
            sg.asarray(data, dtype="float32", copy=False)


def test_astype_copies_unless_told_otherwise():
    x = sg.tensor(A)
    assert sg.astype(x, "float64") is not x
    assert sg.astype(x, "float64", copy=False) is x
    assert sg.astype(x, sg.int32).dtype == sg.int32


def test_astype_puts_the_result_on_the_device():
    with pytest.raises(DeviceError, match="nowhere"):
        sg.astype(sg.tensor(A), "float64", device="nowhere")


@pytest.mark.parametrize("kind", ["bool", "signed integer", "unsigned integer", "integral", "real floating", "numeric"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float32", "complex64"])
def test_isdtype_agrees_with_numpy(dtype, kind):
    assert sg.isdtype(dtype, kind) == np.isdtype(np.dtype(dtype), kind)


def test_isdtype_takes_dtypes_and_tuples():
    assert sg.isdtype(sg.bfloat16, ("bool", "real floating"))
    assert sg.isdtype(sg.int8, sg.int8)
    assert not sg.isdtype(sg.int8, ("bool", sg.int16))
    assert sg.isdtype("complex64", "complex floating")
    with pytest.raises(DtypeError, match="whole"):
        sg.isdtype(sg.int8, "whole")


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [("float64", "float32", True), ("float32", "int64", False), ("int64", "bool", False), ("bool", "uint8", True),
     ("int64", "uint8", True), ("complex64", "float64", False)],
)  # fmt: skip
def test_a_cast_must_keep_the_kind(source, target, wanted):
    assert sg.can_cast(source, target) is wanted
    assert sg.can_cast(sg.zeros(2, dtype=source), target) is wanted


def test_what_an_axis_needs_is_named():
    with pytest.raises(ArgumentError, match="and no axis; give one"):
        sg.cumulative_sum(sg.tensor(A))
    with pytest.raises(ShapeError, match="at least two dimensions"):
        sg.matrix_transpose(sg.zeros(3))
