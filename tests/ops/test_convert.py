"""Conversions between dtypes, and copies."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DeviceError, DtypeError
from spillgrad.ops import array_casts
from tests.ops.checks import check_gradients, leaf

DTYPES = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
]  # fmt: skip


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_every_dtype_converts_to_every_other(first, second):
    x = sg.tensor([0, 1, 3]).to(first)
    assert str(x.dtype) == first
    y = x.to(second)
    assert str(y.dtype) == second
    assert y.tolist() == ([False, True, True] if second == "bool" else [0, 1, 1] if first == "bool" else [0, 1, 3])


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_a_large_array_converts_as_numpy_does_also_from_a_transposed_or_repeated_one(monkeypatch, first, second):
    monkeypatch.setattr(array_casts, "_SHARED_MIN_BYTES", 0)
    numbers = np.random.default_rng(0).integers(0, 100, (300, 400))
    x = sg.tensor(numbers).to(first)
    for part in (x, x.t(), x[:1].expand(300, 400), x[:, ::2]):
        wanted = part.numpy().astype(second)
        assert np.array_equal(part.to(second).numpy(), wanted)
        target = sg.zeros(wanted.shape, dtype=second)
        assert np.array_equal(target.copy_(part).numpy(), wanted)


def test_a_large_float64_tensor_is_rounded_to_float16_once():
    x = sg.full((5000,), 1 + 2.0**-11 + 2.0**-40, dtype="float64")  # in float32, halfway between two numbers
    assert x.to("float16").double().tolist() == [1 + 2.0**-10] * 5000


@pytest.mark.parametrize("kind", ["i4", "f4", "f8"])
def test_a_large_copy_minds_the_byte_order(kind):
    source = np.arange(1 << 20).astype(kind)
    target = sg.zeros(1 << 20)
    for order in "<>":
        assert np.array_equal(target.zero_().copy_(source.astype(order + kind)).numpy(), source.astype("f4"))


def test_a_large_copy_may_overlap_its_source(monkeypatch):
    monkeypatch.setattr(array_casts, "_SHARED_MIN_BYTES", 0)
    values = np.arange(200_000, dtype=np.float32)
    x = sg.tensor(values)
    x[1:].copy_(x[:-1])
    assert np.array_equal(x.numpy(), [0, *values[:-1]])


def test_what_does_not_fit_is_infinite_truncated_or_wrapped_without_a_warning():
    assert sg.tensor([1e10]).to("float16").tolist() == [math.inf]
    assert sg.tensor([1e300], dtype="float64").float().tolist() == [math.inf]
    assert sg.tensor([1.9, -1.9]).long().tolist() == [1, -1]
    assert sg.tensor([300]).to("uint8").tolist() == [44]
    assert sg.tensor([0.0, math.nan]).bool().tolist() == [False, True]
    assert sg.tensor([math.nan]).int().shape == (1,)
    assert (sg.tensor([60000.0], dtype="float16") * 2).tolist() == [math.inf]


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("half", "float16"), ("bfloat16", "bfloat16"), ("float", "float32"), ("double", "float64"), ("byte", "uint8"),
        ("char", "int8"), ("short", "int16"), ("int", "int32"), ("long", "int64"), ("bool", "bool"),
    ],
)  # fmt: skip
def test_a_dtype_method_converts(method, dtype):
    assert getattr(sg.tensor([1.5]), method)().dtype == dtype


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.to("float64"),
        lambda x: x.to(sg.float64),
        lambda x: x.to(np.float64),
        lambda x: x.to("cpu", "float64"),
        lambda x: x.to(sg.device("cpu"), sg.double, True),
        lambda x: x.to(device="cpu", dtype="float64", non_blocking=True),
        lambda x: x.to(sg.ones(1, dtype="float64")),
        lambda x: x.astype("float64"),
        lambda x: x.cast("float64"),
        lambda x: sg.cast(x, "float64"),
        lambda x: x.type_as(sg.ones(1, dtype="float64")),
    ],
)
def test_every_spelling_of_a_conversion_does_the_same(convert):
    y = convert(sg.tensor([1, 2]))
    assert (y.dtype, y.tolist()) == (sg.float64, [1, 2])


def test_a_dtype_of_another_byte_order_means_this_machines():
    assert sg.ones(2).to(np.dtype(">f8")).dtype.isnative


def test_nothing_to_do_is_the_tensor_itself_unless_a_copy_is_asked_for():
    x = sg.ones(2)
    for same in (x.to("float32"), x.to("cpu"), x.float(), x.cpu(), x.contiguous(), x.to(None), x.to(x)):
        assert same is x
    copied = x.to("float32", copy=True)
    assert copied is not x
    assert not np.shares_memory(copied.numpy(), x.numpy())


def test_gradients_come_back_in_the_dtype_of_the_source():
    x = sg.ones(2, requires_grad=True)
    (x.double() * 3).sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (sg.float32, [3, 3])
    y = sg.ones(2, dtype="float16", requires_grad=True)
    (y.float() * 2 + y.to("bfloat16").float()).sum().backward()
    assert (y.grad.dtype, y.grad.tolist()) == (sg.float16, [3, 3])
    check_gradients(lambda t: t.to("float64", copy=True).clone().contiguous() ** 2, [1.0, 2.0])
    assert not leaf([1.0]).long().requires_grad


def test_a_clone_is_dense_and_its_own():
    x = sg.tensor([[1, 2], [3, 4]]).T
    y = x.clone()
    assert y.is_contiguous()
    y[0, 0] = 9
    assert x.tolist() == [[1, 3], [2, 4]]
    assert x.contiguous().is_contiguous()


def test_complex_numbers_are_stored_and_moved():
    x = sg.tensor([[1 + 2j, 3.0]])
    assert x.to("complex128").T.tolist() == [[1 + 2j], [3]]
    assert sg.cat([x, x]).shape == (2, 2)
    assert x[0, 0].item() == 1 + 2j
    assert x.clone().numpy().dtype == np.complex64


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.to("float12"), DtypeError, "dtype: got 'float12'"),
        (lambda x: x.to("cuda:1"), DeviceError, "device: got 'cuda:1'; of several GPUs the first is used"),
        (lambda x: x.astype(object), DtypeError, "dtype: got"),
        (lambda x: x.to(3.5), DtypeError, "dtype: got 3.5"),
        (lambda x: x.to(np.dtype("U5")), DtypeError, "dtype: got dtype"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.ones(2))
