"""`FloatTensor(…)`, `Tensor(…)` and `x.new(…)` make tensors as PyTorch does; `type` and `isinstance` know them."""

import typing

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DeviceError, DtypeError, OperandError, ShapeError

NAMES = {
    "FloatTensor": "float32", "DoubleTensor": "float64", "HalfTensor": "float16", "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8", "CharTensor": "int8", "ShortTensor": "int16", "IntTensor": "int32", "LongTensor": "int64",
    "BoolTensor": "bool",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_type_makes_tensors_of_sizes_and_of_values(name):
    kind = getattr(sg, name)
    for made, shape in ((kind(2, 3), (2, 3)), (kind(4), (4,)), (kind(), (0,)), (kind(sg.Size((2, 1))), (2, 1))):
        assert (made.dtype, made.shape) == (sg.dtypes.as_dtype(NAMES[name]), shape)
    for data in ([[1, 0], [0, 1]], [(1, 0), (0, 1)], np.eye(2), np.eye(2, dtype=np.int16), [sg.tensor([1, 0]), [0, 1]]):
        made = kind(data)
        assert made.dtype == sg.dtypes.as_dtype(NAMES[name])
        assert made.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("name", NAMES)
def test_type_converts_to_a_type_its_name_and_a_dtype_and_gives_the_name(name):
    kind, x = getattr(sg, name), sg.tensor([0.0, 1.0])
    for wanted in (kind, f"torch.{name}", f"spillgrad.{name}", NAMES[name], sg.dtypes.as_dtype(NAMES[name])):
        converted = x.type(wanted)
        assert (converted.dtype, converted.type()) == (sg.dtypes.as_dtype(NAMES[name]), f"torch.{name}")
        assert isinstance(converted, kind)
        assert x.type_as(converted).type() == f"torch.{name}"
    assert isinstance(x, kind) == (name == "FloatTensor")


def test_the_names_of_types_without_constructor_are_pytorchs():
    assert sg.tensor([1], dtype="uint16").type() == "torch.UInt16Tensor"
    assert sg.tensor([1j]).type() == "torch.ComplexFloatTensor"


def test_a_parameter_is_a_float_tensor_and_a_number_or_array_is_not():
    assert isinstance(sg.nn.Parameter(sg.ones(2)), sg.FloatTensor)
    assert not isinstance(1.0, sg.FloatTensor)
    assert not isinstance(np.ones(2, np.float32), sg.FloatTensor)
    assert not isinstance(sg.ones(2), sg.cuda.FloatTensor)
    assert typing.Optional[sg.FloatTensor] == sg.FloatTensor | None  # noqa: UP045


def test_tensor_makes_tensors_of_the_default_dtype():
    try:
        for dtype in ("float32", "float64"):
            sg.set_default_dtype(dtype)
            for made in (sg.Tensor(2, 3), sg.Tensor([[1, 2, 3], [4, 5, 6]]), sg.Tensor(np.ones((2, 3), np.int64))):
                assert (made.dtype, made.shape) == (sg.dtypes.as_dtype(dtype), (2, 3))
            assert sg.Tensor().shape == (0,)
            assert sg.Tensor(np.array([1.5, 2.5])).dtype == sg.dtypes.as_dtype(dtype)
    finally:
        sg.set_default_dtype("float32")


def test_an_array_of_the_dtype_and_a_tensor_share_their_memory():
    array, x = np.zeros(2, np.float32), sg.zeros(2)
    for source, made in ((array, sg.Tensor(array)), (x, sg.FloatTensor(x)), (x, x.new(x)), (x, sg.Tensor(x))):
        source[0] += 1
        assert made[0].item() == float(source[0])
    assert sg.Tensor(sg.ones(2, dtype="int64")).dtype == sg.int64
    assert not sg.FloatTensor(sg.ones(2, requires_grad=True)).requires_grad


def test_new_makes_tensors_of_the_same_dtype():
    x = sg.zeros(2, 3, dtype="float64")
    assert (x.new(4).shape, x.new(4).dtype) == ((4,), sg.float64)
    assert x.new(x.size()).shape == (2, 3)
    assert x.new(x.size()[:1]).shape == (2,)
    assert x.new(x.size()[:1] + x.size()[1:]).shape == (2, 3)
    assert x.new([1, 2]).tolist() == [1.0, 2.0]
    assert sg.tensor([1]).new([1.7]).tolist() == [1]
    assert x.new().shape == (0,)
    assert x.size().numel() == 6
    assert x.size() == (2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.FloatTensor((2, 3)), ArgumentError, r"got the tuple \(2, 3\), which may be a shape or data"),
        (lambda: sg.Tensor(sg.ones(2, 3).shape), ArgumentError, r"Tensor\(\*shape\) or x.size\(\), data as a list"),
        (lambda: sg.ones(2).new(sg.ones(2).shape), ArgumentError, "which may be a shape or data"),
        (lambda: sg.Tensor(3.0), DtypeError, r"new\(\): data must be a sequence \(got float\)"),
        (lambda: sg.Tensor(True), DtypeError, r"data must be a sequence \(got bool\)"),
        (lambda: sg.LongTensor("12"), DtypeError, r"data must be a sequence \(got str\)"),
        (lambda: sg.FloatTensor(2, "a"), DtypeError, "these are sizes: wanted integers"),
        (lambda: sg.FloatTensor(2, 1.5), DtypeError, "got 1.5 among several arguments"),
        (lambda: sg.FloatTensor(-1), ShapeError, "negative dimension -1"),
        (lambda: sg.FloatTensor([[1], [1, 2]]), ShapeError, "nested data that is not rectangular"),
        (lambda: sg.FloatTensor(["a"]), OperandError, "wanted numbers"),
        (lambda: sg.FloatTensor(sg.ones(2, dtype="float64")), DtypeError, "got a tensor of float64; expected float32"),
        (lambda: sg.ones(2).type("torch.LongerTensor"), ArgumentError, "invalid type: 'torch.LongerTensor'"),
        (lambda: sg.ones(2).type("jax.LongTensor"), ArgumentError, "invalid type: 'jax.LongTensor'"),
        (lambda: sg.set_default_tensor_type(sg.LongTensor), DtypeError, "only floating-point types are supported"),
        (lambda: sg.set_default_tensor_type("torch.LongTensor"), DtypeError, "only floating-point types"),
        (lambda: sg.set_default_tensor_type(sg.float32), DtypeError, "set_default_dtype takes dtypes"),
        (lambda: sg.set_default_tensor_type(sg.cuda.FloatTensor), DeviceError, "give device='cuda' where tensors are"),
    ],
)
def test_what_is_refused_says_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.skipif(sg.cuda.is_available(), reason="there is a device")
def test_a_type_of_the_device_needs_one():
    with pytest.raises(DeviceError, match="driver"):
        sg.cuda.FloatTensor([1.0])
    with pytest.raises(DeviceError, match="driver"):
        sg.FloatTensor(2, device="cuda")


def test_the_default_tensor_type_sets_the_default_dtype():
    try:
        for kind, dtype in (
            (sg.DoubleTensor, "float64"),
            ("torch.HalfTensor", "float16"),
            ("torch.FloatTensor", "float32"),
        ):
            sg.set_default_tensor_type(kind)
            assert sg.ones(1).dtype == sg.dtypes.as_dtype(dtype)
    finally:
        sg.set_default_dtype("float32")
